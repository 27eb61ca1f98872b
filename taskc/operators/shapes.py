"""Operators that read shapes or change them, without moving elements.

Operators that generate elements: constants, ranges, masks, one-hot vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

import numpy as np

import taskc as tc
from taskc import DType, boolean, i64
from taskc.ir.types import from_numpy
from taskc.lang.sizes import Size, quotient
from taskc.operators.call import Call, Made, operator
from taskc.operators.graph import Array
from taskc.operators.operands import are_equal, equals, spliced
from taskc.operators.tensors import Extent, Held, State, Tensor, handle_of, reshaped
from taskc.programs.tracing import Computed, Element


def known_integers(numbers: Sequence[Extent], shape: tuple[int, ...]) -> Array:
    """Integers or sizes as an array."""
    array: Array = np.empty(len(numbers), object)
    array[:] = numbers
    has_sizes = any(isinstance(number, Size) for number in numbers)
    return array.reshape(shape) if has_sizes else array.astype(np.int64).reshape(shape)


@operator("Identity")
def identity(call: Call) -> Held:
    x = call.inputs[0]
    return x if isinstance(x, State) else call.given(0)


@operator("Shape")
def shape(call: Call) -> Made:
    extents = call.shape(0)[call.attribute("start", 0) : call.attribute("end")]
    return known_integers(extents, (len(extents),))


@operator("Size")
def size(call: Call) -> Made:
    return known_integers([prod(call.shape(0))], ())


@operator("Reshape")
def reshape(call: Call) -> Made:
    x, wanted = call.given(0), call.integers(1)
    shape: list[Extent] = []
    for axis, extent in enumerate(wanted):
        if not call.attribute("allowzero", 0) and equals(extent, 0):
            if axis >= len(x.shape):
                raise call.node.error(f"it keeps axis {axis} of an input of {len(x.shape)}")
            extent = x.shape[axis]
        shape.append(extent)
    open_axes = [axis for axis, extent in enumerate(shape) if equals(extent, -1)]
    if len(open_axes) > 1:
        raise call.node.error(f"its shape {wanted} leaves several extents open")
    for axis in open_axes:
        shape[axis] = _rest(call, x.shape, shape[:axis] + shape[axis + 1 :])
    if not are_equal(prod(shape), prod(x.shape)):
        raise call.node.error(f"{[*x.shape]} can't become {shape}: it has other elements")
    return reshaped(x, *shape)


def _rest(call: Call, whole: Sequence[Extent], others: Sequence[Extent]) -> Extent:
    """The extent that remains where the others are known."""
    left, parts = [*whole], []
    # Equal factors are cancelled first: a product of sums is expanded, and can't be divided.
    for other in others:
        same = [at for at, extent in enumerate(left) if are_equal(extent, other)]
        if same:
            del left[same[0]]
        else:
            parts.append(other)
    missing = None if are_equal(prod(others), 0) else quotient(prod(left), prod(parts))
    if missing is None:
        raise call.node.error(f"{[*whole]} can't be divided into parts of {prod(others)}")
    return missing


@operator("Flatten")
def flatten(call: Call) -> Made:
    x, axis = call.given(0), call.attribute("axis", 1)
    rank = len(x.shape)
    axis = rank if axis == rank else call.axis_of(axis, rank)
    return reshaped(x, *(prod(x.shape[:axis]), prod(x.shape[axis:])))


def _axes(call: Call) -> list[Extent] | None:
    """The axes: an attribute before opset 13, and an input since then."""
    if call.node.version < 13:
        named: list[Extent] | None = call.attribute("axes")
        return named
    return call.integers(1) if call.has(1) else None


@operator("Squeeze")
def squeeze(call: Call) -> Made:
    x, named = call.given(0), _axes(call)
    rank = len(x.shape)
    if named is None:
        dropped = tuple([axis for axis in range(rank) if equals(x.shape[axis], 1)])
    else:
        dropped = call.axes_of(named, rank)
    for axis in dropped:
        if not equals(x.shape[axis], 1):
            raise call.node.error(f"it drops axis {axis}, which has {x.shape[axis]} elements")
    return reshaped(x, *[extent for axis, extent in enumerate(x.shape) if axis not in dropped])


@operator("Unsqueeze")
def unsqueeze(call: Call) -> Made:
    x, named = call.given(0), _axes(call) or []
    rank = len(x.shape) + len(named)
    added, rest = call.axes_of(named, rank), iter(x.shape)
    return reshaped(x, *[1 if axis in added else next(rest) for axis in range(rank)])


def filled(call: Call, shape: Sequence[Extent], number: float, dtype: DType) -> Tensor:
    """A tensor whose elements are all one number."""
    if any(isinstance(extent, int) and extent < 0 for extent in shape):
        raise call.node.error(f"its shape {[*shape]} has a negative extent")
    if not dtype.is_float and call.by_python:
        return call.compute(shape, lambda *at: number, dtype)
    call.require_kernel()
    return call.compute(shape, lambda *at: dtype(number))


@operator("ConstantOfShape")
def constant_of_shape(call: Call) -> Made:
    value = call.attribute("value", np.zeros(1, np.float32))
    return filled(call, call.integers(0), value.item(), from_numpy(value.dtype))


@operator("Range")
def range_(call: Call) -> Made:
    start, limit, delta = map(call.single, range(3))
    dtype = call.dtype(0)
    if isinstance(limit, Size) or isinstance(start, Size):
        if delta != 1:
            raise call.node.error("sizes of a call are counted by steps of 1")
        first = start
        call.require_kernel()
        count = limit - start if start < limit else 0
        return call.compute((count,), lambda i: i + first)
    if delta == 0:
        raise call.node.error("its step is 0")
    count = max(0, ceil((limit - start) / delta))
    first, step = start, delta
    if call.by_python:
        return call.compute((count,), lambda i: first + i * step)
    return call.compute((count,), lambda i: dtype(first) + i.to(dtype) * dtype(step))


@operator("EyeLike")
def eye_like(call: Call) -> Made:
    call.require_kernel()
    if len(call.shape(0)) != 2:
        raise call.node.error(f"its input has {len(call.shape(0))} dimensions, and not 2")
    dtype, diagonal = call.attribute_type("dtype", call.dtype(0)), call.attribute("k", 0)
    if dtype is boolean:
        return call.compute(call.shape(0), lambda i, j: j - i == diagonal)
    return call.compute(call.shape(0), lambda i, j: dtype(1) if j - i == diagonal else dtype(0))


@operator("OneHot", since=9)
def one_hot(call: Call) -> Made:
    call.require_kernel()
    (depth,) = (int(call.known(1).item()),)
    places, values = call.tensor(0), call.tensor(2)
    rank = len(places.shape) + 1
    axis = call.axis(rank, -1)
    shape = (*places.shape[:axis], depth, *places.shape[axis:])

    def value(*at: Element) -> Computed:
        place = places[spliced(at, axis, axis + 1, ())].to(i64)
        return values[1] if (place + depth if place < 0 else place) == at[axis] else values[0]

    return call.compute(shape, tc.function(value))


@operator("Trilu", since=14)
def trilu(call: Call) -> Made:
    call.require_kernel()
    x, is_upper = call.tensor(0), bool(call.attribute("upper", 1))
    first = int(call.known(1).item()) if call.has(1) else 0
    dtype = x.dtype
    zero = False if dtype is boolean else 0
    if is_upper:
        return call.compute(x.shape, lambda *at: x[at] if at[-1] - at[-2] >= first else zero)
    return call.compute(x.shape, lambda *at: x[at] if at[-1] - at[-2] <= first else zero)


@operator("Dropout")
def dropout(call: Call) -> Made:
    ratio = float(call.known(1).item()) if call.has(1) else call.attribute("ratio", 0.5)
    wants_mask = len(call.node.outputs) > 1 and call.node.outputs[1] != ""
    if call.has(2) and bool(call.known(2).item()) and ratio > 0:
        return _dropped(call, ratio, wants_mask)
    x = call.given(0)
    if not wants_mask:
        return x
    call.require_kernel()
    dtype = boolean if call.node.version >= 10 else call.dtype(0)
    return x, filled(call, x.shape, True if dtype is boolean else 1, dtype)


def _dropped(call: Call, ratio: float, wants_mask: bool) -> Made:
    """Dropout in training: a mask drawn from the seed by the Mersenne Twister, as in ONNX's reference."""
    call.require_kernel()
    seed, x = call.attribute("seed"), call.tensor(0)
    if seed is None:
        raise call.node.error("it drops elements at random, and has no seed")
    if not all(isinstance(extent, int) for extent in x.shape):
        raise call.node.error("it drops elements of a shape that is known only at a call")
    drawn = np.random.RandomState(seed).uniform(size=x.shape)
    stays = handle_of(drawn >= ratio)
    factor = 1 / (1 - ratio)
    kept = call.compute(x.shape, lambda *at: x[at] * factor if stays[at] else 0)
    return (kept, stays) if wants_mask else kept
