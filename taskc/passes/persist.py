"""Persistent kernels: a persistent grid becomes a grid of the machine's blocks, each with a loop over its tiles.

    grid (row, col) in (m, n) by (64, 64) persistent:
        body
->
    grid first_tile in min((m + 63) // 64 * ((n + 63) // 64), 132) by 1:
        for tile in first_tile..(m + 63) // 64 * ((n + 63) // 64) step 132:
            let row = tile // ((n + 63) // 64) * 64
            let col = tile % ((n + 63) // 64) * 64
            body

There are as many blocks as the target has processors, in whole clusters; block b runs over the tiles
b, b + processors, ... Where no block would get a second tile, the grid is a plain one.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from taskc.ir import nodes as ir
from taskc.ir.build import index
from taskc.ir.nodes import Expression, Statement, Variable
from taskc.ir.rewrite import map_statements, substitute
from taskc.ir.target import TARGETS
from taskc.passes.lower_grid import at_tile, check_cluster, number_of_tiles


def persist(kernel: ir.Kernel) -> ir.Kernel:
    target = TARGETS[kernel.target]
    lets: dict[Variable, Expression] = {}

    def visit(statement: Statement) -> Statement:
        if isinstance(statement, ir.Grid) and statement.persistent:
            check_cluster(statement, lets, target)
            return _blocks_of_tiles(statement, target.processors)
        if isinstance(statement, ir.Let):
            lets[statement.variable] = substitute(statement.value, lets)
        if isinstance(statement, ir.Sequence):
            return map_statements(statement, visit)
        return statement

    body = visit(kernel.body)
    return kernel if body is kernel.body else replace(kernel, body=body)


def _blocks_of_tiles(grid: ir.Grid, processors: int) -> ir.Grid:
    loc, total = grid.loc, number_of_tiles(grid)
    size = prod(grid.cluster)
    processors = max(size, processors // size * size)
    blocks: int | ir.Expression = ir.Binary("min", total, index(processors))
    if isinstance(total, ir.Constant):
        if total.value <= processors:
            return replace(grid, persistent=False)
        blocks = processors
    first, tile = Variable("first_tile", loc=loc), Variable("tile", loc=loc)
    loop = ir.For(tile, first, total, processors, at_tile(grid, tile), loc=loc)
    body = ir.Sequence((loop,), loc=loc)
    return ir.Grid(
        (first,), (blocks,), (1,), body, cluster=(size,) if grid.cluster else (), loc=loc
    )
