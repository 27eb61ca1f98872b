"""Strategies: which plans are measured, and in what order.

A strategy is a generator. It yields plans, a few at a time; when it resumes, their seconds are in `measured`, infinite
for plans that failed. It may go on forever: the tuner stops it. It may yield plans measured before, which costs
nothing. A user's strategy is a function like these:

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

# Parameters of `model`: the number of proposals measured together; the number of first ones that differ in several
# choices; the weight of a measurement for a plan that differs in one choice, and that of the cost itself.
_TOGETHER = 2
_DIVERSE = 10
_LIKENESS = 0.2
_TRUSTED = 1.0
_FAILED = 1.0  # the error of a failed plan, as a logarithm
_INSTANT = 1e-12  # seconds


def exhaustive(space: AnySpace, measured: Measured, random: Random) -> Iterator[Sequence[Any]]:
    """All plans, by predicted time."""
    yield from batches(space.ranked)


def sampled(space: AnySpace, measured: Measured, random: Random) -> Iterator[Sequence[Any]]:
    """Plans in random order."""
    yield from batches(space.sample(len(space.plans), random))


def evolutionary(space: AnySpace, measured: Measured, random: Random) -> Iterator[Sequence[Any]]:
    """Random plans first, then close neighbours of the best ones."""
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
    """Plans of least cost, corrected by measurements of similar plans.

    The first plans differ from each other in several choices.
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
    """The state by plan number: `apart` is the distance from the nearest proposed plan, in choices."""

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
        """Record the error of a plan's cost, with a lower weight for similar plans."""
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
        """The number of choices in which each plan differs from this one."""
        return (self.choices != self.choices[place]).sum(1)


def _choices(space: AnySpace) -> Any:
    """A row of choices, as texts, for each plan."""
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
