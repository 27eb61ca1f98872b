"""Specialize a program for sizes: evaluate and check its shapes, offsets and scalars before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from taskc.arrays.arguments import ArgumentError
from taskc.errors import assert_never
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Constant, Expression, Tensor, Variable
from taskc.ir.printer import expression_text
from taskc.ir.rounding import as_storage
from taskc.ir.signature import Binding, Parameter, misfit
from taskc.programs.ir import Branch, Call, Loop, Program, Step, View, While, views_by_loop

# A tensor of the program, one of its own scalars, or a number of the parameter's storage type.
Argument: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class SizedCall:
    """A call with evaluated arguments; `dimensions` are the callee's."""

    call: Call
    arguments: tuple[Argument, ...]
    dimensions: dict[Variable, int]


@dataclass(frozen=True, slots=True)
class SizedBranch:
    condition: Tensor
    then: list[SizedStep]
    otherwise: list[SizedStep]


@dataclass(frozen=True, slots=True)
class SizedWhile:
    condition: Tensor
    body: list[SizedStep]


SizedStep: TypeAlias = "SizedCall | SizedBranch | SizedWhile"


@dataclass(frozen=True, slots=True)
class Sized:
    """A program at given sizes. Loops are unrolled, with one view for each step if it differs between steps.

    shapes  of all tensors
    views   each view's memory
    starts  each view's offset in elements

    """

    shapes: dict[Tensor, tuple[int, ...]] = field(default_factory=dict)
    views: dict[Tensor, Tensor] = field(default_factory=dict)
    starts: dict[Tensor, int] = field(default_factory=dict)
    steps: list[SizedStep] = field(default_factory=list)


def sized(program: Program, sizes: Mapping[Variable, Any]) -> Sized:
    """The program at given dimensions, and at the values of its scalars that computed extents need."""
    specialized = Sized()
    for item in (*program.parameters, *[tensor for tensor, _ in program.constants]):
        if isinstance(item, Tensor):
            specialized.shapes[item] = tuple([extent_value(n, sizes) for n in item.argument_shape])
    for tensor in program.temporaries:
        specialized.shapes[tensor] = _shape(program, tensor, sizes)
    steps = _Steps(program, specialized, views_by_loop(program))
    specialized.steps.extend(steps.turn(program.calls, None, {}, sizes))
    return specialized


@dataclass(frozen=True, slots=True)
class _Steps:
    """views  the views that are the same in all steps (None), and those of each loop by its variable"""

    program: Program
    found: Sized
    views: Mapping[Variable | None, Sequence[View]]

    def turn(
        self,
        steps: Sequence[Step],
        loop: Variable | None,
        named: Mapping[Tensor, Tensor],
        sizes: Mapping[Variable, Any],
    ) -> Iterator[SizedStep]:
        """One turn of a loop's body, or the whole program; `named` has the enclosing loops' views as of this turn."""
        sized_program, views_here = self.found, dict(named)
        for view in self.views.get(loop, ()):
            tensor = view.tensor if loop is None else replace(view.tensor)
            views_here[view.tensor] = tensor
            sized_program.views[tensor] = view.of
            sized_program.shapes[tensor] = _shape(self.program, view.tensor, sizes)
            sized_program.starts[tensor] = extent_value(view.offset, sizes)
        yield from self.each(steps, views_here, sizes)

    def each(
        self,
        steps: Sequence[Step],
        named: Mapping[Tensor, Tensor],
        sizes: Mapping[Variable, Any],
    ) -> Iterator[SizedStep]:
        def body(steps: Sequence[Step]) -> list[SizedStep]:
            return [*self.each(steps, named, sizes)]

        for step in steps:
            match step:
                case Call():
                    yield _sized_call(self.program, step, named, self.found.shapes, sizes)
                case Loop():
                    for number in range(extent_value(step.count, sizes)):
                        inside = {**sizes, step.variable: number}
                        yield from self.turn(step.body, step.variable, named, inside)
                case Branch():
                    condition = named.get(step.condition, step.condition)
                    yield SizedBranch(condition, body(step.then), body(step.otherwise))
                case While():
                    condition = named.get(step.condition, step.condition)
                    yield SizedWhile(condition, body(step.body))
                case _:
                    assert_never(step)


def _shape(program: Program, tensor: Tensor, sizes: Mapping[Variable, Any]) -> tuple[int, ...]:
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


def _sized_call(
    program: Program,
    call: Call,
    named: Mapping[Tensor, Tensor],
    shapes: Mapping[Tensor, tuple[int, ...]],
    sizes: Mapping[Variable, Any],
) -> SizedCall:
    arguments: list[Argument] = []
    # A computation has the program's own dimensions, which its arguments may not determine.
    own = {item: int(sizes[item]) for item in call.callee.dimensions if item in sizes}
    binding = Binding(f"{call.callee.name}()", own)
    for parameter, argument in zip(call.callee.parameters, call.arguments, strict=True):
        if not isinstance(argument, Tensor):
            arguments.append(_scalar(program, call, parameter, argument, sizes))
            continue
        argument = named.get(argument, argument)
        arguments.append(argument)
        assert isinstance(parameter, Tensor)
        binding.fit(parameter, shapes[argument], shapes[argument])
    binding.check_computed()
    return SizedCall(call, tuple(arguments), binding.sizes)


def _scalar(
    program: Program,
    call: Call,
    parameter: Parameter,
    argument: Expression,
    sizes: Mapping[Variable, Any],
) -> Argument:
    if isinstance(argument, Variable) and argument in program.parameters:
        return argument
    literal = argument.value if isinstance(argument, Constant) else None
    number = extent_value(argument, sizes) if literal is None else literal
    problem = misfit(number, parameter.dtype) if isinstance(number, int) else None
    if problem is not None:
        what = f"argument '{parameter.name}' of {call.callee.name}()"
        raise ArgumentError(f"{program.name}(): {what}, {expression_text(argument)}, {problem}")
    return as_storage(number, parameter.dtype)[()]
