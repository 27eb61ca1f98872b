"""Random programs: after every pass the result is the oracle's, bit for bit.

These are the first of the 2,000 that `.ci/run` takes in a step of its own, which also asks what all of them
together reach: each node and each rule of the algebra so many times.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.random_programs.runner import run_many

SEED = 7
COUNT = 20
CHUNK = 10


@pytest.mark.parametrize("first", range(0, COUNT, CHUNK))
def test_every_pass_keeps_the_result(
    first: int, record_property: Callable[[str, object], None]
) -> None:
    failures, coverage = run_many(SEED, range(first, first + CHUNK))
    record_property("random programs", coverage)
    remedy = f"python -m tests.random_programs --seed {SEED} --program"
    assert not failures, "\n".join(
        f"{failure}\n  {remedy} {number}" for number, failure in failures
    )
