"""Tensor maps: a tensor's description for bulk copies, encoded by the driver.

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
_SINCE = 12000  # first version of CUDA with tensor maps
_ELEMENTS = {1: "UINT8", 2: "UINT16", 4: "UINT32", 8: "UINT64"}

_TENSOR = (
    ctypes.c_void_p,  # the map
    ctypes.c_int,  # type of the elements
    ctypes.c_uint32,  # dimensions
    ctypes.c_void_p,  # address of the first element
    ctypes.c_void_p,  # extents, innermost first
    ctypes.c_void_p,  # bytes between neighbours, except in the innermost dimension
)
_OPTIONS = (
    ctypes.c_void_p,  # element strides
    *[ctypes.c_int] * 4,  # interleaving, swizzle, promotion to the L2, fill for elements outside
)
_ENCODERS = {
    "cuTensorMapEncodeTiled": ctypes.CFUNCTYPE(
        ctypes.c_int,
        *_TENSOR,
        ctypes.c_void_p,  # extents of the box
        *_OPTIONS,
    ),
    "cuTensorMapEncodeIm2col": ctypes.CFUNCTYPE(
        ctypes.c_int,
        *_TENSOR,
        ctypes.c_void_p,  # offset of the first filter: column, row
        ctypes.c_void_p,  # offset of the last filter, relative to the last pixel
        ctypes.c_uint32,  # channels of a pixel
        ctypes.c_uint32,  # pixels
        *_OPTIONS,
    ),
}


class Encoded:
    """A map at an aligned `address`."""

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
    steps = [1] * rank
    if wanted.pixels:
        name = "cuTensorMapEncodeIm2col"
        rows, columns, row_stride, column_stride, above, left = wanted.pixels
        steps[1:3] = column_stride, row_stride
        lower = -left, -above
        last = (columns - 1) * column_stride, (rows - 1) * row_stride
        upper = (lower[0] + last[0] - (shape[2] - 1), lower[1] + last[1] - (shape[1] - 1))
        count, channels = wanted.box
        copied: tuple[Any, ...] = (
            (ctypes.c_int * 2)(*lower),
            (ctypes.c_int * 2)(*upper),
            channels,
            count,
        )
    else:
        name = "cuTensorMapEncodeTiled"
        copied = ((ctypes.c_uint32 * rank)(*reversed(wanted.box)),)
    encoded = Encoded()
    status = _function(context, name)(
        encoded.address,
        _enumerated(driver.CUtensorMapDataType, f"DATA_TYPE_{_ELEMENTS[item]}"),
        rank,
        pointer,
        extents,
        strides,
        *copied,
        (ctypes.c_uint32 * rank)(*steps),
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
            f"{name} failed: {context.api.described(driver.CUresult(status))}; the tensor"
            f" has the shape {shape} with elements of {item} bytes, and the box {wanted.box}"
        )
    return encoded


def _enumerated(kind: Any, name: str) -> int:
    return int(getattr(kind, f"CU_TENSOR_MAP_{name}"))


def _function(context: Context, name: str) -> Any:
    encoder = context.encoders.get(name)
    if encoder is None:
        flags = context.api.driver.CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_DEFAULT
        address, _ = context.api.cuGetProcAddress(name.encode(), _SINCE, int(flags))
        if not address:
            raise DeviceError(f"the driver has no {name}")
        encoder = context.encoders[name] = _ENCODERS[name](int(address))
    return encoder
