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
that depend on what the kernel computes or writes elsewhere stay with it, and a note says so.

Where the consumers multiply asynchronously, their accumulators take most of the registers: the producer is a
warpgroup that gives up its own (`setmaxnreg`), and one of its workers issues bulk copies as before.

Where a block has several tiles, both roles run over them, and the producer is ahead across their ends, too
(taskc/passes/tile_loops.py); where steps can't be counted across tiles, the roles are those of one tile.

Two consumers take these tiles in turn (ping-pong): while one multiplies, the other one stores. They read one ring:

        role consumer:                                      role consumer_1:
            for tile in range(first_tile, 512, 264):             for tile in range(first_tile + 132, 512, 264):
                enter r[(tile - first_tile) // 132]                 ...
                for k in range(64): wait, work, release
                leave r[(tile - first_tile) // 132]
                move c ... = acc

`enter` waits until the consumer of the tile before has seen all of its steps. A mbarrier tells a step from the one
before it in the slot only, and each consumer skips the other's. So main loops follow one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taskc.analysis.widths import facts_of_names, move_width
from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.build import add, floor_divide, index, modulo, multiply, subtract
from taskc.ir.mapping import auto_map
from taskc.ir.nodes import Ring, Statement, Variable
from taskc.ir.rewrite import copy, index_leading, map_statements, walk
from taskc.ir.target import LEAST_REGISTERS, TARGETS, WARPGROUP, Target, is_asynchronous
from taskc.passes.arriving_operands import arriving
from taskc.passes.loads import Loads, Work, needed_scalars, split_loads
from taskc.passes.overlap import fetch_step, make_ring
from taskc.passes.tile_loops import (
    Steps,
    block_variables,
    cant_count_across,
    is_tile_loop,
    steps_across_tiles,
    steps_of_one_run,
)
from taskc.passes.transports import refusal_of


def specialize(kernel: ir.Kernel) -> ir.Kernel:
    pipelines = [n for n in walk(kernel.body) if isinstance(n, ir.Pipeline) and n.specialize]
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


MOST_REGISTERS = 240  # that setmaxnreg asks for


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
        """The roles, of one run of the statement or of all `tiles` that it is the body of."""
        self.found = True
        pipeline, loc = self.pipeline, self.pipeline.loc
        at = next(k for k, s in enumerate(statement.statements) if s is pipeline)
        before, after = statement.statements[:at], statement.statements[at + 1 :]
        loads = split_loads(pipeline, (self.kernel.body,), before)
        self.notes += loads.notes("is not loaded by the producer warp")
        refusal = self.refusal(before)
        if not loads.moves:
            refusal = "there is nothing that a producer warp could load"
        if refusal is not None:
            self.notes.append((refusal, loc))
            plain = replace(pipeline, specialize=False)
            body = replace(statement, statements=(*before, plain, *after))
            return body if tiles is None else replace(tiles, body=body)
        around, steps = tiles, steps_of_one_run(pipeline)
        if tiles is not None:
            refusal = cant_count_across(pipeline, tiles, before)
            if refusal is None:
                around, steps = None, steps_across_tiles(pipeline, tiles, before)
            else:
                text = f"this pipeline does not run on across tiles: {refusal}"
                self.notes.append((text, loc))
        transport = self.transport(loads)
        consumers = self.consumers(steps, transport)
        workers = self.kernel.workers * consumers
        given, taken = self.registers(transport, workers)
        self.helpers = WARPGROUP if given else self.target.warp
        ring, produce, consume = self.loops(loads, steps, transport)
        rings = [ring]
        operand = transport == "tma" and arriving(
            before, after, steps.loop, self.kernel, self.target, self.by_producer, self.notes,
            alone=consumers == 1,
        )  # fmt: skip
        if operand:
            rings.append(operand.ring)
            *at_run, loop = consume
            consume = (*operand.setup, *at_run, *operand.freed, loop)
            produce = (*operand.setup, *produce, *operand.fill)
            after = operand.after
        if steps.loop is not None and consumers > 1:
            turn = floor_divide(subtract(steps.loop.variable, steps.loop.start), steps.loop.step)
            *at_run, loop = consume
            enter, leave = (ir.RingStep(op, ring, turn, loc=loc) for op in ("enter", "leave"))
            consume = (*at_run, enter, loop, leave)
        producer: Statement = ir.Sequence(
            (*needed_scalars((*before, *after), produce), *produce), loc=loc
        )
        consumer: Statement = ir.Sequence((*before, *consume, *after), loc=loc)
        bodies: list[Statement] = [producer] + [consumer] * consumers
        if steps.loop is not None:
            bodies = _over_tiles(steps.loop, bodies)
        loads_of_all, *works = [copy(body) for body in bodies]
        roles = [ir.Role("producer", workers, self.helpers, _with_registers(loads_of_all, given))]
        for number, work in enumerate(works):
            name = f"consumer_{number}" if number else "consumer"
            first, task = number * self.kernel.workers, _with_registers(work, taken)
            roles.append(ir.Role(name, first, self.kernel.workers, task))
        self.helpers += workers - self.kernel.workers
        allocations = [ir.Allocate(t, loc=t.loc) for ring in rings for t in ring.tensors]
        cut = ir.Sequence(
            (*steps.setup, *allocations, ir.Roles(tuple(roles), loc=loc)), loc=statement.loc
        )
        return cut if around is None else replace(around, body=cut)

    def loops(
        self, loads: Loads, steps: Steps, transport: str
    ) -> tuple[Ring, tuple[Statement, ...], tuple[Statement, ...]]:
        """The ring, the loop that fills it and the one that uses it."""
        pipeline, loc = self.pipeline, self.pipeline.loc
        loads = replace(loads, moves=tuple(self.by_producer(move) for move in loads.moves))
        ring, slots = make_ring(loads, pipeline.stages, transport)

        def loop(k: Variable, body: Sequence[Statement]) -> tuple[Statement, ...]:
            whole = ir.For(k, index(0), steps.count, 1, ir.Sequence(tuple(body)), loc=loc)
            return *steps.at_run, whole

        k = Variable("k", loc=loc)
        number, place = steps.number(k), steps.place(k)
        produce = loop(
            k,
            [
                ir.RingStep("acquire", ring, number, loc=loc),
                *fetch_step(loads, slots, number, place, pipeline.stages, transport),
                ir.RingStep("commit", ring, number, loc=loc),
            ],
        )
        k = Variable("k", loc=loc)
        number = steps.number(k)
        work = ir.Sequence(
            (ir.Let(pipeline.variable, multiply(k, pipeline.by), loc=loc), *loads.work), loc=loc
        )
        consume = loop(
            k,
            [
                ir.RingStep("wait", ring, number, loc=loc),
                index_leading(work, slots, modulo(number, pipeline.stages)),
                ir.RingStep("release", ring, number, loc=loc),
            ],
        )
        return ring, produce, consume

    def registers(self, transport: str, workers: int) -> tuple[int, int]:
        """What each worker of the producer keeps, and one of the consumers gets; 0: all stays as it is.

        Registers are dealt out evenly at first, in steps of 8, and by warpgroups.
        """
        group = WARPGROUP
        multiplies = any(
            isinstance(node, ir.Mma) and is_asynchronous(node.how)
            for node in walk(self.kernel.body)
        )
        even = self.target.registers // (workers + group) // 8 * 8
        if not multiplies or transport != "tma" or workers % group:
            return 0, 0
        if workers + group > self.target.max_workers:
            return 0, 0
        if not LEAST_REGISTERS < even <= MOST_REGISTERS:
            return 0, 0
        more = (even - LEAST_REGISTERS) * group // workers // 8 * 8
        return LEAST_REGISTERS, even + more

    def consumers(self, steps: Steps, transport: str) -> int:
        """How many there are: more than one where tiles follow one another, and mbarriers count."""
        count = self.pipeline.consumers
        if count == 1:
            return 1
        reason = None
        if steps.loop is None:
            reason = "its blocks have one tile each, or don't count their steps"
        elif transport != "tma" or self.kernel.workers % WARPGROUP:
            reason = "they are warpgroups, and their loads bulk copies"
        elif count > 2:
            reason = "two take turns"
        elif self.kernel.workers * count + WARPGROUP > self.target.max_workers:
            reason = f"{self.target.name} has not so many workers in a block"
        if reason is not None:
            text = f"one consumer instead of {count}: {reason}"
            self.notes.append((text, self.pipeline.loc))
        return count if reason is None else 1

    def refusal(self, before: Sequence[Statement]) -> str | None:
        """Why there is no producer, or it can't count the steps by itself; None where it can."""
        if self.kernel.workers + self.target.warp > self.target.max_workers:
            return f"{self.target.name} has no workers left in a block for a producer warp"
        extent = ir.Let(Variable("extent"), self.pipeline.extent)
        needed = (extent, *needed_scalars(before, (extent,)))
        reason = Work.of((self.kernel.body,)).needed_by(needed)
        return None if reason is None else f"a producer warp can't count the steps: that {reason}"

    def transport(self, loads: Loads) -> str:
        """Bulk copies where the loads are boxes, else plain loads and stores by the producer's lanes."""
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
        width = move_width(move, self.target, facts_of_names(self.kernel.body))
        return replace(move, by=auto_map(move.shape, workers=self.helpers, vector=width))


def _over_tiles(loop: ir.For, bodies: list[Statement]) -> list[Statement]:
    """The loops of the producer, over all tiles of a block, and of consumers, which take them in turn."""
    producer, *consumers = bodies
    step = len(consumers) * loop.step
    loops = [replace(loop, body=producer)] + [
        replace(loop, start=add(loop.start, number * loop.step), step=step, body=body)
        for number, body in enumerate(consumers)
    ]
    return [ir.Sequence((one,), loc=one.loc) for one in loops]


def _with_registers(body: Statement, count: int) -> Statement:
    if not count:
        return body
    return ir.Sequence((ir.Do("setmaxnreg", (index(count),), loc=body.loc), body), loc=body.loc)
