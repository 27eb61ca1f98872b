"""The changes that make mutants: one small break each to a kernel at a stage from `synchronized` on.

Reasons why moving an ordering statement across others is harmless, as far as the text alone shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from taskc.dataclass import dataclass
from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping
from taskc.ir.nodes import BARRIER, SHARED, TILE, Kernel, Statement, Tensor, is_parameter_output
from taskc.ir.operations import OPERATIONS
from taskc.ir.rewrite import map_children, replace_tensors, walk
from taskc.ir.target import is_asynchronous
from taskc.ir.types import boolean

_COPIES = {"cp.async", "cp.async.commit", "cp.async.wait"}
_GROUPS = {"wgmma.commit", "wgmma.wait"}


def harmless(statements: Sequence[Statement], place: int, other: int) -> str:
    """The reason why moving a statement past another one is harmless; empty if it may not be."""
    node = statements[place]
    if not isinstance(node, ir.Do):
        return ""
    crossed = statements[other:place] if other < place else statements[place + 1 : other + 1]
    names = {n.operation for s in crossed for n in walk(s) if isinstance(n, ir.Do)}
    names |= {str(n.how) for s in crossed for n in walk(s) if isinstance(n, ir.Mma)}
    multiplies = bool(names & _GROUPS) or any(map(is_asynchronous, names))
    if node.operation == "cp.async.commit" and not names & _COPIES:
        return "no copy starts, and none is waited for, between the two places"
    if node.operation == "wgmma.commit" and not multiplies:
        return "no product starts, and none is waited for, between the two places"
    if node.operation == "wgmma.commit" and other > place and not names & _GROUPS:
        return (
            "what starts between the two places joins the group, so that waits only wait for more"
        )
    if node.operation == "wgmma.wait" and other < place and not multiplies:
        return "no product starts between the two places, and it only waits earlier"
    return ""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a kernel.

    kind    "delete", "move", "slot", "buffer" or "mapping"
    reason  why it is no bug, if that is known without running it
    probes  kernels each of which gives the right result only if the change is no bug
    """

    kind: str
    description: str
    location: Location
    kernel: Kernel
    reason: str = ""
    probes: tuple[Kernel, ...] = ()


def other_changes(kernel: Kernel) -> Iterator[Change]:
    """Changes of slots, buffers and mappings."""
    yield from _slot_shifts(kernel)
    yield from _smaller_buffers(kernel)
    yield from _other_mappings(kernel)


def is_barrier(node: object) -> bool:
    return isinstance(node, ir.Barrier)


def is_wait(node: object) -> bool:
    return isinstance(node, ir.Do) and OPERATIONS[node.operation].orders


def is_ordering(node: object) -> bool:
    return is_barrier(node) or is_wait(node)


def _name(node: Statement) -> str:
    if isinstance(node, ir.Barrier):
        return f"the {node.scope} barrier"
    assert isinstance(node, ir.Do)
    return node.operation


def deletions(kernel: Kernel, chosen: Callable[[object], bool]) -> Iterator[Change]:
    for node in _distinct(kernel, chosen):
        without = _with(kernel, node, ir.Sequence(()))
        yield Change("delete", f"{_name(node)} deleted", node.loc, without)


def moves(kernel: Kernel, chosen: Callable[[object], bool]) -> Iterator[Change]:
    """Each ordering statement moved across the nearest statement with an effect, in both directions."""
    for sequence in [n for n in walk(kernel.body) if isinstance(n, ir.Sequence)]:
        statements = sequence.statements
        for place, node in enumerate(statements):
            if not chosen(node):
                continue
            for step, words in ((-1, "before"), (1, "behind")):
                other = place + step
                while 0 <= other < len(statements) and not _has_effect(statements[other]):
                    other += step
                if not 0 <= other < len(statements) or is_ordering(statements[other]):
                    continue
                if _binds(statements[min(place, other) : max(place, other) + 1]) and step < 0:
                    continue
                others = [s for s in statements if s is not node]
                at = others.index(statements[other]) + (1 if step > 0 else 0)
                moved = (*others[:at], node, *others[at:])
                yield Change(
                    "move",
                    f"{_name(node)} moved {words} {type(statements[other]).__name__.lower()}"
                    f" of line {statements[other].loc.line}",
                    node.loc,
                    _with(kernel, sequence, replace(sequence, statements=moved)),
                    harmless(statements, place, other),
                )


def _has_effect(statement: Statement) -> bool:
    """Whether other workers may see its effect, or it may see theirs, so that a barrier across it matters."""
    return any(
        (isinstance(node, ir.Do | ir.Mma) and not _is_for_the_assembler(node))
        or (
            isinstance(node, ir.Store | ir.Move | ir.Atomic | ir.Read)
            and (node.tensor.scope == SHARED or is_parameter_output(node.tensor))
        )
        for node in walk(statement)
    )


def _is_for_the_assembler(node: Statement) -> bool:
    return isinstance(node, ir.Do) and node.operation.startswith("schedule.")


def _binds(statements: Sequence[Statement]) -> bool:
    return any(
        isinstance(s, ir.Allocate | ir.Peer) and s.tensor.scope == BARRIER for s in statements
    )


def _slot_shifts(kernel: Kernel) -> Iterator[Change]:
    """One access with its slot k % s changed to (k + 1) % s."""

    def is_slot(node: object) -> bool:
        return (
            isinstance(node, ir.Binary)
            and node.operator == "%"
            and isinstance(node.right, ir.Constant)
        )

    for node in _distinct(
        kernel, lambda n: isinstance(n, ir.Read | ir.Store | ir.Move | ir.Address)
    ):
        tensor: Tensor = node.tensor
        indices = node.indices
        if tensor.scope not in (SHARED, BARRIER) or not indices or not is_slot(indices[0]):
            continue
        slot = indices[0]
        later = replace(slot, left=ir.Binary("+", slot.left, ir.Constant(1)))
        changed = replace(node, indices=(later, *indices[1:]))
        what = type(node).__name__.lower()
        yield Change(
            "slot",
            f"slot of {'an mbarrier' if tensor.scope == BARRIER else 'a ' + what} {tensor.name} shifted",
            node.loc,
            _with(kernel, node, changed),
        )


def _smaller_buffers(kernel: Kernel) -> Iterator[Change]:
    for node in _distinct(kernel, lambda n: isinstance(n, ir.Allocate)):
        assert isinstance(node, ir.Allocate)
        tensor = node.tensor
        if tensor.scope not in (SHARED, BARRIER):
            continue
        peers = [n.tensor for n in walk(kernel.body) if isinstance(n, ir.Peer) and n.of is tensor]
        for dimension, extent in enumerate(tensor.shape):
            if not isinstance(extent, int) or extent < 2:
                continue
            shape = (*tensor.shape[:dimension], extent - 1, *tensor.shape[dimension + 1 :])
            smaller = {same: replace(same, shape=shape, layout=None) for same in (tensor, *peers)}
            yield Change(
                "buffer",
                f"{tensor.name} shrunk to {list(shape)}",
                node.loc,
                replace(kernel, body=replace_tensors(kernel.body, smaller)),
            )


def _other_mappings(kernel: Kernel) -> Iterator[Change]:
    """Mappings without their last tasks in a dimension, or with workers exchanged if a tile's accesses follow them."""
    for node in _distinct(kernel, lambda n: isinstance(n, ir.Each | ir.Move)):
        field = "mapping" if isinstance(node, ir.Each) else "by"
        mapping: Mapping = getattr(node, field)
        for dimension, extent in enumerate(mapping.iterated):
            if extent < 2:
                continue
            limit = tuple(n - (d == dimension) for d, n in enumerate(mapping.iterated))
            yield Change(
                "mapping",
                f"{type(node).__name__.lower()} limited to {limit}",
                node.loc,
                _with(kernel, node, replace(node, **{field: mapping.within(limit)})),
                probes=tuple(
                    _with(kernel, node, _poisoned(node, limit, unless_same=same))
                    for same in (True, False)
                ),
            )
        modes = mapping.worker_modes
        if modes and len(modes) > 1 and _touches_tile(node):
            exchanged = Mapping.from_modes(
                mapping.shape, (*modes[1:], modes[0]), mapping.slot_modes or ()
            )
            if mapping.limit is not None:
                exchanged = exchanged.within(mapping.limit)
            if exchanged != mapping:
                yield Change(
                    "mapping",
                    f"{type(node).__name__.lower()} by {exchanged}",
                    node.loc,
                    _with(kernel, node, replace(node, **{field: exchanged})),
                )


def _poisoned(node: ir.Each | ir.Move, limit: tuple[int, ...], *, unless_same: bool) -> Statement:
    """The original statement, except that stores beyond the limit (or those that change something) store nonsense."""
    if isinstance(node, ir.Move):
        assert node.by is not None
        store: Statement = ir.Store(node.tensor, node.indices, node.value, loc=node.loc)
        body = store if node.guard is None else ir.If(node.guard, store, loc=node.loc)
        node = ir.Each(node.variables, node.by, None, body, loc=node.loc)
    within: ir.Expression = ir.Constant(True, boolean)
    for variable, extent in zip(node.variables, limit, strict=True):
        within = ir.Binary("and", within, ir.Binary("<", variable, ir.Constant(extent)))

    def visit(part: Any) -> Any:
        if isinstance(part, ir.Store):
            right = within
            if unless_same:  # the element must have been written
                same = ir.Binary("==", ir.Read(part.tensor, part.indices), part.value)
                right = ir.Binary("or", within, same)
            nonsense = ir.Constant(77, part.tensor.dtype)
            value = ir.Select(right, part.value, nonsense)
            return replace(part, value=value)
        return map_children(part, visit)

    return replace(node, body=visit(node.body))


def _touches_tile(node: Statement) -> bool:
    return any(
        isinstance(below, ir.Read | ir.Store | ir.Move) and below.tensor.scope == TILE
        for below in walk(node)
    )


# --- editing ---------------------------------------------------------------------------------


def _distinct(kernel: Kernel, chosen: Callable[[object], bool]) -> list[Any]:
    """The matching nodes, each once, though it may occur in several places."""
    return list({id(node): node for node in walk(kernel.body) if chosen(node)}.values())


def _with(kernel: Kernel, old: object, new: object) -> Kernel:
    """The kernel with one node replaced."""

    def visit(node: Any) -> Any:
        return new if node is old else map_children(node, visit)

    return replace(kernel, body=visit(kernel.body))
