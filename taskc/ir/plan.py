"""Plans: a program at sizes that are known, as the numbers that its calls are made with.

    plan ::= Plan(steps, arena, alive)
    step ::= PlannedCall(kernel, words, beside) | Jump(to, unless)
    word ::= Given(parameter, offset) | InConstant(number, offset) | InArena(offset) | int

A word is what a kernel gets for one of its parameters, then for one of its dimensions: an address, or the bits of
a scalar. The steps are taken one after another, but for jumps: a branch is one over each of its bodies, a while one
behind its body and one back. So the calls between two places where jumps start or end are always made together, and
those that `beside` joins may be made at the same time. A plan is plain data: it names nothing but by numbers, and
depends on no machine but for how many threads it is for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.ir.program import Program, calls_of, loops_of
from taskc.ir.rewrite import walk


@dataclass(frozen=True, slots=True)
class Given:
    """So many bytes behind where the program's parameter of this number begins; a scalar's own bits."""

    parameter: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class InConstant:
    """So many bytes behind where the program's constant of this number begins."""

    number: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class InArena:
    """So many bytes behind where the memory of temporaries begins."""

    offset: int


Word: TypeAlias = "Given | InConstant | InArena | int"


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """kernel  its number among those that the program calls, in the order of their first calls
    beside  how many of the next calls may run beside it: none of them all writes what another one reads or writes
    """

    kernel: int
    words: tuple[Word, ...]
    beside: int = 0


@dataclass(frozen=True, slots=True)
class Jump:
    """The next step is the one of this number, or where the plan ends.

    unless  where a bool lies: if it holds when the jump is reached, the next step is the one behind it
    """

    to: int
    unless: Word | None = None


PlannedStep: TypeAlias = "PlannedCall | Jump"


@dataclass(frozen=True, slots=True)
class Plan:
    """arena  bytes that all temporaries take
    alive  the most bytes of temporaries that are alive at once: no arena is smaller
    """

    steps: tuple[PlannedStep, ...]
    arena: int
    alive: int

    @property
    def calls(self) -> tuple[PlannedCall, ...]:
        """Those among the steps."""
        return tuple([step for step in self.steps if isinstance(step, PlannedCall)])


def deciding(program: Program) -> tuple[Variable, ...]:
    """What a plan depends on: the dimensions, and those scalars that anything is computed of.

    A scalar that calls only hand on is a word like an address.
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
