"""Fixtures by which small operations are noted, too, as they are while a function of `tc.jit` is recorded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from taskc.numpy.segment import recorders


@pytest.fixture
def noted() -> Iterator[None]:
    recorders.append(None)
    yield
    recorders.remove(None)


@pytest.fixture(params=["at once", "noted"])
def either(request: pytest.FixtureRequest) -> None:
    """Small operations: NumPy's at once in one run of the test, and noted in another."""
    if request.param == "noted":
        request.getfixturevalue("noted")
