"""Plans: a program at known sizes, as the words that its calls are made with.

    plan ::= Plan(steps, arena, alive)
    step ::= PlannedCall(kernel, words, beside) | Jump(to, unless)
    word ::= Given(parameter, offset) | InConstant(number, offset) | InArena(offset) | int

A word is what a kernel receives for one of its parameters or dimensions: an address, or the bits of a
scalar. Steps are executed one after another, except for jumps: a branch jumps over each of its bodies, a while
jumps past its body and back. So the calls between two ends of jumps are always executed together, and those that
`beside` joins may run at the same time. A plan is plain data: it refers to everything by number, and depends on no
machine except through the number of threads that it is made for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.ir.program import Program, calls_of, loops_of
from taskc.ir.rewrite import walk


@dataclass(frozen=True, slots=True)
class Given:
    """An address at a byte offset into the program's parameter of this number; or a scalar's own bits."""

    parameter: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class InConstant:
    """An address at a byte offset into the program's constant of this number."""

    number: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class InArena:
    """An address at a byte offset into the memory of temporaries."""

    offset: int


Word: TypeAlias = "Given | InConstant | InArena | int"


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """kernel  index among the kernels that the program calls, in the order of their first calls
    beside  how many of the next calls may run at the same time: none of them writes memory that another one accesses
    """

    kernel: int
    words: tuple[Word, ...]
    beside: int = 0


@dataclass(frozen=True, slots=True)
class Jump:
    """Continue with the step of this number, or at the end of the plan.

    unless  address of a bool: if it holds when the jump is reached, the next step is the one after the jump
    """

    to: int
    unless: Word | None = None


PlannedStep: TypeAlias = "PlannedCall | Jump"


@dataclass(frozen=True, slots=True)
class Plan:
    """arena  bytes of all temporaries
    alive  most bytes of temporaries that are alive at once, a lower bound of any arena
    """

    steps: tuple[PlannedStep, ...]
    arena: int
    alive: int

    @property
    def calls(self) -> tuple[PlannedCall, ...]:
        """The calls among the steps."""
        return tuple([step for step in self.steps if isinstance(step, PlannedCall)])


def deciding(program: Program) -> tuple[Variable, ...]:
    """The inputs that a plan depends on: dimensions, and scalars that occur in computed arguments.

    A scalar that calls only pass on is a word, like an address.
    """
    scalars = {item for item in program.parameters if isinstance(item, Variable)}
    computed: list[int | Expression | Tensor] = [
        argument
        for call in calls_of(program.calls)
        for argument in call.arguments
        if not isinstance(argument, Tensor | Variable)
    ]
    computed += [loop.count for loop in loops_of(program.calls)]
    for view in program.views:
        computed += [view.offset, *view.tensor.shape]
    used = {
        node
        for expression in computed
        if not isinstance(expression, int | Tensor)
        for node in walk(expression)
    }
    return (*program.dimensions, *[item for item in program.parameters if item in scalars & used])
