"""Arrays, streams, events and graphs of CUDA devices, for users: `taskc.device`.

    x = tc.device.array(numpy_array)           a copy on the first device
    y = kernel(x)                              runs there, and returns at once
    y.numpy()                                  waits, and copies back

Importing this needs no GPU; without one, the first use raises an error.
"""

from __future__ import annotations

from taskc.backend.cuda.api import DeviceError
from taskc.backend.cuda.array import Array, Packed, array, asarray, empty, from_dlpack
from taskc.backend.cuda.context import Context, context
from taskc.backend.cuda.program import Graph
from taskc.backend.cuda.streams import Event, Stream, current_stream as _current_stream

__all__ = [
    "Array",
    "Context",
    "DeviceError",
    "Event",
    "Graph",
    "Packed",
    "Stream",
    "array",
    "asarray",
    "context",
    "current_stream",
    "empty",
    "from_dlpack",
    "synchronize",
]


def synchronize(device: int = 0) -> None:
    """Wait for a device to finish all its work; raises an error if some of it failed."""
    context(device).synchronize()


def current_stream(device: int = 0) -> Stream:
    """The stream of calls: that of the innermost `with stream:`, or the legacy default stream."""
    return _current_stream(context(device))
