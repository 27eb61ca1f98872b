"""Operators that Python runs between programs: on sequences, optional values, strings, and rare element types.

    @hosted("SequenceAt")
    def element(node: Node, sequence: list[Any], position: Array) -> Any:
        return sequence[_number(position)]

A function gets the node and its inputs: an array, a list (a sequence), or None (an absent or empty optional value).
It returns the output, or a tuple of outputs. stages.py decides which nodes run so, and calls bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from taskc.onnx.foreign import RARE, is_rare
from taskc.operators.files import HOSTED
from taskc.operators.graph import Array, Node

Hosted: TypeAlias = Callable[..., Any]

_functions: dict[tuple[str, str], Hosted] = {}


def hosted(operator: str, domain: str = "") -> Callable[[Hosted], Hosted]:
    """Registers a function of an operator."""

    def register(function: Hosted) -> Hosted:
        _functions[domain, operator] = function
        return function

    return register


def function_of(node: Node) -> Hosted | None:
    key = node.domain, node.operator
    if key in HOSTED:
        import_module(f"{__package__}.{HOSTED[key]}")  # which registers its functions
    return _functions.get(key)


# Operators that move elements of any type: run on the elements' positions, they say where each goes.
MOVES = frozenset(
    "Compress Expand Flatten Gather GatherElements GatherND Identity Reshape Shape Size Slice Split Squeeze Tile"
    " Transpose Unsqueeze".split()
)


def makes_foreign(node: Node, constants: Mapping[str, Array]) -> bool:
    """Whether a node's attributes or constants name an element type that programs don't have."""
    if node.operator in ("CastLike", "QuantizeLinear") and is_rare(constants.get(node.inputs[-1])):
        return True
    number = node.attributes.get({"Cast": "to"}.get(node.operator, "output_dtype"))
    return isinstance(number, int) and number > 0 and _numpy_type(number) in _FOREIGN


_FOREIGN = (np.dtype(object), *RARE.values())


def _numpy_type(number: int) -> np.dtype[Any] | None:
    from taskc.onnx.serialized import (
        numpy_type,  # loads the package onnx, which a traced graph doesn't need
    )

    return numpy_type(number)


def widened(value: Any) -> Any:
    """An array of a rare type as one that programs compute with."""
    if not is_rare(value):
        return value
    name = value.dtype.name
    if "int" in name:
        return value.astype(np.uint8 if name[0] == "u" else np.int8)
    return value.astype(np.float32)


def _number(array: Array) -> int:
    return int(array.reshape(-1)[0])


# --- Sequences, and optional values -------------------------------------------------------------


@hosted("SequenceEmpty")
def empty(node: Node) -> list[Any]:
    return []


@hosted("SequenceConstruct")
def construct(node: Node, *elements: Array) -> list[Any]:
    return [*elements]


def _place(node: Node, position: Array, count: int) -> int:
    place = _number(position)
    if not -count <= place < count:
        raise node.error(f"its position {place} is outside of {count} elements")
    return place % count


@hosted("SequenceInsert")
def insert(node: Node, sequence: list[Any], tensor: Array, position: Array | None = None) -> Any:
    count = len(sequence)
    place = (
        count if position is None or _number(position) == count else _place(node, position, count)
    )
    return [*sequence[:place], tensor, *sequence[place:]]


@hosted("SequenceErase")
def erase(node: Node, sequence: list[Any], position: Array | None = None) -> list[Any]:
    place = _place(node, np.array(-1) if position is None else position, len(sequence))
    return [*sequence[:place], *sequence[place + 1 :]]


@hosted("SequenceAt")
def at(node: Node, sequence: list[Any], position: Array) -> Any:
    return sequence[_place(node, position, len(sequence))]


@hosted("SequenceLength")
def length(node: Node, sequence: list[Any]) -> Array:
    return np.array(len(sequence), np.int64)


@hosted("SplitToSequence")
def split(node: Node, x: Array, sizes: Array | None = None) -> list[Any]:
    axis = _attribute(node, "axis", 0)
    extent = x.shape[axis]
    if sizes is None:
        parts = np.split(x, extent, axis) if extent else []
        keeps = _attribute(node, "keepdims", 1)
        return [*parts] if keeps else [part.squeeze(axis) for part in parts]
    if sizes.ndim == 0:
        ends = [*range(_number(sizes), extent, _number(sizes))]
    else:
        *ends, last = np.cumsum(sizes).tolist() or [0]
        if last != extent or sizes.min(initial=0) < 0:
            raise node.error(f"its parts of {sizes.tolist()} don't add up to {extent}")
    return [*map(np.ascontiguousarray, np.split(x, ends, axis))]


@hosted("ConcatFromSequence")
def concat(node: Node, sequence: Sequence[Array]) -> Array:
    join = np.stack if _attribute(node, "new_axis", 0) else np.concatenate
    return join(sequence, axis=_attribute(node, "axis", 0))


@hosted("Concat")
def concat_tensors(node: Node, *tensors: Array) -> Array:
    return np.concatenate(tensors, axis=_attribute(node, "axis", 0))


def _attribute(node: Node, name: str, default: int) -> int:
    return int(node.attributes.get(name, default))  # type: ignore[call-overload, no-any-return]


@hosted("Identity")
@hosted("Optional")
def itself(node: Node, value: Any = None) -> Any:
    return value


@hosted("OptionalHasElement")
def has_element(node: Node, value: Any = None) -> Array:
    return np.array(value is not None)


@hosted("OptionalGetElement")
def get_element(node: Node, value: Any = None) -> Any:
    if value is None:
        raise node.error("its optional value has no element")
    return value


# --- Tensors ------------------------------------------------------------------------------------


@hosted("Where")
def where(node: Node, condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition, x, y)


@hosted("Equal")
def equal(node: Node, x: Array, y: Array) -> Any:
    return np.equal(widened(x), widened(y)).astype(bool)


@hosted("Unique")
def unique(node: Node, x: Array) -> tuple[Array, ...]:
    axis: Any = node.attributes.get("axis")
    wide = x.astype(np.float32) if x.dtype == ml_dtypes.bfloat16 else x
    y, first, inverse, counts = np.unique(wide, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not _attribute(node, "sorted", 1):
        order = np.argsort(first)
        y = np.take(y, order, axis or 0)
        first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
    return y.astype(x.dtype), first, inverse, counts


@hosted("Cast")
def cast(node: Node, x: Array) -> Any:
    return _cast(node, x, _numpy_type(_attribute(node, "to", 0)))


@hosted("CastLike")
def cast_like(node: Node, x: Array, like: Array) -> Any:
    return _cast(node, x, like.dtype)


def _cast(node: Node, x: Array, dtype: np.dtype[Any] | None) -> Any:
    if dtype is None:
        raise node.error("it names an element type that taskc doesn't have")
    if dtype.kind == "O":
        return np.array([_text(one) for one in x.flat], object).reshape(x.shape)
    if x.dtype == object:
        texts = [one.strip() for one in x.flat]
        kind = int if dtype.kind in "iu" else float
        return (
            np.array([kind(one) for one in texts], None if kind is int else np.float64)
            .astype(dtype)
            .reshape(x.shape)
        )
    if dtype.name == "float8_e8m0fnu":
        return _powers(x, str(node.attributes.get("round_mode", "up")))
    saturates = "float8" in dtype.name and _attribute(node, "saturate", 1)
    return _clipped(x, dtype) if saturates else x.astype(dtype)


def _text(one: Any) -> str:
    """An element as text, a float with eight digits as in ONNX Runtime."""
    is_float = isinstance(one, np.floating | float) or "float" in type(one).__name__
    if not is_float:
        return str(int(one)) if isinstance(one, np.bool_) else str(one)
    number = float(one)
    return str(one) if number != number or abs(number) == np.inf else f"{number:.8g}"


def _clipped(x: Array, dtype: np.dtype[Any]) -> Any:
    """Floats, each as the nearest of a type's finite ones."""
    limits: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    wide = x.astype(np.float64 if x.dtype == np.float64 else np.float32)
    return np.clip(wide, float(limits.min), float(limits.max)).astype(dtype)


def _powers(x: Array, mode: str) -> Array:
    """Absolute values as powers of two, rounded up, down or to the nearest."""
    fraction, exponent = np.frexp(np.abs(x.astype(np.float32)))  # the fraction is 0.5 to 1
    rises = fraction > 0.5 if mode == "up" else fraction >= (2 if mode == "down" else 0.75)
    powers = np.ldexp(np.float64(1), np.clip(exponent - 1 + rises, -127, 127))
    bits = np.where(x == 0, 0, np.log2(powers) + 127)
    return np.where(np.isnan(x), 255, bits).astype(np.uint8).view(ml_dtypes.float8_e8m0fnu)


@hosted("QuantizeLinear")
def quantize(node: Node, x: Array, scale: Array, zero: Array | None = None) -> Any:
    dtype = _numpy_type(_attribute(node, "output_dtype", 0)) if zero is None else zero.dtype
    assert dtype is not None
    scaled = x.astype(np.float32) / _parameter(node, x, scale).astype(np.float32)
    if "int" not in dtype.name:
        return _clipped(scaled, dtype)
    limits: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    origin = 0 if zero is None else _parameter(node, x, widened(zero)).astype(np.float32)
    return np.clip(np.rint(scaled) + origin, int(limits.min), int(limits.max)).astype(dtype)


def _parameter(node: Node, x: Array, parameter: Array) -> Array:
    """A scale or zero point as it is broadcast to x."""
    axis = _attribute(node, "axis", 1)
    if parameter.size == 1:
        return parameter.reshape(())
    if parameter.ndim == 1:
        return parameter.reshape([-1 if place == axis % x.ndim else 1 for place in range(x.ndim)])
    repeated = parameter.repeat(_attribute(node, "block_size", 1), axis)
    return repeated.take(range(x.shape[axis]), axis)
