"""Specialize a program for sizes: evaluate and check its shapes, offsets and scalars before anything runs.

Where there is no compiled entry, as in the simulator, kernels of a specialized program are launched one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np

from taskc.arrays.arguments import ArgumentError, Bound
from taskc.arrays.packed import Packed, laid_memory, part_of, shape_of
from taskc.dataclass import dataclass
from taskc.errors import assert_never
from taskc.ir.arithmetic import as_storage
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Constant, Expression, Kernel, Tensor, Variable
from taskc.ir.printer import expression_text
from taskc.ir.signature import Binding, Parameter, bind_dimensions, misfit
from taskc.ir.types import TensorType
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
class Leap:
    """Continue with the step of this number, or, if the flag `unless` holds then, with the next one."""

    to: int
    unless: Tensor | None = None


SizedStep: TypeAlias = "SizedCall | Leap"


@dataclass(frozen=True, slots=True)
class Sized:
    """A program at given sizes, in one line: branches and whiles are steps with leaps over them.

    Loops are unrolled, with one view for each step if it differs between steps.

    shapes  of all tensors
    views   each view's memory
    starts  each view's offset in elements
    turns   the numbers of the first step of each while, and of its leap back
    """

    shapes: dict[Tensor, tuple[int, ...]] = field(default_factory=dict)
    views: dict[Tensor, Tensor] = field(default_factory=dict)
    starts: dict[Tensor, int] = field(default_factory=dict)
    steps: list[SizedStep] = field(default_factory=list)
    turns: list[tuple[int, int]] = field(default_factory=list)

    @property
    def calls(self) -> list[SizedCall]:
        """The calls among the steps, whether or not flags let them run."""
        return [step for step in self.steps if isinstance(step, SizedCall)]


def sized(program: Program, sizes: Mapping[Variable, Any]) -> Sized:
    """The program at given dimensions, and at the values of its scalars that computed extents need."""
    specialized = Sized()
    for item in (*program.parameters, *[tensor for tensor, _ in program.constants]):
        if isinstance(item, Tensor):
            specialized.shapes[item] = tuple([extent_value(n, sizes) for n in item.argument_shape])
    for tensor in program.temporaries:
        specialized.shapes[tensor] = _shape(program, tensor, sizes)
    _Steps(program, specialized, views_by_loop(program)).turn(program.calls, None, {}, sizes)
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
    ) -> None:
        """Add one turn of a loop's body, or the whole program; `named` has enclosing loops' views in this turn."""
        sized_program, views_here = self.found, dict(named)
        for view in self.views.get(loop, ()):
            tensor = view.tensor if loop is None else replace(view.tensor)
            views_here[view.tensor] = tensor
            sized_program.views[tensor] = view.of
            sized_program.shapes[tensor] = _shape(self.program, view.tensor, sizes)
            sized_program.starts[tensor] = extent_value(view.offset, sizes)
        self.each(steps, views_here, sizes)

    def each(
        self,
        steps: Sequence[Step],
        named: Mapping[Tensor, Tensor],
        sizes: Mapping[Variable, Any],
    ) -> None:
        line = self.found.steps
        for step in steps:
            match step:
                case Call():
                    line.append(_sized_call(self.program, step, named, self.found.shapes, sizes))
                case Loop():
                    for number in range(extent_value(step.count, sizes)):
                        inside = {**sizes, step.variable: number}
                        self.turn(step.body, step.variable, named, inside)
                case Branch():
                    condition = named.get(step.condition, step.condition)
                    start = self.leap()
                    self.each(step.then, named, sizes)
                    over = self.leap()
                    self.each(step.otherwise, named, sizes)
                    if len(line) == over + 1:  # there is no other body to leap over
                        line.pop()
                        line[start] = Leap(over, condition)
                    else:
                        line[start] = Leap(over + 1, condition)
                        line[over] = Leap(len(line))
                case While():
                    condition = named.get(step.condition, step.condition)
                    start = self.leap()
                    self.each(step.body, named, sizes)
                    self.found.turns.append((start, len(line)))
                    line.append(Leap(start))
                    line[start] = Leap(len(line), condition)
                case _:
                    assert_never(step)

    def leap(self) -> int:
        """Add a leap whose target isn't known yet; returns its number."""
        self.found.steps.append(Leap(0))
        return len(self.found.steps) - 1


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


# Makes an array for a type whose sizes are known.
Empty: TypeAlias = Callable[[TensorType], Any]


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with its arguments. Launches share arrays, through which data flows."""

    call: Call
    bound: Bound

    @property
    def kernel(self) -> Kernel:
        assert isinstance(self.call.callee, Kernel)  # a program that runs has no computations
        return self.call.callee


class Launches:
    """The launches of a program in order; each has to run before the next one is requested, which may depend on it.

    all  all launches, each once, whether or not conditions let them run
    """

    def __init__(self, known: Sized, given: dict[Tensor | Variable, Any]) -> None:
        self._steps = known.steps
        self._given = given
        self._made = {id(call): _launch(call, given) for call in known.calls}
        self.all = tuple(self._made.values())

    def __iter__(self) -> Iterator[Launch]:
        number = 0
        while number < len(self._steps):
            match step := self._steps[number]:
                case SizedCall():
                    yield self._made[id(step)]
                    number += 1
                case Leap():
                    goes_on = step.unless is not None and self._holds(step.unless)
                    number = number + 1 if goes_on else step.to
                case _:
                    assert_never(step)

    def _holds(self, condition: Tensor) -> bool:
        """The current value of a condition."""
        return bool(np.asarray(self._given[condition]).reshape(()))


def _launch(call: SizedCall, given: dict[Tensor | Variable, Any]) -> Launch:
    values = [
        given[item] if isinstance(item, Tensor | Variable) else item for item in call.arguments
    ]
    return Launch(call.call, Bound(tuple(values), call.dimensions, None))


def in_usual_order(described: TensorType) -> Any:
    """A temporary for the simulator, which ignores layouts of parameters."""
    return np.empty(described.shape, described.dtype.numpy)


def on_host(described: TensorType) -> Any:
    """A temporary for compiled code. No result depends on the padding of its layout, which is uninitialized."""
    laid = described.layout is not None
    return laid_memory(np.empty, described) if laid else in_usual_order(described)


def as_elements(memory: Any) -> Any:
    """A constant for the simulator: its elements in row-major order, whatever its layout."""
    return memory.unpack() if isinstance(memory, Packed) else memory


def as_it_lies(memory: Any) -> Any:
    """A constant for compiled code, in its layout."""
    return memory


def launches(
    program: Program,
    values: Sequence[Any],
    empty: Empty = in_usual_order,
    constant: Callable[[Any], Any] = as_elements,
) -> Launches:
    """The launches of a program in order; `values` has one for each parameter, as in a `Bound`.

    empty     allocates a temporary
    constant  converts a constant's memory to a kernel's argument
    """
    sizes: dict[Variable, Any] = dict(bind_dimensions(program.parameters, [*map(shape_of, values)]))
    arguments: dict[Tensor | Variable, Any] = dict(zip(program.parameters, values, strict=True))
    sizes |= {item: value for item, value in arguments.items() if isinstance(item, Variable)}
    known = sized(program, sizes)
    arguments |= {tensor: constant(memory) for tensor, memory in program.constants}
    for tensor in program.temporaries:
        arguments[tensor] = empty(TensorType(tensor.dtype, known.shapes[tensor], tensor.layout))
    for view, of in known.views.items():
        shape, start = known.shapes[view], known.starts[view]
        memory, count = arguments[of], prod(shape)
        if isinstance(memory, Packed) and memory.type.dtype.is_sub_byte:
            arguments[view] = part_of(memory, shape, start)
            continue
        if count < memory.size:
            memory = memory.reshape((memory.size,))[start : start + count]
        arguments[view] = memory.reshape(shape)
    return Launches(known, arguments)
