"""Reductions along axes, arg-reductions, running sums, and TopK."""

from __future__ import annotations

from math import prod

import taskc as tc
from taskc import boolean, f64, i64, u8
from taskc.kernels.indices import top_k
from taskc.kernels.pooling import global_average_pool, global_max_pool
from taskc.kernels.reductions import argmax, argmin, reduction
from taskc.kernels.signatures import wide
from taskc.kernels.weights import weight_of
from taskc.operators.call import Call, Made, operator
from taskc.operators.operands import Template, converted, kernel_of, repeated, size
from taskc.operators.tensors import Blocked, Function, Shape, Tensor, computed, reshaped
from taskc.programs.tracing import Computed, Element, TensorHandle

_PLACES: dict[str, Template] = {"ArgMax": argmax, "ArgMin": argmin}

_OF_BLOCKED: dict[str, Template] = {"max": global_max_pool, "mean": global_average_pool}

_OF_SIZES: dict[str, Function] = {"sum": sum, "prod": prod, "max": max, "min": min}


def _reduces(
    name: str, fold: str, before: Function | None = None, behind: Function | None = None
) -> None:
    """Register a reduction: `before` maps each element, then comes the fold, and `behind` maps its result."""

    def build(call: Call) -> Tensor:
        if call.by_python and fold in _OF_SIZES and before is behind is None:
            return _of_known(call, _OF_SIZES[fold])
        if before is behind is None and (of_blocks := _of_blocked_images(call, fold)) is not None:
            return of_blocks
        (x,) = call.tensors(1)
        dtype, total, given = x.dtype, wide(x.dtype), x
        if before is not None:
            given = computed(x.shape, lambda *at: before(x[at].to(total)))
        axes = _axes(call, len(x.shape))
        made = folded(fold, given, axes, bool(call.attribute("keepdims", 1)))
        if behind is None:
            return converted(made, dtype)
        between = f64 if dtype.is_integer else total
        return computed(made.shape, lambda *at: behind(made[at].to(between)).to(dtype))

    operator(name)(build)


def _of_blocked_images(call: Call, fold: str) -> Tensor | None:
    """The fold of whole images that are blocked, or None."""
    x = call.images(0) if fold in _OF_BLOCKED else None
    if not isinstance(x, Blocked) or not x.dtype.is_float or not call.attribute("keepdims", 1):
        return None
    rank = len(x.shape)
    return of_blocked(fold, x) if _axes(call, rank) == tuple(range(2, rank)) else None


def of_blocked(fold: str, x: Blocked) -> TensorHandle:
    """The mean, or the largest element, of each channel of blocked images."""
    n, c, *extents = x.shape
    options = {"order": "NCHWc", "results": "NCHW", "dtype": x.dtype}
    return kernel_of(_OF_BLOCKED[fold], n, *extents, c, **options)(x.handle)


def _of_known(call: Call, fold: Function) -> Tensor:
    """The fold of a short list of known integers, such as a shape."""
    x = call.tensor(0)
    if x.ndim != 1 or _axes(call, 1) != (0,):
        call.require_kernel()
    value = fold(x.tolist())
    return call.compute((1,) if call.attribute("keepdims", 1) else (), lambda *at: value)


def _axes(call: Call, rank: int) -> tuple[int, ...]:
    """The axes that a node reduces, from an attribute or, since later versions, an input."""
    axes = call.attribute("axes")
    if axes is None:
        axes = call.integers(1) if call.has(1) else []
    if not axes:
        return () if call.attribute("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted({call.axis_of(axis, rank) for axis in axes}))


def folded(fold: str, x: TensorHandle, axes: tuple[int, ...], keepdims: bool) -> TensorHandle:
    """A reduction, including booleans and empty axes, which the library's kernels don't take."""
    if x.dtype is boolean:
        return converted(folded(fold, converted(x, u8), axes, keepdims), boolean)
    remaining = [n for axis, n in enumerate(x.shape) if axis not in axes]
    shape = [1 if axis in axes else n for axis, n in enumerate(x.shape)] if keepdims else remaining
    extents = [x.shape[axis] for axis in axes]
    if fold in ("max", "min") and any(isinstance(n, int) and n == 0 for n in extents):
        dtype = x.dtype
        none = dtype.minimum if fold == "max" else dtype.maximum
        if dtype.is_float:
            none = -tc.inf if fold == "max" else tc.inf
        return computed(shape, lambda *at: dtype(none))
    if fold == "mean" and x.dtype.is_integer:
        total, count = folded("sum", x, axes, keepdims), size(extents)
        return computed(shape, lambda *at: tc.truncdiv(total[at], count))
    if not axes:
        return x
    return kernel_of(reduction, fold, x.shape, axes, dtype=x.dtype, keepdims=keepdims)(x)


@tc.function
def _squared(x: Element) -> Computed:
    return x * x


_reduces("ReduceSum", "sum")
_reduces("ReduceMean", "mean")
_reduces("ReduceProd", "prod")
_reduces("ReduceMax", "max")
_reduces("ReduceMin", "min")
_reduces("ReduceL1", "sum", abs)
_reduces("ReduceSumSquare", "sum", _squared)
_reduces("ReduceL2", "sum", _squared, tc.sqrt)
_reduces("ReduceLogSum", "sum", behind=tc.log)


@operator("ReduceLogSumExp")
def reduce_log_sum_exp(call: Call) -> Tensor:
    """The largest element is subtracted first: its power would overflow."""
    (x,) = call.tensors(1)
    axes, dtype, total = _axes(call, len(x.shape)), x.dtype, wide(x.dtype)
    peak = folded("max", converted(x, total), axes, keepdims=True)
    of, weight = repeated(peak), weight_of(total)

    @tc.function
    def taken(value: Element) -> Computed:
        return 0 if tc.isinf(value) else value

    powers = computed(x.shape, lambda *at: weight(x[at].to(total) - taken(of(at))))
    sums = folded("sum", powers, axes, keepdims=True)
    logarithms = computed(sums.shape, lambda *at: (tc.log(sums[at]) + taken(peak[at])).to(dtype))
    if call.attribute("keepdims", 1):
        return logarithms
    remaining = [n for axis, n in enumerate(x.shape) if axis not in axes]
    return reshaped(logarithms, *remaining)


@operator("ArgMax")
@operator("ArgMin")
def place_of_extreme(call: Call) -> Tensor:
    (x,) = call.tensors(1)
    axis = call.axis(len(x.shape), 0)
    kernel = kernel_of(
        _PLACES[call.node.operator], x.shape, axis, dtype=x.dtype,
        keepdims=bool(call.attribute("keepdims", 1)),
        last=bool(call.attribute("select_last_index", 0)),
    )  # fmt: skip
    return kernel(x)


@operator("CumSum")
@operator("CumProd", since=26)
def running(call: Call) -> Tensor:
    from taskc.kernels.scans import cumprod, cumsum  # few models have scans

    (x,) = call.tensors(1)
    axis = call.axis_of(call.integers(1)[0], len(x.shape))
    template = {"CumSum": cumsum, "CumProd": cumprod}[call.node.operator]
    kernel = kernel_of(
        template, x.shape, axis, dtype=x.dtype,
        exclusive=bool(call.attribute("exclusive", 0)), reverse=bool(call.attribute("reverse", 0)),
    )  # fmt: skip
    return kernel(x)


@operator("TopK")
def largest_few(call: Call) -> Made:
    (x,) = call.tensors(1)
    count = call.single(1) if call.has(1) else call.attribute("k")
    axis = call.axis(len(x.shape), -1)
    extent = x.shape[axis]
    if isinstance(extent, int) and not 0 <= count <= extent:
        raise call.node.error(f"it has {extent} elements to take {count} of")
    outer, inner = size(x.shape[:axis]), size(x.shape[axis + 1 :])
    rows, dtype = outer * inner, x.dtype
    values = computed((rows, count), lambda row, t: dtype(0))
    places = computed((rows, count), lambda row, t: i64(0))
    if count and size(x.shape):
        is_largest = bool(call.attribute("largest", 1))
        kernel = kernel_of(top_k, outer, extent, inner, count, dtype=dtype, is_largest=is_largest)
        kernel(x.reshape(outer, extent, inner), values, places)
    shape = [count if d == axis else n for d, n in enumerate(x.shape)]
    turned = [_as_columns(part, (outer, count, inner)) for part in (values, places)]
    return tuple([reshaped(part, *shape) for part in turned])


def _as_columns(rows: TensorHandle, shape: Shape) -> TensorHandle:
    """Rows of an array [outer * inner, count] as columns of an array [outer, count, inner]."""
    inner = shape[2]
    if isinstance(inner, int) and inner == 1:
        return rows
    return computed(shape, lambda i, t, j: rows[i * inner + j, t])
