"""Persistent kernels: a persistent grid becomes a grid of the machine's blocks, each with a loop over its tiles.

    grid (row, col) in (m, n) by (64, 64) persistent:
        body
->
    grid first_tile in min((m + 63) // 64 * ((n + 63) // 64), processors) by 1:
        for turn in range(((m + 63) // 64 * ((n + 63) // 64) - first_tile + (processors - 1)) // processors):
            let tile = min(first_tile + turn * processors, (m + 63) // 64 * ((n + 63) // 64) - 1)
            let row = tile // ((n + 63) // 64) * 64
            let col = tile % ((n + 63) // 64) * 64
            body

There are as many blocks as the device has processors, in whole clusters, which only a launch knows; block b executes
the tiles b, b + processors, ... The minimum gives passes an upper bound. If no block of the target's usual
number would get a second tile, the grid is a plain one, as on CPUs.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from taskc.ir import nodes as ir
from taskc.ir.build import ZERO, add, floor_divide, index, modulo, multiply, subtract
from taskc.ir.nodes import Expression, Statement, Variable
from taskc.ir.target import TARGETS, Target
from taskc.ir.types import i64
from taskc.passes.lower_grid import Values, at_tile, check_cluster, map_grid, number_of_tiles


def persist(kernel: ir.Kernel) -> ir.Kernel:
    target = TARGETS[kernel.target]

    def looped(grid: ir.Grid, lets: Values) -> Statement:
        if not grid.persistent:
            return grid
        check_cluster(grid, lets, target)
        if not has_turns(grid, target):
            return replace(grid, persistent=False)
        return _blocks_of_tiles(grid, kernel.processors)

    body = map_grid(kernel.body, looped)
    return kernel if body is kernel.body else replace(kernel, body=body)


def has_turns(grid: ir.Grid, target: Target) -> bool:
    """Whether blocks of a grid may have several tiles: it is persistent, and not of few tiles."""
    if not grid.persistent or target.is_processor:
        return False
    total, size = number_of_tiles(grid), prod(grid.cluster)
    return not (isinstance(total, ir.Constant) and total.value <= target.processors // size * size)


def _blocks_of_tiles(grid: ir.Grid, processors: Variable) -> ir.Grid:
    loc, total, size = grid.loc, number_of_tiles(grid), prod(grid.cluster)
    # A block has the tiles of one rank in the clusters it counts: none ends before its neighbours.
    apart: Expression = ir.Cast(processors, i64)
    if size > 1:
        apart = ir.Binary("max", floor_divide(apart, size), index(1))
    first, turn, tile = (
        Variable(name, loc=loc)
        for name in ("first_tile", "turn", "cluster" if size > 1 else "tile")
    )
    place, clusters = floor_divide(first, size), floor_divide(total, size)
    turns = floor_divide(add(subtract(clusters, place), subtract(apart, 1)), apart)
    number = ir.Binary("min", add(place, multiply(turn, apart)), subtract(clusters, 1))
    tiles = at_tile(grid, tile, modulo(first, size))
    assert isinstance(tiles, ir.Sequence)
    run = ir.Sequence((ir.Let(tile, number, loc=loc), *tiles.statements), loc=loc)
    loop = ir.For(turn, ZERO, turns, 1, run, loc=loc)
    return ir.Grid(
        (first,),
        (ir.Binary("min", total, multiply(apart, size)),),
        (1,),
        ir.Sequence((loop,), loc=loc),
        cluster=(size,) if grid.cluster else (),
        loc=loc,
    )
