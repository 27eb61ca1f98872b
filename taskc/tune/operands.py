"""What a candidate is called with: arrays from a folder, as its parameters take them, and what should come out.

A folder has `input_0.npy` and so on, one for each parameter that isn't `tc.out`, in order: what `pack` takes where
the definition says what a parameter is packed from, else an array of the parameter's own shape. `output_0.npy` and so
on are the results, one for each parameter that is written, in order: in float64, or integers that are met exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from taskc.driver import signature
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Tensor
from taskc.ir.signature import inputs_of, is_output
from taskc.ir.types import DType, TensorType
from taskc.lang.definition import Definition
from taskc.packed import Packed, aligned, empty, pack

Array: TypeAlias = "np.ndarray[Any, Any]"

_NOT_WRITTEN = 0xFF  # each byte: NaN, or -1


def write_operands(folder: Path, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Puts arrays into a folder, from which workers take them."""
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
        # Compiled code takes a single output as it is, and leaves a tuple to Python.
        out = self.outputs[0] if len(self.outputs) == 1 else self.outputs
        return partial(definition, *self.inputs, out=out)

    def copy(self) -> Operands:
        return Operands(tuple(map(_copy, self.inputs)), tuple(map(_copy, self.outputs)))


def operands_of(definition: Definition, folder: Path) -> Operands:
    """A definition's operands: packed where parameters have layouts, and outputs that aren't written yet."""
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
    if parameter.name in definition.packs:
        return definition.pack(array, parameter.name)
    if parameter.layout is not None:
        return pack(array, TensorType(parameter.dtype, array.shape, parameter.layout))
    made: Array = _copy(array)
    return made


def _copy(value: Any) -> Any:
    """Memory of its own, which begins where a cache line does."""
    if not isinstance(value, np.ndarray):
        return value
    made = aligned(np.empty, value.size, value.dtype).reshape(value.shape).view(type(value))
    np.copyto(np.asarray(made), np.asarray(value))
    return made


def worst_error(definition: Definition, operands: Operands, folder: Path) -> tuple[float, float]:
    """After a call: how far results are from what should come out, and how far they may be.

    Both are relative to the root mean square of what should come out; of several results, what is worst.
    """
    found = [
        (_error(result, np.load(folder / f"output_{number}.npy")), tolerance(dtype))
        for number, (result, dtype) in enumerate(results_of(definition, operands))
    ]
    return max(found, key=lambda pair: pair[0] - pair[1])


def results_of(definition: Definition, operands: Operands) -> Iterator[tuple[Array, DType]]:
    """What a call has written, in the order of the parameters, elements in their usual order."""
    given, made = iter(operands.inputs), iter(operands.outputs)
    for parameter in definition.ir.parameters:
        value = next(made if is_output(parameter) else given)
        if isinstance(parameter, Tensor) and parameter.role != "in":
            yield value.unpack() if isinstance(value, Packed) else value, parameter.dtype


def tolerance(dtype: DType) -> float:
    """What a sum of some thousand products, which was made in f32 or wider, may be off by.

    Products of random signs are as large as the root of their number, and so are their errors.
    """
    if not dtype.is_float:
        return 0.0
    return float(2.0**-dtype.mantissa_bits) * (256 if dtype.bits >= 32 else 16)


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
