"""Batched GEMM on processors: products of many matrices, which belong together as NumPy broadcasts shapes.

A kernel counts the products, and the operands' batch axes are made of that number: where an operand has an
extent of 1, or no such axis, it is the same one for all. Where b is the same for all, the rows of all
products are counted as those of one: tiles go across them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, prod
from typing import Any

import taskc as tc
from taskc import repeat, spatial
from taskc.kernels.matmul.panels import packed_type
from taskc.kernels.matmul.plan import Panels
from taskc.kernels.matmul.problem import MOST_BATCH_AXES, Extents, Problem, is_, padded
from taskc.kernels.squares import columns, quarters


def batches(problem: Problem, plan: Panels) -> tc.KernelDefinition:
    n, k, height = problem.n, problem.k, problem.height
    rows, wide, tall, own = plan.rows, plan.wide, plan.tall, plan.own
    total, epilogue = problem.total, problem.epilogue
    place, operand, of_b = (
        _place(problem),
        _operand(problem),
        _element_of(problem, problem.batch[1]),
    )
    of_c, panel_of = _element_of(problem, problem.batches), _panel(problem, plan, of_b)

    @tc.function
    def tiles(a, panel, offsets, c, number, row, col, first):
        """The tiles of a block; column j of it is column first + j of the panel."""
        for r in range(0, tall, rows):
            if row + r < height:
                acc = tc.tile(total, own, 0)
                for q in range(k):
                    for i, j in own:
                        factor = operand(a, number, row + r + i, q)
                        acc[i, j] += factor * panel[q, first + j].to(total)
                for i, j in own:
                    if row + r + i < height and col + j < n:
                        owner, own_row = place(number, row + r + i)
                        value = epilogue(acc[i, j], offsets, col + j)
                        c[of_c(owner, own_row, col + j)] = value

    @tc.function
    def blocks(a, b, offsets, c):
        for number, row, col in tc.tiles(
            (problem.products, height, n), by=(1, tall, wide), order=(0, 2, 1)
        ):
            if problem.packed:
                tiles(a, b, offsets, c, number, row, col, col)
            else:
                panel = panel_of(b, number, col)
                tiles(a, panel, offsets, c, number, row, col, 0)

    packed = packed_type(problem, plan) if problem.packed else None
    return problem.kernel(plan.lanes, blocks, packed)


def _place(problem: Problem) -> Callable[..., Any]:
    """Which product a row belongs to, and which one of that product's it is."""

    @tc.function
    def place(number, i):
        return (i // problem.m, i % problem.m) if problem.is_joined else (number, i)

    return place


def _operand(problem: Problem) -> Callable[..., Any]:
    """What a sum takes of a; behind the last row, of that."""
    of_a, place = _element_of(problem, problem.batch[0]), _place(problem)

    @tc.function
    def operand(a, number, i, q):
        owner, row = place(number, min(i, problem.height - 1))
        if problem.transpose_a:
            return a[of_a(owner, q, row)].to(problem.total)
        else:
            return a[of_a(owner, row, q)].to(problem.total)

    return operand


def _panel(problem: Problem, plan: Panels, of_b: Callable[..., Any]) -> Callable[..., Any]:
    """A panel of b, in the order in which it is read; where b's rows lie across it, it is turned in squares."""
    n, k, dtype = problem.n, problem.k, problem.right
    lanes, wide = plan.lanes, plan.wide
    line = repeat(lanes, 1) * spatial(1, lanes)

    @tc.function
    def turned(b, number, col):
        panel = tc.shared(dtype[ceil(k / lanes) * lanes, wide])
        for first in range(0, wide, lanes):
            for q in range(0, k, lanes):
                square = tc.shared(dtype[lanes, lanes])
                for j, p in line:
                    square[j, p] = (
                        b[of_b(number, col + first + j, q + p)]
                        if col + first + j < n and q + p < k
                        else 0
                    )
                part = quarters(square)
                for p1, p0, j1, j0 in columns(lanes):
                    panel[q + 4 * p1 + p0, first + 4 * j1 + j0] = part[p0, j1, p1, j0]
        return panel

    @tc.function
    def whole(b, number, col):
        return tc.load((k, wide), lambda q, j: b[of_b(number, q, col + j)], fill=0)

    return turned if problem.transpose_b else whole


def _element_of(problem: Problem, own: Extents) -> Callable[..., Any]:
    """All indices of a matrix's element: a function of the product's number, and of the last two."""
    once = [is_(extent, 1) for extent in padded(own, MOST_BATCH_AXES)]
    # Of an empty axis no element is asked for.
    whole = padded(problem.batches, MOST_BATCH_AXES)
    first, middle, last = [1 if is_(extent, 0) else extent for extent in whole]
    inner, rank = prod((middle, last)), len(own) + 2
    is_alone = is_(prod((first, middle)), 1)

    @tc.function
    def element(number, i, j):
        return (
            0 if once[0] else number // inner,
            0 if once[1] else number // last if is_(first, 1) else number // last % middle,
            0 if once[2] else number if is_alone else number % last,
            i,
            j,
        )[-rank:]

    return element
