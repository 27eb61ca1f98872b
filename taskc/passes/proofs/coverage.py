"""Proves that every element of each "out" parameter is stored exactly once, for all sizes.

First by structure (taskc/passes/proofs/boxes.py): each store fills a box, and the boxes of all
stores to a tensor fill it without overlap. A condition on a store must be true wherever the index
is in bounds; two stores under a condition and its negation count as one. If a condition on
sizes chooses between others, each case is proved by itself; if a block's
position does, each way is proved for all blocks. Stores of another structure are
enumerated completely, if the shape is constant: all blocks, loops, workers and slots.
Everything else is rejected; `tc.inout` parameters are exempt.

Cases are distinguished by conditions that choose between the stores of a whole kernel:

    if m <= 8:
        c[i, col + j] = ...          one case: these stores, with m <= 8 as a fact
    else:
        c[row + i, col + j] = ...    the other case: those, with m > 8 as a fact

A condition on sizes and scalars alone is the same for every block, so each case can be proved by
itself. If both sides of a condition fill the same boxes, one stands for both: otherwise each
condition would double the number of cases, whether they depend on each other or not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from taskc.analysis.indices import Array
from taskc.analysis.touches import reads_memory
from taskc.dataclass import dataclass
from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.nodes import GLOBAL, Expression, Tensor, Variable
from taskc.passes.proofs.accesses import (
    ATOMIC,
    READ,
    Guard,
    GuardedAccess,
    KernelAccesses,
    used_variables,
)
from taskc.passes.proofs.boxes import Box, NoBoxError, box_of, contains, corners, enumerated_loops
from taskc.passes.proofs.enumeration import (
    LIMIT,
    Enumerator,
    all_blocks,
    at,
    element,
    is_short,
    size_of,
    spelled,
    task_of,
    task_text,
)
from taskc.passes.proofs.folding import Row, unfolded

# --- Conditions that choose, block by block, between two ways to store the block's tile ---------
#     for col in tc.tiles(n, by=1024):
#         if col + 1024 <= n:
#             y[col + i] = ...             one way: whole tiles, a vector a worker
#         else:
#             if col + j < n:
#                 y[col + j] = ...         the other: element by element
#
# Where neither way stores outside the block's tile, each element is some single block's. So if it is stored
# once where all blocks go the one way, and once where all go the other, it is stored once whichever way each
# block goes.


def ways(case: Case, collected: KernelAccesses) -> tuple[Case, ...]:
    """A case for each way, as if all blocks took it; none if the stores are no such pair."""
    if len(case.stores) != 2:
        return ()
    first, second = case.stores
    frames = list(zip(first.path, second.path, strict=False))
    place = next((n for n, (a, b) in enumerate(frames) if a is not b), len(frames))
    if place == len(frames):
        return ()
    one, other = frames[place]
    if not (isinstance(one, Guard) and isinstance(other, Guard)):
        return ()
    if one.condition is not other.condition or one.holds == other.holds:
        return ()
    grid = next((frame for frame in first.path[:place] if isinstance(frame, ir.Grid)), None)
    if grid is None or not is_computed_from(grid.variables, one.condition, collected):
        return ()
    if not all(_stays_in_its_tile(store, grid, collected) for store in case.stores):
        return ()
    return tuple(
        Case((replace(store, path=(*store.path[:place], *store.path[place + 1 :])),), case.known)
        for store in case.stores
    )


def _stays_in_its_tile(store: GuardedAccess, grid: ir.Grid, collected: KernelAccesses) -> bool:
    enumerator = Enumerator(collected, "iterations")
    by = dict(zip(grid.variables, grid.by, strict=True))
    for index in store.indices:
        form = enumerator.index(index)
        if form is None or len(form.terms) > 1:
            return False
        if not form.terms:
            continue  # all blocks have the same in this dimension
        ((variable, factor),) = form.terms.items()
        if not isinstance(variable, ir.Variable) or variable not in by or factor != 1:
            return False
        if np.min(form.base) < 0 or np.max(form.base) >= by[variable]:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Case:
    """The stores that happen if `known` holds; paths have its conditions as assumptions."""

    stores: tuple[GuardedAccess, ...]
    known: tuple[Guard, ...] = ()

    def explained(self, error: CompileError) -> CompileError:
        notes = tuple(
            (
                f"this is where `{spelled(g.condition)}` {'holds' if g.holds else 'does not hold'}",
                g.condition.loc,
            )
            for g in self.known
        )
        return CompileError(error.message, error.location, error.hint, (*error.notes, *notes))


def cases(case: Case, collected: KernelAccesses) -> Iterator[Case]:
    """The case itself, or the cases that it splits into."""
    yield from _split(replace(case, stores=_merged(case.stores, collected)), collected)


def _split(case: Case, collected: KernelAccesses) -> Iterator[Case]:
    for condition in _choices(case.stores, collected):
        for holds in (True, False):
            known = Guard(condition, holds, asserted=True, of_sizes=True)
            stores = tuple(_known(store, known) for store in case.stores if _happens(store, known))
            yield from _split(Case(stores, (*case.known, known)), collected)
        return
    yield case


def _choices(stores: tuple[GuardedAccess, ...], collected: KernelAccesses) -> Iterator[Expression]:
    """The conditions with stores on both sides."""
    sides: dict[int, tuple[Expression, set[bool]]] = {}
    for store in stores:
        for frame in store.path:
            if isinstance(frame, Guard) and not frame.asserted:
                sides.setdefault(id(frame.condition), (frame.condition, set()))[1].add(frame.holds)
    for condition, sides_used in sides.values():
        if len(sides_used) == 2 and is_computed_from((), condition, collected):
            yield condition


def _merged(
    stores: tuple[GuardedAccess, ...], collected: KernelAccesses
) -> tuple[GuardedAccess, ...]:
    """The stores without those on a side of a condition that fills the same boxes as the other side.

    Conditions further in come first: what they merge is one store for those around.
    """
    enumerator = Enumerator(collected, "iterations")
    for condition in reversed(list(_choices(stores, collected))):
        both = [Guard(condition, holds, asserted=True) for holds in (True, False)]
        sides = [
            [_known(store, known) for store in stores if _is_under(store, known)] for known in both
        ]
        if _fill_the_same(sides[0], sides[1], collected, enumerator):
            stores = tuple([_known(s, both[0]) for s in stores if not _is_under(s, both[1])])
    return stores


def _fill_the_same(
    then: list[GuardedAccess],
    otherwise: list[GuardedAccess],
    collected: KernelAccesses,
    enumerator: Enumerator,
) -> bool:
    """Whether both groups store every element equally often."""
    try:
        one = [box_of(store, collected, enumerator) for store in then]
        other = [box_of(store, collected, enumerator) for store in otherwise]
    except NoBoxError:
        return False
    first, second = ([box for box in boxes if box is not None] for boxes in (one, other))
    return all(
        sum(contains(box, corner) for box in first) == sum(contains(box, corner) for box in second)
        for corner in corners([*first, *second], len(then[0].tensor.shape))
    )


def _is_under(store: GuardedAccess, known: Guard) -> bool:
    return any(
        isinstance(frame, Guard)
        and frame.condition is known.condition
        and frame.holds is known.holds
        for frame in store.path
    )


def _happens(store: GuardedAccess, known: Guard) -> bool:
    return not any(
        isinstance(frame, Guard)
        and frame.condition is known.condition
        and frame.holds != known.holds
        for frame in store.path
    )


def _known(store: GuardedAccess, known: Guard) -> GuardedAccess:
    path = tuple(
        known if isinstance(frame, Guard) and frame.condition is known.condition else frame
        for frame in store.path
    )
    return replace(store, path=path)


def is_computed_from(
    variables: tuple[Variable, ...], condition: Expression, collected: KernelAccesses
) -> bool:
    """Whether it depends only on these, on sizes and on scalars."""
    allowed = {*collected.kernel.parameters, *collected.kernel.dimensions, *variables}
    used = used_variables(collected, [condition])
    values = [condition, *(collected.lets[v] for v in used if v in collected.lets)]
    reads = any(map(reads_memory, values))
    return not reads and all(v in allowed or v in collected.lets for v in used)


HINT = "a parameter that is updated in place or scattered into is declared tc.inout[...]"

_MOST_CASES = 64

ON_HINT = (
    "workers with the same number in .on(...) do the same tasks, and each of them stores; of the"
    " replicas in mapping * replicate(n) only the first one stores"
)


def coverage_findings(collected: KernelAccesses) -> Iterator[CompileError]:
    for parameter in collected.kernel.parameters:
        if isinstance(parameter, Tensor) and parameter.scope == GLOBAL and parameter.role == "out":
            error = _output(parameter, collected)
            if error is not None:
                yield error


def _output(tensor: Tensor, collected: KernelAccesses) -> CompileError | None:
    stores = [access for access in collected.on(tensor) if access.kind != READ]
    for store in stores:
        if store.kind == ATOMIC:
            text = f"`{tensor.name}` is tc.out, whose elements are stored once; this updates them"
            return CompileError(text, store.loc, hint=HINT)
    if 0 in tensor.shape:
        return None
    for number, case in enumerate(cases(Case(tuple(_complementary(stores))), collected)):
        if number == _MOST_CASES:
            reason = f"conditions choose between its stores in more than {_MOST_CASES} ways"
            return _unproved(tensor, stores[-1].loc, reason)
        error = _case(tensor, list(case.stores), collected)
        if error is None:
            continue
        apart = ways(case, collected)
        if not apart or any(_case(tensor, list(way.stores), collected) for way in apart):
            return case.explained(error)
    return None


def _case(
    tensor: Tensor, stores: list[GuardedAccess], collected: KernelAccesses
) -> CompileError | None:
    if not stores:
        loc = tensor.loc if tensor.loc.line else collected.kernel.loc
        return CompileError(f"`{tensor.name}` is never stored", loc, hint=HINT)
    problem = _by_structure(tensor, stores, collected)
    if problem is None:
        return None
    rows = unfolded(stores, collected)
    if rows is not None:
        precise = _by_structure(tensor, stores, collected, rows)
        if precise is None:
            return None
        if len(tensor.shape) == 1 and all(isinstance(n, int) for n in rows[0].extents[1:]):
            problem = precise
    counted = _by_enumeration(tensor, stores, collected)
    if isinstance(counted, CompileError) or (counted is None and _are_short(stores, collected)):
        return counted
    return problem


def _are_short(stores: list[GuardedAccess], collected: KernelAccesses) -> bool:
    frames = [frame for store in stores for frame in store.path]
    if any(isinstance(frame, ir.Grid) for frame in frames):
        return False
    loops = [frame.variable for frame in frames if isinstance(frame, (ir.For, ir.Pipeline))]
    return is_short(collected, loops)


def _complementary(stores: list[GuardedAccess]) -> list[GuardedAccess]:
    """Merge stores of one element under a condition and under its negation."""
    apart: dict[int, list[GuardedAccess]] = {}  # by the length of the path
    waiting = deque(stores)
    while waiting:
        store = waiting.popleft()
        alike = apart.setdefault(len(store.path), [])
        for position, other in enumerate(alike):
            first, second = (other, store) if other.order < store.order else (store, other)
            joined = _joined(first, second) if first.order < second.order else None
            if joined is not None:
                del alike[position]
                waiting.append(joined)
                break
        else:
            alike.append(store)
    return sorted(chain(*apart.values()), key=lambda store: store.order)


def _joined(first: GuardedAccess, second: GuardedAccess) -> GuardedAccess | None:
    if len(first.path) != len(second.path) or first.indices != second.indices:
        return None
    different = None
    for position, (a, b) in enumerate(zip(first.path, second.path, strict=True)):
        if a is b:
            continue
        if not (isinstance(a, Guard) and isinstance(b, Guard) and a.condition is b.condition):
            return None
        if a.holds == b.holds:
            continue
        if different is not None:
            return None
        different = position
    if different is None:
        return None
    path = (*first.path[:different], *first.path[different + 1 :])
    return replace(first, path=path)


# Boxes.


def _by_structure(
    tensor: Tensor,
    stores: list[GuardedAccess],
    collected: KernelAccesses,
    rows: list[Row] | None = None,
) -> CompileError | None:
    """The error, if the tensor is indexed by each store's row of indices and extents."""
    enumerator = Enumerator(collected, "iterations")
    boxes: list[tuple[Box, GuardedAccess]] = []
    extents = tensor.shape if rows is None else rows[0].extents
    for number, store in enumerate(stores):
        try:
            box = box_of(store, collected, enumerator, None if rows is None else rows[number])
        except NoBoxError as error:
            return _unproved(tensor, store.loc, error.reason)
        if box is not None:
            boxes.append((box, store))
    if not boxes:
        return _unproved(tensor, stores[0].loc, "its stores never happen")
    for corner in corners([box for box, _ in boxes], len(extents)):
        if not _exists(corner, extents) or not _exists(
            _joined_to(corner, extents, tensor), tensor.shape
        ):
            continue
        inside = [store for box, store in boxes if contains(box, corner)]
        name = element(tensor, corner if rows is None else _put_together(corner, extents))
        if not inside:
            return CompileError(f"{name} is never stored", boxes[-1][1].loc, hint=HINT)
        if len(inside) > 1:
            note = (f"{name} is stored here too", inside[0].loc)
            return CompileError(f"{name} is stored twice", inside[1].loc, hint=HINT, notes=(note,))
    return None


def _put_together(corner: tuple[int, ...], extents: tuple[int | Expression, ...]) -> tuple[int]:
    """The index before it was divided."""
    number = corner[0]
    for place, extent in zip(corner[1:], extents[1:], strict=True):
        number = number * (extent if isinstance(extent, int) else 1) + place
    return (number,)


def _joined_to(
    corner: tuple[int, ...], extents: tuple[int | Expression, ...], tensor: Tensor
) -> tuple[int, ...]:
    """The element of a corner whose dimensions may be parts of the tensor's; the last part may exceed its extent."""
    remaining = list(zip(corner, extents, strict=True))
    indices = []
    for extent in tensor.shape:
        number, size = remaining.pop(0) if remaining else (0, 1)
        while remaining and isinstance(extent, int) and isinstance(size, int) and size < extent:
            place, count = remaining.pop(0)
            if not isinstance(count, int):
                return (0,) * len(tensor.shape)
            number, size = number * count + place, size * count
        indices.append(number)
    return (0,) * len(indices) if remaining else tuple(indices)


def _exists(corner: tuple[int, ...], extents: tuple[int | Expression, ...]) -> bool:
    return all(
        not isinstance(extent, int) or place < extent
        for place, extent in zip(corner, extents, strict=True)
    )


def _unproved(tensor: Tensor, loc: Location, reason: str) -> CompileError:
    text = f"can't prove that every element of `{tensor.name}` is stored exactly once: {reason}"
    return CompileError(text, loc, hint=HINT)


# Counting.


@dataclass(frozen=True, slots=True, eq=False)
class _Executions:
    """All executions of one store: the number of each one's element, and the way back."""

    store: GuardedAccess
    enumerator: Enumerator
    elements: Array
    chosen: Array
    shape: tuple[int, ...]

    def place(self, number: int) -> tuple[int, ...]:
        return tuple(int(p) for p in np.unravel_index(int(self.chosen[number]), self.shape))


def _by_enumeration(
    tensor: Tensor, stores: list[GuardedAccess], collected: KernelAccesses
) -> CompileError | bool | None:
    """None if every element is stored once, else the error; False if that is open."""
    extents = [e.value if isinstance(e, ir.Constant) else e for e in tensor.shape]
    if not all(isinstance(extent, int) for extent in extents):
        return False
    shape = tuple(int(extent) for extent in extents)  # type: ignore[arg-type]
    if np.prod([float(extent) for extent in shape]) > 2 * LIMIT:
        return False
    everything = []
    budget = LIMIT
    for store in stores:
        executions = _executions(store, shape, collected, budget)
        if executions is None:
            return False
        budget -= int(np.prod(executions.shape))
        everything.append(executions)
    counts = np.zeros(int(np.prod(shape)), dtype=np.int64)
    for executions in everything:
        counts += np.bincount(executions.elements, minlength=counts.size)
    if (counts == 1).all():
        return None
    if (counts > 1).any():
        number = int(np.argmax(counts > 1))
        return _twice(tensor, np.unravel_index(number, shape), number, everything)
    place = np.unravel_index(int(np.argmin(counts)), shape)
    return CompileError(f"{element(tensor, place)} is never stored", stores[-1].loc, hint=HINT)


def _executions(
    store: GuardedAccess, shape: tuple[int, ...], collected: KernelAccesses, budget: int
) -> _Executions | None:
    variables: list[Variable] = []
    for frame in store.path:
        match frame:
            case ir.Grid():
                variables += frame.variables
            case ir.For() | ir.Pipeline():
                variables.append(frame.variable)
            case ir.While():
                return None
            case _:
                pass  # the enumerator evaluates it
    ranges = all_blocks(collected, variables)
    if ranges is None:
        return None
    enumerator = Enumerator(collected, "unrolled", ranges)
    forms = [enumerator.index(index) for index in store.indices]
    live = enumerator.path(store.path, stores=True)
    if live.must is not live.may or any(form is None or form.terms for form in forms):
        return None
    counters = [enumerator.index(variable) for variable in variables]
    if any(form is None or form.terms for form in counters):
        return None
    bases = [form.base for form in forms if form is not None]
    loops = enumerated_loops(store.path, enumerator)
    if size_of(live.may, *bases, *loops) > budget:
        return None
    mask: Any = live.may
    for base, extent in zip(bases, shape, strict=True):
        mask = mask & (base >= 0) & (base < extent)
    arrays = np.broadcast_arrays(mask, *bases, *loops)[: len(bases) + 1]
    full = np.atleast_1d(arrays[0]).shape
    chosen = np.flatnonzero(arrays[0])
    number: Any = np.zeros(chosen.size, dtype=np.int64)
    for array, extent in zip(arrays[1:], shape, strict=True):
        number = number * extent + array.ravel()[chosen]
    return _Executions(store, enumerator, number, chosen, full)


def _twice(tensor: Tensor, place: Any, number: int, everything: list[_Executions]) -> CompileError:
    hits = [
        (executions, executions.place(int(hit)))
        for executions in everything
        for hit in np.flatnonzero(executions.elements == number)[:2]
    ]
    (first, here), (second, there) = hits[0], hits[1]
    block, block_too = _block(first, here), _block(second, there)
    by, by_too = _agent(first, here), _agent(second, there)
    if block != block_too:
        who = f"by block {task_text(block)} and block {task_text(block_too)}"
    else:
        inside = f" (block {task_text(block)})" if block else ""
        if by != by_too:
            who = f"by {by} and {by_too}{inside}"
        else:
            who = f"by {by}, two times{inside}" if by else f"two times{inside}"
    other = first.store is not second.store
    notes = (("the other store", first.store.loc),) if other else ()
    text = f"{element(tensor, place)} is stored twice: {who}"
    loops = [frame for frame in second.store.path if isinstance(frame, ir.Each)]
    hint = ON_HINT if by != by_too and any(loop.worker is not None for loop in loops) else HINT
    return CompileError(text, second.store.loc, hint=hint, notes=notes)


def _agent(executions: _Executions, place: tuple[int, ...]) -> str:
    path = executions.store.path
    if any(isinstance(frame, ir.Each) for frame in path):
        return f"worker {place[-1]}"
    task = task_of(executions.enumerator, path, place)
    return "" if task is None else f"task {task_text(task)}"


def _block(executions: _Executions, place: tuple[int, ...]) -> tuple[int, ...]:
    for frame in executions.store.path:
        if isinstance(frame, ir.Grid):
            origin = [_value(executions.enumerator, v, place) for v in frame.variables]
            return tuple(o // by for o, by in zip(origin, frame.by, strict=True))
    return ()


def _value(enumerator: Enumerator, variable: Expression, place: tuple[int, ...]) -> int:
    form = enumerator.index(variable)
    assert form is not None
    return at(form.base, place)
