"""The groups of a body's asynchronous products: where each begins, and where its workers wait for it.

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

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.build import index
from taskc.ir.nodes import BARRIER, GLOBAL, SHARED, Expression, Statement, Tensor
from taskc.ir.rewrite import tensors_of, walk
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
