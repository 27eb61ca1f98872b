"""The calls of a program during fusion: which calls read and write each memory, in which order.

The body of a loop, a while or a branch is treated as a program of its own; memory that outlives it is a parameter.

    temporary h: f32[64]                program body[t](x, y: ..., h: f32[64]):
    temporary p: f32[64]                    temporary p: f32[64]
    for t in steps(n):            ->        product(h, out=p)
        product(h, out=p)                   moved(p, x_1, out=h)
        moved(p, x_1, out=h)

A temporary belongs to the body if nothing else names it, and the first call in the body that names it writes all of it:
then no step reads values left by an earlier one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from taskc.dataclass import dataclass
from taskc.ir.affine import constant_difference
from taskc.ir.build import add, index, product
from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.ir.rewrite import replace_tensors, substitute
from taskc.ir.signature import Parameter, is_output
from taskc.programs.ir import (
    Call,
    Computation,
    Loop,
    Program,
    Step,
    View,
    bodies_of,
    reads_of,
    tensors_given,
    tensors_named,
    with_bodies,
    with_tensors,
    writes_of,
)


class Calls:
    """Steps by position; a call that was fused into another is None. Steps with bodies aren't changed.

    A memory is a tensor that is no view: a parameter, a constant or a temporary.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.all: list[Step | None] = []
        self.temporaries = frozenset(program.temporaries)
        self.views = {view.tensor: view for view in program.views}
        self.readers: dict[Tensor, set[int]] = {}
        self.writers: dict[Tensor, set[int]] = {}
        for position, call in enumerate(program.calls):
            self.all.append(None)
            self.put(position, call)

    def finished(self) -> Program:
        calls = [step for step in self.all if step is not None]
        unchanged = len(calls) == len(self.program.calls) and all(
            now is before for now, before in zip(calls, self.program.calls, strict=True)
        )
        return self.program if unchanged else replace(self.program, calls=tuple(calls))

    def put(self, position: int, call: Step | None) -> None:
        """Replace the call at a position, or remove it."""
        before = self.all[position]
        for memories_of, noted in ((self.reads, self.readers), (self.writes, self.writers)):
            for memory in memories_of(before):
                noted[memory].discard(position)
            for memory in memories_of(call):
                noted.setdefault(memory, set()).add(position)
        self.all[position] = call

    def each(self) -> Iterator[tuple[int, Call]]:
        """The calls in order; one that was removed before its turn is left out."""
        for position in range(len(self.all)):
            call = self.call(position)
            if call is not None:
                yield position, call

    def call(self, position: int) -> Call | None:
        step = self.all[position]
        return step if isinstance(step, Call) else None

    def memory(self, tensor: Tensor) -> Tensor:
        view = self.views.get(tensor)
        return tensor if view is None else view.of

    def view(self, tensor: Tensor) -> View:
        """The tensor as a view of its memory."""
        return self.views.get(tensor) or View(tensor, tensor)

    def reads(self, call: Step | None) -> set[Tensor]:
        return {*map(self.memory, reads_of(call))} if call is not None else set()

    def writes(self, call: Step | None) -> set[Tensor]:
        return {*map(self.memory, writes_of(call))} if call is not None else set()

    def written_once(self, tensor: Tensor) -> bool:
        """Whether a tensor is no view, and one call alone writes it."""
        return tensor not in self.views and len(self.writers.get(tensor, ())) == 1

    def reading(self, call: Call, memory: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The call's parameters that receive a memory or a view of it, each with its argument."""
        return [
            (item, given) for item, given in tensors_given(call) if self.memory(given) is memory
        ]

    def may_move(self, position: int, to: int, gone: Tensor | None = None) -> bool:
        """Whether a call may move to just before a later one, or just after an earlier one.

        gone  memory that nothing names after the fusion
        """
        low, high = min(position, to), max(position, to)
        call = self.all[position]

        def is_touched(memory: Tensor, *by: dict[Tensor, set[int]]) -> bool:
            return memory is not gone and any(
                low < other < high for touching in by for other in touching.get(memory, ())
            )

        return not (
            any(is_touched(memory, self.writers) for memory in self.reads(call))
            or any(is_touched(memory, self.readers, self.writers) for memory in self.writes(call))
        )

    def disturbs(self, writer: int, reader: int, between: Tensor) -> bool:
        """Whether one call writes memory that another one uses, other than the memory passed between them."""
        first, second = self.all[writer], self.all[reader]
        assert first is not None
        assert second is not None
        return any(
            self.memory(one) is not between and self.may_overlap(one, other)
            for one in writes_of(first)
            for other in tensors_named((second,))
        )

    def may_overlap(self, one: Tensor, other: Tensor) -> bool:
        """Whether two arguments of calls in the same step may share elements; two rows of one memory don't."""
        first, second = self.view(one), self.view(other)
        return first.of is second.of and not (
            _ends_before(first, second) or _ends_before(second, first)
        )


def _ends_before(one: View, other: View) -> bool:
    end = add(index(one.offset), product(one.tensor.shape))
    between = constant_difference(index(other.offset), end)
    return between is not None and between >= 0


def is_free_computation(call: Call | None) -> bool:
    """Whether a call may be fused into another."""
    return call is not None and not call.apart and isinstance(call.callee, Computation)


def computation_of(call: Call) -> Computation:
    assert isinstance(call.callee, Computation)
    return call.callee


class Joined:
    """The parameters and arguments of one call that does the work of two.

    The parameters of `kept` stay, and those of `added` are copied; an input that both receive is one parameter.

    gone      parameters of each that the joined call doesn't have
    of_added  the joined parameter for each of the added call's
    """

    def __init__(
        self,
        kept: Call,
        parameters: tuple[Parameter, ...],
        added: Call,
        gone: tuple[frozenset[Parameter], frozenset[Parameter]],
    ) -> None:
        self.of_added: dict[Parameter, Parameter] = {}
        self._taken = [
            _Taken(item, given, (0, place))
            for place, (item, given) in enumerate(zip(parameters, kept.arguments, strict=True))
            if item not in gone[0]
        ]
        names = {taken.parameter.name for taken in self._taken}
        for place, item in enumerate(added.callee.parameters):
            if item not in gone[1]:
                self.of_added[item] = self._added(item, added.arguments[place], place, names)

    def _added(
        self, item: Parameter, given: Tensor | Expression, place: int, names: set[str]
    ) -> Parameter:
        for taken in self._taken:
            if taken.is_as(item, given):
                return taken.parameter
        name = item.name
        while name in names:
            name += "_"
        names.add(name)
        copied = replace(item, name=name)
        self._taken.append(_Taken(copied, given, (1, place)))
        return copied

    def value(self, computation: Computation) -> Expression:
        """The value of the added call's computation, over the joined parameters."""
        tensors: dict[Tensor, Tensor] = {}
        scalars: dict[Variable, Expression] = {}
        for item, own in self.of_added.items():
            if isinstance(item, Tensor) and isinstance(own, Tensor):
                tensors[item] = own
            elif isinstance(item, Variable) and isinstance(own, Variable):
                scalars[item] = own
        return substitute(replace_tensors(computation.value, tensors), scalars)

    def parameters(self, seen: dict[Tensor, Tensor] | None = None) -> tuple[Parameter, ...]:
        """All parameters, inputs first. `seen` replaces tensors by ones of another shape."""
        return with_tensors([taken.parameter for taken in self._ordered], seen or {})

    @property
    def arguments(self) -> tuple[Tensor | Expression, ...]:
        return tuple([taken.given for taken in self._ordered])

    @property
    def sources(self) -> tuple[tuple[int, int], ...]:
        """For each argument, the call it comes from (0 kept, 1 added), and its position there."""
        return tuple([taken.source for taken in self._ordered])

    @property
    def _ordered(self) -> list[_Taken]:
        return sorted(self._taken, key=lambda taken: is_output(taken.parameter))


@dataclass(frozen=True, slots=True, eq=False)
class _Taken:
    """A parameter of the joined call, its argument, and the call and position it comes from."""

    parameter: Parameter
    given: Tensor | Expression
    source: tuple[int, int]

    def is_as(self, item: Parameter, given: Tensor | Expression) -> bool:
        """Whether this parameter also serves another call's parameter."""
        own = self.parameter
        return (
            isinstance(own, Tensor)
            and isinstance(item, Tensor)
            and self.given is given
            and own.role == item.role == "in"
            and own.given is None
            and own.shape == item.shape
        )


def name_of(*names: str) -> str:
    """The name of a fused callee: the distinct names of its parts in order."""
    parts = dict.fromkeys([name for name in names if name != "compute"])
    return "_".join(parts)[:64] or "compute"


Body: TypeAlias = "tuple[Step, ...]"


def map_bodies(program: Program, change: Callable[[Program], Program]) -> Program:
    """The program with each body of its steps replaced by `change`, innermost first."""
    if all(isinstance(step, Call) for step in program.calls):
        return program
    temporaries_of: dict[int, set[Tensor]] = {}
    _own(Calls(program), program.calls, temporaries_of)
    return _mapped(program, change, temporaries_of)


def _mapped(
    program: Program, change: Callable[[Program], Program], own: dict[int, set[Tensor]]
) -> Program:
    def changed(body: Body, step: Step) -> Body:
        return change(_mapped(_as_program(program, own[id(body)], step, body), change, own)).calls

    steps = [
        with_bodies(step, [changed(body, step) for body in bodies_of(step)])
        for step in program.calls
    ]
    if all(made is before for made, before in zip(steps, program.calls, strict=True)):
        return program
    return replace(program, calls=tuple(steps))


def _as_program(program: Program, own: set[Tensor], step: Step, body: Body) -> Program:
    """The body of a step of a program as a program of its own."""
    outer = [tensor for tensor in program.temporaries if tensor not in own]
    named = tensors_named(body)
    number = (step.variable,) if isinstance(step, Loop) else ()
    return replace(
        program,
        parameters=(*program.parameters, *outer),
        dimensions=(*program.dimensions, *number),
        temporaries=tuple([tensor for tensor in program.temporaries if tensor in own]),
        calls=body,
        views=tuple([view for view in program.views if view.tensor in named]),
    )


def _own(calls: Calls, steps: Sequence[Step], own: dict[int, set[Tensor]]) -> set[Tensor]:
    """The temporaries of the bodies of steps; each body's are recorded in `own` by its identity."""
    naming: Counter[Tensor] = Counter()  # number of steps that name each memory
    for step in steps:
        naming.update(calls.reads(step) | calls.writes(step))
    every: set[Tensor] = set()
    for step in steps:
        for body in bodies_of(step):
            candidates = _own(calls, body, own)
            touched: set[Tensor] = set()
            for inner in body:
                if isinstance(inner, Call):
                    candidates |= _written_whole(calls, inner) - touched
                touched |= calls.reads(inner) | calls.writes(inner)
            # A condition is written before the body, so it isn't among these.
            own[id(body)] = {tensor for tensor in candidates if naming[tensor] == 1}
            every |= own[id(body)]
    return every


def _written_whole(calls: Calls, call: Call) -> set[Tensor]:
    outputs = {given for item, given in tensors_given(call) if item.role == "out"}
    return (outputs & calls.temporaries) - calls.reads(call)
