"""Transposes on GPUs: each worker turns small squares in its registers, as wide as an access, and exchanges their rows
with the others through shared memory.
"""

from __future__ import annotations

import taskc as tc
from taskc import KernelDefinition, Machine, repeat, spatial
from taskc.kernels.machine_facts import GPU
from taskc.kernels.transpose.plan import Tiles
from taskc.kernels.transpose.problem import RANK, Problem


def tiles(problem: Problem, plan: Tiles, machine: Machine) -> KernelDefinition:
    given, made, seen, across = problem.given, problem.made, problem.extents, problem.across
    source, target, replaced = problem.source, problem.target, problem.replaced
    dtype, side, (height, broad) = problem.dtype, plan.side, (seen[across], seen[-1])
    read = repeat(*plan.repeats) * spatial(*plan.workers) * repeat(side, side)
    # The same workers, with rows for columns.
    transposed = (
        repeat(*plan.repeats[::-1])
        * spatial(*plan.workers[::-1], order=(1, 0))
        * repeat(side, side)
    )
    (tall, wide), count = read.shape, read.workers
    lanes = min(count, tall // side)
    written = repeat(wide * lanes // count, tall // (side * lanes)) * (
        spatial(count // lanes, lanes) * repeat(1, side)
    )
    by = [1] * RANK
    by[across], by[-1] = tall, wide
    # Neighbours among the columns lie in different groups of rows. Where several are read at one time, some room
    # behind each group has them lie in different banks.
    groups = wide // side
    at_once = min(machine.lanes, GPU.bank_bytes // (side * dtype.nbytes)) // lanes
    if at_once > 1 and groups > at_once // side:
        groups += max(1, at_once // side)

    @tc.kernel(workers=count)
    def transpose(x: tc.typed[given], y: tc.out[made]) -> None:
        for a, b, c, d in tc.tiles(seen, by=by):
            row = (a, b, c)[across]
            squares = tc.tile(dtype, read, problem.outside)
            for i, j in read:
                if row + i < height and d + j < broad:
                    squares[i, j] = x[source(replaced(a, b, c, row + i, d + j))]
            # What is beside each other here is `side` columns apart: that spreads over all banks.
            columns = tc.shared(dtype[side, groups, tall])
            for j, i in transposed:
                columns[j % side, j // side, i] = squares[i, j]
            for j, i in written:
                if row + i < height and d + j < broad:
                    place = replaced(a, b, c, row + i, d + j)
                    y[target(place)] = columns[j % side, j // side, i]

    return transpose
