"""Random programs: after every pass the result is the oracle's, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.programs.coverage import Coverage
from tests.programs.generator import program
from tests.programs.runner import parsed, run_many, steps

SEED = 7
COUNT = 2000
CHUNK = 50


@pytest.mark.parametrize("first", range(0, COUNT, CHUNK))
def test_every_pass_keeps_the_result(first: int, record_property: Callable[..., None]) -> None:
    failures, coverage = run_many(SEED, range(first, first + CHUNK))
    record_property("random programs", coverage)
    remedy = f"python -m tests.programs --seed {SEED} --program"
    assert not failures, "\n".join(f"{failure}\n  {remedy} {number}" for number, failure in failures)


def test_the_generator_reaches_every_node_and_rule() -> None:
    coverage = Coverage()
    for number in range(COUNT):
        before = None
        with coverage.program():
            for stage, kernel in steps(parsed(program(SEED, number))):
                if kernel is not before:
                    coverage.see(stage, kernel, before)
                before = kernel
        if number % CHUNK == 0 and not coverage.missing():
            break
    assert coverage.missing() == []
