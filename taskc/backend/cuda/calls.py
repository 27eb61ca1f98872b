"""Calls on a device, with arrays that are on it, or with CPU arrays that are copied there and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taskc.arrays.torch import empty_on
from taskc.backend.cuda.api import DeviceError
from taskc.backend.cuda.array import Array, Packed, asarray, empty, ordinal_of
from taskc.backend.cuda.context import context
from taskc.backend.cuda.copies import from_host, to_host
from taskc.backend.cuda.launch import Loaded
from taskc.backend.cuda.libraries import library_of
from taskc.backend.cuda.program import LoadedProgram
from taskc.backend.cuda.streams import Stream, current_stream
from taskc.backend.packing import packed
from taskc.ir import nodes as ir
from taskc.ir.nodes import Tensor
from taskc.ir.types import TensorType


class DeviceStream:
    """The device of a call's arrays, and the stream for the call.

    arrays  the call's device arrays
    """

    def __init__(self, arrays: Sequence[Any]) -> None:
        libraries = [library_of(one) for one in arrays if not isinstance(one, Array)]
        self.context = context(ordinal_of(arrays[0]))
        self.stream = current_stream(self.context, libraries[0] if libraries else "")

    @property
    def name(self) -> str:
        return f"CUDA device {self.context.ordinal}"

    def view(self, value: Any) -> Array:
        """Any library's array as a device array; the stream is ordered after that library's writes."""
        try:
            return asarray(value, stream=self.stream)
        except DeviceError:
            raise
        except RuntimeError as error:  # torch's error for a tensor that it doesn't export
            raise BufferError(str(error)) from error

    def holds(self, array: Array) -> bool:
        return array.memory.context is self.context

    def packed(self, array: Array, described: TensorType) -> Packed:
        """An array of bytes as a packed array of a sub-byte type."""
        return Packed(array.reshape((array.size,)), described)

    def empty(self, described: TensorType) -> Array:
        ordinal = self.context.ordinal
        return empty(described.shape, described.dtype, device=ordinal, stream=self.stream)

    def empty_tensor(self, described: TensorType) -> Any:
        """An uninitialized PyTorch tensor."""
        shape, dtype = described.shape, np.dtype(described.dtype.numpy)
        return empty_on(dtype, shape, self.context.ordinal, self.stream.number)

    def __enter__(self) -> None:
        self.stream.__enter__()

    def __exit__(self, *error: object) -> None:
        self.stream.__exit__(*error)


def run(
    loaded: Loaded | LoadedProgram, values: Sequence[Any], dimensions: dict[ir.Variable, int]
) -> None:
    """Run a call whose arguments are checked: its arrays are all on the device, or all on the CPU."""
    if any(isinstance(value, np.ndarray) for value in values):
        _run_copied(loaded, values, dimensions)
    else:
        _launch(loaded, values, dimensions, current_stream(loaded.context))


def _launch(
    loaded: Loaded | LoadedProgram,
    values: Sequence[Any],
    dimensions: dict[ir.Variable, int],
    stream: Stream,
) -> None:
    shapes = tuple([value.shape if isinstance(value, Array) else () for value in values])
    passed = [value.pointer if isinstance(value, Array) else value for value in values]
    arrays = [value for value in values if isinstance(value, Array)]
    for each in arrays:
        each.memory.used(stream)
    loaded.form(shapes, dimensions).launch(passed, stream, arrays)


def _run_copied(
    loaded: Loaded | LoadedProgram, values: Sequence[Any], dimensions: dict[ir.Variable, int]
) -> None:
    """Copy NumPy's arrays to the device, run, and copy back the arrays that were written. Waits for completion."""
    parameters, ordinal = loaded.parameters, loaded.context.ordinal
    stream = current_stream(loaded.context)
    with packed(parameters, values) as hosts:
        passed: list[Any] = []
        for parameter, host in zip(parameters, hosts, strict=True):
            if not isinstance(parameter, Tensor):
                passed.append(host)
                continue
            uploaded = empty(host.shape, host.dtype, device=ordinal, stream=stream)
            if parameter.role != "out":
                from_host(uploaded.pointer, host, stream)
            passed.append(uploaded)
        _launch(loaded, passed, dimensions, stream)
        stream.synchronize()
        for parameter, host, there in zip(parameters, hosts, passed, strict=True):
            if isinstance(parameter, Tensor) and parameter.role != "in":
                to_host(host, there.pointer, stream)
