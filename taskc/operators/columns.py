"""Col2Im: windows, a column for each, added up where they overlap."""

from __future__ import annotations

from math import prod
from typing import Any

import taskc as tc
from taskc import DType, KernelDefinition, boolean, spatial
from taskc.kernels.precision import wide
from taskc.operators.call import Call, Made, operator
from taskc.operators.operands import reshaped, template, tensors
from taskc.operators.windows import Windows, windows_of


@operator("Col2Im", since=18)
def col2im(call: Call) -> Made:
    (x,) = tensors(call, 1)
    extents, size = tuple(call.integers(1)), tuple(call.integers(2))
    windows = windows_of(call, extents, size)
    axes = zip(
        extents, windows.before, windows.behind, windows.covered, windows.stride, strict=True
    )
    counts = tuple((n + low + high - covered) // step + 1 for n, low, high, covered, step in axes)
    taps, places = prod(size), prod(counts)
    if len(x.shape) != 3 or x.dtype is boolean:
        raise call.node.error(f"its columns are {x.dtype}{[*x.shape]}, and not numbers of 3 axes")
    batch, rows, columns = x.shape
    if (isinstance(rows, int) and rows % taps) or columns != places:
        raise call.node.error(
            f"its columns {[rows, columns]} aren't windows of {[*size]} at {[*counts]} places"
        )
    planes = batch * (rows // taps)
    kernel = _columns(planes, extents, counts, windows, dtype=x.dtype)
    return reshaped(kernel(x.reshape(planes, taps, places)), batch, rows // taps, *extents)


def _make_columns(
    planes: Any, extents: tuple[Any, ...], counts: tuple[Any, ...], windows: Windows,
    *, dtype: DType, machine: tc.Machine,
) -> KernelDefinition:  # fmt: skip
    """Sum, for each element, the entries of all windows that cover it."""
    total, axes = wide(dtype), range(len(extents))
    own = spatial(machine.of(total).lanes)
    taps, places, volume = prod(windows.size), prod(counts), prod(extents)
    strides = [prod(extents[axis + 1 :]) for axis in axes]
    steps = [prod(windows.size[axis + 1 :]) for axis in axes]

    @tc.function
    def distance(n, tap):
        """How far an element lies behind the first tap of the first window, for each axis, less its own tap."""
        return tuple(
            n // strides[axis] % extents[axis]
            + windows.before[axis]
            - tap // steps[axis] % windows.size[axis] * windows.dilation[axis]
            for axis in axes
        )

    @tc.function
    def place(parts):
        """The window of a number for each axis, counted through all."""
        found = 0
        for axis in tc.static(axes):
            found = found * counts[axis] + parts[axis] // windows.stride[axis]
        return min(max(found, 0), places - 1)

    @tc.kernel(workers=own.workers)
    def columns(x: dtype[planes, taps, places], y: tc.out[dtype[planes, volume]]):
        for plane, first in tc.tiles((planes, volume), by=(1, own.workers)):
            sums = tc.tile(total, own, 0)
            for tap in range(taps):
                for j in own:
                    parts = distance(first + j, tap)
                    is_seen = all(
                        parts[axis] >= 0
                        and parts[axis] % windows.stride[axis] == 0
                        and parts[axis] // windows.stride[axis] < counts[axis]
                        for axis in axes
                    )
                    if first + j < volume and is_seen:
                        sums[j] += x[plane, tap, place(parts)].to(total)
            for j in own:
                if first + j < volume:
                    y[plane, first + j] = sums[j].to(dtype)

    return columns


_columns = template(_make_columns)
