"""Lets the loads of later steps of a pipelined loop overlap the work of this one.

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

How the block values travel:

    registers   the load of step k + s - 1 goes to a tile before the work of step k, and from there to its
                slot after it: with two stages, the classic double buffer
    cp.async    straight to shared memory, by each worker; needs a plain access of 4 to 16 aligned bytes
    tma         a whole box at once, issued by one worker, counted by an mbarrier

A block value takes part when its load depends on nothing that the body computes but uniform scalars, and
they on no memory that it writes. With
`specialize` the loads become the body of a producer warp of their own (taskc/passes/specialize.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.build import add, ceiling_divide, index, less, modulo, multiply
from taskc.ir.nodes import GLOBAL, TILE, Expression, Ring, Statement, Tensor, Variable
from taskc.ir.rewrite import copy, index_leading, map_statements, walk
from taskc.ir.target import TARGETS, Target
from taskc.passes.transports import transport_for


def overlap(kernel: ir.Kernel) -> ir.Kernel:
    notes: list[tuple[str, Location]] = []
    target = TARGETS[kernel.target]

    def visit(statement: Statement) -> Statement:
        if isinstance(statement, ir.Each):
            return statement
        statement = map_statements(statement, visit)
        if isinstance(statement, ir.Pipeline):
            return pipelined(statement, kernel, target, notes)
        return statement

    body = visit(kernel.body)
    return replace(kernel, body=body, stage="pipelined", notes=(*kernel.notes, *notes))


@dataclass(frozen=True, slots=True)
class Loads:
    """The part of a pipelined body that fetches, and what is left of it.

    `scalars` are the uniform Lets that the moves need; they stay in the work too.
    """

    tensors: tuple[Tensor, ...]
    scalars: tuple[ir.Let, ...]
    moves: tuple[ir.Move, ...]
    work: tuple[Statement, ...]


def split_loads(
    pipeline: ir.Pipeline,
    notes: list[tuple[str, Location]],
    beside: Sequence[Statement] = (),
    before: Sequence[Statement] = (),
    refused: str = "is not pipelined",
) -> Loads:
    """The block values at the top of the body whose loads don't depend on the work.

    Where loads run beside more than the loop, those are the statements `beside`; of them, the
    scalars that stand `before` the loop have to be computed by the loads themselves. Of a load that
    stays where it is, a note says that it is `refused`, and why.
    """
    body = pipeline.body
    statements = body.statements if isinstance(body, ir.Sequence) else (body,)
    work_around = Work.of((body, *beside))
    known = {s.variable: s for s in before if isinstance(s, ir.Let)}
    scalars: dict[Variable, ir.Let] = {}
    tensors: list[Tensor] = []
    moves: list[ir.Move] = []
    work: list[Statement] = []
    needed: set[Variable] = set()
    own = {s.tensor for s in statements if isinstance(s, ir.Allocate) and s.tensor.constant}
    for statement in statements:
        match statement:
            case ir.Allocate(tensor=tensor) if tensor in own:
                continue
            case ir.Move(tensor=tensor) if tensor in own:
                lets = _closure(_free_variables(statement), {**known, **scalars})
                reason = work_around.needed_by((statement, *lets))
                if reason is None:
                    tensors.append(tensor)
                    moves.append(statement)
                    needed |= _free_variables(statement)
                else:
                    notes.append((f"`{tensor.name}` {refused}: its load {reason}", statement.loc))
                    work += [ir.Allocate(tensor, loc=statement.loc), statement]
                continue
            case ir.Let():
                scalars[statement.variable] = statement
        work.append(statement)
    kept = _closure(needed, scalars)
    return Loads(tuple(tensors), kept, tuple(moves), tuple(work))


@dataclass(frozen=True, slots=True)
class Work:
    """What the statements that loads overlap write, and what those other than Lets compute."""

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
        """Why these can't run ahead of the work; None where they can."""
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
    """The Lets that `needed` goes back to, in program order."""
    for variable in reversed(scalars):
        if variable in needed:
            needed |= _free_variables(scalars[variable])
    return tuple(let for variable, let in scalars.items() if variable in needed)


def needed_scalars(before: Sequence[Statement], users: Sequence[Statement]) -> tuple[ir.Let, ...]:
    """Those Lets of `before` that the users go back to."""
    needed = {v for user in users for v in _free_variables(user)}
    return _closure(needed, {s.variable: s for s in before if isinstance(s, ir.Let)})


def pipelined(
    pipeline: ir.Pipeline,
    kernel: ir.Kernel,
    target: Target,
    notes: list[tuple[str, Location]],
) -> Statement:
    stages, loc = pipeline.stages, pipeline.loc
    loads = split_loads(pipeline, notes)
    if stages == 1 or not loads.moves:
        return ir.For(
            pipeline.variable, index(0), pipeline.extent, pipeline.by, pipeline.body, loc=loc
        )
    extent: list[Statement] = []
    if any(isinstance(node, ir.Read) for node in walk(pipeline.extent)):
        # The loop asks several times, and its work may change what is read.
        length = Variable("extent", loc=loc)
        extent.append(ir.Let(length, pipeline.extent, loc=loc))
        pipeline = replace(pipeline, extent=length)
    transport = transport_for(pipeline, loads.moves, kernel, target, notes)
    ring, slots = make_ring(loads, stages, transport)
    count = ceiling_divide(pipeline.extent, pipeline.by)

    def step(operation: str, k: Expression) -> Statement:
        return ir.RingStep(operation, ring, k, loc=loc)

    def fetch(k: Expression) -> list[Statement]:
        return fetch_step(pipeline, loads, slots, k, stages, transport)

    def issue(k: Expression) -> list[Statement]:
        """The copies of step k. A step past the end is empty; cp.async counts it all the same."""
        within = ir.If(less(k, count), ir.Sequence(tuple(fetch(k))), loc=loc)
        if transport == "cp.async":
            return [step("acquire", k), within, step("commit", k)]
        body = (step("acquire", k), *fetch(k), step("commit", k))
        return [ir.If(less(k, count), ir.Sequence(body), loc=loc)]

    first, k = Variable("k", loc=loc), Variable("k", loc=loc)
    prologue = ir.For(
        first, index(0), index(stages - 1), 1, ir.Sequence(tuple(issue(first))), "unroll", loc=loc
    )
    work = index_leading(
        ir.Sequence(
            (ir.Let(pipeline.variable, multiply(k, pipeline.by), loc=loc), *loads.work), loc=loc
        ),
        slots,
        modulo(k, stages),
    )
    later = add(k, stages - 1)
    if transport == "registers":
        load, deliver = _through_registers(pipeline, loads, slots, later, stages)
        condition = less(later, count)
        allocations = [ir.Allocate(s.tensor) for s in load]
        body: list[Statement] = [
            step("wait", k),
            *allocations,
            ir.If(
                condition, ir.Sequence(tuple(_with_scalars(pipeline, loads, later, load))), loc=loc
            ),
            work,
            step("release", k),
            ir.If(
                condition,
                ir.Sequence((step("acquire", later), *deliver, step("commit", later))),
                loc=loc,
            ),
        ]
    else:
        body = [step("wait", k), *issue(later), work, step("release", k)]
    steady = ir.For(k, index(0), count, 1, ir.Sequence(tuple(body)), loc=loc)
    allocate = [ir.Allocate(tensor, loc=tensor.loc) for tensor in ring.tensors]
    return ir.Sequence((*extent, *allocate, prologue, steady), loc=loc)


def make_ring(loads: Loads, stages: int, transport: str) -> tuple[Ring, dict[Tensor, Tensor]]:
    slots = {
        tensor: replace(tensor, shape=(stages, *tensor.shape), constant=False)
        for tensor in loads.tensors
    }
    name = "_".join(tensor.name for tensor in loads.tensors)
    return Ring(name, tuple(slots.values()), stages, transport), slots


def _with_scalars(
    pipeline: ir.Pipeline, loads: Loads, k: Expression, moves: list[ir.Move]
) -> list[Statement]:
    """The moves for step k, behind their own copies of the scalars that they need."""
    values = {pipeline.variable: multiply(k, pipeline.by)}
    block = copy(ir.Sequence((*loads.scalars, *moves)), values)
    assert isinstance(block, ir.Sequence)
    return list(block.statements)


def fetch_step(
    pipeline: ir.Pipeline,
    loads: Loads,
    slots: dict[Tensor, Tensor],
    k: Expression,
    stages: int,
    transport: str,
) -> list[Statement]:
    how = None if transport == "registers" else transport
    moves = [replace(move, how=how) for move in loads.moves]
    statements = _with_scalars(pipeline, loads, k, moves)
    return [index_leading(statement, slots, modulo(k, stages)) for statement in statements]


def _through_registers(
    pipeline: ir.Pipeline,
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
