"""Python functions as handlers of XLA's foreign function interface.

A handler gets a frame with buffers to read and buffers to write, and returns null or an error. The frame's layout is
that of xla/ffi/api/c_api.h, 0.1, which later versions only extend.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from taskc.arrays.arguments import ArgumentError
from taskc.errors import CompileError, InternalError

Array: TypeAlias = "np.ndarray[Any, Any]"
Run: TypeAlias = "Callable[[list[Array], list[Array]], None]"

_VERSION = 0, 1
_METADATA = 1  # the extension by which XLA asks for the version
_INTERNAL = 13  # its error code

_HEAD = (("size", ctypes.c_size_t), ("extension", ctypes.c_void_p))


class _Buffer(ctypes.Structure):
    _fields_ = (
        *_HEAD,
        ("dtype", ctypes.c_int32),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    )


class _Buffers(ctypes.Structure):
    _fields_ = (
        *_HEAD,
        ("count", ctypes.c_int64),
        ("kinds", ctypes.c_void_p),
        ("items", ctypes.POINTER(ctypes.c_void_p)),
    )


class _Version(ctypes.Structure):
    _fields_ = (*_HEAD, ("major", ctypes.c_int32), ("minor", ctypes.c_int32))


class _Metadata(ctypes.Structure):
    """Later versions have more fields after these, which XLA has zeroed."""

    _fields_ = (("size", ctypes.c_size_t), ("version", _Version), ("traits", ctypes.c_uint32))


class _Extension(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("kind", ctypes.c_int32),
        ("next", ctypes.c_void_p),
        ("metadata", ctypes.POINTER(_Metadata)),
    )


class _ErrorArguments(ctypes.Structure):
    _fields_ = (*_HEAD, ("message", ctypes.c_char_p), ("code", ctypes.c_int32))


_MAKE_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_ErrorArguments))


class _API(ctypes.Structure):
    _fields_ = (
        *_HEAD,
        ("version", _Version),
        ("internal", ctypes.c_void_p),
        ("make_error", _MAKE_ERROR),
    )


class _CallFrame(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.POINTER(_Extension)),
        ("api", ctypes.POINTER(_API)),
        ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int32),
        ("arguments", _Buffers),
        ("results", _Buffers),
    )


_HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_handlers: list[object] = []  # kept alive: XLA has their addresses for the life of the process


def capsule_of(run: Run, dtypes: Sequence[np.dtype[Any]]) -> object:
    """A handler that runs a function on arrays over the buffers of a frame; exceptions become XLA errors.

    dtypes  of the elements of all arguments, and then of all results
    """

    def handle(address: int) -> int | None:
        frame = _CallFrame.from_address(address)
        extension = frame.extension
        if extension and extension.contents.kind == _METADATA:
            version = extension.contents.metadata.contents.version
            version.major, version.minor = _VERSION
            return None
        try:
            inputs, outputs = frame.arguments, frame.results
            count = inputs.count
            places = inputs.items[:count] + outputs.items[: outputs.count]
            arrays = [_array(at, dtype) for at, dtype in zip(places, dtypes, strict=True)]
            run(arrays[:count], arrays[count:])
        except BaseException as error:  # nothing may pass through XLA
            return _error_of(frame.api.contents, error)
        return None

    handler = _HANDLER(handle)
    _handlers.append(handler)
    return _capsule(ctypes.cast(handler, ctypes.c_void_p), b"xla._CUSTOM_CALL_TARGET", None)


def _array(address: int, dtype: np.dtype[Any]) -> Array:
    buffer = _Buffer.from_address(address)
    shape = tuple(buffer.dims[: buffer.rank])
    size = prod(shape) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    memory = (ctypes.c_char * size).from_address(buffer.data)
    array: Array = np.ndarray(shape, dtype, memory)
    return array


def _error_of(api: _API, error: BaseException) -> int | None:
    text = str(error)
    if not isinstance(error, CompileError | InternalError | ArgumentError):
        text = f"{type(error).__name__}: {text}"
    arguments = _ErrorArguments(message=text.encode(), code=_INTERNAL)
    arguments.size = _ErrorArguments.code.offset + _ErrorArguments.code.size
    address: int | None = api.make_error(arguments)
    return address
