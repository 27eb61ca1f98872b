"""A program that is there already, held to what tracing checks: its calls are noted once more."""

from __future__ import annotations

from typing import Any

from taskc.errors import CompileError
from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.ir.program import Call, Program
from taskc.ir.signature import is_output
from taskc.ir.types import TensorType
from taskc.lang.sizes import Dimension
from taskc.lang.traced_call import traced_call
from taskc.lang.tracing import Trace
from taskc.lang.values import layout_problem


def retrace(program: Program, dimensions: dict[Dimension, Variable]) -> None:
    """Refuses what no function could have been traced into, with the place of the call."""
    trace = Trace(program.name, program.parameters, dimensions)
    for tensor in program.temporaries:
        problem = layout_problem(TensorType(tensor.dtype, tensor.shape, tensor.layout))
        if problem is not None:
            raise CompileError(problem, tensor.loc)
        trace.temporary(tensor)
    for view in program.views:
        trace.view(view.tensor, view.of, view.offset)
    for call in program.calls:
        _retrace(trace, call)
    trace.finish()


def _retrace(trace: Trace, call: Call) -> None:
    inputs: list[Any] = []
    outputs: list[Any] = []
    for parameter, argument in zip(call.callee.parameters, call.arguments, strict=True):
        (outputs if is_output(parameter) else inputs).append(_value(trace, argument))
    traced_call(trace, call.callee, {}, inputs, {"out": tuple(outputs)}, call.loc)


def _value(trace: Trace, argument: Tensor | Expression) -> Any:
    """What the body of a program would pass: a handle, a size or a number."""
    if isinstance(argument, Tensor) or argument in trace.parameters:
        return trace.handle(argument)
    if isinstance(argument, ir.Constant):
        return argument.value
    return trace.number(argument.operand if isinstance(argument, ir.Cast) else argument)
