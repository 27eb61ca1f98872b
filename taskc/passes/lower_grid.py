"""Numbering of blocks: the grid becomes arithmetic on the block's number.

    grid (row, col) in (m, n) by (64, 64):
        body
->
    blocks = ((m + 63) // 64) * ((n + 63) // 64)
    let row = block // ((n + 63) // 64) * 64
    let col = block % ((n + 63) // 64) * 64
    body

`order=("grouped", g)` goes down the columns of groups of g tile rows, so that blocks that run at the same
time share their operands in the cache; "backwards" begins with the last column. Persistent grids are
loops within plain ones by now (taskc/passes/persist.py).

With `cluster=(2, 1)` the tiles of two rows belong to consecutive blocks, and `order` is the order
of clusters. The cluster's extents divide the numbers of tiles, for every size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from taskc.analysis.touches import reads_memory
from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.affine import divisible
from taskc.ir.build import (
    add,
    ceiling_divide,
    digits_of,
    floor_divide,
    index,
    modulo,
    multiply,
    product,
    subtract,
)
from taskc.ir.nodes import Expression, Statement, Variable
from taskc.ir.printer import expression_text
from taskc.ir.rewrite import map_statements, substitute
from taskc.ir.target import TARGETS, Target

Values = dict[Variable, Expression]


def lower_grid(kernel: ir.Kernel) -> ir.Kernel:
    target = TARGETS[kernel.target]
    _check_workers(kernel, target)
    blocks: Expression = index(1)
    cluster = 1

    def numbered(grid: ir.Grid, lets: Values) -> Statement:
        nonlocal blocks, cluster
        cluster = prod(grid.cluster)
        check_cluster(grid, lets, target)
        # The launch knows the kernel's dimensions, not values that it computes from them.
        blocks = substitute(number_of_tiles(grid), lets)
        if reads_memory(blocks):
            raise CompileError(
                "how many blocks there are depends on memory, and has to be known before",
                grid.loc,
            )
        return at_tile(grid, floor_divide(kernel.block, cluster), modulo(kernel.block, cluster))

    body = map_grid(kernel.body, numbered)
    return replace(kernel, body=body, blocks=blocks, cluster=cluster)


def map_grid(body: Statement, function: Callable[[ir.Grid, Values], Statement]) -> Statement:
    """A kernel's body with `function` applied to its grid and to the values of the Lets before it."""
    lets: Values = {}

    def visit(statement: Statement) -> Statement:
        if isinstance(statement, ir.Grid):
            return function(statement, lets)
        if isinstance(statement, ir.Let):
            lets[statement.variable] = substitute(statement.value, lets)
        return map_statements(statement, visit) if isinstance(statement, ir.Sequence) else statement

    return visit(body)


def _check_workers(kernel: ir.Kernel, target: Target) -> None:
    count = kernel.workers + kernel.helpers
    if count > target.max_workers:
        helped = f", {kernel.helpers} of which load for the others" if kernel.helpers else ""
        raise CompileError(
            f"a block of {target.name} has at most {target.max_workers} workers, and this has {count}{helped}",
            kernel.loc,
        )


def check_cluster(grid: ir.Grid, lets: Values, target: Target) -> None:
    """Check that the target has clusters of that size, and that they divide the numbers of tiles."""
    size = prod(grid.cluster)
    if size > target.cluster:
        raise CompileError(
            f"{target.name} schedules at most {target.cluster} blocks together, and this is {size}"
            if target.cluster > 1
            else f"{target.name} has no clusters",
            grid.loc,
        )
    for dimension, by in enumerate(grid.cluster):
        extent = substitute(index(grid.shape[dimension]), lets)
        count = ceiling_divide(extent, grid.by[dimension])
        # If tiles may exceed the extent, only a constant determines their number.
        if not (_is_multiple(extent, grid.by[dimension] * by) or _is_multiple(count, by)):
            raise CompileError(
                f"the {expression_text(count)} tiles of dimension {dimension} aren't surely a"
                f" multiple of the cluster's {by}",
                grid.loc,
                hint="a cluster is scheduled whole: tc.dim(..., multiple=...) says what is known",
            )


def _is_multiple(number: Expression, divisor: int) -> bool:
    if isinstance(number, ir.Binary) and number.operator in ("min", "max"):
        return _is_multiple(number.left, divisor) and _is_multiple(number.right, divisor)
    return divisible(number, divisor)


def number_of_tiles(grid: ir.Grid) -> Expression:
    return product(_tile_counts(grid))


def _minimum(left: Expression, right: int) -> Expression:
    if isinstance(left, ir.Constant):
        return index(min(int(left.value), right))
    return ir.Binary("min", left, index(right))


def _tile_counts(grid: ir.Grid) -> list[Expression]:
    return [ceiling_divide(extent, by) for extent, by in zip(grid.shape, grid.by, strict=True)]


def at_tile(grid: ir.Grid, number: Expression, rank: Expression) -> Statement:
    """The body for the tile of a rank in the cluster of a number; without clusters, for the tile of the number."""
    counts = _tile_counts(grid)
    if grid.cluster:
        counts = [floor_divide(n, by) for n, by in zip(counts, grid.cluster, strict=True)]
    if grid.order and grid.order[0] in ir.GROUPED:
        lets, digits = _grouped(counts, number, int(grid.order[1]), grid.loc)
        if grid.order[0] == "backwards":
            digits[1] = subtract(subtract(counts[1], 1), digits[1])
    else:
        lets, digits = [], _row_major(counts, number, grid.order)
    if grid.cluster:
        within = digits_of(rank, grid.cluster)
        digits = [
            add(multiply(digit, by), inner)
            for digit, by, inner in zip(digits, grid.cluster, within, strict=True)
        ]
    for variable, digit, by in zip(grid.variables, digits, grid.by, strict=True):
        lets.append(ir.Let(variable, multiply(digit, by), loc=grid.loc))
    body = grid.body.statements if isinstance(grid.body, ir.Sequence) else (grid.body,)
    return ir.Sequence((*lets, *body), loc=grid.loc)


def _row_major(
    counts: list[Expression], number: Expression, order: tuple[str | int, ...]
) -> list[Expression]:
    """The coordinates of a tile; `order` lists the dimensions from slowest to fastest."""
    dimensions = [int(d) for d in order] or list(range(len(counts)))
    digits: dict[int, Expression] = {d: index(0) for d in dimensions if _is_one(counts[d])}
    dimensions = [d for d in dimensions if d not in digits]
    for position, dimension in reversed(list(enumerate(dimensions))):
        digits[dimension] = modulo(number, counts[dimension]) if position else number
        number = floor_divide(number, counts[dimension])
    return [digits[d] for d in range(len(counts))]


def _is_one(count: Expression) -> bool:
    """Whether a dimension has one tile; its quotients and remainders can't always be simplified to 0 afterwards."""
    return isinstance(count, ir.Constant) and count.value == 1


def _grouped(
    counts: list[Expression], number: Expression, height: int, loc: Location
) -> tuple[list[Statement], list[Expression]]:
    """Column by column within groups of `height` tile rows; the last group may be lower."""
    rows, columns = counts
    group_size = multiply(columns, height)
    first = Variable("first_row", loc=loc)
    within_group = Variable("within_group", loc=loc)
    group_rows = Variable("group_rows", loc=loc)
    lets: list[Statement] = [
        ir.Let(first, multiply(floor_divide(number, group_size), height), loc=loc),
        ir.Let(within_group, modulo(number, group_size), loc=loc),
        ir.Let(group_rows, _minimum(subtract(rows, first), height), loc=loc),
    ]
    return lets, [
        add(first, modulo(within_group, group_rows)),
        floor_divide(within_group, group_rows),
    ]
