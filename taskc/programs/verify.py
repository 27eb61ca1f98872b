"""The verifier of programs and of the computations that they call; run after each pass over programs, in tests.

verify_program(program)      returns, or raises InternalError: a pass is wrong, not the user

computations  The last parameter is the output and the others are inputs and scalars. There is an index
              for each axis of the output. What is computed has the output's type and reads inputs alone.
names         A tensor of a program is a parameter, a constant, a temporary or a view, and is one of them
              once; a view is of no view. A loop's variable is bound by one loop, and used in its body; a
              computation's dimensions are those that are known where it is called.
conditions    What chooses among steps is a tensor that is known there, of one bool.
calls         There is an argument for each parameter: a tensor of its type and rank for a tensor, and a
              number of its type for a scalar.
"""

from __future__ import annotations

from taskc.errors import InternalError, assert_never
from taskc.ir import nodes as ir
from taskc.ir.build import ZERO, index
from taskc.ir.code_size import deeply
from taskc.ir.printer import to_text
from taskc.ir.rewrite import walk
from taskc.ir.verify import verify
from taskc.programs.ir import (
    Branch,
    Call,
    Computation,
    Loop,
    Program,
    Step,
    While,
    bodies_of,
    callees_of,
    condition_problem,
    variables_in,
    views_by_loop,
)
from taskc.programs.printer import calls_text


def verify_computation(computation: Computation) -> None:
    """Raise an InternalError that names the broken rule."""
    output = computation.parameters[-1] if computation.parameters else None
    if not isinstance(output, ir.Tensor) or output.role != "out":
        raise InternalError(f"{computation.name}: a computation's last parameter is its output")
    for parameter in computation.parameters[:-1]:
        if isinstance(parameter, ir.Tensor) and parameter.role != "in":
            raise _broken(computation, f"{parameter} is an input of a computation, and only read")
    if len(computation.variables) != len(output.shape):
        raise _broken(computation, f"there is an index for each axis of {output}")
    if any(isinstance(node, ir.Read) and node.tensor is output for node in walk(computation.value)):
        raise _broken(computation, f"the output {output} is written, and not read")
    # The other rules are those of expressions, checked on a kernel that stores each element.
    body: ir.Statement = ir.Store(
        output, computation.variables, computation.value, loc=computation.loc
    )
    for variable, extent in zip(
        reversed(computation.variables), reversed(output.shape), strict=True
    ):
        body = ir.For(variable, ZERO, index(extent), 1, body)
    parameters, dimensions = computation.parameters, computation.dimensions
    verify(ir.Kernel(computation.name, parameters, dimensions, 1, body))


def _broken(computation: Computation, rule: str) -> InternalError:
    return InternalError(f"{computation.name}: {rule}", to_text(computation))


@deeply
def verify_program(program: Program) -> None:
    """Raise an InternalError that names the broken rule, with the program's text."""
    for callee in callees_of(program).values():
        if isinstance(callee, Computation):
            verify_computation(callee)
    _Verifier(program).run()


class _Verifier:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.views = views_by_loop(program)
        self.sizes: set[ir.Variable] = set()  # sizes that are known at the verifier's position
        self.scalars: set[ir.Variable] = set()
        self.tensors: set[ir.Tensor] = set()
        self.bound: set[ir.Variable] = set()

    def need(self, holds: bool, rule: str) -> None:
        if not holds:
            raise InternalError(f"{self.program.name}: {rule}", calls_text(self.program))

    def run(self) -> None:
        program = self.program
        for dimension in program.dimensions:
            self.bind(dimension)
        for parameter in program.parameters:
            if isinstance(parameter, ir.Tensor):
                self.tensor(parameter)
            else:
                self.scalars.add(parameter)
        for constant, _ in program.constants:
            self.need(all(isinstance(n, int) for n in constant.shape), f"{constant} is constant")
            self.tensor(constant)
        for temporary in program.temporaries:
            self.tensor(temporary)
        self.body(None, program.calls)

    def bind(self, size: ir.Variable) -> None:
        self.need(size not in self.bound, f"{size} is bound once")
        self.bound.add(size)
        self.sizes.add(size)

    def tensor(self, tensor: ir.Tensor) -> None:
        self.need(tensor not in self.tensors, f"{tensor} is declared once")
        self.size(*tensor.shape)
        self.tensors.add(tensor)

    def size(self, *sizes: int | ir.Expression) -> None:
        for size in sizes:
            for variable in variables_in(size):
                self.need(variable in self.sizes, f"the size {variable} is known where it is used")

    def body(self, variable: ir.Variable | None, steps: tuple[Step, ...]) -> None:
        """Check steps with the views that belong to them, whose names end with them."""
        views = self.views.get(variable, [])
        seen = {view.tensor for view in self.program.views}
        for view in views:
            known = view.of in self.tensors and view.of not in seen
            self.need(known, f"{view.tensor} is memory of a parameter, constant or temporary")
            self.need(view.tensor.dtype is view.of.dtype, f"{view.tensor} has its memory's type")
            self.size(view.offset)
            self.tensor(view.tensor)
        self.steps(steps)
        if variable is not None:
            self.tensors.difference_update([view.tensor for view in views])

    def steps(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            match step:
                case Call():
                    self.call(step)
                case Loop():
                    self.size(step.count)
                    self.bind(step.variable)
                    self.body(step.variable, step.body)
                    self.sizes.discard(step.variable)
                case Branch() | While():
                    condition = step.condition
                    self.need(condition in self.tensors, f"the condition {condition} is known")
                    self.need(condition_problem(condition) is None, f"{condition} is one bool")
                    for body in bodies_of(step):
                        self.steps(body)
                case _:
                    assert_never(step)

    def call(self, call: Call) -> None:
        callee = call.callee
        count = len(callee.parameters)
        if len(call.arguments) != count:  # a program with another number of arguments has no text
            raise InternalError(f"{self.program.name}: {callee.name} has {count} parameters")
        for parameter, argument in zip(callee.parameters, call.arguments, strict=True):
            what = f"{callee.name}'s {parameter}"
            self.need(argument.dtype is parameter.dtype, f"{what} gets what is of its type")
            if isinstance(parameter, ir.Tensor):
                known = isinstance(argument, ir.Tensor) and argument in self.tensors
                self.need(known, f"{what} gets a tensor that is known")
                assert isinstance(argument, ir.Tensor)
                same = len(argument.shape) == len(parameter.argument_shape)
                self.need(same, f"{what} gets a tensor of its rank")
            else:
                assert not isinstance(argument, ir.Tensor)
                known = all(one in self.sizes | self.scalars for one in variables_in(argument))
                self.need(known, f"{what} gets a number that is known")
        if isinstance(callee, Computation):
            known = self.sizes.issuperset(callee.dimensions)
            self.need(known, f"{callee.name} has sizes that are known where it is called")
