"""Deferred releases: objects that live until a device has finished with them, tracked by events so that nobody waits.

Memory that another library has seen, and another library's array that our kernel still reads, are released after an
event. During a capture no event may be recorded and no memory freed (either would break the capture, or become part
of it), so then they stay parked.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from taskc.backend.cuda.api import DeviceError
from taskc.backend.cuda.libraries import current_numbers


class Parking:
    def __init__(self, context: Any) -> None:
        self._captures: set[object] = set()  # our captures that are under way
        self._context = context
        # A deque, popped and pushed one by one: finalizers and other threads add at any time.
        self._parked: deque[_Parked | _WithGraph] = deque()

    def add(self, release: Callable[[], None], streams: Iterable[Any] | None) -> None:
        """Call `release` after all work now in these streams, or in the whole device for None."""
        chosen = None if streams is None else tuple(streams)
        self._parked.append(_Parked(self, self._context, release, chosen))
        self.sweep()

    def keep_with(self, graph: Any, things: tuple[object, ...]) -> None:
        """Keep objects alive as long as another library's graph, and everything instantiated from it."""
        self._parked.append(_WithGraph(self._context, graph, things))

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Mark that one of our graphs is being captured."""
        token = object()
        self._captures.add(token)
        try:
            yield
        finally:
            self._captures.discard(token)

    def sweep(self) -> None:
        """Release everything the device has finished with."""
        if not self._parked or self.is_capturing():
            return
        for _ in range(len(self._parked)):
            try:
                one = self._parked.popleft()
            except IndexError:  # another thread sweeps, too
                return
            with suppress(DeviceError):  # the device has failed: there is nothing to free
                if not one.is_over():
                    self._parked.append(one)

    def is_capturing(self, streams: Iterable[Any] = ()) -> bool:
        """Whether anything is being captured: by a graph of ours, in these streams, or in another library's current
        one.
        """
        if self._captures or any(stream.is_capturing for stream in streams):
            return True
        api, kinds = self._context.api, self._context.api.driver.CUstreamCaptureStatus
        for number in current_numbers(self._context.ordinal) - {0}:
            with self._context.current():
                if api.cuStreamIsCapturing(number) != kinds.CU_STREAM_CAPTURE_STATUS_NONE:
                    return True
        return False


class _Parked:
    def __init__(
        self,
        parking: Parking,
        context: Any,
        release: Callable[[], None],
        streams: tuple[Any, ...] | None,
    ) -> None:
        self._parking = parking
        self._context = context
        self._release = release
        self._streams = streams
        self._events: list[Any] | None = None  # not recorded yet

    def is_over(self) -> bool:
        if self._events is None:
            try:
                if self._parking.is_capturing(self._streams or ()):
                    return False
                self._events = self._recorded()
            except DeviceError:
                if self._streams is None:
                    raise
                self._streams = None  # one of the streams is gone, and its work may not be over
                return False
        api = self._context.api
        with self._context.current():
            while self._events:
                if not api.has_passed(self._events[-1]):
                    return False
                api.cuEventDestroy(self._events.pop())
        self._release()
        return True

    def _recorded(self) -> list[Any]:
        api = self._context.api
        flags = api.driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
        numbers = None if self._streams is None else [stream.number for stream in self._streams]
        with self._context.current():
            if numbers is None:
                event = api.cuEventCreate(flags)
                api.cuCtxRecordEvent(self._context.handle, event)
                return [event]
            events = []
            for number in numbers:
                events.append(api.cuEventCreate(flags))
                api.cuEventRecord(events[-1], number)
        return events


class _WithGraph:
    """Objects that live as long as a graph. The graph's end is signalled by a user object, whose destructor runs in a
    driver thread and may call neither CUDA nor Python. So it posts a semaphore, which later calls poll.
    """

    def __init__(self, context: Any, graph: Any, things: tuple[object, ...]) -> None:
        self._things = things
        self._word = ctypes.create_string_buffer(64)  # a sem_t
        semaphores = _semaphores()
        if semaphores is None:  # no such semaphore here: the objects live as long as the process
            return
        initialize, post, _ = semaphores
        initialize(self._word, 0, 0)
        ctypes.pythonapi.Py_IncRef(
            ctypes.py_object(self._word)
        )  # the driver may post after everything else is gone
        driver = context.api.driver
        user_object = context.api.cuUserObjectCreate(
            ctypes.addressof(self._word),
            driver.CUhostFn(ctypes.cast(post, ctypes.c_void_p).value),
            1,
            int(driver.CUuserObject_flags.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
        )
        move_flag = int(driver.CUuserObjectRetain_flags.CU_GRAPH_USER_OBJECT_MOVE)
        context.api.cuGraphRetainUserObject(graph, user_object, 1, move_flag)

    def is_over(self) -> bool:
        semaphores = _semaphores()
        if semaphores is None or semaphores[2](self._word) != 0:
            return False
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(self._word))
        return True


@cache
def _semaphores() -> tuple[Any, Any, Any] | None:
    try:
        library = ctypes.CDLL(None)
        return library.sem_init, library.sem_post, library.sem_trywait
    except (OSError, TypeError, AttributeError):
        return None
