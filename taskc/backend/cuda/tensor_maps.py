"""Tensor maps: what bulk copies have to know of a tensor, encoded by the driver.

The driver wants 64-byte aligned memory for a map, which cuda-python's own objects don't have. So the function is
called by its address, with memory of ours.
"""

from __future__ import annotations

import ctypes
from typing import Any

from taskc.backend.cuda.api import DeviceError
from taskc.backend.cuda.compiled import TensorMap
from taskc.backend.cuda.context import Context

BYTES = 128
_ALIGNMENT = 64
_SINCE = 12000  # the version of CUDA that has had them since
_ELEMENTS = {1: "UINT8", 2: "UINT16", 4: "UINT32", 8: "UINT64"}

_ENCODE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,  # the map
    ctypes.c_int,  # type of the elements
    ctypes.c_uint32,  # dimensions
    ctypes.c_void_p,  # where the tensor begins
    ctypes.c_void_p,  # extents, innermost first
    ctypes.c_void_p,  # bytes between neighbours, without those of the innermost
    ctypes.c_void_p,  # extents of the box
    ctypes.c_void_p,  # steps between its elements
    *[ctypes.c_int] * 4,  # interleaving, swizzle, promotion to the L2, what fills the outside
)


class Encoded:
    """A map, at an aligned `address`."""

    __slots__ = ("_memory", "address")

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(BYTES + _ALIGNMENT)
        self.address = -(-ctypes.addressof(self._memory) // _ALIGNMENT) * _ALIGNMENT


def encode(
    context: Context, wanted: TensorMap, pointer: int, shape: tuple[int, ...], item: int
) -> Encoded:
    """A map of a row-major tensor with elements of so many bytes."""
    driver, rank = context.api.driver, len(shape)
    extents = (ctypes.c_uint64 * rank)(*reversed(shape))
    pitches, pitch = [], item
    for extent in reversed(shape[1:]):
        pitch *= extent
        pitches.append(pitch)
    strides = (ctypes.c_uint64 * max(1, rank - 1))(*pitches)
    box = (ctypes.c_uint32 * rank)(*reversed(wanted.box))
    steps = (ctypes.c_uint32 * rank)(*[1] * rank)
    made = Encoded()
    status = _function(context)(
        made.address,
        _enumerated(driver.CUtensorMapDataType, f"DATA_TYPE_{_ELEMENTS[item]}"),
        rank,
        pointer,
        extents,
        strides,
        box,
        steps,
        _enumerated(driver.CUtensorMapInterleave, "INTERLEAVE_NONE"),
        _enumerated(
            driver.CUtensorMapSwizzle,
            f"SWIZZLE_{wanted.swizzle}B" if wanted.swizzle else "SWIZZLE_NONE",
        ),
        _enumerated(driver.CUtensorMapL2promotion, "L2_PROMOTION_L2_128B"),
        _enumerated(driver.CUtensorMapFloatOOBfill, "FLOAT_OOB_FILL_NONE"),
    )
    if status != 0:
        raise DeviceError(
            f"cuTensorMapEncodeTiled failed: {context.api.described(driver.CUresult(status))}; the tensor"
            f" has the shape {shape} with elements of {item} bytes, and the box {wanted.box}"
        )
    return made


def _enumerated(kind: Any, name: str) -> int:
    return int(getattr(kind, f"CU_TENSOR_MAP_{name}"))


def _function(context: Context) -> Any:
    found = context.encoder
    if found is None:
        flags = context.api.driver.CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_DEFAULT
        address, _ = context.api.cuGetProcAddress(b"cuTensorMapEncodeTiled", _SINCE, int(flags))
        if not address:
            raise DeviceError("the driver has no cuTensorMapEncodeTiled")
        found = context.encoder = _ENCODE(int(address))
    return found
