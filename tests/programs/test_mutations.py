"""Bugs planted in each pass are found by the random programs, and the pass is named.

The default run plants the first bug of each pass; `pytest -m sweep` plants the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest

from taskc.passes.pipeline import PASSES
from tests.programs import description as d
from tests.programs.generator import program
from tests.programs.mutations import MUTATIONS, Mutation
from tests.programs.oracle import Oracle
from tests.programs.runner import Results, check

SEED = 7
MOST = 1500


@cache
def _example(number: int) -> tuple[d.Program, Results]:
    made = program(SEED, number)
    return made, Oracle(made).results()


def _planted() -> Iterator[object]:
    seen: set[str] = set()
    for mutation in MUTATIONS:
        marks = [pytest.mark.sweep] if mutation.stage in seen else []
        yield pytest.param(mutation, id=str(mutation), marks=marks)
        seen.add(mutation.stage)


@pytest.mark.parametrize("mutation", list(_planted()))
def test_a_wrong_pass_is_found_and_named(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(MOST):
        made, expected = _example(number)
        with monkeypatch.context() as patch:
            mutation.plant(patch)
            failure = check(made, expected=expected, texts=False, only=mutation.stage)
        if failure is not None:
            assert failure.stage == mutation.stage
            assert check(made, expected=expected, texts=False, only=mutation.stage) is None
            return
    pytest.fail(f"{MOST} programs don't show: {mutation}")


def test_every_pass_has_three_mutations() -> None:
    count = Counter(mutation.stage for mutation in MUTATIONS)
    assert {one.name: count[one.name] for one in PASSES if count[one.name] < 3} == {}
