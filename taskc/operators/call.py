"""ONNX's operators, each built from calls of a program that is being traced.

An operator is a Python function that runs while a program is traced:

    @operator("Trilu", since=14)
    def trilu(call: Call) -> Made:
        x, upper = call.tensor(0), bool(call.attribute("upper"))
        return call.compute(x.shape, lambda *at: x[at] if (at[-1] >= at[-2]) == upper else 0)

An input is None where it is absent; an array where the model or shape arithmetic determines its elements; otherwise a
handle, whose elements are known at run time. The builder returns a tuple with a tensor for each output, or a single
tensor. Of several versions, the newest that isn't newer than the node's is called.

Shape arithmetic (a few known integers) is computed by Python: `call.compute` runs the same function that it would
otherwise parse. Floats, and many integers, always go into kernels.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from functools import cache, wraps
from math import prod
from typing import Any, TypeAlias, cast

import numpy as np

import taskc as tc
from taskc import CompileError, DType, i8, i16, i32, i64, u8, u16, u32, u64
from taskc.errors import RetryError
from taskc.ir.text_rules import identifier
from taskc.ir.types import from_numpy
from taskc.lang.sizes import Dimension, Size
from taskc.operators.blocked import Blocked
from taskc.operators.graph import Array, Node
from taskc.programs.tracing import TensorHandle

# The known elements of an array of objects are Python integers or sizes (`tc.dim`, and expressions of them). Only shape
# arithmetic makes such arrays. Their element type is i64, unless the NumPy type's metadata names another (`_OBJECTS`).
Tensor: TypeAlias = "TensorHandle | np.ndarray[Any, Any]"


@dataclass(frozen=True, slots=True)
class Counted:
    """A tensor whose extent along an axis is known when the model runs; it has memory for the largest.

    count  one number
    """

    handle: TensorHandle
    count: TensorHandle
    axis: int

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.handle.shape


@dataclass(frozen=True, slots=True)
class Loose:
    """A tensor that may have more leading axes of one element each; whether it has them is known when the model runs.

    rank   with all of them
    error  raised by readers that tell the two apart
    """

    handle: TensorHandle
    rank: int
    error: DataError

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.handle.shape

    def like(self, tensor: Tensor) -> Loose:
        """A tensor computed from this one element by element, with the same doubt about its rank."""
        return Loose(handle_of(tensor), self.rank, self.error)


# The value of a name in a graph. Operators that take no blocked images get rows. No operator gets a counted tensor,
# which ends a program, or a loose one.
Held: TypeAlias = "Tensor | Blocked | Counted | Loose"
Made: TypeAlias = "Held | tuple[Held | None, ...]"
Builder: TypeAlias = "Callable[[Call], Made]"
Inline: TypeAlias = "Callable[..., tuple[Tensor, ...]]"

MAX_BY_PYTHON = 1 << 14  # elements


_OBJECTS = {
    it: np.dtype(object, metadata={"dtype": it}) for it in (i8, i16, i32, i64, u8, u16, u32, u64)
}


class NeedsKernelError(RetryError):
    """The computation is more than shape arithmetic, which is all that Python computes."""


class UnrolledError(RetryError):
    """A loop can't become one of the program: the model is traced again, with each turn built separately."""


class DataError(CompileError):
    """The node depends on data that is known only when the model runs.

    names     tensors of which one would have to be known
    can_wait  it may be built for any value, and decides at run time
    """

    names: tuple[str, ...] = ()
    can_wait = False


class SizeError(CompileError):
    """The node needs numbers where the program has these dimensions, as far as they are known."""

    dimensions: tuple[Dimension, ...] = ()


class CountError(CompileError):
    """The node depends on the number of elements of one of `names`, which is `Counted`."""

    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A node with its inputs.

    inline     builds the nodes of a graph attribute from that graph's inputs, for one of so many turns
    by_python  all inputs are few known integers, and Python computes with them
    late       names of tensors that decide at run time, though tracing could decide
    turns      how often the loops around it run it
    unrolled   identities of the Loop nodes whose turns are each built separately
    """

    node: Node
    inputs: tuple[Held | None, ...]
    inline: Inline
    by_python: bool = False
    late: frozenset[str] = frozenset()
    turns: int = 1
    unrolled: set[int] = field(default_factory=set)

    def attribute(self, name: str, default: Any = None) -> Any:
        """The model's attribute, or ONNX's default, or this one."""
        return self.node.attributes.get(name, default)

    def has(self, position: int) -> bool:
        """Whether the input is present."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def given(self, position: int) -> Tensor:
        """An input as it is; an error where it is absent."""
        held = self.inputs[position] if position < len(self.inputs) else None
        if held is None:
            raise self.node.error(f"its input {position} is missing")
        return rows_of(held)

    def images(self, position: int) -> Any:
        """An input as `tensor` returns it, or the blocked images that it is."""
        held = self.inputs[position] if position < len(self.inputs) else None
        return held if isinstance(held, Blocked) else self.tensor(position)

    def dtype(self, position: int) -> DType:
        return dtype_of(self._described(position))

    def shape(self, position: int) -> tuple[Any, ...]:
        return self._described(position).shape

    def tensor(self, position: int) -> Any:
        """An input to read elements of: a handle, or where Python computes, an array of its integers."""
        tensor = self.given(position)
        if self.by_python:
            assert isinstance(tensor, np.ndarray)
            return tensor.astype(object)
        return handle_of(tensor)

    def known(self, position: int) -> Array:
        """An input that decides what is built: its elements can't wait for run time."""
        tensor = self.given(position)
        if isinstance(tensor, TensorHandle):
            raise self.unknown(position)
        return tensor

    def unknown(self, position: int, *, can_wait: bool = False) -> DataError:
        """The error for an input whose elements aren't known."""
        name = self.node.inputs[position]
        error = DataError(
            f"{self.node.title}: its input {position}, '{name}', is known only when the model runs, and what is"
            " compiled depends on it",
            self.node.where,
        )
        error.names, error.can_wait = (name,), can_wait
        return error

    def _described(self, position: int) -> Held:
        held = self.inputs[position] if position < len(self.inputs) else None
        return held if isinstance(held, Blocked) else self.given(position)

    def single(self, position: int) -> Any:
        """The one number of a known input, an int or a size."""
        numbers = self.known(position).reshape(-1)
        if len(numbers) != 1:
            raise self.node.error(f"its input {position} has {len(numbers)} elements, not one")
        (number,) = numbers.tolist()
        return number

    def count(self, name: str, default: int = 1) -> int:
        """An attribute that is a number of things, at least one."""
        number = self.attribute(name, default)
        if number < 1:
            raise self.node.error(f"its attribute '{name}' is {number}, and has to be at least 1")
        return int(number)

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The dimensions in its inputs' extents, and in the sizes among their elements."""
        sizes: list[Any] = []
        for held in self.inputs:
            if held is not None:
                sizes += held.shape
                if isinstance(held, np.ndarray) and held.dtype == object:
                    sizes += held.flat
        dimensions = [
            dimension
            for size in sizes
            if isinstance(size, Size)
            for dimension in size.dimensions.values()
        ]
        return tuple(dict.fromkeys(dimensions))

    def integers(self, position: int) -> list[Any]:
        """The numbers of a known input, each an int or a size."""
        return [n if isinstance(n, Size) else int(n) for n in self.known(position).reshape(-1)]

    def number(self, extent: Any, what: str) -> int:
        """An extent that has to be a number; `what` names it in the error where it is a size."""
        if isinstance(extent, Size):
            error = SizeError(
                f"{self.node.title}: {what}, {extent}, is known only at a call", self.node.where
            )
            error.dimensions = tuple(extent.dimensions.values())
            raise error
        return int(extent)

    def compute(
        self, shape: Sequence[Any], function: Callable[..., Any], dtype: DType | None = None
    ) -> Tensor:
        """The tensor of a function of indices, by Python or as a computation of the program.

        dtype  of what Python computes, if not that of the first input
        """
        if self.by_python:
            return _listed(tuple(shape), function, dtype or self.dtype(0))
        return cast("TensorHandle", tc.compute(tuple(shape), function, name=self.name))

    @property
    def name(self) -> str:
        """The name of this node's computations."""
        return identifier(self.node.operator.lower())

    def require_kernel(self) -> None:
        """Leave shape arithmetic: raise where Python computes, so that the node is built again from handles."""
        if self.by_python:
            raise NeedsKernelError


def rows_of(held: Held) -> Tensor:
    """The tensor in row-major layout; an error where its extent or rank isn't known."""
    match held:
        case Blocked():
            return held.rows
        case Counted():
            raise CompileError("how many elements it has is known only when the model runs")
        case Loose():
            raise held.error
    return held


def dtype_of(tensor: Held) -> DType:
    if isinstance(tensor, Counted | Loose):
        return tensor.handle.dtype
    if isinstance(tensor, TensorHandle | Blocked):
        return tensor.dtype
    if tensor.dtype == object:
        return (tensor.dtype.metadata or {}).get("dtype", i64)  # type: ignore[no-any-return]
    return from_numpy(tensor.dtype)


def handle_of(tensor: Tensor) -> TensorHandle:
    """The tensor as the program reads it."""
    if isinstance(tensor, TensorHandle):
        return tensor
    if tensor.dtype == object:
        if not any(isinstance(element, Size) for element in tensor.flat):
            return handle_of(tensor.astype(np.int64))
        chosen, dtype = _chosen(tuple(tensor.flat), 0), dtype_of(tensor)
        elements = tc.compute((tensor.size,), lambda at: chosen(at).to(dtype), name="sizes")
        return cast("TensorHandle", cast("TensorHandle", elements).reshape(*tensor.shape))
    return cast("TensorHandle", tc.constant(tensor))


def _chosen(numbers: tuple[Any, ...], first: int) -> Any:
    """The function that returns one of some integers and sizes, by its index, counted from `first`."""
    if len(numbers) == 1:
        return tc.function(lambda at: numbers[0])
    bound = first + len(numbers) // 2
    before, behind = (
        _chosen(numbers[: bound - first], first),
        _chosen(numbers[bound - first :], bound),
    )
    return tc.function(lambda at: before(at) if at < bound else behind(at))


def computed_once(body: Callable[[], Any]) -> Array:
    """The result of a program of its own, run now."""
    return cast("Array", now(lambda: tc.trace("once", {}, body)()))


def now(compute: Callable[[], Any]) -> Any:
    """Run kernels at once, outside of the trace: compiled for this processor, whatever the model's target."""
    return Context().run(compute)


def is_few(tensor: Held | None) -> bool:
    """Whether it is absent, or few known integers."""
    if tensor is None:
        return True
    return (
        isinstance(tensor, np.ndarray)
        and tensor.dtype.kind in "biuO"
        and tensor.size <= MAX_BY_PYTHON
    )


def _listed(shape: tuple[Any, ...], function: Callable[..., Any], dtype: DType) -> Array:
    """The array of a function's values, which are integers or sizes."""
    if any(isinstance(extent, Size) for extent in shape) or prod(shape) > MAX_BY_PYTHON:
        raise NeedsKernelError
    elements = np.empty(shape, object)
    try:
        for at in np.ndindex(shape):
            elements[at] = function(*at)
    except ArithmeticError:
        raise NeedsKernelError from None
    has_sizes = any(isinstance(element, Size) for element in elements.flat)
    if has_sizes and not dtype.is_integer:
        raise NeedsKernelError
    if dtype.is_integer and not all(_fits(element, dtype) for element in elements.flat):
        raise NeedsKernelError  # it wraps around there
    return elements.astype(_OBJECTS[dtype] if has_sizes else dtype.numpy)


def _fits(number: Any, dtype: DType) -> bool:
    is_size = dtype is i64 and isinstance(number, Size)
    return is_size or bool(dtype.minimum <= number <= dtype.maximum)


_builders: dict[tuple[str, str], dict[int, Builder]] = {}


Ranks: TypeAlias = "Sequence[int | range | None]"  # one for each input; None is any rank


def at_least(rank: int) -> range:
    return range(rank, _MOST_AXES)


_MOST_AXES = 1 << 20


def operator(
    name: str, since: int = 1, domain: str = "", *, ranks: Ranks = ()
) -> Callable[[Builder], Builder]:
    """Registers a builder of an operator, from this version of its operator set on.

    ranks  of the inputs that it takes: others are refused before it is called
    """

    def register(builder: Builder) -> Builder:
        def checked(call: Call) -> Made:
            _check_ranks(call, ranks)
            return builder(call)

        made = wraps(builder)(checked) if ranks else builder
        _builders.setdefault((domain, name), {})[since] = made
        return builder

    return register


def _check_ranks(call: Call, ranks: Ranks) -> None:
    for position, (wanted, held) in enumerate(zip(ranks, call.inputs, strict=False)):
        if wanted is None or held is None:
            continue
        allowed = range(wanted, wanted + 1) if isinstance(wanted, int) else wanted
        if len(held.shape) in allowed:
            continue
        first, last = allowed[0], allowed[-1]
        count = f"{first}" if first == last else f"{first} to {last}"
        count = f"at least {first}" if last == _MOST_AXES - 1 else count
        shape = ", ".join(map(str, held.shape))
        raise call.node.error(
            f"its input {position} is {dtype_of(held)}[{shape}], and has to be of {count}"
            f" dimension{'s' * (count != '1')}"
        )


def registered() -> list[Builder]:
    """The builders that users registered."""
    builders = [builder for versions in _builders.values() for builder in versions.values()]
    return [one for one in builders if not one.__module__.startswith("taskc.operators.")]


@cache
def _load() -> None:
    """Import the package's modules, which register their builders."""
    package = importlib.import_module(__package__)
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)


def names_of(domain: str) -> list[str]:
    """The operators of a domain that have a builder."""
    _load()
    return [name for of, name in _builders if of == domain]


def builder_of(name: str, version: int, domain: str = "") -> Builder | None:
    """The builder of an operator as of a version of its operator set, or None."""
    _load()
    versions = [since for since in _builders.get((domain, name), ()) if since <= version]
    return _builders[domain, name][max(versions)] if versions else None
