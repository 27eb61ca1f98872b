"""Pad, with all of its modes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import taskc as tc
from taskc import boolean
from taskc.lang.sizes import Size
from taskc.operators.call import Call, Made, Tensor, operator
from taskc.operators.common import are_equal, axes_of


@operator("Pad")
def pad_by_attributes(call: Call) -> Made:
    call.require_kernel()
    dtype, number = call.dtype(0), call.attribute("value", 0.0)
    return _padded(call, call.attribute("pads"), tc.function(lambda: dtype(number)))


@operator("Pad", since=11)
def pad(call: Call) -> Made:
    call.require_kernel()
    x, pads = call.tensor(0), call.integers(1)
    dtype = x.dtype
    if call.has(3):
        axes = axes_of(call, call.integers(3), len(x.shape))
        half = len(axes)
        if len(pads) != 2 * half:
            raise call.node.error(f"it has {len(pads)} pads of {half} axes")
        whole = [0] * (2 * len(x.shape))
        for number, axis in enumerate(axes):
            whole[axis], whole[axis + len(x.shape)] = pads[number], pads[number + half]
        pads = whole
    if not call.has(2):
        number = False if dtype is boolean else 0
        return _padded(call, pads, tc.function(lambda: dtype(number)))
    filler = call.tensor(2).reshape()
    return _padded(call, pads, tc.function(lambda: filler[()]))


def _padded(call: Call, pads: Sequence[Any], filler: Any) -> Tensor:
    x = call.tensor(0)
    rank = len(x.shape)
    if len(pads) != 2 * rank:
        raise call.node.error(f"it has {len(pads)} pads of {rank} axes")
    before, extents = tuple(pads[:rank]), x.shape
    shape = [
        extent + low + high for extent, low, high in zip(extents, before, pads[rank:], strict=True)
    ]
    if any(isinstance(extent, int) and extent < 0 for extent in shape):
        raise call.node.error(f"its pads {list(pads)} leave less than nothing of {list(extents)}")
    mode = call.attribute("mode", "constant")
    if mode not in _PLACES:
        raise call.node.error(f"taskc doesn't know its mode '{mode}'")
    if mode == "constant":

        def value(*at):
            place = tuple(i - low for i, low in zip(at, before, strict=True))
            inside = all(i >= 0 and i < extent for i, extent in zip(place, extents, strict=True))
            return x[place] if inside else filler()
    else:
        place_in = tc.function(_PLACES[mode])
        added, cut = tuple(_positive(n) for n in before), tuple(_positive(-n) for n in before)
        # Elements cropped by negative pads can't be repeated by the others.
        left = tuple(
            extent - first - _positive(-high)
            for extent, first, high in zip(extents, cut, pads[rank:], strict=True)
        )
        for extent, whole in zip(left, shape, strict=True):
            if isinstance(extent, int) and extent < 1 and not are_equal(whole, 0):
                raise call.node.error(f"there is nothing that its mode '{mode}' could repeat")

        def value(*at):
            return x[
                tuple(
                    place_in(i - low, extent) + first
                    for i, low, extent, first in zip(at, added, left, cut, strict=True)
                )
            ]

    return call.compute(shape, tc.function(value))


def _positive(number: Any) -> Any:
    return number if isinstance(number, Size) else max(number, 0)


@tc.function
def _reflected(i, extent):
    """The index reflected at both ends, without repeating them."""
    period = max(2 * (extent - 1), 1)
    return min(max(min(i % period, period - i % period), 0), extent - 1)


_PLACES: dict[str, Any] = {
    "constant": None,
    "edge": lambda i, extent: min(max(i, 0), extent - 1),
    "reflect": lambda i, extent: _reflected(i, extent),
    "wrap": lambda i, extent: i % extent,
}
