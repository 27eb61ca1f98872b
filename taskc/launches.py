"""A call of a program as the calls of kernels that it is: temporaries made, sizes known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np

from taskc.arguments import ArgumentError, Bound
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Constant, Expression, Kernel, Tensor, Variable
from taskc.ir.printer import expression_text
from taskc.ir.program import Call, Program, Step, View, bind_dimensions, views_by_loop
from taskc.ir.rounding import as_storage
from taskc.ir.signature import misfit
from taskc.ir.types import TensorType
from taskc.packed import laid_memory, shape_of

# Makes an array for a type whose sizes are known.
Empty: TypeAlias = Callable[[TensorType], Any]


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel and what it is called with. Arrays are shared between launches: data flows."""

    call: Call
    bound: Bound

    @property
    def kernel(self) -> Kernel:
        assert isinstance(self.call.callee, Kernel)  # a program that runs has no computations
        return self.call.callee


def in_usual_order(described: TensorType) -> Any:
    """A temporary for the simulator, which knows no layout of parameters."""
    return np.empty(described.shape, described.dtype.numpy)


def on_host(described: TensorType) -> Any:
    """A temporary for compiled code. No result depends on what pads its layout, so that may hold anything."""
    laid = described.layout is not None
    return laid_memory(np.empty, described) if laid else in_usual_order(described)


def launches(
    program: Program, values: Sequence[Any], empty: Empty = in_usual_order
) -> tuple[Launch, ...]:
    """The calls of a program, in order; `values` are one for each parameter, as in a `Bound`.

    empty  makes the temporaries where the arrays lie
    """
    sizes: dict[Variable, Any] = dict(bind_dimensions(program.parameters, [*map(shape_of, values)]))
    arrays: dict[Tensor, Any] = {}
    for parameter, value in zip(program.parameters, values, strict=True):
        if isinstance(parameter, Tensor):
            arrays[parameter] = value
        else:
            sizes[parameter] = value
    for tensor in program.temporaries:
        shape = _shape(program, tensor, sizes)
        arrays[tensor] = empty(TensorType(tensor.dtype, shape, tensor.layout))
    arrays |= dict(program.constants)
    return tuple(_unrolled(program, program.calls, None, views_by_loop(program), arrays, sizes))


def _unrolled(
    program: Program,
    steps: Sequence[Step],
    number: Variable | None,
    views: Mapping[Variable | None, Sequence[View]],
    arrays: dict[Tensor, Any],
    sizes: dict[Variable, Any],
) -> Iterator[Launch]:
    """The calls of steps with the parts that theirs are; `number` is that of the innermost loop's step."""
    for view in views.get(number, ()):
        shape = _shape(program, view.tensor, sizes)
        start = extent_value(view.offset, sizes)
        memory = arrays[view.of].reshape(-1)[start : start + prod(shape)]
        arrays[view.tensor] = memory.reshape(shape)
    for step in steps:
        if isinstance(step, Call):
            yield Launch(step, _bound(program, step, arrays, sizes))
            continue
        for turn in range(extent_value(step.count, sizes)):
            sizes[step.variable] = turn
            yield from _unrolled(program, step.body, step.variable, views, arrays, sizes)


def _shape(program: Program, tensor: Tensor, sizes: dict[Variable, Any]) -> tuple[int, ...]:
    shape = []
    for extent in tensor.shape:
        size = extent_value(extent, sizes)
        if size < 0:
            assert not isinstance(extent, int)
            raise ArgumentError(
                f"{program.name}(): temporary '{tensor.name}' has the extent"
                f" {expression_text(extent)} = {size}, and an extent is 0 or more"
            )
        shape.append(size)
    return tuple(shape)


def _bound(
    program: Program, call: Call, arrays: dict[Tensor, Any], sizes: dict[Variable, Any]
) -> Bound:
    values = []
    for parameter, argument in zip(call.callee.parameters, call.arguments, strict=True):
        if isinstance(argument, Tensor):
            values.append(arrays[argument])
            continue
        number = _number(argument, sizes)
        problem = misfit(number, parameter.dtype) if isinstance(number, int) else None
        if problem is not None:
            what = f"argument '{parameter.name}' of {call.callee.name}()"
            raise ArgumentError(f"{program.name}(): {what}, {expression_text(argument)}, {problem}")
        values.append(as_storage(number, parameter.dtype)[()])
    dimensions = bind_dimensions(call.callee.parameters, [*map(shape_of, values)])
    # A computation has the program's own, which no argument need tell.
    dimensions |= {own: int(sizes[own]) for own in call.callee.dimensions if own in sizes}
    return Bound(tuple(values), dimensions, None)


def _number(argument: Expression, sizes: dict[Variable, Any]) -> Any:
    """A scalar that is passed, not yet held to its type."""
    match argument:
        case Constant():
            return argument.value
        case Variable():
            return sizes[argument]
    return extent_value(argument, sizes)
