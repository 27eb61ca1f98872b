"""A persistent grid becomes a grid of the machine's blocks, each with a loop over its tiles.

    grid (row, col) in (m, n) by (64, 64) persistent:
        body
->
    grid first_tile in min((m + 63) // 64 * ((n + 63) // 64), 132) by 1:
        for tile in first_tile..(m + 63) // 64 * ((n + 63) // 64) step 132:
            let row = tile // ((n + 63) // 64) * 64
            let col = tile % ((n + 63) // 64) * 64
            body

There are as many blocks as the target has processors; block b runs over the tiles b, b + processors, ...
Where no block would get a second tile, the grid is a plain one.
"""

from __future__ import annotations

from dataclasses import replace

from taskc.ir import nodes as ir
from taskc.ir.nodes import Statement, Variable
from taskc.ir.rewrite import map_statements
from taskc.ir.target import TARGETS
from taskc.passes.lower_grid import at_tile, minimum, number_of_tiles


def persist(kernel: ir.Kernel) -> ir.Kernel:
    processors = TARGETS[kernel.target].processors

    def visit(statement: Statement) -> Statement:
        if isinstance(statement, ir.Grid) and statement.persistent:
            return _blocks_of_tiles(statement, processors)
        if isinstance(statement, ir.Sequence):
            return map_statements(statement, visit)
        return statement

    body = visit(kernel.body)
    return kernel if body is kernel.body else replace(kernel, body=body)


def _blocks_of_tiles(grid: ir.Grid, processors: int) -> ir.Grid:
    loc, total = grid.loc, number_of_tiles(grid)
    if isinstance(total, ir.Constant) and total.value <= processors:
        return replace(grid, persistent=False)
    first, tile = Variable("first_tile", loc=loc), Variable("tile", loc=loc)
    blocks = minimum(total, processors)
    loop = ir.For(tile, first, total, processors, at_tile(grid, tile), loc=loc)
    extent = int(blocks.value) if isinstance(blocks, ir.Constant) else blocks
    return ir.Grid((first,), (extent,), (1,), ir.Sequence((loop,), loc=loc), loc=loc)
