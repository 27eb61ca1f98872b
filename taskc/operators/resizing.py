"""Resize and Upsample: each axis is a weighted sum of a few elements, or the nearest one.

The indices of these elements and their weights are a small table for each axis, computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

import taskc as tc
from taskc import DType, f32, f64
from taskc.dataclass import dataclass
from taskc.kernels.indices import inside
from taskc.kernels.sampling import cubic
from taskc.operators.call import Call, operator
from taskc.operators.operands import are_equal, spliced, total
from taskc.operators.tensors import (
    Extent,
    Function,
    Held,
    Images,
    Shape,
    computed,
    computed_once,
    elements_of,
    handle_of,
    like,
    rows_of,
)
from taskc.programs.tracing import Computed, Element, TensorHandle


@dataclass(frozen=True, slots=True)
class _Axis:
    """How one axis is resized."""

    axis: int
    extent: Extent
    length: Extent  # of the result
    scale: float
    start: float = 0.0  # of the cropped part, if any
    end: float = 1.0


@operator("Upsample")
def upsample_by_attributes(call: Call) -> Held:
    return _upsampled(call, call.attribute("scales"))


@operator("Upsample", since=9)
@operator("Resize", since=10)
def upsample(call: Call) -> Held:
    return _upsampled(call, _floats(call, 1))


def _upsampled(call: Call, scales: Sequence[float]) -> Held:
    axes = [
        _Axis(axis, extent, floor(extent * scale), scale)
        for axis, (extent, scale) in enumerate(zip(call.shape(0), scales, strict=True))
    ]
    return _Resize(call, "asymmetric", "simple").resized(axes)


@operator("Resize", since=11)
def resize(call: Call) -> Held:
    extents = call.shape(0)
    rank = len(extents)
    named = call.attribute("axes")
    axes = range(rank) if named is None else call.axes_of(named, rank)
    roi = _floats(call, 1) if call.has(1) and call.known(1).size else [0.0] * rank + [1.0] * rank
    starts = dict(zip(axes, roi, strict=False))
    ends = dict(zip(axes, roi[len(roi) // 2 :], strict=False))
    if call.has(2) and call.known(2).size:
        factors = _floats(call, 2)
        _check_listed(call, "scales", factors, axes)
        scales = dict(zip(axes, factors, strict=True))
        if not min(factors, default=1.0) > 0:
            raise call.node.error(f"its scales have to be above 0: {factors}")
        lengths = {axis: floor(extents[axis] * scale) for axis, scale in scales.items()}
        if call.attribute("coordinate_transformation_mode") == "tf_crop_and_resize":
            lengths = {
                axis: floor(extents[axis] * (ends[axis] - starts[axis]) * scale)
                for axis, scale in scales.items()
            }
    else:
        lengths, scales = _by_sizes(call, axes)
    resized = [
        _Axis(axis, extents[axis], lengths[axis], scales[axis], starts[axis], ends[axis])
        for axis in axes
    ]
    mode = call.attribute("coordinate_transformation_mode", "half_pixel")
    nearest = call.attribute("nearest_mode", "round_prefer_floor")
    return _Resize(call, mode, nearest).resized(resized)


def _check_listed(call: Call, what: str, numbers: Sequence[object], axes: Sequence[int]) -> None:
    if len(numbers) != len(axes):
        raise call.node.error(f"it has {len(numbers)} {what} for {len(axes)} axes")


def _by_sizes(call: Call, axes: Sequence[int]) -> tuple[dict[int, Extent], dict[int, float]]:
    """The requested lengths, and the scales that follow from them."""
    extents, wanted = call.shape(0), call.integers(3)
    _check_listed(call, "sizes", wanted, axes)
    if any(are_equal(extents[axis], 0) for axis in axes):
        raise call.node.error("an image without elements has no size to scale from")
    lengths = dict(zip(axes, wanted, strict=True))
    scales = {axis: length / extents[axis] for axis, length in lengths.items()}
    policy = call.attribute("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return lengths, scales
    scale = min(scales.values()) if policy == "not_larger" else max(scales.values())
    return {axis: floor(extents[axis] * scale + 0.5) for axis in axes}, dict.fromkeys(axes, scale)


def _floats(call: Call, position: int) -> list[float]:
    return [float(number) for number in call.known(position).reshape(-1)]


@dataclass(frozen=True, slots=True)
class _Resize:
    """A Resize node, its coordinate transformation, and its rounding mode."""

    call: Call
    coordinates: str
    nearest: str

    def resized(self, axes: Sequence[_Axis]) -> Held:
        call = self.call
        call.require_kernel()
        cuts = self.coordinates == "tf_crop_and_resize"
        changed = [part for part in axes if cuts or part.scale != 1 or part.length != part.extent]
        x = call.images(0)
        elements = elements_of(x)
        if cuts or not x.dtype.is_float or any(part.axis < 2 for part in changed):
            x = rows_of(x)
        if call.attribute("mode", "nearest") == "nearest":
            y = self._nearest(x, changed)
        else:
            y = x if x.dtype.is_float else like(x, f32, lambda *at: elements[at].to(f32))
            for part in changed:
                y = self._summed(y, part)
        if cuts:
            y = self._filled(rows_of(y), changed)
        return y if y.dtype is x.dtype else rounded(rows_of(y), x.dtype)

    def coordinate(self, part: _Axis) -> Function:
        """The position in the input of an element of the result, as a function of its index."""
        extent, length, scale = float(part.extent), float(part.length), part.scale
        whole = scale * extent  # the length before it was rounded down
        if self.coordinates == "asymmetric":
            return tc.function(lambda i: i.to(f64) / scale)
        if self.coordinates == "tf_half_pixel_for_nn":  # of opset 11 alone
            return tc.function(lambda i: (i.to(f64) + 0.5) / scale)
        if self.coordinates == "half_pixel_symmetric":
            offset = extent / 2 * (1 - length / whole) - 0.5
            return tc.function(lambda i: (i.to(f64) + 0.5) / scale + offset)
        if self.coordinates == "half_pixel" or (
            self.coordinates == "pytorch_half_pixel" and part.length > 1
        ):
            return tc.function(lambda i: (i.to(f64) + 0.5) / scale - 0.5)
        if self.coordinates == "pytorch_half_pixel":
            return tc.function(lambda i: i.to(f64))
        if self.coordinates == "align_corners":
            step = 0.0 if whole == 1 else (extent - 1) / (whole - 1)
            return tc.function(lambda i: i.to(f64) * step)
        if self.coordinates == "tf_crop_and_resize":
            size = (part.end - part.start) * (extent - 1)
            first = part.start * (extent - 1) + (size / 2 if whole == 1 else 0.0)
            step = 0.0 if whole == 1 else size / (whole - 1)
            return tc.function(lambda i: i.to(f64) * step + first)
        raise self.call.node.error(f"taskc doesn't know its coordinates '{self.coordinates}'")

    def _nearest(self, x: Images, changed: Sequence[_Axis]) -> Images:
        shape, tables, elements = [*x.shape], {}, elements_of(x)
        for part in changed:
            shape[part.axis] = part.length
            tables[part.axis] = self._places(part)
        axes = [tables.get(axis) for axis in range(len(shape))]

        def value(*at: Element) -> Computed:
            return elements[
                tuple(
                    i if table is None else inside(table[i].to(tc.i64), extent)
                    for i, table, extent in zip(at, axes, x.shape, strict=True)
                )
            ]

        return like(x, x.dtype, tc.function(value), "nearest", shape)

    def _places(self, part: _Axis) -> TensorHandle:
        """The nearest elements along an axis."""
        coordinate, last = self.coordinate(part), part.extent - 1
        way = self.nearest
        if way == "simple":  # as ONNX Runtime does for versions where ONNX leaves it open
            way = "ceil" if part.scale < 1 else "floor"
        if way not in _NEAREST:
            raise self.call.node.error(f"taskc doesn't know its way to round '{way}'")
        chosen = tc.function(_NEAREST[way])

        def value(i: Element) -> Computed:
            return min(max(chosen(coordinate(i)).to(tc.i64), 0), last).to(tc.i32)

        return _table((part.length,), value)

    def _summed(self, x: Images, part: _Axis) -> Images:
        """One axis resized by weighted sums."""
        axis, (places, weights), dtype = part.axis, self._weighted(part), x.dtype
        elements = elements_of(x)
        count = weights.shape[0]
        if dtype is not f64:
            weights = rounded(weights, dtype)

        @tc.function
        def place(number: Element, at: Element) -> Computed:
            return inside(places[number, at[axis]].to(tc.i64), part.extent)

        def term(number: int) -> Function:
            return tc.function(
                lambda at: (
                    weights[number, at[axis]]
                    * elements[spliced(at, axis, axis + 1, (place(number, at),))]
                )
            )

        value = total([term(number) for number in range(count)])
        shape = (*x.shape[:axis], part.length, *x.shape[axis + 1 :])
        return like(x, dtype, tc.function(lambda *at: value(at)), "resized", shape)

    def _weighted(self, part: _Axis) -> tuple[TensorHandle, TensorHandle]:
        """For each element of the result, the places of the elements that it sums, and their weights."""
        first, count, weight = self._taps(part)
        coordinate, last, length = self.coordinate(part), part.extent - 1, part.length
        excludes = bool(self.call.attribute("exclude_outside", 0))

        def raw(n: Element, i: Element) -> Computed:
            where = coordinate(i)
            below = tc.floor(where)
            place = below.to(tc.i64) + n + first
            counts = (place >= 0 and place <= last) or not excludes
            return weight((n + first).to(f64) - (where - below)) if counts else f64(0)

        def place(n: Element, i: Element) -> Computed:
            return min(max(tc.floor(coordinate(i)).to(tc.i64) + n + first, 0), last).to(tc.i32)

        def scaled() -> TensorHandle:
            known = handle_of(weights)
            taps = total([_tap(known, number) for number in range(count)])
            return computed((count, length), lambda n, i: known[n, i] / taps(i))

        weights = computed_once(lambda: computed((count, length), tc.function(raw)))
        return _table((count, length), place), handle_of(computed_once(scaled))

    def _taps(self, part: _Axis) -> tuple[int, int, Function]:
        """The first tap's offset, the number of taps, and the weight as a function of the distance."""
        shrunk = min(part.scale, 1.0) if self.call.attribute("antialias", 0) else 1.0
        mode = self.call.attribute("mode")
        if mode == "linear":
            first = floor(-1 / shrunk) + 1
            return first, 2 - 2 * first, tc.function(lambda d: max(0, 1 - abs(d * shrunk)))
        if mode == "cubic":
            first, a = floor(-2 / shrunk) + 1, self.call.attribute("cubic_coeff_a", -0.75)
            return first, 2 - 2 * first, tc.function(lambda d: cubic(abs(d * shrunk), a))
        raise self.call.node.error(f"taskc doesn't know its mode '{mode}'")

    def _filled(self, x: TensorHandle, axes: Sequence[_Axis]) -> TensorHandle:
        """The result with a constant where the crop lies outside the input."""
        number, dtype = self.call.attribute("extrapolation_value", 0.0), x.dtype
        checks = [(part.axis, float(part.extent - 1), self.coordinate(part)) for part in axes]

        def value(*at: Element) -> Computed:
            covered = all(
                where(at[axis]) >= 0 and where(at[axis]) <= last for axis, last, where in checks
            )
            return x[at] if covered else dtype(number)

        return computed(x.shape, tc.function(value), name="filled")


_NEAREST: dict[str, Function] = {
    "round_prefer_floor": lambda x: tc.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: tc.floor(x + 0.5),
    "floor": lambda x: tc.floor(x),
    "ceil": lambda x: tc.ceil(x),
}


def _table(shape: Shape, value: Function) -> TensorHandle:
    """A constant computed element by element."""
    return handle_of(computed_once(lambda: computed(shape, tc.function(value))))


def _tap(weights: TensorHandle, number: int) -> Function:
    return tc.function(lambda i: weights[number, i])


def rounded(x: TensorHandle, dtype: DType) -> TensorHandle:
    """The nearest numbers of a type."""
    if dtype.is_integer:
        return computed(x.shape, lambda *at: round(x[at]).to(dtype), name="converted")
    return computed(x.shape, lambda *at: x[at].to(dtype), name="converted")
