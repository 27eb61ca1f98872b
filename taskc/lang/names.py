"""The names that the language adds to Python: what a user imports, and a kernel mentions.

A function is only declared here, for people and editors; what it means is in `taskc.lang.builtins`.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, overload

from taskc.ir.mapping import Mapping
from taskc.ir.types import DType, TensorType
from taskc.lang.intrinsics import in_kernels, on_numbers

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class ParameterType:
    """`tc.out[f32[m, n]]`"""

    role: str
    type: TensorType

    def laid(self, layout: Any) -> ParameterType:
        return ParameterType(self.role, self.type.laid(layout))

    def reshape(self, *shape: Any) -> ParameterType:
        return ParameterType(self.role, self.type.reshape(*shape))


@dataclass(frozen=True, slots=True)
class Role:
    """`tc.out` and `tc.inout`: what a kernel does with a parameter."""

    name: str

    __iter__: ClassVar[None] = None  # as for element types: no sequence without an end

    def __getitem__(self, type: object) -> ParameterType:
        if isinstance(type, DType):
            raise TypeError(f"tc.{self.name} needs a tensor type, such as {type}[16]; got {type}")
        if not isinstance(type, TensorType):
            raise TypeError(f"tc.{self.name} needs a tensor type, such as f32[16]; got {type!r}")
        return ParameterType(self.name, type)

    def __repr__(self) -> str:
        return f"tc.{self.name}"


class Typed:
    """`tc.typed`: the expression in the brackets, which a type checker accepts."""

    __iter__: ClassVar[None] = None

    def __getitem__(self, type: object) -> object:
        return type

    def __repr__(self) -> str:
        return "tc.typed"


typed = Typed()
out = Role("out")
inout = Role("inout")


@on_numbers
def static(value: V) -> V:
    """A constant, which any Python may compute: `tc.static([2**i for i in range(4)])`. A loop over one is unrolled."""
    return value


@in_kernels
def tiles(
    shape: Any, *, by: Any, order: Any = None, persistent: bool = False, cluster: Any = None
) -> Iterator[Any]:
    """The blocks of the grid, one for each tile: `for row, col in tc.tiles((m, n), by=(32, 64)):`.

    by          the shape of a tile
    order       how blocks are numbered: the dimensions from slowest to fastest, ("grouped", 8) or ("backwards", 8)
    persistent  as many blocks as the machine has processors, each running over several tiles
    cluster     blocks that are scheduled together
    """


@on_numbers
def range(*ends: Any, unroll: bool | int | None = None) -> builtins.range:
    """Python's `range`, with control over unrolling: `for q in tc.range(n, unroll=4):`.

    unroll  how many turns stand one after another, or True for all of them; by default the compiler decides
    """
    return builtins.range(*ends)


@in_kernels
def pipeline(
    extent: Any,
    *,
    by: int = 1,
    stages: int = 1,
    transport: str | None = None,
    specialize: bool = False,
    turns: str | None = None,
) -> Iterator[Any]:
    """0, by, 2 * by, … below the extent, one after another; the loads of later steps overlap the work of this one.

    stages      how many steps are in flight, this one included
    transport   how block values travel: "registers", "cp.async", "tma"; by default the best that target and loads allow
    specialize  a warp of its own does the loads, in addition to the workers
    turns       with `specialize`, "tiles": two groups of `workers` take a block's tiles in turn, one multiplies while
                the other stores; "products": one warpgroup issues its matrix products while others work on results
    """


@overload
def load(what: V, *, fill: Any = 0) -> V: ...
@overload
def load(what: Any, value: Callable[..., V], *, fill: Any = 0) -> V: ...
@in_kernels
def load(what: Any, value: Any = None, *, fill: Any = 0) -> Any:
    """A block value, a constant copy in shared memory: of a slice, or of a shape with a function of the indices.

        part = tc.load(x[start : start + 32])
        part = tc.load(32, lambda i: 2 * x[99 - (start + i)], fill=0)

    fill  the value of elements outside the tensor, which aren't read
    """


@in_kernels
def store(target: Any, value: Any) -> None:
    """Stores a tile, shared memory or `lambda i, j: …` into a slice; what lies outside the tensor is dropped."""


@in_kernels
def copy(target: Any, source: Any, *, by: Mapping | None = None) -> None:
    """Moves one slice to another, between global, shared memory and tiles; `by` says which worker moves what."""


@overload
def tile(dtype: type[V], mapping: Mapping, fill: Any = None) -> V: ...
@overload
def tile(dtype: DType, mapping: Mapping, fill: Any = None) -> Any: ...
@in_kernels
def tile(dtype: Any, mapping: Mapping, fill: Any = None) -> Any:
    """Registers, laid out by a mapping: worker w has one for each of its tasks. `acc = tc.tile(f32, own, 0)`"""


@overload
def shared(type: type[V], *, swizzle: int | None = None) -> V: ...
@overload
def shared(type: TensorType, *, swizzle: int | None = None) -> Any: ...
@in_kernels
def shared(type: Any, *, swizzle: int | None = None) -> Any:
    """Memory of the block, uninitialized: `tc.shared(f32[32, 33])`.

    swizzle  16-byte units are XORed as TMA and wgmma do it, in lines of 32, 64 or 128 bytes
    """


@overload
def local(type: type[V], fill: Any = None) -> V: ...
@overload
def local(type: TensorType, fill: Any = None) -> Any: ...
@in_kernels
def local(type: Any, fill: Any = None) -> Any:
    """A private array of a worker, or in a mapping loop of a task, with run-time indices: `tc.local(f32[4], 0)`."""


@in_kernels
def mma(acc: Any, a: Any, b: Any, *, by: type[Any] | DType | None = None) -> None:
    """Adds the matrix product of a and b to the tile acc, by a matrix instruction where the target has one that fits.

    by  the type that the operands are rounded to first
    """


@in_kernels
def reduce(tile: V, axis: int, op: str | Callable[..., Any]) -> V:
    """The tile without the axis, folded over it in an order that the mapping alone decides; of several tiles, as many.

    op  "+", "*", "min", "max", "&", "|" or "^"; or a `@tc.function` of two elements, of each tile one, in any order
    """


@in_kernels
def scan(tile: V, axis: int, op: str | Callable[..., Any], *, exclusive: bool = False) -> V:
    """The prefixes of the tile along the axis, in an order that the mapping alone decides; of several tiles, as many.

    op         "+", "*", "min", "max", "&", "|" or "^"; or a `@tc.function`, as of `tc.reduce`, that is associative
    exclusive  a prefix ends before its own element
    """


@in_kernels
def atomic_add(element: V, value: Any) -> V:
    """Adds to an element; returns the old value."""


@in_kernels
def atomic_min(element: V, value: Any) -> V:
    """Makes an element the smaller of itself and the value; returns the old value."""


@in_kernels
def atomic_max(element: V, value: Any) -> V:
    """Makes an element the larger of itself and the value; returns the old value."""


@in_kernels
def atomic_and(element: V, value: Any) -> V:
    """Combines an element with the value by `&`; returns the old value."""


@in_kernels
def atomic_or(element: V, value: Any) -> V:
    """Combines an element with the value by `|`; returns the old value."""


@in_kernels
def atomic_xor(element: V, value: Any) -> V:
    """Combines an element with the value by `^`; returns the old value."""


@in_kernels
def atomic_exchange(element: V, value: Any) -> V:
    """Puts the value in an element's place; returns the old value."""


@in_kernels
def sync() -> None:
    """A barrier of the block, in a kernel of `tc.cuda`."""


@in_kernels
def worker() -> Any:
    """The worker's number in its block; in a kernel of phases only within `mapping.on(…)`."""


@in_kernels
def print(text: str, *values: Any) -> None:
    """Prints in the simulator, one `{}` for each value: `tc.print("x is {}", x)`."""
