"""A program as calls one after another, each of which writes memory of its own: so one can go through them backwards.

    for t in tc.steps(2): tc.compute(n, lambda i: x[i] * a[t], out=x)
->
    x_1 = tc.compute(n, lambda i: x[i] * a[0])
    x_2 = tc.compute(n, lambda i: x_1[i] * a[1])

Loops of a known number of steps are unrolled. What is written in place, or in parts, becomes a new tensor. A template
whose problem has an equivalent of simpler calls becomes these. What no gradient goes through stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from taskc.dataclass import dataclass
from taskc.errors import Location
from taskc.gradients.computations import copied, embedded
from taskc.ir.build import index
from taskc.ir.nodes import Expression, Kernel, Tensor, Variable
from taskc.ir.rewrite import substitute
from taskc.ir.signature import Parameter, is_output
from taskc.lang.definition import Definition, KernelDefinition
from taskc.programs.definition import ProgramDefinition
from taskc.programs.inlining import over_sizes
from taskc.programs.ir import (
    Call,
    Computation,
    Loop,
    Program,
    Step,
    View,
    bodies_of,
    exchanged,
    reads_of,
    tensors_named,
    writes_of,
)
from taskc.programs.record_call import traced_call
from taskc.programs.trace_program import traced_with, value_of
from taskc.programs.tracing import TensorHandle, Trace, current_trace

MAX_UNROLLED = 128  # steps of a loop

Argument = Tensor | Expression
Equivalent = Callable[[Any], "Definition | None"]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A computation, a call of a definition, or (callee None) steps that no gradient is known of.

    arguments  one for each of the callee's parameters
    """

    callee: Computation | Definition | None
    arguments: tuple[Argument, ...]
    steps: tuple[Step, ...]
    loc: Location

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        callee = self.callee
        assert callee is not None
        return callee.parameters if isinstance(callee, Computation) else callee.ir.parameters

    @property
    def inputs(self) -> list[tuple[Parameter, Argument]]:
        pairs = zip(self.parameters, self.arguments, strict=True)
        return [(own, given) for own, given in pairs if not is_output(own)]

    @property
    def outputs(self) -> list[tuple[Tensor, Tensor]]:
        """Also the tensors that are written in place."""
        pairs = zip(self.parameters, self.arguments, strict=True)
        return [
            (own, given)
            for own, given in pairs
            if isinstance(own, Tensor) and own.role != "in" and isinstance(given, Tensor)
        ]

    @property
    def reads(self) -> frozenset[Tensor]:
        return frozenset[Tensor]().union(*map(reads_of, self.steps))

    @property
    def writes(self) -> frozenset[Tensor]:
        return frozenset[Tensor]().union(*map(writes_of, self.steps))


def nodes_of(steps: Sequence[Step]) -> Iterator[Node]:
    """The calls that steps are, as their author wrote them."""
    left = [*steps]
    while left:
        step = left[0]
        first, depth = _first_call(step)
        if first is not None and first.invocation is not None:
            whole = first.invocation
            own = whole.definition.ir
            count, inner = 1, 0
            if isinstance(own, Program):
                count, (_, inner) = len(own.calls), _first_call(own.calls[0])
            if depth == inner:
                yield Node(whole.definition, whole.arguments, tuple(left[:count]), first.loc)
                del left[:count]
                continue
        del left[0]
        if not isinstance(step, Call):
            yield Node(None, (), (step,), step.loc)
            continue
        made = step.callee
        callee = KernelDefinition.of(made) if isinstance(made, Kernel) else made
        yield Node(callee, step.arguments, (step,), step.loc)


def _first_call(step: Step) -> tuple[Call | None, int]:
    """The first call of a step, and the number of bodies around it."""
    depth = 0
    while not isinstance(step, Call):
        inner = [body for body in bodies_of(step) if body]
        if not inner:
            return None, depth
        step, depth = inner[0][0], depth + 1
    return step, depth


class Straight:
    """The calls of a program on the tensors of a trace.

    versions    the latest contents of each memory
    sizes       the numbers of unrolled loops' steps
    on_path     whether a gradient goes through a node
    equivalent  a program of simpler calls, for a problem that has one
    """

    def __init__(
        self,
        trace: Trace,
        program: Program,
        on_path: Callable[[Node], bool],
        equivalent: Equivalent,
    ) -> None:
        self.trace = trace
        self.program = program
        self.on_path = on_path
        self.equivalent = equivalent
        self.versions: dict[Tensor, TensorHandle] = {}
        self.sizes: dict[Variable, Expression] = {}
        self.views = {view.tensor: view for view in program.views}
        for item in program.parameters:
            if isinstance(item, Tensor) and not is_output(item):
                self.versions[item] = trace.handle(item)
        for tensor, array in program.constants:
            trace.constants[tensor] = array
            self.versions[tensor] = trace.handle(tensor)

    def run(self, steps: Sequence[Step]) -> None:
        for node in nodes_of(steps):
            step = node.steps[0]
            if node.callee is not None:
                self.call(node)
            elif isinstance(step, Loop) and self.on_path(node) and is_short(step):
                assert isinstance(step.count, int)
                for turn in range(step.count):
                    self.sizes[step.variable] = index(turn)
                    self.run(step.body)
            else:
                self.as_it_is(step)

    def extent(self, size: int | Expression) -> int | Expression:
        return self.trace.extent(substitute(index(size), self.sizes))

    def view(self, tensor: Tensor) -> View:
        """A tensor as a part of its memory."""
        view = self.views.get(tensor) or View(tensor, tensor)
        shape = tuple(map(self.extent, view.tensor.shape))
        return View(replace(view.tensor, shape=shape), view.of, self.extent(view.offset))

    def read(self, tensor: Tensor) -> TensorHandle:
        if tensor not in self.views:
            return self.versions[tensor]
        view = self.view(tensor)
        return self.trace.view(view.tensor, self.versions[view.of].tensor, view.offset)

    def write(self, tensor: Tensor, handle: TensorHandle, loc: Location) -> None:
        if tensor in self.views:
            view = self.view(tensor)
            tensor, before = view.of, self.versions.get(view.of)
            handle = embedded(self.trace, handle, view, before, loc)
        self.versions[tensor] = handle

    def call(self, node: Node) -> None:
        """Record a call again, with outputs of its own."""
        trace, callee, inputs = self.trace, node.callee, []
        written: list[TensorHandle] = []
        for own, given in node.inputs:
            if not isinstance(given, Tensor):
                inputs.append(value_of(trace, substitute(given, self.sizes)))
                continue
            value = self.read(given)
            if isinstance(own, Tensor) and own.role == "inout":
                value = copied(trace, value, node.loc)
                written.append(value)
            inputs.append(value)
        if isinstance(callee, Computation):
            moving = [size for size in callee.dimensions if size in self.sizes]
            if moving:
                sizes = {size: self.sizes.get(size, size) for size in callee.dimensions}
                callee, _ = over_sizes(callee, sizes, self.extent)
            returned = traced_call(trace, callee, {}, inputs, {}, node.loc)
        else:
            assert callee is not None
            simpler = self.equivalent(callee.problem) if self.on_path(node) else None
            called = simpler or callee
            assert isinstance(called.ir, Kernel | Program)
            returned = traced_call(trace, called.ir, {}, inputs, {}, node.loc, called)
            trace.kernels |= {id(kernel.ir): kernel for kernel in called.kernels}
        results = (
            [] if returned is None else [*returned] if isinstance(returned, tuple) else [returned]
        )
        changed, made = iter(written), iter(results)
        for own, given in node.outputs:
            self.write(given, next(changed if own.role == "inout" else made), node.loc)

    def as_it_is(self, step: Step) -> None:
        """Record a step that no gradient goes through, on copies of the memory that it writes."""
        memory = {self.view(tensor).of: None for tensor in tensors_named((step,))}
        written = {self.view(tensor).of for tensor in writes_of(step)}
        steps: tuple[Step, ...] = (step,)
        views = {view.tensor: view for view in self.program.views if view.of in memory}
        parameters: list[Tensor] = []
        arguments: list[TensorHandle] = []
        for tensor in memory:
            role = "in" if tensor not in written else "inout" if tensor in self.versions else "out"
            own = replace(tensor, role=role, name=f"{tensor.name}_{len(parameters)}")
            steps = exchanged(steps, tensor, own)
            views = {
                name: replace(view, of=own) if view.of is tensor else view
                for name, view in views.items()
            }
            parameters.append(own)
            if role == "in":
                arguments.append(self.versions[tensor])
            elif role == "inout":
                arguments.append(copied(self.trace, self.versions[tensor], step.loc))
            else:
                arguments.append(self.trace.temporary(replace(tensor, loc=step.loc)))
        scalars = [item for item in self.program.parameters if isinstance(item, Variable)]
        program = Program(
            "steps",
            (*scalars, *parameters),
            self.program.dimensions,
            (),
            steps,
            tuple(views.values()),
        )
        inputs = [one for one, own in zip(arguments, parameters, strict=True) if not is_output(own)]
        outputs = [one for one, own in zip(arguments, parameters, strict=True) if is_output(own)]
        given = [*map(self.trace.handle, scalars), *inputs]
        keywords = {"out": tuple(outputs)} if outputs else {}
        traced_call(self.trace, program, {}, given, keywords, step.loc)
        for tensor, handle in zip(memory, arguments, strict=True):
            if tensor in written:
                self.versions[tensor] = handle


def is_short(loop: Loop) -> bool:
    return isinstance(loop.count, int) and loop.count <= MAX_UNROLLED


def straightened(
    program: ProgramDefinition, of: str, on_path: Callable[[Node], bool], equivalent: Equivalent
) -> ProgramDefinition:
    """The program without loops, writes in place and problems that have an equivalent; `of` is its output."""
    source = program.ir
    parameters = [item for item in source.parameters if not is_output(item)]
    output = next(item for item in source.parameters if item.name == of)
    assert isinstance(output, Tensor)

    def body(*_: object) -> dict[str, TensorHandle]:
        trace = current_trace()
        assert trace is not None
        straight = Straight(trace, source, on_path, equivalent)
        straight.trace.kernels |= {id(kernel.ir): kernel for kernel in program.kernels}
        straight.run(source.calls)
        return {of: straight.versions[output]}

    made, kernels = traced_with(source.name, parameters, dict(program.dimensions), body, source.loc)
    return ProgramDefinition(made, program.dimensions, kernels)
