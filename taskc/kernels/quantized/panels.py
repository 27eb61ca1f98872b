"""Products with quantized weights on processors: weights become floats in registers, once for a tile of rows.

    own = repeat(rows, vectors) * spatial(1, lanes)

says that each of `lanes` workers holds `rows` x `vectors` sums. Weights lie so that a byte has those of one column that
follow each other along k, and neighbouring bytes are those of neighbouring columns: to unpack them is a load of bytes,
a shift and a mask of all lanes. A block copies a part of a, and goes with it through all of its panels; where it has
several tiles of rows, it keeps the floats of a panel's part for them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, gcd
from typing import Any

import taskc as tc
from taskc import TensorType, f32, repeat, spatial
from taskc.kernels.quantized.plan import Panels
from taskc.kernels.quantized.problem import Problem

Function = Callable[..., Any]


def packed_type(problem: Problem, plan: Panels) -> TensorType:
    """Panels of columns, zeros behind the last one and below the last group."""
    together = 8 // gcd(problem.right.bits, 8)
    rows = max(1, ceil(problem.k / plan.depth)) * plan.depth
    panels = max(1, ceil(problem.n / plan.wide))
    layout = repeat(1, panels) * repeat(rows // together, plan.wide) * repeat(together, 1)
    return problem.right[rows, panels * plan.wide].laid(layout)


def panels(problem: Problem, plan: Panels) -> tc.KernelDefinition:
    m, n, k, epilogue = problem.m, problem.n, problem.k, problem.of_sums.function
    rows, wide, tall, depth, own = plan.rows, plan.wide, plan.tall, plan.depth, plan.own
    add = _add_widened(problem, plan) if plan.widens else _add(problem, plan)

    @tc.function
    def finish(sums: Any, further: Any, c: Any, row: Any, col: Any) -> Any:
        for p in range(plan.panels):
            for r in range(0, tall, rows):
                for i, j in own:
                    at = row + r + i, col + p * wide + j
                    if at[0] < m and at[1] < n:
                        c[at] = epilogue(sums[p, r + i, j], further, at[1], at)

    @tc.function
    def blocks(a: Any, b: Any, scales: Any, zeros: Any, further: Any, c: Any) -> Any:
        for row, col in tc.tiles((m, n), by=(tall, plan.panels * wide), order=(1, 0)):
            sums = tc.shared(f32[plan.panels, tall, wide])
            for p in range(plan.panels):
                for r in range(0, tall, rows):
                    for i, j in own:
                        sums[p, r + i, j] = 0
            for first in range(0, k, depth):
                part = tc.load((tall, depth), lambda i, q: a[row + i, first + q].to(f32), fill=0)
                for p in range(plan.panels):
                    if col + p * wide < n:
                        add(sums, part, b, scales, zeros, p, first, col + p * wide)
            finish(sums, further, c, row, col)

    return problem.kernel(plan.lanes, blocks, packed_type(problem, plan))


def _weights(problem: Problem) -> Function:
    """Those of a group, one below the other: behind the last column and group, of that."""
    weight, last = problem.weight, (problem.groups - 1, problem.n - 1)

    @tc.function
    def weights(b: Any, scales: Any, zeros: Any, group: Any, q: Any, j: Any) -> Any:
        return weight(b, scales, zeros, (q, j), (min(group, last[0]), min(j, last[1])))

    return weights


def _add(problem: Problem, plan: Panels) -> Function:
    """What a part of a adds to a panel's sums, with weights that become floats on their way."""
    own, depth, group, weight = plan.own, plan.depth, problem.group, _weights(problem)

    @tc.function
    def add(
        sums: Any, part: Any, b: Any, scales: Any, zeros: Any, p: Any, first: Any, col: Any
    ) -> Any:
        acc = tc.tile(f32, own)
        for i, j in own:
            acc[i, j] = sums[p, i, j]
        for g in range(0, depth, group):
            for q in range(group):
                for i, j in own:
                    w = weight(b, scales, zeros, (first + g) // group, first + g + q, col + j)
                    acc[i, j] += part[i, g + q] * w
        for i, j in own:
            sums[p, i, j] = acc[i, j]

    return add


def _add_widened(problem: Problem, plan: Panels) -> Function:
    """The same for several tiles, of floats that are kept."""
    own, rows, depth, wide = plan.own, plan.rows, plan.depth, plan.wide
    line, group, weight = (
        repeat(1, plan.vectors) * spatial(1, plan.lanes),
        problem.group,
        _weights(problem),
    )

    @tc.function
    def add(
        sums: Any, part: Any, b: Any, scales: Any, zeros: Any, p: Any, first: Any, col: Any
    ) -> Any:
        widened = tc.shared(f32[depth, wide])
        for g in range(0, depth, group):
            for q in range(group):
                for _, j in line:
                    widened[g + q, j] = weight(
                        b, scales, zeros, (first + g) // group, first + g + q, col + j
                    )
        for r in range(0, plan.tall, rows):
            acc = tc.tile(f32, own)
            for i, j in own:
                acc[i, j] = sums[p, r + i, j]
            for q in range(depth):
                for i, j in own:
                    acc[i, j] += part[r + i, q] * widened[q, j]
            for i, j in own:
                sums[p, r + i, j] = acc[i, j]

    return add
