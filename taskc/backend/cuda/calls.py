"""Calls on a device, with arrays that are on it, or with CPU arrays that are copied there and back.

The driver of the runtime checks the first call of a form (shapes, types, strides, devices). Later calls of the same
form are known to fit, and `direct` launches them at once: with our arrays, torch's, CuPy's, or several of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from taskc.arrays.packed import packed, shape_of
from taskc.arrays.torch import empty_on, is_recorded, is_tensor, note_written
from taskc.backend.cuda.api import DeviceError
from taskc.backend.cuda.array import Array, Packed, asarray, empty, from_host, ordinal_of, to_host
from taskc.backend.cuda.context import context
from taskc.backend.cuda.launch import DeviceKernel, PreparedLaunch
from taskc.backend.cuda.libraries import library_of, note_use
from taskc.backend.cuda.memory import DeviceMemory, is_own, keep_borrowed
from taskc.backend.cuda.program import DeviceProgram, ProgramForm
from taskc.backend.cuda.streams import Stream, current_stream, is_entered, order_after
from taskc.dataclass import dataclass
from taskc.ir import nodes as ir
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Tensor
from taskc.ir.signature import bind_dimensions, inputs_of, outputs_of
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
    loaded: DeviceKernel | DeviceProgram, values: Sequence[Any], dimensions: dict[ir.Variable, int]
) -> None:
    """Run a call whose arguments are checked: its arrays are all on the device, or all on the CPU."""
    if any(isinstance(value, np.ndarray) for value in values):
        _run_copied(loaded, values, dimensions)
    else:
        _launch(loaded, values, dimensions, current_stream(loaded.context))


def _launch(
    loaded: DeviceKernel | DeviceProgram,
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
    loaded: DeviceKernel | DeviceProgram, values: Sequence[Any], dimensions: dict[ir.Variable, int]
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


Call: TypeAlias = Callable[..., Any]
Read: TypeAlias = "tuple[Any, int]"  # a form, None if there is none, and a pointer

_ALIGNMENT = 16
_REMEMBERED = 256  # forms


def direct(loaded: DeviceKernel | DeviceProgram, otherwise: Call) -> Call | None:
    """A function that takes a call's arguments; calls of an unknown form go to `otherwise`.

    None for kernels with scalars, or outputs with a layout: the driver handles all their calls.
    """
    parameters = loaded.parameters
    if not all(map(_is_plain, parameters)):
        return None
    known: dict[Any, _Known] = {}
    given, outputs = len(inputs_of(parameters)), len(outputs_of(parameters))

    def entry(*arguments: Any, **keywords: Any) -> Any:
        everything = arguments
        if keywords:
            if outputs != 1 or len(keywords) != 1 or "out" not in keywords:
                return otherwise(*arguments, **keywords)
            everything = (*arguments, keywords["out"])
        if len(arguments) != given:
            return otherwise(*arguments, **keywords)
        reads = [_READERS.get(type(value), _read_any)(value) for value in everything]
        key = tuple([form for form, _ in reads])
        prepared = known.get(key)
        if prepared is not None:
            pointers = [pointer for _, pointer in reads]
            if prepared.accepts(pointers):
                return prepared.run(everything, pointers)
        result = otherwise(*arguments, **keywords)
        if prepared is None and None not in key:
            if len(known) >= _REMEMBERED:
                known.clear()
            new = _known(loaded, everything, given)
            if new is not None:
                known[key] = new
        return result

    return entry


@dataclass(slots=True)
class _Known:
    """order    argument number for each parameter; None for outputs that the call allocates
    sizes    bytes of each argument
    written  the arguments that are written
    made     shapes, types and bytes of the outputs that the call allocates
    foreign  the arguments from other libraries
    libraries  their libraries: the call goes into the current stream of the first one
    of_torch  whether an argument is a PyTorch tensor, so that outputs are, too
    """

    form: PreparedLaunch | ProgramForm
    order: list[int | None]
    sizes: list[int]
    written: list[int]
    made: list[tuple[tuple[int, ...], np.dtype[Any], int]]
    foreign: list[int]
    libraries: tuple[str, ...]
    of_torch: bool
    returned: int | None

    def accepts(self, pointers: list[int]) -> bool:
        """Whether pointers are aligned, and no argument that is written overlaps another one."""
        for pointer in pointers:
            if pointer % _ALIGNMENT:
                return False
        for one in self.written:
            start, size = pointers[one], self.sizes[one]
            for other, pointer in enumerate(pointers):
                if other != one and pointer < start + size and start < pointer + self.sizes[other]:
                    return False
        return True

    def run(self, arguments: Sequence[Any], pointers: list[int]) -> Any:
        owner = self.form.loaded.context
        libraries = self.libraries
        stream = current_stream(owner, libraries[0] if libraries else "")
        # Otherwise the stream is the library's own, in which it has ordered its work itself.
        is_lent = len(libraries) > 1 or (len(libraries) == 1 and is_entered())
        if is_lent:
            order_after(owner, libraries, stream)
        for argument in arguments:
            if isinstance(argument, Array):
                argument.memory.used(stream)
        outputs: list[Any] = []
        output_pointers = []
        for shape, dtype, size in self.made:
            if self.of_torch:
                outputs.append(empty_on(dtype, shape, owner.ordinal, stream.number))
                output_pointers.append(outputs[-1].data_ptr())
            else:
                memory = DeviceMemory(owner, size, stream)
                outputs.append(Array(memory.pointer, shape, dtype, memory))
                output_pointers.append(memory.pointer)
        unused = iter(output_pointers)
        passed = [pointers[k] if k is not None else next(unused) for k in self.order]
        self.form.launch(passed, stream, (*arguments, *outputs))
        if is_lent:
            self._keep_lent(arguments, stream)
        if self.of_torch:
            for number in self.written:
                if is_tensor(arguments[number]):
                    note_written(arguments[number])
        if self.returned is not None:
            return arguments[self.returned]
        return None if not outputs else outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _keep_lent(self, arguments: Sequence[Any], stream: Stream) -> None:
        """Keep other libraries' memory alive until the stream has finished with it."""
        if stream.is_capturing:
            return
        lent = [arguments[number] for number in self.foreign]
        others = [one for one in lent if not is_own(one, stream)]
        device = stream.context.ordinal
        borrowed = [one for one in others if not note_use(one, stream.number, device)]
        if borrowed:
            keep_borrowed(borrowed, (stream,))


def _known(
    loaded: DeviceKernel | DeviceProgram, arguments: Sequence[Any], given: int
) -> _Known | None:
    """The fast path for the form of a call that was checked; None if such calls copy arguments."""
    parameters = loaded.parameters
    views = [asarray(argument) for argument in arguments]
    if not all(view.is_contiguous and view.pointer % _ALIGNMENT == 0 for view in views):
        return None
    if any(view.device != loaded.context.ordinal for view in views):
        return None
    named = {id(item): k for k, item in enumerate(inputs_of(parameters))}
    if len(arguments) > given:
        named |= {id(item): given for item in outputs_of(parameters)}
    order = [named.get(id(item)) for item in parameters]
    present = [(item, views[k]) for item, k in zip(parameters, order, strict=True) if k is not None]
    sizes = bind_dimensions([item for item, _ in present], [shape_of(view) for _, view in present])
    shapes, outputs = [], []
    for item, number in zip(parameters, order, strict=True):
        assert isinstance(item, Tensor)
        if number is None:
            shapes.append(tuple([extent_value(extent, sizes) for extent in item.argument_shape]))
            outputs.append((shapes[-1], item.dtype.numpy, prod(shapes[-1]) * item.dtype.nbytes))
        else:
            shapes.append(views[number].shape)
    dimensions = {one: sizes[one] for one in loaded.dimensions}
    foreign = [number for number, one in enumerate(arguments) if not isinstance(one, Array)]
    libraries = tuple(dict.fromkeys([library_of(arguments[number]) for number in foreign]))
    return _Known(
        loaded.form(tuple(shapes), dimensions),
        order,
        [view.nbytes for view in views],
        [k for item, k in zip(parameters, order, strict=True) if k is not None and _written(item)],
        outputs,
        foreign,
        libraries,
        "torch" in libraries,
        given if len(arguments) > given else None,
    )


def _is_plain(parameter: Any) -> bool:
    if not isinstance(parameter, Tensor) or parameter.dtype.is_sub_byte:
        return False
    return parameter.layout is None or parameter.role == "in"


def _written(parameter: Any) -> bool:
    return isinstance(parameter, Tensor) and parameter.role != "in"


# --- forms of arrays -------------------------------------------------------------------------


def _read_ours(array: Array) -> Read:
    return array.key, array.pointer


def _read_torch(tensor: Any) -> Read:
    """A tensor on the CPU has a form, too, but is never remembered: its device number is -1.

    Nor are refused tensors: lazily negated ones, or ones that autograd records.
    """
    form = tensor.shape, tensor.dtype, tensor.stride(), tensor.get_device(), is_recorded(tensor)
    return (*form, tensor.is_neg()), tensor.data_ptr()


def _read_cupy(array: Any) -> Read:
    return (array.shape, array.dtype, array.strides, array.device.id), array.data.ptr


def _read_any(value: Any) -> Read:
    """Read an array of a class not seen before. Subclasses are not read, as their attributes may have other
    meanings.
    """
    kind = type(value)
    reader = _KNOWN.get((library_of(value), kind.__name__))
    if reader is None:
        return None, 0
    _READERS[kind] = reader
    return reader(value)


_KNOWN: dict[tuple[str, str], Callable[[Any], Read]] = {
    ("torch", "Tensor"): _read_torch,
    ("torch", "Parameter"): _read_torch,
    ("cupy", "ndarray"): _read_cupy,
}
_READERS: dict[type, Callable[[Any], Read]] = {Array: _read_ours, Packed: _read_ours}
