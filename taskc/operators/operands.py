"""Operands of the library's kernels: inputs as handles, conversions, and kernels from templates.

Functions shared by several families of operators: axes, and shapes broadcast as NumPy does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from math import prod
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

import taskc as tc
from taskc import DType, TensorType
from taskc.ir.build import product
from taskc.ir.types import from_numpy
from taskc.kernels.signatures import wide
from taskc.lang.definition import Definition
from taskc.lang.sizes import Dimension, Scope, Size, are_surely_equal as are_equal, tracing
from taskc.lang.source import called_from
from taskc.operators.call import Call
from taskc.operators.graph import Array
from taskc.operators.tensors import (
    Extent,
    Function,
    Kernel,
    Shape,
    Tensor,
    computed,
    handle_of,
    now,
    reshaped,
)
from taskc.programs.tracing import Computed, Element, TensorHandle

Template: TypeAlias = "Callable[..., Definition]"

__all__ = [
    "ELEMENT_TYPES", "are_equal", "axes_of", "axis_of", "broadcast", "element", "equals", "ones", "spliced", "total",
]  # fmt: skip

# By the numbers that models use.
ELEMENT_TYPES: dict[int, DType] = {
    1: tc.f32, 2: tc.u8, 3: tc.i8, 4: tc.u16, 5: tc.i16, 6: tc.i32, 7: tc.i64, 9: tc.boolean,
    10: tc.f16, 11: tc.f64, 12: tc.u32, 13: tc.u64, 16: tc.bf16, 17: tc.f8e4m3, 19: tc.f8e5m2,
}  # fmt: skip


def axis_of(call: Call, axis: Extent, rank: int) -> int:
    """The number of an axis, which may be counted from the end."""
    if not -rank <= axis < rank:
        raise call.node.error(f"there is no axis {axis} in {rank} dimensions")
    return int(axis) % rank


def axes_of(call: Call, axes: Sequence[Extent], rank: int) -> tuple[int, ...]:
    """The numbers of axes, each named once, in the order in which they are named."""
    numbers = tuple([axis_of(call, axis, rank) for axis in axes])
    if len({*numbers}) < len(numbers):
        raise call.node.error(f"it names an axis twice: {list(axes)}")
    return numbers


def equals(one: Extent, other: Extent) -> bool:
    """Whether extents are equal, where what is built depends on it: the program may assume it (`Assumptions`).

    Use `are_equal` where sizes that are equal only at some calls may as well count as different.

    """
    try:
        return bool(one == other)
    except tc.CompileError:
        return False


def broadcast(call: Call, *shapes: Sequence[Extent]) -> Shape:
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
                raise call.node.error(f"the shapes {text} can't be broadcast together")
    return tuple(result)


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


def tensors(call: Call, count: int) -> Sequence[Any]:
    """The first inputs of a node that needs kernels: each a handle, or None if absent."""
    call.require_kernel()
    return tuple([call.tensor(place) if call.has(place) else None for place in range(count)])


def element_type(call: Call, number: int) -> DType:
    """The element type that a number in an attribute names."""
    if number not in ELEMENT_TYPES:
        raise call.node.error(f"it names the element type {number}, which taskc doesn't have")
    return ELEMENT_TYPES[number]


def wants(call: Call, place: int) -> bool:
    """Whether the model uses this output."""
    return place < len(call.node.outputs) and call.node.outputs[place] != ""


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


def converted_for_all(x: TensorHandle, dtype: DType) -> TensorHandle:
    """The same, computed once for all readers within the same body, whatever the shape of their view."""
    if x.dtype is dtype:
        return x
    trace = x.trace
    view = trace.views.get(x.tensor)
    memory = x.tensor if view is None else view.of
    first = 0 if view is None else view.offset
    known, key = _conversions.setdefault(trace, {}), (memory, str(first), dtype, trace.written)
    conversion = known.get(key)
    if conversion is None or not trace.are_equal(
        product(conversion.tensor.shape), product(x.tensor.shape)
    ):
        conversion = known[key] = converted(x, dtype)
    return reshaped(conversion, *x.shape)


_conversions: WeakKeyDictionary[Scope, dict[object, TensorHandle]] = WeakKeyDictionary()


def constant_of(x: Array, function: Function, result: DType) -> Array:
    """A constant with a function applied to each element, now."""
    dtype = from_numpy(x.dtype)
    elements: Array = now(lambda: _of_elements(function, dtype, result)(x.reshape(-1)))
    return reshaped(elements, *x.shape)


@cache
def _of_elements(function: Function, dtype: DType, result: DType) -> tc.ProgramDefinition:
    n = tc.dim("n")
    return tc.trace(
        "constant", {"x": dtype[n]}, lambda x: computed((n,), lambda i: function(x[i]).to(result))
    )


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
