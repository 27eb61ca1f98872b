"""Operands of candidates: arrays from a folder, converted for a definition's parameters, and expected results.

A folder has `input_0.npy` and so on, one for each parameter that isn't `tc.out`, in order: the argument of `pack` for
parameters that are packed, otherwise an array of the parameter's own shape. `output_0.npy` and so on are the expected
results, one for each written parameter, in order: in float64, or integers that must match exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from taskc.arrays.packed import Packed, aligned, empty, pack
from taskc.dataclass import dataclass
from taskc.ir import nodes as ir
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Tensor
from taskc.ir.rewrite import walk
from taskc.ir.signature import Parameter, inputs_of, is_output
from taskc.ir.types import DType, TensorType
from taskc.lang.definition import Definition
from taskc.runtime.driver import signature

Array: TypeAlias = "np.ndarray[Any, Any]"

_NOT_WRITTEN = 0xFF  # of every byte: NaN, or -1


def write_operands(folder: Path, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Write arrays to a folder, from which workers read them."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, arrays in (("input", inputs), ("output", outputs)):
        for number, array in enumerate(arrays):
            np.save(folder / f"{kind}_{number}.npy", np.asarray(array))


@dataclass(frozen=True, slots=True)
class Operands:
    """Arguments of a call: inputs in order, and memory for the outputs."""

    inputs: tuple[Any, ...]
    outputs: tuple[Array, ...]

    @property
    def nbytes(self) -> int:
        return sum(np.asarray(value).nbytes for value in (*self.inputs, *self.outputs))

    def call_of(self, definition: Definition) -> Callable[[], object]:
        if not self.outputs:
            return partial(definition, *self.inputs)
        # The compiled entry accepts a single output; a tuple takes the path through Python.
        out = self.outputs[0] if len(self.outputs) == 1 else self.outputs
        return partial(definition, *self.inputs, out=out)

    def copy(self) -> Operands:
        return Operands(tuple(map(_copy, self.inputs)), tuple(map(_copy, self.outputs)))


def operands_of(definition: Definition, folder: Path) -> Operands:
    """A definition's operands: inputs packed where parameters have layouts, and outputs filled with a marker."""
    inputs = []
    for number, parameter in enumerate(inputs_of(definition.ir.parameters)):
        array = np.load(folder / f"input_{number}.npy").view(parameter.dtype.numpy)
        inputs.append(
            _placed(definition, parameter, array) if isinstance(parameter, Tensor) else array[()]
        )
    bound = signature(definition).bind(inputs, {})
    outputs = []
    for output in definition.ir.parameters:
        if isinstance(output, Tensor) and is_output(output):
            shape = tuple([extent_value(n, bound.dimensions) for n in output.argument_shape])
            memory = empty(TensorType(output.dtype, shape, output.layout))
            np.asarray(memory).reshape(-1).view(np.uint8).fill(_NOT_WRITTEN)
            outputs.append(memory)
    return Operands(tuple(inputs), tuple(outputs))


def _placed(definition: Definition, parameter: Tensor, array: Array) -> Array:
    placed: Array
    if parameter.name in definition.packs or parameter.dtype.is_sub_byte:
        placed = definition.pack(array, parameter.name)
        return placed
    if parameter.layout is not None:
        return pack(array, TensorType(parameter.dtype, array.shape, parameter.layout))
    placed = _copy(array)
    return placed


def _copy(value: Any) -> Any:
    """A copy that starts at a cache line."""
    if not isinstance(value, np.ndarray):
        return value
    copied = aligned(np.empty, value.size, value.dtype).reshape(value.shape).view(type(value))
    np.copyto(np.asarray(copied), np.asarray(value))
    return copied


# --- Results checked against expected ones ------------------------------------------------------


# Allowed errors in units of the last bit. A few roundings cost a few units, and a sum of k numbers about the root of k;
# Winograd's sums of 4608 numbers were off by up to 540. One number missing from such a sum is an error of 1%, far above
# the limit, except for narrow types.
_OF_ROUNDINGS = 16
_OF_SUMS, _OF_NARROW_SUMS = 1024, 256
_MAX_TOLERANCE = 0.9  # an output of zeros is off by 1 or more


def worst_error(definition: Definition, operands: Operands, folder: Path) -> tuple[float, float]:
    """After a call: the error of the worst result, and its tolerance.

    Both are relative to the root mean square of the expected result.
    """
    errors = [
        (_error(result, np.load(folder / f"output_{number}.npy")), tolerance(definition, dtype))
        for number, (result, dtype) in enumerate(results_of(definition, operands))
    ]
    return max(errors, key=lambda pair: pair[0] - pair[1])


def results_of(definition: Definition, operands: Operands) -> Iterator[tuple[Array, DType]]:
    """The results of a call in the order of parameters, as unpacked arrays."""
    for parameter, value in values_of(definition, operands):
        if isinstance(parameter, Tensor) and parameter.role != "in":
            yield value.unpack() if isinstance(value, Packed) else value, parameter.dtype


def values_of(definition: Definition, operands: Operands) -> Iterator[tuple[Parameter, Any]]:
    """The parameters in order, each with its argument."""
    given, made = iter(operands.inputs), iter(operands.outputs)
    for parameter in definition.ir.parameters:
        yield parameter, next(made if is_output(parameter) else given)


def tolerance(definition: Definition, dtype: DType) -> float:
    """The error that a correct result of a type may have, by the types in which the definition adds."""
    if not dtype.is_float:
        return 0.0
    added, rounded = set[DType](), {dtype}
    for kernel in definition.kernels:
        for node in walk(kernel.ir.body):
            match node:
                case ir.Binary(operator="+" | "-") | ir.Fused():
                    added.add(node.dtype)
                case ir.Reduce(operator="+" | ir.Combine()) | ir.Scan(operator="+" | ir.Combine()):
                    added |= {tensor.dtype for tensor in node.targets}
                case ir.Atomic(operator="+", tensor=tensor):
                    added.add(tensor.dtype)
                case ir.Mma(accumulator=tensor, by=by):
                    added.add(tensor.dtype)
                    rounded |= {by} if by else set()
                case _:  # it doesn't add
                    pass
    narrow = {dtype for dtype in added if dtype.bits < 32}
    allowed = (
        _OF_ROUNDINGS * _last_bit(rounded),
        _OF_SUMS * _last_bit(added - narrow),
        _OF_NARROW_SUMS * _last_bit(narrow),
    )
    return min(_MAX_TOLERANCE, max(allowed))


def _last_bit(dtypes: set[DType]) -> float:
    """Machine epsilon of the narrowest float type given."""
    return max([2.0**-dtype.mantissa_bits for dtype in dtypes if dtype.is_float], default=0.0)


def _error(result: Array, expected: Array) -> float:
    if result.shape != expected.shape:
        return float("inf")
    got, wanted = result.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(wanted)
    if not np.array_equal(got[~finite], wanted[~finite], equal_nan=True):
        return float("inf")
    off = np.abs(got[finite] - wanted[finite])
    if off.size == 0:
        return 0.0
    scale = float(np.sqrt(np.mean(np.square(wanted[finite])))) or 1.0
    worst = float(np.max(off)) / scale
    return worst if worst == worst else float("inf")
