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
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import cache, wraps
from inspect import unwrap
from math import prod
from typing import Any, TypeAlias, cast

import numpy as np

import taskc as tc
from taskc import CompileError, DType, i64
from taskc.dataclass import dataclass
from taskc.errors import Location, Notes, RetryError
from taskc.ir.spans import span
from taskc.ir.text_rules import identifier
from taskc.lang.sizes import Dimension, Size, are_surely_equal as are_equal
from taskc.lang.source import call_site
from taskc.operators.files import FILES
from taskc.operators.graph import Array, Node
from taskc.operators.tensors import (
    OBJECTS,
    Blocked,
    Extent,
    Function,
    Held,
    Images,
    Shape,
    State,
    Tensor,
    computed,
    dtype_of,
    handle_of,
    rows_of,
)
from taskc.programs.tracing import TensorHandle

Made: TypeAlias = "Held | tuple[Held | None, ...]"
Builder: TypeAlias = "Callable[[Call], Made]"
Inline: TypeAlias = "Callable[..., tuple[Tensor, ...]]"
Number: TypeAlias = "Extent | float"

# By the numbers that models use.
ELEMENT_TYPES: dict[int, DType] = {
    1: tc.f32, 2: tc.u8, 3: tc.i8, 4: tc.u16, 5: tc.i16, 6: tc.i32, 7: tc.i64, 9: tc.boolean,
    10: tc.f16, 11: tc.f64, 12: tc.u32, 13: tc.u64, 16: tc.bf16, 17: tc.f8e4m3, 19: tc.f8e5m2,
}  # fmt: skip

MAX_BY_PYTHON = 1 << 14  # elements


class NeedsKernelError(RetryError):
    """The computation is more than shape arithmetic, which is all that Python computes."""


class UnrolledError(RetryError):
    """A Loop can't become one of the program: each of its steps is built separately."""


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

    inline     builds the nodes of a graph attribute from that graph's inputs, for one of so many turns, with more
               names that decide late
    by_python  all inputs are few known integers, and Python computes with them
    late       names of tensors that decide at run time, though tracing could decide
    turns      how many copies of it the loops around it build
    unrolled   identities of the Loop nodes whose steps are each built separately
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

    def _held(self, position: int) -> Tensor | Blocked | State:
        """An input, perhaps as blocked images or a state; an error where it is absent."""
        held = self.inputs[position] if position < len(self.inputs) else None
        if held is None:
            raise self.node.error(f"its input {position} is missing")
        return held if isinstance(held, Blocked | State) else rows_of(held)

    def given(self, position: int) -> Tensor:
        """An input as it is; an error where it is absent."""
        return rows_of(self._held(position))

    def optional(self, position: int) -> Tensor | None:
        """An input as it is, or None where it is absent."""
        return self.given(position) if self.has(position) else None

    def images(self, position: int) -> Images:
        """An input as `tensor` returns it, or the blocked images that it is."""
        held = self._held(position)
        return held if isinstance(held, Blocked) else self.tensor(position)

    def dtype(self, position: int) -> DType:
        return dtype_of(self._held(position))

    def shape(self, position: int) -> Shape:
        return self._held(position).shape

    def tensor(self, position: int) -> TensorHandle:
        """An input to read elements of: a handle, or where Python computes, an array, which the same lambdas read."""
        tensor = self.given(position)
        if self.by_python:
            assert isinstance(tensor, np.ndarray)
            return cast("TensorHandle", tensor.astype(object))
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
        sizes: list[object] = []
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

    def integers(self, position: int) -> list[Extent]:
        """The numbers of a known input, each an int or a size."""
        return [n if isinstance(n, Size) else int(n) for n in self.known(position).reshape(-1)]

    def number(self, extent: Extent, what: str) -> int:
        """An extent that has to be a number; `what` names it in the error where it is a size."""
        if isinstance(extent, Size):
            error = SizeError(
                f"{self.node.title}: {what}, {extent}, is known only at a call", self.node.where
            )
            error.dimensions = tuple(extent.dimensions.values())
            raise error
        return int(extent)

    def tensors(self, count: int) -> Sequence[Any]:
        """The first inputs of a node that needs kernels: each a handle, or None if absent."""
        self.require_kernel()
        return tuple([self.tensor(place) if self.has(place) else None for place in range(count)])

    def wants(self, place: int) -> bool:
        """Whether the model uses this output."""
        return place < len(self.node.outputs) and self.node.outputs[place] != ""

    def axis_of(self, axis: Extent, rank: int) -> int:
        """The number of an axis, which may be counted from the end."""
        if not -rank <= axis < rank:
            raise self.node.error(f"there is no axis {axis} in {rank} dimensions")
        return int(axis) % rank

    def axis(self, rank: int, default: int) -> int:
        """The axis that the attribute 'axis' names."""
        return self.axis_of(self.attribute("axis", default), rank)

    def axes_of(self, axes: Sequence[Extent], rank: int) -> tuple[int, ...]:
        """The numbers of axes, each named once, in the order in which they are named."""
        numbers = tuple([self.axis_of(axis, rank) for axis in axes])
        if len({*numbers}) < len(numbers):
            raise self.node.error(f"it names an axis twice: {list(axes)}")
        return numbers

    def broadcast(self, *shapes: Sequence[Extent]) -> Shape:
        """The shape to which all of these broadcast."""
        result: list[Extent] = []
        for shape in shapes:
            result[:0] = [1] * (len(shape) - len(result))
            for back in range(1, len(shape) + 1):
                extent, before = shape[-back], result[-back]
                if are_equal(before, 1):
                    result[-back] = extent
                elif not are_equal(extent, 1) and not are_equal(extent, before):
                    text = " and ".join(str([*shape]) for shape in shapes)
                    raise self.node.error(f"the shapes {text} can't be broadcast together")
        return tuple(result)

    def element_type(self, number: int) -> DType:
        """The element type that a number in an attribute names."""
        if number not in ELEMENT_TYPES:
            raise self.node.error(f"it names the element type {number}, which taskc doesn't have")
        return ELEMENT_TYPES[number]

    def attribute_type(self, name: str, otherwise: DType) -> DType:
        """The element type that an attribute names by its number."""
        number = self.attribute(name)
        if number is None:
            return otherwise
        if number not in ELEMENT_TYPES:
            raise self.node.error(f"its attribute '{name}' names the element type {number}")
        return ELEMENT_TYPES[number]

    def compute(
        self, shape: Sequence[Extent], function: Function, dtype: DType | None = None
    ) -> Tensor:
        """The tensor of a function of indices, by Python or as a computation of the program.

        dtype  of what Python computes, if not that of the first input
        """
        if self.by_python:
            return _listed(tuple(shape), function, dtype or self.dtype(0))
        return computed(shape, function, self.name)

    @property
    def name(self) -> str:
        """The name of this node's computations."""
        return identifier(self.node.operator.lower())

    def require_kernel(self) -> None:
        """Leave shape arithmetic: raise where Python computes, so that the node is built again from handles."""
        if self.by_python:
            raise NeedsKernelError


def is_few(tensor: Held | None) -> bool:
    """Whether it is absent, or few known integers."""
    if tensor is None:
        return True
    return (
        isinstance(tensor, np.ndarray)
        and tensor.dtype.kind in "biuO"
        and tensor.size <= MAX_BY_PYTHON
    )


def _listed(shape: Shape, function: Function, dtype: DType) -> Array:
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
    return elements.astype(OBJECTS[dtype] if has_sizes else dtype.numpy)


def _fits(number: Number, dtype: DType) -> bool:
    is_size = dtype is i64 and isinstance(number, Size)
    return is_size or bool(dtype.minimum <= number <= dtype.maximum)


_builders: dict[tuple[str, str], dict[int, Builder]] = {}


Ranks: TypeAlias = "Sequence[int | range | None]"  # one for each input; None is any rank


def at_least(rank: int) -> range:
    return range(rank, _MOST_AXES)


_MOST_AXES = 1 << 20


def operator(
    name: str, since: int = 1, domain: str = "", *, ranks: Ranks = (), replace: bool = False
) -> Callable[[Builder], Builder]:
    """Registers a builder of an operator, from this version of its operator set on.

    A second builder of the same operator and version is an error, unless it is the same function defined again, as when
    a notebook's cell is rerun: a function at the top of a module that has the name of the first.

    ranks    of the inputs that it takes: others are refused before it is called
    replace  take the place of another builder of this version, or of taskc's own of this version and later ones
    """

    def register(builder: Builder) -> Builder:
        def checked(call: Call) -> Made:
            _check_ranks(call, ranks)
            return builder(call)

        if not _is_ours(builder):
            _load(name, domain)
        versions = _builders.get((domain, name), {})
        if replace:
            versions = {
                version: one
                for version, one in versions.items()
                if version < since or not _is_ours(one)
            }
        else:
            _check_new(f"{domain}.{name}" if domain else name, since, builder, versions)
        made = wraps(builder)(checked) if ranks else builder
        _builders[domain, name] = {**versions, since: made}
        return builder

    return register


def _check_new(name: str, since: int, builder: Builder, versions: dict[int, Builder]) -> None:
    """Raise an error if there is another builder of this version, or if taskc has this operator."""
    if not _is_ours(builder) and any(map(_is_ours, versions.values())):
        raise CompileError(
            f"taskc has an operator {name}",
            call_site(),
            f"with replace=True this builder takes its place, from version {since} on",
        )
    if since not in versions:
        return
    first = unwrap(versions[since])
    if builder is first or _path(builder) == _path(first):
        return
    code = getattr(first, "__code__", None)
    notes: Notes = ()
    if code is not None:
        line = code.co_firstlineno
        notes = (("the first one is here", Location(code.co_filename, line, 0, line, 0)),)
    hint = "with replace=True it takes the place of the first one"
    said = f"a second builder of the operator {name}, from version {since} on"
    raise CompileError(said, call_site(), hint, notes)


def _path(builder: Builder) -> object:
    """The module and the name of a function at its top; functions in functions and lambdas equal only themselves."""
    name = getattr(builder, "__qualname__", "<")
    return builder if "<" in name else (builder.__module__, name)


def _is_ours(builder: Builder) -> bool:
    return builder.__module__.startswith("taskc.operators.")


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
    return [one for one in builders if not _is_ours(one)]


def _load(name: str, domain: str) -> None:
    """Import the file of an operator, which registers its builders, if it is taskc's."""
    file = FILES.get((domain, name))
    if file is not None:
        _import(file)


@cache
@span("import")
def _import(file: str) -> None:
    importlib.import_module(f"{__package__}.{file}")


def names_of(domain: str) -> list[str]:
    """The operators of a domain that have a builder."""
    return [name for of, name in {**FILES, **_builders} if of == domain]


def builder_of(name: str, version: int, domain: str = "") -> Builder | None:
    """The builder of an operator as of a version of its operator set, or None."""
    _load(name, domain)
    versions = [since for since in _builders.get((domain, name), ()) if since <= version]
    return _builders[domain, name][max(versions)] if versions else None
