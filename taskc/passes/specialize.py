"""Warp specialization: a pipelined loop's loads get a warp of their own.

    tile acc ...
    pipeline p in 512 by 8 stages 4 specialize:
        block sa: ...; move sa ... = a[row + i, p + q]
        work(sa)
    move c ... = acc
->
    roles:
        producer (1 warp):                          consumer (the block's workers):
            for k in range(64):                         tile acc ...
                acquire(k)                              for k in range(64):
                move sa[k % 4, i, q] ... = ...              wait(k)
                commit(k)                                   work(sa[k % 4])
                                                            release(k)
                                                        move c ... = acc

The producer gets the loads with the uniform arithmetic that they need; the consumer is all the rest. Loads
that depend on values that the kernel computes or writes elsewhere stay in the consumer, and a note says so.

Loads by bulk copies that different asynchronous products read have a ring each: the first product waits only
for its own, and its slot is filled again while the second one still reads.

Loads before the pipeline, once for each tile, get a ring of one slot, which the producer fills anew for each tile,
if bulk copies can do them and the block has enough memory.

If the consumers multiply asynchronously, their accumulators take most of the registers: the producer is a
warpgroup that gives up its own (`setmaxnreg`), and one of its workers issues bulk copies as before.

If a block has several tiles, both roles loop over them, and the producer runs ahead across their ends, too
(taskc/passes/overlap.py); if steps can't be counted across tiles, the roles are those of one tile.

Two consumers may take these tiles in turn (ping-pong): while one multiplies, the other one stores. They share a ring:

        role consumer:                                      role consumer_1:
            for tile in range(first_tile, 512, 264):             for tile in range(first_tile + 132, 512, 264):
                enter r[(tile - first_tile) // 132]                 ...
                for k in range(64): wait, work, release
                leave r[(tile - first_tile) // 132]
                move c ... = acc

`enter` waits until the consumer of the previous tile has seen all of its steps. A mbarrier distinguishes a step only
from the previous one in the slot, and each consumer skips the other's. So main loops follow one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taskc.analysis.coalescing import facts_of_names, move_width
from taskc.dataclass import dataclass
from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.build import index, modulo, multiply
from taskc.ir.extents import size_in_bytes
from taskc.ir.mapping import auto_map
from taskc.ir.nodes import SHARED, Expression, Ring, Statement, Tensor, Variable
from taskc.ir.rewrite import all_below, copy, index_leading, map_statements, tensors_of, walk
from taskc.ir.target import LEAST_REGISTERS, TARGETS, WARPGROUP, Target, is_asynchronous
from taskc.passes.arriving_operands import arriving
from taskc.passes.await_products import is_product
from taskc.passes.overlap import (
    Loads,
    StepOrigin,
    Steps,
    Work,
    block_variables,
    cant_count_across,
    fetch_step,
    is_tile_loop,
    make_ring,
    needed_scalars,
    split_loads,
    steps_across_tiles,
    steps_as_tiles_come,
    steps_of_one_run,
)
from taskc.passes.transports import refusal_of


def specialize(kernel: ir.Kernel) -> ir.Kernel:
    pipelines = [n for n in all_below(kernel.body, ir.Pipeline) if n.specialize]
    if not pipelines or not TARGETS[kernel.target].transports:
        return kernel
    if len(pipelines) > 1:
        raise CompileError(
            "only one pipeline of a kernel can have a producer warp",
            pipelines[1].loc,
            notes=(("the first one is here", pipelines[0].loc),),
        )
    cutter = _Cutter(kernel, pipelines[0], TARGETS[kernel.target])
    body = cutter.visit(kernel.body)
    if not cutter.found:
        raise CompileError(
            "a pipeline with a producer warp has to stand at the top of the kernel or of its tiles",
            pipelines[0].loc,
        )
    notes = kernel.notes + tuple(cutter.notes)
    return replace(kernel, body=body, helpers=cutter.helpers, notes=notes)


MOST_REGISTERS = 240  # requested by setmaxnreg
BESIDE_BYTES = 1024  # for mbarriers and the alignment of slots


TURN = "enter", "leave"


@dataclass(frozen=True, slots=True)
class _Tile:
    """around   the statements around the main loop, whose scalars the producer may need, too
    produce  statements that fill the rings
    consume  the consumers' statements
    """

    rings: list[Ring]
    around: tuple[Statement, ...]
    produce: list[Statement]
    consume: list[Statement]


class _Cutter:
    def __init__(self, kernel: ir.Kernel, pipeline: ir.Pipeline, target: Target) -> None:
        self.kernel = kernel
        self.pipeline = pipeline
        self.target = target
        self.blocks = block_variables(kernel.body)
        self.notes: list[tuple[str, Location]] = []
        self.helpers = 0
        self.found = False

    def visit(self, statement: Statement) -> Statement:
        match statement:
            case ir.For(body=ir.Sequence() as body) if is_tile_loop(statement, self.blocks):
                if any(s is self.pipeline for s in body.statements):
                    return self.cut(body, statement)
            case ir.Sequence() if any(s is self.pipeline for s in statement.statements):
                return self.cut(statement, None)
            case ir.Pipeline() if statement is self.pipeline:  # there is nothing else
                return self.cut(ir.Sequence((statement,), loc=statement.loc), None)
            case ir.Sequence() | ir.Grid():
                return map_statements(statement, self.visit)
        return statement

    def cut(self, statement: ir.Sequence, tiles: ir.For | None) -> Statement:
        """The roles, for one execution of the statement or for all `tiles` that it is the body of."""
        self.found = True
        at = next(k for k, s in enumerate(statement.statements) if s is self.pipeline)
        before, after = statement.statements[:at], statement.statements[at + 1 :]
        loads = split_loads(self.pipeline, (self.kernel.body,), before)
        self.notes += loads.notes("is not loaded by the producer warp")
        refusal = self.refusal(before)
        if not loads.moves:
            refusal = "there is nothing that a producer warp could load"
        if refusal is not None:
            self.notes.append((refusal, self.pipeline.loc))
            plain = replace(self.pipeline, specialize=False)
            body = replace(statement, statements=(*before, plain, *after))
            return body if tiles is None else replace(tiles, body=body)
        steps = self.steps(before, tiles)
        transport = self.transport(loads)
        consumers = self.consumers(steps, transport)
        registers = self.registers(transport, self.kernel.workers * consumers)
        self.helpers = WARPGROUP if registers[0] else self.target.warp
        tile = self.tile(before, after, loads, steps, transport, alone=consumers == 1)
        return replace(self.roles(tile, steps, consumers, registers), loc=statement.loc)

    def steps(self, before: Sequence[Statement], tiles: ir.For | None) -> Steps:
        if tiles is None:
            return steps_of_one_run(self.pipeline)
        if cant_count_across(self.pipeline, tiles, before) is None:
            return steps_across_tiles(self.pipeline, tiles, before)
        return steps_as_tiles_come(self.pipeline, tiles)

    def tile(
        self,
        before: Sequence[Statement],
        after: Sequence[Statement],
        loads: Loads,
        steps: Steps,
        transport: str,
        *,
        alone: bool,
    ) -> _Tile:
        """A tile's rings, and both sides of them; `alone` if there is one consumer."""
        rings, produce, loop = self.loops(loads, steps, transport)
        operand = once = None
        if transport == "tma":
            operand = arriving(
                *(before, after, steps.loop, self.kernel, self.target),
                *(self.by_producer, self.notes),
                alone=alone,
            )
            once = self.loaded_once(before, loads) if alone else None
        if not alone:
            turn = [ir.RingStep(op, rings[0], steps.tile, loc=self.pipeline.loc) for op in TURN]
            loop = _around_loop(loop, before=turn[:1], behind=turn[1:])
        if operand is not None:
            rings = [*rings, operand.ring]
            loop = [*operand.setup, *_around_loop(loop, before=operand.freed)]
            produce = [*operand.setup, *produce, *operand.fill]
            after = operand.after
        tile = _Tile(rings, (*before, *after), produce, [*before, *loop, *after])
        return tile if once is None else self.with_loads(once, tile, steps)

    def roles(
        self, tile: _Tile, steps: Steps, consumers: int, registers: tuple[int, int]
    ) -> ir.Sequence:
        """The producer and its consumers, over all tiles of a block."""
        loc, workers = self.pipeline.loc, self.kernel.workers

        def role(
            name: str, first: int, count: int, own: Steps, work: Sequence[Statement]
        ) -> ir.Role:
            body = copy(own.of_block(ir.Sequence(tuple(work), loc=loc)))
            kept = registers[0] if name == "producer" else registers[1]
            return ir.Role(name, first, count, _with_registers(body, kept))

        scalars = needed_scalars(tile.around, tile.produce)
        roles = [
            role("producer", workers * consumers, self.helpers, steps, (*scalars, *tile.produce))
        ]
        for number in range(consumers):
            name = f"consumer_{number}" if number else "consumer"
            own = steps.in_turn(number, consumers)
            roles.append(role(name, number * workers, workers, own, tile.consume))
        self.helpers += workers * (consumers - 1)
        allocations = [ir.Allocate(t, loc=t.loc) for ring in tile.rings for t in ring.tensors]
        split = ir.Roles(tuple(roles), loc=loc)
        return ir.Sequence((*steps.setup, *allocations, split), loc=loc)

    def loops(
        self, loads: Loads, steps: Steps, transport: str
    ) -> tuple[list[Ring], list[Statement], list[Statement]]:
        """The rings, the loop that fills them and the one that uses them."""
        pipeline, loc, stages = self.pipeline, self.pipeline.loc, self.pipeline.stages
        loads = replace(loads, moves=tuple(self.by_producer(move) for move in loads.moves))
        parts = _by_product(loads) if transport == "tma" else [loads]
        rings = [make_ring(part, stages, transport) for part in parts]

        def loop(k: Variable, body: Sequence[Statement]) -> list[Statement]:
            whole = ir.For(k, index(0), steps.count, 1, ir.Sequence(tuple(body)), loc=loc)
            return steps.of_run(whole)

        k = Variable("k", loc=loc)
        number, place = steps.number(k), steps.place(k)
        fill: list[Statement] = []
        for part, (ring, slots) in zip(parts, rings, strict=True):
            fetch = fetch_step(part, slots, number, place, stages, transport)
            fill += _filling(fetch, ring, number, loc)
        produce = loop(k, fill)
        k = Variable("k", loc=loc)
        number = steps.number(k)
        position = ir.Let(pipeline.variable, multiply(k, pipeline.by), loc=loc)
        slots = {tensor: slot for _, own in rings for tensor, slot in own.items()}
        work = index_leading(
            ir.Sequence((position, *loads.work), loc=loc), slots, modulo(number, stages)
        )
        assert isinstance(work, ir.Sequence)
        use: Sequence[Statement] = work.statements if len(rings) > 1 else (work,)
        for ring, _ in rings:
            use = _using(use, ring, number)
        if pipeline.turns == "products":
            use = self.in_turn(use)
        consume = loop(k, use)
        return [ring for ring, _ in rings], produce, consume

    def loaded_once(self, before: Sequence[Statement], loads: Loads) -> Loads | None:
        """The loads before the pipeline that the producer can do; None if there are none, or no memory for them."""
        first = replace(self.pipeline, body=ir.Sequence(tuple(before)))
        split = split_loads(first, (self.kernel.body,))
        moves = tuple(
            self.by_producer(move)
            for move in split.moves
            if refusal_of("tma", (move,), self.target, self.kernel) is None
        )
        stages = dict.fromkeys(loads.tensors, self.pipeline.stages)
        allocated = {n.tensor for n in walk(self.kernel.body) if isinstance(n, ir.Allocate)}
        nbytes = sum(
            size_in_bytes(tensor) * stages.get(tensor, 1)
            for tensor in allocated
            if tensor.scope == SHARED
        )
        if not moves or nbytes > self.target.shared_bytes - BESIDE_BYTES:
            return None
        tensors = tuple(move.tensor for move in moves)
        return replace(split, tensors=tensors, moves=moves, scalars=())

    def with_loads(self, loads: Loads, tile: _Tile, steps: Steps) -> _Tile:
        """The tile, with a ring of one slot for the values it loads once."""
        ring, slots = make_ring(loads, 1, "tma")
        number = steps.tile
        fetch = fetch_step(loads, slots, number, StepOrigin((), {}), 1, "tma")
        consuming = [
            index_leading(s, slots, index(0))
            for s in tile.consume
            if not (isinstance(s, ir.Allocate | ir.Move) and s.tensor in slots)
        ]
        consume = _using(consuming, ring, number)
        if steps.loop is None:  # nothing comes into the slot afterwards
            consume = [s for s in consume if s != ir.RingStep("release", ring, number)]
        produce = [*_filling(fetch, ring, number, loads.moves[0].loc), *tile.produce]
        return replace(tile, rings=[ring, *tile.rings], produce=produce, consume=consume)

    def in_turn(self, statements: Sequence[Statement]) -> Sequence[Statement]:
        """The statements of a step, whose products warpgroups issue one after another."""
        products = [k for k, s in enumerate(statements) if is_product(s)]
        refusal = None
        if not products:
            refusal = "no products run beside work of a step"
        elif self.kernel.workers % WARPGROUP or self.kernel.workers == WARPGROUP:
            refusal = "there is one of them"
        if refusal is not None:
            self.notes.append((f"warpgroups take no turns: {refusal}", self.pipeline.loc))
            return statements
        first, end, loc = products[0], products[-1] + 1, self.pipeline.loc
        return [
            *statements[:first],
            ir.Do("schedule.take_turn", (), loc=loc),
            *statements[first:end],
            ir.Do("schedule.give_turn", (), loc=loc),
            *statements[end:],
        ]

    def registers(self, transport: str, workers: int) -> tuple[int, int]:
        """Registers of each worker of the producer and of the consumers; 0 if they don't change.

        Registers are dealt out evenly at first, in steps of 8, and by warpgroups.
        """
        group = WARPGROUP
        multiplies = any(
            isinstance(node, ir.Mma) and is_asynchronous(node.how)
            for node in walk(self.kernel.body)
        )
        # A producer for several consumers has the counts of their rings, too.
        least = LEAST_REGISTERS + 16 if workers > self.kernel.workers else LEAST_REGISTERS
        even = self.target.registers // (workers + group) // 8 * 8
        if not multiplies or transport != "tma" or workers % group:
            return 0, 0
        if workers + group > self.target.max_workers:
            return 0, 0
        if not least < even <= MOST_REGISTERS:
            return 0, 0
        extra = (even - least) * group // workers // 8 * 8
        return least, even + extra

    def consumers(self, steps: Steps, transport: str) -> int:
        """The number of consumers: more than one if tiles follow one another, and mbarriers count."""
        if self.pipeline.turns != "tiles":
            return 1
        count, reason = 2, None
        if steps.loop is None or steps.cell is not None:
            reason = "blocks have one tile each, or their tiles have different numbers of steps"
        elif transport != "tma" or self.kernel.workers % WARPGROUP:
            reason = "they are warpgroups, and their loads bulk copies"
        elif self.kernel.workers * count + WARPGROUP > self.target.max_workers:
            reason = f"{self.target.name} has not so many workers in a block"
        if reason is not None:
            text = f"one consumer instead of {count}: {reason}"
            self.notes.append((text, self.pipeline.loc))
        return count if reason is None else 1

    def refusal(self, before: Sequence[Statement]) -> str | None:
        """The reason why there is no producer, or why it can't count the steps by itself; None if it can."""
        if self.kernel.workers + self.target.warp > self.target.max_workers:
            return f"{self.target.name} has no workers left in a block for a producer warp"
        extent = ir.Let(Variable("extent"), self.pipeline.extent)
        needed = (extent, *needed_scalars(before, (extent,)))
        reason = Work.of((self.kernel.body,)).needed_by(needed)
        return None if reason is None else f"a producer warp can't count the steps: that {reason}"

    def transport(self, loads: Loads) -> str:
        """The transport: bulk copies if the loads are boxes, else plain loads and stores by the producer's lanes."""
        refusal = refusal_of("tma", loads.moves, self.target, self.kernel)
        if refusal is None and self.pipeline.transport in (None, "tma"):
            return "tma"
        if self.pipeline.transport not in (None, "registers"):
            why = refusal or "its copies can't be counted by an mbarrier"
            raise CompileError(
                f"a producer warp can't load by {self.pipeline.transport}: {why}", self.pipeline.loc
            )
        return "registers"

    def by_producer(self, move: ir.Move) -> ir.Move:
        width = move_width(move, self.target, facts_of_names(self.kernel))
        return replace(move, by=auto_map(move.shape, workers=self.helpers, vector=width))


def _around_loop(
    run: Sequence[Statement], before: Sequence[Statement] = (), behind: Sequence[Statement] = ()
) -> list[Statement]:
    """The statements of a run, with others around its loop."""
    at = next(k for k, s in enumerate(run) if isinstance(s, ir.For))
    return [*run[:at], *before, run[at], *behind, *run[at + 1 :]]


def _with_registers(body: Statement, count: int) -> Statement:
    if not count:
        return body
    return ir.Sequence((ir.Do("setmaxnreg", (index(count),), loc=body.loc), body), loc=body.loc)


def _names(statement: Statement, tensors: Sequence[Tensor]) -> bool:
    return any(tensor in tensors for node in walk(statement) for tensor in tensors_of(node))


def _filling(
    fetch: Sequence[Statement], ring: Ring, number: Expression, loc: Location
) -> list[Statement]:
    return [
        ir.RingStep("acquire", ring, number, loc=loc),
        *fetch,
        ir.RingStep("commit", ring, number, loc=loc),
    ]


def _using(statements: Sequence[Statement], ring: Ring, number: Expression) -> list[Statement]:
    """The statements, with a wait before the first that uses a step of the ring, and a release after the last."""
    users = [at for at, s in enumerate(statements) if _names(s, ring.tensors)] or [0]
    first, end = users[0], users[-1] + 1
    loc = ring.tensors[0].loc
    return [
        *statements[:first],
        ir.RingStep("wait", ring, number, loc=loc),
        *statements[first:end],
        ir.RingStep("release", ring, number, loc=loc),
        *statements[end:],
    ]


def _by_product(loads: Loads) -> list[Loads]:
    """The loads, split by the asynchronous product that reads them first, if there is other work in a step.

    Where there is none, products are all under way at one time (taskc/passes/await_products.py).
    """
    products = [s for s in loads.work if is_product(s)]
    if all(isinstance(s, ir.Let) or s in products for s in loads.work):
        return [loads]
    readers = [next((s for s in loads.work if _names(s, (t,))), None) for t in loads.tensors]
    if not all(reader in products for reader in readers):
        return [loads]
    parts = []
    for product in products:
        tensors = tuple(t for t, s in zip(loads.tensors, readers, strict=True) if s is product)
        if tensors:
            moves = tuple(move for move in loads.moves if move.tensor in tensors)
            scalars = needed_scalars(loads.scalars, moves)
            parts.append(replace(loads, tensors=tensors, moves=moves, scalars=scalars))
    return parts
