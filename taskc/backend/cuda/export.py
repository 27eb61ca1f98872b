"""A device array as a DLPack capsule.

The capsule's structures stay alive until the consumer calls their deleter. A capsule that nobody consumed calls it
itself when it is destroyed.
"""

from __future__ import annotations

import ctypes
from typing import Any

from taskc.arrays import dlpack
from taskc.arrays.dlpack import DLTensor, Exported, Versioned

_READ_ONLY, _IS_COPIED = 1, 2


class _Managed(ctypes.Structure):
    """The contents of a capsule before version 1.0."""

    _fields_ = (
        ("tensor", DLTensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


# By a structure's address: the objects to keep alive until its deleter is called.
_exported: dict[int, tuple[Any, ...]] = {}


# The capsule is being destroyed: a reference would revive it, so it is passed as an address.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


def _delete(address: int) -> None:
    _exported.pop(address, None)


def _destroy(capsule: int) -> None:
    """A capsule that was consumed has another name."""
    for name in (b"dltensor", b"dltensor_versioned"):
        if _is_valid(capsule, name):
            _delete(_pointer(capsule, name))


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_delete)
_DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_destroy)


def capsule_of(given: Exported, *, is_versioned: bool, is_copy: bool) -> object:
    """A capsule for memory, which keeps `given.capsule` alive."""
    count = len(given.shape)
    shape = (ctypes.c_int64 * count)(*given.shape)
    strides = (ctypes.c_int64 * count)(*given.strides)
    code, bits = dlpack.code_of(given.dtype)
    kind, number = given.device
    tensor = DLTensor(
        data=given.pointer,
        device_type=kind,
        device_id=number,
        ndim=count,
        code=code,
        bits=bits,
        lanes=1,
        shape=shape,
        strides=strides,
        byte_offset=0,
    )
    deleter = ctypes.cast(_DELETER, ctypes.c_void_p)
    managed: Any
    if is_versioned:
        flags = _READ_ONLY * given.is_read_only | _IS_COPIED * is_copy
        managed = Versioned(1, 0, None, deleter, flags, tensor)
        name = b"dltensor_versioned"
    else:
        managed = _Managed(tensor, None, deleter)
        name = b"dltensor"
    address = ctypes.addressof(managed)
    # The capsule doesn't copy the name, which is a literal and stays.
    _exported[address] = (managed, given.capsule, shape, strides, name)
    return _new(address, name, ctypes.cast(_DESTRUCTOR, ctypes.c_void_p))
