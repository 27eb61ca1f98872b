"""Calls that look at nothing twice.

The first call of a form (shapes, types, strides, devices) is checked by the driver. Later ones find by the form
that they fit, and go straight to a launch: of our arrays, of torch's, of CuPy's, or of several of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np

from taskc.arrays.packed import shape_of
from taskc.arrays.torch import empty_on, is_recorded, is_tensor, note_written
from taskc.backend.cuda.array import Array, Packed, asarray
from taskc.backend.cuda.launch import Loaded, PreparedLaunch
from taskc.backend.cuda.libraries import library_of, note_use
from taskc.backend.cuda.memory import Memory, is_own, keep_borrowed
from taskc.backend.cuda.program import LoadedProgram, ProgramForm
from taskc.backend.cuda.streams import Stream, current_stream, is_entered, order_after
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Tensor
from taskc.ir.signature import bind_dimensions, inputs_of, outputs_of

Call: TypeAlias = Callable[..., Any]
Read: TypeAlias = "tuple[Any, int]"  # a form, None where there is none, and a pointer

_ALIGNMENT = 16
_REMEMBERED = 256  # forms


def direct(loaded: Loaded | LoadedProgram, otherwise: Call) -> Call | None:
    """What is called with a call's own arguments; what it doesn't know goes to `otherwise`.

    None for what has scalars, or outputs with a layout: the driver takes all calls of that.
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
        found = known.get(key)
        if found is not None:
            pointers = [pointer for _, pointer in reads]
            if found.accepts(pointers):
                return found.run(everything, pointers)
        result = otherwise(*arguments, **keywords)
        if found is None and None not in key:
            if len(known) >= _REMEMBERED:
                known.clear()
            made = _known(loaded, everything, given)
            if made is not None:
                known[key] = made
        return result

    return entry


@dataclass(slots=True)
class _Known:
    """order    for each parameter, the number of the argument; None where the call makes it
    sizes    bytes of each argument
    written  the arguments that are written
    made     shapes, types and bytes of the outputs that the call makes
    foreign  the arguments of other libraries
    libraries  those of them: the call goes into the current stream of the first one
    of_torch  an argument is a tensor of PyTorch's, and so is what the call makes
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
        """They are aligned, and what is written overlaps nothing."""
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
        # Else the stream is the library's own, which orders what it has put there itself.
        is_lent = len(libraries) > 1 or (len(libraries) == 1 and is_entered())
        if is_lent:
            order_after(owner, libraries, stream)
        for argument in arguments:
            if isinstance(argument, Array):
                argument.memory.used(stream)
        made: list[Any] = []
        fresh = []
        for shape, dtype, size in self.made:
            if self.of_torch:
                made.append(empty_on(dtype, shape, owner.ordinal, stream.number))
                fresh.append(made[-1].data_ptr())
            else:
                memory = Memory(owner, size, stream)
                made.append(Array(memory.pointer, shape, dtype, memory))
                fresh.append(memory.pointer)
        unused = iter(fresh)
        passed = [pointers[k] if k is not None else next(unused) for k in self.order]
        self.form.launch(passed, stream, (*arguments, *made))
        if is_lent:
            self._keep_lent(arguments, stream)
        if self.of_torch:
            for number in self.written:
                if is_tensor(arguments[number]):
                    note_written(arguments[number])
        if self.returned is not None:
            return arguments[self.returned]
        return None if not made else made[0] if len(made) == 1 else tuple(made)

    def _keep_lent(self, arguments: Sequence[Any], stream: Stream) -> None:
        """Keep memory of other libraries until the stream is done with it."""
        if stream.is_capturing:
            return
        lent = [arguments[number] for number in self.foreign]
        others = [one for one in lent if not is_own(one, stream)]
        device = stream.context.ordinal
        borrowed = [one for one in others if not note_use(one, stream.number, device)]
        if borrowed:
            keep_borrowed(borrowed, (stream,))


def _known(loaded: Loaded | LoadedProgram, arguments: Sequence[Any], given: int) -> _Known | None:
    """What a call that was checked says about others of its form; None if they would be copied."""
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
    shapes, made = [], []
    for item, number in zip(parameters, order, strict=True):
        assert isinstance(item, Tensor)
        if number is None:
            shapes.append(tuple([extent_value(extent, sizes) for extent in item.argument_shape]))
            made.append((shapes[-1], item.dtype.numpy, prod(shapes[-1]) * item.dtype.nbytes))
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
        made,
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
    """A tensor on the CPU has a form, too, and is never learnt: the number of its device is -1.

    Nor is that of one that is refused: lazily negated, or recorded by autograd.
    """
    form = tensor.shape, tensor.dtype, tensor.stride(), tensor.get_device(), is_recorded(tensor)
    return (*form, tensor.is_neg()), tensor.data_ptr()


def _read_cupy(array: Any) -> Read:
    return (array.shape, array.dtype, array.strides, array.device.id), array.data.ptr


def _read_any(value: Any) -> Read:
    """Reads one of a class that wasn't met yet. Subclasses may mean something else by their attributes."""
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
