"""Proves that workers access only those elements of a tile that they own.

A tile is distributed over registers by its mapping, so an element exists only at its owners.
For each access inside a mapping loop all workers, slots and constant inner indices are enumerated.
An index known only at run time can't name a register and is rejected. So is an access of a
whole-block statement that doesn't fit its mapping.

A replicated element is written by all its owners, with the same value, which may depend on the
element's index, on replicated tiles and on uniform values; `tc.reduce` combines anything else.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np

from taskc.analysis.indices import Index
from taskc.errors import CompileError, Location, assert_never
from taskc.ir import nodes as ir
from taskc.ir.extents import size_in_elements
from taskc.ir.mapping import Mapping, replicate
from taskc.ir.nodes import TILE, Expression, Tensor
from taskc.passes.proofs.accesses import READ, GuardedAccess, KernelAccesses
from taskc.passes.proofs.enumeration import (
    LIMIT,
    STEPS,
    Enumerator,
    at,
    element,
    first_true,
    size_of,
    spelled,
    task_arrays,
    task_of,
    task_text,
)
from taskc.passes.proofs.replicas import replica_findings


def tile_findings(collected: KernelAccesses) -> Iterator[CompileError]:
    enumerators: dict[tuple[int | None, int], Enumerator] = {}

    def enumerator_of(tensor: Tensor) -> Enumerator:
        """The enumerator for a tile, whose indices take at most as many values as it has elements."""
        role = collected.roles.get(tensor)
        key = None if role is None else role.first, max(STEPS, size_in_elements(tensor))
        if key not in enumerators:
            enumerators[key] = Enumerator(collected, "unrolled", role=role, steps=key[1])
        return enumerators[key]

    moves: dict[int, list[GuardedAccess]] = {}
    owned: set[Hashable] = set()  # places of earlier accesses
    for access in collected.accesses:
        if access.tensor.scope != TILE:
            continue
        if isinstance(access.phase, ir.Move):
            moves.setdefault(id(access.phase), []).append(access)
            continue
        enumerator = enumerator_of(access.tensor)
        place = _place(access)
        error = None if place in owned else _access(access, enumerator)
        if error is None and place is not None:
            owned.add(place)
        if error is None and access.kind != READ:
            error = replica_findings(access, enumerator)
        if error is not None:
            yield error
    for accesses in moves.values():
        error = _move(accesses, collected)
        if error is not None:
            yield error
    for statement in collected.whole:
        error = _whole(statement)
        if error is not None:
            yield error


# --- accesses in mapping loops, and outside of them ---


def _place(access: GuardedAccess) -> Hashable:
    """A key of an element and the loops around: straight-line code names an element many times. None for an index that
    is computed.
    """
    if all(isinstance(index, ir.Constant | ir.Variable) for index in access.indices):
        return access.tensor, access.indices, tuple(map(id, access.path))
    return None


def _access(access: GuardedAccess, enumerator: Enumerator) -> CompileError | None:
    owners = _owners(access.tensor)
    workers = len(enumerator.workers)
    if owners.workers != workers:
        return CompileError(
            f"`{access.tensor.name}` is laid out over {owners.workers} workers,"
            f" but the block has {workers}",
            access.loc,
        )
    if _owned_by_construction(access, owners):
        return None
    indices = _indices(access, enumerator)
    if isinstance(indices, CompileError):
        return indices
    live = enumerator.path(access.path).may
    if live is False:
        return None
    if size_of(live, *indices, enumerator.workers) > LIMIT:
        return CompileError(
            f"an access to tile `{access.tensor.name}` has too many combinations of loop"
            " variables to be checked one by one",
            access.loc,
            hint="use fewer constant loops in its index",
        )
    return _ownership(access, owners, indices, enumerator.workers, live, enumerator)


def _indices(access: GuardedAccess, enumerator: Enumerator) -> list[Any] | CompileError:
    """The numbers of the indices for all workers and slots, which may not depend on run-time values."""
    numbers = []
    for index in access.indices:
        form = enumerator.index(index)
        if form is None or form.terms:
            return _run_time_index(access, index, form)
        numbers.append(form.base)
    return numbers


def _owned_by_construction(access: GuardedAccess, owners: Mapping) -> bool:
    """Whether the index is just the variables of a loop over the tile's own mapping."""
    for frame in reversed(access.path):
        if isinstance(frame, ir.Each):
            return (
                frame.worker is None
                and _same(access.indices, frame.variables)
                and (frame.mapping is owners or frame.mapping == owners)
                and owners.iterated == owners.shape
                and owners.shape == access.tensor.shape
            )
    return False


def _ownership(
    access: GuardedAccess,
    owners: Mapping,
    indices: list[Any],
    workers: Any,
    live: Any,
    enumerator: Enumerator,
) -> CompileError | None:
    arrays = np.broadcast_arrays(workers, *indices)
    slots = owners.find(arrays[0], np.stack(arrays[1:], axis=-1))
    missing = (slots < 0) & live
    if not missing.any():
        return None
    position = first_true(missing)
    worker = at(workers, position)
    place = [at(index, position) for index in indices]
    task = task_of(enumerator, access.path, position)
    doing = "" if task is None else f" (task {task_text(task)})"
    name = element(access.tensor, place)
    shape: tuple[Any, ...] = access.tensor.shape
    if not all(0 <= i < n for i, n in zip(place, shape, strict=True)):
        text = f"{name} is outside its shape {task_text(shape)}: worker {worker}{doing}"
    else:
        text = f"worker {worker} does not own {name}{doing}; {_who(owners, tuple(place))}"
    return CompileError(text, access.loc)


def _who(owners: Mapping, place: tuple[int, ...]) -> str:
    inside = all(i < n for i, n in zip(place, owners.shape, strict=True))
    worker = int(owners.owner_table()[0][place]) if inside else -1
    return f"worker {worker} does" if worker >= 0 else "nobody does"


def _run_time_index(access: GuardedAccess, index: Expression, form: Index | None) -> CompileError:
    culprit = index if form is None else next(iter(form.terms))
    names = f"`{spelled(index)}`"
    if culprit is not index:
        names += f" of `{access.tensor.name}` depends on `{spelled(culprit)}`, which"
    else:
        names += f" of `{access.tensor.name}`"
    return CompileError(
        f"the index {names} is known only at run time; a tile's index must be constant",
        access.loc,
        hint="registers have no run-time index; use tc.local or tc.shared",
    )


# Whole-block statements.


def _move(accesses: list[GuardedAccess], collected: KernelAccesses) -> CompileError | None:
    move = accesses[0].phase
    assert isinstance(move, ir.Move)
    for access in accesses:
        shape = move.shape
        if _same(access.indices, move.variables) and not _owners(access.tensor).covers(shape):
            who = f"nobody owns all of {task_text(shape)} in `{access.tensor.name}`"
            return CompileError(who, access.loc)
    exact = [a for a in accesses if _same(a.indices, move.variables)]
    exact.sort(key=lambda access: access.kind == READ)
    if move.by is None and not exact:
        index = ", ".join(variable.name for variable in move.variables)
        return CompileError(
            f"who moves what is not known: no tile here has the index `{index}`",
            accesses[0].loc,
            hint="say by= with a mapping of workers that own the elements",
        )
    converts = (
        move.tensor.scope == TILE
        and isinstance(move.value, ir.Read)
        and move.value.tensor.scope == TILE
        and len(exact) == 2
        and len(accesses) == 2
    )
    if converts and move.by is None:
        return None
    by = move.by or _owners(exact[0].tensor)
    coordinates, valid = task_arrays(by)
    inside = np.asarray(valid)
    for coordinate, extent in zip(coordinates, move.shape, strict=True):
        inside = inside & (coordinate < extent)
    axis = collected.axis(move)
    lifted = [c.reshape((c.shape[0],) + (1,) * (axis - 1) + c.shape[1:]) for c in coordinates]
    live = inside.reshape(lifted[0].shape) if inside.ndim else inside
    enumerator = Enumerator(collected, "unrolled", dict(zip(move.variables, lifted, strict=True)))
    workers = np.arange(by.workers)
    for access in accesses:
        if converts and access.kind == READ:
            continue
        owners = _owners(access.tensor)
        if _same(access.indices, move.variables) and (by is owners or by.same_owners(owners)):
            continue
        error = _conversion_error(access, owners, workers, live, enumerator)
        if error is not None:
            return error
    return None


def _conversion_error(
    access: GuardedAccess, owners: Mapping, workers: Any, live: Any, enumerator: Enumerator
) -> CompileError | None:
    indices = _indices(access, enumerator)
    if isinstance(indices, CompileError):
        return indices
    guards = enumerator.path(access.path).may
    error = _ownership(access, owners, indices, workers, live & guards, enumerator)
    if error is None:
        return None
    hint = "copy the tile to one with the other's mapping first: tc.copy(tile, tile)"
    return CompileError(error.message, error.location, hint=hint)


def _whole(statement: ir.Mma | ir.Reduce | ir.Scan) -> CompileError | None:
    match statement:
        case ir.Mma():
            return _mma(statement)
        case ir.Reduce() | ir.Scan():
            return _fold(statement)
        case _:
            return assert_never(statement)


def _mma(node: ir.Mma) -> CompileError | None:
    (m, k), (inner, n) = node.left.shape, node.right.shape
    if k != inner:
        text = f"the inner extents of a product differ: ({m}, {k}) @ ({inner}, {n})"
        return CompileError(text, node.loc)
    if node.accumulator.shape != (m, n):
        shape = task_text(node.accumulator.shape)
        name = node.accumulator.name
        text = f"({m}, {k}) @ ({inner}, {n}) is ({m}, {n}), but `{name}` is {shape}"
        return CompileError(text, node.loc)
    if node.accumulator.scope == TILE:
        return _uncovered(node.accumulator, node.loc)
    return None


def _fold(node: ir.Reduce | ir.Scan) -> CompileError | None:
    first, *others = node.sources
    for source in others:
        if not _same_workers(_owners(source), _owners(first)):
            return _other_owners(source, first, node.loc)
    errors = [
        _reduce(node, target, source)
        if isinstance(node, ir.Reduce)
        else _scan(node, target, source)
        for target, source in zip(node.targets, node.sources, strict=True)
    ]
    return next(filter(None, errors), None)


def _reduce(node: ir.Reduce, target: Tensor, source: Tensor) -> CompileError | None:
    kept_dimensions = [d for d in range(len(source.shape)) if d != node.axis]
    shape = tuple(source.shape[d] for d in kept_dimensions) or (1,)
    if target.shape != shape:
        text = (
            f"`{source.name}` reduced over axis {node.axis} is {task_text(shape)},"
            f" but `{target.name}` is {task_text(target.shape)}"
        )
        return CompileError(text, node.loc)
    if source.scope != TILE or target.scope != TILE:
        return None
    owners = _owners(source)
    expected = owners.project(kept_dimensions) if kept_dimensions else replicate(owners.workers)
    if not _same_workers(_owners(target), expected):
        text = (
            f"the owners of `{target.name}` must be those of `{source.name}` without"
            f" axis {node.axis}: {expected}"
        )
        return CompileError(text, node.loc, hint="tc.copy(tile, tile) converts to other owners")
    return _uncovered(source, node.loc)


def _scan(node: ir.Scan, target: Tensor, source: Tensor) -> CompileError | None:
    if target.shape != source.shape:
        text = (
            f"`{source.name}` is {task_text(source.shape)},"
            f" but `{target.name}` is {task_text(target.shape)}"
        )
        return CompileError(text, node.loc)
    if source.scope != TILE or target.scope != TILE:
        return None
    if not _same_workers(_owners(target), _owners(source)):
        return _other_owners(target, source, node.loc)
    return _uncovered(source, node.loc)


def _other_owners(tile: Tensor, other: Tensor, loc: Location) -> CompileError:
    text = f"`{tile.name}` and `{other.name}` have different owners"
    return CompileError(text, loc, hint="tc.copy(tile, tile) converts to other owners")


def _uncovered(tile: Tensor, loc: Location) -> CompileError | None:
    shape: tuple[Any, ...] = tile.shape
    if _owners(tile).covers(shape):
        return None
    return CompileError(f"nobody owns all of {task_text(shape)} in `{tile.name}`", loc)


def _same_workers(left: Mapping, right: Mapping) -> bool:
    return left.shape == right.shape and left.workers == right.workers and left.same_owners(right)


def _same(left: tuple[Expression, ...], right: tuple[ir.Variable, ...]) -> bool:
    return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))


def _owners(tile: Tensor) -> Mapping:
    assert tile.owners is not None, f"tile {tile.name} has no owners"
    return tile.owners
