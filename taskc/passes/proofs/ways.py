"""Conditions that choose, block by block, between two ways to store the block's tile.

    for col in tc.tiles(n, by=1024):
        if col + 1024 <= n:
            y[col + i] = ...             one way: whole tiles, a vector a worker
        else:
            if col + j < n:
                y[col + j] = ...         the other: element by element

Where neither way stores outside the block's tile, each element is some single block's. So if it is stored
once where all blocks go the one way, and once where all go the other, it is stored once whichever way each
block goes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from taskc.ir import nodes as ir
from taskc.passes.proofs.cases import Case, is_computed_from
from taskc.passes.proofs.enumeration import Enumerator
from taskc.passes.proofs.paths import Guard
from taskc.passes.proofs.program import Access, Program


def ways(case: Case, program: Program) -> tuple[Case, ...]:
    """A case for each way, as if all blocks went it; none where the stores are no such pair."""
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
            continue  # in this dimension all blocks have the same
        ((variable, factor),) = form.terms.items()
        if not isinstance(variable, ir.Variable) or variable not in by or factor != 1:
            return False
        if np.min(form.base) < 0 or np.max(form.base) >= by[variable]:
            return False
    return True
