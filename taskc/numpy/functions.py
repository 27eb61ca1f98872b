"""NumPy's functions over arrays, by their names: noted where there is a row, else NumPy's on known values.

FUNCTIONS["sum"](x, axis=0)        also np.sum(x, axis=0) of NumPy itself, by __array_function__
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeVar, cast

import numpy as np

from taskc.numpy import rows
from taskc.numpy.array import (
    NUMBERS,
    SMALL,
    Array,
    View,
    adopted,
    known,
    plain,
    small,
    small_values,
    wrapped,
)
from taskc.numpy.noting import (
    UnsupportedError,
    array,
    came_around,
    computed,
    copied,
    elements,
    fitted,
    note,
    replace,
    written,
)
from taskc.numpy.rows import SUPPORTED
from taskc.numpy.segment import recorders
from taskc.numpy.shapes import axes_of, broadcast, folded

Of = TypeVar("Of", bound="Callable[..., Any]")

FUNCTIONS: dict[str, Callable[..., Any]] = {}
# Their results are views, or as large as they are told: never NumPy's at once.
_NOT_AT_ONCE = {
    "transpose", "permute_dims", "swapaxes", "moveaxis", "reshape", "ravel", "squeeze", "expand_dims",
    "broadcast_to", "flip", "outer", "copy", "astype", "zeros_like", "ones_like", "full_like", "empty_like",
    "shape", "ndim", "size",
}  # fmt: skip
_WRITES_FIRST = {"copyto", "fill_diagonal", "put", "place", "putmask", "put_along_axis"}


def function(of: Of) -> Of:
    """Register a function under its name."""
    FUNCTIONS[of.__name__.rstrip("_")] = of
    return of


def called(of: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
    """A call of one of NumPy's functions: ours if it takes these arguments."""
    if "out" in options:
        options = dict(options)
        out = options.pop("out")
        result = called(of, args, options)
        return result if out is None else written(out, result)
    name = of.__name__
    if name in FUNCTIONS and name not in _NOT_AT_ONCE and not recorders:
        values = _at_once(args)
        if values is None and came_around():
            values = _at_once(args)
        if values is not None and not any(map(_has_array, options.values())):
            return wrapped(of(*values, **options) if options else of(*values))
    own = FUNCTIONS.get(name) if getattr(np, name, None) is of else None
    if own is not None:
        try:
            return own(*args, **options)
        except (UnsupportedError, TypeError) as error:
            if isinstance(error, TypeError) and _fits(own, args, options):
                raise
    if name in _WRITES_FIRST and isinstance(args[0], Array):
        whole = known(args[0], name).copy()
        of(whole, *map(plain, args[1:]), **plain(options))
        return replace(args[0], array(whole))
    return wrapped(of(*map(plain, args), **plain(options)))


def _at_once(args: Sequence[Any]) -> list[Any] | None:
    """The arguments of NumPy's function, if all arrays among them are known and small."""
    values: list[Any] = []
    for x in args:
        value = x
        if isinstance(x, Array | np.ndarray):
            value = small(x)
        elif type(x) in (list, tuple):
            value = _at_once(x)
        if value is None and x is not None:
            return None
        values.append(value)
    return values


def _has_array(x: Any) -> bool:
    return isinstance(x, Array) or (isinstance(x, list | tuple) and any(map(_has_array, x)))


def _fits(of: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> bool:
    try:
        inspect.signature(of).bind(*args, **options)
    except TypeError:
        return False
    return True


def asarray(x: Any, dtype: Any = None) -> Array:
    """The array itself, or one of a copy."""
    if isinstance(x, Array):
        return x if dtype is None else x.astype(dtype, copy=False)
    return array(x, dtype)


def _supported(*arrays: Array) -> None:
    if any(x._dtype not in SUPPORTED for x in arrays):
        raise UnsupportedError


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
    _supported(x)
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
    _supported(x)
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
    _supported(x)
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
        _supported(x)
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
        _supported(x)
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
    _supported(x, y)
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
    _supported(*arrays)
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


# --- Places -----------------------------------------------------------------------------------


@function
def transpose(a: Any, axes: Any = None) -> Array:
    return asarray(a).transpose(axes)


@function
def permute_dims(a: Any, axes: Any = None) -> Array:
    return transpose(a, axes)


@function
def swapaxes(a: Any, axis1: int, axis2: int) -> Array:
    return asarray(a).swapaxes(axis1, axis2)


@function
def moveaxis(a: Any, source: Any, destination: Any) -> Array:
    x = asarray(a)
    given, to = axes_of(source, x.ndim), axes_of(destination, x.ndim)
    order = [axis for axis in range(x.ndim) if axis not in given]
    for place, axis in sorted(zip(to, given, strict=True)):
        order.insert(place, axis)
    return x.transpose(order)


@function
def reshape(a: Any, shape: Any, order: str = "C") -> Array:
    return asarray(a).reshape(shape, order=order)


@function
def ravel(a: Any, order: str = "C") -> Array:
    return asarray(a).ravel(order)


@function
def squeeze(a: Any, axis: Any = None) -> Array:
    return asarray(a).squeeze(axis)


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
    _supported(x)
    return note(rows.broadcast_row(x._dtype), (x,), shape, shape)


@function
def concatenate(arrays: Any, axis: int | None = 0) -> Array:
    parts = [asarray(x) for x in arrays]
    if axis is None:
        parts, axis = [x.reshape(-1) for x in parts], 0
    _supported(*parts)
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
def copy(a: Any) -> Array:
    return copied(asarray(a))


@function
def astype(x: Any, dtype: Any, *, copy: bool = True) -> Array:
    return asarray(x).astype(dtype, copy=copy)


@function
def zeros_like(a: Any, dtype: Any = None) -> Array:
    x = asarray(a)
    return adopted(np.zeros(x._shape, dtype or x._dtype))


@function
def ones_like(a: Any, dtype: Any = None) -> Array:
    x = asarray(a)
    return adopted(np.ones(x._shape, dtype or x._dtype))


@function
def full_like(a: Any, fill_value: Any, dtype: Any = None) -> Array:
    x = asarray(a)
    return fitted(asarray(fill_value, dtype or x._dtype), x._shape, np.dtype(dtype or x._dtype))


FUNCTIONS["empty_like"] = zeros_like


@function
def shape_(a: Any) -> tuple[int, ...]:
    return asarray(a)._shape


@function
def ndim_(a: Any) -> int:
    return asarray(a).ndim


@function
def size_(a: Any, axis: int | None = None) -> int:
    x = asarray(a)
    return x.size if axis is None else x._shape[axis]


# --- NumPy's protocols -------------------------------------------------------------------------


def ufunc_call(ufunc: np.ufunc, method: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """A call of NumPy's function of elements, or of one of its methods."""
    (out,) = options.pop("out", None) or (None,)
    name = _FOLDS.get((ufunc.__name__, method))
    if method == "reduce" and (values := small_values(args)) is not None and out is None:
        return wrapped(ufunc.reduce(*values, **options))
    if method == "__call__" and not options and ufunc.nout == 1:
        result = FUNCTIONS["matmul"](*args) if ufunc is np.matmul else elements(ufunc, *args)
    elif method == "outer" and not options:
        x, y = map(asarray, args)
        result = elements(ufunc, x.reshape(x._shape + (1,) * y.ndim), y)
    elif name is not None and (method == "reduce" or not options):
        result = FUNCTIONS[name](*args, **({"axis": 0} | options))
    else:
        whole = (
            known(args[0], "NumPy").copy()
            if method == "at" and isinstance(args[0], Array)
            else None
        )
        given = args if whole is None else (whole, *args[1:])
        result = wrapped(getattr(ufunc, method)(*map(plain, given), **plain(options)))
        if whole is not None:
            replace(args[0], adopted(whole))
    return result if out is None else written(out, result)


_FOLDS = {
    ("add", "reduce"): "sum", ("multiply", "reduce"): "prod", ("maximum", "reduce"): "max",
    ("minimum", "reduce"): "min", ("logical_and", "reduce"): "all", ("logical_or", "reduce"): "any",
    ("add", "accumulate"): "cumsum", ("multiply", "accumulate"): "cumprod",
}  # fmt: skip


def _array_function(self: Array, of: Any, types: Any, args: Any, options: Any) -> Any:
    return called(of, args, options)


def _array_ufunc(self: Array, of: np.ufunc, method: str, *args: Any, **options: Any) -> Any:
    if method == "__call__" and type(args[0]) in NUMBERS and not options and not recorders:
        value = small(args[-1])  # a scalar of NumPy's with an array
        if value is not None and of is not np.matmul and of.nout == 1:
            return computed(of, (args[0], value))
    return ufunc_call(of, method, args, options)


setattr(Array, "__array_function__", _array_function)  # noqa: B010
setattr(Array, "__array_ufunc__", _array_ufunc)  # noqa: B010


def _method(name: str) -> Callable[..., Any]:
    """The method of an array that is a function, too."""
    of = getattr(np, name)

    def call(self: Array, *args: Any, **options: Any) -> Any:
        value = None if args or recorders or "out" in options else small(self)
        if value is not None:
            return wrapped(getattr(value, name)(**options))
        return called(of, (self, *args), options)

    return call


for _name in (
    "all any argmax argmin clip cumprod cumsum dot max mean min prod round std sum take var"
).split():
    setattr(Array, _name, _method(_name))


def _product(x: Array, y: Any) -> Any:
    one = x._value
    if one is not None and one.size <= SMALL and not recorders:
        other = small(y)
        if type(other) is np.ndarray:
            return computed(np.matmul, (one, other))
    return called(np.matmul, (x, y), {})


setattr(Array, "__matmul__", _product)  # noqa: B010
setattr(Array, "__rmatmul__", lambda self, other: called(np.matmul, (other, self), {}))  # noqa: B010
