"""ScatterElements and ScatterND: a copy, into which a kernel writes at places that are data."""

from __future__ import annotations

from math import prod
from typing import Any

import taskc as tc
from taskc import KernelDefinition, spatial
from taskc.onnx.operators import Call, Made, operator
from taskc.onnx.operators.common import axis_of
from taskc.onnx.operators.movement import check_lines, place_of

_WIDTH = 16  # elements of a slice that ScatterND writes beside each other

_REDUCTIONS: dict[str, Any] = {
    "none": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": lambda old, new: min(old, new),
    "max": lambda old, new: max(old, new),
}


def _reduction(call: Call) -> Any:
    name = call.attribute("reduction", "none")
    if name not in _REDUCTIONS:
        raise call.node.error(f"taskc doesn't know its reduction '{name}'")
    return tc.function(_REDUCTIONS[name])


@operator("Scatter", since=9)
@operator("ScatterElements", since=11)
def scatter_elements(call: Call) -> Made:
    call.require_kernel()
    x, places, updates = (call.tensor(position) for position in range(3))
    axis = axis_of(call, call.attribute("axis", 0), len(x.shape))
    check_lines(call, axis)
    made = tc.compute(x.shape, lambda *at: x[at], name="copy")
    if prod(places.shape):
        kernel = _along(axis, x, places, _reduction(call), _problem(call))
        kernel(places, updates, made)
    return made  # type: ignore[return-value]


def _problem(call: Call) -> str:
    """What is said where the model runs, and an index is outside."""
    return f"{call.node.title}: its indices are within the extents of '{call.node.inputs[0]}'"


def _along(axis: int, x: Any, places: Any, combined: Any, problem: str) -> KernelDefinition:
    """Each line of updates along the axis goes into one line of the result, in order."""
    whole, kind, given = x.shape, x.dtype, places.dtype
    shape = places.shape
    columns = tuple(1 if n == axis else extent for n, extent in enumerate(shape))
    ones, count, extent = (1,) * len(shape), shape[axis], whole[axis]

    @tc.kernel(workers=1)
    def scatter_elements(places: given[shape], updates: kind[shape], y: tc.inout[kind[whole]]):
        for (*column,) in tc.tiles(columns, by=ones):
            for k in range(count):
                for _ in spatial(1):
                    at = (*column[:axis], k, *column[axis + 1 :])
                    place = place_of(places[at].to(tc.i64), extent)
                    assert 0 <= place < extent, problem
                    to = (*column[:axis], place, *column[axis + 1 :])
                    y[to] = combined(y[to], updates[at])

    return scatter_elements


@operator("ScatterND", since=11)
def scatter_nd(call: Call) -> Made:
    call.require_kernel()
    x, places, updates = (call.tensor(position) for position in range(3))
    depth = places.shape[-1]
    count, inner = prod(places.shape[:-1]), prod(x.shape[depth:])
    made: Any = tc.compute(x.shape, lambda *at: x[at], name="copy")
    if prod(updates.shape):
        lines = made.reshape(*x.shape[:depth], inner)
        kernel = _slices(lines, places.dtype, (count, depth), _reduction(call), _problem(call))
        kernel(places.reshape(count, depth), updates.reshape(count, inner), lines)
    return made  # type: ignore[no-any-return]


def _slices(
    lines: Any, given: Any, shape: tuple[int, int], combined: Any, problem: str
) -> KernelDefinition:
    """Slices one after another, as the updates come; a block has some elements of each."""
    (count, depth), whole, kind = shape, lines.shape, lines.dtype
    inner = whole[-1]

    @tc.kernel(workers=_WIDTH)
    def scatter_slices(
        places: given[count, depth], updates: kind[count, inner], y: tc.inout[kind[whole]]
    ):
        for (first,) in tc.tiles((inner,), by=(_WIDTH,)):
            for k in range(count):
                for i in spatial(_WIDTH):
                    if first + i < inner:
                        place = tuple(
                            place_of(places[k, n].to(tc.i64), whole[n]) for n in range(depth)
                        )
                        assert all(0 <= place[n] < whole[n] for n in range(depth)), problem
                        to = (*place, first + i)
                        y[to] = combined(y[to], updates[k, first + i])

    return scatter_slices
