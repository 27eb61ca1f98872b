"""The part of compiled code that reads PyTorch tensors (c/torch_tensors.c), set up when a call first has one; and the
class of JAX's arrays, which have buffers as NumPy's do."""

from __future__ import annotations

import ctypes

from taskc.arrays.dlpack import DTYPES, type_code
from taskc.arrays.torch import Door, door
from taskc.backend.cpu.jit import Library
from taskc.backend.cpu.pool import pool

# read_tensor, new_tensor, and the class of arrays with buffers: null until they are set up.
_table = (ctypes.c_void_p * 3)()
TABLE = ctypes.addressof(_table)
_kept: list[
    object
] = []  # objects whose addresses compiled code has, kept alive for the life of the process


class _Sample(ctypes.Structure):
    """A row of `samples`."""

    _fields_ = (("type", ctypes.c_int32), ("tensor", ctypes.c_void_p))


def admit_tensors() -> None:
    """Let compiled code accept tensors directly, where this PyTorch supports it."""
    if _table[0]:
        return
    torch_door = door(DTYPES)
    if torch_door is None:
        return
    library = pool().library
    _fill(library, torch_door)
    _kept.append(torch_door)
    _table[1] = library["new_tensor"]
    _table[0] = library["read_tensor"]


def admit_arrays(kind: type) -> None:
    """Let compiled code accept arrays of a class through their buffers, where they are only read."""
    if _table[2] != id(kind):
        _kept.append(kind)
        _table[2] = id(kind)


def _fill(library: Library, found: Door) -> None:
    """Fill in `torch` and `samples`."""
    words = (found.read, *map(id, found.objects))
    (ctypes.c_void_p * len(words)).from_address(library["torch"])[:] = [*words]
    rows = (_Sample * len(found.samples)).from_address(library["samples"])
    for row, (dtype, tensor) in zip(rows, found.samples.items(), strict=True):
        row.type, row.tensor = type_code(dtype), id(tensor)
