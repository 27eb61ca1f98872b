"""Streams and events.

A call goes into the current stream: of the innermost `with stream:` of this thread or task; else of the library
that an argument comes from (torch, CuPy), if that has one; else into the device's legacy default stream, which
those libraries start with, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from threading import local
from typing import Any, Protocol

from taskc.backend.cuda.context import Context, context
from taskc.backend.cuda.libraries import current_number

LEGACY = 1  # how DLPack and __cuda_array_interface__ write the legacy default stream


class Recorder(Protocol):
    """What is told of the launches that a stream captures, and of what has to stay for them."""

    def keep(self, *things: object) -> None: ...

    def launched(
        self, name: str, look: Callable[[], None] | None, kept: Sequence[object]
    ) -> None: ...


class Stream:
    """Work of a device that runs in order. A new one doesn't wait for the legacy default stream.

    number  what CUDA calls it; 0 is the legacy default stream

    `with stream:` makes it the current one.
    """

    def __init__(self, device: int = 0) -> None:
        owner = context(device)
        with owner.current():
            flags = owner.api.driver.CUstream_flags.CU_STREAM_NON_BLOCKING
            handle = owner.api.cuStreamCreate(flags)
        self._bind(owner, int(handle), is_ours=True)
        owner.streams[self.number] = self

    @classmethod
    def of(cls, stream: Any, device: int = 0) -> Stream:
        """Another library's stream: its number, or an object of torch's, CuPy's or cuda-python's."""
        if isinstance(stream, Stream):
            return stream
        if hasattr(stream, "__cuda_stream__"):
            number = int(stream.__cuda_stream__()[1])
        else:
            number = int(getattr(stream, "cuda_stream", getattr(stream, "ptr", stream)))
        return stream_of(context(device), number)

    def _bind(self, owner: Context, number: int, *, is_ours: bool) -> None:
        self.context = owner
        self.number = number
        self.captured_by: Recorder | None = None
        # What looks, once the stream has been waited for, whether an assertion has failed.
        self.assertions: dict[Callable[[], None], None] = {}
        self.of_thread = local()  # what each thread has for its calls in the stream
        self._is_ours = is_ours

    @property
    def is_capturing(self) -> bool:
        """What is put into it is captured, by a `Graph` or by another library, and doesn't run."""
        if self.captured_by is not None or not self.number:  # the legacy default stream can't be
            return self.captured_by is not None
        api = self.context.api
        with self.context.current():
            status = api.cuStreamIsCapturing(self.number)
        return bool(status != api.driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)

    @property
    def recorder(self) -> Recorder | None:
        """The one that captures what is put into it: a `Graph`, or another library; None: nobody does."""
        if self.captured_by is None and self.is_capturing:
            return ForeignCapture(self)
        return self.captured_by

    def synchronize(self) -> None:
        """Waits for all that is in the stream; says what went wrong in it."""
        with self.context.current():
            self.context.api.cuStreamSynchronize(self.number)
        self.context.api.forget(self.number)
        self.context.parking.sweep()
        self.check_assertions()

    def check_assertions(self) -> None:
        """Raises a `CheckError` where an assertion of a kernel that has ended didn't hold."""
        while self.assertions:
            look, _ = self.assertions.popitem()
            look()

    def record(self, *, timing: bool = True) -> Event:
        """An event that happens when what is in the stream now has ended."""
        event = Event(self.context.ordinal, timing=timing)
        event.record(self)
        return event

    def wait(self, other: Event | Stream) -> None:
        """What comes later in this stream begins after an event, or after what is in another stream now."""
        if isinstance(other, Stream):
            if other.number == self.number:
                return
            other = other.record(timing=False)
        with self.context.current():
            self.context.api.cuStreamWaitEvent(self.number, other.handle, 0)

    def __enter__(self) -> Stream:
        _entered.set((*_entered.get(), self))
        return self

    def __exit__(self, *error: object) -> None:
        _entered.set(_entered.get()[:-1])

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.number

    def __repr__(self) -> str:
        name = "legacy default" if self.number == 0 else hex(self.number)
        return f"<stream {name} of CUDA device {self.context.ordinal}>"

    def __del__(self) -> None:
        if getattr(self, "_is_ours", False) and not sys.is_finalizing():
            with suppress(Exception), self.context.current():  # nobody to tell
                self.context.api.cuStreamDestroy(self.number)


class ForeignCapture:
    """The capture of another library, whose graph keeps what is put into the stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def keep(self, *things: object) -> None:
        owner = self._stream.context
        with owner.current():
            _, _, graph, *_ = owner.api.cuStreamGetCaptureInfo(self._stream.number)
            owner.parking.keep_with(graph, things)

    def launched(self, name: str, look: Callable[[], None] | None, kept: Sequence[object]) -> None:
        self.keep(*kept)
        if look is not None:  # nobody tells when the graph runs
            self._stream.assertions[look] = None


class Event:
    """A point in a stream."""

    def __init__(self, device: int = 0, *, timing: bool = True) -> None:
        self.context = context(device)
        flags = self.context.api.driver.CUevent_flags
        chosen = flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING
        with self.context.current():
            self.handle = self.context.api.cuEventCreate(chosen)

    def record(self, stream: Stream | None = None) -> None:
        """Puts it behind what is in a stream now, the current one if none is given."""
        stream = stream or current_stream(self.context)
        with self.context.current():
            self.context.api.cuEventRecord(self.handle, stream.number)

    def synchronize(self) -> None:
        """Waits until it has happened."""
        with self.context.current():
            self.context.api.cuEventSynchronize(self.handle)

    def since(self, earlier: Event) -> float:
        """The milliseconds between two events that have happened."""
        with self.context.current():
            return float(self.context.api.cuEventElapsedTime(earlier.handle, self.handle))

    def __del__(self) -> None:
        if hasattr(self, "handle") and not sys.is_finalizing():
            with suppress(Exception), self.context.current():
                self.context.api.cuEventDestroy(self.handle)


# The `with stream:` around this, outermost first; each thread and each task has its own.
_entered: ContextVar[tuple[Stream, ...]] = ContextVar("taskc_streams", default=())


def current_stream(owner: Context, library: str = "") -> Stream:
    """Finds where a call on a device goes; `library` is the one that its arrays come from."""
    for stream in reversed(_entered.get()):
        if stream.context is owner:
            return stream
    number = current_number(library, owner.ordinal) or 0
    return owner.streams.get(number) or stream_of(owner, number)


def order_after(owner: Context, libraries: Sequence[str], stream: Stream) -> None:
    """Have a stream wait for what libraries have put into their own until now.

    What is captured can't wait for anything outside: whoever captures it has waited.
    """
    numbers = {current_number(library, owner.ordinal) for library in libraries} - {None}
    others = [stream_of(owner, number) for number in numbers if number is not None]
    for other in others:
        if other.number != stream.number and not stream.is_capturing:
            stream.wait(other)


def is_entered() -> bool:
    """Whether a call's stream is that of a `with stream:`, and not that of its arrays' library."""
    return bool(_entered.get())


def stream_of(owner: Context, number: int) -> Stream:
    """A stream that is not ours, by its number. DLPack's LEGACY is CUDA's 0 as well."""
    number = 0 if number == LEGACY else number
    found = owner.streams.get(number)
    if found is None:
        made = Stream.__new__(Stream)
        made._bind(owner, number, is_ours=False)
        found = owner.streams[number] = made
        owner.foreign_streams.append(made)
    assert isinstance(found, Stream)
    return found
