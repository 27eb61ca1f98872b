"""The register of its owner that holds an element of a tile, found by enumeration, as a linear form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from taskc.analysis.accesses import Values
from taskc.analysis.indices import Array, Evaluator
from taskc.ir import nodes as ir
from taskc.ir.build import add, floor_divide, index, multiply, subtract, total
from taskc.ir.mapping import Mapping
from taskc.ir.nodes import Expression, Variable
from taskc.passes.tasks import lookup_table

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
