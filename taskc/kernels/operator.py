"""The operators of the library: from a call's options to a kernel, by the plan that is chosen.

    ROWS = operator("rows", Problem, candidates, {Whole: whole, Strips: strips, Columns: columns})

    def softmax(m, n, *, inner=1, dtype=f32, machine=None):
        return ROWS(function="softmax", **locals())

Its `build` is cached, and takes a problem and a plan, or None for the one that is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from typing import Generic, TypeVar

import taskc as tc
from taskc import Machine
from taskc.dataclass import dataclass
from taskc.lang.definition import Definition
from taskc.tune.choose import choose, remembered
from taskc.tune.space import AnyPlan, Operator, Problem, Work

Made = TypeVar("Made", bound=Definition)
Instead = Callable[[Problem, AnyPlan | None, Machine], Made | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelOperator(Operator[Problem, AnyPlan], Generic[Problem, AnyPlan, Made]):
    """An operator whose problems are made of a call's options."""

    build: Callable[[Problem, AnyPlan | None, Machine], Made]
    problem: Callable[..., Problem]

    def __call__(
        self,
        *,
        machine: Machine | None = None,
        schedule: AnyPlan | None = None,
        tiling: AnyPlan | None = None,
        plan: AnyPlan | None = None,
        **options: object,
    ) -> Made:
        """Build for the options of a call, by `schedule` on processors, `tiling` elsewhere, or `plan` on both."""
        machine = machine or tc.machine()
        plan = plan or (schedule if machine.is_processor else tiling)
        return self.build(self.problem(**options), plan, machine)


def operator(
    name: str,
    problem: Callable[..., Problem],
    candidates: Callable[[Problem, Machine], Iterable[AnyPlan]],
    algorithms: Mapping[type, Callable[..., Made]],
    *,
    instead: Instead[Problem, AnyPlan, Made] | None = None,
    work: Callable[[Problem, Machine], Work] | None = None,
    smallest: Callable[[Problem, AnyPlan, Machine], Problem] | None = None,
    kinds: tuple[type, ...] = (),
) -> KernelOperator[Problem, AnyPlan, Made]:
    """An operator from a table of algorithms.

    algorithms  by the class of a plan: functions of the problem, the plan and, if they have such a parameter, the
                machine
    instead     what is built where no plan of the problem is; it also refuses what a machine doesn't have
    kinds       classes of data in plans
    """
    of_machine = {
        kind for kind, make in algorithms.items() if "machine" in signature(make).parameters
    }

    @remembered
    def build(problem: Problem, plan: AnyPlan | None, machine: Machine) -> Made:
        """Build it by this plan, or by the one that is chosen."""
        built = instead and instead(problem, plan, machine)
        if built is None:
            plan = plan or choose(made, problem, machine)
            arguments = (machine,) if type(plan) in of_machine else ()
            built = algorithms[type(plan)](problem, plan, *arguments)
        if built.problem is None:  # another operator's, if it is a kernel of that one
            built.problem = problem
        return built

    made = KernelOperator(
        name=name, candidates=candidates, build=build, kinds=(*algorithms, *kinds), work=work,
        smallest=smallest, problem=problem,
    )  # fmt: skip
    return made
