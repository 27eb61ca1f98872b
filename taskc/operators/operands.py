"""Shared by several families of operators: operands converted for kernels, kernels of templates, and indices."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache
from math import prod
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

import taskc as tc
from taskc import DType, TensorType
from taskc.arrays.packed import memory_key
from taskc.ir.build import product
from taskc.ir.types import from_numpy
from taskc.kernels.signatures import wide
from taskc.lang.definition import Definition
from taskc.lang.sizes import Dimension, Scope, Size, are_surely_equal as are_equal, tracing
from taskc.lang.source import called_from
from taskc.operators.graph import Array
from taskc.operators.tensors import (
    Extent,
    Function,
    Kernel,
    Tensor,
    computed,
    computed_once,
    handle_of,
    reshaped,
)
from taskc.programs.rounding import NARROW
from taskc.programs.tracing import Computed, Element, TensorHandle

Template: TypeAlias = "Callable[..., Definition]"

_Made = TypeVar("_Made")

__all__ = ["are_equal", "element", "equals", "ones", "spliced", "total"]


def equals(one: Extent, other: Extent) -> bool:
    """Whether extents are equal, where what is built depends on it: the program may assume it (`Assumptions`).

    Use `are_equal` where sizes that are equal only at some calls may as well count as different.
    """
    try:
        return bool(one == other)
    except tc.CompileError:
        return False


def ones(shape: Sequence[Extent]) -> tuple[bool, ...]:
    """For each axis, whether it has one element."""
    return tuple([are_equal(extent, 1) for extent in shape])


@tc.function
def spliced(at: Computed, start: int, stop: int, parts: Computed) -> Computed:
    """An index with other parts in place of those from `start` up to `stop`."""
    return (*at[:start], *parts, *at[stop:])


@tc.function
def element(x: TensorHandle, once: tuple[bool, ...], at: Computed) -> Computed:
    """The element of an input that an index of the broadcast result reads.

    once  for each axis of the input, whether it has one element
    """
    return x[
        tuple(
            0 if one else place for one, place in zip(once, at[len(at) - len(once) :], strict=True)
        )
    ]


def total(terms: Sequence[Function]) -> Function:
    """The function that is the sum of several functions of one argument."""
    if len(terms) == 1:
        return terms[0]
    middle = len(terms) // 2
    left, right = total(terms[:middle]), total(terms[middle:])
    return tc.function(lambda at: left(at) + right(at))


def is_one(extent: Extent) -> bool:
    return isinstance(extent, int) and extent == 1


def size(extents: Iterable[Extent]) -> Extent:
    """The number of elements."""
    return prod(extents)


def repeated(x: TensorHandle) -> Function:
    """A function from an index of the broadcast result to the element of x."""
    once = ones(x.shape)
    return tc.function(lambda at: element(x, once, at))


def converted(x: TensorHandle, dtype: DType) -> TensorHandle:
    """The same numbers in another type."""
    if x.dtype is dtype:
        return x
    return computed(x.shape, lambda *at: x[at].to(dtype))


def narrowed(dtype: DType) -> Function:
    """Rounds a number, as a model or a user asks for: being bits for a moment hides that from fusion."""
    return tc.function(lambda number: number.to(dtype).bitcast(tc.u16).bitcast(dtype))


def converted_for_all(x: TensorHandle, dtype: DType) -> TensorHandle:
    """x in another type, computed once for all readers within the same body, whatever the shape of their view."""
    if x.dtype is dtype:
        return x

    def make() -> TensorHandle:
        if dtype not in NARROW:
            return converted(x, dtype)
        rounded = narrowed(dtype)
        return computed(x.shape, lambda *at: rounded(x[at]))

    return reshaped(made_for_all(x, dtype, make), *x.shape)


def made_for_all(x: TensorHandle, key: Hashable, make: Callable[[], _Made]) -> _Made:
    """The same of x's elements for all readers within the same body, whatever the shape of their view.

    key  distinguishes it from all else that is made of them
    """
    trace = x.trace
    view = trace.views.get(x.tensor)
    memory = x.tensor if view is None else view.of
    first = 0 if view is None else view.offset
    known, place = _made_for_all.setdefault(trace, {}), (memory, str(first), key, trace.written)
    elements = product(x.tensor.shape)
    size, made = known.get(place, (None, None))
    if size is None or not trace.are_equal(size, elements):
        made = make()
        known[place] = elements, made
    result: _Made = made
    return result


_made_for_all: WeakKeyDictionary[Scope, dict[object, tuple[Any, Any]]] = WeakKeyDictionary()


def constant_of(x: Array, function: Function, result: DType) -> Array:
    """A constant with a function applied to each element, now; once for all nodes that share its memory."""

    def body() -> TensorHandle:
        known = handle_of(x)
        return computed(x.shape, lambda *at: function(known[at]).to(result))

    trace = tracing.get()
    constants = {} if trace is None else _constants.setdefault(trace, {})
    key = memory_key(x), function, result
    if key not in constants:
        constants[key] = x, computed_once(body)
    return constants[key][1]


_constants: WeakKeyDictionary[Scope, dict[object, tuple[Array, Array]]] = WeakKeyDictionary()


@tc.function
def as_it_is(x: Element) -> Computed:
    return x


def widened(x: Tensor, dtype: DType) -> TensorHandle:
    """An operand converted to the type in which sums of `dtype` are accumulated."""
    if isinstance(x, np.ndarray) and from_numpy(x.dtype) is not wide(dtype):
        x = constant_of(x, as_it_is, wide(dtype))
    return converted(handle_of(x), wide(dtype))


_kernels: WeakKeyDictionary[Scope, dict[object, Kernel]] = WeakKeyDictionary()


def kernel_of(template: Template, *arguments: object, **options: object) -> Kernel:
    """The kernel of a template of the library; it is cached while one program is traced.

    Making a kernel takes milliseconds, and another program's may have been tuned since. A size of the program becomes a
    dimension of the kernel's own.
    """
    own: dict[str, Dimension] = {}

    def generic(value: Any) -> Any:
        match value:
            case Size():
                return own.setdefault(str(value), _dimension(len(own)))
            case tuple():
                return tuple(map(generic, value))
            case TensorType():
                return TensorType(value.dtype, generic(value.shape))
        return value

    arguments = generic(arguments)
    named = {name: generic(value) for name, value in options.items()}
    trace = tracing.get()
    known = {} if trace is None else _kernels.setdefault(trace, {})
    key = template, arguments, tuple(sorted(named.items()))
    if key not in known:
        token = tracing.set(None)  # the template must not add assumptions to the program
        try:
            with called_from(None):  # other nodes may share the kernel
                known[key] = template(*arguments, machine=tc.machine(), **named)
        finally:
            tracing.reset(token)
    return known[key]


@cache
def _dimension(number: int) -> Dimension:
    return tc.dim(f"n{number}")
