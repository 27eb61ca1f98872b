"""Where a model's programs run: on the processor, or on a CUDA device.

On a device NumPy's arrays are copied there, and the outputs back. Where any input lies on it, all outputs stay there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from taskc.arrays.arguments import ArgumentError
from taskc.arrays.device import AnyArray
from taskc.arrays.dlpack import as_array, is_on_cuda
from taskc.errors import CompileError
from taskc.operators.results import on_host
from taskc.runtime import driver


class Place(Protocol):
    """Where programs run.

    name      the target
    machine   what programs are made for; None is the processor at hand
    view      an array that is given, as it is looked at; None of what is none
    call      a program's outputs
    returned  a model's outputs as the caller gets them, who gave these inputs
    """

    @property
    def name(self) -> str: ...
    @property
    def machine(self) -> str | None: ...
    def view(self, given: Any) -> AnyArray | None: ...
    def call(self, program: Any, arguments: Sequence[AnyArray]) -> Any: ...
    def returned(self, made: list[Any], given: Iterable[AnyArray]) -> list[Any]: ...


class Processor:
    name, machine = "cpu", None

    def view(self, given: Any) -> AnyArray | None:
        if isinstance(given, np.ma.MaskedArray):
            return None
        if isinstance(given, (np.ndarray, np.generic)):
            return np.asarray(given)
        if is_on_cuda(given):
            raise ArgumentError("it lies on a device, and the model runs on the processor")
        if not hasattr(given, "__dlpack__"):
            return None
        try:
            return as_array(given)
        except (BufferError, RuntimeError, ValueError) as error:
            raise ArgumentError(f"it can't be read through DLPack: {error}") from error

    def call(self, program: Any, arguments: Sequence[AnyArray]) -> Any:
        return program(*arguments)

    def returned(self, made: list[Any], given: Iterable[AnyArray]) -> list[Any]:
        return made


class CudaDevice:
    """The first device."""

    name = "cuda"

    def __init__(self) -> None:
        from taskc import device

        self._device = device
        self.machine: str | None = device.context(0).target

    def view(self, given: Any) -> AnyArray | None:
        return self._device.asarray(given) if is_on_cuda(given) else PROCESSOR.view(given)

    def call(self, program: Any, arguments: Sequence[AnyArray]) -> Any:
        if not arguments:
            return driver.call(program, (), {}, self.name)
        return program(*map(self._here, arguments))

    def returned(self, made: list[Any], given: Iterable[AnyArray]) -> list[Any]:
        if all(isinstance(array, np.ndarray) for array in given):
            return [on_host(array) for array in made]
        return [self._here(array) for array in made]

    def _here(self, array: Any) -> Any:
        return self._device.array(array) if isinstance(array, np.ndarray) else array


PROCESSOR: Place = Processor()


def place_of(target: str) -> Place:
    if target == "cpu":
        return PROCESSOR
    if target == "cuda":
        return CudaDevice()
    raise CompileError(f"models don't run on {target!r}", hint="there is 'cpu', and 'cuda'")
