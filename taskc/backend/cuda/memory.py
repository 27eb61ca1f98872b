"""Memory of a device: its owner, and when it is freed.

| memory | freed |
| --- | --- |
| ours | in the order of its stream, after other streams that use it |
| ours, exported to another library | after all work that the device had at that point |
| another library's, in its own stream | by that library |
| another library's, in another stream | PyTorch is told; other arrays are kept until an event has passed |
| any, while one of its streams is being captured | after the capture |
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import Any

from taskc.backend.cuda.api import DeviceError
from taskc.backend.cuda.context import Context
from taskc.backend.cuda.libraries import current_number, library_of, note_use
from taskc.backend.cuda.streams import Stream


class DeviceMemory:
    """Memory of ours, which lives until nobody refers to it and the work that uses it has ended.

    It belongs to the stream in which it was allocated, and is freed in the order of that stream. Other streams
    that use it are noted: its own stream waits for them first.
    """

    def __init__(self, context: Context, size: int, stream: Stream) -> None:
        self.pointer = 0
        self.context = context
        self.stream = stream
        self.others: set[Stream] = set()
        # Whether another library has it: then the streams that use it are unknown.
        self.is_exported = False
        # An allocation in a capturing stream would belong to the graph.
        self._is_ordered = not stream.is_capturing
        if size:
            self.pointer = context.allocate(size, stream.number, ordered=self._is_ordered)

    def used(self, stream: Stream) -> None:
        """Note that a stream uses the memory from now on; that stream waits for the allocation."""
        if stream is not self.stream and stream not in self.others:
            self.others.add(stream)
            if not stream.is_capturing and not self.stream.is_capturing:
                stream.wait(self.stream)

    def ready(self, stream: Stream) -> None:
        """Order a stream after all writes to the memory so far.

        A capture can't wait for work outside of it: the code that captures has waited.
        """
        if stream.is_capturing:
            return
        for other in (self.stream, *self.others):
            if other is not stream and not other.is_capturing:
                stream.wait(other)

    def __del__(self) -> None:
        if not getattr(self, "pointer", 0) or sys.is_finalizing():
            return
        free = partial(_free, self.context, self.pointer, self.stream, self._is_ordered)
        streams = self.stream, *self.others
        with suppress(DeviceError):  # the device has failed: there is nothing to free
            try:
                is_later = self.is_exported or not self._is_ordered
                if not is_later and any(one.is_capturing for one in streams):
                    self.context.parking.add(free, streams)
                    return
                for other in () if is_later else self.others:
                    self.stream.wait(other)
            except DeviceError:  # a stream of another library no longer exists
                is_later = True
            if is_later:
                self.context.parking.add(free, None)
            else:
                free()


def _free(context: Context, pointer: int, stream: Stream, ordered: bool) -> None:
    context.free(pointer, stream.number, ordered=ordered)


class Borrowed:
    """Memory of another library's array `values`, which `owner` keeps alive."""

    def __init__(self, context: Context, stream: Stream, owner: Any, values: Any) -> None:
        self.context = context
        self.stream = stream
        self.owner = owner
        self._values = values
        self._others: set[Stream] = set()

    def used(self, stream: Stream) -> None:
        """Note that a stream uses the memory. The library orders work in its own stream."""
        if stream.is_capturing or is_own(self._values, stream):
            return
        if not note_use(self._values, stream.number, self.context.ordinal):
            self._others.add(stream)

    def ready(self, stream: Stream) -> None:
        if stream is not self.stream and not stream.is_capturing:
            stream.wait(self.stream)

    def __del__(self) -> None:
        if getattr(self, "_others", None) and not sys.is_finalizing():
            keep_borrowed((self.owner, self._values), self._others)


def is_own(values: Any, stream: Stream) -> bool:
    """Whether a stream is the current one of an array's library."""
    return current_number(library_of(values), stream.context.ordinal) == stream.number


def keep_borrowed(things: object, streams: Collection[Stream]) -> None:
    """Keep another library's objects alive until all work now in some streams has ended."""
    parking = next(iter(streams)).context.parking
    with suppress(DeviceError):
        parking.add(partial(_let_go, things), streams)


def _let_go(things: object) -> None:
    """Do nothing: `things` is released with the call."""
