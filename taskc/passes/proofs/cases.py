"""Case distinction by conditions that choose between the stores of a whole kernel.

    if m <= 8:
        c[i, col + j] = ...          one case: these stores, with m <= 8 as a fact
    else:
        c[row + i, col + j] = ...    the other case: those, with m > 8 as a fact

A condition on sizes and scalars alone is the same for every block, so each case can be proved by
itself. If both sides of a condition fill the same boxes, one stands for both: otherwise each
condition would double the number of cases, whether they depend on each other or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from taskc.analysis.touches import reads_memory
from taskc.errors import CompileError
from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Variable
from taskc.passes.proofs.accesses import Access, Guard, Program, used_variables
from taskc.passes.proofs.boxes import NoBoxError, box_of, contains, corners
from taskc.passes.proofs.enumeration import Enumerator, spelled

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


def ways(case: Case, program: Program) -> tuple[Case, ...]:
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
    if grid is None or not is_computed_from(grid.variables, one.condition, program):
        return ()
    if not all(_stays_in_its_tile(store, grid, program) for store in case.stores):
        return ()
    return tuple(
        Case((replace(store, path=(*store.path[:place], *store.path[place + 1 :])),), case.known)
        for store in case.stores
    )


def _stays_in_its_tile(store: Access, grid: ir.Grid, program: Program) -> bool:
    enumerator = Enumerator(program, "iterations")
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

    stores: tuple[Access, ...]
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


def cases(case: Case, program: Program) -> Iterator[Case]:
    """The case itself, or the cases that it splits into."""
    yield from _split(replace(case, stores=_merged(case.stores, program)), program)


def _split(case: Case, program: Program) -> Iterator[Case]:
    for condition in _choices(case.stores, program):
        for holds in (True, False):
            known = Guard(condition, holds, asserted=True, of_sizes=True)
            stores = tuple(_known(store, known) for store in case.stores if _happens(store, known))
            yield from _split(Case(stores, (*case.known, known)), program)
        return
    yield case


def _choices(stores: tuple[Access, ...], program: Program) -> Iterator[Expression]:
    """The conditions with stores on both sides."""
    sides: dict[int, tuple[Expression, set[bool]]] = {}
    for store in stores:
        for frame in store.path:
            if isinstance(frame, Guard) and not frame.asserted:
                sides.setdefault(id(frame.condition), (frame.condition, set()))[1].add(frame.holds)
    for condition, sides_used in sides.values():
        if len(sides_used) == 2 and is_computed_from((), condition, program):
            yield condition


def _merged(stores: tuple[Access, ...], program: Program) -> tuple[Access, ...]:
    """The stores without those on a side of a condition that fills the same boxes as the other side.

    Conditions further in come first: what they merge is one store for those around.
    """
    enumerator = Enumerator(program, "iterations")
    for condition in reversed(list(_choices(stores, program))):
        both = [Guard(condition, holds, asserted=True) for holds in (True, False)]
        sides = [
            [_known(store, known) for store in stores if _is_under(store, known)] for known in both
        ]
        if _fill_the_same(sides[0], sides[1], program, enumerator):
            stores = tuple([_known(s, both[0]) for s in stores if not _is_under(s, both[1])])
    return stores


def _fill_the_same(
    then: list[Access], otherwise: list[Access], program: Program, enumerator: Enumerator
) -> bool:
    """Whether both groups store every element equally often."""
    try:
        one = [box_of(store, program, enumerator) for store in then]
        other = [box_of(store, program, enumerator) for store in otherwise]
    except NoBoxError:
        return False
    first, second = ([box for box in boxes if box is not None] for boxes in (one, other))
    return all(
        sum(contains(box, corner) for box in first) == sum(contains(box, corner) for box in second)
        for corner in corners([*first, *second], len(then[0].tensor.shape))
    )


def _is_under(store: Access, known: Guard) -> bool:
    return any(
        isinstance(frame, Guard)
        and frame.condition is known.condition
        and frame.holds is known.holds
        for frame in store.path
    )


def _happens(store: Access, known: Guard) -> bool:
    return not any(
        isinstance(frame, Guard)
        and frame.condition is known.condition
        and frame.holds != known.holds
        for frame in store.path
    )


def _known(store: Access, known: Guard) -> Access:
    path = tuple(
        known if isinstance(frame, Guard) and frame.condition is known.condition else frame
        for frame in store.path
    )
    return replace(store, path=path)


def is_computed_from(
    variables: tuple[Variable, ...], condition: Expression, program: Program
) -> bool:
    """Whether it depends only on these, on sizes and on scalars."""
    allowed = {*program.kernel.parameters, *program.kernel.dimensions, *variables}
    used = used_variables(program, [condition])
    values = [condition, *(program.lets[v] for v in used if v in program.lets)]
    reads = any(map(reads_memory, values))
    return not reads and all(v in allowed or v in program.lets for v in used)
