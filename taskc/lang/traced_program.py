"""What a program's function does when it runs, once: it calls kernels with handles for tensors."""

from __future__ import annotations

from types import FunctionType, TracebackType
from typing import Any

from taskc.errors import NOWHERE, CompileError, Location
from taskc.ir.nodes import Tensor, Variable
from taskc.ir.program import Program, kernels_of
from taskc.lang.context import Context, Frame
from taskc.lang.definition import KernelDefinition
from taskc.lang.functions import Outside
from taskc.lang.parameters import Parameters, declared
from taskc.lang.sizes import Dimension, tracing
from taskc.lang.source import Source, running, source_of
from taskc.lang.tracing import Trace
from taskc.lang.values import describe


def traced(
    function: FunctionType, around: dict[str, Any]
) -> tuple[
    Program, dict[Dimension, Variable], tuple[KernelDefinition, ...], dict[str, tuple[str, ...]]
]:
    """The program, the variables of its dimensions, the kernels that it calls, and its tuples."""
    name = function.__name__
    what = f"program '{name}'"
    source = source_of(function, what)
    outside = Outside(function, around)
    context = Context(name, 1, False, "generic", {}, {})
    context.frames.append(Frame(source, outside, []))
    parameters = declared(context, function, outside, source, what)
    trace = Trace(name, parameters.each, dict(context.dimensions))
    for item in parameters.each:
        if isinstance(item, Tensor) and item.given is not None:
            raise CompileError(
                f"'{item.name}' is reshaped, and a program passes its tensors on as they are",
                item.loc,
                "reshape the parameters of the kernels",
            )
    _run(function, trace, source, parameters)
    trace.finish()
    made = Program(
        name=name,
        parameters=parameters.each,
        dimensions=tuple(context.dimensions.values()),
        temporaries=tuple(trace.temporaries),
        calls=tuple(trace.calls),
        views=tuple(trace.views.items()),
        loc=source.head(),
    )
    kernels = tuple([trace.kernels[id(kernel)] for kernel in kernels_of(made).values()])
    return made, context.dimensions, kernels, parameters.tuples


def _run(function: FunctionType, trace: Trace, source: Source, parameters: Parameters) -> None:
    handles = [
        tuple(map(trace.handle, value)) if isinstance(value, tuple) else trace.handle(value)
        for value in parameters.values.values()
    ]
    token = tracing.set(trace)
    try:
        result = function(*handles)
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
