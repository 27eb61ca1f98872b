"""Copies between the CPU and a device, and on a device."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from taskc.backend.cuda.streams import Stream


def from_host(pointer: int, source: np.ndarray, stream: Stream) -> None:
    """Copy to the device and wait, so that `source` may be reused."""
    dense = np.ascontiguousarray(source)
    if dense.nbytes:
        with stream.context.current():
            stream.context.api.cuMemcpyHtoDAsync(
                pointer, dense.ctypes.data, dense.nbytes, stream.number
            )
        stream.synchronize()


def to_host(target: np.ndarray, pointer: int, stream: Stream) -> None:
    """Copy to the CPU and wait for all work of the stream, so that its errors are raised."""
    if target.nbytes:
        with stream.context.current():
            stream.context.api.cuMemcpyDtoHAsync(
                target.ctypes.data, pointer, target.nbytes, stream.number
            )
    stream.synchronize()


def on_device(
    to: int, start: int, shape: tuple[int, ...], strides: tuple[int, ...], item: int, stream: Stream
) -> None:
    """Copy elements of `item` bytes with the given `strides` to contiguous memory.

    The driver copies two dimensions at a time.
    """
    if 0 in shape:
        return
    api = stream.context.api
    with stream.context.current():
        for place, first, height, width, pitch in planes(to, start, shape, strides, item):
            if height == 1:
                api.cuMemcpyDtoDAsync(place, first, width, stream.number)
            else:
                copy = _plane(api.driver, place, first, height, width, pitch)
                api.cuMemcpy2DAsync(copy, stream.number)


Plane = tuple[int, int, int, int, int]


def planes(
    to: int, start: int, shape: tuple[int, ...], strides: tuple[int, ...], item: int
) -> list[Plane]:
    """The 2-D copies that make up a copy: (to, from, lines, bytes of a line, bytes between lines of the source)."""
    dimensions = [(n, step) for n, step in zip(shape, strides, strict=True) if n != 1]
    width = item
    while dimensions and dimensions[-1][1] == width:
        width *= dimensions.pop()[0]
    height, pitch = 1, width
    if dimensions and dimensions[-1][1] >= width:
        height, pitch = dimensions.pop()
    copies = []
    for number, indices in enumerate(product(*[range(n) for n, _ in dimensions])):
        offset = sum(i * step for i, (_, step) in zip(indices, dimensions, strict=True))
        copies.append((to + number * height * width, start + offset, height, width, pitch))
    return copies


def _plane(driver: Any, to: int, start: int, height: int, width: int, pitch: int) -> Any:
    copy = driver.CUDA_MEMCPY2D()
    copy.srcMemoryType = copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.srcDevice, copy.srcPitch = start, pitch
    copy.dstDevice, copy.dstPitch = to, width
    copy.WidthInBytes, copy.Height = width, height
    return copy
