"""Calls of NumPy's functions with arrays among their arguments: NumPy's at once, noted, or NumPy's on values.

np.sum(x, axis=0)       small known values: NumPy's own function, at once
                        else FUNCTIONS["sum"](x, axis=0), which notes, if there is one for these arguments
                        else NumPy's own function: what was noted runs, for its values
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from taskc.numpy.array import (
    NUMBERS,
    SMALL,
    Array,
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
    elements,
    replace,
    written,
)
from taskc.numpy.rows import SUPPORTED
from taskc.numpy.segment import recorders

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


def check_supported(*arrays: Array) -> None:
    if any(x._dtype not in SUPPORTED for x in arrays):
        raise UnsupportedError


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
