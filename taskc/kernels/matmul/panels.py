"""GEMM on processors: `panels` in vector registers; few rows, and rows that lie across a batch's panels.

GEMM of 8- and 16-bit numbers on processors, by the instruction that the machine has for them.

A block is a panel of columns, as in panels.py; a tile of its rows is one `tc.mma`. The panel of b lies in
packs: of as many elements of k as the instruction takes at once, for one column after the other. Each block
puts it so, or it comes so (`packed`).
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil
from typing import Any

import taskc as tc
from taskc import CompileError, Mapping, TensorType, repeat, spatial
from taskc.kernels.matmul.plan import MOST_ROWS, FewRows, Packs, Panels
from taskc.kernels.matmul.problem import Problem
from taskc.kernels.signatures import LONG_SUM, Function, Value, Values, is_long
from taskc.programs.schedule import columns, lines, quarters

# --- GEMM of a few rows on processors, a vector and a matrix (GEMV) among them: what counts is how b is read
#     b[k, n]  a few rows of b at a time go by side by side, from end to end; the sums lie in the nearest
#              caches, and each is read and written once for these steps of k
#     b[n, k]  workers walk along k together, in a few rows of b, and what each of them has found is
#              added up at the end
#
# So the sums of the second kind go over k in another order than those of the first.


def few_rows_kernel(problem: Problem, plan: FewRows) -> tc.KernelDefinition:
    block = few_rows(problem, plan)

    @tc.function
    def blocks(a: Value, b: Value, further: Values, c: Value) -> None:
        for col in tc.tiles(problem.n, by=plan.columns):
            block(a, b, further, c, col)

    return problem.kernel(plan.lanes, blocks)


def few_rows(problem: Problem, plan: FewRows) -> Function:
    """The body of a block for m <= MOST_ROWS: so many columns from `col` on."""
    return _along_rows(problem, plan) if problem.transpose_b else _down_columns(problem, plan)


def _down_columns(problem: Problem, plan: FewRows) -> Function:
    m, n, k, total = problem.m, problem.n, problem.k, problem.total
    operand, epilogue = problem.operand, problem.epilogue
    columns, depth, lanes = plan.columns, plan.depth, plan.lanes
    rows = m if isinstance(m, int) else MOST_ROWS
    whole = k // depth * depth
    is_constant, is_split, part = isinstance(k, int), is_long(k), LONG_SUM // depth * depth
    line = spatial(lanes)

    @tc.function
    def add(a: Value, b: Value, sums: Value, col: Value, first: Value, steps: Value) -> None:
        """The products of some steps of k, for all columns of a block."""
        for v in range(0, columns, 2 * lanes):
            for i in range(m):
                for j in repeat(2) * line:
                    if col + v + j < n:
                        value = sums[i, v + j]
                        for q in tc.static(range(steps)):
                            value += operand(a, (), i, first + q) * b[first + q, col + v + j].to(
                                total
                            )
                        sums[i, v + j] = value

    @tc.function
    def few_rows(a: Value, b: Value, further: Values, c: Value, col: Value) -> None:
        sums = tc.shared(total[rows, columns + lanes])  # rows in different sets of a cache
        for i in range(m):
            for j in repeat(columns // lanes) * line:
                sums[i, j] = 0
        if is_split:
            wholes = tc.shared(total[rows, columns + lanes])
            for i in range(m):
                for j in repeat(columns // lanes) * line:
                    wholes[i, j] = 0
            for first in range(0, whole, part):
                for q in range(first, min(first + part, whole), depth):
                    add(a, b, sums, col, q, depth)
                for i in range(m):
                    for j in repeat(columns // lanes) * line:
                        wholes[i, j] += sums[i, j]
                        sums[i, j] = 0
            for i in range(m):
                for j in repeat(columns // lanes) * line:
                    sums[i, j] = wholes[i, j]
        else:
            for q in range(0, whole, depth):
                add(a, b, sums, col, q, depth)
        if is_constant:
            add(a, b, sums, col, whole, k - whole)
        else:
            for q in range(whole, k):
                add(a, b, sums, col, q, 1)
        for i in range(m):
            for j in repeat(columns // lanes) * line:
                if col + j < n:
                    c[i, col + j] = epilogue(sums[i, j], further, col + j, (i, col + j))

    return few_rows


def _along_rows(problem: Problem, plan: FewRows) -> Function:
    m, n, k, total = problem.m, problem.n, problem.k, problem.total
    operand, epilogue = problem.operand, problem.epilogue
    own = repeat(*plan.together) * spatial(1, 1, plan.lanes)
    group, rows, step = own.shape

    @tc.function
    def few_rows(a: Value, b: Value, further: Values, c: Value, col: Value) -> None:
        for p in range(0, plan.columns, rows):
            for row in range(0, m, group):
                sums = tc.tile(total, own, 0)
                for q in range(0, k, step):
                    for i, j, s in own:
                        if row + i < m and col + p + j < n and q + s < k:
                            value = b[col + p + j, q + s].to(total)
                            sums[i, j, s] += operand(a, (), row + i, q + s) * value
                dots = tc.reduce(sums, 2, "+")
                for i, j in dots.mapping:
                    if row + i < m and col + p + j < n:
                        c[row + i, col + p + j] = epilogue(
                            dots[i, j], further, col + p + j, (row + i, col + p + j)
                        )

    return few_rows


# --- The panels of batched GEMM on processors, where b's rows lie across them -------------------


def transposed_panel(problem: Problem, plan: Panels) -> Function:
    """A panel of b, turned in squares: a function of b, the product's number and the first column."""
    n, k, dtype, of_b = problem.n, problem.k, problem.right, problem.element_of(problem.batch[1])
    lanes, wide = plan.lanes, plan.wide

    @tc.function
    def transposed(b: Value, number: Value, col: Value) -> Any:
        panel = tc.shared(dtype[ceil(k / lanes) * lanes, wide])
        for first in range(0, wide, lanes):
            for q in range(0, k, lanes):
                square = tc.shared(dtype[lanes, lanes])
                for j, p in lines(lanes):
                    square[j, p] = (
                        b[of_b(number, col + first + j, q + p)]
                        if col + first + j < n and q + p < k
                        else 0
                    )
                part = quarters(square)
                for p1, p0, j1, j0 in columns(lanes):
                    panel[q + 4 * p1 + p0, first + 4 * j1 + j0] = part[p0, j1, p1, j0]
        return panel

    return transposed


# --- GEMM on processors: a block is a panel of columns, and tiles of its rows stay in vector registers
#     own = repeat(rows, vectors) * spatial(1, lanes)
#
# says that each of `lanes` workers holds `rows` x `vectors` elements of a tile, a column each of every
# vector: so a step of k is `vectors` loads of b, `rows` scalars of a, and `rows * vectors` fused
# multiply-adds. The panel of b lies in the order in which it is read: put there by each block, or ahead
# of all calls (`packed`); of shorter numbers a block of many rows makes them wide first. Of a few rows of a it
# may be read where it lies.


def packed_type(problem: Problem, plan: Panels) -> TensorType:
    """The type of a packed b: panels of columns, zeros behind the last."""
    n, k = problem.n, problem.k
    panels = ceil(n / plan.wide)
    layout = repeat(1, max(1, panels)) * repeat(max(1, k), plan.wide)
    return problem.right[k, panels * plan.wide].laid(layout)


def panels(problem: Problem, plan: Panels) -> tc.KernelDefinition:
    if misfit := plan.misfit(problem):
        raise CompileError(f"this plan doesn't fit the product: {misfit}", hint=str(plan))
    m, n, tall, wide = problem.m, problem.n, plan.tall, plan.wide
    panel = _deep(problem, plan) if plan.depth else _whole(problem, plan)
    few = None if plan.few is None else few_rows(problem, plan.few)
    packed = packed_type(problem, plan) if problem.packed else None
    extents = (*problem.counted, problem.height, n)
    by = (*(1 for _ in problem.counted), tall, plan.panels * wide)
    first = len(problem.counted)
    order = (*range(first), *(first + axis for axis in plan.order))

    @tc.function
    def blocks(a: Value, b: Value, further: Values, c: Value) -> None:
        if plan.columns:
            for row, col in tc.tiles((m, n), by=(tall, plan.columns), order=plan.order):
                if few is not None and m <= MOST_ROWS:
                    few(a, b, further, c, col)
                else:
                    for p in range(0, plan.columns, wide):
                        if col + p < n:
                            panel(a, b, further, c, (), row, col + p)
        else:
            for *number, row, col in tc.tiles(extents, by=by, order=order):
                panel(a, b, further, c, number, row, col)

    return problem.kernel(plan.lanes, blocks, packed)


def _part(problem: Problem, plan: Panels, depth: Any) -> Function:
    """`depth` rows of a panel of b, in the order in which they are read."""
    of_b, wide = problem.element_of(problem.batch[1]), plan.wide
    has_squares = problem.counted and problem.transpose_b and plan.lanes % 4 == 0
    transposed = transposed_panel(problem, plan) if has_squares else None

    @tc.function
    def part(b: Value, number: Value, first: Value, col: Value) -> Any:
        if transposed is not None:
            return transposed(b, number, col)
        elif problem.counted and problem.transpose_b:
            return tc.load((depth, wide), lambda q, j: b[of_b(number, col + j, first + q)], fill=0)
        elif problem.counted:
            return tc.load((depth, wide), lambda q, j: b[of_b(number, first + q, col + j)], fill=0)
        elif problem.transpose_b:
            return tc.load((depth, wide), lambda q, j: b[col + j, first + q], fill=0)
        else:
            return tc.load(b[first : first + depth, col : col + wide])

    return part


@tc.function
def _element(problem: Problem, plan: Panels, b: Value, number: Value, q: Value, j: Value) -> Any:
    """An element of what a tile reads: of a panel, or of b."""
    if problem.packed or not plan.in_place:
        return b[q, j]
    else:
        return b[problem.element_of(problem.batch[1])(number, q, j)] if j < problem.n else 0


def _whole(problem: Problem, plan: Panels) -> Function:
    """A panel's part of c, by tiles that are summed over all of k."""
    m, n, k, total, epilogue = problem.height, problem.n, problem.k, problem.total, problem.epilogue
    rows, wide, place = plan.rows, plan.wide, problem.place
    of_c = problem.element_of(problem.batches)
    operand, part = problem.operand, _part(problem, plan, k)
    is_widened, is_split = plan.widens(problem), is_long(k)
    # Heights of the last tile, where there are several; of a b that isn't packed `few_rows` takes the smallest m.
    eighths = (0, 2, 3, 4, 5, 6, 8) if problem.packed else (0, 4, 8)
    heights = sorted({rows * eighth // 8 for eighth in eighths})

    @tc.function
    def part_of(
        a: Value, panel: Value, own: Mapping, number: Value, row: Value, first: Value, steps: Values
    ) -> Any:
        """The sums of some steps of k, in registers; their columns begin at column `first` of the panel."""
        acc = tc.tile(total, own, 0)
        for q in range(*steps):
            for i, j in own:
                value = _element(problem, plan, panel, number, q, first + j).to(total)
                acc[i, j] += operand(a, number, row + i, q) * value
        return acc

    @tc.function
    def summed(
        a: Value, panel: Value, own: Mapping, number: Value, row: Value, first: Value
    ) -> Any:
        """A tile, in registers or in the nearest cache."""
        if is_split:
            sums = tc.shared(total[own.shape])
            for i, j in own:
                sums[i, j] = 0
            for q in range(0, k, LONG_SUM):
                acc = part_of(a, panel, own, number, row, first, (q, min(q + LONG_SUM, k)))
                for i, j in own:
                    sums[i, j] += acc[i, j]
            return sums
        else:
            return part_of(a, panel, own, number, row, first, (0, k))

    @tc.function
    def last(a: Value, panel: Value, sums: Value, row: Value, first: Value) -> None:
        """The rows that are left, by a tile that has few more."""
        for less, height in tc.static(list(pairwise(heights))):
            if less < m - row and (m - row <= height or height == rows):
                fitting = repeat(height, plan.vectors) * spatial(1, plan.lanes)
                acc = summed(a, panel, fitting, (), row, first)
                for i, j in fitting:
                    sums[i, j] = acc[i, j]

    @tc.function
    def tiles(
        a: Value, panel: Value, further: Values, c: Value, number: Value, row: Value, col: Value, first: Value,
    ) -> None:  # fmt: skip
        """The tiles of a block."""
        for r in range(0, plan.tall, rows):
            if row + r < m:
                if plan.columns:
                    sums = tc.shared(total[rows, wide])
                    last(a, panel, sums, row + r, first)
                else:
                    sums = summed(a, panel, plan.own, number, row + r, first)
                for i, j in plan.own:
                    if row + r + i < m and col + j < n:
                        owner, own_row = place(number, row + r + i)
                        c[of_c(owner, own_row, col + j)] = epilogue(
                            sums[i, j], further, col + j, of_c(owner, own_row, col + j)
                        )

    @tc.function
    def whole(
        a: Value, b: Value, further: Values, c: Value, number: Value, row: Value, col: Value
    ) -> None:
        if is_widened:
            widened = tc.load((k, wide), lambda q, j: b[q, col + j].to(total))
            tiles(a, widened, further, c, number, row, col, 0)
        elif problem.packed or plan.in_place:
            tiles(a, b, further, c, number, row, col, col)
        else:
            panel = part(b, number, 0, col)
            tiles(a, panel, further, c, number, row, col, 0)

    return whole


def _deep(problem: Problem, plan: Panels) -> Function:
    """Panels beside each other, some rows of b at a time; their sums wait in memory for the next rows."""
    m, n, k, total, epilogue = problem.m, problem.n, problem.k, problem.total, problem.epilogue
    rows, wide, depth, own = plan.rows, plan.wide, plan.depth, plan.own
    operand, part = problem.operand, _part(problem, plan, depth)

    @tc.function
    def add(
        a: Value, panel: Value, sums: Value, row: Value, first: Value, p: Value, r: Value, at: Values,
    ) -> None:  # fmt: skip
        """Add the products of some rows of a panel, from `at` on, to the sums of a tile."""
        acc = tc.tile(total, own, 0)
        for q in range(min(depth, k - first)):
            for i, j in own:
                value = _element(problem, plan, panel, (), at[0] + q, at[1] + j).to(total)
                acc[i, j] += operand(a, (), row + r + i, first + q) * value
        for i, j in own:
            sums[p, r + i, j] += acc[i, j]

    @tc.function
    def tiles(
        a: Value, panel: Value, sums: Value, row: Value, first: Value, p: Value, at: Values
    ) -> None:
        """The same of all tiles of a block."""
        for r in range(0, plan.tall, rows):
            if row + r < m:
                add(a, panel, sums, row, first, p, r, at)

    @tc.function
    def deep(
        a: Value, b: Value, further: Values, c: Value, number: Value, row: Value, col: Value
    ) -> None:
        sums = tc.shared(total[plan.panels, plan.tall, wide])
        for p in range(plan.panels):
            for r in range(0, plan.tall, rows):
                for i, j in own:
                    sums[p, r + i, j] = 0
        for first in range(0, k, depth):
            for p in range(plan.panels):
                if col + p * wide < n:
                    if problem.packed or plan.in_place:
                        tiles(a, b, sums, row, first, p, (first, col + p * wide))
                    else:
                        panel = part(b, (), first, col + p * wide)
                        tiles(a, panel, sums, row, first, p, (0, 0))
        for p in range(plan.panels):
            for r in range(0, plan.tall, rows):
                for i, j in own:
                    column = col + p * wide + j
                    if row + r + i < m and column < n:
                        c[row + r + i, column] = epilogue(
                            sums[p, r + i, j], further, column, (row + r + i, column)
                        )

    return deep


def packs_type(problem: Problem, plan: Packs) -> TensorType:
    """The type of a packed b: packs of columns in panels, zeros behind its end."""
    # A layout has room for one pack of one panel, where there is none.
    panels = max(1, ceil(problem.n / plan.wide))
    depth = max(1, ceil(problem.k / plan.step)) * plan.step
    layout = repeat(1, panels) * repeat(depth // plan.pack, plan.wide) * repeat(plan.pack, 1)
    return problem.right[depth, panels * plan.wide].laid(layout)


def packs(problem: Problem, plan: Packs) -> tc.KernelDefinition:
    m, n, k, total, epilogue = problem.m, problem.n, problem.k, problem.total, problem.epilogue
    own, tall, (rows, wide) = plan.own, plan.tall, plan.own.shape
    depth = ceil(k / plan.step) * plan.step
    whole = depth // LONG_SUM * LONG_SUM if total.is_float and is_long(depth) else 0

    @tc.function
    def part_of(a: Value, panel: Value, row: Value, first: Value, q: Value, steps: Value) -> Any:
        """The sums of some steps of k; their columns begin at column `first` of the panel."""
        acc = tc.tile(total, own, 0)
        if depth == k and row + rows <= m:
            tc.mma(
                acc, a[row : row + rows, q : q + steps], panel[q : q + steps, first : first + wide]
            )
        else:
            edge = tc.load((rows, steps), lambda i, p: a[row + i, q + p], fill=0)
            tc.mma(acc, edge, panel[q : q + steps, first : first + wide])
        return acc

    @tc.function
    def summed(a: Value, panel: Value, row: Value, first: Value) -> Any:
        if whole:
            sums = tc.shared(total[own.shape])
            for i, j in own:
                sums[i, j] = 0
            for q in range(0, whole, LONG_SUM):
                acc = part_of(a, panel, row, first, q, LONG_SUM)
                for i, j in own:
                    sums[i, j] += acc[i, j]
            if whole < depth:
                acc = part_of(a, panel, row, first, whole, depth - whole)
                for i, j in own:
                    sums[i, j] += acc[i, j]
            return sums
        else:
            return part_of(a, panel, row, first, 0, depth)

    @tc.function
    def tiles(
        a: Value, panel: Value, further: Values, c: Value, row: Value, col: Value, first: Value
    ) -> None:
        """The tiles of a block; its columns begin at column `first` of the panel."""
        for r in range(0, tall, rows):
            if row + r < m:
                sums = summed(a, panel, row + r, first)
                for i, j in own:
                    if row + r + i < m and col + j < n:
                        c[row + r + i, col + j] = epilogue(
                            sums[i, j], further, col + j, (row + r + i, col + j)
                        )

    @tc.function
    def blocks(a: Value, b: Value, further: Values, c: Value) -> None:
        for row, col in tc.tiles((m, n), by=(tall, wide), order=(1, 0)):
            if problem.packed:
                tiles(a, b, further, c, row, col, col)
            else:
                panel = tc.load((depth, wide), lambda q, j: b[q, col + j], fill=0)
                tiles(a, panel, further, c, row, col, 0)

    packed = packs_type(problem, plan) if problem.packed else None
    return problem.kernel(own.workers, blocks, packed)
