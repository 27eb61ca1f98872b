"""Tracing of a program: its function runs once, and calls kernels with handles for tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FunctionType, TracebackType
from typing import Any

from taskc.errors import NOWHERE, CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.nodes import Tensor, Variable
from taskc.ir.program import Program, exchanged, kernels_of
from taskc.ir.text_rules import identifier
from taskc.ir.types import TensorType, i64
from taskc.lang.assumptions import Assumptions
from taskc.lang.computations import traced_computation
from taskc.lang.context import Context, Frame
from taskc.lang.definition import KernelDefinition
from taskc.lang.functions import Outside
from taskc.lang.parser import Parameters, declared
from taskc.lang.sizes import Dimension, Size, tracing
from taskc.lang.source import Source, running, source_of
from taskc.lang.tracing import TensorHandle, Trace
from taskc.lang.values import describe, layout_of


def traced(
    function: FunctionType, around: dict[str, Any], fuse: bool = True
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
    trace.apart = not fuse
    for item in parameters.each:
        if isinstance(item, Tensor) and item.given is not None:
            raise CompileError(
                f"'{item.name}' is reshaped, and a program passes its tensors on as they are",
                item.loc,
                "reshape the parameters of the kernels",
            )
    _run(function, trace, source, parameters)
    trace.finish()
    made, kernels = _program(trace, source.head())
    return made, context.dimensions, kernels, parameters.tuples


def _program(trace: Trace, loc: Location) -> tuple[Program, tuple[KernelDefinition, ...]]:
    made = Program(
        name=trace.name,
        parameters=trace.parameters,
        dimensions=tuple(trace.variables.values()),
        temporaries=tuple(trace.temporaries),
        calls=tuple(trace.calls),
        views=tuple(trace.views.values()),
        constants=tuple(trace.constants.items()),
        loc=loc,
    )
    return made, tuple([trace.kernels[id(kernel)] for kernel in kernels_of(made).values()])


def traced_body(
    name: str,
    inputs: Mapping[str, TensorType],
    body: Callable[..., Any],
    site: Location,
    assumptions: Assumptions | None = None,
) -> tuple[Program, dict[Dimension, Variable], tuple[KernelDefinition, ...]]:
    """The program of a function that returns its outputs."""
    dimensions: dict[Dimension, Variable] = {}
    parameters = []
    for given, kind in inputs.items():
        shape = [_extent(extent, dimensions) for extent in kind.shape]
        parameters.append(
            Tensor(given, kind.dtype, tuple(shape), ir.GLOBAL, layout_of(kind), loc=site)
        )
    trace = Trace(identifier(name), parameters, dimensions)
    trace.assumptions = assumptions
    token = tracing.set(trace)
    try:
        returned = body(*map(trace.handle, parameters))
        trace.finish()
        named = returned if isinstance(returned, dict) else {"out": returned}
        outputs: dict[Tensor, Tensor] = {}  # by the temporary that each was
        for output, handle in named.items():
            if output in inputs or not str(output).isidentifier():
                raise CompileError(
                    f"{output!r} can't name an output: it is an input's name or none", site
                )
            _add_output(trace, output, handle, outputs, site)
    finally:
        tracing.reset(token)
    trace.parameters += tuple(outputs.values())
    made, kernels = _program(trace, site)
    return made, dimensions, kernels


def _extent(extent: Any, dimensions: dict[Dimension, Variable]) -> Any:
    """An extent of an input, over variables of the program."""

    def variable_of(dimension: Dimension) -> Variable:
        return dimensions.setdefault(dimension, Variable(dimension.name, i64, dimension.multiple))

    return extent.over(variable_of) if isinstance(extent, Size) else extent


def _add_output(
    trace: Trace, name: str, handle: object, outputs: dict[Tensor, Tensor], site: Location
) -> None:
    """Make an output parameter of a returned handle: of a temporary that calls write once, or else of a copy."""
    if not isinstance(handle, TensorHandle) or handle.trace is not trace:
        raise CompileError(f"the output '{name}' is {describe(handle)}, and no tensor of it", site)
    tensor = handle.tensor
    if tensor in outputs:
        handle = trace.handle(outputs[tensor])
        assert isinstance(handle, TensorHandle)
        tensor = handle.tensor
    whole = trace.span(tensor, site)
    is_own = tensor in trace.temporaries and trace.written.has(tensor, whole)
    if not is_own or tensor in trace.written.repeated:
        tensor = _copied(trace, handle, site)
    output = replace(tensor, name=name, role="out")
    trace.temporaries.remove(tensor)
    trace.calls = [*exchanged(trace.calls, tensor, output)]
    for view in trace.views.values():
        if view.of is tensor:
            trace.views[view.tensor] = replace(view, of=output)
    trace.written.rename(tensor, output)
    outputs[tensor] = output


def _copied(trace: Trace, handle: TensorHandle, site: Location) -> Tensor:
    made = traced_computation(trace, handle.tensor.shape, lambda *at: handle[at], "copy", site)
    assert isinstance(made, TensorHandle)
    return made.tensor


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
    """The location where an exception was raised."""
    place = NOWHERE
    while traceback is not None:
        place = running(traceback.tb_frame, traceback.tb_lineno, traceback.tb_lasti)
        traceback = traceback.tb_next
    return place
