"""A cubin on a device, and its launches.

The arguments of a launch are in a block of memory that is allocated once for each form of the arguments (their
shapes, the dimensions): a launch writes the pointers into it and calls the driver.

A tensor map is a tensor's description for bulk copies, which the driver encodes. It wants 64-byte aligned memory for
one, which cuda-python's own objects don't have; so the function is called by its address, with memory of ours.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from typing import Any

import numpy as np

from taskc.backend.cuda import watchdog
from taskc.backend.cuda.api import DeviceError
from taskc.backend.cuda.compiled import CompiledCubin, TensorMap, count, is_decided_by_scalars
from taskc.backend.cuda.context import Context
from taskc.backend.cuda.streams import Stream
from taskc.ir import nodes as ir
from taskc.ir.extents import extent_value
from taskc.ir.reentry import NOBODYS, Turn

BYTES = 128
_ALIGNMENT = 64
_SINCE = 12000  # first version of CUDA with tensor maps
_ELEMENTS = {1: "UINT8", 2: "UINT16", 4: "UINT32", 8: "UINT64"}

_TENSOR = (
    ctypes.c_void_p,  # the map
    ctypes.c_int,  # type of the elements
    ctypes.c_uint32,  # dimensions
    ctypes.c_void_p,  # address of the first element
    ctypes.c_void_p,  # extents, innermost first
    ctypes.c_void_p,  # bytes between neighbours, except in the innermost dimension
)
_OPTIONS = (
    ctypes.c_void_p,  # element strides
    *[ctypes.c_int] * 4,  # interleaving, swizzle, promotion to the L2, fill for elements outside
)
_ENCODERS = {
    "cuTensorMapEncodeTiled": ctypes.CFUNCTYPE(
        ctypes.c_int,
        *_TENSOR,
        ctypes.c_void_p,  # extents of the box
        *_OPTIONS,
    ),
    "cuTensorMapEncodeIm2col": ctypes.CFUNCTYPE(
        ctypes.c_int,
        *_TENSOR,
        ctypes.c_void_p,  # offset of the first filter: column, row
        ctypes.c_void_p,  # offset of the last filter, relative to the last pixel
        ctypes.c_uint32,  # channels of a pixel
        ctypes.c_uint32,  # pixels
        *_OPTIONS,
    ),
}


class Encoded:
    """A map at an aligned `address`."""

    __slots__ = ("_memory", "address")

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(BYTES + _ALIGNMENT)
        self.address = -(-ctypes.addressof(self._memory) // _ALIGNMENT) * _ALIGNMENT


def encode(
    context: Context, wanted: TensorMap, pointer: int, shape: tuple[int, ...], item: int
) -> Encoded:
    """A map of a row-major tensor with elements of so many bytes."""
    driver, rank = context.api.driver, len(shape)
    extents = (ctypes.c_uint64 * rank)(*reversed(shape))
    pitches, pitch = [], item
    for extent in reversed(shape[1:]):
        pitch *= extent
        pitches.append(pitch)
    strides = (ctypes.c_uint64 * max(1, rank - 1))(*pitches)
    steps = [1] * rank
    if wanted.pixels:
        name = "cuTensorMapEncodeIm2col"
        rows, columns, row_stride, column_stride, above, left = wanted.pixels
        steps[1:3] = column_stride, row_stride
        lower = -left, -above
        last = (columns - 1) * column_stride, (rows - 1) * row_stride
        upper = (lower[0] + last[0] - (shape[2] - 1), lower[1] + last[1] - (shape[1] - 1))
        count, channels = wanted.box
        copied: tuple[Any, ...] = (
            (ctypes.c_int * 2)(*lower),
            (ctypes.c_int * 2)(*upper),
            channels,
            count,
        )
    else:
        name = "cuTensorMapEncodeTiled"
        copied = ((ctypes.c_uint32 * rank)(*reversed(wanted.box)),)
    encoded = Encoded()
    status = _function(context, name)(
        encoded.address,
        _enumerated(driver.CUtensorMapDataType, f"DATA_TYPE_{_ELEMENTS[item]}"),
        rank,
        pointer,
        extents,
        strides,
        *copied,
        (ctypes.c_uint32 * rank)(*steps),
        _enumerated(driver.CUtensorMapInterleave, "INTERLEAVE_NONE"),
        _enumerated(
            driver.CUtensorMapSwizzle,
            f"SWIZZLE_{wanted.swizzle}B" if wanted.swizzle else "SWIZZLE_NONE",
        ),
        _enumerated(driver.CUtensorMapL2promotion, "L2_PROMOTION_L2_128B"),
        _enumerated(driver.CUtensorMapFloatOOBfill, "FLOAT_OOB_FILL_NONE"),
    )
    if status != 0:
        raise DeviceError(
            f"{name} failed: {context.api.described(driver.CUresult(status))}; the tensor"
            f" has the shape {shape} with elements of {item} bytes, and the box {wanted.box}"
        )
    return encoded


def _enumerated(kind: Any, name: str) -> int:
    return int(getattr(kind, f"CU_TENSOR_MAP_{name}"))


def _function(context: Context, name: str) -> Any:
    encoder = context.encoders.get(name)
    if encoder is None:
        flags = context.api.driver.CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_DEFAULT
        address, _ = context.api.cuGetProcAddress(name.encode(), _SINCE, int(flags))
        if not address:
            raise DeviceError(f"the driver has no {name}")
        encoder = context.encoders[name] = _ENCODERS[name](int(address))
    return encoder


# --- Words that count the blocks that arrived at a barrier of the grid --------------------------


_BYTES = 4


class Word:
    def __init__(self, context: Context, stream: Stream) -> None:
        self.context = context
        # Not in stream order: the stream may be destroyed before the word is freed.
        self.pointer = context.allocate(_BYTES, stream.number, ordered=False)
        context.do.cuMemsetD32Async(self.pointer, 0, 1, stream.number)

    def __del__(self) -> None:
        if hasattr(self, "pointer") and not sys.is_finalizing():
            with suppress(Exception):  # there is nobody to report it to
                free = partial(self.context.free, self.pointer, 0, ordered=False)
                self.context.parking.add(free, None)


def arrivals_of(context: Context, stream: Stream) -> int:
    """The address of the word for a launch in a stream."""
    recorder = stream.recorder
    if recorder is not None:
        captured = Word(context, stream)
        recorder.keep(captured)
        return captured.pointer
    word: Word | None = getattr(stream.of_thread, "arrivals", None)
    if word is None:
        word = stream.of_thread.arrivals = Word(context, stream)
    return word.pointer


_FREE_SHARED = 48 << 10  # bytes of shared memory that every kernel may use
_REMEMBERED = 256  # forms of arguments, and maps of a form


class DeviceKernel:
    """A kernel loaded on one device.

    failed  raises the error of a failed assertion, given its number
    """

    def __init__(
        self,
        kernel: ir.Kernel,
        compiled: CompiledCubin,
        context: Context,
        failed: Callable[[int], None],
    ) -> None:
        self.kernel = kernel
        self.parameters, self.dimensions = kernel.parameters, kernel.dimensions
        self.compiled = compiled
        self.context = context
        self.failed = failed
        self.forms: dict[Any, PreparedLaunch] = {}
        api = context.api
        with context.current():
            self.module = api.cuModuleLoadData(compiled.cubin)
            self.function = api.cuModuleGetFunction(self.module, compiled.name.encode())
            self._allow_shared()
            self.status = self._host_words(1) if compiled.asserts else 0
            self.hang = self._host_words(watchdog.WORDS) if compiled.waits else 0
            if self.hang:
                api.looks.append(self.said_of_hang)

    def _allow_shared(self) -> None:
        """Request dynamic shared memory beyond _FREE_SHARED; an error if the device doesn't have it."""
        dynamic, offered = self.compiled.shared, self.context.shared_bytes
        needed = dynamic + self.compiled.resources.shared
        if needed > offered:
            raise DeviceError(
                f"{self.kernel.name}() needs {needed} bytes of shared memory, and a block has at most"
                f" {offered} on {self.context.name}"
            )
        if needed > _FREE_SHARED:
            attributes = self.context.api.driver.CUfunction_attribute
            attribute = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self.context.api.cuFuncSetAttribute(self.function, attribute, dynamic)

    def said_of_hang(self) -> str:
        """The watchdog's report on a failed launch."""
        return watchdog.said_at(self.hang, self.kernel.name, self.compiled.waits)

    def _host_words(self, count: int) -> int:
        """Zeroed words in the CPU's memory, which can be read without a copy, even after a kernel has failed."""
        api = self.context.api
        flags = api.driver.CU_MEMHOSTALLOC_PORTABLE | api.driver.CU_MEMHOSTALLOC_DEVICEMAP
        address = int(api.cuMemHostAlloc(4 * count, flags))
        ctypes.memset(address, 0, 4 * count)
        return address

    def look(self) -> None:
        """Raise the error of an assertion that failed in a launch that has ended."""
        word = ctypes.c_uint32.from_address(self.status)
        number, word.value = word.value, 0
        if number:
            self.failed(number)

    def check_blocks(self, blocks: int, config: Any) -> None:
        """Refuse a cooperative launch with more blocks than fit at one time: it would wait forever."""
        api, compiled = self.context.api, self.compiled
        if compiled.cluster > 1:
            clusters = int(api.cuOccupancyMaxActiveClusters(self.function, config))
            most, where = clusters * compiled.cluster, f"{clusters} clusters of {compiled.cluster}"
        else:
            most = self.resident * self.context.processors
            where = f"{self.resident} on each of {self.context.processors} processors"
        if blocks > most:
            raise DeviceError(
                f"the blocks of {self.kernel.name}() wait for each other, and of its {blocks}"
                f" {self.context.name} runs only {most} at one time, {where}"
            )

    @cached_property
    def resident(self) -> int:
        """The number of its blocks that fit on a processor at one time."""
        threads, shared = self.compiled.threads, self.compiled.shared
        asked = self.context.do.cuOccupancyMaxActiveBlocksPerMultiprocessor
        return int(asked(self.function, threads, shared))

    def form(self, shapes: tuple[Any, ...], dimensions: dict[ir.Variable, int]) -> PreparedLaunch:
        """The launch for arguments of these shapes, one for each parameter."""
        key = shapes, tuple(dimensions.values())
        prepared = self.forms.get(key)
        if prepared is None:
            if len(self.forms) >= _REMEMBERED:
                self.forms.clear()
            numbers = [
                *[dimensions[one] for one in self.kernel.dimensions],
                self.context.processors,
            ]
            with self.context.current():
                prepared = PreparedLaunch(self, shapes, numbers)
            self.forms[key] = prepared
        return prepared


class PreparedLaunch:
    """Launches with arguments of one form."""

    def __init__(
        self, loaded: DeviceKernel, shapes: tuple[Any, ...], dimensions: list[int]
    ) -> None:
        self.loaded = loaded
        self.shapes = shapes
        self.dimensions = dimensions
        compiled, context = loaded.compiled, loaded.context
        self._turn = Turn()
        self._maps: dict[tuple[int, int], Encoded] = {}
        # Maps whose addresses are in `_places`, kept alive even when `_maps` drops them.
        self._passed: dict[int, Encoded] = {}
        self._tensors: list[tuple[int, int]] = []
        self._scalars: list[tuple[int, int]] = []
        self._mapped: list[tuple[int, int]] = []
        self._arrivals: int | None = None
        total = len(compiled.arguments)
        self._words = (ctypes.c_uint64 * max(1, total))()
        self._first = ctypes.addressof(self._words)
        places = [self._first + 8 * place for place in range(total)]
        self._places = (ctypes.c_void_p * max(1, total))(*places)
        for place, argument in enumerate(compiled.arguments):
            match argument.kind:
                case "tensor":
                    self._tensors.append((place, argument.number))
                case "scalar":
                    self._scalars.append((place, argument.number))
                case "map":
                    self._mapped.append((place, argument.number))
                case "dimension":
                    self._words[place] = dimensions[argument.number] & (1 << 64) - 1
                case "arrivals":
                    self._arrivals = place
                case "status":
                    self._words[place] = self._on_device(loaded.status)
                case "hang":
                    self._words[place] = self._on_device(loaded.hang)
        self._address = ctypes.addressof(self._places)
        self._stream = 0
        is_open = is_decided_by_scalars(compiled.blocks)
        self._blocks = None if is_open else count(compiled.blocks, dimensions)
        self._config = config = context.api.driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self._blocks or 1, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = compiled.threads, 1, 1
        config.sharedMemBytes = compiled.shared
        config.hStream = self._stream
        config.numAttrs = 0
        if self._arrivals is not None:
            config.attrs = [_cooperative(context.api.driver)]
            config.numAttrs = 1
            if self._blocks:
                loaded.check_blocks(self._blocks, config)

    def _on_device(self, address: int) -> int:
        return int(self.loaded.context.api.cuMemHostGetDevicePointer(address, 0))

    def launch(self, values: Sequence[Any], stream: Stream, kept: Sequence[object] = ()) -> None:
        """values  for each parameter the address of a tensor's memory, or a scalar of its storage type
        kept    objects to keep alive as long as a graph that captures this launch
        """
        context = self.loaded.context
        if self._blocks == 0:
            return
        if context.is_current():
            self.fill_and_launch(values, stream)
        else:
            with context.current():
                self.fill_and_launch(values, stream)
        recorder = stream.recorder
        if recorder is not None:
            look = self.loaded.look if self.loaded.status else None
            recorder.launched(self.loaded.kernel.name, look, (self.loaded, *kept))
            return
        # CUDA reports its failure at some later call.
        context.api.launched.append((stream.number, self.loaded.kernel.name))
        if self.loaded.status:
            stream.assertions[self.loaded.look] = None

    def fill_and_launch(self, values: Sequence[Any], stream: Stream) -> None:
        loaded = self.loaded
        with self._turn.taken() as is_alone:
            if not is_alone:
                self._again().fill_and_launch(values, stream)
                return
            blocks = self._blocks
            if blocks is None:
                blocks = count(loaded.compiled.blocks, self.dimensions, values)
                self._config.gridDimX = blocks
                if not blocks:
                    return
                if self._arrivals is not None:
                    loaded.check_blocks(blocks, self._config)
            self._fill(values)
            if self._arrivals is not None:
                self._words[self._arrivals] = arrivals_of(loaded.context, stream)
            if stream.number != self._stream:
                self._config.hStream = self._stream = stream.number
            with self._naming():
                loaded.context.api.cuLaunchKernelEx(self._config, loaded.function, self._address, 0)

    def _again(self) -> PreparedLaunch:
        """A separate launch for a call that interrupts one which is filling this launch's words."""
        separate = PreparedLaunch(self.loaded, self.shapes, self.dimensions)
        separate._turn = NOBODYS
        return separate

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Add the kernel's name to errors."""
        try:
            yield
        except DeviceError as error:
            raise DeviceError(f"launching {self.loaded.kernel.name}(): {error}") from None

    # --- as a node of a graph ---

    @property
    def is_empty(self) -> bool:
        """Whether it launches nothing."""
        return self._blocks == 0

    @property
    def can_be_node(self) -> bool:
        """Whether the number of blocks is fixed, and none of them waits for the whole grid."""
        return self._blocks is not None and self._arrivals is None

    def add_node(self, graph: Any, dependencies: list[Any], values: Sequence[Any]) -> Any:
        """Add the launch to a graph, after its dependencies. The driver copies the arguments."""
        api = self.loaded.context.api
        with self._turn.taken() as is_alone, self._naming():
            if not is_alone:
                return self._again().add_node(graph, dependencies, values)
            self._fill(values)
            return api.cuGraphAddKernelNode(graph, dependencies, len(dependencies), self._node)

    def set_node(self, executable: Any, node: Any, values: Sequence[Any]) -> None:
        """Set a node's arguments for later launches of its graph."""
        with self._turn.taken() as is_alone, self._naming():
            if not is_alone:
                self._again().set_node(executable, node, values)
                return
            self._fill(values)
            self.loaded.context.api.cuGraphExecKernelNodeSetParams(executable, node, self._node)

    @cached_property
    def _node(self) -> Any:
        node, config = self.loaded.context.api.driver.CUDA_KERNEL_NODE_PARAMS(), self._config
        node.func = self.loaded.function
        node.gridDimX, node.gridDimY, node.gridDimZ = config.gridDimX, 1, 1
        node.blockDimX, node.blockDimY, node.blockDimZ = config.blockDimX, 1, 1
        node.sharedMemBytes = config.sharedMemBytes
        node.kernelParams = self._address
        return node

    def _fill(self, values: Sequence[Any]) -> None:
        for place, number in self._tensors:
            self._words[place] = values[number]
        for place, number in self._scalars:
            content = np.asarray(values[number]).tobytes()
            ctypes.memmove(self._first + 8 * place, content, len(content))
        for place, number in self._mapped:
            passed = self._passed[place] = self._map(number, values)
            self._places[place] = passed.address

    def _map(self, number: int, values: Sequence[Any]) -> Encoded:
        tensor_map = self.loaded.compiled.maps[number]
        pointer = values[tensor_map.parameter]
        key = number, pointer
        encoded = self._maps.get(key)
        if encoded is None:
            if len(self._maps) >= _REMEMBERED:
                self._maps.clear()
            parameter = self.loaded.kernel.parameters[tensor_map.parameter]
            assert isinstance(parameter, ir.Tensor)
            item = parameter.dtype.nbytes
            shape = self.shapes[tensor_map.parameter]
            if parameter.given is not None:
                sizes = dict(zip(self.loaded.kernel.dimensions, self.dimensions, strict=False))
                shape = tuple([extent_value(extent, sizes) for extent in parameter.shape])
            encoded = encode(self.loaded.context, tensor_map, pointer, shape, item)
            self._maps[key] = encoded
        return encoded


def _cooperative(driver: Any) -> Any:
    """The launch attribute that makes all blocks run at the same time."""
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    attribute.value.cooperative = 1
    return attribute
