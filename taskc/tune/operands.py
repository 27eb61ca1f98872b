"""What a candidate is called with: arrays from a folder, as its parameters take them, and what should come out.

A folder has `input_0.npy` and so on, one for each parameter that isn't `tc.out`, in order: what `pack` takes where
the definition says what a parameter is packed from, else an array of the parameter's own shape. `output_0.npy` and so
on are the results, one for each parameter that is written, in order: in float64, or integers that are met exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from taskc.arrays.packed import aligned, empty, pack
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Tensor
from taskc.ir.signature import inputs_of, is_output
from taskc.ir.types import TensorType
from taskc.lang.definition import Definition
from taskc.runtime.driver import signature

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
    made: Array
    if parameter.name in definition.packs or parameter.dtype.is_sub_byte:
        made = definition.pack(array, parameter.name)
        return made
    if parameter.layout is not None:
        return pack(array, TensorType(parameter.dtype, array.shape, parameter.layout))
    made = _copy(array)
    return made


def _copy(value: Any) -> Any:
    """Memory of its own, which begins where a cache line does."""
    if not isinstance(value, np.ndarray):
        return value
    made = aligned(np.empty, value.size, value.dtype).reshape(value.shape).view(type(value))
    np.copyto(np.asarray(made), np.asarray(value))
    return made
