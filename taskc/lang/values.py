"""The values that expressions of the language evaluate to while a kernel is parsed.

A value is one of
    a Python object                 known at compile time; numbers have no element type yet
    an IR expression                a scalar of the program
    a Tensor                        something to index
    Pending                         a mutable scalar whose element type is not decided yet
    Choice                          one of two numbers without a type, by a condition
    FloatOfSizes                    a float without a type, computed of sizes
    TensorView                      a part of a tensor, for the whole-block operations
    TensorPart                      a part of a program's tensor, to index in a computation
    Transposed                      a tensor to index from its last dimension to its first
    a *Loop                         what a `for` can run over
    a tuple                         of any of these
"""

from __future__ import annotations

import ast
import numbers
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from types import ModuleType
from typing import Any, TypeAlias, TypeGuard, TypeVar, get_args

import numpy as np

from taskc.dataclass import dataclass
from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.build import add, multiply
from taskc.ir.mapping import Mapping
from taskc.ir.types import DType, TensorType
from taskc.lang.sizes import FloatOfSizes, Size

Item = TypeVar("Item")

Value: TypeAlias = Any
Number: TypeAlias = bool | int | float
# A number, or an expression of sizes.
Untyped: TypeAlias = "Number | Choice | FloatOfSizes | ir.Expression"

EXPRESSIONS: tuple[type, ...] = get_args(ir.Expression)


@dataclass(frozen=True, slots=True)
class LaterStore:
    """A Python number stored to a cell without a type; `placeholder` stands for the statement."""

    placeholder: ir.Sequence
    value: Untyped
    make: Callable[[DType], ir.Expression]
    loc: Location
    in_loop: bool


@dataclass(eq=False, slots=True)
class Cell:
    """A mutable scalar. Until its type is decided `tensor` is None, and `place` is kept for it."""

    name: str
    loc: Location
    tensor: ir.Tensor | None = None
    initial: Untyped = 0
    initial_loc: Location | None = None
    place: list[ir.Statement] = field(default_factory=list)
    index: int = 0
    stores: list[LaterStore] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Pending:
    """The value of a cell without a type."""

    cell: Cell


@dataclass(frozen=True, slots=True)
class Choice:
    """One of two numbers: each use gives it the type that it would give a number."""

    condition: ir.Expression
    then: Untyped
    otherwise: Untyped
    loc: Location


@dataclass(frozen=True, slots=True)
class Slice:
    """`size` elements of one dimension from `start` on."""

    start: ir.Expression
    size: int
    loc: Location


@dataclass(frozen=True, slots=True)
class TensorView:
    """A part of a tensor: for each of its dimensions an index, which drops it, or a range.

    is_transposed  the ranges count as dimensions from the last to the first
    """

    tensor: ir.Tensor
    dimensions: tuple[ir.Expression | Slice, ...]
    is_transposed: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.ordered([part.size for part in self.dimensions if isinstance(part, Slice)])

    @property
    def T(self) -> TensorView:  # noqa: N802  (as it is written)
        return replace(self, is_transposed=not self.is_transposed)

    def ordered(self, items: Sequence[Item]) -> tuple[Item, ...]:
        """Items of the tensor's ranges in the order of the view's dimensions, or the other way around."""
        return tuple(items[::-1] if self.is_transposed else items)


@dataclass(frozen=True, slots=True)
class Transposed:
    """A whole tensor, with its dimensions from the last to the first."""

    tensor: ir.Tensor

    @property
    def shape(self) -> tuple[int | ir.Expression, ...]:
        return self.tensor.shape[::-1]


@dataclass(frozen=True, slots=True)
class TensorPart:
    """Every `steps[d]`-th element from `starts[d]` on of each dimension d of a tensor; a step of 0 drops it."""

    tensor: ir.Tensor
    starts: tuple[ir.Expression, ...]
    steps: tuple[int, ...]
    shape: tuple[int | ir.Expression, ...]

    def indices(self, own: Sequence[ir.Expression]) -> tuple[ir.Expression, ...]:
        """The indices in the tensor of an element of the part."""
        left = iter(own)
        return tuple(
            [
                add(start, multiply(next(left), step)) if step else start
                for start, step in zip(self.starts, self.steps, strict=True)
            ]
        )


@dataclass(frozen=True, slots=True)
class MappingLoop:
    """`mapping.on(worker)`"""

    mapping: Mapping
    worker: ir.Expression


@dataclass(frozen=True, slots=True)
class TilesLoop:
    shape: tuple[int | ir.Expression, ...]
    by: tuple[int, ...]
    order: tuple[str | int, ...]
    persistent: bool
    cluster: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PipelineLoop:
    extent: ir.Expression
    by: int
    stages: int
    transport: str | None
    specialize: bool
    turns: str | None


@dataclass(frozen=True, slots=True)
class RangeLoop:
    """unroll: True for all turns, or how many at a time; None leaves that to the compiler."""

    start: ir.Expression
    stop: ir.Expression
    step: int
    unroll: int | bool | None = None


class Nothing:
    """The value of a call that stands as a statement."""


NOTHING = Nothing()


@dataclass(frozen=True, slots=True)
class Method:
    """A method of something that is not known at compile time: `x.to`, `mapping.on`."""

    call: Callable[[ast.Call], Value]


def is_number(value: Value) -> bool:
    return isinstance(value, (bool, int, float))


def is_expression(value: Value) -> TypeGuard[ir.Expression]:
    return isinstance(value, EXPRESSIONS)


def is_scalar(value: Value) -> bool:
    """Whether a value is a number, an expression, or becomes one when its type is known."""
    return isinstance(value, (bool, int, float, Pending, Choice, FloatOfSizes, *EXPRESSIONS))


RUN_TIME: frozenset[type] = frozenset((
    *EXPRESSIONS, ir.Tensor, Cell, Pending, Choice, FloatOfSizes, TensorView, TensorPart, Transposed, MappingLoop,
    TilesLoop, PipelineLoop, RangeLoop, Method, Nothing,
))  # fmt: skip


def has_float(value: Value) -> bool:
    """Whether a number without a type may be a float."""
    if isinstance(value, Choice):
        return has_float(value.then) or has_float(value.otherwise)
    if isinstance(value, Pending):
        return value.cell.tensor is None and has_float(value.cell.initial)
    return isinstance(value, (float, FloatOfSizes))


def is_constant(value: Value) -> bool:
    """Whether a value is known entirely at compile time."""
    if isinstance(value, (tuple, list)):
        return all(map(is_constant, value))
    return type(value) not in RUN_TIME


def plain(value: Value) -> Value:
    """A constant from outside as the language sees it: NumPy's scalars are Python's numbers."""
    if isinstance(value, np.generic):
        item = value.item()
        return float(item) if isinstance(item, numbers.Real) and not is_number(item) else item
    return value


def shape_text(shape: tuple[int | ir.Expression, ...]) -> str:
    names = [str(extent) if isinstance(extent, (int, ir.Variable)) else "…" for extent in shape]
    return f"[{', '.join(names)}]"


def layout_of(kind: TensorType) -> Mapping | None:
    assert kind.layout is None or isinstance(kind.layout, Mapping)
    return kind.layout


def layout_problem(kind: TensorType) -> str | None:
    """A layout has a place for every element; a symbolic outermost extent is taken on trust."""
    layout = layout_of(kind)
    if layout is None:
        return None
    known = [
        extent if isinstance(extent, int) else full
        for extent, full in zip(kind.shape, layout.shape, strict=True)
    ]
    if 0 in known or layout.covers(known):
        return None
    return f"the layout {layout} has no place for all of {kind.dtype}{list(kind.shape)}"


def did_you_mean(name: str, known: Sequence[str]) -> str | None:
    """A hint with a known name that is so close that it may be meant."""
    from difflib import get_close_matches  # only errors need it

    close = get_close_matches(name, known, 1, 0.65)
    return f"did you mean '{close[0]}'?" if close else None


def counted(number: int, noun: str) -> str:
    """A count with its noun: "1 dimension", "2 dimensions"."""
    return f"{number} {noun}{'s' if number != 1 else ''}"


class SelfDescribed:
    """The base of classes whose instances describe themselves for a message."""

    __slots__ = ()

    described: str


def describe(value: Value) -> str:
    """A description of a value for a message."""
    match value:
        case ir.Tensor(scope=ir.BARRIER):
            return "an array of mbarriers"
        case ir.Tensor():
            kind = {ir.TILE: "a tile", ir.LOCAL: "a private array"}.get(value.scope, "a tensor")
            return f"{kind} {value.dtype}{shape_text(value.shape)}"
        case TensorView():
            return f"a slice {value.tensor.dtype}{shape_text(value.shape)}"
        case TensorPart():
            return f"a part {value.tensor.dtype}{shape_text(value.shape)} of '{value.tensor.name}'"
        case Transposed():
            return f"the transpose of {describe(value.tensor)}"
        case Mapping():
            return f"the mapping {value}"
        case bool() | int() | float() | str() | None:
            return repr(value)
        case DType() | TensorType():
            return f"the type {value}"
        case tuple() | list():
            return f"a {type(value).__name__} of {len(value)}"
        case MappingLoop() | TilesLoop() | PipelineLoop() | RangeLoop():
            return "a loop"
        case Nothing():
            return "nothing"
        case SelfDescribed():
            return value.described
        case Size():
            return f"the size {value}"
        case Pending() | Choice() | FloatOfSizes():
            return "a number"
    if is_expression(value):
        return f"a value of type {value.dtype}"
    name, kind = getattr(value, "__name__", None), type(value).__name__
    if isinstance(value, ModuleType):
        return "tc.cuda" if name == "taskc.lang.cuda" else f"the module {name!r}"
    kind = "function" if kind == "builtin_function_or_method" else kind
    return f"the {kind} {name!r}" if isinstance(name, str) else f"a {kind}"
