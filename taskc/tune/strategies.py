"""Which plans are measured, and in what order.

A strategy is a generator: it yields plans, a few at a time, and when it goes on it finds their seconds in `measured`,
infinite where one failed. It may go on for ever: the tuner stops it. It may yield what was measured before, which
costs nothing. One of a user's own is a function like these:

    def strategy(space: Space, measured: Mapping[Plan, float], random: Random) -> Iterator[Sequence[Plan]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from math import inf, log
from random import Random
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np

from taskc.tune.space import Space
from taskc.tune.texts import parts

AnySpace: TypeAlias = "Space[Any, Any]"
Measured: TypeAlias = Mapping[Any, float]
Strategy: TypeAlias = Callable[[AnySpace, Measured, Random], Iterator[Sequence[Any]]]

_BATCH = 8
_PARENTS = 4

# Of `model`: proposals that are measured together, and how many of the first ones differ from each other; how much a
# plan counts for one that differs in one choice, and the cost itself beside it.
_TOGETHER = 2
_DIVERSE = 10
_LIKENESS = 0.2
_TRUSTED = 1.0
_FAILED = 1.0  # as if it took so much longer, as a logarithm
_INSTANT = 1e-12  # seconds


def exhaustive(space: AnySpace, measured: Measured, random: Random) -> Iterator[Sequence[Any]]:
    """All plans, those first that should be fastest."""
    yield from batches(space.ranked)


def sampled(space: AnySpace, measured: Measured, random: Random) -> Iterator[Sequence[Any]]:
    """Each plan as likely as any other."""
    yield from batches(space.sample(len(space.plans), random))


def evolutionary(space: AnySpace, measured: Measured, random: Random) -> Iterator[Sequence[Any]]:
    """Plans at random, then ones that differ in little from one of the best."""
    yield space.sample(_BATCH, random)
    while len(measured) < len(space.plans):
        parents = sorted(measured, key=measured.__getitem__)[:_PARENTS]
        children = []
        for _ in range(_BATCH):
            new = (p for p in space.neighbours(random.choice(parents)) if p not in measured)
            near = [plan for plan in islice(new, _BATCH) if plan not in children]
            children += [random.choice(near)] if near else []
        yield children


def model(space: AnySpace, measured: Measured, random: Random) -> Iterator[Sequence[Any]]:
    """Plans of least cost, where costs are corrected by what was measured of plans that are like them.

    The first ones differ from each other in several choices.
    """
    search = _Search(space)
    while True:
        for plan, seconds in measured.items():
            search.learn(plan, seconds)
        proposed = search.proposals()
        if not proposed:
            return
        yield proposed


class _Search:
    """What is known of each plan, by its place: `apart` is from the nearest one that was proposed, in choices."""

    def __init__(self, space: AnySpace) -> None:
        self.plans = space.plans
        self.places = {plan: place for place, plan in enumerate(self.plans)}
        self.choices = _choices(space)
        self.costs = np.log([max(space.predicted(plan), _INSTANT) for plan in self.plans])
        self.wrong = np.zeros(len(self.plans))
        self.weight = np.full(len(self.plans), _TRUSTED)
        self.apart = np.full(len(self.plans), self.choices.shape[1])
        self.errors: dict[int, float] = {}

    def learn(self, plan: Any, seconds: float) -> None:
        """How far the cost is off, for this plan and, less so, for those that are like it."""
        place = self.places[plan]
        if place not in self.errors:
            error = log(seconds) - self.costs[place] if seconds < inf else _FAILED
            self.errors[place] = error
            likeness = _LIKENESS ** self._distances(place)
            self.wrong += likeness * error
            self.weight += likeness
            self.apart = np.minimum(self.apart, self._distances(place))

    def proposals(self) -> list[Any]:
        return [self._proposal() for _ in range(min(_TOGETHER, int((self.apart > 0).sum())))]

    def _proposal(self) -> Any:
        usual = fmean(self.errors.values()) if self.errors else 0.0
        corrected = self.costs + (self.wrong + _TRUSTED * usual) / self.weight
        is_left = self.apart > (1 if (self.apart == 0).sum() < _DIVERSE else 0)
        if not is_left.any():
            is_left = self.apart > 0
        corrected[~is_left] = inf
        place = int(np.argmin(corrected))
        self.apart = np.minimum(self.apart, self._distances(place))
        return self.plans[place]

    def _distances(self, place: int) -> Any:
        """In how many choices all plans differ from this one."""
        return (self.choices != self.choices[place]).sum(1)


def _choices(space: AnySpace) -> Any:
    """A row of texts for each plan, of its choices."""
    named = [parts(space.text(plan)) for plan in space.plans]
    names = sorted({name for row in named for name in row})
    return np.array([[str(row.get(name)) for name in names] for row in named])


def batches(plans: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for first in range(0, len(plans), _BATCH):
        yield plans[first : first + _BATCH]


STRATEGIES: dict[str, Strategy] = {
    "model": model,
    "exhaustive": exhaustive,
    "random": sampled,
    "evolutionary": evolutionary,
}
