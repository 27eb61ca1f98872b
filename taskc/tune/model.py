"""The quality of an operator's cost model, and a correction learned from measurements.

The correction is a ridge regression for each operator and machine: it predicts the logarithm of a plan's time over its
cost from the plan's choices. It is used only if it picks better plans than the costs alone, for problems that it hasn't
seen: each problem in turn is held out, and the regret is the time of the plan picked from those measured, relative to
the fastest of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import log, log2
from typing import Any, TypeAlias

import numpy as np

from taskc.dataclass import dataclass
from taskc.tune.rows import MEASURED, Row, parts
from taskc.tune.space import Space

Array: TypeAlias = "np.ndarray[Any, Any]"
Cost: TypeAlias = "Callable[[Any], float]"

_LEAST_PROBLEMS = 3
_LEAST_ROWS = 5  # of a problem
_STRENGTH = 1.0  # of the ridge


@dataclass(frozen=True, slots=True)
class Quality:
    """The quality of predictions against measurements.

    correlation  rank correlation, the mean over problems
    error        the mean absolute error relative to measurements (MAPE)
    regret       the slowdown of the plan predicted to be fastest against the fastest, the mean over problems
    """

    correlation: float
    error: float
    regret: float


@dataclass(frozen=True, slots=True)
class Judged:
    """The quality of costs alone, and corrected by other problems; None if there are too few of these."""

    analytic: Quality
    learned: Quality | None
    problems: int
    rows: int

    @property
    def is_learned_better(self) -> bool:
        return self.learned is not None and self.learned.regret < self.analytic.regret


def judged(rows: Iterable[Row]) -> Judged | None:
    """The quality of costs, with and without a correction; None if too little was measured."""
    groups = _groups(rows)
    if not groups:
        return None
    analytic = _quality([(group, [_predicted(row) for row in group]) for group in groups])
    count = sum(map(len, groups))
    if len(groups) < _LEAST_PROBLEMS:
        return Judged(analytic, None, len(groups), count)
    held_out = []
    for number, group in enumerate(groups):
        correct = _Correction([*groups[:number], *groups[number + 1 :]])
        held_out.append((group, [_predicted(row) * correct(row.plan) for row in group]))
    return Judged(analytic, _quality(held_out), len(groups), count)


def corrected(space: Space[Any, Any], rows: Iterable[Row]) -> Space[Any, Any]:
    """The space with costs corrected from these rows, if that helps."""
    rows = list(rows)
    groups, quality = _groups(rows), judged(rows)
    if quality is None or not quality.is_learned_better:
        return space
    correct = _Correction(groups)

    def cost(plan: Any) -> float:
        return space.counted(plan) * correct(space.text(plan))

    return Space(space.operator, space.problem, space.machine, cost)


class _Correction:
    """A factor to a plan's cost, from its text."""

    def __init__(self, groups: Sequence[Sequence[Row]]) -> None:
        rows = [row for group in groups for row in group]
        self.names = sorted({name for row in rows for name in _features(row.plan)})
        inputs = np.array([self._inputs(row.plan) for row in rows])
        targets = np.array([log(_seconds(row) / _predicted(row)) for row in rows])
        start = 0
        # Only differences between a problem's plans matter, not their common error.
        for group in groups:
            part = slice(start, start + len(group))
            targets[part] -= targets[part].mean()
            start += len(group)
        self.mean = inputs.mean(0)
        centred = inputs - self.mean
        normal = centred.T @ centred + _STRENGTH * np.eye(len(self.names))
        self.weights: Array = np.linalg.solve(normal, centred.T @ targets)

    def __call__(self, plan: str) -> float:
        return float(np.exp((self._inputs(plan) - self.mean) @ self.weights))

    def _inputs(self, plan: str) -> Array:
        features = _features(plan)
        return np.array([features.get(name, 0.0) for name in self.names])


def _features(plan: str) -> dict[str, float]:
    """1 for each choice, and the logarithm of each number, for values that weren't measured."""
    features: dict[str, float] = {}
    for name, value in parts(plan).items():
        features[f"{name}={value}"] = 1.0
        if isinstance(value, int | float) and value > 0:
            features[name] = log2(value)
    return features


def _groups(rows: Iterable[Row]) -> list[list[Row]]:
    """The measured rows of each problem with enough of them."""
    by_problem: dict[str, list[Row]] = {}
    for row in rows:
        if row.outcome in MEASURED and row.seconds and row.predicted:
            by_problem.setdefault(row.problem, []).append(row)
    return [group for group in by_problem.values() if len(group) >= _LEAST_ROWS]


def _seconds(row: Row) -> float:
    assert row.seconds is not None
    return row.seconds


def _predicted(row: Row) -> float:
    assert row.predicted is not None
    return row.predicted


def _quality(predictions: Sequence[tuple[Sequence[Row], Sequence[float]]]) -> Quality:
    correlations, errors, regrets = [], [], []
    for group, predicted in predictions:
        measured = [_seconds(row) for row in group]
        correlations.append(rank_correlation(predicted, measured))
        errors += [abs(a - b) / b for a, b in zip(predicted, measured, strict=True)]
        picked = measured[int(np.argmin(predicted))]
        regrets.append(picked / min(measured) - 1)
    return Quality(float(np.mean(correlations)), float(np.mean(errors)), float(np.mean(regrets)))


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's rank correlation: 1 for equal orders, -1 for opposite ones."""
    a, b = _ranks(one), _ranks(other)
    spread = float(a.std() * b.std())
    return float(((a - a.mean()) * (b - b.mean())).mean() / spread) if spread else 0.0


def _ranks(values: Sequence[float]) -> Array:
    """The ranks of values; equal values share the mean of theirs."""
    array = np.asarray(values)
    _, places, counts = np.unique(array, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means: Array = ((ends - counts + ends - 1) / 2)[places]
    return means
