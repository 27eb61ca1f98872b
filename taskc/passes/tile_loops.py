"""The loop over a block's tiles, as seen by the rings of its pipelines.

    grid first_tile in 132 by 1:
        for turn in range((tiles - first_tile + 131) // 132):
            let row = (first_tile + turn * 132) * 64
            pipeline p in 512 by 8 stages=3: ...

A ring belongs to the block: its slots and step numbers continue from tile to tile. Step k of a
tile is step turn * 64 + k of the ring, for 64 steps a tile, and step k + 2 belongs to this
tile or, if k + 2 is 64 or more, to the next one; if tiles have one step, to the one after that.

If each tile has its own number of steps, a cell outside the loop has the sum of the previous ones. Only a
producer warp can do so: it needs no step of another tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from taskc.ir import nodes as ir
from taskc.ir.build import ZERO, add, ceiling_divide, floor_divide, modulo, multiply, subtract
from taskc.ir.nodes import LOCAL, Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import copy, walk
from taskc.ir.types import i64
from taskc.passes.loads import Work, needed_scalars


def block_variables(body: Statement) -> frozenset[Variable]:
    """The variables that number the blocks of a grid of single tiles, and bound the loop over a block's tiles."""
    grids = [node for node in walk(body) if isinstance(node, ir.Grid)]
    return frozenset(grid.variables[0] for grid in grids if grid.by == (1,))


def is_tile_loop(statement: Statement, blocks: frozenset[Variable]) -> bool:
    return (
        isinstance(statement, ir.For)
        and any(n in blocks for end in (statement.start, statement.stop) for n in walk(end))
        and statement.step > 0
        and isinstance(statement.body, ir.Sequence)
    )


@dataclass(frozen=True, slots=True)
class StepOrigin:
    """A step's tile and its origin within the tile: `values` of their variables, computed by `lets`."""

    lets: tuple[ir.Let, ...]
    values: dict[Variable, Expression]


@dataclass(frozen=True, slots=True)
class Steps:
    """The numbering of a ring's steps.

    count   the steps of one run of the pipelined loop; `setup` binds it before the ring's first step
    total   the steps of all its runs; `at_ring` binds it there, too, where it is asked for
    earlier the steps of earlier runs; `at_run` binds it in front of each run
    loop    over the tiles, where the ring runs on across them
    cell    has `earlier`, where that isn't the same for all tiles
    """

    pipeline: ir.Pipeline
    count: Expression
    total: Expression
    setup: tuple[ir.Let, ...] = ()
    at_ring: tuple[ir.Let, ...] = ()
    at_run: tuple[ir.Let, ...] = ()
    earlier: Expression = ZERO
    loop: ir.For | None = None
    cell: Tensor | None = None

    @property
    def tile(self) -> Expression:
        """The number of the block's earlier tiles."""
        if self.loop is None:
            return ZERO
        return floor_divide(subtract(self.loop.variable, self.loop.start), self.loop.step)

    def of_run(self, steps: Statement) -> list[Statement]:
        """The loop over the steps of an execution, with the statements that count them."""
        if self.cell is None:
            return [*self.at_run, steps]
        return [*self.at_run, steps, ir.Store(self.cell, (), self.number(self.count))]

    def of_block(self, run: Statement) -> Statement:
        """All executions of a role, over the block's tiles if there are several."""
        if self.loop is None:
            return run
        cell = () if self.cell is None else (ir.Allocate(self.cell, ir.Constant(0, i64)),)
        loop = replace(self.loop, body=run)
        return ir.Sequence((*cell, loop), loc=loop.loc)

    def in_turn(self, number: int, count: int) -> Steps:
        """The steps of one of `count` consumers, which takes every `count`-th tile; all share one numbering."""
        if self.loop is None:
            return self
        start = add(self.loop.start, number * self.loop.step)
        return replace(self, loop=replace(self.loop, start=start, step=count * self.loop.step))

    def number(self, k: Expression) -> Expression:
        return add(self.earlier, k)

    def place(self, k: Expression) -> StepOrigin:
        """The origin of step k of this execution."""
        return StepOrigin((), {self.pipeline.variable: multiply(k, self.pipeline.by)})

    def place_ahead(self, k: Expression, *, of_all: bool = False) -> StepOrigin:
        """The origin of a step that may be past the execution's end; or of step k `of_all` executions."""
        if self.loop is None:
            return self.place(k)
        position, by, loc = self.pipeline.variable, self.pipeline.by, self.pipeline.loc
        tile = self.loop.start if of_all else self.loop.variable
        ahead = multiply(floor_divide(k, self.count), self.loop.step)
        later_tile = Variable(self.loop.variable.name, loc=loc)
        origin = Variable(position.name, loc=loc)
        return StepOrigin(
            (
                ir.Let(later_tile, add(tile, ahead), loc=loc),
                ir.Let(origin, multiply(modulo(k, self.count), by), loc=loc),
            ),
            {self.loop.variable: later_tile, position: origin},
        )


def steps_of_one_run(pipeline: ir.Pipeline) -> Steps:
    count = ceiling_divide(pipeline.extent, pipeline.by)
    return Steps(pipeline, count, count)


def cant_count_across(
    pipeline: ir.Pipeline, loop: ir.For, before: Sequence[Statement]
) -> str | None:
    """The reason why the steps of all tiles can't be counted before the first; None if they can."""
    length = ir.Let(Variable("extent"), pipeline.extent)
    needed = (*needed_scalars(before, (length,)), length)
    if any(node is loop.variable for let in needed for node in walk(let)):
        return "how many steps it has depends on the tile"
    reason = Work.of((loop.body,)).needed_by(needed)
    return None if reason is None else f"how many steps it has {reason}"


def steps_across_tiles(pipeline: ir.Pipeline, loop: ir.For, before: Sequence[Statement]) -> Steps:
    """The steps of a pipeline after the statements `before`, if all tiles have the same number."""
    loc = pipeline.loc
    length = ir.Let(
        Variable("steps", loc=loc), ceiling_divide(pipeline.extent, pipeline.by), loc=loc
    )
    setup = copy(ir.Sequence((*needed_scalars(before, (length,)), length)))
    assert isinstance(setup, ir.Sequence)
    *lets, last = (s for s in setup.statements if isinstance(s, ir.Let))
    count: Expression = last.value
    if not isinstance(count, ir.Constant):
        lets.append(last)
        count = last.variable
    total, earlier = Variable("all_steps", loc=loc), Variable("earlier_steps", loc=loc)
    tiles = ceiling_divide(subtract(loop.stop, loop.start), loop.step)
    steps = Steps(
        pipeline,
        count,
        total,
        tuple(lets),
        (ir.Let(total, multiply(tiles, count), loc=loc),),
        earlier=earlier,
        loop=loop,
    )
    return replace(steps, at_run=(ir.Let(earlier, multiply(steps.tile, count), loc=loc),))


def steps_as_tiles_come(pipeline: ir.Pipeline, loop: ir.For) -> Steps:
    """The steps of a pipeline whose number differs between tiles."""
    count = ceiling_divide(pipeline.extent, pipeline.by)
    cell = Tensor("steps_before", i64, (), LOCAL, loc=pipeline.loc)
    earlier = Variable("earlier_steps", loc=pipeline.loc)
    at_run = (ir.Let(earlier, ir.Read(cell, ()), loc=pipeline.loc),)
    return Steps(pipeline, count, count, at_run=at_run, earlier=earlier, loop=loop, cell=cell)
