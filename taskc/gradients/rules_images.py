"""The gradients of convolutions and poolings, as sums over the taps of windows.

A convolution's gradient of images is the transposed convolution of the result's, and the other way round. That of
filters is a product of matrices: the result's gradient, times the pixels that each tap meets (im2col).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

import taskc as tc
from taskc.gradients.rules import Gradients, Pullback, product, rule
from taskc.kernels import convolution, pooling
from taskc.lang.sizes import Number
from taskc.operators.op import op
from taskc.operators.operands import converted
from taskc.operators.tensors import computed
from taskc.programs.tracing import Element, TensorHandle


def _is_plain(problem: Any) -> bool:
    has_more = problem.activation is not None or problem.scale or problem.in_place
    return problem.is_sized and not has_more and not problem.packed


@rule(convolution.Problem, _is_plain)
def of_convolutions(call: Pullback) -> Gradients:
    problem, (given, filters, *further) = call.problem, call.inputs
    x, y = nchw(given, problem.order), nchw(call.gradient, problem.results)
    x, y = cropped(x, problem.channels), cropped(y, problem.features)
    letters = problem.filters
    source = "IOHW" if problem.transposed else "OIHW"
    w = op.Transpose(filters, perm=_order(letters, source, len(filters.shape)))
    windows = _Windows(problem, len(x.shape) - 2)
    gradients: list[TensorHandle | None] = [None, None]
    if call.wanted[0]:
        of_x = windows.back(x, y, w)
        gradients[0] = like(padded(of_x, given, problem.order), problem.order)
    if call.wanted[1]:
        image, of_image = (y, x) if problem.transposed else (x, y)
        of_w = windows.of_filters(image, of_image)
        of_w = op.Transpose(of_w, perm=_order(source, letters, len(of_w.shape)))
        gradients[1] = converted(of_w, filters.dtype)
    if problem.bias:
        axes = [0, *range(2, len(y.shape))]
        gradients.append(
            converted(
                op.ReduceSum(converted(y, further[0].dtype), axes, keepdims=0), further[0].dtype
            )
        )
    if problem.residual:
        gradients.append(call.gradient)
    return gradients


class _Windows:
    """The windows of a convolution or a pooling along `axes` spatial axes, as attributes of ONNX's operators."""

    def __init__(self, problem: Any, axes: int) -> None:
        above, left, below, right = problem.padding
        size, stride, dilation = problem.size, problem.stride, problem.dilation
        before: tuple[int, ...] = (above, left)
        behind: tuple[int, ...] = (below, right)
        if axes == 3:
            s = problem.slices
            size, stride, dilation = (s.size, *size), (s.stride, *stride), (s.dilation, *dilation)
            before, behind = (s.front, *before), (s.back, *behind)
        self.size, self.stride, self.dilation = size[-axes:], stride[-axes:], dilation[-axes:]
        self.before, self.behind = before[-axes:], behind[-axes:]
        self.groups = getattr(problem, "groups", 1)
        self.is_transposed = getattr(problem, "transposed", False)

    @property
    def attributes(self) -> dict[str, Any]:
        return {
            "kernel_shape": [*self.size], "strides": [*self.stride], "dilations": [*self.dilation],
            "pads": [*self.before, *self.behind],
        }  # fmt: skip

    def back(self, x: TensorHandle, y: TensorHandle, w: TensorHandle) -> TensorHandle:
        """The gradient of images x, from that of results y."""
        attributes = {**self.attributes, "group": self.groups}
        w = converted(w, y.dtype)
        made: TensorHandle
        if self.is_transposed:
            made = op.Conv(y, w, **attributes)
            return made
        windows = zip(
            x.shape[2:], y.shape[2:], self.size, self.stride, self.dilation, self.before, self.behind, strict=True
        )  # fmt: skip
        beyond = [
            n - ((m - 1) * step + (taps - 1) * apart + 1 - low - high)
            for n, m, taps, step, apart, low, high in windows
        ]
        made = op.ConvTranspose(y, w, output_padding=beyond, **attributes)
        return made

    def of_filters(self, image: TensorHandle, result: TensorHandle) -> TensorHandle:
        """The gradient of filters [features, channels, ...]: results times the pixels that their windows see."""
        images, channels, *extents = image.shape
        features, *counts = result.shape[1:]
        groups, dtype = self.groups, image.dtype
        own, others = channels // groups, features // groups
        taps = len(self.size)
        stride, dilation, before = self.stride, self.dilation, self.before

        def pixel(group: Element, channel: Element, *rest: Element) -> Any:
            tap, at = rest[:taps], rest[taps + 1 :]
            place = tuple(at[n] * stride[n] + tap[n] * dilation[n] - before[n] for n in range(taps))
            inside = all(0 <= place[n] < extents[n] for n in range(taps))
            found = (rest[taps], group * own + channel, *place)
            return image[found] if inside else dtype(0)

        columns = computed(
            (groups, own, *self.size, images, *counts), tc.function(pixel), "columns"
        )

        def gradient(group: Element, feature: Element, n: Element, *at: Element) -> Any:
            found = (n, group * others + feature, *at)
            return result[found]

        turned = computed((groups, others, images, *counts), tc.function(gradient), "turned")
        pixels = images
        for count in counts:
            pixels = pixels * count
        wide = own
        for size in self.size:
            wide = wide * size
        made = product(
            turned.reshape(groups, others, pixels),
            columns.reshape(groups, wide, pixels),
            False,
            True,
        )
        return made.reshape(features, own, *self.size)


# Orders of axes.


def _order(source: str, target: str, rank: int) -> list[int]:
    """Which axis of an array of filters in one order is each of the other's; H stands for all spatial axes but W."""
    spatial = "DHW"[3 - (rank - 2) :]
    given, wanted = (order.replace("HW", spatial) for order in (source, target))
    return [given.index(letter) for letter in wanted]


def nchw(x: TensorHandle, order: str) -> TensorHandle:
    rank = len(x.shape)
    if order == "NHWC":
        turned: TensorHandle = op.Transpose(x, perm=[0, rank - 1, *range(1, rank - 1)])
        return turned
    return x


def like(x: TensorHandle, order: str) -> TensorHandle:
    """Images of NCHW in another order."""
    if order == "NHWC":
        turned: TensorHandle = op.Transpose(x, perm=[0, *range(2, len(x.shape)), 1])
        return turned
    return x


def numbers(extents: Sequence[Number]) -> list[int]:
    """Extents of a problem whose sizes are numbers."""
    return [operator.index(extent) for extent in extents]


def cropped(x: TensorHandle, channels: int) -> TensorHandle:
    """Images without the channels that fill up a block."""
    if x.tensor.layout is None:
        return x
    shape = (x.shape[0], channels, *x.shape[2:])
    return computed(shape, lambda *at: x[at], "rows")


def padded(x: TensorHandle, given: TensorHandle, order: str) -> TensorHandle:
    """Images with as many channels as those given have with their last block filled up."""
    channels, dtype = x.shape[1], x.dtype
    if given.tensor.layout is None or given.shape[1] == channels:
        return x
    return computed(given.shape, lambda *at: x[at] if at[1] < channels else dtype(0), "filled_up")


# Poolings.


@rule(pooling.Problem, lambda problem: problem.is_sized)
def of_poolings(call: Pullback) -> Gradients:
    """Of several largest numbers of a window the first one has its gradient, as in PyTorch."""
    problem, (given,) = call.problem, call.inputs
    x, g = nchw(given, problem.order), nchw(call.gradient, problem.results)
    x, g = cropped(x, problem.channels), cropped(g, problem.channels)
    windows, counts = _Windows(problem, 2), numbers(g.shape[2:])
    if problem.operator == "max":
        made = _of_largest(x, g, windows, counts)
    else:
        made = _of_windows(_shares(problem, g, windows, numbers(x.shape[2:])), x, windows, counts)
    return [like(padded(converted(made, given.dtype), given, problem.order), problem.order)]


def _shares(
    problem: Any, g: TensorHandle, windows: _Windows, extents: Sequence[int]
) -> TensorHandle:
    """The gradient of each number of a window, of sums or averages."""
    if problem.operator == "sum":
        return g
    members, counts = [], numbers(g.shape[2:])
    for axis, extent in enumerate(extents):
        first = np.arange(counts[axis]) * windows.stride[axis] - windows.before[axis]
        at = first[:, None] + np.arange(windows.size[axis]) * windows.dilation[axis]
        low, high = (
            (-windows.before[axis], extent + windows.behind[axis])
            if problem.counts_padding
            else (0, extent)
        )
        members.append(((at >= low) & (at < high)).sum(1))
    divisors = np.maximum(members[0][:, None] * members[1], 1).astype(g.dtype.numpy)
    among = tc.constant(divisors)
    return computed(g.shape, lambda n, c, i, j: g[n, c, i, j] / among[i, j], "shares")


def _of_windows(
    g: TensorHandle, x: TensorHandle, windows: _Windows, counts: Sequence[int], places: Any = None
) -> TensorHandle:
    """The sum of what the windows around a pixel give it: all of them, or those whose largest number it is."""
    (height, width), channels = x.shape[2:], x.shape[1]
    (rows, columns), (top, left) = counts, windows.before
    (down, across), (far_down, far_across) = windows.stride, windows.dilation
    dtype = g.dtype

    def share(n: Element, c: Element, h: Element, w: Element, r: Element, s: Element) -> Any:
        i, j = h + top - r * far_down, w + left - s * far_across
        inside = i >= 0 and j >= 0 and i % down == 0 and j % across == 0
        there = inside and i // down < rows and j // across < columns
        if places is None:
            return g[n, c, i // down, j // across] if there else dtype(0)
        else:
            place = ((n * channels + c) * height + h) * width + w
            return (
                g[n, c, i // down, j // across]
                if there and places[n, c, i // down, j // across] == place
                else dtype(0)
            )

    taps = computed((*x.shape, *windows.size), tc.function(share), "taps")
    summed: TensorHandle = op.ReduceSum(taps, [4, 5], keepdims=0)
    return summed


def _of_largest(
    x: TensorHandle, g: TensorHandle, windows: _Windows, counts: Sequence[int]
) -> TensorHandle:
    attributes = windows.attributes
    reach = [
        (count - 1) * step + (taps - 1) * apart + 1 - n - low
        for count, step, taps, apart, n, low in zip(
            counts, windows.stride, windows.size, windows.dilation, x.shape[2:], windows.before, strict=True
        )
    ]  # fmt: skip
    attributes["pads"] = [*windows.before, *[max(0, n) for n in reach]]
    _, places = op.MaxPool(x, outputs=2, **attributes)
    return _of_windows(g, x, windows, counts, places)
