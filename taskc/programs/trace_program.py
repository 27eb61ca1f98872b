"""Tracing of a program: its function runs once, with handles for tensors, and each call is recorded.

An existing program is traced again for the checks of tracing: its own calls are recorded once more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FunctionType, TracebackType
from typing import Any

from taskc.errors import NOWHERE, CompileError, Location, assert_never
from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.ir.printer_expressions import extent_text
from taskc.ir.signature import Parameter, is_output, named_type
from taskc.ir.text_rules import identifier
from taskc.ir.types import DType, TensorType
from taskc.lang.context import Context, FunctionFrame
from taskc.lang.definition import KernelDefinition
from taskc.lang.functions import Outside
from taskc.lang.names import ParameterType
from taskc.lang.parser import Parameters, declared
from taskc.lang.sizes import Dimension, Size, tracing
from taskc.lang.source import Source, running, source_of
from taskc.lang.values import describe, layout_of, layout_problem
from taskc.programs.body import Branching, begin_while, check_condition, end_while
from taskc.programs.computations import traced_computation
from taskc.programs.ir import (
    Branch,
    Call,
    Computation,
    Loop,
    Program,
    Step,
    View,
    While,
    exchanged,
    kernels_of,
    memory_problem,
    views_by_loop,
)
from taskc.programs.record_call import traced_call
from taskc.programs.sizes import Assumptions
from taskc.programs.tracing import TensorHandle, Trace


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
    context.frames.append(FunctionFrame(source, outside, []))
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
    program = Program(
        name=trace.name,
        parameters=trace.parameters,
        dimensions=tuple(trace.variables.values()),
        temporaries=tuple(trace.temporaries),
        calls=tuple(trace.calls),
        views=tuple(trace.views.values()),
        constants=tuple(trace.constants.items()),
        loc=loc,
    )
    return program, tuple([trace.kernels[id(kernel)] for kernel in kernels_of(program).values()])


def traced_body(
    name: str,
    inputs: Mapping[str, TensorType | ParameterType | DType],
    body: Callable[..., Any],
    site: Location,
    assumptions: Assumptions | None = None,
) -> tuple[Program, dict[Dimension, Variable], tuple[KernelDefinition, ...]]:
    """The program of a function that returns its outputs."""
    dimensions: dict[Dimension, Variable] = {}
    parameters: list[Parameter] = []
    for given, declared_type in inputs.items():
        if isinstance(declared_type, DType):
            parameters.append(Variable(given, declared_type))
            continue
        role, kind = (
            (declared_type.role, declared_type.type)
            if isinstance(declared_type, ParameterType)
            else ("in", declared_type)
        )
        shape = tuple([_extent(extent, dimensions) for extent in kind.shape])
        parameters.append(
            Tensor(given, kind.dtype, shape, ir.GLOBAL, layout_of(kind), role=role, loc=site)
        )
    program, kernels = traced_with(name, parameters, dimensions, body, site, assumptions)
    return program, dimensions, kernels


def traced_with(
    name: str,
    parameters: Sequence[Parameter],
    dimensions: dict[Dimension, Variable],
    body: Callable[..., Any],
    site: Location,
    assumptions: Assumptions | None = None,
) -> tuple[Program, tuple[KernelDefinition, ...]]:
    """The program of a function of the handles of these parameters, which returns its outputs."""
    trace = Trace(identifier(name), parameters, dimensions)
    trace.assumptions = assumptions
    inputs = [item.name for item in parameters]
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
    return _program(trace, site)


def _extent(extent: Any, dimensions: dict[Dimension, Variable]) -> Any:
    """An extent of an input, over variables of the program."""

    def variable_of(dimension: Dimension) -> Variable:
        return dimensions.setdefault(dimension, dimension.new_variable())

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
    copied = traced_computation(trace, handle.tensor.shape, lambda *at: handle[at], "copy", site)
    assert isinstance(copied, TensorHandle)
    return copied.tensor


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


def retrace(program: Program, dimensions: dict[Dimension, Variable]) -> None:
    """Raise an error, at the call, for a program that no function could have been traced into."""
    trace = Trace(program.name, program.parameters, dict(dimensions))
    for tensor in program.temporaries:
        problem = layout_problem(TensorType(tensor.dtype, tensor.shape, tensor.layout))
        if problem is not None:
            raise CompileError(problem, tensor.loc)
        trace.temporary(tensor)
    for tensor, memory in program.constants:
        problem = memory_problem(TensorType(tensor.dtype, tensor.shape, tensor.layout), memory)
        if problem is not None:
            raise CompileError(f"the memory of '{tensor.name}': {problem}", tensor.loc)
        trace.constants[tensor] = memory
    views = views_by_loop(program)
    for view in views.get(None, ()):
        _retrace_view(trace, view)
    _retrace_steps(trace, program.calls, views)
    trace.finish()


def _retrace_steps(
    trace: Trace, steps: Sequence[Step], views: Mapping[Variable | None, Sequence[View]]
) -> None:
    for step in steps:
        match step:
            case Call():
                _retrace(trace, step)
            case Loop():
                trace.begin_loop(step.variable, step.count, step.loc)
                for view in views.get(step.variable, ()):
                    _retrace_view(trace, view)
                _retrace_steps(trace, step.body, views)
                trace.end_loop()
            case Branch():
                check_condition(trace, step.condition, step.loc)
                branching = Branching(trace, step.condition, step.loc)
                branching.begin()
                _retrace_steps(trace, step.then, views)
                branching.end()
                branching.begin_otherwise()
                _retrace_steps(trace, step.otherwise, views)
                branching.end()
            case While():
                check_condition(trace, step.condition, step.loc)
                begin_while(trace, step.condition, step.loc)
                _retrace_steps(trace, step.body, views)
                end_while(trace)
            case _:
                assert_never(step)


def _retrace_view(trace: Trace, view: View) -> None:
    tensor, of = view.tensor, view.of
    trace.view(tensor, of, view.offset)
    span, whole = trace.span(tensor, tensor.loc), trace.span(of, of.loc)
    if not (trace.is_natural(span.low) and trace.is_natural(whole.high - span.high)):
        place = "" if view.offset == 0 else f" at {extent_text(view.offset)}"
        raise CompileError(
            f"{named_type(tensor.dtype, tensor.shape)}{place} isn't surely a part of {of.name}:"
            f" {named_type(of.dtype, of.shape)}",
            tensor.loc,
        )


def _retrace(trace: Trace, call: Call) -> None:
    callee = call.callee
    if isinstance(callee, Computation):
        missing = [size for size in callee.dimensions if size not in trace.variables.values()]
        if missing:
            raise CompileError(
                f"{callee.name}() is of {missing[0]}, a loop's step that this call isn't in",
                call.loc,
            )
    inputs: list[Any] = []
    outputs: list[Any] = []
    for parameter, argument in zip(call.callee.parameters, call.arguments, strict=True):
        (outputs if is_output(parameter) else inputs).append(value_of(trace, argument))
    traced_call(trace, call.callee, {}, inputs, {"out": tuple(outputs)}, call.loc)


def value_of(trace: Trace, argument: Tensor | Expression) -> Any:
    """The argument as the body of a program would pass it: a handle, a size or a number."""
    if isinstance(argument, Tensor) or argument in trace.parameters:
        return trace.handle(argument)
    if isinstance(argument, ir.Constant):
        return argument.value
    return trace.number(argument.operand if isinstance(argument, ir.Cast) else argument)
