"""RoiAlign: the mean or the maximum of samples spread evenly over each part of a box in an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import taskc as tc
from taskc import DType, KernelDefinition, i64, repeat, spatial
from taskc.kernels.precision import wide
from taskc.kernels.transpose import transpose
from taskc.operators.call import Call, Made, operator
from taskc.operators.movement import inside
from taskc.operators.operands import reshaped, template, tensors

_VECTORS = 4  # of channels in a block

_transpose = template(transpose)


@dataclass(frozen=True, slots=True)
class Parts:
    """How boxes are divided and sampled.

    rows, columns  number of parts of a box
    most           a part's result is its maximum, not its mean
    count          samples along an axis of a part; 0: one for each element that it covers
    scale, shift   map a box's coordinates to places of an image
    is_whole       a box is at least one element wide and high
    """

    rows: int
    columns: int
    most: bool
    count: int
    scale: float
    shift: float
    is_whole: bool


@operator("RoiAlign", since=10)
def roi_align_from_corners(call: Call) -> Made:
    return _aligned(call, is_shifted=False)


@operator("RoiAlign", since=16)
def roi_align(call: Call) -> Made:
    way = call.attribute("coordinate_transformation_mode", "half_pixel")
    if way not in ("half_pixel", "output_half_pixel"):
        raise call.node.error(f"taskc doesn't know its coordinates '{way}'")
    return _aligned(call, is_shifted=way == "half_pixel")


def _aligned(call: Call, is_shifted: bool) -> Made:
    x, boxes, batch = tensors(call, 3)
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
    by_channels = _transpose(x.shape, (0, 2, 3, 1), dtype=x.dtype)(x)
    problem = f"{call.node.title}: each box is of an image"
    kernel = _regions(
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


def _make_regions(
    images: Any, extents: tuple[Any, Any], channels: Any, count: Any,
    *, dtype: DType, parts: Parts, problem: str, machine: tc.Machine,
) -> KernelDefinition:  # fmt: skip
    """Lanes hold channels, so that places and weights are computed once for all of them."""
    total = wide(dtype)
    lanes = machine.of(total).lanes
    own = repeat(_VECTORS) * spatial(lanes)
    (height, width), (many,), pieces = extents, own.shape, parts.rows * parts.columns

    @tc.function
    def span(boxes, box, axis, number):
        """Where a box begins along an axis, and the distance between its parts."""
        low = boxes[box, axis].to(total) * parts.scale - parts.shift
        length = boxes[box, axis + 2].to(total) * parts.scale - parts.shift - low
        return low, (max(length, 1) if parts.is_whole else length) / number

    @tc.function
    def places_in(size):
        return i64(parts.count) if parts.count > 0 else max(tc.ceil(size).to(i64), 0)

    @tc.function
    def between(at, extent):
        """The element below a place, the one above, and the weight of the latter."""
        limited = max(at, 0)
        low = inside(limited.to(i64), extent)
        high = inside(low + 1, extent)
        return low, high, limited - low.to(total) if low < extent - 1 else total(0)

    @tc.function
    def read(x, image, rows, columns, channel):
        above, below, down = rows
        before, behind, across = columns
        a = (1 - down) * (1 - across) * x[image, above, before, channel].to(total)
        b = (1 - down) * across * x[image, above, behind, channel].to(total)
        c = down * (1 - across) * x[image, below, before, channel].to(total)
        d = down * across * x[image, below, behind, channel].to(total)
        return max(a, b, c, d) if parts.most else a + b + (c + d)

    @tc.function
    def folded(old, new, is_first):
        return (new if is_first else max(old, new)) if parts.most else old + new

    @tc.kernel(workers=own.workers)
    def regions(
        x: dtype[images, height, width, channels],
        boxes: dtype[count, 4],
        batch: i64[count],
        y: tc.out[dtype[count, channels, pieces]],
    ):
        for box, channel in tc.tiles((count, channels), by=(1, many)):
            results = tc.shared(total[pieces, many])
            image = batch[box]
            assert 0 <= image < images, problem
            left, across = span(boxes, box, 0, parts.columns)
            top, down = span(boxes, box, 1, parts.rows)
            tall, broad = places_in(down), places_in(across)
            for piece in range(pieces):
                found = tc.tile(total, own, 0)
                upper = top + (piece // parts.columns).to(total) * down
                start = left + (piece % parts.columns).to(total) * across
                for r in range(tall):
                    row = upper + (r.to(total) + 0.5) * down / tall.to(total)
                    rows = between(row, height)
                    for s in range(broad):
                        column = start + (s.to(total) + 0.5) * across / broad.to(total)
                        columns = between(column, width)
                        is_inside = -1 <= row <= height and -1 <= column <= width
                        for (c,) in own:
                            if channel + c < channels:
                                value = total(0)
                                if is_inside:
                                    value = read(x, image, rows, columns, channel + c)
                                found[c] = folded(found[c], value, r == 0 and s == 0)
                number = i64(1) if parts.most else max(tall * broad, 1)
                for (c,) in own:
                    results[piece, c] = found[c] / number.to(total)
            for c in range(many):
                if channel + c < channels:
                    for first in range(0, pieces, lanes):
                        for j in spatial(lanes):
                            if first + j < pieces:
                                y[box, channel + c, first + j] = results[first + j, c].to(dtype)

    return regions


_regions = template(_make_regions)
