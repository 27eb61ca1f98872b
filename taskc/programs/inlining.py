"""A program that another calls: its steps on the arguments of the call, with sizes and scalars put in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taskc.errors import CompileError, Location, assert_never
from taskc.ir import nodes as ir
from taskc.ir.build import index
from taskc.ir.rewrite import replace_tensors, substitute, walk
from taskc.ir.signature import misfit
from taskc.ir.types import i64
from taskc.programs.ir import (
    Branch,
    Call,
    Callee,
    Computation,
    Loop,
    Program,
    Step,
    While,
    bodies_of,
    loops_of,
    with_bodies,
)
from taskc.programs.tracing import Trace


class Inlining:
    """A program, and the substitution for its names.

    tensors  the caller's, by the program's: first those of its parameters
    scalars  the caller's numbers and sizes, by the program's scalars, dimensions and loops' variables
    """

    def __init__(
        self,
        trace: Trace,
        program: Program,
        tensors: dict[ir.Tensor, ir.Tensor],
        scalars: dict[ir.Variable, ir.Expression],
        site: Location,
    ) -> None:
        self.trace = trace
        self.program = program
        self.tensors = tensors
        self.scalars = scalars
        self.site = site
        self.computed: dict[int, Computation] = {}

    def made(self) -> tuple[Step, ...]:
        """The steps; constants, temporaries and views are the caller's from now on."""
        trace, program = self.trace, self.program
        for loop in loops_of(program.calls):
            self.scalars[loop.variable] = ir.Variable(loop.variable.name, i64)
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
                assert isinstance(variable, ir.Variable)
                step = replace(step, variable=variable, count=self.size(step.count))
            case Branch() | While():
                step = replace(step, condition=self.tensors[step.condition])
            case _:
                assert_never(step)
        return with_bodies(step, [*map(self.steps, bodies_of(step))])

    def call(self, call: Call) -> Call:
        arguments: list[ir.Tensor | ir.Expression] = []
        for parameter, argument in zip(call.callee.parameters, call.arguments, strict=True):
            if isinstance(argument, ir.Tensor):
                arguments.append(self.tensors[argument])
            else:
                name = f"argument '{parameter.name}' of {call.callee.name}()"
                arguments.append(self.number(f"{self.program.name}(): {name}", argument))
        callee: Callee = call.callee
        if isinstance(callee, Computation) and callee.dimensions:
            callee = self.computed.get(id(callee)) or self.computation(callee)
        parts = tuple(dict.fromkeys([*call.origins, self.site]))
        return replace(call, callee=callee, arguments=tuple(arguments), parts=parts)

    def computation(self, computation: Computation) -> Computation:
        """A computation with the sizes of the caller."""
        tensors = {
            tensor: replace(tensor, shape=tuple([self.size(extent) for extent in tensor.shape]))
            for tensor in computation.parameters
            if isinstance(tensor, ir.Tensor)
        }
        sizes = {size: self.scalars[size] for size in computation.dimensions}
        named = [node for size in sizes.values() for node in walk(size)]
        dimensions = dict.fromkeys([node for node in named if isinstance(node, ir.Variable)])
        specialized = replace(
            computation,
            parameters=tuple(
                [
                    tensors[item] if isinstance(item, ir.Tensor) else item
                    for item in computation.parameters
                ]
            ),
            dimensions=tuple(dimensions),
            value=substitute(replace_tensors(computation.value, tensors), sizes),
        )
        self.computed[id(computation)] = specialized
        return specialized

    def size(self, extent: int | ir.Expression) -> int | ir.Expression:
        return self.trace.extent(substitute(index(extent), self.scalars))

    def number(self, what: str, argument: ir.Expression) -> ir.Expression:
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
