"""NumPy's names over arrays that note operations: `import taskc.numpy as np`.

A name is noted where there is a row for it (taskc/numpy/functions.py); any other is NumPy's own, on known values.
"""

from __future__ import annotations

import sys
import types
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

from taskc.numpy import functions as functions, methods as methods
from taskc.numpy.array import Array
from taskc.numpy.calls import asarray, called, ufunc_call
from taskc.numpy.forms import counts
from taskc.numpy.noting import array, elements
from taskc.numpy.operators import unary
from taskc.numpy.segment import located, recent

__all__ = ["Array", "array", "asarray", "explain", "segments"]

asanyarray = ascontiguousarray = asarray


class _Names:
    """A module of NumPy's, such as `linalg`, whose functions take and return our arrays."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return _named(self._module, name)

    def __dir__(self) -> list[str]:
        return dir(self._module)


def _named(module: Any, name: str) -> Any:
    own = getattr(module, name)
    if isinstance(own, types.ModuleType):
        return _Names(own)
    if isinstance(own, np.ufunc):
        return _function_of_elements(own)
    if isinstance(own, type) or not callable(own):
        return own

    @wraps(own)
    def function(*args: Any, **options: Any) -> Any:
        return called(own, args, options)

    return function


def _function_of_elements(ufunc: np.ufunc) -> Any:
    of_one = unary(ufunc) if ufunc.nin == 1 and ufunc.nout == 1 else None

    def function(*args: Any, **options: Any) -> Any:
        if options or len(args) > ufunc.nin or ufunc.nout > 1:
            return _whole(ufunc, args, options)
        if of_one is not None:
            return of_one(*args)
        return elements(ufunc, *args) if ufunc is not np.matmul else called(ufunc, args, options)

    function.__name__ = function.__qualname__ = ufunc.__name__
    for name in ("reduce", "accumulate", "outer", "at", "reduceat"):
        setattr(function, name, _method(ufunc, name))
    return function


def _whole(ufunc: np.ufunc, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    inputs, outputs = args[: ufunc.nin], args[ufunc.nin :]
    if outputs:
        options["out"] = outputs
    elif "out" in options and not isinstance(options["out"], tuple):
        options["out"] = (options["out"],)
    return ufunc_call(ufunc, "__call__", inputs, options)


def _method(ufunc: np.ufunc, name: str) -> Callable[..., Any]:
    return lambda *args, **options: ufunc_call(ufunc, name, args, options)


def segments() -> list[dict[str, Any]]:
    """The latest segments by where and why they ended, with how often, their operations and their results."""
    return [
        {
            "times": times, "operations": count, "results": results, "ended_by": reason,
            "file": (at := located(site)).file, "line": at.line, "text": at.text.strip(),
        }
        for (reason, count, results, site), times in Counter(recent).items()
    ]  # fmt: skip


def explain() -> str:
    """The latest segments: how often, why each ended, its operations and results, and the last line that noted one."""
    lines = [f"{counts['compiled']} compiled, {counts['hits']} hits"]
    for one in segments():
        what = f"{one['operations']} operations, {one['results']} results"
        place = f"{Path(one['file']).name}:{one['line']}: {one['text']}"
        lines.append(f"{one['times']:5} times {what}, ended by {one['ended_by']}: {place}")
    return "\n".join(lines)


def _namespace(self: Array, *, api_version: str | None = None) -> Any:
    return sys.modules[__name__]


setattr(Array, "__array_namespace__", _namespace)  # noqa: B010


def __getattr__(name: str) -> Any:
    value = _named(np, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*dir(np), *globals()})
