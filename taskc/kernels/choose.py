"""How a plan is chosen, for all operators: by a cost model, a plan's `cost` in seconds.

An operator's plan.py has, as data, the plans that there are for a problem on a machine: `candidates`, which differ in
what they cost, the preferred ones first, and the variations of each, which the cost doesn't tell apart from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any, Protocol, TypeVar

from taskc import Machine


class Plan(Protocol):
    """Frozen data. Plans are equal if and only if their texts are, in all runs: the text is a plan's key."""

    def cost(self, problem: Any, machine: Machine) -> float:
        """Seconds, from counted work."""

    def variations(self, problem: Any, machine: Machine) -> Iterable[Any]:
        """Valid plans that cost the same."""


Problem = TypeVar("Problem")
AnyPlan = TypeVar("AnyPlan", bound=Plan)
Candidates = Callable[[Problem, Machine], Iterable[AnyPlan]]


def choose(candidates: Candidates[Problem, AnyPlan], problem: Problem, machine: Machine) -> AnyPlan:
    """The plan of least cost; of those that cost the same, the first."""
    # What was measured for this problem and machine will come before what is counted.
    return min(candidates(problem, machine), key=lambda plan: plan.cost(problem, machine))


def plans(
    candidates: Candidates[Problem, AnyPlan], problem: Problem, machine: Machine
) -> Iterator[AnyPlan]:
    """All valid plans, each once."""
    seen: set[str] = set()
    for candidate in candidates(problem, machine):
        for plan in (candidate, *candidate.variations(problem, machine)):
            if (key := str(plan)) not in seen:
                seen.add(key)
                yield plan


def sample(
    candidates: Candidates[Problem, AnyPlan],
    problem: Problem,
    machine: Machine,
    count: int,
    seed: int = 0,
) -> list[AnyPlan]:
    """At most `count` plans, each as likely as any other."""
    found = list(plans(candidates, problem, machine))
    return Random(seed).sample(found, min(count, len(found)))
