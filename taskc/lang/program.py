"""`@tc.program`: a Python function over tensors, traced once into calls of kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType, TracebackType
from typing import Any, overload

from taskc.errors import NOWHERE, CompileError, Location
from taskc.ir.nodes import Variable
from taskc.ir.program import Program, kernels_of
from taskc.lang.calls import Outside, plain_parameters
from taskc.lang.context import Context, Frame
from taskc.lang.definition import Definition, Example, KernelDefinition
from taskc.lang.handles import Handle
from taskc.lang.names import Intrinsic
from taskc.lang.parameters import parameter
from taskc.lang.sizes import Dimension, tracing
from taskc.lang.source import Source, call_site, running, source_of
from taskc.lang.tracing import Trace, current_trace
from taskc.lang.values import describe


class ProgramDefinition(Definition):
    """A program as it was traced; it is called as a kernel is."""

    ir: Program

    def __init__(
        self,
        function: FunctionType,
        made: Program,
        dimensions: dict[Dimension, Variable],
        example: Example | None,
        kernels: tuple[KernelDefinition, ...],
    ) -> None:
        super().__init__(function, made, dimensions, example)
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
    try:
        return _traced(function, example, around)
    except CompileError as error:  # its location says where; our own frames would bury it
        raise error.with_traceback(None) from error.__cause__


def _traced(
    function: FunctionType, example: Example | None, around: dict[str, Any]
) -> ProgramDefinition:
    name = function.__name__
    what = f"program '{name}'"
    source = source_of(function, what)
    plain_parameters(source, what)
    outside = Outside(function, around)
    context = Context(name, 1, False, "generic", {}, {})
    context.frames.append(Frame(source, outside, []))
    parameters = tuple(
        [parameter(context, function, outside, argument) for argument in source.tree.args.args]
    )
    trace = Trace(name, parameters, dict(context.dimensions))
    _run(function, trace, source)
    trace.finish()
    made = Program(
        name=name,
        parameters=parameters,
        dimensions=tuple(context.dimensions.values()),
        temporaries=tuple(trace.temporaries),
        calls=tuple(trace.calls),
        loc=source.head(),
    )
    kernels = tuple([trace.kernels[id(kernel)] for kernel in kernels_of(made).values()])
    return ProgramDefinition(function, made, context.dimensions, example, kernels)


def _run(function: FunctionType, trace: Trace, source: Source) -> None:
    token = tracing.set(trace)
    try:
        result = function(*[trace.handle(item) for item in trace.parameters])
    except NameError as error:
        if error.name != function.__name__:
            raise
        raise CompileError(
            f"program '{trace.name}' calls itself: it isn't there before it is traced",
            _innermost(error.__traceback__),
            "a loop over Python constants repeats calls",
        ) from None
    finally:
        tracing.reset(token)
    if result is not None:
        raise CompileError(
            f"program '{trace.name}' returns {describe(result)}, and a program returns nothing",
            source.head(),
            "pass a parameter declared tc.out[...] as the output of a call",
        )


def _innermost(traceback: TracebackType | None) -> Location:
    """Where an exception was raised."""
    place = NOWHERE
    while traceback is not None:
        place = running(traceback.tb_frame, traceback.tb_lineno, traceback.tb_lasti)
        traceback = traceback.tb_next
    return place
