"""Kernels that only move elements of one array into another layout, with zeros where the result is larger.

    value = f32(0)
    if f + o < 50 and c + q < 100:
        value = w[f + o, r, s, c + q]
    packed[f + o, c + q, r, s] = value
->
    the array, its axes in the order 0 3 1 2, filled up with 0

Such a kernel packs a constant once, so that NumPy does it sooner than a kernel is compiled. It is proved to store each
element of its output exactly once, so its loops don't matter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from taskc.dataclass import dataclass
from taskc.ir import nodes as ir
from taskc.ir.rewrite import substitute


@dataclass(frozen=True, slots=True)
class Relayout:
    """The axes of the array in the order of the result's, the shape of the result, and what fills it up.

    given  the shape in which the kernel sees the array
    """

    given: tuple[int, ...]
    order: tuple[int, ...]
    shape: tuple[int, ...]
    fill: float | int | bool

    def __call__(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The array in the result's order, filled up to its shape."""
        turned = array.reshape(self.given).transpose(self.order)
        added = [(0, full - own) for full, own in zip(self.shape, turned.shape, strict=True)]
        return np.pad(turned, added, constant_values=self.fill) if any(map(sum, added)) else turned


def relayout_of(kernel: ir.Kernel) -> Relayout | None:
    """The relayout that a kernel is, or None."""
    match kernel.parameters:
        case (ir.Tensor(role="in") as given, ir.Tensor(role="out") as result):
            pass
        case _:
            return None
    body: Any = kernel.body
    while isinstance(body, ir.Grid | ir.For | ir.Each):
        body = body.body
    match body:
        case ir.Sequence(
            (
                ir.Allocate(value, ir.Constant(fill)),
                ir.If(condition, then, None),
                ir.Store(written, places, ir.Read(last, ())),
            )
        ) if last is value and written is result:
            pass
        case _:
            return None
    match then.statements if isinstance(then, ir.Sequence) else (then,):
        case (
            *lets,
            ir.Store(stored, (), ir.Read(read, indices) | ir.Cast(ir.Read(read, indices))),
        ) if stored is value and read is given:
            pass
        case _:
            return None
    named: dict[ir.Variable, ir.Expression] = {}
    for let in lets:
        if not isinstance(let, ir.Let):
            return None
        named[let.variable] = substitute(let.value, named)
    read_places = [substitute(index, named) for index in indices]
    if len(read_places) != len(places) or any(place not in read_places for place in places):
        return None
    order = tuple(map(read_places.index, places))
    bounds = _bounds(condition)
    for place, axis, extent in zip(places, order, result.shape, strict=True):
        # The array is read where it has an element, and nowhere else.
        if given.shape[axis] != extent and (place, given.shape[axis]) not in bounds:
            return None
        bounds = [bound for bound in bounds if bound != (place, given.shape[axis])]
    own, full = (
        tuple([extent for extent in tensor.shape if isinstance(extent, int)])
        for tensor in (given, result)
    )
    is_whole = sorted(order) == [*range(len(own))] and len(full) == len(own) == len(given.shape)
    return Relayout(own, order, full, fill) if is_whole and not bounds else None


def _bounds(condition: ir.Expression) -> list[tuple[ir.Expression, object]]:
    """The expressions that a condition keeps below numbers; other conditions are kept, and match none."""
    match condition:
        case ir.Binary("and", left, right):
            return [*_bounds(left), *_bounds(right)]
        case ir.Binary("<", left, ir.Constant(number)):
            return [(left, number)]
    return [(condition, None)]
