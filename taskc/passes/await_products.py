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

Several products of a body may be in flight while work on other registers runs:

    mma scores += queries @ keys                  do wgmma.fence()
    mma sums += powers @ values                   mma scores += queries @ keys
    for i, j in own:                              do wgmma.commit()
        scores[i, j] = exp2(scores[i, j])    ->   mma sums += powers @ values
    for i, j in own:                              do wgmma.commit()
        sums[i, j] *= shrink[i]                   do wgmma.wait(1)
                                                  for i, j in own:
                                                      scores[i, j] = exp2(scores[i, j])
                                                  do schedule.hold()
                                                  do wgmma.wait(0)
                                                  for i, j in own:
                                                      sums[i, j] *= shrink[i]

A run of products is fenced, even if no register has been touched since the last one: after a branch the
assembler requires it (C7519). Consecutive products of one accumulator are a group. It stays in flight while
workers use other registers, and ends before anything that another worker may see:
barriers are placed there, and the operands of products may be overwritten after them. Arriving bulk copies belong
to no worker: a group stays in flight across their wait. A slot of theirs is released once a wait has ended its reader.

The assembler would move a wait up to the previous one, and do the work after both: `schedule.hold` prevents
from that. It would also make a branch that is seldom taken, such as a mask for the last keys, a choice of each
element in every step: `schedule.branch` in it keeps it a branch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from itertools import pairwise

from taskc.analysis.phases import rings_between_roles, sent_by_bulk_copies, surely_runs
from taskc.dataclass import dataclass
from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.build import add, index, less, subtract
from taskc.ir.nodes import BARRIER, GLOBAL, SHARED, Expression, Ring, Statement, Tensor
from taskc.ir.rewrite import all_below, copy, map_statements, substitute, tensors_of, walk
from taskc.ir.target import is_asynchronous


@dataclass(frozen=True, slots=True)
class _Group:
    """Products in flight: the tensors that they use, and the slots to release after them."""

    used: frozenset[Tensor]
    releases: list[Statement] = field(default_factory=list)


def awaited(statements: Sequence[Statement]) -> list[Statement]:
    """A body's statements with the fences, groups and waits of its products."""
    with_waits: list[Statement] = []
    has_work_since = False  # whether work follows the last product or wait
    groups: list[_Group] = []  # in flight, the oldest first
    before: Statement | None = None

    def wait(most: int, loc: Location) -> None:
        nonlocal has_work_since
        if len(groups) > most:
            with_waits.extend([do("schedule.hold", loc)] if has_work_since else [])
            with_waits.append(do("wgmma.wait", loc, most))
            for ended in groups[: len(groups) - most]:
                with_waits.extend(ended.releases)
            del groups[: len(groups) - most]
            has_work_since = False

    for statement in statements:
        if isinstance(statement, ir.RingStep) and statement.operation == "release":
            readers = [group for group in groups if group.used & set(statement.ring.tensors)]
            if readers:
                readers[-1].releases.append(statement)
                continue
        if not isinstance(statement, ir.Mma) or not is_product(statement):
            wait(_in_flight_during(statement, groups), statement.loc)
            with_waits.append(_held(statement) if groups else statement)
            has_work_since |= isinstance(statement, ir.Sequence | ir.If | ir.Each)
        else:
            has_work_since = False
            group = _Group(_used(statement))
            if isinstance(before, ir.Mma) and is_product(before):
                if before.accumulator is statement.accumulator:
                    with_waits.pop()
                    earlier = groups.pop()
                    group = _Group(earlier.used | group.used, earlier.releases)
            else:
                with_waits.append(do("wgmma.fence", statement.loc))
            with_waits += [statement, do("wgmma.commit", statement.loc)]
            groups.append(group)
        before = statement
    if before is not None:
        wait(0, before.loc)
    return with_waits


def _held(statement: Statement) -> Statement:
    """A branch while products are in flight, marked to stay a branch: workers that don't take it do no work for it."""
    if not isinstance(statement, ir.If):
        return statement
    mark = do("schedule.branch", statement.loc)
    return replace(statement, then=ir.Sequence((mark, statement.then), loc=statement.loc))


def is_product(statement: object) -> bool:
    return isinstance(statement, ir.Mma) and is_asynchronous(statement.how)


def do(operation: str, loc: Location, *operands: int) -> ir.Do:
    return ir.Do(operation, tuple(map(index, operands)), loc=loc)


def _used(product: ir.Mma) -> frozenset[Tensor]:
    """The tensors that must not change until the product has ended."""
    return frozenset((product.accumulator, product.left.tensor, product.right.tensor))


def _in_flight_during(statement: Statement, groups: Sequence[_Group]) -> int:
    """The number of groups, the youngest ones, that may be in flight while a statement runs."""
    if isinstance(statement, ir.RingStep) and statement.ring.transport == "tma":
        # A release comes here once nothing in flight reads its slot.
        return len(groups) if statement.operation in ("wait", "release") else 0
    if isinstance(statement, ir.Do) and statement.operation.startswith("schedule."):
        return len(groups)
    if not _is_workers_own(statement):
        return 0
    used = _named(statement)
    return next((n for n, group in enumerate(reversed(groups)) if group.used & used), len(groups))


def _is_workers_own(statement: Statement) -> bool:
    """Whether it only uses scalars, registers and parameters that are only read."""
    match statement:
        case ir.Sequence(statements=parts):
            return all(_is_workers_own(part) for part in parts)
        case ir.If():
            inner = [statement.then] + ([statement.otherwise] if statement.otherwise else [])
            known = not any(map(_is_seen_by_others, _named(statement.condition)))
            return known and all(map(_is_workers_own, inner))
        case ir.Let() | ir.Each() | ir.Allocate():
            return not any(map(_is_seen_by_others, _named(statement)))
    return False


def _named(node: Statement | Expression) -> set[Tensor]:
    return {tensor for part in walk(node) for tensor in tensors_of(part)}


def _is_seen_by_others(tensor: Tensor) -> bool:
    return tensor.scope in (SHARED, BARRIER) or (tensor.scope == GLOBAL and tensor.role != "in")


def await_products(kernel: ir.Kernel) -> ir.Kernel:
    read = _read_by_products(kernel.body) | sent_by_bulk_copies(kernel.body)
    if not read or any(n.operation == "wgmma.commit" for n in all_below(kernel.body, ir.Do)):
        return kernel
    rings = frozenset(ring for ring in rings_between_roles(kernel.body) if ring.transport == "tma")
    placer = _Placer(read, rings)
    return replace(kernel, body=placer.visit(kernel.body))


def _read_by_products(body: Statement) -> frozenset[Tensor]:
    """Shared memory that asynchronous products read."""
    return frozenset(
        operand.tensor
        for node in all_below(body, ir.Mma)
        if is_product(node)
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
