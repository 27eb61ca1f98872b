"""Decorated functions: the names that they capture, and helpers that kernels inline.

Nothing here parses a body: what does is loaded when the first kernel is written.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

from taskc.errors import CompileError
from taskc.ir.reentry import cached_property
from taskc.lang.source import Source, lambda_source, source_of
from taskc.lang.values import SelfDescribed, describe


class Outside(Mapping[str, Any]):
    """The names that a function captures: closure, module, builtins."""

    def __init__(self, function: FunctionType, around: dict[str, Any] | None = None) -> None:
        self.function = function
        self._cells = dict(
            zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        )
        self._around = around or {}
        self._globals = function.__globals__

    def __getitem__(self, name: str) -> Any:
        if name in self._cells:
            try:
                return self._cells[name].cell_contents
            except ValueError:
                raise KeyError(name) from None
        if name in self._around:
            return self._around[name]
        if name in self._globals:
            return self._globals[name]
        return vars(builtins)[name]

    def __iter__(self) -> Iterator[str]:
        return iter({*self._cells, *self._around, *self._globals})

    def __len__(self) -> int:
        return len([*self])


class FunctionDefinition(SelfDescribed):
    """A helper, `@tc.function`: inlined where a kernel calls it, and an ordinary function in Python."""

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        self.__name__ = function.__name__
        self.described = f"the function {function.__name__!r}"
        self.__doc__ = function.__doc__

    @cached_property
    def source(self) -> Source:
        if self.__name__ == "<lambda>":
            return lambda_source(self.function)
        return source_of(self.function, f"function '{self.__name__}'")

    @cached_property
    def outside(self) -> Outside:
        return Outside(self.function)

    @cached_property
    def parameters(self) -> tuple[list[str], str | None]:
        """The names of the parameters, and the name of `*rest`; other kinds of parameters are an error."""
        source = self.source
        return plain_parameters(source, f"function '{self.__name__}'", rest=True), source.rest

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.function(*args, **keywords)

    def __repr__(self) -> str:
        return f"<tc.function {self.__name__}>"


def function(function: Callable[..., Any]) -> FunctionDefinition:
    """A helper that kernels inline. Its parameters may be tensors, scalars and constants."""
    if not isinstance(function, FunctionType):
        raise CompileError(f"@tc.function is for functions, and this is {describe(function)}")
    return FunctionDefinition(function)


def plain_parameters(source: Source, what: str, *, rest: bool = False) -> list[str]:
    """The parameters of a function; anything but plain ones is an error, but for `*rest` where that may be."""
    arguments = source.tree.args
    extras = (None if rest else arguments.vararg, arguments.kwarg)
    odd = [*arguments.posonlyargs, *arguments.kwonlyargs]
    odd += [extra for extra in extras if extra is not None]
    if odd:
        hint = "only the last may have a star: *rest" if rest else None
        if odd[0] is arguments.vararg:
            hint = f"a tuple of types is several parameters: {odd[0].arg}: (f32[64], f32[64])"
        raise CompileError(f"{what} has only plain parameters", source.locate(odd[0]), hint)
    if arguments.defaults:
        raise CompileError(
            f"a parameter of {what} has no default",
            source.locate(arguments.defaults[0]),
            "what is constant is closed over: make it an argument of a Python function around this one",
        )
    return [argument.arg for argument in arguments.args]
