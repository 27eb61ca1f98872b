"""Mutation testing of the checker: breaks a correct kernel in every small way, and sees whether that is reported.

A mutant is the kernel at a stage from `synchronized` on with one change: a barrier, wait, arrival or fence
deleted or moved across its neighbour, a ring's slot shifted, a buffer shrunk, a mapping perturbed. It is
reported when the simulator finds an error under one of the schedules, or when the result differs from the
one of the program as its author wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from taskc.backend.sim import run
from taskc.errors import CompileError, Finding, InternalError, Location
from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping, MappingError
from taskc.ir.nodes import BARRIER, SHARED, TILE, Kernel, Statement, Tensor
from taskc.ir.rewrite import map_children, replace_tensors, walk
from taskc.ir.types import boolean
from taskc.passes.lower_rings import lower_rings
from taskc.passes.pipeline import lower_steps
from taskc.passes.synchronize import is_synchronized

ORDERING = frozenset(
    {
        "cp.async.commit", "cp.async.wait", "mbarrier.init", "mbarrier.arrive", "mbarrier.expect",
        "mbarrier.wait", "fence.proxy.async", "tma.commit", "tma.wait", "barrier.named",
        "wgmma.fence", "wgmma.commit", "wgmma.wait",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """kind      "delete", "move", "slot", "buffer" or "mapping"
    finding   what reported it: a Finding, or a sentence (a wrong result, a refusal)
    reason    of one that was not reported: why it is no bug, where that is proved
    """

    kind: str
    stage: str
    description: str
    location: Location
    finding: Finding | str | None
    reason: str = ""

    @property
    def reported(self) -> bool:
        return self.finding is not None

    @property
    def is_equivalent(self) -> bool:
        return self.finding is None and bool(self.reason)


@dataclass(frozen=True, slots=True)
class _Change:
    kind: str
    description: str
    location: Location
    kernel: Callable[[], Kernel]
    reason: Callable[[Kernel], str] = lambda kernel: ""
    probe: Callable[[], Kernel] | None = None


def mutate(
    kernel: Kernel, arguments: Sequence[Any], *, seeds: Sequence[int | None] = (None, 0, 1)
) -> Iterator[Mutant]:
    """The mutants of a kernel, each with what became of it."""
    steps = list(lower_steps(kernel))
    expected = _result(kernel, arguments)
    by_name = {step.name: step.kernel for step in steps}
    final = steps[-1].kernel if steps else kernel
    barriers = by_name.get("synchronize")
    synchronized = by_name.get("lower_rings", kernel)
    if barriers is not None:
        for change in _barrier_changes(barriers, is_synchronized):
            lowered = replace(change, kernel=lambda c=change: lower_rings(c.kernel()))
            reason = change.reason
            yield _judge(lowered, "synchronized", expected, arguments, seeds, reason)
        changes = _changes(synchronized, barriers_too=False)
    else:
        changes = _changes(synchronized, barriers_too=True)
    for change in changes:
        yield _judge(change, "synchronized", expected, arguments, seeds, change.reason)
    if final is not synchronized:
        for change in _deletions(final):
            yield _judge(change, final.stage, expected, arguments, seeds, change.reason)


def _result(kernel: Kernel, arguments: Sequence[Any]) -> list[Any]:
    copies = _copies(arguments)
    report = run(kernel, copies)
    errors = [finding for finding in report.findings if finding.severity == "error"]
    if errors:
        raise InternalError(f"the unmutated kernel is not clean: {errors[0]}")
    return copies


def _copies(arguments: Sequence[Any]) -> list[Any]:
    return [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]


def _judge(
    change: _Change,
    stage: str,
    expected: Sequence[Any],
    arguments: Sequence[Any],
    seeds: Sequence[int | None],
    reason: Callable[[Kernel], str],
) -> Mutant:
    finding: Finding | str | None = None
    why = ""
    try:
        kernel = change.kernel()
        for seed in seeds:
            finding = _difference(kernel, expected, arguments, seed)
            if finding is not None:
                break
        else:
            why = reason(kernel) or _order_reason(change)
            if change.probe is not None:
                poisoned = _difference(change.probe(), expected, arguments, None)
                if poisoned is None:
                    why = "each store that it drops changes nothing, or reaches no output"
    except (CompileError, InternalError, MappingError) as error:
        finding = f"rejected: {str(error).splitlines()[0]}"
    return Mutant(change.kind, stage, change.description, change.location, finding, why)


def _order_reason(change: _Change) -> str:
    """Clean runs prove the order of mbarriers: which arrivals complete a phase depends on no schedule,
    and the shadow demands that they order every two conflicting accesses."""
    if change.kind in ("slot", "move", "delete") and "mbarrier" in change.description:
        return "the arrivals that are left still order every conflicting pair of accesses"
    return ""


def _difference(
    kernel: Kernel, expected: Sequence[Any], arguments: Sequence[Any], seed: int | None
) -> Finding | str | None:
    copies = _copies(arguments)
    report = run(kernel, copies, seed=seed)
    for finding in report.findings:
        if finding.severity == "error":
            return finding
    for parameter, mine, theirs in zip(kernel.parameters, copies, expected, strict=True):
        if isinstance(mine, np.ndarray) and mine.tobytes() != theirs.tobytes():
            return f"wrong result: `{parameter.name}` differs"
    return None


# --- the changes -----------------------------------------------------------------------------


def _changes(kernel: Kernel, *, barriers_too: bool) -> Iterator[_Change]:
    yield from _deletions(kernel, barriers_too=barriers_too)
    yield from _moves(kernel, _is_ordering if barriers_too else _is_wait)
    yield from _slot_shifts(kernel)
    yield from _smaller_buffers(kernel)
    yield from _other_mappings(kernel)


def _barrier_changes(kernel: Kernel, still_ordered: Callable[[Kernel], bool]) -> Iterator[_Change]:
    """Barriers are mutated where ring steps still say what they order: then equivalence can be proved."""

    def reason(mutant: Kernel) -> str:
        return "every conflict is still ordered" if still_ordered(mutant) else ""

    for change in _deletions(kernel, only=_is_barrier):
        yield replace(change, reason=lambda _, c=change: reason(c.kernel()))
    for change in _moves(kernel, _is_barrier):
        yield replace(change, reason=lambda _, c=change: reason(c.kernel()))


def _is_barrier(node: object) -> bool:
    return isinstance(node, ir.Barrier)


def _is_wait(node: object) -> bool:
    return isinstance(node, ir.Do) and node.operation in ORDERING


def _is_ordering(node: object) -> bool:
    return _is_barrier(node) or _is_wait(node)


def _name(node: Statement) -> str:
    if isinstance(node, ir.Barrier):
        return f"the {node.scope} barrier"
    assert isinstance(node, ir.Do)
    return node.operation


def _deletions(
    kernel: Kernel,
    *,
    barriers_too: bool = True,
    only: Callable[[object], bool] | None = None,
) -> Iterator[_Change]:
    chosen = only or (_is_ordering if barriers_too else _is_wait)
    for node in _distinct(kernel, chosen):
        yield _Change(
            "delete",
            f"{_name(node)} deleted",
            node.loc,
            lambda node=node: _with(kernel, node, ir.Sequence(())),
        )


def _moves(kernel: Kernel, chosen: Callable[[object], bool]) -> Iterator[_Change]:
    """Each ordering statement across the nearest statement with an effect, in both directions."""
    for sequence in [n for n in walk(kernel.body) if isinstance(n, ir.Sequence)]:
        statements = sequence.statements
        for place, node in enumerate(statements):
            if not chosen(node):
                continue
            for step, words in ((-1, "before"), (1, "behind")):
                other = place + step
                while 0 <= other < len(statements) and not _has_effect(statements[other]):
                    other += step
                if not 0 <= other < len(statements) or _is_ordering(statements[other]):
                    continue
                if _binds(statements[min(place, other) : max(place, other) + 1]) and step < 0:
                    continue
                rest = [s for s in statements if s is not node]
                at = rest.index(statements[other]) + (1 if step > 0 else 0)
                moved = (*rest[:at], node, *rest[at:])
                crossed = statements[min(place, other) : max(place, other) + 1]
                why = _harmless(node, [s for s in crossed if s is not node])
                yield _Change(
                    "move",
                    f"{_name(node)} moved {words} {type(statements[other]).__name__.lower()}"
                    f" of line {statements[other].loc.line}",
                    node.loc,
                    lambda s=sequence, m=moved: _with(kernel, s, replace(s, statements=m)),
                    lambda _, why=why: why,
                )


def _harmless(node: Statement, crossed: Sequence[Statement]) -> str:
    """Why it does not matter that an ordering statement stands beyond others, where that shows."""
    if not (isinstance(node, ir.Do) and node.operation == "cp.async.commit"):
        return ""
    between = {n.operation for s in crossed for n in walk(s) if isinstance(n, ir.Do)}
    if between & {"cp.async", "cp.async.commit", "cp.async.wait"}:
        return ""
    return "no copy starts, and none is waited for, between the two places"


def _has_effect(statement: Statement) -> bool:
    return any(
        isinstance(node, ir.Store | ir.Move | ir.Atomic | ir.Do | ir.Mma | ir.Read | ir.Each)
        for node in walk(statement)
    )


def _binds(statements: Sequence[Statement]) -> bool:
    return any(isinstance(s, ir.Allocate) and s.tensor.scope == BARRIER for s in statements)


def _slot_shifts(kernel: Kernel) -> Iterator[_Change]:
    """The slot k % s of one access becomes (k + 1) % s."""

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
        yield _Change(
            "slot",
            f"slot of {'an mbarrier' if tensor.scope == BARRIER else 'a ' + what} {tensor.name} shifted",
            node.loc,
            lambda node=node, changed=changed: _with(kernel, node, changed),
        )


def _smaller_buffers(kernel: Kernel) -> Iterator[_Change]:
    for node in _distinct(kernel, lambda n: isinstance(n, ir.Allocate)):
        assert isinstance(node, ir.Allocate)
        tensor = node.tensor
        if tensor.scope not in (SHARED, BARRIER):
            continue
        for dimension, extent in enumerate(tensor.shape):
            if not isinstance(extent, int) or extent < 2:
                continue
            shape = (*tensor.shape[:dimension], extent - 1, *tensor.shape[dimension + 1 :])
            yield _Change(
                "buffer",
                f"{tensor.name} shrunk to {list(shape)}",
                node.loc,
                lambda t=tensor, s=shape: replace(
                    kernel,
                    body=replace_tensors(kernel.body, {t: replace(t, shape=s, layout=None)}),
                ),
            )


def _other_mappings(kernel: Kernel) -> Iterator[_Change]:
    """A mapping loses its last tasks in one dimension; one that a tile's accesses follow exchanges workers."""
    for node in _distinct(kernel, lambda n: isinstance(n, ir.Each | ir.Move)):
        field = "mapping" if isinstance(node, ir.Each) else "by"
        mapping: Mapping = getattr(node, field)
        for dimension, extent in enumerate(mapping.iterated):
            if extent < 2:
                continue
            limit = tuple(n - (d == dimension) for d, n in enumerate(mapping.iterated))
            yield _Change(
                "mapping",
                f"{type(node).__name__.lower()} limited to {limit}",
                node.loc,
                lambda n=node, f=field, m=mapping, l=limit: _with(
                    kernel, n, replace(n, **{f: m.within(l)})
                ),
                probe=lambda n=node, l=limit: _with(kernel, n, _poisoned(n, l)),
            )
        modes = mapping.worker_modes
        if modes and len(modes) > 1 and _touches_tile(node):
            exchanged = Mapping.from_modes(
                mapping.shape, (*modes[1:], modes[0]), mapping.slot_modes or ()
            )
            if mapping.limit is not None:
                exchanged = exchanged.within(mapping.limit)
            if exchanged != mapping:
                yield _Change(
                    "mapping",
                    f"{type(node).__name__.lower()} by {exchanged}",
                    node.loc,
                    lambda n=node, f=field, m=exchanged: _with(kernel, n, replace(n, **{f: m})),
                )


def _poisoned(node: ir.Each | ir.Move, limit: tuple[int, ...]) -> Statement:
    """The unmutated statement; but a store beyond the limit that would change something stores nonsense."""
    if isinstance(node, ir.Move):
        assert node.by is not None
        store: Statement = ir.Store(node.tensor, node.indices, node.value, loc=node.loc)
        body = store if node.guard is None else ir.If(node.guard, store, loc=node.loc)
        node = ir.Each(node.variables, node.by, None, body, loc=node.loc)
    kept: ir.Expression = ir.Constant(True, boolean)
    for variable, extent in zip(node.variables, limit, strict=True):
        kept = ir.Binary("and", kept, ir.Binary("<", variable, ir.Constant(extent)))

    def visit(part: Any) -> Any:
        if isinstance(part, ir.Store):
            same = ir.Binary("==", ir.Read(part.tensor, part.indices), part.value)
            nonsense = ir.Constant(77, part.tensor.dtype)
            value = ir.Select(ir.Binary("or", kept, same), part.value, nonsense)
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
    """The nodes that are asked for; one that stands in several places counts once."""
    return list({id(node): node for node in walk(kernel.body) if chosen(node)}.values())


def _with(kernel: Kernel, old: object, new: object) -> Kernel:
    """The kernel with one node exchanged."""

    def visit(node: Any) -> Any:
        return new if node is old else map_children(node, visit)

    return replace(kernel, body=visit(kernel.body))
