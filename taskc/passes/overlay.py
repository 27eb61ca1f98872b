"""Place every shared tensor in one arena, by liveness: tensors that are never live together share bytes.

    shared sa: f32[64, 8]
    ...last use of sa...
    shared line: f32[64]
->
    shared sa: f32[64, 8].at(0)
    ...last use of sa...
    shared line: f32[64].at(0)

A tensor is live from its allocation to the last statement, among those of the sequence that allocates it,
that uses it; a loop is one statement, and tensors allocated by a role are live while any role runs.
Tensors that other blocks of a cluster access, or bulk copies read, are always live. Larger tensors choose
first; each takes the lowest place that is free for its whole lifetime. Barriers between the users of one place
are placed by `synchronize`. The mbarriers come after all tensors.
"""

from __future__ import annotations

from dataclasses import replace

from taskc.analysis.phases import sent_by_bulk_copies, shared_memory
from taskc.dataclass import dataclass
from taskc.errors import CompileError
from taskc.ir import nodes as ir
from taskc.ir.extents import size_in_bytes
from taskc.ir.fragments import alignment
from taskc.ir.nodes import SHARED, Ring, Statement, Tensor
from taskc.ir.rewrite import (
    all_below,
    map_statements,
    replace_tensors,
    statements,
    tensors_of,
    walk,
)
from taskc.ir.target import TARGETS
from taskc.passes.lower_rings import mbarrier_bytes

ALIGNMENT = 128
MBARRIER = 8


@dataclass(frozen=True, slots=True)
class Life:
    """The lifetime of a tensor: the numbers, in program order, of the first and the last statement in which it is
    live.
    """

    tensor: Tensor
    first: int
    last: int


def overlay(kernel: ir.Kernel) -> ir.Kernel:
    lives = _lives(kernel.body) if shared_memory(kernel.body) else []
    if not lives:
        return kernel
    remote = {node.of for node in all_below(kernel.body, ir.Peer)}
    remote |= {
        operand.tensor
        for node in all_below(kernel.body, ir.Do)
        if node.operation == "tma.load.multicast"
        for operand in node.operands
        if isinstance(operand, ir.Address)
    }
    remote |= sent_by_bulk_copies(kernel.body)  # nothing tells when the last one has been read
    last = max(life.last for life in lives)
    lives = [replace(life, first=0, last=last) if life.tensor in remote else life for life in lives]
    offsets: dict[Tensor, int] = {}
    for life in sorted(lives, key=lambda life: (-size_in_bytes(life.tensor), life.first)):
        offsets[life.tensor] = _lowest_free(life, lives, offsets)
    limit = TARGETS[kernel.target].shared_bytes
    end = max(offset + size_in_bytes(tensor) for tensor, offset in offsets.items())
    mbarriers = mbarrier_bytes(kernel)
    used = -(-end // MBARRIER) * MBARRIER + mbarriers if mbarriers else end
    if used > limit:
        largest = max(lives, key=lambda life: size_in_bytes(life.tensor)).tensor
        raise CompileError(
            f"a block needs {used} bytes of shared memory; {kernel.target} has {limit}",
            largest.loc,
            hint=f"`{largest.name}` alone takes {size_in_bytes(largest)}"
            + (f", and the mbarriers {mbarriers}" if mbarriers else ""),
        )
    return place(kernel, {tensor: replace(tensor, offset=at) for tensor, at in offsets.items()})


def place(kernel: ir.Kernel, tensors: dict[Tensor, Tensor]) -> ir.Kernel:
    """The kernel with tensors replaced, in its rings too."""
    rings: dict[Ring, Ring] = {}

    def exchanged(statement: Statement) -> Statement:
        if isinstance(statement, ir.RingStep):
            ring = statement.ring
            if ring not in rings:
                new = tuple(tensors.get(tensor, tensor) for tensor in ring.tensors)
                rings[ring] = replace(ring, tensors=new)
            return replace(statement, ring=rings[ring])
        return map_statements(statement, exchanged)

    body = replace_tensors(kernel.body, tensors)
    return replace(kernel, body=exchanged(body))


def _lives(body: Statement) -> list[Life]:
    lives: list[Life] = []
    counter = 0

    def visit(statement: Statement) -> None:
        nonlocal counter
        counter += 1
        if not isinstance(statement, ir.Sequence):
            first, outer = counter, len(lives)
            for inner in statements(statement):
                visit(inner)
            if isinstance(statement, ir.Roles):  # roles run at the same time
                concurrent = [replace(life, first=first, last=counter) for life in lives[outer:]]
                lives[outer:] = concurrent
            return
        born: dict[Tensor, int] = {}
        ends: dict[Tensor, int] = {}
        for inner in statement.statements:
            if isinstance(inner, ir.Allocate) and inner.tensor.scope == SHARED:
                born[inner.tensor] = counter + 1
            visit(inner)
            if not born:
                continue
            used = {tensor for node in walk(inner) for tensor in tensors_of(node)}
            used |= {t for step in all_below(inner, ir.RingStep) for t in step.ring.tensors}
            for tensor in used & born.keys():
                ends[tensor] = counter
        lives.extend(Life(tensor, first, ends[tensor]) for tensor, first in born.items())

    visit(body)
    return lives


def _lowest_free(life: Life, lives: list[Life], offsets: dict[Tensor, int]) -> int:
    size = size_in_bytes(life.tensor)
    taken = sorted(
        (offsets[other.tensor], offsets[other.tensor] + size_in_bytes(other.tensor))
        for other in lives
        if other.tensor in offsets and other.first <= life.last and life.first <= other.last
    )
    step = max(ALIGNMENT, alignment(life.tensor))
    offset = 0
    for start, end in taken:
        if offset + size <= start:
            break
        offset = max(offset, -(-end // step) * step)
    return offset
