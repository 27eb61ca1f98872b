"""Spaces: the plans of an operator for a problem on a machine.

An operator's plan.py has its plans as data: `candidates`, from which the cost model chooses, preferred ones first, and
variations of each, which only tuning tries. All of them together are the problem's space.

Strategies: which plans are measured, and in what order.

A strategy is a generator. It yields plans, a few at a time; when it resumes, their seconds are in `measured`, infinite
for plans that failed. It may go on forever: the tuner stops it. It may yield plans measured before, which costs
nothing. A user's strategy is a function like these:

    def strategy(space: Space, measured: Mapping[Plan, float], random: Random) -> Iterator[Sequence[Plan]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
from itertools import islice
from math import inf, log
from random import Random
from statistics import fmean
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from taskc.dataclass import dataclass
from taskc.ir.types import DType, f32, f64
from taskc.lang.definition import Definition
from taskc.runtime.machine import Machine
from taskc.tune.rows import parts, plan_of, text_of


class Plan(Protocol):
    """Frozen data. Plans are equal if and only if their texts are equal, in all runs: the text is a plan's key."""

    def cost(self, problem: Any, machine: Machine) -> float:
        """Seconds, by the cost model."""

    def variations(self, problem: Any, machine: Machine) -> Iterable[Any]:
        """Further valid plans that differ in less important choices, and cost about the same."""


Problem = TypeVar("Problem")
AnyPlan = TypeVar("AnyPlan", bound=Plan)
Candidates = Callable[[Problem, Machine], Iterable[AnyPlan]]


@dataclass(frozen=True, slots=True)
class Work:
    """A problem's operations, the bytes of its operands, and the machine's peak rates of both."""

    operations: int
    nbytes: int
    operations_per_second: float
    bytes_per_second: float

    @property
    def seconds(self) -> float:
        """The least time on the machine: the roofline."""
        return max(
            self.operations / self.operations_per_second, self.nbytes / self.bytes_per_second
        )


@dataclass(frozen=True, slots=True)
class Operator(Generic[Problem, AnyPlan]):
    """An operator as the tuner uses it.

    build    builds the definition that computes a problem by a plan
    kinds    the types of its plans, and of data in them
    work     the work of a problem on a machine, if it can be counted
    is_counted  whether costs are seconds, and not only an order
    smallest   a problem small enough to simulate, which a plan computes in the same way as the given one
    """

    name: str
    candidates: Candidates[Problem, AnyPlan]
    build: Callable[[Problem, AnyPlan, Machine], Definition]
    kinds: tuple[type, ...]
    work: Callable[[Problem, Machine], Work] | None = None
    is_counted: bool = True
    smallest: Callable[[Problem, AnyPlan, Machine], Problem] | None = None

    def plan(self, text: str) -> AnyPlan:
        """The plan of a text; a TextError if it is invalid."""
        parsed: AnyPlan = plan_of(text, {kind.__name__: kind for kind in self.kinds})
        return parsed


def seen_by(problem: Any, machine: Machine) -> Machine:
    """The machine for a problem's plans, with the lanes of its accumulation type.

    This is `problem.wide`, or f32 if the problem has none.
    """
    return machine.of(getattr(problem, "wide", f32))


def least(candidates: Candidates[Problem, AnyPlan], problem: Problem, machine: Machine) -> AnyPlan:
    """The plan of least cost; of equal ones the first."""
    machine = seen_by(problem, machine)
    return min(candidates(problem, machine), key=lambda plan: plan.cost(problem, machine))


def plans(
    candidates: Candidates[Problem, AnyPlan], problem: Problem, machine: Machine
) -> Iterator[AnyPlan]:
    """All valid plans, each once."""
    machine = seen_by(problem, machine)
    seen: set[AnyPlan] = set()
    for candidate in candidates(problem, machine):
        for plan in (candidate, *candidate.variations(problem, machine)):
            if plan not in seen:
                seen.add(plan)
                yield plan


def sample(
    candidates: Candidates[Problem, AnyPlan],
    problem: Problem,
    machine: Machine,
    count: int,
    seed: int = 0,
) -> list[AnyPlan]:
    """At most `count` plans, uniformly at random."""
    found = list(plans(candidates, problem, machine))
    return Random(seed).sample(found, min(count, len(found)))


@dataclass(frozen=True)
class Space(Generic[Problem, AnyPlan]):
    """The plans of one problem on one machine, as strategies see them.

    machine  the given one, with the lanes of the problem's type
    cost     replaces the plans' own cost, in seconds, if given
    """

    operator: Operator[Problem, AnyPlan]
    problem: Problem
    machine: Machine
    cost: Callable[[AnyPlan], float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "machine", seen_by(self.problem, self.machine))

    @cached_property
    def plans(self) -> tuple[AnyPlan, ...]:
        """All plans, each once."""
        return tuple(plans(self.operator.candidates, self.problem, self.machine))

    @cached_property
    def default(self) -> AnyPlan:
        """The plan taken if nothing was ever measured."""
        return least(self.operator.candidates, self.problem, self.machine)

    @cached_property
    def ranked(self) -> tuple[AnyPlan, ...]:
        """All plans, by predicted time."""
        return tuple(sorted(self.plans, key=self.predicted))

    @cached_property
    def _predictions(self) -> dict[AnyPlan, float]:
        return {}

    def predicted(self, plan: AnyPlan) -> float:
        """Seconds by the cost model."""
        seconds = self._predictions.get(plan)
        if seconds is None:
            seconds = self._predictions[plan] = (self.cost or self.counted)(plan)
        return seconds

    def counted(self, plan: AnyPlan) -> float:
        """The plan's own cost, without a correction."""
        return plan.cost(self.problem, self.machine)

    def sample(self, count: int, random: Random) -> list[AnyPlan]:
        """At most `count` plans, uniformly at random."""
        return random.sample(self.plans, min(count, len(self.plans)))

    def neighbours(self, plan: AnyPlan) -> list[AnyPlan]:
        """The other plans, by the number of choices in which they differ, then by cost."""
        others = [other for other in self.plans if other != plan]
        return sorted(others, key=lambda other: (self.distance(plan, other), self.predicted(other)))

    def distance(self, one: AnyPlan, other: AnyPlan) -> int:
        """The number of choices in which two plans differ."""
        a, b = parts(self.text(one)), parts(self.text(other))
        return sum(a.get(name) != b.get(name) for name in a.keys() | b.keys())

    @cached_property
    def _texts(self) -> dict[AnyPlan, str]:
        return {}

    def text(self, plan: AnyPlan) -> str:
        """The plan's key, the same in all runs."""
        return self._texts.get(plan) or self._texts.setdefault(plan, text_of(plan))

    @cached_property
    def work(self) -> Work | None:
        count = self.operator.work
        return None if count is None else count(self.problem, self.machine)

    @cached_property
    def problem_text(self) -> str:
        return text_of(self.problem)

    def definition(self, plan: AnyPlan) -> Definition:
        return self.operator.build(self.problem, plan, self.machine)

    @cached_property
    def reference(self) -> Definition:
        """The definition that computes the same in float64 by the plan of least cost; integers are unchanged."""
        problem = _in_double_precision(self.problem)
        plan = least(self.operator.candidates, problem, self.machine)
        return self.operator.build(problem, plan, self.machine)


def _in_double_precision(value: Any) -> Any:
    if isinstance(value, DType):
        return f64 if value.is_float else value
    if isinstance(value, tuple):
        return tuple([_in_double_precision(item) for item in value])
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            item.name: new
            for item in fields(value)
            if item.init
            and (new := _in_double_precision(old := getattr(value, item.name))) is not old
        }
        return replace(value, **changed) if changed else value
    return value


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
