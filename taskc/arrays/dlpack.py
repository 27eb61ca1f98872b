"""Arrays of other libraries as arguments: their adapters, and their memory through the DLPack protocol.

NumPy's own `from_dlpack` knows neither bf16 nor the 8-bit floats, and marks what it reads through
the older form of the protocol as read-only, so that nothing could be written in place.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from math import prod
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from taskc.arrays import torch
from taskc.arrays.device import Device
from taskc.arrays.packed import Packed
from taskc.arrays.torch import is_tensor, readable
from taskc.dataclass import dataclass
from taskc.errors import CompileError, Location
from taskc.ir.types import TensorType

CUDA = 2
CUDA_DEVICES = frozenset({CUDA, 13})  # and kDLCUDAManaged
CPU_DEVICES = frozenset({1, 3})  # kDLCPU, and kDLCUDAHost: pinned memory of the host
_READ_ONLY = 1 | 2  # the flag says so, or the memory is a copy that nobody else sees
_VERSIONED = b"dltensor_versioned"

_TYPES: dict[tuple[int, int], np.dtype[Any]] = {
    **{(0, bits): np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{(1, bits): np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{(2, bits): np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    (4, 16): np.dtype(ml_dtypes.bfloat16),
    (5, 64): np.dtype(np.complex64),
    (5, 128): np.dtype(np.complex128),
    (6, 8): np.dtype(np.bool_),
    (10, 8): np.dtype(ml_dtypes.float8_e4m3fn),
    (12, 8): np.dtype(ml_dtypes.float8_e5m2),
}


_CODES = {dtype: code for code, dtype in _TYPES.items()}
DTYPES = tuple(_CODES)


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


def _function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    prototype = ctypes.PYFUNCTYPE(result, *arguments)
    return prototype((name, ctypes.pythonapi))


_is_valid = _function("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_pointer = _function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)


class NotOnHostError(BufferError):
    """An array lies where the CPU can't read it."""

    def __str__(self) -> str:
        return "it lies on a device"


@dataclass(frozen=True, slots=True)
class Exported:
    """Memory that a library exports. It exists for as long as `capsule` does.

    strides  in elements
    device   its kind, and its number
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    device: tuple[int, int]
    is_read_only: bool
    capsule: object


def code_of(dtype: np.dtype[Any]) -> tuple[int, int]:
    """A type in the protocol: a code, and bits."""
    return _CODES[dtype]


def type_code(dtype: np.dtype[Any]) -> int:
    """A type in one word: a code, bits, and one lane."""
    code, bits = code_of(dtype)
    return code | bits << 8 | 1 << 16


def device_of(value: Any) -> tuple[int, int]:
    """The kind and the number of the device on which the memory of an object lies."""
    kind, number = value.__dlpack_device__()
    return int(kind), int(number)


def is_on_cuda(value: Any) -> bool:
    """Whether an object is an array in the memory of a CUDA device, whichever library's."""
    if isinstance(value, np.ndarray):
        return False
    if is_tensor(value):  # which may lie where the protocol has no name for
        return bool(value.is_cuda)
    if hasattr(value, "__dlpack_device__"):
        return device_of(value)[0] in CUDA_DEVICES
    return hasattr(value, "__cuda_array_interface__")


def exported(value: Any, **keywords: Any) -> Exported:
    """The memory of an object with `__dlpack__`, not copied. A BufferError says why it can't be read.

    keywords  for its `__dlpack__`: the stream of a device
    """
    return _exported(readable(value) if is_tensor(value) else value, keywords)


def _exported(value: Any, keywords: dict[str, Any]) -> Exported:
    try:
        capsule = value.__dlpack__(max_version=(1, 0), **keywords)
    except TypeError:  # a library from before version 1.0 of the protocol
        capsule = value.__dlpack__(**keywords)
    is_read_only = False
    if _is_valid(capsule, _VERSIONED):
        versioned = Versioned.from_address(_pointer(capsule, _VERSIONED))
        if versioned.major != 1:
            raise BufferError(f"version {versioned.major} of DLPack is not known")
        tensor = versioned.tensor
        is_read_only = bool(versioned.flags & _READ_ONLY)
    else:
        tensor = DLTensor.from_address(_pointer(capsule, b"dltensor"))
    dtype = _TYPES.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        kind = f"code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
        raise BufferError(f"its DLPack type has no equal in NumPy ({kind})")
    shape = tuple(tensor.shape[: tensor.ndim])
    if tensor.strides:
        strides = tuple(tensor.strides[: tensor.ndim])
    else:
        strides = tuple(prod(shape[axis + 1 :]) for axis in range(tensor.ndim))
    if not tensor.data and prod(shape):  # PyTorch's lazy zeros
        raise BufferError("its elements are nowhere in memory")
    pointer = (tensor.data or 0) + tensor.byte_offset
    device = tensor.device_type, tensor.device_id
    return Exported(pointer, shape, strides, dtype, device, is_read_only, capsule)


def as_array(value: Any) -> np.ndarray:
    """The memory of an object with `__dlpack__`, not copied. A BufferError says why it can't be read."""
    if is_tensor(value):  # its reason is more exact than where the memory lies
        value = readable(value)
    if device_of(value)[0] not in CPU_DEVICES:
        raise NotOnHostError
    given = _exported(value, {})
    array = _view(given)
    array.flags.writeable = not given.is_read_only
    return array


def _view(given: Exported) -> np.ndarray:
    shape, strides, dtype = given.shape, given.strides, given.dtype
    if prod(shape) == 0:
        return np.empty(shape, dtype)
    reach = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    first = sum(min(0, step) for step in reach)
    last = sum(max(0, step) for step in reach)
    address = given.pointer + first * dtype.itemsize
    memory: Any = (ctypes.c_char * ((last - first + 1) * dtype.itemsize)).from_address(address)
    # The array keeps `memory` alive, and that the capsule, whose destructor gives the memory back.
    memory.capsule = given.capsule
    array: np.ndarray = np.ndarray(
        shape,
        dtype,
        memory,
        offset=-first * dtype.itemsize,
        strides=tuple(stride * dtype.itemsize for stride in strides),
    )
    return array


class ArrayLibrary(Protocol):
    """A library whose arrays a call treats differently from others that export DLPack: a module, or an object."""

    NAME: str

    def takes(self, value: Any) -> bool:
        """Whether a value is one of the library's arrays."""

    def argument(self, value: Any, is_written: bool) -> Any:
        """The object that exports an array's memory. A BufferError says of the argument why none does."""

    def new_output(self, described: TensorType, place: Device | None) -> Any:
        """A new output of a call with one of the library's arrays; None for an ordinary array."""

    def note_written(self, value: Any) -> None:
        """Tell the library that an array is written in place. Called only when the call can no longer fail."""


class _Jax:
    """JAX's arrays. JAX is never imported here: the caller who passes its arrays has done so."""

    NAME = "jax"

    def takes(self, value: Any) -> bool:
        library = sys.modules.get(self.NAME)
        return library is not None and isinstance(value, (library.Array, library.core.Tracer))

    def argument(self, value: Any, is_written: bool) -> Any:
        if isinstance(value, sys.modules[self.NAME].core.Tracer):
            raise BufferError(
                "is traced by JAX, and has no elements; tc.jax.operator() makes a kernel a function that takes it"
            )
        if is_written:
            raise BufferError("is written in place, and JAX's arrays never change")
        return value

    def new_output(self, described: TensorType, place: Device | None) -> None:
        """None: a call returns NumPy's arrays, or the device's."""

    def note_written(self, value: Any) -> None:
        """JAX's arrays are never written."""


LIBRARIES: tuple[ArrayLibrary, ...] = (torch, _Jax())


def library_of(value: Any) -> ArrayLibrary | None:
    if type(value) is not np.ndarray:
        for library in LIBRARIES:
            if library.takes(value):
                return library
    return None


def is_array(value: object) -> bool:
    return isinstance(value, np.ndarray) or hasattr(value, "__dlpack__")


def host_view(value: Any) -> np.ndarray[Any, Any] | None:
    """An array's memory, not copied; None where the value is no array.

    A BufferError says why it can't be read: a NotOnHostError, because it lies elsewhere.
    """
    if type(value) is np.ndarray:  # asking for more loads NumPy's masked arrays
        return value
    if isinstance(value, np.ma.MaskedArray):
        return None
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    if not hasattr(value, "__dlpack__"):
        if hasattr(value, "__cuda_array_interface__"):
            raise NotOnHostError
        return None
    try:
        return as_array(value)
    except (RuntimeError, ValueError) as error:
        raise BufferError(str(error)) from error


def host_array(value: Any, site: Location) -> np.ndarray[Any, Any]:
    """A constant of a traced program: an array, also a packed one, or what NumPy makes one of."""
    if isinstance(value, Packed) and value.is_whole:
        return value
    try:
        array = host_view(value)
    except BufferError as error:
        raise CompileError(
            f"a {type(value).__name__} can't be read as a constant: {error}", site
        ) from None
    return np.asarray(value) if array is None else array
