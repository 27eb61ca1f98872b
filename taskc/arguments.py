"""What a kernel is called with: which argument is which parameter's, and whether it fits.

Everything is checked before anything runs. What fits comes back as a `Bound`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from taskc import dlpack
from taskc.ir import nodes as ir
from taskc.ir.program import Program
from taskc.ir.rounding import as_storage
from taskc.ir.signature import (
    MatchError,
    Parameter,
    inputs_of,
    is_output,
    match,
    misfit,
    named_type,
    outputs_of,
)
from taskc.ir.types import DType, TensorType, from_numpy
from taskc.packed import Packed

Array: TypeAlias = "np.ndarray[Any, Any]"

_PACKAGE = str(Path(__file__).parent)
_OVERLAP_WORK = 10_000  # steps that the exact test of overlap may take, of strided arrays


class ArgumentError(TypeError):
    """An argument of a call doesn't fit the kernel's parameter."""


class CopyWarning(UserWarning):
    """An input is copied at each call, since its elements aren't where the kernel expects them."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Arguments that fit a kernel.

    values      one for each parameter, outputs too: contiguous arrays, and scalars of the
                parameter's storage type
    dimensions  what the symbolic dimensions are
    returned    what the call returns: nothing, an output, or a tuple of them
    """

    values: tuple[Any, ...]
    dimensions: dict[ir.Variable, int]
    returned: Any


class Signature:
    """How a kernel or a program is called: see `taskc.ir.signature`."""

    def __init__(self, called: ir.Kernel | Program) -> None:
        self.name = f"{called.name}()"
        self.parameters = called.parameters
        self.inputs = inputs_of(called.parameters)
        self.outputs = outputs_of(called.parameters)

    def bind(self, args: Sequence[Any], keywords: dict[str, Any]) -> Bound:
        """The arguments of a call, checked; an `ArgumentError` names the parameter."""
        try:
            given = match(self.name, self.parameters, args, keywords)
        except MatchError as error:
            raise ArgumentError(str(error)) from None
        call = _Call(self.name)
        for item in (*self.inputs, *self.outputs):
            if item.name in given:
                call.take(item, given[item.name])
        for output in self.outputs:
            if output.name not in given:
                call.allocate(output)
                given[output.name] = call.values[output.name]
        call.check_overlap(self.parameters)
        call.copy_what_is_scattered()
        returned = tuple([given[output.name] for output in self.outputs])
        return Bound(
            tuple([call.values[item.name] for item in self.parameters]),
            call.dimensions,
            None if not returned else returned[0] if len(returned) == 1 else returned,
        )


@dataclass(slots=True)
class _Call:
    """The arguments of one call, as far as they have been looked at."""

    kernel: str
    values: dict[str, Any] = field(default_factory=dict)
    dimensions: dict[ir.Variable, int] = field(default_factory=dict)
    told_by: dict[ir.Variable, str] = field(default_factory=dict)
    scattered: list[str] = field(default_factory=list)

    def fail(self, parameter: Parameter, problem: str) -> ArgumentError:
        kind = "output" if is_output(parameter) else "argument"
        return ArgumentError(f"{self.kernel}: {kind} '{parameter.name}' {problem}")

    def take(self, parameter: Parameter, value: Any) -> None:
        if isinstance(parameter, ir.Variable):
            self.values[parameter.name] = self._scalar(parameter, value)
            return
        if isinstance(value, Packed):
            self._packed(parameter, value)
            return
        array = self._array(parameter, value)
        if array.dtype != parameter.dtype.numpy or array.ndim != len(parameter.shape):
            raise self._misfit(parameter, array)
        for extent, size in zip(parameter.shape, array.shape, strict=True):
            self._extent(parameter, extent, size, array)
        is_placed = array.flags.c_contiguous and array.flags.aligned
        if parameter.role != "in":
            if not array.flags.writeable:
                raise self.fail(parameter, "is written in place, and this array is read-only")
            if not is_placed:
                raise self.fail(
                    parameter,
                    "is written in place, so it must be contiguous and row-major; this array has"
                    f" the shape {array.shape} and strides of {array.strides} bytes",
                )
        elif not is_placed:
            self.scattered.append(parameter.name)
        self.values[parameter.name] = array

    def _packed(self, parameter: ir.Tensor, value: Packed) -> None:
        """An array that has been put into the parameter's layout before."""
        given = value.type
        fits = given.dtype is parameter.dtype and given.layout == parameter.layout
        if not fits or len(given.shape) != len(parameter.shape):
            laid = f", laid out as {parameter.layout}" if parameter.layout else ""
            expected = f"{_shown(parameter.dtype, parameter.shape)}{laid}"
            raise self.fail(parameter, f"must be {expected}, not an array packed as {given}")
        if parameter.role != "in":
            raise self.fail(parameter, "is written in place, and a packed array can't be")
        for extent, size in zip(parameter.shape, given.shape, strict=True):
            self._extent(parameter, extent, size, given)
        self.values[parameter.name] = value

    def _array(self, parameter: ir.Tensor, value: Any) -> Array:
        """The argument as an array of the same memory."""
        if type(value) is np.ndarray:  # asking for more loads NumPy's masked arrays
            return value
        if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
            return np.asarray(value)
        on_gpu = "lies in a GPU's memory, and taskc has no CUDA target yet; pass it as a CPU array"
        if hasattr(value, "__cuda_array_interface__"):
            raise self.fail(parameter, on_gpu)
        if not hasattr(value, "__dlpack__") or isinstance(value, np.ma.MaskedArray):
            expected = f"{_shown(parameter.dtype, parameter.shape)}, as a NumPy or DLPack array"
            raise self.fail(parameter, f"must be {expected}, not {_kind(value)}")
        try:
            if not dlpack.is_on_cpu(value):
                raise self.fail(parameter, on_gpu)
            return dlpack.as_array(value)
        except (BufferError, RuntimeError, ValueError) as error:
            raise self.fail(parameter, f"can't be read through DLPack: {error}") from error

    def _extent(
        self,
        parameter: ir.Tensor,
        extent: int | ir.Expression,
        size: int,
        array: Array | TensorType,
    ) -> None:
        if isinstance(extent, ir.Variable):
            if extent not in self.dimensions:
                self.dimensions[extent] = size
                self.told_by[extent] = parameter.name
            if size % extent.multiple:
                reason = f"with {extent.name} a multiple of {extent.multiple}"
                raise self._misfit(parameter, array, reason)
            if self.dimensions[extent] != size:
                source = self.told_by[extent]
                told = "" if source == parameter.name else f" (from '{source}')"
                reason = f"with {extent.name} = {self.dimensions[extent]}{told}"
                raise self._misfit(parameter, array, reason)
        elif extent != size:
            raise self._misfit(parameter, array)

    def _misfit(
        self, parameter: ir.Tensor, array: Array | TensorType, reason: str = ""
    ) -> ArgumentError:
        expected = _shown(parameter.dtype, parameter.shape)
        given = _shown(array.dtype, array.shape)
        return self.fail(parameter, f"must be {expected}{reason and ' '}{reason}, not {given}")

    def _scalar(self, parameter: ir.Variable, value: Any) -> Any:
        dtype = parameter.dtype
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value[()]
        if not isinstance(value, (bool, int, float, np.generic)):
            raise self.fail(parameter, f"must be a number of type {dtype}, not {_kind(value)}")
        if isinstance(value, np.generic) and value.dtype == dtype.numpy:
            return value
        number = value.item() if isinstance(value, np.generic) else value
        problem = misfit(number, dtype)
        if problem is not None:
            raise self.fail(parameter, problem)
        return as_storage(float(number) if dtype.is_float else number, dtype)[()]

    def allocate(self, output: ir.Tensor) -> None:
        """A new array for an output that wasn't given."""
        shape = []
        for extent in output.shape:
            size = self.dimensions.get(extent) if isinstance(extent, ir.Variable) else extent
            if not isinstance(size, int):
                raise self.fail(
                    output, f"has the extent {extent}, which no argument tells; pass it as out="
                )
            shape.append(size)
        self.values[output.name] = np.empty(shape, output.dtype.numpy)

    def check_overlap(self, parameters: Iterable[Parameter]) -> None:
        tensors = [item for item in parameters if isinstance(item, ir.Tensor)]
        for number, first in enumerate(tensors):
            for second in tensors[number + 1 :]:
                written = [item for item in (first, second) if item.role != "in"]
                a, b = self.values[first.name], self.values[second.name]
                if written and _overlap(a, b):
                    other = second if written[0] is first else first
                    raise self.fail(
                        written[0], f"is written, and it overlaps '{other.name}' in memory"
                    )

    def copy_what_is_scattered(self) -> None:
        if not self.scattered:
            return
        for name in self.scattered:
            self.values[name] = np.array(self.values[name], order="C", copy=True)
        listed = ", ".join(f"'{name}'" for name in self.scattered)
        subject = f"input {listed} isn't" if len(self.scattered) == 1 else f"inputs {listed} aren't"
        # Python's own rule is one warning for each text and place: this is one per call site.
        warnings.warn(
            f"{self.kernel}: {subject} contiguous, and each call copies; np.ascontiguousarray, used"
            " once, saves that",
            CopyWarning,
            stacklevel=_levels_to_the_caller(),
        )


def _levels_to_the_caller() -> int:
    """The `stacklevel` with which this function's caller names the code outside taskc."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level


def _overlap(a: Array, b: Array) -> bool:
    if not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, max_work=_OVERLAP_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _shown(dtype: DType | np.dtype[Any], shape: Sequence[Any]) -> str:
    """A type and a shape as the language writes them."""
    if isinstance(dtype, DType):
        return named_type(dtype, shape)
    native = dtype.newbyteorder("=")
    try:
        name = from_numpy(native).name
    except ValueError:
        name = str(native)
    return named_type(name, shape) + ("" if dtype.isnative else " in the other byte order")


def _kind(value: Any) -> str:
    """What an argument of a wrong kind is."""
    if value is None:
        return "None"
    if isinstance(value, (bool, int, float, np.generic)):
        return f"the number {value}"
    if isinstance(value, np.ndarray):
        kind = "a masked array" if isinstance(value, np.ma.MaskedArray) else "an array"
        return f"{kind} of shape {value.shape}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
