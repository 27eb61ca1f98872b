"""The tasks of a worker as index arithmetic: digits of its number, loops over its slots, masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskc.ir import nodes as ir
from taskc.ir.build import add, conjunction, digits_of, equal, index, less, multiply, total
from taskc.ir.mapping import Mapping
from taskc.ir.nodes import Expression, Table, Variable


def composed_tasks(
    mapping: Mapping, number: Expression
) -> tuple[list[tuple[Variable, range]], list[Expression], Expression | None]:
    """The loops over slots, and each coordinate of the task as an expression of these and of the worker; and a mask."""
    assert mapping.worker_modes is not None
    assert mapping.slot_modes is not None
    sizes = [mode.size for mode in mapping.worker_modes]
    terms: list[list[Expression]] = [[] for _ in range(mapping.rank)]
    for mode, digit in zip(mapping.worker_modes, digits_of(number, sizes), strict=True):
        if mode.dimension is not None:
            terms[mode.dimension].append(multiply(digit, mode.stride))
    trips: list[tuple[Variable, range]] = []
    for mode, name in zip(mapping.slot_modes, _slot_names(len(mapping.slot_modes)), strict=True):
        variable = Variable(name)
        trips.append((variable, range(mode.size)))
        if mode.dimension is not None:
            terms[mode.dimension].append(multiply(variable, mode.stride))
    return trips, [total(t) for t in terms], None


def _slot_names(count: int) -> list[str]:
    return [f"s{k}" for k in range(count)] if count > 1 else ["s"] * count


def enumerated_tasks(
    mapping: Mapping, number: Expression
) -> tuple[list[tuple[Variable, range]], list[Expression], Expression | None]:
    slot = Variable("s")
    place = add(multiply(number, mapping.slots), slot)
    coordinates: list[Expression] = [
        ir.Lookup(lookup_table("tasks", mapping.tasks[..., d]), place) for d in range(mapping.rank)
    ]
    guard = None
    if not mapping.valid.all():
        there = ir.Lookup(lookup_table("there", mapping.valid), place)
        guard = ir.Binary("!=", there, index(0))
    return [(slot, range(mapping.slots))], coordinates, guard


def within_limit(mapping: Mapping, variables: Sequence[Variable]) -> Expression | None:
    """The condition that a task is inside the mapping's limit."""
    if mapping.limit is None or not mapping.is_composed:
        return None
    return conjunction(
        less(variable, limit)
        for variable, limit, extent in zip(variables, mapping.limit, mapping.shape, strict=True)
        if limit != extent
    )


def first_owner(
    mapping: Mapping, number: Expression, tasks: Sequence[Expression]
) -> Expression | None:
    """Whether the worker is the first of those that share its task; None if nobody shares."""
    if not mapping.is_replicated:
        return None
    if mapping.worker_modes is not None:
        digits = digits_of(number, [mode.size for mode in mapping.worker_modes])
        return conjunction(
            equal(digit, 0)
            for mode, digit in zip(mapping.worker_modes, digits, strict=True)
            if mode.dimension is None
        )
    owner, _ = mapping.owner_table()
    place: Expression = index(0)
    for task, extent in zip(tasks, mapping.shape, strict=True):
        place = add(multiply(place, extent), task)
    return equal(ir.Lookup(lookup_table("owner", owner), place), number)


def lookup_table(name: str, values: NDArray[Any]) -> Table:
    array = np.ascontiguousarray(values, dtype=np.int64).ravel()
    array.setflags(write=False)
    return Table(name, array)
