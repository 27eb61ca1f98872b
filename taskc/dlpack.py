"""Memory of other libraries as NumPy arrays, through the DLPack protocol.

NumPy's own `from_dlpack` knows neither bf16 nor the 8-bit floats, and marks what it reads through
the older form of the protocol as read-only, so that nothing could be written in place.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

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


class _DLTensor(ctypes.Structure):
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


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


def _function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    prototype = ctypes.PYFUNCTYPE(result, *arguments)
    return prototype((name, ctypes.pythonapi))


_is_valid = _function("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_pointer = _function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)


def is_on_cpu(value: Any) -> bool:
    """Whether the memory that an object with `__dlpack__` exports can be read by the CPU."""
    return int(value.__dlpack_device__()[0]) in CPU_DEVICES


def as_array(value: Any) -> np.ndarray:
    """The memory of an object with `__dlpack__`, not copied. A BufferError says why it can't be."""
    try:
        capsule = value.__dlpack__(max_version=(1, 0))
    except TypeError:  # a library from before version 1.0 of the protocol
        capsule = value.__dlpack__()
    is_read_only = False
    if _is_valid(capsule, _VERSIONED):
        versioned = _Versioned.from_address(_pointer(capsule, _VERSIONED))
        if versioned.major != 1:
            raise BufferError(f"version {versioned.major} of DLPack is not known")
        tensor = versioned.tensor
        is_read_only = bool(versioned.flags & _READ_ONLY)
    else:
        tensor = _DLTensor.from_address(_pointer(capsule, b"dltensor"))
    array = _view(tensor, capsule)
    array.flags.writeable = not is_read_only
    return array


def _view(tensor: _DLTensor, capsule: object) -> np.ndarray:
    dtype = _TYPES.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        kind = f"code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
        raise BufferError(f"its DLPack type has no equal in NumPy ({kind})")
    shape = tuple(tensor.shape[: tensor.ndim])
    if prod(shape) == 0:
        return np.empty(shape, dtype)
    if tensor.strides:
        strides = tuple(tensor.strides[: tensor.ndim])
    else:
        strides = tuple(prod(shape[axis + 1 :]) for axis in range(tensor.ndim))
    reach = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    first = sum(min(0, step) for step in reach)
    last = sum(max(0, step) for step in reach)
    address = tensor.data + tensor.byte_offset + first * dtype.itemsize
    memory = (ctypes.c_char * ((last - first + 1) * dtype.itemsize)).from_address(address)
    # The array keeps `memory` alive, and that the capsule, whose destructor gives the memory back.
    memory.capsule = capsule
    array: np.ndarray = np.ndarray(
        shape,
        dtype,
        memory,
        offset=-first * dtype.itemsize,
        strides=tuple(stride * dtype.itemsize for stride in strides),
    )
    return array
