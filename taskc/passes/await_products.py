"""Placement of the fences, groups and waits of asynchronous products.

    wait r[k]
    mma acc += sa[k % 4, 0, 0].as(128, 64) @ sb[k % 4, 0, 0].as(64, 256) how=wgmma.m64n256k16.bf16
    release r[k]
->
    wait r[k]
    do wgmma.fence()
    mma acc += ...
    do wgmma.commit()
    do wgmma.wait(0)
    release r[k]

Several products of a body may be in flight while work on other registers runs (taskc/passes/product_groups.py).
If a consumer's loop only multiplies slots of a ring that a producer fills by bulk copies, one
product is always in flight: a slot is released when the next step's product has begun.

    for k in range(36):                    ->    wait r[0]
        wait r[k]                                do wgmma.fence()
        mma ...                                  mma ...
        release r[k]                             do wgmma.commit()
                                                 for k in range(1, 36):
                                                     wait r[k]
                                                     do wgmma.fence()
                                                     mma ...
                                                     do wgmma.commit()
                                                     do wgmma.wait(1)
                                                     release r[k - 1]
                                                 do wgmma.wait(0)
                                                 release r[35]

If the loop may have no steps, the first one stays in it, and its release is skipped. The last
wait is not under the condition: without a product it has no effect. ptxas needs both forms: for
a loop of constant bounds whose first step differs, or a wait that not all paths pass, it reports that registers
of the accumulator may be read too early, and waits for each product at once (remark C7514).

Products, and bulk copies to global memory, read shared memory through the asynchronous proxy. Workers that
wrote it by ordinary stores or cp.async execute a fence, after the store or the wait for the
copies; the barrier that orders the write before the reader is placed later (taskc/passes/synchronize.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from taskc.analysis.phases import rings_between_roles, sent_by_bulk_copies, surely_runs
from taskc.ir import nodes as ir
from taskc.ir.build import add, less, subtract
from taskc.ir.nodes import SHARED, Ring, Statement, Tensor
from taskc.ir.rewrite import copy, map_statements, substitute, walk
from taskc.passes.product_groups import awaited, do, is_product


def await_products(kernel: ir.Kernel) -> ir.Kernel:
    read = _read_by_products(kernel.body) | sent_by_bulk_copies(kernel.body)
    if not read or any(
        isinstance(n, ir.Do) and n.operation == "wgmma.commit" for n in walk(kernel.body)
    ):
        return kernel
    rings = frozenset(ring for ring in rings_between_roles(kernel.body) if ring.transport == "tma")
    placer = _Placer(read, rings)
    return replace(kernel, body=placer.visit(kernel.body))


def _read_by_products(body: Statement) -> frozenset[Tensor]:
    """Shared memory that asynchronous products read."""
    return frozenset(
        operand.tensor
        for node in walk(body)
        if isinstance(node, ir.Mma) and is_product(node)
        for operand in (node.left, node.right)
        if operand.tensor.scope == SHARED
    )


class _Placer:
    def __init__(self, read: frozenset[Tensor], rings: frozenset[Ring]) -> None:
        self.read = read
        self.rings = rings

    def visit(self, statement: Statement) -> Statement:
        if isinstance(statement, ir.For):
            steps = self.steps(statement)
            if steps is not None:
                return self.lagging(statement, *steps)
        statement = map_statements(statement, self.visit)
        if isinstance(statement, ir.Sequence):
            parts = _grouped(awaited(statement.statements), self.stores, self.fenced)
            return replace(statement, statements=tuple(_released_meanwhile(parts)))
        return statement

    # Writes of other workers.

    def stores(self, statement: Statement) -> bool:
        """Whether ordinary stores or copies to memory that products read happen in the statement, or are awaited
        by it.
        """
        match statement:
            case ir.Move(how="tma" | "cp.async"):
                return False
            case ir.Move(tensor=tensor) | ir.Store(tensor=tensor):
                return tensor in self.read
            case ir.Each():
                return any(
                    isinstance(node, ir.Store | ir.Atomic) and node.tensor in self.read
                    for node in walk(statement)
                )
            case ir.RingStep(operation="wait", ring=ring):
                return ring.transport == "cp.async" and not self.read.isdisjoint(ring.tensors)
        return False

    def fenced(self, stores: Sequence[Statement]) -> list[Statement]:
        return [*stores, do("fence.proxy.async", stores[-1].loc)]

    # Products that stay in flight across iterations.

    def steps(self, loop: ir.For) -> tuple[ir.RingStep, list[Statement], ir.RingStep] | None:
        """The parts of a loop that waits for a step, multiplies, and releases it; None for other loops."""
        match _flat(loop.body):
            case [
                ir.RingStep(operation="wait", ring=ring) as wait,
                *work,
                ir.RingStep(operation="release") as release,
            ] if ring is release.ring and ring in self.rings:
                pass
            case _:
                return None
        if not all(isinstance(s, ir.Let) or is_product(s) for s in work):
            return None
        products = [s for s in work if isinstance(s, ir.Mma)]
        # Registers would have to be left alone until the product has ended.
        if not products or any(mma.left.tensor.scope != SHARED for mma in products):
            return None
        is_of_ring = _read_by_products(ir.Sequence(tuple(work))) <= set(ring.tensors)
        return (wait, work, release) if is_of_ring else None

    def lagging(
        self, loop: ir.For, wait: ir.RingStep, work: list[Statement], release: ir.RingStep
    ) -> Statement:
        k, loc = loop.variable, loop.loc

        def released(step: ir.Expression) -> ir.RingStep:
            number = substitute(release.step, {k: step})
            return replace(release, step=number)

        begun = _begun(work)
        before_ended = do("wgmma.wait", release.loc, 1)
        earlier = released(subtract(k, loop.step))
        all_ended = do("wgmma.wait", loc, 0)
        last = released(subtract(loop.stop, loop.step))
        if surely_runs(loop):
            first = copy(ir.Sequence((wait, *begun), loc=loc), {k: loop.start})
            body = ir.Sequence((wait, *begun, before_ended, earlier), loc=loc)
            later = replace(loop, start=add(loop.start, loop.step), body=body)
            return ir.Sequence((first, later, all_ended, last), loc=loc)
        body = ir.Sequence(
            (wait, *begun, before_ended, ir.If(less(loop.start, k), earlier, loc=release.loc)),
            loc=loc,
        )
        ran = ir.If(less(loop.start, loop.stop), last, loc=loc)
        return ir.Sequence((replace(loop, body=body), all_ended, ran), loc=loc)


def _flat(statement: Statement) -> list[Statement]:
    if not isinstance(statement, ir.Sequence):
        return [statement]
    return [part for inner in statement.statements for part in _flat(inner)]


def _grouped(
    statements: Sequence[Statement],
    chosen: Callable[[Statement], bool],
    made: Callable[[Sequence[Statement]], list[Statement]],
) -> list[Statement]:
    """Replace each run of chosen statements by `made` of it, and keep the others."""
    parts: list[Statement] = []
    run: list[Statement] = []
    for statement in statements:
        if chosen(statement):
            run.append(statement)
            continue
        if run:
            parts += made(run)
            run = []
        parts.append(statement)
    return [*parts, *made(run)] if run else parts


def _released_meanwhile(statements: list[Statement]) -> list[Statement]:
    """Move releases and waits for copies to where a product is in flight.

    The release of a slot that a copy still reads, in front of a loop, comes when its first product has begun.
    """
    for at, pair in enumerate(pairwise(statements)):
        match pair:
            case (
                ir.If(then=ir.Sequence(statements=(ir.Do("tma.wait"), ir.RingStep("release")))),
                ir.Sequence(statements=(ir.Sequence(statements=first), *rest)),
            ) if any(isinstance(s, ir.Do) and s.operation == "wgmma.commit" for s in first):
                loop = ir.Sequence((ir.Sequence((*first, pair[0])), *rest), loc=pair[1].loc)
                return [*statements[:at], loop, *statements[at + 2 :]]
            case (
                ir.Sequence(statements=(*begun, ir.Do(operation="wgmma.wait") as ended, last)),
                ir.RingStep(operation="leave"),
            ):  # the next one begins while the last product is in flight
                loop = ir.Sequence((*begun, pair[1], ended, last), loc=pair[0].loc)
                return [*statements[:at], loop, *statements[at + 2 :]]
            case _:
                continue  # nobody waits for these
    return statements


def _begun(work: Sequence[Statement]) -> list[Statement]:
    """The products as one group."""
    at = next(k for k, s in enumerate(work) if is_product(s))
    loc = work[at].loc
    return [*work[:at], do("wgmma.fence", loc), *work[at:], do("wgmma.commit", loc)]
