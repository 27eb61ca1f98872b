"""What a program's function does when it runs, once: it calls kernels with handles for tensors."""

from __future__ import annotations

from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any

from taskc.errors import NOWHERE, CompileError, Location
from taskc.ir.nodes import Tensor, Variable
from taskc.ir.program import Program, kernels_of
from taskc.lang.context import Context, Frame
from taskc.lang.functions import Outside, plain_parameters
from taskc.lang.parameters import parameter
from taskc.lang.sizes import Dimension, tracing
from taskc.lang.source import Source, running, source_of
from taskc.lang.tracing import Trace
from taskc.lang.values import describe

if TYPE_CHECKING:
    from taskc.lang.definition import KernelDefinition


def traced(
    function: FunctionType, around: dict[str, Any]
) -> tuple[Program, dict[Dimension, Variable], tuple[KernelDefinition, ...]]:
    """The program, the variables that stand for its dimensions, and the kernels that it calls."""
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
    for item in parameters:
        if isinstance(item, Tensor) and item.given is not None:
            raise CompileError(
                f"'{item.name}' is reshaped, and a program passes its tensors on as they are",
                item.loc,
                "reshape the parameters of the kernels",
            )
    _run(function, trace, source)
    trace.finish()
    made = Program(
        name=name,
        parameters=parameters,
        dimensions=tuple(context.dimensions.values()),
        temporaries=tuple(trace.temporaries),
        calls=tuple(trace.calls),
        views=tuple(trace.views.items()),
        loc=source.head(),
    )
    kernels = tuple([trace.kernels[id(kernel)] for kernel in kernels_of(made).values()])
    return made, context.dimensions, kernels


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
