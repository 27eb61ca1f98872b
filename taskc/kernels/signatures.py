"""One signature for several templates: an option is spelled once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

Function = Callable[..., Any]  # a tc.function, or a Python function that could be one

P = ParamSpec("P")
R = TypeVar("R")


def parameters_of(other: Callable[P, R]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Give a function the parameters of another one, for callers, `help`, editors and type checkers alike.

    The function itself is called with all of them by name, defaults included.
    """
    signature = inspect.signature(other)

    def decorate(function: Callable[..., R]) -> Callable[P, R]:
        @wraps(function)
        def same(*arguments: P.args, **options: P.kwargs) -> R:
            try:
                bound = signature.bind(*arguments, **options)
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            bound.apply_defaults()
            named: dict[str, Any] = bound.arguments
            return function(**named)

        same.__signature__ = signature  # type: ignore[attr-defined]
        return same

    return decorate
