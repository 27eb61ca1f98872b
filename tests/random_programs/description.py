"""What a random program is: its own small language, independent of the compiler's IR.

A program is made by the generator, evaluated by the oracle, and written out as DSL source. Names are
strings, element types are their names ("f32"), and every number has a type.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

Shape = tuple[int, ...]


# --- mappings --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Factor:
    """ "spatial", "repeat" or "replicate", as written."""

    kind: str
    sizes: Shape
    order: Shape | None = None


@dataclass(frozen=True)
class MappingOf:
    """A mapping by factors, outermost first, or by the list of each worker's tasks; None: no task."""

    name: str
    shape: Shape
    workers: int
    factors: tuple[Factor, ...] = ()
    tasks: tuple[tuple[Shape | None, ...], ...] | None = None
    limit: Shape | None = None

    @property
    def iterated(self) -> Shape:
        return self.limit or self.shape


# --- expressions -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Number:
    value: Any
    dtype: str = "i64"


@dataclass(frozen=True)
class Name:
    """A loop's variable, a scalar that has a name, a mutable scalar or a scalar parameter."""

    name: str
    dtype: str = "i64"


@dataclass(frozen=True)
class Element:
    tensor: str
    indices: tuple[Value, ...]
    dtype: str


@dataclass(frozen=True)
class Apply:
    """An operator: Python's spelling for most, and "neg", "invert", "not", "where", "cast", "bitcast", "fma";
    "ptx" is an fma in PTX, "if" Python's conditional expression, "angle" round(8 * atan2).

    A "number" is one of Python's, without a type; "typed" is the number that a use makes of it.

    `a * b + c` on floats is one fma, as the language says: the rule is applied where this is
    evaluated, not where it is made.
    """

    operator: str
    operands: tuple[Value, ...]
    dtype: str


Value: TypeAlias = "Number | Name | Element | Apply"


# --- statements ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Let:
    """`name = value`; for a mutable scalar (`cell`) its first assignment."""

    name: str
    value: Value
    cell: bool = False


@dataclass(frozen=True)
class Assign:
    name: str
    value: Value


@dataclass(frozen=True)
class Tile:
    name: str
    dtype: str
    mapping: MappingOf
    fill: Any = None


@dataclass(frozen=True)
class Shared:
    name: str
    dtype: str
    shape: Shape


@dataclass(frozen=True)
class Local:
    name: str
    dtype: str
    shape: Shape
    fill: Any = None


@dataclass(frozen=True)
class Slice:
    """A box of a tensor: for each dimension its start and size; a size of None is a single index."""

    tensor: str
    starts: tuple[Value, ...]
    sizes: tuple[int | None, ...]
    dtype: str

    @property
    def shape(self) -> Shape:
        return tuple(size for size in self.sizes if size is not None)


@dataclass(frozen=True)
class Load:
    """A block value: a box, or a function of the position; outside the tensor it is `fill`."""

    name: str
    dtype: str
    shape: Shape
    source: Slice | None
    variables: tuple[str, ...] = ()
    value: Value | None = None
    fill: Any = None


@dataclass(frozen=True)
class StoreBlock:
    """A tile or a box, or a function of the position, to a box; what is outside is dropped."""

    target: Slice
    source: Slice | None
    variables: tuple[str, ...] = ()
    value: Value | None = None


@dataclass(frozen=True)
class Copy:
    target: Slice
    source: Slice
    by: MappingOf | None


@dataclass(frozen=True)
class Store:
    tensor: str
    indices: tuple[Value, ...]
    value: Value
    augmented: bool = False  # written as +=, where the value is a sum that begins with the element


@dataclass(frozen=True)
class Atomic:
    operator: str
    tensor: str
    indices: tuple[Value, ...]
    value: Value
    dtype: str
    result: str | None = None


@dataclass(frozen=True)
class If:
    condition: Value
    then: Body
    otherwise: Body = ()


@dataclass(frozen=True)
class While:
    condition: Value
    body: Body


@dataclass(frozen=True)
class For:
    variable: str
    start: Value
    stop: Value
    step: int
    body: Body


@dataclass(frozen=True)
class Each:
    variables: tuple[str, ...]
    mapping: MappingOf
    body: Body
    on: Value | None = None


@dataclass(frozen=True)
class Pipeline:
    variable: str
    extent: Value
    by: int
    stages: int
    body: Body
    transport: str | None = None
    specialize: bool = False


@dataclass(frozen=True)
class Tiles:
    variables: tuple[str, ...]
    shape: tuple[Value, ...]
    by: Shape
    body: Body
    order: tuple[Any, ...] = ()
    persistent: bool = False


@dataclass(frozen=True)
class Product:
    """accumulator += left @ right; "transposed" operands are written `x.T`."""

    accumulator: str
    left: Slice
    right: Slice
    transposed: tuple[bool, bool] = (False, False)


@dataclass(frozen=True)
class Reduce:
    name: str
    source: str
    axis: int
    operator: str


@dataclass(frozen=True)
class Scan:
    name: str
    source: str
    axis: int
    operator: str
    exclusive: bool = False


@dataclass(frozen=True)
class Breakpoint:
    """Where the simulator may stop; it computes nothing."""


@dataclass(frozen=True)
class Print:
    text: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Assert:
    condition: Value
    text: str


Statement: TypeAlias = (
    "Let | Assign | Tile | Shared | Local | Load | StoreBlock | Copy | Store | Atomic | "
    "If | While | For | Each | Pipeline | Tiles | Product | Reduce | Scan | Print | Assert | "
    "Breakpoint"
)
Body: TypeAlias = "tuple[Statement, ...]"


# --- programs --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameter:
    """`shape` has a name where the extent is symbolic; None for a scalar. `data` is its argument.

    `layout` is a mapping of one worker, by factors; row-major without any.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None
    role: str
    data: Any = field(compare=False)
    layout: tuple[Factor, ...] = ()


@dataclass(frozen=True)
class Program:
    name: str
    target: str
    workers: int
    dimensions: tuple[tuple[str, int, int], ...]  # name, multiple, extent
    parameters: tuple[Parameter, ...]
    body: Body
