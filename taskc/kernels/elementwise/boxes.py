"""An elementwise expression, by boxes of the result: a block has one."""

from __future__ import annotations

import taskc as tc
from taskc import KernelDefinition
from taskc.kernels.elementwise.plan import Boxes
from taskc.kernels.elementwise.problem import RANK, Problem


def boxes(problem: Problem, plan: Boxes) -> KernelDefinition:
    kinds, made, value = problem.given, problem.made, problem.value
    whole, own, at_ends = made.shape, plan.own, plan.at_ends or plan.own
    box = own.shape

    @tc.kernel(workers=own.workers)
    def elementwise(
        a: tc.typed[kinds[0]],
        b: tc.typed[kinds[1:2]],
        c: tc.typed[kinds[2:3]],
        d: tc.typed[kinds[3:]],
        y: tc.out[made],
    ) -> None:
        inputs = (a, *b, *c, *d)
        for (*first,) in tc.tiles(whole, by=box):
            if at_ends is not own and first[-1] + box[-1] <= whole[-1]:
                for (*at,) in own:
                    place = tuple(first[axis] + at[axis] for axis in range(RANK))
                    y[place] = value(inputs, place)
            else:
                for (*at,) in at_ends:
                    place = tuple(first[axis] + at[axis] for axis in range(RANK))
                    if all(place[axis] < whole[axis] for axis in range(RANK)):
                        y[place] = value(inputs, place)

    return elementwise
