"""Copies between the CPU and a device, and on a device."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from taskc.backend.cuda.streams import Stream

if TYPE_CHECKING:
    from taskc.backend.cuda.array import Array


def from_host(pointer: int, source: np.ndarray, stream: Stream) -> None:
    """It waits for the copy: `source` is its owner's again afterwards."""
    dense = np.ascontiguousarray(source)
    if dense.nbytes:
        with stream.context.current():
            stream.context.api.cuMemcpyHtoDAsync(
                pointer, dense.ctypes.data, dense.nbytes, stream.number
            )
        stream.synchronize()


def to_host(target: np.ndarray, pointer: int, stream: Stream) -> None:
    """It waits for all of the stream, so that what failed in it is reported."""
    if target.nbytes:
        with stream.context.current():
            stream.context.api.cuMemcpyDtoHAsync(
                target.ctypes.data, pointer, target.nbytes, stream.number
            )
    stream.synchronize()


def on_device(target: Array, source: Array, stream: Stream) -> None:
    """Into a contiguous array, in the order of a stream; the driver copies two dimensions at a time."""
    for memory in (target.memory, source.memory):
        memory.ready(stream)
        memory.used(stream)
    if stream.recorder is not None:
        stream.recorder.keep(target, source)
    if not target.nbytes:
        return
    api = stream.context.api
    with stream.context.current():
        if source.is_contiguous:
            api.cuMemcpyDtoDAsync(target.pointer, source.pointer, target.nbytes, stream.number)
            return
        for to, start, height, width, pitch in planes(target, source):
            copy = _plane(api.driver, to, start, height, width, pitch)
            api.cuMemcpy2DAsync(copy, stream.number)


Plane = tuple[int, int, int, int, int]


def planes(target: Array, source: Array) -> list[Plane]:
    """What is copied at once: (to, from, lines, bytes of a line, bytes between lines of the source)."""
    item = source.dtype.itemsize
    dimensions = [(n, step) for n, step in zip(source.shape, source.strides, strict=True) if n != 1]
    width = item
    while dimensions and dimensions[-1][1] == width:
        width *= dimensions.pop()[0]
    height, pitch = 1, width
    if dimensions and dimensions[-1][1] >= width:
        height, pitch = dimensions.pop()
    found = []
    for number, indices in enumerate(product(*[range(n) for n, _ in dimensions])):
        offset = sum(i * step for i, (_, step) in zip(indices, dimensions, strict=True))
        to = target.pointer + number * height * width
        found.append((to, source.pointer + offset, height, width, pitch))
    return found


def _plane(driver: Any, to: int, start: int, height: int, width: int, pitch: int) -> Any:
    copy = driver.CUDA_MEMCPY2D()
    copy.srcMemoryType = copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.srcDevice, copy.srcPitch = start, pitch
    copy.dstDevice, copy.dstPitch = to, width
    copy.WidthInBytes, copy.Height = width, height
    return copy
