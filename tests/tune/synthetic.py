"""A space of plans whose kernels and times are made up: what a tuner does is seen without a compiler's seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

import taskc as tc
from taskc import Machine, f32, spatial
from taskc.tune.space import Operator, Space
from taskc.tune.tuner import Outcome
from taskc.tune.worker import Parcel

HERE = Machine(16, 32, 2, 1 << 20, name="a machine of the tests")


@dataclass(frozen=True)
class Problem:
    size: int
    dtype: tc.DType = f32


@dataclass(frozen=True)
class Step:
    """width    of a block; `unroll` and `order` change nothing but the time, `order` not even the text"""

    width: int
    unroll: int
    order: int = 0

    def cost(self, problem: Problem, machine: Machine) -> float:
        return 1e-3 * (1 + abs(self.width - 8) + 0.1 * self.unroll)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Step]:
        for order in (1, 2):
            yield replace(self, order=order)


def candidates(problem: Problem, machine: Machine) -> Iterator[Step]:
    for width in (1, 2, 4, 8, 16, 32):
        for unroll in (1, 2, 3, 4):
            yield Step(width, unroll)


def build(problem: Problem, plan: Step, machine: Machine) -> tc.KernelDefinition:
    """A kernel whose text says the plan, all but its order."""
    if plan.width == 32:
        raise tc.CompileError("a block of 32 is too wide")
    n, width, unroll = problem.size, plan.width, plan.unroll

    @tc.kernel(workers=width)
    def step(x: f32[n], y: tc.out[f32[n]]):
        for (first,) in tc.tiles((n,), by=(width,)):
            for (i,) in spatial(width):
                if first + i < n:
                    y[first + i] = x[first + i] * unroll

    return step


OPERATOR = Operator("step", candidates, build, (Step,))


def space(size: int = 40) -> Space[Problem, Step]:
    return Space(OPERATOR, Problem(size), HERE)


Truth = Callable[[Step], float]


class FakeBench:
    """It times by a function of plans, with noise, and keeps a record of what it was asked.

    failures  outcomes of plans, in place of times
    """

    warnings: tuple[str, ...] = ()

    @property
    def stages(self) -> dict[str, int]:
        return {"compile": sum(what == "compile" for what, _ in self.asked)}

    def __init__(
        self,
        of: Space[Problem, Step],
        truth: Truth,
        failures: dict[Step, str] | None = None,
        noise: float = 0.002,
    ) -> None:
        from taskc.tune.worker import parcel_of

        self.truth, self.failures, self.noise = truth, failures or {}, noise
        self.random = Random(3)
        self.plans: dict[Parcel, Step] = {}
        for plan in of.plans:
            if plan.width != 32:
                self.plans.setdefault(parcel_of(of.definition(plan)), plan)
        self.asked: list[tuple[str, Step]] = []

    def compile(self, parcels: Sequence[Parcel]) -> list[Outcome]:
        made = []
        for parcel in parcels:
            plan = self._asked("compile", parcel)
            if self.failures.get(plan) == "refused":
                made.append(Outcome("refused", note="no"))
            else:
                made.append(Outcome("compiled", digest=str((plan.width, plan.unroll))))
        return made

    def check(self, parcel: Parcel) -> Outcome:
        plan = self._asked("check", parcel)
        return Outcome(self.failures.get(plan, "right"))

    def time(self, parcel: Parcel, samples: int) -> list[float] | Outcome:
        return [self._sample(self._asked("time", parcel)) for _ in range(samples)]

    def race(self, parcels: Sequence[Parcel], samples: int) -> list[list[float]] | Outcome:
        plans = [self._asked("race", parcel) for parcel in parcels]
        return [[self._sample(plan) for _ in range(samples)] for plan in plans]

    def _asked(self, what: str, parcel: Parcel) -> Step:
        plan = self.plans[parcel]
        self.asked.append((what, plan))
        return plan

    def _sample(self, plan: Step) -> float:
        return self.truth(plan) * (1 + self.random.uniform(0, self.noise))
