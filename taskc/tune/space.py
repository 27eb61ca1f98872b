"""Spaces: the plans of an operator for a problem on a machine.

An operator's plan.py has its plans as data: `candidates`, from which the cost model chooses, preferred ones first, and
variations of each, which only tuning tries. All of them together are the problem's space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from random import Random
from typing import Any, Generic, Protocol, TypeVar

from taskc.ir.types import DType, f32, f64
from taskc.lang.definition import Definition
from taskc.runtime.machine import Machine
from taskc.tune.texts import parts, plan_of, text_of


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
