"""An array of a device as a DLPack capsule.

The capsule's structures are ours until whoever took the memory calls their deleter. One that nobody took calls
it itself when it goes.
"""

from __future__ import annotations

import ctypes
from typing import Any

from taskc.arrays import dlpack
from taskc.arrays.dlpack import DLTensor, Exported, Versioned

_READ_ONLY, _IS_COPIED = 1, 2


class _Managed(ctypes.Structure):
    """What a capsule held before version 1.0."""

    _fields_ = (
        ("tensor", DLTensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


# By the address of the structure: what has to stay until its deleter is called.
_exported: dict[int, tuple[Any, ...]] = {}


# The capsule is going: as an object it would be alive again, so it is only an address.
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
    """A capsule that was taken has got another name."""
    for name in (b"dltensor", b"dltensor_versioned"):
        if _is_valid(capsule, name):
            _delete(_pointer(capsule, name))


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_delete)
_DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_destroy)


def capsule_of(given: Exported, *, is_versioned: bool, is_copy: bool) -> object:
    """Makes a capsule of memory, which holds `given.capsule` for as long."""
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
    # The name is not copied by the capsule: a literal stays.
    _exported[address] = (managed, given.capsule, shape, strides, name)
    return _new(address, name, ctypes.cast(_DESTRUCTOR, ctypes.c_void_p))
