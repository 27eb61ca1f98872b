"""The functions of the language outside of kernels: names with a signature and a docstring, for people and editors.

Each is declared as a function of Python, whose parameters are those that its handler takes (`taskc.lang.calls`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from operator import index
from typing import Any, TypeVar, cast

import numpy as np

from taskc.ir import arithmetic
from taskc.ir.types import f64, i64

INTRINSICS: dict[str, Intrinsic] = {}

# Functions that are one unary operator of the IR, by its name.
UNARY_FUNCTIONS: list[str] = []

Declared = TypeVar("Declared", bound=Callable[..., Any])


class Intrinsic:
    """A function of the language. With `on_numbers` it also works in plain Python, on numbers.

    name      without the `tc.`; of `tc.cuda` it begins with `cuda.`
    declared  its signature
    """

    def __init__(
        self,
        name: str,
        declared: inspect.Signature,
        text: str | None,
        on_numbers: Callable[..., Any] | None = None,
    ) -> None:
        self.__name__ = name
        self.__module__ = "taskc.lang.names"  # databases of tuned plans know functions by this
        self.__doc__ = text
        self.__signature__ = declared
        self.on_numbers = on_numbers
        INTRINSICS[name] = self

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if self.on_numbers is None:
            raise TypeError(f"tc.{self.__name__} is a part of the language: use it in a kernel")
        return self.on_numbers(*args, **keywords)

    def __repr__(self) -> str:
        return f"tc.{self.__name__}"

    @property
    def parameters(self) -> str:
        """The parameters as `bind` takes them: "dtype mapping fill?", with keyword-only ones after `*`."""
        words: list[str] = []
        for parameter in self.__signature__.parameters.values():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in words:
                words.append("*")
            words.append(parameter.name + "?" * (parameter.default is not parameter.empty))
        return " ".join(words)


def in_kernels(function: Declared) -> Declared:
    """Declare a function that only kernels may use; for type checkers it stays a function."""
    return _declare(function, None)


def on_numbers(function: Declared) -> Declared:
    """Declare a function that plain Python may also call on numbers, where its body is what runs."""
    return _declare(function, function)


def elementwise(function: Declared) -> Declared:
    """Declare a unary operator of the IR that has the function's name."""
    name = function.__name__

    def on_number(x: float) -> float:
        result = arithmetic.unary(name, np.float64(x), f64)
        return bool(result) if name == "isnan" else float(result)

    UNARY_FUNCTIONS.append(name)
    return _declare(function, on_number)


def of_bits(function: Declared) -> Declared:
    """Declare a unary operator of the IR on integers; a Python number is taken as an i64."""
    name = function.__name__

    def on_integer(x: int) -> int:
        if not i64.minimum <= index(x) <= i64.maximum:
            raise ValueError(f"{x} has no type, and is out of range for i64: say it, u64({x})")
        return int(arithmetic.unary(name, np.int64(x), i64))

    UNARY_FUNCTIONS.append(name)
    return _declare(function, on_integer)


def _declare(function: Declared, meaning: Callable[..., Any] | None) -> Declared:
    package = "cuda." if function.__module__.endswith(".cuda") else ""
    declared = inspect.signature(function)
    intrinsic = Intrinsic(package + function.__name__, declared, inspect.getdoc(function), meaning)
    return cast(Declared, intrinsic)
