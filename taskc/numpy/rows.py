"""Rows: how each kind of noted operation is built in a program.

    Row("add", build)     build([x, y], numbers) records calls and returns the handle of the result

A row is one object per operation, element types and static options, so that a noted sequence of rows is a key. Places
and extents are not part of a row: they come as numbers, which are sizes where they vary from call to call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np

import taskc as tc
from taskc import DType, boolean
from taskc.dataclass import dataclass
from taskc.ir.types import from_numpy
from taskc.kernels.indices import place_of, write_part
from taskc.kernels.reductions import argmax, argmin
from taskc.operators.movement import transposed
from taskc.operators.operands import are_equal, element, kernel_of, ones
from taskc.operators.products import multiplied
from taskc.operators.reductions import folded
from taskc.operators.tensors import Extent, computed
from taskc.programs.tracing import Computed, Element, ScalarHandle, TensorHandle

Handles: TypeAlias = "Sequence[TensorHandle]"
Numbers: TypeAlias = "Sequence[Any]"  # extents, and places, which may be scalars of the program


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """An operation with its element types and static options.

    dtype  of the result
    build  from handles of the inputs, and numbers, to the handle of the result
    """

    name: str
    dtype: np.dtype[Any]
    build: Callable[[Handles, Numbers], TensorHandle]


# --- Elements ---------------------------------------------------------------------------------


@tc.function
def as_type(x: Element, given: DType, wanted: DType) -> Computed:
    """A number in another type, as NumPy casts it."""
    return (
        x
        if given is wanted
        else x != 0
        if wanted is boolean
        else (wanted(1) if x else wanted(0))
        if given is boolean
        else x.to(wanted)
    )


def broadcast(shapes: Sequence[Sequence[Extent]]) -> tuple[Extent, ...]:
    """The shape to which shapes broadcast; noting has checked that they do."""
    rank = max(map(len, shapes))
    aligned = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(
        [next((n for n in axis if not are_equal(n, 1)), 1) for axis in zip(*aligned, strict=True)]
    )


def elementwise(
    name: str,
    function: Callable[..., Computed],
    inputs: Sequence[np.dtype[Any]],
    dtype: np.dtype[Any],
) -> Row:
    """The row of an expression of elements; `inputs` are the types in which it computes."""
    wanted, value = tuple(map(from_numpy, inputs)), tc.function(function)

    def build(handles: Handles, numbers: Numbers) -> TensorHandle:
        shape = broadcast([x.shape for x in handles])
        read = tuple([(x, x.dtype, ones(x.shape)) for x in handles])

        @tc.function
        def at_place(*at: Element) -> Computed:
            return value(
                *(
                    as_type(element(x, once, at), given, to)
                    for (x, given, once), to in zip(read, wanted, strict=True)
                )
            )

        return computed(shape, at_place, name)

    return Row(name, dtype, build)


@tc.function
def _shifted_left(x: Element, count: Element, bits: int) -> Computed:
    return x << count if 0 <= count < bits else x ^ x


@tc.function
def _shifted_right(x: Element, count: Element, bits: int) -> Computed:
    return x >> (count if 0 <= count < bits else bits - 1)


@tc.function
def _hypotenuse(x: Element, y: Element) -> Computed:
    larger, smaller = max(abs(x), abs(y)), min(abs(x), abs(y))
    ratio = smaller / larger
    return larger if smaller == 0 or tc.isinf(larger) else larger * tc.sqrt(1 + ratio * ratio)


@tc.function
def _other_if_nan(x: Element, y: Element) -> Computed:
    return y if tc.isnan(x) else x


# Expressions by the names of NumPy's functions of elements. NumPy itself decides the types in which they compute.
ELEMENTS: dict[str, Callable[..., Computed]] = {
    "absolute": lambda x: abs(x),
    "add": lambda x, y: x + y,
    "arccos": lambda x: tc.acos(x),
    "arccosh": lambda x: tc.acosh(x),
    "arcsin": lambda x: tc.asin(x),
    "arcsinh": lambda x: tc.asinh(x),
    "arctan": lambda x: tc.atan(x),
    "arctan2": lambda y, x: tc.atan2(y, x),
    "arctanh": lambda x: tc.atanh(x),
    "bitwise_and": lambda x, y: x & y,
    "bitwise_or": lambda x, y: x | y,
    "bitwise_xor": lambda x, y: x ^ y,
    "ceil": lambda x: tc.ceil(x),
    "cos": lambda x: tc.cos(x),
    "cosh": lambda x: tc.cosh(x),
    "deg2rad": lambda x: x * (np.pi / 180),
    "divide": lambda x, y: x / y,
    "equal": lambda x, y: x == y,
    "exp": lambda x: tc.exp(x),
    "exp2": lambda x: tc.exp2(x),
    "expm1": lambda x: tc.expm1(x),
    "fabs": lambda x: abs(x),
    "floor": lambda x: tc.floor(x),
    "floor_divide": lambda x, y: x // y,
    "fmod": lambda x, y: tc.fmod(x, y),
    "greater": lambda x, y: x > y,
    "greater_equal": lambda x, y: x >= y,
    "hypot": lambda x, y: _hypotenuse(x, y),
    "isfinite": lambda x: not (tc.isinf(x) or tc.isnan(x)),
    "isinf": lambda x: tc.isinf(x),
    "isnan": lambda x: tc.isnan(x),
    "left_shift": lambda x, y: _shifted_left(x, y, x.dtype.bits),
    "less": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
    "log": lambda x: tc.log(x),
    "log10": lambda x: tc.log(x) * 0.4342944819032518,
    "log1p": lambda x: tc.log1p(x),
    "log2": lambda x: tc.log2(x),
    "logical_and": lambda x, y: x and y,
    "logical_not": lambda x: not x,
    "logical_or": lambda x, y: x or y,
    "logical_xor": lambda x, y: x != y,
    "maximum": lambda x, y: max(x, y),
    "minimum": lambda x, y: min(x, y),
    "multiply": lambda x, y: x * y,
    "negative": lambda x: -x,
    "not_equal": lambda x, y: x != y,
    "positive": lambda x: x,
    "power": lambda x, y: x**y,
    "rad2deg": lambda x: x * (180 / np.pi),
    "reciprocal": lambda x: 1 / x,
    "remainder": lambda x, y: x % y,
    "right_shift": lambda x, y: _shifted_right(x, y, x.dtype.bits),
    "rint": lambda x: round(x),
    "sign": lambda x: tc.sign(x),
    "sin": lambda x: tc.sin(x),
    "sinh": lambda x: tc.sinh(x),
    "sqrt": lambda x: tc.sqrt(x),
    "square": lambda x: x * x,
    "subtract": lambda x, y: x - y,
    "tan": lambda x: tc.tan(x),
    "tanh": lambda x: tc.tanh(x),
    "trunc": lambda x: tc.trunc(x),
}  # fmt: skip
# Where the operands are bools, integers, or (the last) floats.
_OF_BOOLS: dict[str, Callable[..., Computed]] = {
    "absolute": lambda x: x,
    "add": lambda x, y: x or y,
    "bitwise_and": lambda x, y: x and y,
    "bitwise_or": lambda x, y: x or y,
    "bitwise_xor": lambda x, y: x != y,
    "ceil": lambda x: x,
    "floor": lambda x: x,
    "fmax": lambda x, y: x or y,
    "fmin": lambda x, y: x and y,
    "greater": lambda x, y: x and not y,
    "greater_equal": lambda x, y: x or not y,
    "invert": lambda x: not x,
    "isfinite": lambda x: x == x,
    "isinf": lambda x: x != x,
    "isnan": lambda x: x != x,
    "less": lambda x, y: y and not x,
    "less_equal": lambda x, y: y or not x,
    "maximum": lambda x, y: x or y,
    "minimum": lambda x, y: x and y,
    "multiply": lambda x, y: x and y,
    "trunc": lambda x: x,
}
_OF_INTEGERS: dict[str, Callable[..., Computed]] = {
    "ceil": lambda x: x,
    "floor": lambda x: x,
    "fmax": lambda x, y: max(x, y),
    "fmin": lambda x, y: min(x, y),
    "invert": lambda x: ~x,
    "isfinite": lambda x: x == x,
    "isinf": lambda x: x != x,
    "isnan": lambda x: x != x,
    "reciprocal": lambda x: tc.truncdiv(1, x),
    "rint": lambda x: x,
    "trunc": lambda x: x,
}
_OF_FLOATS: dict[str, Callable[..., Computed]] = {
    "fmax": lambda x, y: max(_other_if_nan(x, y), _other_if_nan(y, x)),
    "fmin": lambda x, y: min(_other_if_nan(x, y), _other_if_nan(y, x)),
}
# NumPy raises an error for a negative integer exponent, which is data.
_NUMPYS = {("power", "i")}
KINDS = {"b": _OF_BOOLS, "i": _OF_INTEGERS, "u": _OF_INTEGERS, "f": _OF_FLOATS}
SUPPORTED = {np.dtype(code) for code in "?bhilBHILefd"}


@cache
def ufunc_row(ufunc: np.ufunc, types: tuple[Any, ...]) -> Row | None:
    """The row of a ufunc for operands of these types, or None; Python's `int` and `float` are weak."""
    resolved = ufunc.resolve_dtypes((*types, None))
    if not SUPPORTED.issuperset(resolved):
        return None
    *inputs, dtype = resolved
    name = ufunc.__name__
    if name.startswith("logical"):
        inputs = [np.dtype(bool)] * len(inputs)
    kind = inputs[0].kind
    function = KINDS[kind].get(name)
    if function is None and (name, kind) not in _NUMPYS:
        function = ELEMENTS.get(name)
    if function is None or len({*map(from_numpy, inputs)}) > 1:
        return None
    return elementwise(name, function, inputs, dtype)


@cache
def where_row(types: tuple[Any, Any]) -> Row | None:
    dtype = np.result_type(
        *[0 if kind is int else 0.0 if kind is float else kind for kind in types]
    )
    if dtype not in SUPPORTED:
        return None
    return elementwise(
        "where", lambda c, x, y: x if c else y, (np.dtype(bool), dtype, dtype), dtype
    )


@cache
def cast_row(dtype: np.dtype[Any]) -> Row:
    return elementwise(dtype.name, lambda x: x, (dtype,), dtype)


@cache
def power_row(exponent: int, given: np.dtype[Any]) -> Row:
    """A small power that is known while noting, as products."""
    powers: tuple[Callable[..., Computed], ...] = (
        lambda x: x * x,
        lambda x: x * x * x,
        lambda x: x * x * (x * x),
    )
    return elementwise(f"power{exponent}", powers[exponent - 2], (given,), given)


# --- Places -----------------------------------------------------------------------------------

# An index along an axis: "index" takes one place, "new" adds an axis, and a number is the step of a slice.
Pattern: TypeAlias = tuple["str | int", ...]


def _split(pattern: Pattern, numbers: Numbers) -> tuple[tuple[Any, ...], tuple[Extent, ...]]:
    """For each axis of the array (first, step, axis of the part or -1), and the shape of the part."""
    axes: list[Any] = []
    shape: list[Extent] = []
    for kind, first, count in zip(pattern, numbers[::2], numbers[1::2], strict=True):
        if kind == "new":
            shape.append(1)
        elif kind == "index":
            axes.append((first, 0, -1))
        else:
            axes.append((first, kind, len(shape)))
            shape.append(count)
    return tuple(axes), tuple(shape)


@cache
def part_row(pattern: Pattern, dtype: np.dtype[Any]) -> Row:
    """x[index]; two numbers for each entry of the pattern: the first place and how many."""

    def build(handles: Handles, numbers: Numbers) -> TensorHandle:
        (x,) = handles
        axes, shape = _split(pattern, numbers)
        # A first place that is data is known to be in bounds; a limit that holds anyway tells the compiler.
        limits = []
        for (first, step, axis), extent in zip(axes, x.shape, strict=True):
            way = 0 if step == 0 else (shape[axis] - 1) * step
            low, high = (0, extent - 1 - way) if step >= 0 else (-way, extent - 1)
            limits.append((first, isinstance(first, ScalarHandle), low, high, step, axis))

        @tc.function
        def value(*at: Element) -> Computed:
            return x[
                tuple(
                    (min(max(first, low), high) if is_data else first)
                    + (0 if step == 0 else at[axis] * step)
                    for first, is_data, low, high, step, axis in limits
                )
            ]

        return computed(shape, value, "part")

    return Row("part", dtype, build)


@cache
def update_row(pattern: Pattern, dtype: np.dtype[Any]) -> Row:
    """x with x[index] = y. The first handle is written; it is a copy of x if the old value is needed, too."""
    to = from_numpy(dtype)

    def build(handles: Handles, numbers: Numbers) -> TensorHandle:
        x, y = handles
        axes, shape = _split(pattern, numbers)
        shape = shape or (1,)
        once, given = ones(y.shape), y.dtype
        new = computed(shape, lambda *at: as_type(element(y, once, at), given, to), "new")
        along = tuple([(step, axis) for _, step, axis in axes])
        kernel = kernel_of(write_part, x.shape, shape, along, "a part is out of bounds", dtype=to)
        kernel(new, *[first for first, _, _ in axes], x)
        return x

    return Row("update", dtype, build)


@cache
def gather_row(first: int, count: int, dtype: np.dtype[Any]) -> Row:
    """x[:, i, j]: from axis `first` on, `count` axes are indexed by integer arrays, which broadcast."""

    def build(handles: Handles, numbers: Numbers) -> TensorHandle:
        x, *places = handles
        shape = broadcast([place.shape for place in places])
        rank, stop = len(shape), first + count
        read = tuple([(place, ones(place.shape)) for place in places])
        extents = tuple(x.shape[first:stop])

        @tc.function
        def value(*at: Element) -> Computed:
            inner = at[first : first + rank]
            chosen = tuple(
                place_of(element(place, once, inner).to(tc.i64), extent)
                for (place, once), extent in zip(read, extents, strict=True)
            )
            place = (*at[:first], *chosen, *at[first + rank :])
            return x[place]

        return computed((*x.shape[:first], *shape, *x.shape[stop:]), value, "gather")

    return Row("gather", dtype, build)


@cache
def transpose_row(order: tuple[int, ...], dtype: np.dtype[Any]) -> Row:
    return Row("transpose", dtype, lambda handles, _: transposed(handles[0], order, "transpose"))


@cache
def reshape_row(dtype: np.dtype[Any]) -> Row:
    return Row("reshape", dtype, lambda handles, numbers: handles[0].reshape(*numbers))


@cache
def broadcast_row(dtype: np.dtype[Any]) -> Row:
    def build(handles: Handles, numbers: Numbers) -> TensorHandle:
        (x,) = handles
        once = ones(x.shape)
        return computed(tuple(numbers), lambda *at: element(x, once, at), "broadcast")

    return Row("broadcast", dtype, build)


@cache
def join_row(axis: int, dtype: np.dtype[Any]) -> Row:
    """Two arrays, one after the other along an axis."""
    to = from_numpy(dtype)

    def build(handles: Handles, numbers: Numbers) -> TensorHandle:
        x, y = handles
        bound, first, second = x.shape[axis], x.dtype, y.dtype
        shape = [*x.shape]
        shape[axis] = bound + y.shape[axis]

        @tc.function
        def chosen(*at: Element) -> Computed:
            after = (*at[:axis], at[axis] - bound, *at[axis + 1 :])
            return as_type(x[at], first, to) if at[axis] < bound else as_type(y[after], second, to)

        return computed(shape, chosen, "join")

    return Row("join", dtype, build)


# --- Folds ------------------------------------------------------------------------------------


@cache
def fold_row(
    fold: str, axes: tuple[int, ...], keepdims: bool, given: np.dtype[Any], dtype: np.dtype[Any]
) -> Row:
    """A reduction that converts its elements to the result's type first."""
    own, to = from_numpy(given), from_numpy(dtype)

    def build(handles: Handles, numbers: Numbers) -> TensorHandle:
        (x,) = handles
        if own is not to:
            x = _cast(x, to)
        return folded(fold, x, axes, keepdims)

    return Row(fold, dtype, build)


def _cast(x: TensorHandle, to: DType) -> TensorHandle:
    given = x.dtype
    return computed(x.shape, lambda *at: as_type(x[at], given, to), "cast")


@cache
def place_row(name: str, axis: int, keepdims: bool, given: np.dtype[Any]) -> Row:
    template = {"argmax": argmax, "argmin": argmin}[name]

    def build(handles: Handles, numbers: Numbers) -> TensorHandle:
        (x,) = handles
        kernel = kernel_of(template, x.shape, axis, dtype=x.dtype, keepdims=keepdims, last=False)
        return kernel(x)

    return Row(name, np.dtype(np.int64), build)


@cache
def scan_row(name: str, axis: int, given: np.dtype[Any], dtype: np.dtype[Any]) -> Row:
    from taskc.kernels.scans import cumprod, cumsum

    template, own, to = (
        {"cumsum": cumsum, "cumprod": cumprod}[name],
        from_numpy(given),
        from_numpy(dtype),
    )

    def build(handles: Handles, numbers: Numbers) -> TensorHandle:
        x = handles[0] if own is to else _cast(handles[0], to)
        return kernel_of(template, x.shape, axis, dtype=to, exclusive=False, reverse=False)(x)

    return Row(name, dtype, build)


@cache
def product_row(given: tuple[np.dtype[Any], np.dtype[Any]], dtype: np.dtype[Any]) -> Row:
    """x @ y"""
    to = from_numpy(dtype)

    def build(handles: Handles, numbers: Numbers) -> TensorHandle:
        x, y = [handle if handle.dtype is to else _cast(handle, to) for handle in handles]
        return multiplied(x, y)

    return Row("matmul", dtype, build)
