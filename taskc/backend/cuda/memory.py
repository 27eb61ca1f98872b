"""Memory of a device: who owns it, and when it can be given back."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from taskc.backend.cuda.api import DeviceError
from taskc.backend.cuda.context import Context
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
        self._is_ordered = stream.recorder is None
        if size:
            self.pointer = context.allocate(size, stream.number, ordered=self._is_ordered)

    def used(self, stream: Stream) -> None:
        """Work in this stream uses it."""
        if stream is not self.stream:
            self.others.add(stream)

    def ready(self, stream: Stream) -> None:
        """What comes later in a stream finds all that was written to it until now.

        What is captured can't wait for anything outside: whoever captured it has waited.
        """
        if stream.recorder is not None:
            return
        for other in (self.stream, *self.others):
            if other is not stream:
                stream.wait(other)

    def __del__(self) -> None:
        if not getattr(self, "pointer", 0) or sys.is_finalizing():
            return
        with suppress(DeviceError):  # the device has failed: there is nothing to give back to
            if self.is_exported:
                with self.context.current():
                    self.context.api.cuCtxSynchronize()
            else:
                for other in self.others:
                    self.stream.wait(other)
            self.context.free(self.pointer, self.stream.number, ordered=self._is_ordered)


class Borrowed:
    """Memory of another library, which `owner` keeps."""

    def __init__(self, context: Context, stream: Stream, owner: Any) -> None:
        self.context = context
        self.stream = stream
        self.owner = owner

    def used(self, stream: Stream) -> None:
        """Its library orders it."""

    def ready(self, stream: Stream) -> None:
        if stream is not self.stream and stream.recorder is None:
            stream.wait(self.stream)
