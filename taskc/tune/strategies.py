"""Which plans are measured, and in what order.

A strategy is a generator: it yields plans, a few at a time, and when it goes on it finds their seconds in `measured`,
infinite where one failed. It may go on for ever: the tuner stops it. It may yield what was measured before, which
costs nothing. One of a user's own is a function like these:

    def strategy(space: Space, measured: Mapping[Plan, float], random: Random) -> Iterator[Sequence[Plan]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from random import Random
from typing import Any, TypeAlias

from taskc.tune.space import Space

AnySpace: TypeAlias = "Space[Any, Any]"
Measured: TypeAlias = Mapping[Any, float]
Strategy: TypeAlias = Callable[[AnySpace, Measured, Random], Iterator[Sequence[Any]]]

_BATCH = 8
_PARENTS = 4


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
    """Plans of least cost, and of each kind that there is the best; then neighbours of what was fastest."""
    kinds = {type(plan): plan for plan in reversed(space.ranked)}
    yield list(dict.fromkeys((*space.ranked[:_BATCH], *kinds.values())))
    while len(measured) < len(space.plans):
        best = min(measured, key=measured.__getitem__)
        near = (plan for plan in space.neighbours(best) if plan not in measured)
        cheap = (plan for plan in space.ranked if plan not in measured)
        yield list(dict.fromkeys((*islice(near, _BATCH // 2 - 1), *islice(cheap, 1))))


def batches(plans: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for first in range(0, len(plans), _BATCH):
        yield plans[first : first + _BATCH]


STRATEGIES: dict[str, Strategy] = {
    "model": model,
    "exhaustive": exhaustive,
    "random": sampled,
    "evolutionary": evolutionary,
}
