"""`@tc.program`: a Python function over tensors, traced once into calls of kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, overload

from taskc.errors import CompileError
from taskc.ir.nodes import Variable
from taskc.ir.program import Program
from taskc.lang.definition import Definition, Example, KernelDefinition
from taskc.lang.names import Intrinsic
from taskc.lang.sizes import Dimension
from taskc.lang.source import call_site
from taskc.lang.tracing import Handle, current_trace
from taskc.lang.values import describe


class ProgramDefinition(Definition):
    """A program as it was traced; it is called as a kernel is."""

    kind = "program"
    ir: Program

    def __init__(
        self,
        function: FunctionType,
        made: Program,
        dimensions: dict[Dimension, Variable],
        example: Example | None,
        kernels: tuple[KernelDefinition, ...],
        tuples: Mapping[str, tuple[str, ...]],
    ) -> None:
        super().__init__(function, made, dimensions, example, tuples=tuples)
        self._kernels = kernels

    @property
    def kernels(self) -> tuple[KernelDefinition, ...]:
        return self._kernels

    def __repr__(self) -> str:
        count = len(self.ir.calls)
        return f"<tc.program {self.signature}, {count} call{'' if count == 1 else 's'}>"


@overload
def program(function: Callable[..., Any], /) -> ProgramDefinition: ...
@overload
def program(
    *, example: Example | None = None
) -> Callable[[Callable[..., Any]], ProgramDefinition]: ...
def program(
    function: Callable[..., Any] | None = None, /, *, example: Example | None = None
) -> ProgramDefinition | Callable[[Callable[..., Any]], ProgramDefinition]:
    """A program: its body runs once, now, with handles for tensors, and calls kernels.

    example  a function of a NumPy generator that gives the arguments to check it with
    """
    if function is not None:
        return _made(function, example, sys._getframe(1).f_locals)
    return lambda function: _made(function, example, sys._getframe(1).f_locals)


def _empty(kind: object) -> Handle:
    trace = current_trace()
    if trace is None:
        raise CompileError(
            "tc.empty makes a temporary of a program: it stands in the body of a @tc.program",
            call_site(),
        )
    return trace.empty(kind)


empty = Intrinsic("empty", _empty)


def _made(
    function: Callable[..., Any], example: Example | None, around: dict[str, Any]
) -> ProgramDefinition:
    if not isinstance(function, FunctionType):
        raise CompileError(f"a program is made from a function, and this is {describe(function)}")
    from taskc.lang.traced_program import traced  # with all that knows the language

    try:
        made, dimensions, kernels, tuples = traced(function, around)
    except CompileError as error:  # its location says where; our own frames would bury it
        raise error.with_traceback(None) from error.__cause__
    return ProgramDefinition(function, made, dimensions, example, kernels, tuples)
