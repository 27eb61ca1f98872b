"""ONNX's operators: what each becomes in a program that is being traced.

An operator is a Python function that runs while a program is traced:

    @operator("Trilu", since=14)
    def trilu(call: Call) -> Made:
        x, upper = call.tensor(0), bool(call.attribute("upper"))
        return call.compute(x.shape, lambda *at: x[at] if (at[-1] >= at[-2]) == upper else 0)

What it is given is None where an input is absent; known, an array, where the model or shape arithmetic says its
elements; or else a handle, whose elements are known at run time. What it returns is a tensor for each output, or the
one. The function of the newest version that isn't newer than the node's is called.

Shape arithmetic, which is a few known integers, is computed by Python: `call.compute` runs the same function that it
would have parsed. Floats, and many integers, always go into kernels.
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
from taskc.lang.tracing import TensorHandle
from taskc.operators.blocked import Blocked
from taskc.operators.graph import Array, Node

# Elements that are known are integers of Python or sizes (`tc.dim` and what is computed from them) where an array is of
# objects; such are made by shape arithmetic alone. They are i64, if NumPy's type doesn't say another (`_OBJECTS`).
Tensor: TypeAlias = "TensorHandle | np.ndarray[Any, Any]"


@dataclass(frozen=True, slots=True)
class Counted:
    """A tensor whose extent along an axis is known when the model runs: so many of the elements in memory for most.

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
    """A tensor that may have more leading axes, each of one element: whether it has is known when the model runs.

    rank   with all of them
    error  for readers that tell the two apart
    """

    handle: TensorHandle
    rank: int
    error: DataError

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.handle.shape

    def like(self, tensor: Tensor) -> Loose:
        """A tensor that is made of this one element by element."""
        return Loose(handle_of(tensor), self.rank, self.error)


# What a name of a graph stands for; operators that know nothing of blocks are given rows, and none is given what is
# counted, which ends a program, or loose.
Held: TypeAlias = "Tensor | Blocked | Counted | Loose"
Made: TypeAlias = "Held | tuple[Held | None, ...]"
Builder: TypeAlias = "Callable[[Call], Made]"
Inline: TypeAlias = "Callable[..., tuple[Tensor, ...]]"

FEW = 1 << 14  # elements that Python computes


_OBJECTS = {
    it: np.dtype(object, metadata={"dtype": it}) for it in (i8, i16, i32, i64, u8, u16, u32, u64)
}


class NeedsKernelError(RetryError):
    """What was to be computed by Python is more than shape arithmetic."""


class UnrolledError(RetryError):
    """A loop can't be one of the program: the model is traced again, with each of its turns built for itself."""


class DataError(CompileError):
    """What is to be built depends on what is known only when the model runs.

    names     of what would have to be known, any one of them
    can_wait  it may be built for any value, which decides when it runs
    """

    names: tuple[str, ...] = ()
    can_wait = False


class SizeError(CompileError):
    """What is to be built needs numbers where the program has dimensions: these, as far as it is known."""

    dimensions: tuple[Dimension, ...] = ()


class CountError(CompileError):
    """What is to be built depends on how many elements there are of one of `names`, which is `Counted`."""

    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A node with its inputs.

    inline     builds the nodes of a graph in one of its attributes, given that graph's inputs, for one of so many turns
    by_python  all inputs are few known integers, and Python computes with them
    late       the names of what isn't decided while the model is traced, though it might be
    turns      how often loops around it have it done
    unrolled   the loops, by the identity of their nodes, whose turns are each built for itself
    """

    node: Node
    inputs: tuple[Held | None, ...]
    inline: Inline
    by_python: bool = False
    late: frozenset[str] = frozenset()
    turns: int = 1
    unrolled: set[int] = field(default_factory=set)

    def attribute(self, name: str, default: Any = None) -> Any:
        """What the model says, or ONNX's default, or this one."""
        return self.node.attributes.get(name, default)

    def has(self, position: int) -> bool:
        """Whether there is this input."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def given(self, position: int) -> Tensor:
        """An input as it is; an error where it is absent."""
        found = self.inputs[position] if position < len(self.inputs) else None
        if found is None:
            raise self.node.error(f"its input {position} is missing")
        return rows_of(found)

    def images(self, position: int) -> Any:
        """An input as `tensor` has it, or blocked images where it is those."""
        found = self.inputs[position] if position < len(self.inputs) else None
        return found if isinstance(found, Blocked) else self.tensor(position)

    def dtype(self, position: int) -> DType:
        return dtype_of(self._described(position))

    def shape(self, position: int) -> tuple[Any, ...]:
        return self._described(position).shape

    def tensor(self, position: int) -> Any:
        """An input to read elements of: a handle, or where Python computes, an array of its integers."""
        found = self.given(position)
        if self.by_python:
            assert isinstance(found, np.ndarray)
            return found.astype(object)
        return handle_of(found)

    def known(self, position: int) -> Array:
        """An input that says what is to be built: it can't wait for run time."""
        found = self.given(position)
        if isinstance(found, TensorHandle):
            raise self.unknown(position)
        return found

    def unknown(self, position: int, *, can_wait: bool = False) -> DataError:
        """That an input's elements aren't known."""
        name = self.node.inputs[position]
        error = DataError(
            f"{self.node.title}: its input {position}, '{name}', is known only when the model runs, and what is"
            " compiled depends on it",
            self.node.where,
        )
        error.names, error.can_wait = (name,), can_wait
        return error

    def _described(self, position: int) -> Held:
        found = self.inputs[position] if position < len(self.inputs) else None
        return found if isinstance(found, Blocked) else self.given(position)

    def single(self, position: int) -> Any:
        """The one number of a known input, an int or a size."""
        numbers = self.known(position).reshape(-1)
        if len(numbers) != 1:
            raise self.node.error(f"its input {position} has {len(numbers)} elements, not one")
        (number,) = numbers.tolist()
        return number

    def count(self, name: str, default: int = 1) -> int:
        """An attribute that is a number of things, at least one."""
        found = self.attribute(name, default)
        if found < 1:
            raise self.node.error(f"its attribute '{name}' is {found}, and has to be at least 1")
        return int(found)

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """What its inputs' extents are computed from, and the sizes among their elements."""
        sizes: list[Any] = []
        for held in self.inputs:
            if held is not None:
                sizes += held.shape
                if isinstance(held, np.ndarray) and held.dtype == object:
                    sizes += held.flat
        found = [
            own for size in sizes if isinstance(size, Size) for own in size.dimensions.values()
        ]
        return tuple(dict.fromkeys(found))

    def integers(self, position: int) -> list[Any]:
        """The numbers of a known input, each an int or a size."""
        return [n if isinstance(n, Size) else int(n) for n in self.known(position).reshape(-1)]

    def number(self, extent: Any, what: str) -> int:
        """An extent that has to be a number; what it is is for the error where it is a size."""
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
        """The tensor of what a function of its indices gives: by Python, or as a computation of the program.

        dtype  of what Python computes, if not that of the first input
        """
        if self.by_python:
            return _listed(tuple(shape), function, dtype or self.dtype(0))
        return cast("TensorHandle", tc.compute(tuple(shape), function, name=self.name))

    @property
    def name(self) -> str:
        """What a computation of this node is called."""
        return identifier(self.node.operator.lower())

    def require_kernel(self) -> None:
        """Says that this is beyond shape arithmetic: it is built again, from handles."""
        if self.by_python:
            raise NeedsKernelError


def rows_of(held: Held) -> Tensor:
    """The tensor row by row."""
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
        if not any(isinstance(part, Size) for part in tensor.flat):
            return handle_of(tensor.astype(np.int64))
        chosen, dtype = _chosen(tuple(tensor.flat), 0), dtype_of(tensor)
        made = tc.compute((tensor.size,), lambda at: chosen(at).to(dtype), name="sizes")
        return cast("TensorHandle", cast("TensorHandle", made).reshape(*tensor.shape))
    return cast("TensorHandle", tc.constant(tensor))


def _chosen(numbers: tuple[Any, ...], first: int) -> Any:
    """The function of the language that gives one of some integers and sizes, by its place from `first` on."""
    if len(numbers) == 1:
        return tc.function(lambda at: numbers[0])
    bound = first + len(numbers) // 2
    before, behind = (
        _chosen(numbers[: bound - first], first),
        _chosen(numbers[bound - first :], bound),
    )
    return tc.function(lambda at: before(at) if at < bound else behind(at))


def computed_once(body: Callable[[], Any]) -> Array:
    """What a program of its own computes, now."""
    return cast("Array", now(lambda: tc.trace("once", {}, body)()))


def now(compute: Callable[[], Any]) -> Any:
    """What kernels compute at once, and so here: they are made for this processor, whatever the model is for."""
    return Context().run(compute)


def is_few(tensor: Held | None) -> bool:
    """Whether it is absent, or few known integers."""
    if tensor is None:
        return True
    return isinstance(tensor, np.ndarray) and tensor.dtype.kind in "biuO" and tensor.size <= FEW


def _listed(shape: tuple[Any, ...], function: Callable[..., Any], dtype: DType) -> Array:
    """The array of a function's values, which are integers or sizes."""
    if any(isinstance(extent, Size) for extent in shape) or prod(shape) > FEW:
        raise NeedsKernelError
    made = np.empty(shape, object)
    try:
        for at in np.ndindex(shape):
            made[at] = function(*at)
    except ArithmeticError:
        raise NeedsKernelError from None
    has_sizes = any(isinstance(part, Size) for part in made.flat)
    if has_sizes and not dtype.is_integer:
        raise NeedsKernelError
    if dtype.is_integer and not all(_fits(part, dtype) for part in made.flat):
        raise NeedsKernelError  # it wraps around there
    return made.astype(_OBJECTS[dtype] if has_sizes else dtype.numpy)


def _fits(number: Any, dtype: DType) -> bool:
    is_size = dtype is i64 and isinstance(number, Size)
    return is_size or bool(dtype.minimum <= number <= dtype.maximum)


_builders: dict[tuple[str, str], dict[int, Builder]] = {}


Ranks: TypeAlias = "Sequence[int | range | None]"  # of each input; None is any rank


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
    """What builds operators that isn't taskc's own."""
    made = [builder for versions in _builders.values() for builder in versions.values()]
    return [one for one in made if not one.__module__.startswith("taskc.operators.")]


@cache
def _load() -> None:
    """Import the package's modules, which register their builders."""
    package = importlib.import_module(__package__)
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)


def names_of(domain: str) -> list[str]:
    """The operators of a domain that have a builder."""
    _load()
    return [name for own, name in _builders if own == domain]


def builder_of(name: str, version: int, domain: str = "") -> Builder | None:
    """What builds an operator as it was in a version of its operator set; None where nothing does."""
    _load()
    found = [since for since in _builders.get((domain, name), ()) if since <= version]
    return _builders[domain, name][max(found)] if found else None
