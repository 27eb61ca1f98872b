"""Rewrite callees over the sizes of their caller: a program's steps, where another calls it, and single callees.

    kernel copy[m](x: f32[m], y: out f32[m])     called with f32[2 * n]
->
    kernel copy[n](x: f32[2 * n], y: out f32[2 * n])

Computations are over the program's sizes, so a kernel has to be before one is fused with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from taskc.errors import CompileError, Location, assert_never
from taskc.ir import nodes as ir
from taskc.ir.build import index
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Expression, Kernel, Tensor, Variable
from taskc.ir.rewrite import map_statements, replace_tensors, substitute
from taskc.ir.signature import misfit
from taskc.ir.types import i64
from taskc.programs.ir import (
    Branch,
    Call,
    Callee,
    Computation,
    Invocation,
    Loop,
    Program,
    Step,
    While,
    bodies_of,
    loops_of,
    tensors_given,
    variables_in,
    with_bodies,
    with_tensors,
)
from taskc.programs.tracing import Trace

Extent = int | Expression
Sizes = dict[Variable, Extent]
AnyCallee = TypeVar("AnyCallee", Kernel, Computation)


class Inlining:
    """A program, and the substitution for its names.

    tensors  the caller's, by the program's: first those of its parameters
    scalars  the caller's numbers and sizes, by the program's scalars, dimensions and loops' variables
    """

    def __init__(
        self,
        trace: Trace,
        program: Program,
        tensors: dict[Tensor, Tensor],
        scalars: dict[Variable, Expression],
        site: Location,
    ) -> None:
        self.trace = trace
        self.program = program
        self.tensors = tensors
        self.scalars = scalars
        self.site = site
        self.computed: dict[int, Computation] = {}
        self.invocations: dict[int, Invocation] = {}

    def inlined(self) -> tuple[Step, ...]:
        """The steps; constants, temporaries and views are the caller's from now on."""
        trace, program = self.trace, self.program
        for loop in loops_of(program.calls):
            self.scalars[loop.variable] = Variable(loop.variable.name, i64)
        for constant, array in program.constants:
            self.tensors[constant] = constant
            trace.constants[constant] = array
        for temporary in program.temporaries:
            extents = [self.size(extent) for extent in temporary.shape]
            lowest = min([extent for extent in extents if isinstance(extent, int)], default=0)
            if lowest < 0:
                problem = f"the temporary '{temporary.name}' would have the extent {lowest}"
                raise CompileError(f"{program.name}(): {problem}", self.site)
            self.tensors[temporary] = replace(temporary, shape=tuple(extents), loc=self.site)
            trace.temporary(self.tensors[temporary])
        for view in program.views:
            seen = tuple([self.size(extent) for extent in view.tensor.shape])
            self.tensors[view.tensor] = replace(view.tensor, shape=seen)
            trace.view(self.tensors[view.tensor], self.tensors[view.of], self.size(view.offset))
        return self.steps(program.calls)

    def steps(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        return tuple(map(self.step, steps))

    def step(self, step: Step) -> Step:
        match step:
            case Call():
                return self.call(step)
            case Loop():
                variable = self.scalars[step.variable]
                assert isinstance(variable, Variable)
                step = replace(step, variable=variable, count=self.size(step.count))
            case Branch() | While():
                step = replace(step, condition=self.tensors[step.condition])
            case _:
                assert_never(step)
        return with_bodies(step, [*map(self.steps, bodies_of(step))])

    def call(self, call: Call) -> Call:
        arguments: list[Tensor | Expression] = []
        for parameter, argument in zip(call.callee.parameters, call.arguments, strict=True):
            if isinstance(argument, Tensor):
                arguments.append(self.tensors[argument])
            else:
                name = f"argument '{parameter.name}' of {call.callee.name}()"
                arguments.append(self.number(f"{self.program.name}(): {name}", argument))
        callee: Callee = call.callee
        if isinstance(callee, Computation) and callee.dimensions:
            callee = self.computed.get(id(callee)) or self.computation(callee)
        parts = tuple(dict.fromkeys([*call.origins, self.site]))
        whole = call.invocation and self.invocation(call.invocation)
        return replace(
            call, callee=callee, arguments=tuple(arguments), parts=parts, invocation=whole
        )

    def invocation(self, whole: Invocation) -> Invocation:
        """The call of a definition that a step is a part of, on the caller's tensors."""
        if id(whole) not in self.invocations:
            arguments = [
                self.tensors[it] if isinstance(it, Tensor) else substitute(it, self.scalars)
                for it in whole.arguments
            ]
            self.invocations[id(whole)] = Invocation(whole.definition, tuple(arguments))
        return self.invocations[id(whole)]

    def computation(self, computation: Computation) -> Computation:
        sizes = {size: self.scalars[size] for size in computation.dimensions}
        specialized, _ = over_sizes(computation, sizes, self.size)
        self.computed[id(computation)] = specialized
        return specialized

    def size(self, extent: int | Expression) -> int | Expression:
        return self.trace.extent(substitute(index(extent), self.scalars))

    def number(self, what: str, argument: Expression) -> Expression:
        """A scalar that is passed on; a size may have become a number."""
        argument = substitute(argument, self.scalars)
        if not isinstance(argument, (ir.Cast, ir.Binary)):
            return argument
        size = argument.operand if isinstance(argument, ir.Cast) else argument
        number = self.trace.extent(size)
        if not isinstance(number, int):
            return argument
        problem = misfit(number, argument.dtype)
        if problem is not None:
            raise CompileError(f"{what} {problem}", self.site)
        return ir.Constant(number, argument.dtype)


def over_sizes(
    callee: AnyCallee, sizes: Mapping[Variable, Expression], extent: Callable[[Extent], Extent]
) -> tuple[AnyCallee, dict[Tensor, Tensor]]:
    """A callee with other sizes for its dimensions, and its new tensors by the old ones.

    extent  the extent with these sizes
    """

    def resized(tensor: Tensor) -> Tensor:
        given = None if tensor.given is None else tuple(map(extent, tensor.given))
        return replace(tensor, shape=tuple(map(extent, tensor.shape)), given=given)

    def visit(statement: ir.Statement) -> ir.Statement:
        if isinstance(statement, ir.Grid):
            return replace(statement, shape=tuple(map(_number, statement.shape)))
        return map_statements(statement, visit)

    tensors = {item: resized(item) for item in callee.parameters if isinstance(item, Tensor)}
    changed = replace(
        callee,
        parameters=with_tensors(callee.parameters, tensors),
        dimensions=tuple(dict.fromkeys(variables_in(*sizes.values()))),
    )
    if isinstance(changed, Computation):
        value = substitute(replace_tensors(changed.value, tensors), sizes)
        return replace(changed, value=value), tensors
    body = substitute(replace_tensors(changed.body, tensors), sizes)
    return replace(changed, body=visit(body)), tensors


def sizes_of(call: Call) -> Sizes | None:
    """A kernel's dimensions in a call; None where an argument's shape doesn't determine one."""
    sizes: Sizes = {}
    for item, given in tensors_given(call):
        for own, extent in zip(item.argument_shape, given.shape, strict=True):
            if isinstance(own, Variable):
                sizes.setdefault(own, extent)
    return sizes if all(own in sizes for own in call.callee.dimensions) else None


def over_program_sizes(call: Call) -> tuple[Kernel, dict[Tensor, Tensor]]:
    """The kernel of a call over the program's sizes, and its new tensors by the old ones."""
    kernel, sizes = call.callee, sizes_of(call)
    assert isinstance(kernel, Kernel)
    assert sizes is not None
    if not sizes:
        return kernel, {item: item for item in kernel.parameters if isinstance(item, Tensor)}
    values = {own: index(extent) for own, extent in sizes.items()}
    return over_sizes(kernel, values, lambda extent: _number(substitute(index(extent), values)))


def _number(extent: Extent) -> Extent:
    """An extent, evaluated if it has no variables."""
    is_known = not isinstance(extent, int) and not any(variables_in(extent))
    return extent_value(extent, {}) if is_known else extent
