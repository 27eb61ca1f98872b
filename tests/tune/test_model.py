"""Costs beside what was measured, and a correction that is learned: taken only where it helps."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from taskc.tune.model import corrected, judged, rank_correlation
from taskc.tune.rows import Row, now
from tests.tune.synthetic import Step, space


def rows(seconds: Callable[[Step], float], sizes: tuple[int, ...] = (40, 60, 80, 100)) -> list[Row]:
    """Measured ones of several problems, half of each space."""
    made = []
    for size in sizes:
        here = space(size)
        for plan in here.sample(len(here.plans) // 2, Random(size)):
            made.append(
                Row(
                    operator="step", problem=here.problem_text, plan=here.text(plan), machine="m",
                    version="1.0", outcome="measured", seconds=size * seconds(plan), spread=0.0, samples=3,
                    predicted=here.predicted(plan), date=now(),
                )
            )  # fmt: skip
    return made


def wrong_about_width(plan: Step) -> float:
    """The cost has 8 for the best width, and it is 2."""
    return 1e-3 * (1 + abs(plan.width - 2))


def as_predicted(plan: Step) -> float:
    return 3 * space().predicted(plan)


def test_what_the_costs_get_wrong_is_learned() -> None:
    found = judged(rows(wrong_about_width))
    assert found is not None
    assert found.learned is not None
    assert found.is_learned_better
    assert found.learned.regret < 0.1 < found.analytic.regret
    assert found.learned.correlation > 0.8 > found.analytic.correlation
    here = space(70)
    better = corrected(here, rows(wrong_about_width))
    assert wrong_about_width(better.ranked[0]) < 0.5 * wrong_about_width(here.ranked[0])


def test_costs_that_are_right_stay() -> None:
    found = judged(rows(as_predicted))
    assert found is not None
    assert found.analytic.regret == 0
    assert found.analytic.correlation == pytest.approx(1)
    assert not found.is_learned_better
    here = space(70)
    assert corrected(here, rows(as_predicted)) is here


def test_of_few_problems_nothing_is_learned() -> None:
    found = judged(rows(wrong_about_width, (40, 60)))
    assert found is not None
    assert found.learned is None
    assert found.analytic.regret > 0.1
    assert judged([]) is None


def test_rank_correlation() -> None:
    assert rank_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 1, 2], [1, 1, 5]) == pytest.approx(1)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) == 0
