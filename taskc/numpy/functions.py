"""NumPy's functions over arrays, by their names: each notes rows, or says that it takes no such arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, cast

import numpy as np

from taskc.numpy import rows
from taskc.numpy.array import Array, View, adopted
from taskc.numpy.calls import FUNCTIONS, asarray, check_supported, function
from taskc.numpy.noting import (
    UnsupportedError,
    array,
    computed,
    copied,
    elements,
    fitted,
    note,
)
from taskc.numpy.rows import SUPPORTED
from taskc.numpy.segment import recorders
from taskc.numpy.shapes import axes_of, broadcast, folded

# --- Folds ------------------------------------------------------------------------------------


def _total(x: Array, dtype: Any) -> np.dtype[Any]:
    """The type of a sum, as NumPy's: small integers are widened."""
    given: np.dtype[Any] | None = None if dtype is None else np.dtype(dtype)
    return given or _WIDE.get(x._dtype.kind, x._dtype)


_WIDE = {"b": np.dtype(np.int64), "i": np.dtype(np.int64), "u": np.dtype(np.uint64)}


def _fold(
    fold: str, x: Any, axis: Any, keepdims: bool, dtype: np.dtype[Any] | None = None
) -> Array:
    axes = axes_of(axis, x.ndim)
    dtype = x._dtype if dtype is None else dtype
    check_supported(x)
    if dtype not in SUPPORTED:
        raise UnsupportedError
    row = rows.fold_row(fold, axes, bool(keepdims), x._dtype, dtype)
    return note(row, (x,), folded(x._shape, axes, keepdims))


@function
def sum_(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Array:
    x = asarray(a)
    return _fold("sum", x, axis, keepdims, _total(x, dtype))


@function
def prod(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Array:
    x = asarray(a)
    return _fold("prod", x, axis, keepdims, _total(x, dtype))


def _extreme(fold: str, name: str) -> Callable[..., Array]:
    def of(a: Any, axis: Any = None, keepdims: bool = False) -> Array:
        x = asarray(a)
        if any(x._shape[axis] == 0 for axis in axes_of(axis, x.ndim)):
            raise ValueError(f"zero-size array to reduction operation {name} which has no identity")
        return _fold(fold, x, axis, keepdims)

    return of


FUNCTIONS["max"] = FUNCTIONS["amax"] = _extreme("max", "maximum")
FUNCTIONS["min"] = FUNCTIONS["amin"] = _extreme("min", "minimum")


@function
def all_(a: Any, axis: Any = None, keepdims: bool = False) -> Array:
    return _fold("min", asarray(a), axis, keepdims, np.dtype(bool))


@function
def any_(a: Any, axis: Any = None, keepdims: bool = False) -> Array:
    return _fold("max", asarray(a), axis, keepdims, np.dtype(bool))


@function
def mean(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Array:
    x = asarray(a)
    check_supported(x)
    wanted = np.dtype(dtype or (x._dtype if x._dtype.kind == "f" else np.float64))
    if wanted.kind != "f":
        raise UnsupportedError
    computed = np.dtype(np.float32) if wanted == np.float16 else wanted
    return _fold("mean", x, axis, keepdims, computed).astype(wanted, copy=False)


@function
def var(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    ddof: int = 0,
    keepdims: bool = False,
    correction: Any = None,
) -> Array:
    x = asarray(a)
    check_supported(x)
    wanted = np.dtype(dtype or (x._dtype if x._dtype.kind == "f" else np.float64))
    if wanted.kind != "f":
        raise UnsupportedError
    wide = x.astype(np.float32 if wanted == np.float16 else wanted, copy=False)
    away = elements(np.subtract, wide, mean(wide, axis, keepdims=True))
    count = int(np.prod([x._shape[axis] for axis in axes_of(axis, x.ndim)], dtype=np.int64))
    free = max(count - (ddof if correction is None else correction), 0)
    total = sum_(elements(np.square, away), axis, keepdims=keepdims)
    return elements(np.divide, total, array(free, wide._dtype)).astype(wanted, copy=False)


@function
def std(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    ddof: int = 0,
    keepdims: bool = False,
    correction: Any = None,
) -> Array:
    return elements(np.sqrt, var(a, axis, dtype, ddof, keepdims, correction))


def _place(name: str) -> Callable[..., Array]:
    def of(a: Any, axis: int | None = None, keepdims: bool = False) -> Array:
        x = asarray(a)
        check_supported(x)
        if axis is None or not x.ndim:
            if keepdims:
                raise UnsupportedError
            axes_of(axis, x.ndim)
            x, axis = x.reshape(-1), 0
        (place,) = axes_of(axis, x.ndim)
        if x._shape[place] == 0:
            raise ValueError(f"attempt to get {name} of an empty sequence")
        if x._dtype.kind == "b":
            x = x.astype(np.uint8)
        row = rows.place_row(name, place, bool(keepdims), x._dtype)
        return note(row, (x,), folded(x._shape, (place,), keepdims))

    return of


FUNCTIONS["argmax"], FUNCTIONS["argmin"] = _place("argmax"), _place("argmin")


def _scan(name: str) -> Callable[..., Array]:
    def of(a: Any, axis: int | None = None, dtype: Any = None) -> Array:
        x = asarray(a)
        check_supported(x)
        if axis is None or not x.ndim:
            axes_of(axis, x.ndim)
            x, axis = x.reshape(-1), 0
        (place,) = axes_of(axis, x.ndim)
        total = _total(x, dtype)
        if total not in SUPPORTED:
            raise UnsupportedError
        return note(rows.scan_row(name, place, x._dtype, total), (x,), x._shape)

    return of


FUNCTIONS["cumsum"], FUNCTIONS["cumprod"] = _scan("cumsum"), _scan("cumprod")


# --- Products ---------------------------------------------------------------------------------


@function
def matmul(a: Any, b: Any) -> Array:
    x, y = asarray(a), asarray(b)
    check_supported(x, y)
    if not x.ndim or not y.ndim:
        raise ValueError("matmul: an operand has no dimensions")
    if x._shape[-1] != y._shape[-2 if y.ndim > 1 else 0]:
        raise ValueError(f"matmul: {x._shape} and {y._shape} have other inner extents")
    if 1 in (x.ndim, y.ndim) and View in (type(x), type(y)) and not recorders:
        one, other = x._value, y._value
        if one is not None and other is not None:  # a program would copy the part first
            return cast("Array", computed(np.matmul, (one, other)))
    dtype = np.result_type(x._dtype, y._dtype)
    if dtype.kind != "f" or 0 in (*x._shape, *y._shape):
        raise UnsupportedError
    batch = broadcast(x._shape[:-2], y._shape[:-2])
    shape = (*batch, *x._shape[-2:-1], *(y._shape[-1:] if y.ndim > 1 else ()))
    return note(rows.product_row((x._dtype, y._dtype), dtype), (x, y), shape)


@function
def dot(a: Any, b: Any) -> Array:
    x, y = asarray(a), asarray(b)
    if not x.ndim or not y.ndim:
        return elements(np.multiply, x, y)
    if y.ndim > 2:
        raise UnsupportedError
    return matmul(x, y)


@function
def outer(a: Any, b: Any) -> Array:
    return elements(np.multiply, asarray(a).reshape(-1, 1), asarray(b).reshape(1, -1))


@function
def inner(a: Any, b: Any) -> Array:
    x, y = asarray(a), asarray(b)
    if x.ndim > 2 or y.ndim > 2:
        raise UnsupportedError
    return dot(x, y.T)


# --- Choices ----------------------------------------------------------------------------------


@function
def where(condition: Any, x: Any = None, y: Any = None) -> Array:
    if x is None or y is None:
        raise UnsupportedError
    types = tuple([type(n) if type(n) in (int, float) else asarray(n)._dtype for n in (x, y)])
    row = rows.where_row(types)
    if row is None or asarray(condition)._dtype not in SUPPORTED:
        raise UnsupportedError
    both = [asarray(n, row.dtype) if type(n) in (int, float) else asarray(n) for n in (x, y)]
    arrays = (asarray(condition), *both)
    check_supported(*arrays)
    return note(row, arrays, broadcast(*[n._shape for n in arrays]))


@function
def clip(
    a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None
) -> Array:
    low, high = a_min if min is None else min, a_max if max is None else max
    x = asarray(a)
    x = x if low is None else elements(np.maximum, x, low)
    return x if high is None else elements(np.minimum, x, high)


FUNCTIONS["round"] = FUNCTIONS["around"] = lambda a, decimals=0: _rounded(asarray(a), decimals)


def _rounded(x: Array, decimals: int) -> Array:
    if decimals or x._dtype.kind != "f":
        raise UnsupportedError
    return elements(np.rint, x)


def _method(name: str) -> Callable[..., Any]:
    return lambda a, *args, **options: getattr(asarray(a), name)(*args, **options)


for _name in ("astype", "copy", "ravel", "reshape", "squeeze", "swapaxes", "transpose"):
    FUNCTIONS[_name] = _method(_name)
FUNCTIONS["permute_dims"] = FUNCTIONS["transpose"]
FUNCTIONS["shape"] = lambda a: asarray(a)._shape
FUNCTIONS["ndim"] = lambda a: asarray(a).ndim


# --- Places -----------------------------------------------------------------------------------


@function
def moveaxis(a: Any, source: Any, destination: Any) -> Array:
    x = asarray(a)
    given, to = axes_of(source, x.ndim), axes_of(destination, x.ndim)
    order = [axis for axis in range(x.ndim) if axis not in given]
    for place, axis in sorted(zip(to, given, strict=True)):
        order.insert(place, axis)
    return x.transpose(order)


@function
def expand_dims(a: Any, axis: Any) -> Array:
    x = asarray(a)
    axes = axes_of(axis, x.ndim + (len(axis) if isinstance(axis, tuple | list) else 1))
    rest = iter(x._shape)
    rank = x.ndim + len(axes)
    return x.reshape(tuple([1 if place in axes else next(rest) for place in range(rank)]))


@function
def broadcast_to(array: Any, shape: Any) -> Array:
    x = asarray(array)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if broadcast(x._shape, shape) != shape:
        raise ValueError(f"cannot broadcast {x._shape} to {shape}")
    check_supported(x)
    return note(rows.broadcast_row(x._dtype), (x,), shape, shape)


@function
def concatenate(arrays: Any, axis: int | None = 0) -> Array:
    parts = [asarray(x) for x in arrays]
    if axis is None:
        parts, axis = [x.reshape(-1) for x in parts], 0
    check_supported(*parts)
    if not parts or not parts[0].ndim:
        raise ValueError("need at least one array, with axes, to concatenate")
    (place,) = axes_of(axis, parts[0].ndim)
    others = {(*x._shape[:place], *x._shape[place + 1 :]) for x in parts}
    if len(others) > 1:
        raise ValueError(
            f"the shapes {[x._shape for x in parts]} differ along other axes than {axis}"
        )
    dtype = np.result_type(*[x._dtype for x in parts])
    row = rows.join_row(place, dtype)

    def joined(x: Array, y: Array) -> Array:
        shape = (*x._shape[:place], x._shape[place] + y._shape[place], *x._shape[place + 1 :])
        return note(row, (x, y), shape)

    return reduce(joined, parts) if len(parts) > 1 else copied(parts[0])


FUNCTIONS["concat"] = concatenate


@function
def stack(arrays: Any, axis: int = 0) -> Array:
    return concatenate([expand_dims(x, axis) for x in arrays], axis)


@function
def vstack(tup: Any) -> Array:
    return concatenate([x if x.ndim > 1 else x.reshape(1, -1) for x in map(asarray, tup)])


@function
def hstack(tup: Any) -> Array:
    parts = [x if x.ndim else x.reshape(1) for x in map(asarray, tup)]
    return concatenate(parts, 0 if parts[0].ndim == 1 else 1)


@function
def flip(m: Any, axis: Any = None) -> Any:
    x = asarray(m)
    axes = axes_of(axis, x.ndim)
    return x[tuple([slice(None, None, -1) if a in axes else slice(None) for a in range(x.ndim)])]


@function
def roll(a: Any, shift: Any, axis: Any = None) -> Array:
    x = asarray(a)
    if axis is None:
        return roll(x.reshape(-1), shift, 0).reshape(x._shape)
    shifts, axes = np.broadcast_arrays(np.atleast_1d(shift), np.atleast_1d(axis))
    for places, own in zip(shifts.tolist(), axes_of(axes.tolist(), x.ndim), strict=True):
        bound = x._shape[own] - places % max(x._shape[own], 1)
        before: tuple[Any, ...] = (slice(None),) * own
        after, first = (*before, slice(bound, None)), (*before, slice(0, bound))
        x = concatenate([x[after], x[first]], own)
    return x


@function
def triu(m: Any, k: int = 0) -> Array:
    return _triangle(asarray(m), lambda places: places >= k)


@function
def tril(m: Any, k: int = 0) -> Array:
    return _triangle(asarray(m), lambda places: places <= k)


def _triangle(x: Array, keeps: Callable[[Any], Any]) -> Array:
    if x.ndim < 2:
        raise UnsupportedError
    below, across = np.arange(x._shape[-2])[:, None], np.arange(x._shape[-1])
    return where(keeps(across - below), x, array(0, x._dtype))


@function
def take(a: Any, indices: Any, axis: int | None = None) -> Any:
    x = asarray(a)
    if axis is None:
        return x.reshape(-1)[asarray(indices)]
    (place,) = axes_of(axis, x.ndim)
    key = (*(slice(None),) * place, asarray(indices))
    return x[key]


@function
def full_like(a: Any, fill_value: Any, dtype: Any = None) -> Array:
    x = asarray(a)
    return fitted(asarray(fill_value, dtype or x._dtype), x._shape, np.dtype(dtype or x._dtype))


def _filled_like(of: Callable[..., Any]) -> Callable[..., Array]:
    return lambda a, dtype=None: adopted(of(asarray(a)._shape, dtype or asarray(a)._dtype))


FUNCTIONS["ones_like"] = _filled_like(np.ones)
FUNCTIONS["zeros_like"] = FUNCTIONS["empty_like"] = _filled_like(np.zeros)


@function
def size_(a: Any, axis: int | None = None) -> int:
    x = asarray(a)
    return x.size if axis is None else x._shape[axis]
