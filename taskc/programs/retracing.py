"""The checks of tracing for an existing program: its calls are recorded once more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taskc.errors import CompileError, assert_never
from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.ir.printer_expressions import extent_text
from taskc.ir.signature import is_output, named_type
from taskc.ir.types import TensorType
from taskc.lang.sizes import Dimension
from taskc.lang.values import layout_problem
from taskc.programs.body import Branching, begin_while, check_condition, end_while
from taskc.programs.ir import (
    Branch,
    Call,
    Computation,
    Loop,
    Program,
    Step,
    View,
    While,
    memory_problem,
    views_by_loop,
)
from taskc.programs.traced_call import traced_call
from taskc.programs.tracing import Trace


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
        (outputs if is_output(parameter) else inputs).append(_value(trace, argument))
    traced_call(trace, call.callee, {}, inputs, {"out": tuple(outputs)}, call.loc)


def _value(trace: Trace, argument: Tensor | Expression) -> Any:
    """The argument as the body of a program would pass it: a handle, a size or a number."""
    if isinstance(argument, Tensor) or argument in trace.parameters:
        return trace.handle(argument)
    if isinstance(argument, ir.Constant):
        return argument.value
    return trace.number(argument.operand if isinstance(argument, ir.Cast) else argument)
