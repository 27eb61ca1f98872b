"""The rings that use mbarriers, and the workers that arrive at them: analysis for `lower_rings`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile

from taskc.analysis.accesses import share_bytes
from taskc.analysis.phases import rings_between_roles, sent_by_bulk_copies
from taskc.ir import nodes as ir
from taskc.ir.extents import size_in_bytes
from taskc.ir.nodes import BARRIER, Ring, Statement, Tensor
from taskc.ir.rewrite import statements, tensors_of, walk
from taskc.ir.target import MATRIX_INSTRUCTIONS, is_asynchronous
from taskc.ir.types import u64
from taskc.passes.multicast import common_loads


@dataclass(frozen=True, slots=True)
class RingBarriers:
    """The mbarriers of a ring. `empty` exists only between roles, for slots that are filled again; one of `group`
    readers arrives there.

    cluster  number of blocks that load parts of its slots for each other
    turn     if its readers take turns, the mbarrier at which they report that they have seen all of their steps
    """

    full: Tensor
    empty: Tensor | None
    arrivals: int
    readers: int
    group: int = 1
    cluster: int = 1
    turn: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        return [t for t in (self.full, self.empty, self.turn) if t is not None]


def counted_rings(kernel: ir.Kernel) -> dict[Ring, RingBarriers]:
    """The rings that use mbarriers, with these."""
    barriers: dict[Ring, RingBarriers] = {}
    between_roles = rings_between_roles(kernel.body)
    common = _filled_for_each_other(kernel)
    for node in walk(kernel.body):
        if not isinstance(node, ir.RingStep) or node.ring in barriers:
            continue
        ring = node.ring
        if ring.transport != "tma" and ring not in between_roles:
            continue
        full = Tensor(f"{ring.name}_full", u64, (ring.stages,), BARRIER)
        if ring not in between_roles:
            barriers[ring] = RingBarriers(full, None, 1, 0)
            continue
        roles = _roles_of_steps(kernel, ring)
        producer, consumer = roles["commit"], roles["wait"]
        empty = None
        if "release" in roles:
            empty = Tensor(f"{ring.name}_empty", u64, (ring.stages,), BARRIER)
        arrivals = 1 if ring.transport == "tma" else producer.workers
        group = _readers_that_wait_together(consumer, ring)
        # Only a group that lets one worker speak for it has a worker to spare for each block.
        cluster = ir.cluster_of(kernel) if ring in common and group > 1 else 1
        readers = consumer.workers // group * cluster
        turn = None
        if any(isinstance(n, ir.RingStep) and n.operation == "enter" for n in walk(consumer.body)):
            turn = Tensor(f"{ring.name}_turn", u64, (1,), BARRIER)
        barriers[ring] = RingBarriers(full, empty, arrivals, readers, group, cluster, turn)
    return barriers


def released_by_each(kernel: ir.Kernel, between_roles: frozenset[Ring]) -> frozenset[Ring]:
    """The rings whose readers all arrive: one worker's arrival for a group tells nothing of the others."""
    return frozenset(
        ring
        for ring in between_roles
        if _readers_that_wait_together(_roles_of_steps(kernel, ring)["wait"], ring) == 1
    )


def mbarrier_bytes(kernel: ir.Kernel) -> int:
    """Bytes of a block's shared memory for mbarriers: the author's, and those that rings get."""
    counted = counted_rings(kernel).values()
    tensors = [t for c in counted for t in c.tensors]
    tensors += {
        node.tensor
        for node in walk(kernel.body)
        if isinstance(node, ir.Allocate) and node.tensor.scope == BARRIER
    }
    return sum(size_in_bytes(tensor) for tensor in tensors)


def _filled_for_each_other(kernel: ir.Kernel) -> set[Ring]:
    """Rings with slots that are the same in all blocks of a cluster, and that are set up once."""
    common = common_loads(kernel.body, ir.cluster_of(kernel))
    if not common:
        return set()
    tensors = {n.tensor for n in walk(kernel.body) if id(n) in common and isinstance(n, ir.Move)}
    again = loops_around(kernel.body)
    rings = {node.ring for node in walk(kernel.body) if isinstance(node, ir.RingStep)}
    return {ring for ring in rings if tensors & set(ring.tensors) and ring.tensors[-1] not in again}


def _readers_that_wait_together(consumer: ir.Role, ring: Ring) -> int:
    """The number of readers that one arrival stands for: an asynchronous product's workers, or those of one sender."""
    for node in walk(consumer.body):
        if isinstance(node, ir.Move) and not sent_by_bulk_copies(node).isdisjoint(ring.tensors):
            assert node.by is not None  # its senders: each waits until its copy has read the slot
            return consumer.workers // node.by.workers
    groups: set[int] = set()
    for node in walk(consumer.body):
        if isinstance(node, ir.Mma) and is_asynchronous(node.how):
            if any(operand.tensor in ring.tensors for operand in (node.left, node.right)):
                groups.add(MATRIX_INSTRUCTIONS[str(node.how)].group)
        elif any(tensor in ring.tensors for tensor in tensors_of(node)):
            return 1
    return groups.pop() if len(groups) == 1 else 1


def _roles_of_steps(kernel: ir.Kernel, ring: Ring) -> dict[str, ir.Role]:
    """The role that does each operation of a ring."""
    by_operation: dict[str, ir.Role] = {}
    for node in walk(kernel.body):
        if isinstance(node, ir.Roles):
            for role in node.roles:
                for step in walk(role.body):
                    if isinstance(step, ir.RingStep) and step.ring is ring:
                        by_operation[step.operation] = role
    return by_operation


def loops_around(body: Statement) -> dict[Tensor, Statement]:
    """The outermost loop around each tensor that is allocated more than once."""
    outermost: dict[Tensor, Statement] = {}

    def visit(statement: Statement, loop: Statement | None) -> None:
        if isinstance(statement, ir.Allocate) and loop is not None:
            outermost[statement.tensor] = loop
        repeats = isinstance(statement, (ir.For, ir.While))
        for inner in statements(statement):
            visit(inner, statement if loop is None and repeats else loop)

    visit(body, None)
    return outermost


def is_reused(ring: Ring, body: Statement, loop: Statement | None) -> bool:
    """Whether workers have stored other data to the memory of a ring of bulk copies before it is set up.

    What they stored has to be fenced off: bulk copies go through another proxy.
    """
    if ring.transport != "tma":
        return False
    stored = set(_stored_to(walk(loop))) if loop is not None else set()
    last = ring.tensors[-1]
    stored |= set(
        _stored_to(
            takewhile(lambda n: not (isinstance(n, ir.Allocate) and n.tensor is last), walk(body))
        )
    )
    return any(share_bytes(a, b) for a in ring.tensors for b in stored if b not in ring.tensors)


def _stored_to(nodes: Iterable[object]) -> Iterator[Tensor]:
    """The tensors written by stores and moves, without bulk copies."""
    for node in nodes:
        match node:
            case ir.Store() | ir.Atomic():
                yield node.tensor
            case ir.Move() if node.how != "tma":
                yield node.tensor
            case _:
                pass  # nothing else stores
