"""Plans: a program at known sizes, as the words that its calls are made with.

    plan ::= Plan(steps, arena, alive)
    step ::= PlannedCall(kernel, words, beside) | Jump(to, unless)
    word ::= Given(parameter, offset) | InConstant(number, offset) | InArena(offset) | int

A word is what a kernel receives for one of its parameters or dimensions: an address, or the bits of a
scalar. Steps are executed one after another, except for jumps: a branch jumps over each of its bodies, a while
jumps past its body and back. So the calls between two ends of jumps are always executed together, and those that
`beside` joins may run at the same time. A plan is plain data: it refers to everything by number, and depends on no
machine except through the number of threads that it is made for.

Programs as plain data for JSON, which loads in milliseconds, without a grammar.

    recorded(node, ...) -> json       from_record(json) -> [node, ...]

A record is a list of nodes, each after the nodes that it refers to, and the list of the roots:

    record ::= {"nodes": [node, ...], "found": [field, ...]}
    node   ::= [class, field, ...]     without the source location
    field  ::= number | text | true | false | null | [field, ...] | {"at": place among the nodes}

Nodes shared by two nodes are shared in the record: variables, tensors and kernels are the same only if they are one
object. Any class of nodes.py, mapping.py and programs/ir.py may occur, so that new classes need no code here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, fields, is_dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from taskc.dataclass import dataclass
from taskc.errors import InternalError
from taskc.ir import mapping, mapping_forms, nodes
from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.ir.types import DTYPES, DType
from taskc.programs import ir
from taskc.programs.ir import Program, calls_of, loops_of, variables_in


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
    order  the number of each step in the program, with its loops unrolled
    """

    steps: tuple[PlannedStep, ...]
    arena: int
    alive: int
    order: tuple[int, ...] = field(default=(), compare=False, repr=False)

    @property
    def calls(self) -> tuple[PlannedCall, ...]:
        """The calls among the steps."""
        return tuple([step for step in self.steps if isinstance(step, PlannedCall)])


def deciding(program: Program) -> tuple[Variable, ...]:
    """The inputs that a plan depends on: dimensions, and scalars that occur in computed arguments.

    A scalar that calls only pass on is a word, like an address.
    """
    computed: list[int | Expression] = [
        argument
        for call in calls_of(program.calls)
        for argument in call.arguments
        if not isinstance(argument, Tensor | Variable)
    ]
    computed += [loop.count for loop in loops_of(program.calls)]
    for view in program.views:
        computed += [view.offset, *view.tensor.shape]
    used = {*variables_in(*computed)}
    scalars = [item for item in program.parameters if isinstance(item, Variable) and item in used]
    return (*program.dimensions, *scalars)


Json: TypeAlias = Any

_MODULES = (nodes, ir, mapping, mapping_forms)


def recorded(*roots: object, also: Sequence[type] = ()) -> Json:
    """The record of some roots and everything below them.

    also  other classes of nodes that there may be
    """
    writer = _Writer({*_classes().values(), *also})
    return {"nodes": writer.nodes, "found": [*map(writer.field, roots)]}


def from_record(record: Json, also: Sequence[type] = ()) -> list[Any]:
    """The roots of a record; errors are Python's own, of any kind."""
    classes: dict[str, type] = {**_classes(), **{one.__name__: one for one in also}}
    nodes: list[Any] = []

    def field(value: Json) -> Any:
        match value:
            case list():
                return tuple(map(field, value))
            case {"at": int(place)}:
                return nodes[place]
        return value

    for name, *values in record["nodes"]:
        field_values = map(field, values)
        if name == DType.__name__:
            nodes.append(DTYPES[values[0]])
        elif name == np.ndarray.__name__:
            dtype, shape, elements = field_values
            nodes.append(np.array(elements, dtype).reshape(shape))
        else:
            kind: Any = classes[name]
            names = _names(kind)
            if names is None:
                nodes.append(kind(*field_values))
            else:
                nodes.append(kind(**dict(zip(names, field_values, strict=True))))
    return [*map(field, record["found"])]


class _Writer:
    def __init__(self, classes: set[type]) -> None:
        self.nodes: list[Json] = []
        self.places: dict[int, int] = {}
        self.kept: list[object] = []  # keeps objects alive, so that no id is reused
        self.classes = classes

    def field(self, value: Any) -> Json:
        match value:
            case None | bool() | int() | float() | str():
                return value
            case np.generic():
                return value.item()
        if type(value) in (tuple, list):
            return [*map(self.field, value)]
        place = self.places.get(id(value))
        if place is None:
            node = self.node(value)
            place = self.places[id(value)] = len(self.nodes)
            self.nodes.append(node)
            self.kept.append(value)
        return {"at": place}

    def node(self, value: Any) -> Json:
        if isinstance(value, DType):
            return [DType.__name__, value.name]
        if type(value) is np.ndarray:
            parts = value.dtype.str, value.shape, value.reshape(-1).tolist()
            return [np.ndarray.__name__, *map(self.field, parts)]
        kind: Any = type(value)
        if kind not in self.classes:
            raise InternalError(f"there is no record of {kind.__name__}")
        names = _names(kind)
        values = value if names is None else [getattr(value, name) for name in names]
        return [kind.__name__, *map(self.field, values)]


@cache
def _names(kind: Any) -> tuple[str, ...] | None:
    """The fields that a class is constructed from; None for a named tuple, which takes all.

    Nobody asks a record where a call was written, or for its gradient.
    """
    if not is_dataclass(kind):
        return None
    left_out = ("loc", "invocation")
    return tuple(
        [field.name for field in fields(kind) if field.init and field.name not in left_out]
    )


@cache
def _classes() -> dict[str, type]:
    return {
        name: kind
        for module in _MODULES
        for name, kind in vars(module).items()
        if isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields"))
    }
