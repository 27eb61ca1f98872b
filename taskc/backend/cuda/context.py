"""A device: its primary context, which is shared with other libraries of the process, and its properties."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

from taskc.backend.cuda.api import Api, DeviceError, api
from taskc.backend.cuda.parking import Parking
from taskc.ir.nodes import MOST_PROCESSORS
from taskc.ir.reentry import Turn
from taskc.ir.target import GPUS

# The target for each compute capability.
_TARGETS = {capability: gpu.name for gpu in GPUS for capability in gpu.capabilities}
_turn = Turn()


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
        self.encoders: dict[
            str, Any
        ] = {}  # functions that encode tensor maps, once they have been looked up
        self.parking = Parking(self)
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
        with self.current():
            self.api.cuCtxSynchronize()
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
    started = any_device.api
    attribute = started.driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    with any_device.current():
        return int(started.cuPointerGetAttribute(attribute, pointer))
