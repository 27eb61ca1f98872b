"""Mappings as index arithmetic: the tasks of a worker, and the register that holds an element of a tile.

A worker's tasks are digits of its number, loops over its slots, and masks. The register in which its owner holds an
element is found by enumeration, as a linear form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskc.analysis.accesses import Values
from taskc.analysis.indices import Array, Evaluator
from taskc.ir import nodes as ir
from taskc.ir.build import (
    add,
    conjunction,
    digits_of,
    equal,
    floor_divide,
    index,
    less,
    multiply,
    subtract,
    total,
)
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


Trips = Sequence[tuple[Variable, range]]


def slot_table(
    owners: Mapping,
    indices: Sequence[Expression],
    masks: Sequence[Expression],
    workers: dict[Variable, Array],
    trips: Trips,
) -> Array | None:
    """The slot for each combination of trips; None if it isn't the same for all workers.

    Where nobody owns the element (a masked task) the entry is -1.
    """
    rank = 1 + len(trips)
    values = {v: numbers.reshape(-1, *[1] * len(trips)) for v, numbers in workers.items()}
    for axis, (variable, trip) in enumerate(trips):
        shape = [1] * rank
        shape[axis + 1] = len(trip)
        values[variable] = np.asarray(trip).reshape(shape)
    evaluator = Evaluator(Values(values))
    coordinates = [evaluator.index(i) for i in indices]
    full = (owners.workers, *(len(trip) for _, trip in trips))
    tasks = np.stack([np.broadcast_to(c.base, full) for c in coordinates if c is not None], axis=-1)
    numbers = np.arange(owners.workers).reshape(-1, *[1] * len(trips))
    slots = owners.find(numbers, tasks)
    for mask in masks:
        slots = np.where(np.broadcast_to(evaluator.truth(mask).must, full), slots, -1)
    highest = slots.max(axis=0)
    same = (slots == highest) | (slots < 0)
    return highest if same.all() else None


def linear_form(table: Array, trips: Trips) -> Expression:
    """The table as constant + sum of coefficient * trip, or as a lookup."""
    base = int(table[(0,) * table.ndim])
    form = np.full(table.shape, base)
    terms: list[Expression] = []
    constant = base
    for axis, (variable, trip) in enumerate(trips):
        if len(trip) < 2:
            continue
        second = [0] * table.ndim
        second[axis] = 1
        step, remainder = divmod(int(table[tuple(second)]) - base, trip.step)
        if remainder:
            return _looked_up(table, trips)
        shape = [1] * table.ndim
        shape[axis] = len(trip)
        form = form + (np.arange(len(trip)) * step * trip.step).reshape(shape)
        terms.append(multiply(variable, step))
        constant -= step * trip.start
    if ((form != table) & (table >= 0)).any():
        return _looked_up(table, trips)
    return add(total(terms), constant)


def trip_number(trips: Trips) -> Expression:
    """The row-major number of the current trip."""
    number: Expression = index(0)
    for variable, trip in trips:
        place = floor_divide(subtract(variable, trip.start), trip.step)
        number = add(multiply(number, len(trip)), place)
    return number


def _looked_up(table: Array, trips: Trips) -> Expression:
    return ir.Lookup(lookup_table("slots", np.maximum(table, 0)), trip_number(trips))
