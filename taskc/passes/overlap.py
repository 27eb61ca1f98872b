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

In the loop over a block's tiles (taskc/passes/tile_loops.py) the ring continues: its prologue is placed before that
loop, and the last steps of a tile issue the next tile's first copies. If the loads, or the number of steps,
depend on a tile's results, the ring is set up anew for each tile, and a note says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from taskc.analysis.banks import slots_of
from taskc.analysis.reads import reads_memory
from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.build import add, index, less, modulo, multiply
from taskc.ir.nodes import TILE, Expression, Ring, Statement, Tensor, Variable
from taskc.ir.rewrite import copy, index_leading, map_statements, walk
from taskc.ir.target import TARGETS
from taskc.passes.loads import Loads, needed_scalars, split_loads
from taskc.passes.tile_loops import (
    StepOrigin,
    Steps,
    block_variables,
    cant_count_across,
    is_tile_loop,
    steps_across_tiles,
    steps_of_one_run,
)
from taskc.passes.transports import transport_for

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
