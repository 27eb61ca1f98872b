"""Memory of a device: who owns it, and when it can be given back.

| memory | goes back |
| --- | --- |
| ours | in the order of its stream, after the other streams that use it |
| ours, and another library has seen it | once all that the device had then has ended |
| another library's, in that library's own stream | when the library says |
| another library's, in another stream | PyTorch is told; other arrays are kept until an event has passed |
| any, while one of its streams is captured | after the capture |
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


class Memory:
    """What `allocate` gives: it lives until nobody refers to it, and until the work that uses it has ended.

    It belongs to the stream in which it was allocated, and goes back in the order of that stream. Other streams
    in which it is used are noted: that one waits for them first.
    """

    def __init__(self, context: Context, size: int, stream: Stream) -> None:
        self.pointer = 0
        self.context = context
        self.stream = stream
        self.others: set[Stream] = set()
        # Whether another library has it: then nobody knows which streams use it.
        self.is_exported = False
        # An allocation in a stream that is being captured would belong to the graph.
        self._is_ordered = not stream.is_capturing
        if size:
            self.pointer = context.allocate(size, stream.number, ordered=self._is_ordered)

    def used(self, stream: Stream) -> None:
        """Work in this stream uses it from now on. It is there for other streams once its own has come to it."""
        if stream is not self.stream and stream not in self.others:
            self.others.add(stream)
            if not stream.is_capturing and not self.stream.is_capturing:
                stream.wait(self.stream)

    def ready(self, stream: Stream) -> None:
        """What comes later in a stream finds all that was written to it until now.

        What is captured can't wait for anything outside: whoever captured it has waited.
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
        with suppress(DeviceError):  # the device has failed: there is nothing to give back to
            try:
                is_later = self.is_exported or not self._is_ordered
                if not is_later and any(one.is_capturing for one in streams):
                    self.context.parking.add(free, streams)
                    return
                for other in () if is_later else self.others:
                    self.stream.wait(other)
            except DeviceError:  # a stream of another library's is gone
                is_later = True
            if is_later:
                self.context.parking.add(free, None)
            else:
                free()


def _free(context: Context, pointer: int, stream: Stream, ordered: bool) -> None:
    context.free(pointer, stream.number, ordered=ordered)


class Borrowed:
    """Memory of another library: of the array `values`, which `owner` keeps."""

    def __init__(self, context: Context, stream: Stream, owner: Any, values: Any) -> None:
        self.context = context
        self.stream = stream
        self.owner = owner
        self._values = values
        self._others: set[Stream] = set()

    def used(self, stream: Stream) -> None:
        """Work in this stream uses it. The library orders what is in its own."""
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
    """Whether a stream is the one into which an array's library puts its work now."""
    return current_number(library_of(values), stream.context.ordinal) == stream.number


def keep_borrowed(things: object, streams: Collection[Stream]) -> None:
    """Keep what belongs to another library until all that is in some streams now has ended."""
    parking = next(iter(streams)).context.parking
    with suppress(DeviceError):
        parking.add(partial(_let_go, things), streams)


def _let_go(things: object) -> None:
    """Nothing: `things` goes with the call."""
