"""Split-k: sums over long k in parts, each by blocks of its own, and a second kernel that adds the parts up.

The parts are added in order, the first one first, whichever was ready first: the same bits each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import taskc as tc
from taskc import Machine
from taskc.kernels.epilogue import Epilogue
from taskc.kernels.matmul.problem import Problem
from taskc.kernels.owners import owners_of_boxes, width


def in_parts(
    problem: Problem, parts: int, workers: int, blocks: Callable[..., Any], machine: Machine
) -> tc.ProgramDefinition:
    """blocks(a, b, sums) of a kernel that stores each part's sums[part, m, n], and what is made of all parts."""
    left, right, _, _ = problem.types
    all_sums = problem.total[parts, problem.m, problem.n]

    @tc.kernel(workers=workers)
    def partial(a: tc.typed[left], b: tc.typed[right], sums: tc.out[all_sums]) -> None:
        blocks(a, b, sums)

    added = adding_up(problem.of_sums, problem.m, parts, machine)

    def steps(a: Any, b: Any, further: tuple[Any, ...], c: Any) -> None:
        added(partial(a, b), *further, out=c)

    return problem.program(steps)


def adding_up(of_sums: Epilogue, m: Any, parts: int, machine: Machine) -> tc.KernelDefinition:
    """The kernel that makes c of sums[part, m, n], and of what further operands there are."""
    n, epilogue, made = of_sums.features, of_sums.function, of_sums.made
    all_sums = of_sums.total[parts, m, n]
    offset, scale, residue = of_sums.operands
    wide = width(n, of_sums.total, made.dtype)
    lines = owners_of_boxes((m, n), wide, machine, accesses=1)

    @tc.kernel(workers=lines.workers)
    def added(
        sums: tc.typed[all_sums],
        offsets: tc.typed[offset],
        scales: tc.typed[scale],
        residual: tc.typed[residue],
        c: tc.out[made],
    ) -> None:
        further = (*offsets, *scales, *residual)
        for row, col in tc.tiles((m, n), by=lines.shape):
            for i, j in lines:
                if row + i < m and col + j < n:
                    value = sums[0, row + i, col + j]
                    for part in tc.static(range(1, parts)):
                        value += sums[part, row + i, col + j]
                    c[row + i, col + j] = epilogue(value, further, col + j, (row + i, col + j))

    return added
