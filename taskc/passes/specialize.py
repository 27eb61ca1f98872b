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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.build import ceiling_divide, index, modulo, multiply
from taskc.ir.mapping import auto_map
from taskc.ir.nodes import Statement, Variable
from taskc.ir.rewrite import copy, index_leading, map_statements, walk
from taskc.ir.target import TARGETS, Target
from taskc.passes.overlap import Loads, Work, fetch_step, make_ring, needed_scalars, split_loads
from taskc.passes.transports import refusal_of
from taskc.passes.widths import known_multiples, move_width


def specialize(kernel: ir.Kernel) -> ir.Kernel:
    pipelines = [n for n in walk(kernel.body) if isinstance(n, ir.Pipeline) and n.specialize]
    if not pipelines:
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


class _Cutter:
    def __init__(self, kernel: ir.Kernel, pipeline: ir.Pipeline, target: Target) -> None:
        self.kernel = kernel
        self.pipeline = pipeline
        self.target = target
        self.notes: list[tuple[str, Location]] = []
        self.helpers = 0
        self.found = False

    def visit(self, statement: Statement) -> Statement:
        if isinstance(statement, ir.Sequence) and any(
            s is self.pipeline for s in statement.statements
        ):
            self.found = True
            return self.cut(statement)
        if isinstance(statement, ir.Sequence | ir.Grid):
            return map_statements(statement, self.visit)
        return statement

    def cut(self, statement: ir.Sequence) -> Statement:
        pipeline, loc = self.pipeline, self.pipeline.loc
        at = next(k for k, s in enumerate(statement.statements) if s is pipeline)
        before, after = statement.statements[:at], statement.statements[at + 1 :]
        refused = "is not loaded by the producer warp"
        loads = split_loads(pipeline, self.notes, (self.kernel.body,), before, refused)
        refusal = self.refusal(before)
        if not loads.moves:
            refusal = "there is nothing that a producer warp could load"
        if refusal is not None:
            self.notes.append((refusal, loc))
            plain = replace(pipeline, specialize=False)
            return replace(statement, statements=(*before, plain, *after))
        transport = self.transport(loads)
        self.helpers = self.target.warp
        loads = replace(loads, moves=tuple(self.by_producer(move) for move in loads.moves))
        ring, slots = make_ring(loads, pipeline.stages, transport)
        count = ceiling_divide(pipeline.extent, pipeline.by)

        def loop(k: Variable, body: Sequence[Statement]) -> Statement:
            return ir.For(k, index(0), count, 1, ir.Sequence(tuple(body)), loc=loc)

        k = Variable("k", loc=loc)
        produce = loop(
            k,
            [
                ir.RingStep("acquire", ring, k, loc=loc),
                *fetch_step(pipeline, loads, slots, k, pipeline.stages, transport),
                ir.RingStep("commit", ring, k, loc=loc),
            ],
        )
        k = Variable("k", loc=loc)
        work = ir.Sequence(
            (ir.Let(pipeline.variable, multiply(k, pipeline.by), loc=loc), *loads.work), loc=loc
        )
        consume = loop(
            k,
            [
                ir.RingStep("wait", ring, k, loc=loc),
                index_leading(work, slots, modulo(k, pipeline.stages)),
                ir.RingStep("release", ring, k, loc=loc),
            ],
        )
        scalars = needed_scalars(before, (produce,))
        producer = copy(ir.Sequence((*scalars, produce), loc=loc))
        consumer = ir.Sequence((*before, consume, *after), loc=loc)
        workers = self.kernel.workers
        roles = ir.Roles(
            (
                ir.Role("producer", workers, self.target.warp, producer),
                ir.Role("consumer", 0, workers, consumer),
            ),
            loc=loc,
        )
        allocations = [ir.Allocate(tensor, loc=tensor.loc) for tensor in ring.tensors]
        return ir.Sequence((*allocations, roles), loc=statement.loc)

    def refusal(self, before: Sequence[Statement]) -> str | None:
        """Why a producer can't count the steps by itself; None where it can."""
        extent = ir.Let(Variable("extent"), self.pipeline.extent)
        needed = (extent, *needed_scalars(before, (extent,)))
        reason = Work.of((self.kernel.body,)).needed_by(needed)
        return None if reason is None else f"a producer warp can't count the steps: that {reason}"

    def transport(self, loads: Loads) -> str:
        """Bulk copies where the loads are boxes, else plain loads and stores by the producer's lanes."""
        known = known_multiples(self.kernel.body)
        refusal = refusal_of("tma", loads.moves, self.target, known)
        if refusal is None and self.pipeline.transport in (None, "tma"):
            return "tma"
        if self.pipeline.transport not in (None, "registers"):
            why = refusal or "its copies can't be counted by an mbarrier"
            raise CompileError(
                f"a producer warp can't load by {self.pipeline.transport}: {why}", self.pipeline.loc
            )
        return "registers"

    def by_producer(self, move: ir.Move) -> ir.Move:
        width = move_width(move, self.target, known_multiples(self.kernel.body))
        return replace(move, by=auto_map(move.shape, workers=self.target.warp, vector=width))
