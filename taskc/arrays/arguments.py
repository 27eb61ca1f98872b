"""Arguments of a call: each is matched with its parameter, and all are checked before anything runs."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from taskc.arrays import dlpack
from taskc.arrays.device import (
    AnyArray,
    Device,
    DeviceArray,
    is_placed,
    is_read_only,
    overlap,
    start_of,
)
from taskc.arrays.dlpack import ArrayLibrary, host_view, library_of
from taskc.arrays.packed import Laid, Packed, packed_argument
from taskc.dataclass import dataclass
from taskc.errors import user_calls
from taskc.ir import nodes as ir
from taskc.ir.bits import has_whole_rows, shape_in_bytes, shape_of_elements
from taskc.ir.signature import Binding, Parameter, Signed, inputs_of, named_type, outputs_of
from taskc.ir.types import DType, TensorType, from_numpy, u8

Array: TypeAlias = "np.ndarray[Any, Any]"

_PACKAGE = str(Path(__file__).parents[1])
# Bytes: most targets' kernels assume that a parameter starts at a multiple of this.
ALIGNMENT = 16


class ArgumentError(TypeError):
    """An argument of a call doesn't fit the kernel's parameter."""

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython shows in place of a traceback, most of which would be taskc's."""
        return [f"ArgumentError: {self}", *user_calls(self)]


class CopyWarning(UserWarning):
    """An input is copied at each call, since the kernel needs other strides or another alignment."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Arguments that fit a kernel.

    values      one for each parameter, outputs too: contiguous arrays, all of NumPy or all on one
                device, and scalars of the parameter's storage type
    dimensions  the values of the symbolic dimensions
    returned    the call's return value: None, an output, or a tuple of them
    foreign     the classes of other libraries' arrays among the arguments, by the libraries' names
    """

    values: tuple[Any, ...]
    dimensions: dict[ir.Variable, int]
    returned: Any
    foreign: Mapping[str, type] = field(default_factory=dict)


class Signature:
    """The calling convention of a kernel or a program: see `taskc.ir.signature`."""

    def __init__(self, called: Signed, tuples: Mapping[str, tuple[str, ...]] | None = None) -> None:
        self.name = f"{called.name}()"
        self.parameters = tuple(
            [it.argument if isinstance(it, ir.Tensor) else it for it in called.parameters]
        )
        self.inputs = inputs_of(self.parameters)
        self.outputs = outputs_of(self.parameters)
        self.tuples = tuples or {}

    def bind(
        self,
        args: Sequence[Any],
        keywords: dict[str, Any],
        alignment: int = ALIGNMENT,
        place: Device | None = None,
    ) -> Bound:
        """The arguments of a call, checked; an `ArgumentError` names the parameter.

        place  the device where the arrays have to lie; None is the CPU's memory
        """
        call = _Call(self.name, alignment, place)
        given = call.bind(self.parameters, args, keywords, self.tuples)
        call.check_overlap(self.parameters)
        call.copy_what_is_misplaced()
        call.pack_bits(self.parameters)
        for library, array in call.written:
            library.note_written(array)
        return Bound(
            tuple([call.values[item.name] for item in self.parameters]),
            call.sizes,
            one_or_all([given[output.name] for output in self.outputs]),
            {library.NAME: kind for library, kind in call.foreign.items()},
        )

    def shapes_of_outputs(
        self, arguments: Sequence[Any], dtype_of: Callable[[Any], np.dtype[Any]]
    ) -> list[tuple[int, ...]]:
        """The shapes of a call's outputs for such inputs, which need only have a type and a shape.

        Sizes may be numbers that become known later (torch.compile's).

        dtype_of  NumPy's type for the type of an argument
        """
        call = _Call(self.name, alignment=1)
        for item, argument in zip(self.inputs, arguments, strict=True):
            if isinstance(item, ir.Tensor):
                call.check(item, ArrayType(dtype_of(argument.dtype), tuple(argument.shape)))
        call.check_computed()
        return [call.shape_of(output) for output in self.outputs]


def one_or_all(results: Sequence[Any]) -> Any:
    """The return value of a call with these results: None, the only one, or a tuple."""
    return None if not results else results[0] if len(results) == 1 else tuple(results)


@dataclass(frozen=True, slots=True)
class ArrayType:
    """The type and shape of an array that doesn't exist yet."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


_Known: TypeAlias = "AnyArray | TensorType | ArrayType"


class _Call(Binding):
    """The arguments of one call on arrays.

    scattered, shifted  inputs that aren't contiguous or aligned, and are copied
    foreign             the libraries whose arrays are among the arguments, with the class of one
    written             arrays of theirs that are written in place
    """

    def __init__(self, name: str, alignment: int, place: Device | None = None) -> None:
        super().__init__(name)
        self.alignment = alignment
        self.place = place
        self.scattered: list[str] = []
        self.shifted: list[str] = []
        self.foreign: dict[ArrayLibrary, type] = {}
        self.written: list[tuple[ArrayLibrary, Any]] = []

    def error(self, text: str, hint: str | None = None, *notes: Any) -> ArgumentError:
        return ArgumentError(text)

    def mismatch(
        self, parameter: ir.Tensor, argument: _Known, reason: str = "", hint: str | None = None
    ) -> Exception:
        expected = f"{_expected(parameter)}{reason and ' '}{reason}"
        packed = ""
        if parameter.layout is not None and not isinstance(argument, TensorType):
            packed = f"; it has a layout: pass kernel.pack({parameter.name})"
        shown = _shown(argument.dtype, argument.shape)
        return self.fail(parameter, f"must be {expected}, not {shown}{packed}")

    def fitting(self, parameter: Parameter, argument: Any) -> Any:
        if isinstance(parameter, ir.Variable):
            return self._scalar(parameter, argument)
        if isinstance(argument, Laid) and isinstance(argument, np.ndarray) == (self.place is None):
            return self._packed(parameter, argument)
        library = library_of(argument)
        if library is not None:
            argument = self._exporting(parameter, argument, library)
        array = self._array(parameter, argument)
        self.check(parameter, array)
        if parameter.role != "in":
            self._check_written(parameter, array)
        elif not is_placed(array):
            self.scattered.append(parameter.name)
        elif self._is_shifted(array):
            self.shifted.append(parameter.name)
        return array

    def pack_bits(self, parameters: Iterable[Parameter]) -> None:
        """Replace arrays of sub-byte types by memory that holds the elements as a stream of bits."""
        for item in parameters:
            value = self.values[item.name]
            if not isinstance(item, ir.Tensor) or not item.dtype.is_sub_byte:
                continue
            if isinstance(value, Laid):  # packed before
                continue
            shape = _shape_given(item, value)
            assert shape is not None
            described = TensorType(item.dtype, shape, item.layout)
            if self.place is None:
                self.values[item.name] = packed_argument(value, described)
            elif value.dtype == np.uint8:
                self.values[item.name] = self.place.packed(value, described)
            else:
                raise self.fail(item, "lies on a device, where only bytes as they lie are taken")

    def check(self, parameter: ir.Tensor, array: AnyArray | ArrayType) -> None:
        """Check an array's type and extents."""
        shape = _shape_given(parameter, array)
        if shape is None or len(shape) != len(parameter.argument_shape):
            raise self.mismatch(parameter, array)
        self.fit(parameter, shape, array)

    def _packed(self, parameter: ir.Tensor, value: Laid) -> Laid:
        """Check an array that is packed in the parameter's layout already."""
        given = value.type
        fits = given.dtype is parameter.dtype and given.layout == parameter.layout
        if not fits or len(given.shape) != len(parameter.argument_shape):
            laid = f", laid out as {parameter.layout}" if parameter.layout else ""
            expected = f"{_expected(parameter)}{laid}"
            raise self.fail(parameter, f"must be {expected}, not an array packed as {given}")
        self.fit(parameter, given.shape, given)
        if isinstance(value, Packed) and not value.is_whole:
            raise self.fail(
                parameter,
                f"must be an array packed as {given}, and not what was made of one:"
                f" {_shown(value.dtype, value.shape)} with strides of {value.strides} bytes",
            )
        if self.place is not None:
            self._check_place(parameter, value, self.place)
        if parameter.role != "in":
            self._check_written(parameter, value)  # type: ignore[arg-type]
        return value

    def _check_written(self, parameter: ir.Tensor, array: AnyArray) -> None:
        if is_read_only(array):
            raise self.fail(parameter, "is written in place, and this array is read-only")
        unit = max(self.alignment, parameter.dtype.nbytes)
        behind = start_of(array) % unit if array.size else 0
        if behind:
            raise self.fail(
                parameter,
                f"is written in place, so it must start at a multiple of {unit} bytes;"
                f" this array starts {behind} behind one",
            )
        if not is_placed(array):
            raise self.fail(
                parameter,
                "is written in place, so it must be contiguous and row-major; this array has"
                f" the shape {array.shape} and strides of {array.strides} bytes",
            )

    def _is_shifted(self, array: AnyArray) -> bool:
        """Loads and stores of several elements at once would not be aligned."""
        return array.size > 0 and start_of(array) % self.alignment != 0

    def _exporting(self, parameter: ir.Tensor, value: Any, library: ArrayLibrary) -> Any:
        """The object that exports the memory of a library's array."""
        self.foreign[library] = type(value)
        is_written = parameter.role != "in"
        if is_written:
            self.written.append((library, value))
        try:
            return library.argument(value, is_written)
        except BufferError as error:
            raise self.fail(parameter, str(error)) from None

    def _array(self, parameter: ir.Tensor, value: Any) -> AnyArray:
        """The argument as an array of the same memory."""
        if self.place is not None:
            return self._on_device(parameter, value, self.place)
        try:
            array = host_view(value)
        except dlpack.NotOnHostError:
            raise self.fail(
                parameter,
                "lies in a GPU's memory, and the call is to run elsewhere; pass it as a CPU array",
            ) from None
        except BufferError as error:
            raise self.fail(parameter, f"can't be read through DLPack: {error}") from error
        if array is None:
            expected = f"{_expected(parameter)}, as a NumPy or DLPack array"
            raise self.fail(parameter, f"must be {expected}, not {_kind(value)}")
        return array

    def _on_device(self, parameter: ir.Tensor, value: Any, place: Device) -> DeviceArray:
        if not dlpack.is_on_cuda(value):
            if isinstance(value, np.ndarray) or hasattr(value, "__dlpack__"):
                raise self.fail(
                    parameter,
                    f"lies in the CPU's memory, and other arguments on {place.name};"
                    " taskc.device.array() makes a copy there",
                )
            expected = f"{_expected(parameter)}, as an array on {place.name}"
            raise self.fail(parameter, f"must be {expected}, not {_kind(value)}")
        if parameter.layout is not None:
            raise self.fail(
                parameter,
                "has a layout, and no array is put into it on a device;"
                " taskc.device.array(taskc.pack(...)) makes a copy there of one that is",
            )
        try:
            array: DeviceArray = place.view(value)
        except (BufferError, TypeError, ValueError) as error:
            raise self.fail(parameter, f"can't be read where it lies: {error}") from error
        self._check_place(parameter, array, place)
        return array

    def _check_place(self, parameter: ir.Tensor, array: Any, place: Device) -> None:
        if not place.holds(array):
            where = f"CUDA device {array.device}"
            raise self.fail(parameter, f"lies on {where}, and other arguments on {place.name}")

    def _scalar(self, parameter: ir.Variable, value: Any) -> Any:
        dtype = parameter.dtype
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value[()]
        if not isinstance(value, (bool, int, float, np.generic)):
            raise self.fail(parameter, f"must be a number of type {dtype}, not {_kind(value)}")
        if isinstance(value, np.generic) and value.dtype == dtype.numpy:
            return value
        return self.number(parameter, value)

    def allocated(self, outputs: Sequence[ir.Tensor]) -> dict[str, Any]:
        return {output.name: self._allocate(output) for output in outputs}

    def _allocate(self, output: ir.Tensor) -> Any:
        """A new array for an output, of the library of an argument if that library makes outputs."""
        if output.layout is not None and self.place is not None:
            raise self.fail(
                output,
                "has a layout, out of which no array is taken on a device; pass a packed one as out=",
            )
        described = TensorType(output.dtype, self.shape_of(output))
        for library in self.foreign:
            made = library.new_output(described, self.place)
            if made is not None:
                self.values[output.name] = self._array(output, made)
                return made
        if self.place is not None:
            made = self.place.empty(described)
        else:
            made = np.empty(described.shape, described.dtype.numpy)
        self.values[output.name] = made
        return made

    def check_overlap(self, parameters: Iterable[Parameter]) -> None:
        tensors = [item for item in parameters if isinstance(item, ir.Tensor)]
        for number, first in enumerate(tensors):
            for second in tensors[number + 1 :]:
                written = [item for item in (first, second) if item.role != "in"]
                a, b = self.values[first.name], self.values[second.name]
                if written and overlap(a, b):
                    other = second if written[0] is first else first
                    raise self.fail(
                        written[0], f"is written, and it overlaps '{other.name}' in memory"
                    )

    def copy_what_is_misplaced(self) -> None:
        on_cpu = self.place is None
        remedy = "np.ascontiguousarray" if on_cpu else "taskc.device.array"
        self._copy(self.scattered, "contiguous", remedy)
        remedy = "np.copy" if on_cpu else "taskc.device.array"
        self._copy(self.shifted, f"at a multiple of {self.alignment} bytes", remedy)

    def _copy(self, names: list[str], where: str, remedy: str) -> None:
        if not names:
            return
        for name in names:
            value = self.values[name]
            on_cpu = isinstance(value, np.ndarray)
            self.values[name] = np.array(value, order="C", copy=True) if on_cpu else value.copy()
        listed = ", ".join(f"'{name}'" for name in names)
        subject = f"input {listed} isn't" if len(names) == 1 else f"inputs {listed} aren't"
        # Python's own rule is one warning for each text and place: this is one per call site.
        warnings.warn(
            f"{self.name}: {subject} {where}, and each call copies; {remedy}, used once, saves that",
            CopyWarning,
            stacklevel=_levels_to_the_caller(),
        )


def _levels_to_the_caller() -> int:
    """The `stacklevel` with which this function's caller names the code outside taskc."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level


def _shape_given(parameter: ir.Tensor, array: AnyArray | ArrayType) -> tuple[int, ...] | None:
    """The shape of an array's elements as the parameter counts them; None for another type."""
    dtype = parameter.dtype
    if array.dtype == dtype.numpy:
        return array.shape
    is_bytes = dtype.is_sub_byte and array.dtype == np.uint8
    return shape_of_elements(array.shape, dtype) if is_bytes else None


def _expected(parameter: ir.Tensor) -> str:
    expected = named_type(parameter.dtype, parameter.argument_shape)
    if parameter.dtype.is_sub_byte:
        expected += ", each element in a byte (ml_dtypes)"
        if has_whole_rows(parameter):
            shape = shape_in_bytes(parameter.argument_shape, parameter.dtype)
            expected += f", or the bytes in which they lie, {named_type(u8, shape)}"
    return expected


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
    """A description of an argument of a wrong kind."""
    if value is None:
        return "None"
    if isinstance(value, (bool, int, float, np.generic)):
        return f"the number {value}"
    if isinstance(value, np.ndarray):
        kind = "a masked array" if isinstance(value, np.ma.MaskedArray) else "an array"
        return f"{kind} of shape {value.shape}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
