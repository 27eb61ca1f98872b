"""The calls of a program while some of them become one: who reads which memory, who writes it, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from taskc.ir.affine import constant_difference
from taskc.ir.build import add, index, product
from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.ir.program import (
    Call,
    Computation,
    Program,
    Step,
    View,
    reads_of,
    tensors_given,
    tensors_named,
    writes_of,
)
from taskc.ir.signature import Parameter, is_output


class Calls:
    """A list of steps by position; calls that became part of another are None. What has a body stays as it is.

    Memory is what tensors without the views of them are: a parameter, a constant or a temporary.
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
        """Another call in the place of one, or none."""
        before = self.all[position]
        for found, noted in ((self.reads, self.readers), (self.writes, self.writers)):
            for memory in found(before):
                noted[memory].discard(position)
            for memory in found(call):
                noted.setdefault(memory, set()).add(position)
        self.all[position] = call

    def each(self) -> Iterator[tuple[int, Call]]:
        """Those that are there when their turn comes."""
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
        """It is memory, no view of some, and one call writes it."""
        return tensor not in self.views and len(self.writers.get(tensor, ())) == 1

    def reading(self, call: Call, memory: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The parameters that are given a memory or a view of it, and what each is given."""
        return [
            (item, given) for item, given in tensors_given(call) if self.memory(given) is memory
        ]

    def may_move(self, position: int, to: int, gone: Tensor | None = None) -> bool:
        """Whether a call may come right before a later one, or right behind an earlier one.

        gone  memory that nobody names when all is done
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
        """Whether a call writes what another one has to do with, but for the memory that is between them."""
        first, second = self.all[writer], self.all[reader]
        assert first is not None
        assert second is not None
        return any(
            self.memory(one) is not between and self.may_overlap(one, other)
            for one in writes_of(first)
            for other in tensors_named((second,))
        )

    def may_overlap(self, one: Tensor, other: Tensor) -> bool:
        """Whether two arguments of calls of the same step may have elements in common: not two rows of one memory."""
        first, second = self.view(one), self.view(other)
        return first.of is second.of and not (
            _ends_before(first, second) or _ends_before(second, first)
        )


def _ends_before(one: View, other: View) -> bool:
    end = add(index(one.offset), product(one.tensor.shape))
    between = constant_difference(index(other.offset), end)
    return between is not None and between >= 0


def is_free_computation(call: Call | None) -> bool:
    """Whether it may become a part of another call."""
    return call is not None and not call.apart and isinstance(call.callee, Computation)


def computation_of(call: Call) -> Computation:
    assert isinstance(call.callee, Computation)
    return call.callee


class Joined:
    """The parameters and the arguments of one call that does what two did.

    `kept` has its own parameters, `added` copies of its own; what both are given as an input is one parameter.

    gone      the parameters of each that are none of both
    of_added  the parameter for each of the added call's
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
        own = replace(item, name=name)
        self._taken.append(_Taken(own, given, (1, place)))
        return own

    @property
    def tensors_of_added(self) -> dict[Tensor, Tensor]:
        return {
            item: own
            for item, own in self.of_added.items()
            if isinstance(item, Tensor) and isinstance(own, Tensor)
        }

    @property
    def scalars_of_added(self) -> dict[Variable, Expression]:
        return {
            item: own
            for item, own in self.of_added.items()
            if isinstance(item, Variable) and isinstance(own, Variable)
        }

    def parameters(self, seen: dict[Tensor, Tensor] | None = None) -> tuple[Parameter, ...]:
        """Inputs first. Some may be seen in another shape than they are given."""
        shown = seen or {}
        items = [it.parameter for it in self._ordered]
        return tuple([shown.get(it, it) if isinstance(it, Tensor) else it for it in items])

    @property
    def arguments(self) -> tuple[Tensor | Expression, ...]:
        return tuple([it.given for it in self._ordered])

    @property
    def sources(self) -> tuple[tuple[int, int], ...]:
        """Whose argument each is, the kept call's or the added one's, and which."""
        return tuple([it.source for it in self._ordered])

    @property
    def _ordered(self) -> list[_Taken]:
        return sorted(self._taken, key=lambda taken: is_output(taken.parameter))


@dataclass(frozen=True, slots=True, eq=False)
class _Taken:
    """A parameter of two calls together, what it is given, and from which argument of which call."""

    parameter: Parameter
    given: Tensor | Expression
    source: tuple[int, int]

    def is_as(self, item: Parameter, given: Tensor | Expression) -> bool:
        """The parameter does for another call's, too."""
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
    """The name of what several are, by their different names in order."""
    parts = dict.fromkeys([name for name in names if name != "compute"])
    return "_".join(parts)[:64] or "compute"
