"""Software pipelining (double buffering): loads of later steps of a pipelined loop overlap the work of the current one.

    pipeline p in 512 by 8 stages=3:
        constant shared sa: f32[64, 8]
        move sa[i, q] = a[row + i, p + q] for ...
        work(sa)
->
    shared sa: f32[3, 64, 8]
    ring r = (sa) stages=3 transport=cp.async
    for k in unroll(2):
        acquire r[k]
        if k < 64:
            move sa[k % 3, i, q] = a[row + i, k * 8 + q] for ... how=cp.async
        commit r[k]
    for k in range(64):
        wait r[k]
        acquire r[k + 2]
        if k + 2 < 64:
            move sa[(k + 2) % 3, i, q] = a[row + i, (k + 2) * 8 + q] for ... how=cp.async
        commit r[k + 2]
        work(sa[k % 3])
        release r[k]

Transports of block values:

    registers   the load of step k + s - 1 goes to a tile before the work of step k, and from there to its
                slot after it: with two stages, the classic double buffer
    cp.async    straight to shared memory, by each worker; needs a plain access of 4 to 16 aligned bytes
    tma         a whole box at once, issued by one worker, counted by an mbarrier

A block value takes part if its load depends on nothing that the body computes except uniform scalars, and
these on no memory that the body writes. With
`specialize` the loads become the body of a producer warp of their own (taskc/passes/specialize.py).

In the loop over a block's tiles the ring continues: its prologue is placed before that
loop, and the last steps of a tile issue the next tile's first copies. If the loads, or the number of steps,
depend on a tile's results, the ring is set up anew for each tile, and a note says so.

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

from collections.abc import Callable, Sequence
from dataclasses import replace

from taskc.analysis.coalescing import slots_of
from taskc.analysis.touches import reads_memory
from taskc.dataclass import dataclass
from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.build import (
    ZERO,
    add,
    ceiling_divide,
    floor_divide,
    index,
    less,
    modulo,
    multiply,
    subtract,
)
from taskc.ir.nodes import GLOBAL, LOCAL, TILE, Expression, Ring, Statement, Tensor, Variable
from taskc.ir.rewrite import all_below, copy, index_leading, map_statements, walk
from taskc.ir.target import TARGETS
from taskc.ir.types import i64
from taskc.passes.transports import transport_for


@dataclass(frozen=True, slots=True)
class Loads:
    """The part of a pipelined body that fetches, and the rest of it.

    `scalars` are the uniform Lets that the moves need; they stay in the work too, as do the loads that
    depend on it: `refusals` say why.
    """

    tensors: tuple[Tensor, ...]
    scalars: tuple[ir.Let, ...]
    moves: tuple[ir.Move, ...]
    work: tuple[Statement, ...]
    refusals: tuple[tuple[ir.Move, str], ...]

    def notes(self, refused: str = "is not pipelined") -> list[tuple[str, Location]]:
        """A note for each load that stays in the work, saying that it is `refused`, and why."""
        return [
            (f"`{move.tensor.name}` {refused}: its load {reason}", move.loc)
            for move, reason in self.refusals
        ]


def split_loads(
    pipeline: ir.Pipeline, concurrent: Sequence[Statement] = (), before: Sequence[Statement] = ()
) -> Loads:
    """The block values at the top of the body whose loads don't depend on the work.

    If loads overlap more than the loop, `concurrent` are those other statements. Scalars that come `before`
    the loop then have to be computed again by the loads.
    """
    body = pipeline.body
    statements = body.statements if isinstance(body, ir.Sequence) else (body,)
    work_around = Work.of((body, *concurrent))
    known = {s.variable: s for s in before if isinstance(s, ir.Let)}
    scalars: dict[Variable, ir.Let] = {}
    tensors: list[Tensor] = []
    moves: list[ir.Move] = []
    work: list[Statement] = []
    refusals: list[tuple[ir.Move, str]] = []
    needed: set[Variable] = set()
    block_values = {
        s.tensor for s in statements if isinstance(s, ir.Allocate) and s.tensor.constant
    }
    for statement in statements:
        match statement:
            case ir.Allocate(tensor=tensor) if tensor in block_values:
                continue
            case ir.Move(tensor=tensor) if tensor in block_values:
                lets = _closure(_free_variables(statement), {**known, **scalars})
                reason = work_around.needed_by((statement, *lets))
                if reason is None:
                    tensors.append(tensor)
                    moves.append(statement)
                    needed |= _free_variables(statement)
                else:
                    refusals.append((statement, reason))
                    work += [ir.Allocate(tensor, loc=statement.loc), statement]
                continue
            case ir.Let():
                scalars[statement.variable] = statement
            case _:
                pass  # it is work
        work.append(statement)
    needed_lets = _closure(needed, scalars)
    return Loads(tuple(tensors), needed_lets, tuple(moves), tuple(work), tuple(refusals))


@dataclass(frozen=True, slots=True)
class Work:
    """The tensors that statements overlapped by loads write, and the variables that they compute, except by Lets."""

    written: frozenset[Tensor]
    computed: frozenset[Variable]

    @staticmethod
    def of(parts: Sequence[Statement]) -> Work:
        written: set[Tensor] = set()
        computed: set[Variable] = set()
        for part in parts:
            for node in walk(part):
                if isinstance(node, (ir.Store, ir.Atomic, ir.Move)):
                    written.add(node.tensor)
                if isinstance(node, (ir.Atomic, ir.Do)) and node.result is not None:
                    computed.add(node.result)
        return Work(frozenset(written), frozenset(computed))

    def needed_by(self, parts: Sequence[Statement]) -> str | None:
        """The reason why these can't run before the work, or None."""
        for node in (node for part in parts for node in walk(part)):
            if isinstance(node, ir.Read):
                if node.tensor in self.written:
                    return f"reads `{node.tensor.name}`, which the work writes"
                if node.tensor.scope != GLOBAL:
                    return f"reads `{node.tensor.name}`, which isn't in global memory"
            elif isinstance(node, Variable) and node in self.computed:
                return f"needs `{node.name}`, which the work computes"
        return None


def _free_variables(node: ir.Statement) -> set[Variable]:
    return {v for v in walk(node) if isinstance(v, Variable)}


def _closure(needed: set[Variable], scalars: dict[Variable, ir.Let]) -> tuple[ir.Let, ...]:
    """The Lets that `needed` depends on, in program order."""
    for variable in reversed(scalars):
        if variable in needed:
            needed |= _free_variables(scalars[variable])
    return tuple(let for variable, let in scalars.items() if variable in needed)


def needed_scalars(before: Sequence[Statement], users: Sequence[Statement]) -> tuple[ir.Let, ...]:
    """The Lets of `before` that the users depend on."""
    needed = {v for user in users for v in _free_variables(user)}
    return _closure(needed, {s.variable: s for s in before if isinstance(s, ir.Let)})


def block_variables(body: Statement) -> frozenset[Variable]:
    """The variables that number the blocks of a grid of single tiles, and bound the loop over a block's tiles."""
    return frozenset(grid.variables[0] for grid in all_below(body, ir.Grid) if grid.by == (1,))


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


Notes = list[tuple[str, Location]]


def overlap(kernel: ir.Kernel) -> ir.Kernel:
    notes: Notes = []
    blocks = block_variables(kernel.body)

    def visit(statement: Statement) -> Statement:
        if isinstance(statement, ir.Each):
            return statement
        if isinstance(statement, ir.For) and is_tile_loop(statement, blocks):
            return _tile_loop(statement, kernel, visit, notes)
        statement = map_statements(statement, visit)
        if isinstance(statement, ir.Pipeline):
            return _pipeline(statement, kernel, notes)
        return statement

    body = visit(kernel.body)
    return replace(kernel, body=body, stage="pipelined", notes=(*kernel.notes, *notes))


def _is_plain(pipeline: ir.Pipeline, kernel: ir.Kernel) -> bool:
    """Whether nothing overlaps: it wasn't requested, or the target's loads don't overlap work."""
    return pipeline.stages == 1 or not TARGETS[kernel.target].transports


def _pipeline(pipeline: ir.Pipeline, kernel: ir.Kernel, notes: Notes) -> Statement:
    """The loop, after the set-up of its ring."""
    loads, loc = split_loads(pipeline), pipeline.loc
    notes += loads.notes()
    if _is_plain(pipeline, kernel) or not loads.moves:
        return ir.For(
            pipeline.variable, index(0), pipeline.extent, pipeline.by, pipeline.body, loc=loc
        )
    extent: list[Statement] = []
    if reads_memory(pipeline.extent):
        # The loop evaluates it several times, and its work may change the operands.
        length = Variable("extent", loc=loc)
        extent.append(ir.Let(length, pipeline.extent, loc=loc))
        pipeline = replace(pipeline, extent=length)
    allocate, prologue, steady = _overlapped(steps_of_one_run(pipeline), loads, kernel, notes)
    return ir.Sequence((*extent, *allocate, prologue, steady), loc=loc)


def _tile_loop(
    loop: ir.For, kernel: ir.Kernel, visit: Callable[[Statement], Statement], notes: Notes
) -> Statement:
    """The loop over a block's tiles, after the set-up of the rings that continue across tiles."""
    assert isinstance(loop.body, ir.Sequence)
    scalars: list[Statement] = []
    allocations: list[Statement] = []
    prologues: list[Statement] = []
    body: list[Statement] = []
    for at, statement in enumerate(loop.body.statements):
        if not isinstance(statement, ir.Pipeline):
            body.append(visit(statement))
            continue
        before = loop.body.statements[:at]
        pipeline = map_statements(statement, visit)
        assert isinstance(pipeline, ir.Pipeline)
        alone = split_loads(pipeline)
        if _is_plain(pipeline, kernel) or not alone.moves:
            body.append(_pipeline(pipeline, kernel, notes))
            continue
        loads = split_loads(pipeline, (loop.body,), before)
        refusal = cant_count_across(pipeline, loop, before)
        if len(loads.moves) < len(alone.moves):
            move, reason = next(r for r in loads.refusals if any(r[0] is m for m in alone.moves))
            refusal = f"the load of `{move.tensor.name}` {reason}"
        if refusal is not None:
            notes.append((f"this pipeline does not run on across tiles: {refusal}", pipeline.loc))
            body.append(_pipeline(pipeline, kernel, notes))
            continue
        notes += loads.notes()
        needed = needed_scalars(before, (*loads.scalars, *loads.moves))
        steps = steps_across_tiles(pipeline, loop, before)
        allocate, prologue, steady = _overlapped(
            steps, replace(loads, scalars=(*needed, *loads.scalars)), kernel, notes
        )
        scalars += [*steps.setup, *steps.at_ring]
        allocations += allocate
        prologues.append(prologue)
        body += [*steps.at_run, steady]
    notes += [
        ("this pipeline does not run on across tiles: it stands within another statement", node.loc)
        for statement in loop.body.statements
        for node in walk(statement)
        if isinstance(node, ir.Pipeline) and node is not statement and node.stages > 1
    ]
    new = replace(loop, body=replace(loop.body, statements=tuple(body)))
    if not allocations:
        return new
    # The rings are set up together, which takes one barrier.
    return ir.Sequence((*scalars, *allocations, *prologues, new), loc=loop.loc)


def _overlapped(
    steps: Steps, loads: Loads, kernel: ir.Kernel, notes: Notes
) -> tuple[list[ir.Allocate], Statement, Statement]:
    """The allocation of the ring, the copies before its first step, and the loop."""
    pipeline = steps.pipeline
    stages, loc = pipeline.stages, pipeline.loc
    transport = transport_for(pipeline, loads.moves, kernel, TARGETS[kernel.target], notes)
    ring, slots = make_ring(loads, stages, transport)

    def step(operation: str, k: Expression) -> Statement:
        return ir.RingStep(operation, ring, k, loc=loc)

    def issue(k: Expression, place: StepOrigin) -> list[Statement]:
        """The copies of step k. A step past the end is empty, but cp.async counts it."""
        fetch = fetch_step(loads, slots, k, place, stages, transport)
        if transport == "cp.async":
            within = ir.If(less(k, steps.total), ir.Sequence(tuple(fetch)), loc=loc)
            return [step("acquire", k), within, step("commit", k)]
        body = (step("acquire", k), *fetch, step("commit", k))
        return [ir.If(less(k, steps.total), ir.Sequence(body), loc=loc)]

    first, k = Variable("k", loc=loc), Variable("k", loc=loc)
    prologue = ir.For(
        first,
        index(0),
        index(stages - 1),
        1,
        ir.Sequence(tuple(issue(first, steps.place_ahead(first, of_all=True)))),
        "unroll",
        loc=loc,
    )
    number = steps.number(k)
    work = index_leading(
        ir.Sequence(
            (ir.Let(pipeline.variable, multiply(k, pipeline.by), loc=loc), *loads.work), loc=loc
        ),
        slots,
        modulo(number, stages),
    )
    ahead = add(k, stages - 1)
    later, place = steps.number(ahead), steps.place_ahead(ahead)
    if transport == "registers":
        load, deliver = _through_registers(loads, slots, later, stages)
        condition = less(later, steps.total)
        allocations = [ir.Allocate(s.tensor) for s in load]
        body: list[Statement] = [
            step("wait", number),
            *allocations,
            ir.If(condition, ir.Sequence(tuple(_at(place, loads, load))), loc=loc),
            work,
            step("release", number),
            ir.If(
                condition,
                ir.Sequence((step("acquire", later), *deliver, step("commit", later))),
                loc=loc,
            ),
        ]
    else:
        body = [step("wait", number), *issue(later, place), work, step("release", number)]
    steady = ir.For(k, index(0), steps.count, 1, ir.Sequence(tuple(body)), loc=loc)
    allocate = [ir.Allocate(tensor, loc=tensor.loc) for tensor in ring.tensors]
    return allocate, prologue, steady


def make_ring(loads: Loads, stages: int, transport: str) -> tuple[Ring, dict[Tensor, Tensor]]:
    slots = {tensor: replace(slots_of(tensor, stages), constant=False) for tensor in loads.tensors}
    name = "_".join(tensor.name for tensor in loads.tensors)
    return Ring(name, tuple(slots.values()), stages, transport), slots


def _at(place: StepOrigin, loads: Loads, moves: list[ir.Move]) -> list[Statement]:
    """The moves for a step, after their own copies of the scalars that they need."""
    block = copy(ir.Sequence((*loads.scalars, *moves)), place.values)
    assert isinstance(block, ir.Sequence)
    return [*place.lets, *block.statements]


def fetch_step(
    loads: Loads,
    slots: dict[Tensor, Tensor],
    k: Expression,
    place: StepOrigin,
    stages: int,
    transport: str,
) -> list[Statement]:
    how = None if transport == "registers" else transport
    moves = [replace(move, how=how) for move in loads.moves]
    statements = _at(place, loads, moves)
    return [index_leading(statement, slots, modulo(k, stages)) for statement in statements]


def _through_registers(
    loads: Loads,
    slots: dict[Tensor, Tensor],
    k: Expression,
    stages: int,
) -> tuple[list[ir.Move], list[ir.Move]]:
    """The two halves of each load: into a tile, and from the tile into the slot of step k."""
    load: list[ir.Move] = []
    deliver: list[ir.Move] = []
    for move in loads.moves:
        assert move.by is not None
        tile = Tensor(
            f"{move.tensor.name}_next", move.tensor.dtype, move.by.iterated, TILE,
            owners=move.by, loc=move.loc,
        )  # fmt: skip
        load.append(replace(move, tensor=tile, indices=move.variables))
        variables = tuple(replace(v) for v in move.variables)
        deliver.append(
            ir.Move(
                slots[move.tensor],
                (modulo(k, stages), *variables),
                variables,
                move.shape,
                ir.Read(tile, variables, loc=move.loc),
                by=move.by,
                loc=move.loc,
            )
        )
    return load, deliver
