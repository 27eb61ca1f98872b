"""A device: its primary context, its properties, and releases that wait for its work.

The context is shared with other libraries of the process. Memory that another library has seen, and another library's
array that our kernel still reads, are released after an event, so that nobody waits. During a capture no event may be
recorded and no memory freed (either would break the capture, or become part of it), so then they stay parked.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any
from weakref import WeakValueDictionary

from taskc.backend.cuda.api import Api, DeviceError, api
from taskc.backend.cuda.libraries import current_numbers
from taskc.dataclass import dataclass
from taskc.ir.nodes import MOST_PROCESSORS
from taskc.ir.reentry import Turn
from taskc.ir.target import GPUS


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
        foreign = current_numbers(self._context.ordinal) - {0}
        return any(self._context.is_captured(number) for number in foreign)


@dataclass(slots=True, eq=False)
class _Parked:
    """A release after all work that was in some streams, None for the whole device, when the events were recorded."""

    _parking: Parking
    _context: Any
    _release: Callable[[], None]
    _streams: tuple[Any, ...] | None
    _events: list[Any] | None = None  # not recorded yet

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
        with self._context.current():
            if self._streams is None:
                event = api.cuEventCreate(flags)
                api.cuCtxRecordEvent(self._context.handle, event)
                return [event]
            events = []
            for number in [stream.number for stream in self._streams]:
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
        # The driver may post after everything else is gone.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._word))
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


# The target for each compute capability.
_TARGETS = {capability: gpu.name for gpu in GPUS for capability in gpu.capabilities}
_turn = Turn()


class _Calls:
    """The functions of the driver, which are called while a device is current."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Callable[..., Any]:
        context, function = self._context, getattr(self._context.api, name)

        def call(*arguments: Any) -> Any:
            if context.is_current():
                return function(*arguments)
            with context.current():
                return function(*arguments)

        return call


class Context:
    """ordinal       the device's number
    name          its name from NVIDIA
    capability    its compute capability, (9, 0) for Hopper
    processors    streaming multiprocessors
    shared_bytes  most shared memory of a block, static and dynamic
    cache_bytes   size of the L2 cache
    memory_bytes  size of its memory
    """

    def __init__(self, api: Api, ordinal: int) -> None:
        self.api = api
        self.ordinal = ordinal
        self.device = api.cuDeviceGet(ordinal)
        name = api.cuDeviceGetName(256, self.device)  # bytes after the zero are undefined
        self.name = name.partition(b"\0")[0].decode(errors="replace")
        self.capability = (
            self._attribute("COMPUTE_CAPABILITY_MAJOR"),
            self._attribute("COMPUTE_CAPABILITY_MINOR"),
        )
        self.processors = min(self._attribute("MULTIPROCESSOR_COUNT"), MOST_PROCESSORS)
        self.shared_bytes = self._attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self.cache_bytes = self._attribute("L2_CACHE_SIZE")
        self.memory_bytes = api.cuDeviceTotalMem(self.device)
        has_pools = bool(self._attribute("MEMORY_POOLS_SUPPORTED"))
        self.handle = api.cuDevicePrimaryCtxRetain(self.device)
        self.number = int(self.handle)
        # By number. Streams of other libraries may be met again, so they are kept alive.
        self.streams: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self.foreign_streams: list[Any] = []
        # Functions that encode tensor maps, once they have been looked up.
        self.encoders: dict[str, Any] = {}
        self.parking = Parking(self)
        self.do = _Calls(self)
        self._pool = self._own_pool() if has_pools else None

    def _attribute(self, name: str) -> int:
        attribute = getattr(self.api.driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.api.cuDeviceGetAttribute(attribute, self.device))

    @property
    def target(self) -> str:
        """The name of the target that kernels are lowered to."""
        target_name = _TARGETS.get(self.capability)
        if target_name is None:
            major, minor = self.capability
            *known, last = [f"{major}.{minor}" for major, minor in sorted(_TARGETS)]
            raise DeviceError(
                f"CUDA device {self.ordinal}, {self.name}, has compute capability {major}.{minor},"
                f" and taskc compiles for {', '.join(known)} and {last}"
            )
        return target_name

    def _own_pool(self) -> Any:
        """A pool whose freed memory stays with the process: allocating it anew from the system takes a millisecond.

        The device's default pool belongs to all libraries of the process, so its settings are left alone.
        """
        driver = self.api.driver
        properties = driver.CUmemPoolProps()
        properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = self.ordinal
        pool = self.api.cuMemPoolCreate(properties)
        threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        self.api.cuMemPoolSetAttribute(pool, threshold, driver.cuuint64_t((1 << 64) - 1))
        return pool

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this device current, and restore the caller's context afterwards."""
        now = int(self.api.cuCtxGetCurrent())
        if now and now != self.number:
            self.api.cuCtxPushCurrent(self.handle)
            try:
                yield
            finally:
                self.api.cuCtxPopCurrent()
        else:
            if not now:  # a thread that hasn't used CUDA keeps this context
                self.api.cuCtxSetCurrent(self.handle)
            yield

    def is_current(self) -> bool:
        return int(self.api.cuCtxGetCurrent()) == self.number

    def is_captured(self, stream: int) -> bool:
        """Whether work put into a stream is captured, instead of run."""
        status = self.do.cuStreamIsCapturing(stream)
        none = self.api.driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
        return bool(status != none)

    def destroy(self, function: str, handle: Any) -> None:
        """Destroy an object of the driver in a finalizer, which has nobody to report an error to."""
        if not sys.is_finalizing():
            with suppress(Exception):
                getattr(self.do, function)(handle)

    def allocate(self, size: int, stream: int, *, ordered: bool) -> int:
        """Allocate so many bytes. If `ordered`, they are available to later work of the stream."""
        self.parking.sweep()
        with self.current():
            if ordered and self._pool is not None:
                return int(self.api.cuMemAllocFromPoolAsync(size, self._pool, stream))
            # A capturing thread may not allocate unless it declares that the graph won't repeat the allocation.
            relaxed = self.api.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            before = self.api.cuThreadExchangeStreamCaptureMode(relaxed)
            try:
                return int(self.api.cuMemAlloc(size))
            finally:
                self.api.cuThreadExchangeStreamCaptureMode(before)

    def free(self, pointer: int, stream: int, *, ordered: bool) -> None:
        """Free memory after the work that is now in the stream, which must not be capturing.

        Unless `ordered`, no stream may be capturing.
        """
        with self.current():
            if ordered and self._pool is not None:
                self.api.cuMemFreeAsync(pointer, stream)
            else:  # waits for the device
                self.api.cuMemFree(pointer)

    def synchronize(self) -> None:
        """Wait for all work of the device."""
        self.do.cuCtxSynchronize()
        self.api.forget(None)
        self.parking.sweep()
        for stream in list(self.streams.values()):
            stream.check_assertions()


def context(ordinal: int = 0) -> Context:
    """The device of a number, started at its first use."""
    started = api()
    device_context = started.contexts.get(ordinal)
    if device_context is None:
        with _turn.taken():  # without the lock, the first context stored wins
            device_context = started.contexts.get(ordinal)
            if device_context is None:
                count = started.cuDeviceGetCount()
                if not 0 <= ordinal < count:
                    raise DeviceError(f"there is no CUDA device {ordinal}; there are {count}")
                device_context = started.contexts.setdefault(ordinal, Context(started, ordinal))
    assert isinstance(device_context, Context)
    return device_context


def device_of(pointer: int) -> int:
    """The number of the device that a pointer belongs to."""
    any_device = context(0)
    attribute = any_device.api.driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(any_device.do.cuPointerGetAttribute(attribute, pointer))
