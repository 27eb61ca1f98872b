"""A driver without a GPU: a device's memory is the CPU's, and its kernels are functions of Python.

It has the functions of cuda-python that are used, with their ways to be called, and notes every call. Its types
and enumerations are cuda-python's own, which can be imported without a driver. Streams are those of fake_streams.py,
and graphs those of fake_graphs.py. Which accesses of memory nobody has ordered is found by fake_order.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cuda.bindings import driver as real

from tests.backend.cuda.fake_graphs import FakeGraphs
from tests.backend.cuda.fake_order import Order, Touch
from tests.backend.cuda.fake_streams import FakeStreams, Point
from tests.backend.cuda.tensor_map_rules import broken_rules

SUCCESS = real.CUresult.CUDA_SUCCESS
INVALID_VALUE = real.CUresult.CUDA_ERROR_INVALID_VALUE
ILLEGAL_ADDRESS = real.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
LAUNCH_FAILED = real.CUresult.CUDA_ERROR_LAUNCH_FAILED
NO_DEVICE = real.CUresult.CUDA_ERROR_NO_DEVICE
NOT_READY = real.CUresult.CUDA_ERROR_NOT_READY
ISOLATED = real.CUresult.CUDA_ERROR_STREAM_CAPTURE_ISOLATION
NOT_IN_CAPTURE = real.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
TOO_LARGE = real.CUresult.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
CLUSTER_SIZE = real.CUresult.CUDA_ERROR_INVALID_CLUSTER_SIZE

# A kernel that has failed takes its context with it: every later call in it gives the same error.
STICKY = (
    ILLEGAL_ADDRESS,
    LAUNCH_FAILED,
    real.CUresult.CUDA_ERROR_LAUNCH_TIMEOUT,
    real.CUresult.CUDA_ERROR_ASSERT,
    real.CUresult.CUDA_ERROR_MISALIGNED_ADDRESS,
    real.CUresult.CUDA_ERROR_ILLEGAL_INSTRUCTION,
)

# Of shared memory: what a block has unasked, and what it may ask for.
_UNASKED = 48 << 10
_ASKED = {
    (8, 0): 163 << 10,
    (8, 6): 99 << 10,
    (8, 7): 163 << 10,
    (8, 9): 99 << 10,
    (9, 0): 227 << 10,
    (12, 0): 99 << 10,
}
_THREADS, _CLUSTER, _BLOCKS = 1024, 8, (1 << 31) - 1

# What is refused while no context is current.
_IN_A_CONTEXT = (
    *("cuMemAlloc", "cuMemFree", "cuMemHost", "cuMemcpy", "cuModule", "cuFunc", "cuLaunch"),
    *("cuStream", "cuEvent", "cuGraphLaunch", "cuGraphInstantiate", "cuGraphAdd", "cuGraphExec"),
    "cuPointer",
)

_TOGETHER = real.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
_ATTRIBUTES = real.CUdevice_attribute
Words = list[int]


class Refused(Exception):  # noqa: N818 (it is a status)
    """A call is refused, as the driver refuses it."""

    def __init__(self, status: Any) -> None:
        self.status = status


@dataclass
class Capture:
    """What a stream captures; users: of the graph, a pointer and a destructor each."""

    mode: Any
    graph: int
    actions: list[Callable[[], None]] = field(default_factory=list)
    touches: list[Touch] = field(default_factory=list)
    users: list[tuple[int, int]] = field(default_factory=list)


class FakeDriver:
    """failing  what a function returns in place of its result, by its name
    kernels  what a function of a module does: it is given the words that a launch passes
    hosted   the same as compiled code: what is given the places of the arguments, the blocks, the threads of a
             block; and the bytes of each argument
    clusters  blocks of a cluster, by the name of the kernel that was compiled for them
    calls    the name and the arguments of every call
    lost     the error after which every other call fails
    streams  what was put into streams; graphs: what was made of nodes, or captured
    order    which work comes after which
    roles    of each argument of a kernel, by its name: what the kernel does with the memory
    resident  blocks that a processor holds at one time; of clusters the device has as many
    """

    def __init__(
        self,
        *,
        version: int = 13000,
        devices: int = 1,
        capability: tuple[int, int] = (9, 0),
        shared: int | None = None,
        has_pools: bool = True,
        resident: int = 2,
        processors: int = 132,
    ) -> None:
        self.version, self.devices = version, devices
        shared = _ASKED.get(capability, _UNASKED) if shared is None else shared
        self.attributes = {
            _ATTRIBUTES.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: capability[0],
            _ATTRIBUTES.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: capability[1],
            _ATTRIBUTES.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: processors,
            _ATTRIBUTES.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: shared,
            _ATTRIBUTES.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: 50 << 20,
            _ATTRIBUTES.CU_DEVICE_ATTRIBUTE_CLOCK_RATE: 1_000_000,
            _ATTRIBUTES.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: int(has_pools),
        }
        self.resident = resident
        self.failing: dict[str, Any] = {}
        self.lost: Any = None
        self.clusters: dict[str, int] = {}
        self._allowed: dict[int, int] = {}  # dynamic shared memory of each function
        self.kernels: dict[str, Callable[[list[int]], None]] = {}
        self.hosted: dict[str, tuple[Callable[[int, int, int], None], list[int]]] = {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.memory: dict[int, Any] = {}
        self.freed: list[int] = []
        self.maps: list[dict[str, Any]] = []
        self.launches: list[dict[str, Any]] = []
        self.device_of: dict[int, int] = {}
        self._contexts = [0]
        self._functions: dict[int, str] = {}
        self._next = 0x1000
        self._capturing: dict[int, Capture] = {}
        self._mode = real.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL  # of the thread
        self._events: dict[int, list[Point] | None] = {}  # None: it is captured
        self._users: dict[int, tuple[int, int]] = {}  # user objects: a pointer, a destructor
        self.order = Order()
        self.roles: dict[str, list[str]] = {}
        self._freed: list[Any] = []  # so that what is used too late is found, and ends no process
        self.streams = FakeStreams()
        self.graphs = FakeGraphs()
        self._encoders = {
            name: kind(partial(self._encode, name)) for name, kind in _ENCODERS.items()
        }

    def __getattr__(self, name: str) -> Any:
        """A type or an enumeration of cuda-python, or a function of this class with its call noted."""
        if not name.startswith("cu"):
            return getattr(real, name)
        if isinstance(getattr(real, name), type):
            return getattr(real, name)
        function = getattr(type(self), f"_{name}", None)

        def called(*arguments: Any) -> Any:
            self.calls.append((name, arguments))
            if function is None:  # cuda-python's words where the driver's library lacks it
                raise RuntimeError(f'Function "{name}" not found')
            is_in_context = name.startswith((*_IN_A_CONTEXT, "cuCtxSynchronize"))
            if self.lost is not None and is_in_context:
                return self.lost, None
            if name in self.failing:
                self.lost = self.failing[name] if self.failing[name] in STICKY else None
                return self.failing[name], None
            if name.startswith(_IN_A_CONTEXT) and not self._contexts[-1]:
                return real.CUresult.CUDA_ERROR_INVALID_CONTEXT, None
            try:
                result = function(self, *arguments)
            except Refused as refused:
                return refused.status, None
            return (SUCCESS,) if result is None else (SUCCESS, *result)

        return called

    def names(self) -> list[str]:
        """The calls without those that only look or that choose a context."""
        quiet = ("cuCtx", "cuDevice", "cuGetError", "cuPointer", "cuMemPool", "cuDriver", "cuInit")
        return [name for name, _ in self.calls if not name.startswith(quiet)]

    def _handle(self) -> int:
        self._next += 0x10
        return self._next

    def _do(
        self, stream: Any, name: str, action: Callable[[], None], touches: Iterable[Touch] = ()
    ) -> None:
        """In its turn in the stream, or noted by one that is being captured."""
        captured = self._capturing.get(int(stream))
        if captured is None:
            self.order.put(int(stream), name, touches)
            self.streams.put(int(stream), [action])
        else:
            captured.actions.append(action)
            captured.touches += touches

    def _not_in_capture(self, *, is_relaxed_enough: bool = False) -> None:
        """Refuses a call that would break what is captured."""
        relaxed = real.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        strict = [one for one in self._capturing.values() if one.mode != relaxed]
        if self._capturing and not (is_relaxed_enough and (self._mode == relaxed or not strict)):
            self.order.races.append("a call has broken a capture")
            raise Refused(NOT_IN_CAPTURE)

    def touch(self, stream: int, pointer: int, *, is_write: bool = False) -> None:
        """Another library's work in a stream of its own."""
        self.order.put(stream, "another library's work", [(pointer, is_write)])

    # --- the driver and its devices ---

    def cuInit(self, flags: int) -> Any:
        self.calls.append(("cuInit", (flags,)))
        return (self.failing.get("cuInit", SUCCESS),)

    def cuGetErrorName(self, status: Any) -> Any:
        return SUCCESS, real.CUresult(status).name.encode()

    def cuGetErrorString(self, status: Any) -> Any:
        return SUCCESS, b"in CUDA's words"

    def _cuDriverGetVersion(self) -> Any:
        return (self.version,)

    def _cuDeviceGetCount(self) -> Any:
        return (self.devices,)

    def _cuDeviceGet(self, ordinal: int) -> Any:
        return (real.CUdevice(ordinal),)

    def _cuDeviceGetName(self, length: int, device: Any) -> Any:
        return (b"Fake GPU\0".ljust(length),)

    def _cuDeviceGetAttribute(self, attribute: Any, device: Any) -> Any:
        return (self.attributes[attribute],)

    def _cuDeviceTotalMem(self, device: Any) -> Any:
        return (1 << 30,)

    def _cuDevicePrimaryCtxRetain(self, device: Any) -> Any:
        return (real.CUcontext(0xC0 + int(device)),)

    def _cuCtxGetCurrent(self) -> Any:
        return (real.CUcontext(self._contexts[-1]),)

    def _cuCtxSetCurrent(self, context: Any) -> None:
        self._contexts[-1] = int(context)

    def _cuCtxPushCurrent(self, context: Any) -> None:
        self._contexts.append(int(context))

    def _cuCtxPopCurrent(self) -> Any:
        return (real.CUcontext(self._contexts.pop()),)

    def _cuCtxSynchronize(self) -> None:
        self._not_in_capture()
        self.streams.drain()
        self.order.waited()

    def _cuCtxRecordEvent(self, context: Any, event: Any) -> None:
        self._not_in_capture()
        self._events[int(event)] = self.streams.ends()
        self.order.record(int(event), None)

    def _cuThreadExchangeStreamCaptureMode(self, mode: Any) -> Any:
        before, self._mode = self._mode, mode
        return (before,)

    def _cuPointerGetAttribute(self, attribute: Any, pointer: int) -> Any:
        return (self.device_of.get(pointer, 0),)

    # --- memory ---

    def _cuMemPoolCreate(self, properties: Any) -> Any:
        kinds = real.CUmemLocationType
        assert properties.location.type == kinds.CU_MEM_LOCATION_TYPE_DEVICE
        return (real.CUmemoryPool(0xB0 + properties.location.id),)

    def _cuMemPoolSetAttribute(self, pool: Any, attribute: Any, value: Any) -> None:
        assert isinstance(value, real.cuuint64_t)

    def _cuMemAlloc(self, size: int) -> Any:
        self._not_in_capture(is_relaxed_enough=True)
        return self._allocated(size, None)

    def _allocated(self, size: int, stream: int | None) -> Any:
        buffer = ctypes.create_string_buffer(size + 256)
        ctypes.memset(buffer, 0xFF, len(buffer))  # NaN, so that what reads it shows
        address = -(-ctypes.addressof(buffer) // 256) * 256
        self.memory[address] = buffer
        self.order.allocated(address, size, stream)
        return (real.CUdeviceptr(address),)

    def _cuMemAllocFromPoolAsync(self, size: int, pool: Any, stream: int) -> Any:
        assert int(stream) not in self._capturing, "the graph would own it"
        return self._allocated(size, int(stream))

    def _cuMemFree(self, pointer: int) -> None:
        self._not_in_capture()
        self.streams.drain()
        self.order.waited()
        self.order.freed(pointer, None)
        self._free(pointer)

    def _cuMemFreeAsync(self, pointer: int, stream: int) -> None:
        if int(stream) in self._capturing:
            self.order.races.append("memory is freed in a stream that is captured")
            raise Refused(INVALID_VALUE)
        self.order.freed(pointer, int(stream))
        self.streams.put(int(stream), [lambda: self._free(pointer)])

    def _free(self, pointer: int) -> None:
        self.freed.append(pointer)
        buffer = self.memory.pop(pointer)
        ctypes.memset(buffer, 0xA5, len(buffer))
        self._freed.append(buffer)

    def check_freed(self) -> None:
        """Nobody has written to memory that was given back."""
        self.streams.drain()
        for buffer in self._freed:
            assert set(buffer.raw) <= {0xA5}, "freed memory was written"
        assert not self.order.races, self.order.races

    def _cuMemHostAlloc(self, size: int, flags: int) -> Any:
        return (int(self._allocated(size, None)[0]),)

    def _cuMemHostGetDevicePointer(self, pointer: int, flags: int) -> Any:
        return (real.CUdeviceptr(pointer),)

    def _cuMemcpyHtoDAsync(self, to: int, start: int, size: int, stream: int) -> None:
        self._copied(stream, to, start, size, [(to, True)])

    def _copied(self, stream: Any, to: int, start: int, size: int, touches: list[Touch]) -> None:
        self._do(stream, "a copy", lambda: ctypes.memmove(to, start, size) and None, touches)

    def _cuMemcpyDtoHAsync(self, to: int, start: int, size: int, stream: int) -> None:
        self._copied(stream, to, start, size, [(start, False)])

    def _cuMemcpyDtoDAsync(self, to: int, start: int, size: int, stream: int) -> None:
        self._copied(stream, to, start, size, [(start, False), (to, True)])

    def _cuMemsetD32Async(self, to: int, word: int, count: int, stream: int) -> None:
        words = (ctypes.c_uint32 * count).from_address(to)
        fill = partial(words.__setitem__, slice(None), [word] * count)
        self._do(stream, "zeroing", fill, [(to, True)])

    def _cuMemcpy2DAsync(self, copy: Any, stream: int) -> None:
        assert copy.srcPitch >= copy.WidthInBytes
        assert copy.dstPitch >= copy.WidthInBytes
        to, start, size = int(copy.dstDevice), int(copy.srcDevice), copy.WidthInBytes
        steps = copy.dstPitch, copy.srcPitch

        def line(number: int) -> None:
            ctypes.memmove(to + number * steps[0], start + number * steps[1], size)

        for number in range(copy.Height):
            self._do(stream, "a copy", partial(line, number), [(start, False), (to, True)])

    # --- modules and launches ---

    def _cuModuleLoadData(self, image: bytes) -> Any:
        assert isinstance(image, bytes)
        return (real.CUmodule(self._handle()),)

    def _cuModuleGetFunction(self, module: Any, name: bytes) -> Any:
        handle = self._handle()
        self._functions[handle] = name.decode()
        return (real.CUfunction(handle),)

    def _cuFuncSetAttribute(self, function: Any, attribute: Any, value: int) -> None:
        wanted = real.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        assert attribute == wanted, "the only one that is used"
        if not 0 <= value <= self._most_shared:
            raise Refused(INVALID_VALUE)
        self._allowed[int(function)] = value

    @property
    def _most_shared(self) -> int:
        return int(
            self.attributes[_ATTRIBUTES.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN]
        )

    def _check_launch(self, name: str, config: Any, function: Any, is_cooperative: bool) -> None:
        """What the driver refuses to launch."""
        blocks, threads = config.gridDimX, config.blockDimX
        cluster = self.clusters.get(name, 1)
        if not (1 <= blocks <= _BLOCKS and 1 <= threads <= _THREADS):
            raise Refused(INVALID_VALUE)
        if config.sharedMemBytes > self._allowed.get(int(function), _UNASKED):
            raise Refused(INVALID_VALUE)
        if cluster > _CLUSTER or (cluster > 1 and self._capability < (9, 0)):
            raise Refused(CLUSTER_SIZE)
        if blocks % cluster:
            raise Refused(INVALID_VALUE)
        processors = self.attributes[_ATTRIBUTES.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT]
        most = self.resident * (cluster if cluster > 1 else processors)
        if is_cooperative and blocks > most:
            raise Refused(TOO_LARGE)

    @property
    def _capability(self) -> tuple[int, int]:
        names = ("MAJOR", "MINOR")
        prefix = "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_"
        major, minor = (self.attributes[getattr(_ATTRIBUTES, prefix + one)] for one in names)
        return major, minor

    def _cuOccupancyMaxActiveBlocksPerMultiprocessor(
        self, function: Any, threads: int, shared: int
    ) -> Any:
        return (self.resident,)

    def _cuOccupancyMaxActiveClusters(self, function: Any, config: Any) -> Any:
        assert config.blockDimX
        return (self.resident,)

    def _cuLaunchKernelEx(self, config: Any, function: Any, places: int, extra: int) -> None:
        together = [one.value.cooperative for one in config.attrs or () if one.id == _TOGETHER]
        noted, action = self._launch(config, function, places, is_cooperative=any(together))
        noted |= {"stream": int(config.hStream), "cooperative": together}
        self.launches.append(noted)
        self._do(config.hStream, noted["name"], action, self._touches(noted))

    def _launch(
        self, config: Any, function: Any, places: int, *, is_cooperative: bool = False
    ) -> tuple[dict[str, Any], Callable[[], None]]:
        """What is known of a launch, and what it does. The arguments are read when it is made, also for a graph."""
        name = self._functions[int(function)]
        self._check_launch(name, config, function, is_cooperative)
        count = self.arguments_of[name]
        addresses = list((ctypes.c_uint64 * count).from_address(places))
        words = [ctypes.c_uint64.from_address(address).value for address in addresses]
        noted: dict[str, Any] = {
            "name": name,
            "grid": (config.gridDimX, config.gridDimY, config.gridDimZ),
            "block": (config.blockDimX, config.blockDimY, config.blockDimZ),
            "shared": config.sharedMemBytes,
            "words": words,
        }
        if name in self.hosted:
            code, sizes = self.hosted[name]
            pairs = zip(addresses, sizes, strict=True)
            kept = [ctypes.create_string_buffer(ctypes.string_at(at, n), n) for at, n in pairs]
            copy = (ctypes.c_void_p * count)(*map(ctypes.addressof, kept))
            blocks, threads = config.gridDimX, config.blockDimX
            return noted, lambda: _run(code, copy, kept, blocks, threads)
        return noted, lambda: self.kernels.get(name, lambda words: None)([*words])

    def _touches(self, noted: dict[str, Any]) -> list[Touch]:
        """What a launch reads and writes."""
        pairs = zip(noted["words"], self.roles.get(noted["name"], ()), strict=False)
        return [(word, role != "in") for word, role in pairs if role]

    arguments_of: dict[str, int] = {}  # noqa: RUF012

    def _cuGetProcAddress(self, symbol: bytes, version: int, flags: int) -> Any:
        found = real.CUdriverProcAddressQueryResult.CU_GET_PROC_ADDRESS_SUCCESS
        return ctypes.cast(self._encoders[symbol.decode()], ctypes.c_void_p).value, found

    def _encode(self, name: str, *arguments: Any) -> int:
        to, kind, rank, pointer, extents, strides, *copied, steps, _, swizzled, _, _ = arguments

        def numbers(type_: Any, address: int, count: int) -> list[int]:
            return list((type_ * count).from_address(address)) if count else []

        # What host_ptx.hpp takes for a map.
        words = (ctypes.c_int64 * 16).from_address(to)
        words[0] = pointer
        words[1 : 1 + rank] = numbers(ctypes.c_int64, extents, rank)
        halves = (ctypes.c_int32 * 32).from_address(to)
        if name == "cuTensorMapEncodeTiled":
            box = numbers(ctypes.c_int32, copied[0], rank)
            corners: dict[str, Any] = {}
        else:
            lower, upper = (numbers(ctypes.c_int32, corner, rank - 2) for corner in copied[:2])
            box, corners = list(copied[2:]), {"lower": lower, "upper": upper}
            _, right, down, _ = numbers(ctypes.c_int32, steps, rank)
            columns, rows = (
                (extent - 1 + last - first) // step + 1
                for extent, first, last, step in zip(
                    words[2:4], lower, upper, (right, down), strict=True
                )
            )
            halves[20:26] = rows, columns, down, right, -lower[1], -lower[0]
        halves[12 : 12 + len(box)] = box
        size = int(real.CUtensorMapDataType(kind).name.rpartition("UINT")[2]) // 8
        swizzle = real.CUtensorMapSwizzle(swizzled).name.rpartition("_")[2].rstrip("B")
        halves[17:20] = rank, size, int(swizzle) if swizzle.isdigit() else 0
        self.maps.append(
            {
                "aligned": to % 64 == 0,
                "type": real.CUtensorMapDataType(kind).name,
                "pointer": pointer,
                "extents": numbers(ctypes.c_uint64, extents, rank),
                "strides": numbers(ctypes.c_uint64, strides, rank - 1),
                "box": box,
                "steps": numbers(ctypes.c_uint32, steps, rank),
                "swizzle": real.CUtensorMapSwizzle(swizzled).name,
                **corners,
            }
        )
        return int(self.failing.get(name, 0)) or int(bool(broken_rules(self.maps[-1])))

    # --- streams, events, graphs ---

    def _cuStreamCreate(self, flags: Any) -> Any:
        return (real.CUstream(self._handle()),)

    def _cuStreamDestroy(self, stream: int) -> None:
        pass

    def _cuStreamSynchronize(self, stream: int) -> None:
        assert int(stream) not in self._capturing
        self.streams.drain(int(stream))
        self.order.waited(int(stream))

    def _cuStreamGetCaptureInfo(self, stream: int) -> Any:
        captured = self._capturing[int(stream)]
        (status,) = self._cuStreamIsCapturing(stream)
        return status, 1, real.CUgraph(captured.graph), [], [], 0

    def _cuUserObjectCreate(self, pointer: int, destroy: Any, count: int, flags: int) -> Any:
        assert (count, flags) == (1, 1)
        handle = self._handle()
        self._users[handle] = pointer, int(destroy)
        return (real.CUuserObject(handle),)

    def _cuGraphRetainUserObject(self, graph: Any, user: Any, count: int, flags: int) -> None:
        assert (count, flags) == (1, 1)
        (captured,) = [one for one in self._capturing.values() if one.graph == int(graph)]
        captured.users.append(self._users[int(user)])

    def graph_is_gone(self, users: list[tuple[int, int]]) -> None:
        """The last of another library's graph and its executables is destroyed."""
        for pointer, destroy in users:
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(destroy)(pointer)

    def _cuStreamIsCapturing(self, stream: int) -> Any:
        kinds = real.CUstreamCaptureStatus
        is_active = int(stream) in self._capturing
        return (
            kinds.CU_STREAM_CAPTURE_STATUS_ACTIVE
            if is_active
            else kinds.CU_STREAM_CAPTURE_STATUS_NONE,
        )

    def _cuStreamWaitEvent(self, stream: int, event: Any, flags: int) -> None:
        assert int(stream) not in self._capturing, "the event is no part of what is captured"
        points = self._events.get(int(event), [])
        if points is None:
            self.order.races.append("a stream waits for what is captured in another")
            raise Refused(ISOLATED)
        self.order.wait(int(stream), int(event))
        if points:
            self.streams.put(int(stream), [], points)

    def _cuEventCreate(self, flags: Any) -> Any:
        return (real.CUevent(self._handle()),)

    def _cuEventRecord(self, event: Any, stream: int) -> None:
        is_captured = int(stream) in self._capturing
        self._events[int(event)] = None if is_captured else [self.streams.end(int(stream))]
        self.order.record(int(event), int(stream))

    def _cuEventSynchronize(self, event: Any) -> None:
        for stream, _ in self._events[int(event)] or ():
            self.streams.drain(stream)
        self.order.waited_for_event(int(event))

    def _cuEventQuery(self, event: Any) -> None:
        self._not_in_capture(is_relaxed_enough=True)
        if not self.streams.has_ended(self._events[int(event)] or ()):
            raise Refused(NOT_READY)
        self.order.waited_for_event(int(event))

    def _cuEventElapsedTime(self, start: Any, end: Any) -> Any:
        return (1.5,)

    def _cuEventDestroy(self, event: Any) -> None:
        pass

    def _cuStreamBeginCapture(self, stream: int, mode: Any) -> None:
        self._capturing[int(stream)] = Capture(mode, self._handle())

    def _cuStreamEndCapture(self, stream: int) -> Any:
        captured = self._capturing.pop(int(stream))
        self.graphs.captured(captured.graph, captured.actions, captured.touches)
        return (real.CUgraph(captured.graph),)

    def _cuGraphCreate(self, flags: int) -> Any:
        handle = self._handle()
        self.graphs.graphs[handle] = {}
        return (real.CUgraph(handle),)

    def _cuGraphAddKernelNode(
        self, graph: Any, dependencies: list[Any], count: int, node: Any
    ) -> Any:
        if count != len(dependencies):
            raise Refused(INVALID_VALUE)
        noted, action = self._launch(node, node.func, int(node.kernelParams))
        handle = self._handle()
        with _refusing():
            self.graphs.add(int(graph), handle, [*map(int, dependencies)], action, noted)
        return (real.CUgraphNode(handle),)

    def _cuGraphInstantiate(self, graph: Any, flags: int) -> Any:
        handle = self._handle()
        with _refusing():
            self.graphs.instantiate(int(graph), handle)
        return (real.CUgraphExec(handle),)

    def _cuGraphExecKernelNodeSetParams(self, executable: Any, handle: Any, node: Any) -> None:
        noted, action = self._launch(node, node.func, int(node.kernelParams))
        with _refusing():
            self.graphs.set(int(executable), int(handle), action, noted)

    def _cuGraphDestroy(self, graph: Any) -> None:
        with _refusing():
            del self.graphs.graphs[int(graph)]

    def _cuGraphLaunch(self, executable: Any, stream: int) -> None:
        if int(stream) in self._capturing:
            raise Refused(NOT_IN_CAPTURE)
        if int(executable) not in self.graphs.executables:
            raise Refused(INVALID_VALUE)
        touches = []
        for node in self.graphs.executables[int(executable)].nodes.values():
            touches += self._touches(node.noted) if isinstance(node.noted, dict) else node.noted
        self.order.wait(int(stream), int(executable))  # it runs once at a time
        self.order.put(int(stream), "a graph", dict.fromkeys(sorted(touches)))
        self.order.record(int(executable), int(stream))
        self.graphs.launch(int(executable), self.streams, int(stream))

    def _cuGraphExecDestroy(self, executable: Any) -> None:
        with _refusing():
            del self.graphs.executables[int(executable)]


@contextmanager
def _refusing() -> Iterator[None]:
    """What a graph doesn't know is refused."""
    try:
        yield
    except (KeyError, ValueError):
        raise Refused(INVALID_VALUE) from None


def _run(code: Any, places: Any, kept: list[Any], blocks: int, threads: int) -> None:
    """`kept` are the arguments, which `places` leads to."""
    assert len(kept) == len(places)
    code(ctypes.addressof(places), blocks, threads)


_TENSOR = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, *[ctypes.c_void_p] * 3
_OPTIONS = ctypes.c_void_p, *[ctypes.c_int] * 4
_ENCODERS = {
    "cuTensorMapEncodeTiled": ctypes.CFUNCTYPE(ctypes.c_int, *_TENSOR, ctypes.c_void_p, *_OPTIONS),
    "cuTensorMapEncodeIm2col": ctypes.CFUNCTYPE(
        ctypes.c_int, *_TENSOR, *[ctypes.c_void_p] * 2, *[ctypes.c_uint32] * 2, *_OPTIONS
    ),
}
