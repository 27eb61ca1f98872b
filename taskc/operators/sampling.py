"""GridSample: images sampled between their elements, at places that are data.

A kernel computes the taps of a place and their weights once for many channels.

RoiAlign: the mean or the maximum of samples spread evenly over each part of a box in an image.

DeformConv: a convolution whose windows read at places that are data, and interpolate between elements.

All windows are gathered first, a row for each window, with lanes for channels, because a place and the weights of its
four neighbours are the same for all channels. The rest is a product with the filters.
"""

from __future__ import annotations

import numpy as np

from taskc import boolean, f32
from taskc.kernels.sampling import (
    TAPS,
    Parts,
    Sampling,
    deformable_windows,
    grid_samples,
    roi_align as regions,
)
from taskc.kernels.transpose import transpose
from taskc.kernels.windows import Windows
from taskc.operators.call import Call, Made, at_least, operator
from taskc.operators.operands import equals, kernel_of, size
from taskc.operators.products import multiplied
from taskc.operators.resizing import rounded
from taskc.operators.tensors import Extent, Tensor, computed, reshaped
from taskc.operators.windows import windows_of
from taskc.programs.tracing import TensorHandle

_FIRST_NAMES = {"bilinear": "linear", "bicubic": "cubic"}  # of versions for 2-D images alone


@operator("GridSample", since=16, ranks=(at_least(2), at_least(2)))
def grid_sample(call: Call) -> Made:
    x, grid = call.tensors(2)
    mode, padding = call.attribute("mode", "linear"), call.attribute("padding_mode", "zeros")
    mode = _FIRST_NAMES.get(mode, mode)
    if mode not in TAPS or padding not in ("zeros", "border", "reflection"):
        raise call.node.error(f"taskc doesn't know its mode '{mode}' with padding '{padding}'")
    images, channels, *extents = x.shape
    rank, results, is_aligned = len(extents), grid.shape[1:-1], call.attribute("align_corners", 0)
    is_of_axes = 1 <= rank <= 3 and len(grid.shape) == rank + 2 and grid.shape[-1] == rank
    if not is_of_axes or not equals(grid.shape[0], images):
        raise call.node.error(f"its grid {[*grid.shape]} names no places of images {[*x.shape]}")
    if x.dtype is boolean and mode != "nearest":
        raise call.node.error(f"there is nothing between bools, and its mode is '{mode}'")
    exact = x.dtype if x.dtype.is_float or mode == "nearest" else f32
    kernel = kernel_of(
        grid_samples, images, channels, tuple(extents), size(results), dtype=x.dtype, given=grid.dtype,
        result=exact, how=Sampling(mode, padding, bool(is_aligned)),
    )  # fmt: skip
    y = kernel(x, grid.reshape(images, size(results), rank))
    samples = y if exact is x.dtype else rounded(y, x.dtype)
    return reshaped(samples, images, channels, *results)


@operator("RoiAlign", since=10)
def roi_align(call: Call) -> Made:
    usual = "output_half_pixel" if call.node.version < 16 else "half_pixel"
    way = call.attribute("coordinate_transformation_mode", usual)
    if way not in ("half_pixel", "output_half_pixel"):
        raise call.node.error(f"taskc doesn't know its coordinates '{way}'")
    is_shifted = way == "half_pixel"
    x, boxes, batch = call.tensors(3)
    mode = call.attribute("mode", "avg")
    if mode not in ("avg", "max"):
        raise call.node.error(f"taskc doesn't know its mode '{mode}'")
    if len(x.shape) != 4 or len(boxes.shape) != 2 or boxes.shape[1] != 4:
        raise call.node.error(f"its images are {[*x.shape]}, and its boxes {[*boxes.shape]}")
    parts = Parts(
        call.attribute("output_height", 1), call.attribute("output_width", 1), mode == "max",
        call.attribute("sampling_ratio", 0), call.attribute("spatial_scale", 1.0),
        0.5 if is_shifted else 0.0, not is_shifted,
    )  # fmt: skip
    images, channels, *extents = x.shape
    by_channels = kernel_of(transpose, x.shape, (0, 2, 3, 1), dtype=x.dtype)(x)
    problem = f"{call.node.title}: each box is of an image"
    kernel = kernel_of(
        regions,
        images,
        tuple(extents),
        channels,
        boxes.shape[0],
        dtype=x.dtype,
        parts=parts,
        problem=problem,
    )
    pooled = kernel(by_channels, boxes, batch)
    return reshaped(pooled, boxes.shape[0], channels, parts.rows, parts.columns)


@operator("DeformConv", since=19)
def deform_conv(call: Call) -> Made:
    x, _, offsets, bias, mask = call.tensors(5)
    _check(call)
    images, channels, height, width = x.shape
    (features, deep, *size), groups = call.shape(1), call.attribute("group", 1)
    parts, (rows, columns) = call.attribute("offset_group", 1), offsets.shape[2:]
    taps, pixels = size[0] * size[1], rows * columns
    windows = windows_of(call, (height, width), tuple(size))
    _check_results(call, windows)
    kernel = kernel_of(
        deformable_windows,
        images,
        (height, width),
        channels,
        parts,
        (rows, columns),
        windows,
        dtype=x.dtype,
    )
    one, factors = x.dtype, (images, parts, taps, pixels)
    seen = kernel(
        kernel_of(transpose, x.shape, (0, 2, 3, 1), dtype=x.dtype)(x),
        offsets.reshape(images, parts, taps, 2, pixels),
        computed(factors, lambda *at: one(1)) if mask is None else mask.reshape(*factors),
    )
    if groups > 1:
        seen = _by_groups(seen, groups, deep)
    between = [] if groups == 1 else [groups]
    made = multiplied(
        seen.reshape(images, *between, pixels, taps * deep), _by_taps(call.given(1), groups)
    )
    turned = kernel_of(
        transpose, made.shape, (0, 2, 1) if groups == 1 else (0, 1, 3, 2), dtype=x.dtype
    )(made)
    y = reshaped(turned, images, features, rows, columns)
    return y if bias is None else computed(y.shape, lambda *at: y[at] + bias[at[1]])


def _check(call: Call) -> None:
    """Check that shapes fit each other, as far as they are numbers."""
    x, filters, offsets = (call.shape(n) for n in range(3))
    if not len(x) == len(filters) == len(offsets) == 4:
        raise call.node.error(f"taskc has it for 2 spatial axes, and x has {len(x) - 2}")
    groups, parts = call.attribute("group", 1), call.attribute("offset_group", 1)
    if x[1] % parts or x[1] != filters[1] * groups or filters[0] % groups:
        raise call.node.error(
            f"{x[1]} channels in {groups} groups, with offsets for {parts}, don't fit filters {[*filters]}"
        )
    wanted = parts * filters[2] * filters[3] * 2
    if offsets[1] != wanted:
        raise call.node.error(f"it has {offsets[1]} offsets of a window, and not {wanted}")


def _check_results(call: Call, windows: Windows) -> None:
    """Check that there are offsets for each window, as far as extents are numbers."""
    given, extents = call.shape(2)[2:], call.shape(0)[2:]
    if not all(isinstance(extent, int) for extent in (*given, *extents)):
        return
    wanted = windows.counts(extents)
    if tuple(given) != wanted:
        raise call.node.error(f"its offsets are of {[*given]} windows, and not {[*wanted]}")


def _by_groups(seen: TensorHandle, groups: int, deep: Extent) -> TensorHandle:
    """Gathered windows with their channels split into groups, groups before pixels."""
    images, pixels, taps, _ = seen.shape
    shape = (images, groups, pixels, taps, deep)
    return computed(shape, lambda n, group, p, tap, c: seen[n, p, tap, group * deep + c])


def _by_taps(filters: Tensor, groups: int) -> Tensor:
    """Filters as the right operand of a product, with one matrix for each group if there are several."""
    features, deep, *size = filters.shape
    taps, each = size[0] * size[1], features // groups
    parts = reshaped(filters, groups, each, deep, taps)
    if isinstance(parts, np.ndarray):
        turned: Tensor = parts.transpose(0, 3, 2, 1)
    else:
        turned = computed((groups, taps, deep, each), lambda group, t, c, f: parts[group, f, c, t])
    between = [] if groups == 1 else [groups]
    return reshaped(turned, *between, taps * deep, each)
