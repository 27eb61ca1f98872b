"""Programs: calls of kernels and computations, one after another, on parameters, constants and temporaries.

    program     ::= Program(name, parameters, dimensions, constants, temporaries, calls, views)
    calls       ::= step*
    step        ::= Call(callee, arguments, apart) | Loop(variable, count, body)
                  | Branch(condition, then, otherwise) | While(condition, body)
    body        ::= step*                          and so are `then` and `otherwise`
    condition   ::= Tensor                         of one bool, without a layout
    callee      ::= Kernel | Computation
    computation ::= Computation(name, parameters, dimensions, variables, value, unrounded)
    argument    ::= Tensor                         for a tensor: a parameter, a constant, a temporary or a view
                  | expression                     for a scalar: of the program's scalars and dimensions
    view        ::= View(tensor, of, offset)

What chose a program's steps was constant. They take effect one after another: a call as a call of its callee
would, a loop as its body for each number of its variable, from 0 to before its count, which is 0 or more. The
variable is known in the body, where it is a size as the dimensions are. A branch reads its condition when it is
reached, and is then one of its two bodies, whatever those write; a while reads its condition before each turn of its
body, and ends when that doesn't hold. Neither changes what is a size. A temporary is uninitialized memory that
lives from the program's start to its end; its extents are expressions of the program's dimensions. A constant is
memory that is there before any call, and that none writes. A view is row-major memory of another tensor from an
element on; where that is said by loops' variables it is another part in each step. A program inside a program has
been inlined.

A computation is an index expression without a schedule: for all indices of its output, which is the last of
its parameters, output[variables] = value. Its inputs are only read, each index in bounds. Its dimensions are
those of the program that calls it and the variables of loops around the call, the same ones: no argument has to
tell them.

What holds of every program that can be called, since tracing has checked it:

- an argument has its parameter's type, shape and layout, for all sizes of the dimensions;
- what a call reads was written by calls before, in earlier steps of a loop too, or by the caller; so was a
  condition. Memory that only one body of a branch writes, or a while, doesn't count as written after it: memory that
  is carried from turn to turn was written before the first;
- what a call writes overlaps no other argument of it; an input is never written, and each element of an output
  is one of the `out` of exactly one call, in whichever bodies are taken: of one in each body of a branch, and of none
  in that of a while.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np

from taskc.dataclass import dataclass
from taskc.errors import NOWHERE, Location, assert_never
from taskc.ir.nodes import Expression, Kernel, Tensor, Variable
from taskc.ir.rewrite import walk
from taskc.ir.text_rules import PROGRAM_WORDS, identifier
from taskc.ir.types import TensorType, boolean


@dataclass(frozen=True, slots=True, eq=False)
class Computation:
    """output[variables] = value for every element of the output; see the head of this file.

    unrounded  elements that it reads and widens may have values that weren't rounded: see taskc/programs/rounding.py
    """

    printer: ClassVar[str] = "taskc.programs.printer"

    name: str
    parameters: tuple[Tensor | Variable, ...]
    dimensions: tuple[Variable, ...]
    variables: tuple[Variable, ...]
    value: Expression
    unrounded: bool = False
    loc: Location = field(default=NOWHERE, repr=False, kw_only=True)

    @property
    def output(self) -> Tensor:
        output = self.parameters[-1]
        assert isinstance(output, Tensor)
        return output


Callee: TypeAlias = Kernel | Computation


@dataclass(frozen=True, slots=True, eq=False)
class Invocation:
    """A call of a definition, as the traced program's author wrote it; the steps that it was inlined to share one.

    arguments  one for each of the definition's parameters, as in a `Call`
    """

    definition: Any
    arguments: tuple[Tensor | Expression, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A call; `arguments` has one for each of the callee's parameters, outputs too.

    apart  it stays a call of its own: no pass makes one of it and another
    parts  where it comes from, if that is more than one place: the calls that it was made of, and those of programs
           that it stood in
    invocation  the outermost call that it is a part of whose problem is known (taskc/gradients); None after fusion
    """

    callee: Callee
    arguments: tuple[Tensor | Expression, ...]
    apart: bool = False
    loc: Location = field(default=NOWHERE, compare=False, repr=False, kw_only=True)
    parts: tuple[Location, ...] = field(default=(), compare=False, repr=False, kw_only=True)
    invocation: Invocation | None = field(default=None, compare=False, repr=False, kw_only=True)

    @property
    def origins(self) -> tuple[Location, ...]:
        """The locations that all its work comes from: lines of a program, or nodes of a model."""
        return self.parts or (() if self.loc == NOWHERE else (self.loc,))


@dataclass(frozen=True, slots=True)
class _Nest:
    """A step that contains steps. It caches the tensors that they name.

    reads, writes  tensors that steps in its bodies name, as inputs or conditions, and as outputs
    """

    reads: frozenset[Tensor] = field(init=False, compare=False, repr=False)
    writes: frozenset[Tensor] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        assert isinstance(self, Loop | Branch | While)
        inner = [step for body in bodies_of(self) for step in body]
        conditions = () if isinstance(self, Loop) else (self.condition,)
        object.__setattr__(self, "reads", frozenset(conditions).union(*map(reads_of, inner)))
        object.__setattr__(self, "writes", frozenset[Tensor]().union(*map(writes_of, inner)))


@dataclass(frozen=True, slots=True)
class Loop(_Nest):
    """The steps of `body` for each number of `variable` from 0 to `count` - 1, in order."""

    variable: Variable
    count: int | Expression
    body: tuple[Step, ...]
    loc: Location = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Branch(_Nest):
    """The steps of `then` if the condition holds, else those of `otherwise`."""

    condition: Tensor
    then: tuple[Step, ...]
    otherwise: tuple[Step, ...] = ()
    loc: Location = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class While(_Nest):
    """The steps of `body`, repeated while the condition holds before each turn."""

    condition: Tensor
    body: tuple[Step, ...]
    loc: Location = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


Step: TypeAlias = "Call | Loop | Branch | While"


@dataclass(frozen=True, slots=True)
class View:
    """Memory of `of`, a parameter, a constant or a temporary, from the element `offset` on."""

    tensor: Tensor
    of: Tensor
    offset: int | Expression = 0


@dataclass(frozen=True, slots=True)
class Program:
    """Calls, as the head of this file describes. Parameters and dimensions are as in a kernel.

    constants  and the memory of each: its elements row-major, or as its layout has them
    """

    printer: ClassVar[str] = "taskc.programs.printer"

    name: str
    parameters: tuple[Tensor | Variable, ...]
    dimensions: tuple[Variable, ...]
    temporaries: tuple[Tensor, ...]
    calls: tuple[Step, ...]
    views: tuple[View, ...] = ()
    constants: tuple[tuple[Tensor, np.ndarray], ...] = field(default=(), compare=False, repr=False)
    loc: Location = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


def digest_of(memory: np.ndarray) -> str:
    """The digest that represents a constant's elements in a program's text."""
    return hashlib.sha256(np.ascontiguousarray(memory).view(np.uint8).data).hexdigest()[:32]


def memory_problem(kind: TensorType, memory: np.ndarray) -> str | None:
    """The reason why memory can't be a constant of a type, or None."""
    packed_type = getattr(memory, "type", None)
    if kind.layout is not None or packed_type is not None:
        return (
            None
            if packed_type == kind
            else f"what is given is {packed_type or 'an array without a layout'}"
        )
    if memory.dtype != kind.dtype.numpy or memory.shape != kind.shape:
        return f"what is given is an array of {memory.dtype}{list(memory.shape)}"
    return None


def condition_problem(tensor: Tensor) -> str | None:
    """The reason why a tensor can't be a condition, or None."""
    is_one = all(extent == 1 for extent in tensor.shape)
    if tensor.dtype is boolean and is_one and tensor.layout is None:
        return None
    return (
        f"is {TensorType(tensor.dtype, tensor.shape, tensor.layout)}, and a condition is one bool"
    )


def bodies_of(step: Step) -> tuple[tuple[Step, ...], ...]:
    """The bodies of a step, both of a branch."""
    match step:
        case Call():
            return ()
        case Loop() | While():
            return (step.body,)
        case Branch():
            return (step.then, step.otherwise)
        case _:
            return assert_never(step)


def with_bodies(step: Step, bodies: Sequence[tuple[Step, ...]]) -> Step:
    """A step with other bodies; the same object if they are unchanged."""
    if [[*map(id, body)] for body in bodies] == [[*map(id, body)] for body in bodies_of(step)]:
        return step
    match step:
        case Call():
            return step
        case Loop() | While():
            return replace(step, body=bodies[0])
        case Branch():
            return replace(step, then=bodies[0], otherwise=bodies[1])
        case _:
            return assert_never(step)


def tensors_given(call: Call) -> Iterator[tuple[Tensor, Tensor]]:
    """The tensor parameters of a call, each with its argument."""
    for item, given in zip(call.callee.parameters, call.arguments, strict=False):
        if isinstance(item, Tensor) and isinstance(given, Tensor):  # verify checks all others
            yield item, given


def reads_of(step: Step) -> frozenset[Tensor]:
    """The tensors that a step reads, in its bodies too."""
    if not isinstance(step, Call):
        return step.reads
    return frozenset([given for item, given in tensors_given(step) if item.role != "out"])


def writes_of(step: Step) -> frozenset[Tensor]:
    """The tensors that a step writes, in its bodies too."""
    if not isinstance(step, Call):
        return step.writes
    return frozenset([given for item, given in tensors_given(step) if item.role != "in"])


def steps_of(steps: Sequence[Step]) -> Iterator[Step]:
    """Steps and the steps nested in them, in the order of the text."""
    left = [*steps[::-1]]
    while left:
        step = left.pop()
        yield step
        for body in reversed(bodies_of(step)):
            left += body[::-1]


def calls_of(steps: Sequence[Step]) -> Iterator[Call]:
    """The calls among steps and in their bodies, in the order of the text."""
    return (step for step in steps_of(steps) if isinstance(step, Call))


def loops_of(steps: Sequence[Step]) -> Iterator[Loop]:
    """The loops among steps and in their bodies, outer ones first."""
    return (step for step in steps_of(steps) if isinstance(step, Loop))


def tensors_named(steps: Sequence[Step]) -> frozenset[Tensor]:
    """The tensors that steps name: conditions, and arguments of calls."""
    return frozenset[Tensor]().union(*map(reads_of, steps), *map(writes_of, steps))


def variables_in(*values: int | Expression) -> Iterator[Variable]:
    """The variables in sizes or other values; one may come several times."""
    for value in values:
        if not isinstance(value, int):
            yield from [node for node in walk(value) if isinstance(node, Variable)]


def with_tensors(
    parameters: Sequence[Tensor | Variable], tensors: Mapping[Tensor, Tensor]
) -> tuple[Tensor | Variable, ...]:
    """Parameters with some tensors replaced by others."""
    return tuple(
        [tensors.get(item, item) if isinstance(item, Tensor) else item for item in parameters]
    )


def joined_origins(*calls: Call) -> tuple[Location, ...]:
    """The origins of calls that become one, in order, each once."""
    return tuple(dict.fromkeys([place for call in calls for place in call.origins]))


def map_calls(steps: Sequence[Step], change: Callable[[Call], Call]) -> tuple[Step, ...]:
    """Steps with `change` applied to their calls, in bodies too."""
    return tuple(
        [
            change(step)
            if isinstance(step, Call)
            else with_bodies(step, [map_calls(body, change) for body in bodies_of(step)])
            for step in steps
        ]
    )


def exchanged(steps: Sequence[Step], old: Tensor, new: Tensor) -> tuple[Step, ...]:
    """Steps with one tensor replaced by another."""
    invocations: dict[int, Invocation] = {}

    def among(arguments: tuple[Tensor | Expression, ...]) -> tuple[Tensor | Expression, ...]:
        return tuple([new if it is old else it for it in arguments])

    def change(step: Step) -> Step:
        if isinstance(step, Call):
            whole = step.invocation
            if whole is not None and old in whole.arguments:
                changed = invocations.get(id(whole)) or replace(
                    whole, arguments=among(whole.arguments)
                )
                invocations[id(whole)] = changed
                step = replace(step, invocation=changed)
            return replace(step, arguments=among(step.arguments)) if old in step.arguments else step
        if isinstance(step, Branch | While) and step.condition is old:
            step = replace(step, condition=new)
        return with_bodies(step, [tuple(map(change, body)) for body in bodies_of(step)])

    return tuple(map(change, steps))


def views_by_loop(program: Program) -> dict[Variable | None, list[View]]:
    """The views for each loop, by its variable: a view belongs to its innermost loop, or to None."""
    order = {loop.variable: depth for depth, loop in enumerate(loops_of(program.calls))}
    views: dict[Variable | None, list[View]] = {}
    for view in program.views:
        sizes = variables_in(view.offset, *view.tensor.shape) if order else ()
        inside = [node for node in sizes if node in order]
        views.setdefault(max(inside, key=order.__getitem__, default=None), []).append(view)
    return views


def callees_of(program: Program) -> dict[str, Callee]:
    """The callees of a program, each once, in the order of the first calls, by unique names.

    The names are their own; the second one that is called `copy` is `copy_1`. No name is a word of the text.
    """
    named: dict[str, Callee] = {}
    numbers: dict[str, int] = {}
    seen: set[int] = set()
    for call in calls_of(program.calls):
        if id(call.callee) not in seen:
            seen.add(id(call.callee))
            base = name = identifier(call.callee.name)
            while name in named or name in PROGRAM_WORDS:
                numbers[base] = number = numbers.get(base, 0) + 1
                name = f"{base}_{number}"
            named[name] = call.callee
    return named


def kernels_of(program: Program) -> dict[str, Kernel]:
    """The kernels among a program's callees, by the same names."""
    return {name: it for name, it in callees_of(program).items() if isinstance(it, Kernel)}


def map_callees(program: Program, change: Callable[[Callee], Callee]) -> Program:
    """The program with `change` applied to its callees: one that is called twice stays one."""
    changed_callees = {id(callee): change(callee) for callee in callees_of(program).values()}

    def changed(call: Call) -> Call:
        return replace(call, callee=changed_callees[id(call.callee)])

    return replace(program, calls=map_calls(program.calls, changed))


def map_kernels(program: Program, change: Callable[[Kernel], Kernel]) -> Program:
    return map_callees(program, lambda it: change(it) if isinstance(it, Kernel) else it)
