"""Streams and events.

A call goes into the current stream: the innermost `with stream:` of this thread or task, else the current stream of
the library that an argument comes from (torch, CuPy), else the device's legacy default stream, which those libraries
start with, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from threading import local
from typing import Any, Protocol

from taskc.backend.cuda.context import Context, context
from taskc.backend.cuda.libraries import current_number

LEGACY = 1  # the legacy default stream in DLPack and __cuda_array_interface__


class Recorder(Protocol):
    """Notified of the launches that a stream captures, and of objects to keep alive for them."""

    def keep(self, *things: object) -> None: ...

    def launched(
        self, name: str, look: Callable[[], None] | None, kept: Sequence[object]
    ) -> None: ...


class Stream:
    """An in-order queue of a device's work. A new one doesn't wait for the legacy default stream.

    number  CUDA's handle; 0 is the legacy default stream

    `with stream:` makes it the current one.
    """

    def __init__(self, device: int = 0) -> None:
        owner = context(device)
        flags = owner.api.driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        self._bind(owner, int(owner.do.cuStreamCreate(flags)), is_ours=True)
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
        # Callbacks that raise failed assertions, once the stream has been waited for.
        self.assertions: dict[Callable[[], None], None] = {}
        self.of_thread = local()  # per-thread state for calls in the stream
        self._is_ours = is_ours

    @property
    def is_capturing(self) -> bool:
        """Whether work put into it is captured, by a `Graph` or another library, instead of run."""
        if self.captured_by is not None:
            return True
        # The legacy default stream can't be captured.
        return self.number != 0 and self.context.is_captured(self.number)

    @property
    def recorder(self) -> Recorder | None:
        """The recorder of a capture: a `Graph`, or another library's; None outside of a capture."""
        if self.captured_by is None and self.is_capturing:
            return ForeignCapture(self)
        return self.captured_by

    def synchronize(self) -> None:
        """Wait for all work in the stream; raises its errors."""
        self.context.do.cuStreamSynchronize(self.number)
        self.context.api.forget(self.number)
        self.context.parking.sweep()
        self.check_assertions()

    def check_assertions(self) -> None:
        """Raise a `CheckError` if an assertion failed in a kernel that has ended."""
        while self.assertions:
            look, _ = self.assertions.popitem()
            look()

    def record(self, *, timing: bool = True) -> Event:
        """An event that completes with the work that is now in the stream."""
        event = Event(self.context.ordinal, timing=timing)
        event.record(self)
        return event

    def wait(self, other: Event | Stream) -> None:
        """Order later work of this stream after an event, or after the work now in another stream."""
        if isinstance(other, Stream):
            if other.number == self.number:
                return
            other = other.record(timing=False)
        self.context.do.cuStreamWaitEvent(self.number, other.handle, 0)

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
        if getattr(self, "_is_ours", False):
            self.context.destroy("cuStreamDestroy", self.number)


class ForeignCapture:
    """Another library's capture, whose graph keeps objects alive."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def keep(self, *things: object) -> None:
        owner = self._stream.context
        _, _, graph, *_ = owner.do.cuStreamGetCaptureInfo(self._stream.number)
        with owner.current():
            owner.parking.keep_with(graph, things)

    def launched(self, name: str, look: Callable[[], None] | None, kept: Sequence[object]) -> None:
        self.keep(*kept)
        if look is not None:  # the graph's runs are not reported
            self._stream.assertions[look] = None


class Event:
    """A point in a stream."""

    def __init__(self, device: int = 0, *, timing: bool = True) -> None:
        self.context = context(device)
        flags = self.context.api.driver.CUevent_flags
        chosen = flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING
        self.handle = self.context.do.cuEventCreate(chosen)

    def record(self, stream: Stream | None = None) -> None:
        """Record it after the work that is now in a stream, by default the current one."""
        stream = stream or current_stream(self.context)
        self.context.do.cuEventRecord(self.handle, stream.number)

    def synchronize(self) -> None:
        """Wait until it has completed."""
        self.context.do.cuEventSynchronize(self.handle)

    def since(self, earlier: Event) -> float:
        """The milliseconds between two events that have completed."""
        return float(self.context.do.cuEventElapsedTime(earlier.handle, self.handle))

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            self.context.destroy("cuEventDestroy", self.handle)


# The enclosing `with stream:` blocks, outermost first, for each thread and each task.
_entered: ContextVar[tuple[Stream, ...]] = ContextVar("taskc_streams", default=())


def current_stream(owner: Context, library: str = "") -> Stream:
    """The stream for a call on a device; `library` is the one that its arrays come from."""
    for stream in reversed(_entered.get()):
        if stream.context is owner:
            return stream
    number = current_number(library, owner.ordinal) or 0
    return owner.streams.get(number) or stream_of(owner, number)


def order_after(owner: Context, libraries: Sequence[str], stream: Stream) -> None:
    """Make a stream wait for the work that libraries have put into their own streams.

    A capture can't wait for work outside of it: the code that captures has waited.
    """
    numbers = {current_number(library, owner.ordinal) for library in libraries} - {None}
    others = [stream_of(owner, number) for number in numbers if number is not None]
    for other in others:
        if other.number != stream.number and not stream.is_capturing:
            stream.wait(other)


def is_entered() -> bool:
    """Whether a `with stream:` sets the stream of calls, instead of their arrays' library."""
    return bool(_entered.get())


def stream_of(owner: Context, number: int) -> Stream:
    """A stream that is not ours, by its number. DLPack's LEGACY is CUDA's 0, too."""
    number = 0 if number == LEGACY else number
    stream = owner.streams.get(number)
    if stream is None:
        foreign = Stream.__new__(Stream)
        foreign._bind(owner, number, is_ours=False)
        stream = owner.streams[number] = foreign
        owner.foreign_streams.append(foreign)
    assert isinstance(stream, Stream)
    return stream
