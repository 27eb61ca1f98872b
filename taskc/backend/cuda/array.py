"""Arrays in a device's memory: minimal, and shared with other libraries.

An `Array` is a shape, a type and strides over memory that it owns or shares with another library. It has no
arithmetic; kernels do that. Libraries exchange memory without a copy, both ways: through DLPack, which has all types,
and through `__cuda_array_interface__`, which has neither bf16 nor 8-bit floats. The structures of a DLPack capsule
stay alive until the consumer calls their deleter; a capsule that nobody consumed calls it when it is destroyed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any, TypeAlias, overload

import numpy as np

from taskc.arrays import dlpack
from taskc.arrays.dlpack import DLTensor, Exported, Versioned
from taskc.arrays.packed import Laid, Packed as HostPacked, packed_class
from taskc.backend.cuda.api import DeviceError
from taskc.backend.cuda.context import context, device_of
from taskc.backend.cuda.libraries import library_of
from taskc.backend.cuda.memory import Borrowed, DeviceMemory
from taskc.backend.cuda.streams import LEGACY, Stream, current_stream, stream_of
from taskc.ir.types import DType, TensorType


def from_host(pointer: int, source: np.ndarray, stream: Stream) -> None:
    """Copy to the device and wait, so that `source` may be reused."""
    dense = np.ascontiguousarray(source)
    if dense.nbytes:
        stream.context.do.cuMemcpyHtoDAsync(pointer, dense.ctypes.data, dense.nbytes, stream.number)
        stream.synchronize()


def to_host(target: np.ndarray, pointer: int, stream: Stream) -> None:
    """Copy to the CPU and wait for all work of the stream, so that its errors are raised."""
    if target.nbytes:
        stream.context.do.cuMemcpyDtoHAsync(
            target.ctypes.data, pointer, target.nbytes, stream.number
        )
    stream.synchronize()


def on_device(
    to: int, start: int, shape: tuple[int, ...], strides: tuple[int, ...], item: int, stream: Stream
) -> None:
    """Copy elements of `item` bytes with the given `strides` to contiguous memory.

    The driver copies two dimensions at a time.
    """
    if 0 in shape:
        return
    api = stream.context.api
    with stream.context.current():
        for place, first, height, width, pitch in planes(to, start, shape, strides, item):
            if height == 1:
                api.cuMemcpyDtoDAsync(place, first, width, stream.number)
            else:
                copy = _plane(api.driver, place, first, height, width, pitch)
                api.cuMemcpy2DAsync(copy, stream.number)


Plane = tuple[int, int, int, int, int]


def planes(
    to: int, start: int, shape: tuple[int, ...], strides: tuple[int, ...], item: int
) -> list[Plane]:
    """The 2-D copies that make up a copy: (to, from, lines, bytes of a line, bytes between lines of the source)."""
    dimensions = [(n, step) for n, step in zip(shape, strides, strict=True) if n != 1]
    width = item
    while dimensions and dimensions[-1][1] == width:
        width *= dimensions.pop()[0]
    height, pitch = 1, width
    if dimensions and dimensions[-1][1] >= width:
        height, pitch = dimensions.pop()
    copies = []
    for number, indices in enumerate(product(*[range(n) for n, _ in dimensions])):
        offset = sum(i * step for i, (_, step) in zip(indices, dimensions, strict=True))
        copies.append((to + number * height * width, start + offset, height, width, pitch))
    return copies


def _plane(driver: Any, to: int, start: int, height: int, width: int, pitch: int) -> Any:
    copy = driver.CUDA_MEMCPY2D()
    copy.srcMemoryType = copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.srcDevice, copy.srcPitch = start, pitch
    copy.dstDevice, copy.dstPitch = to, width
    copy.WidthInBytes, copy.Height = width, height
    return copy


_READ_ONLY, _IS_COPIED = 1, 2


class _Managed(ctypes.Structure):
    """The contents of a capsule before version 1.0."""

    _fields_ = (
        ("tensor", DLTensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


# By a structure's address: the objects to keep alive until its deleter is called.
_exported: dict[int, tuple[Any, ...]] = {}


# The capsule is being destroyed: a reference would revive it, so it is passed as an address.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


def _delete(address: int) -> None:
    _exported.pop(address, None)


def _destroy(capsule: int) -> None:
    """A capsule that was consumed has another name."""
    for name in (b"dltensor", b"dltensor_versioned"):
        if _is_valid(capsule, name):
            _delete(_pointer(capsule, name))


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_delete)
_DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_destroy)


def capsule_of(given: Exported, *, is_versioned: bool, is_copy: bool) -> object:
    """A capsule for memory, which keeps `given.capsule` alive."""
    count = len(given.shape)
    shape = (ctypes.c_int64 * count)(*given.shape)
    strides = (ctypes.c_int64 * count)(*given.strides)
    code, bits = dlpack.code_of(given.dtype)
    kind, number = given.device
    tensor = DLTensor(
        data=given.pointer,
        device_type=kind,
        device_id=number,
        ndim=count,
        code=code,
        bits=bits,
        lanes=1,
        shape=shape,
        strides=strides,
        byte_offset=0,
    )
    deleter = ctypes.cast(_DELETER, ctypes.c_void_p)
    managed: Any
    if is_versioned:
        flags = _READ_ONLY * given.is_read_only | _IS_COPIED * is_copy
        managed = Versioned(1, 0, None, deleter, flags, tensor)
        name = b"dltensor_versioned"
    else:
        managed = _Managed(tensor, None, deleter)
        name = b"dltensor"
    address = ctypes.addressof(managed)
    # The capsule doesn't copy the name, which is a literal and stays.
    _exported[address] = (managed, given.capsule, shape, strides, name)
    return _new(address, name, ctypes.cast(_DESTRUCTOR, ctypes.c_void_p))


Shape: TypeAlias = "int | Sequence[int]"


class Array:
    """An array on a CUDA device.

    pointer  address of the first element
    shape, dtype, strides    as NumPy's: strides are in bytes
    key      what a launch has to know of it, if it is contiguous and writable; else None
    """

    __slots__ = (
        *("__weakref__", "dtype", "is_contiguous", "is_read_only", "key", "memory", "pointer"),
        *("shape", "strides"),
    )

    def __init__(
        self,
        pointer: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        memory: DeviceMemory | Borrowed,
        strides: tuple[int, ...] | None = None,
        *,
        is_read_only: bool = False,
    ) -> None:
        dense = row_major(shape, dtype.itemsize)
        self.pointer = pointer
        self.shape = shape
        self.dtype = dtype
        self.memory = memory
        self.strides = dense if strides is None else strides
        self.is_read_only = is_read_only
        pairs = zip(shape, self.strides, dense, strict=True)
        self.is_contiguous = 0 in shape or all(n == 1 or a == b for n, a, b in pairs)
        is_plain = self.is_contiguous and not is_read_only
        self.key: Any = (shape, dtype, memory.context.ordinal) if is_plain else None

    @property
    def device(self) -> int:
        """The device's number."""
        return self.memory.context.ordinal

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def numpy(self) -> np.ndarray:
        """A copy for the CPU. It waits for pending work on the array, and raises the errors of that work."""
        stream = current_stream(self.memory.context)
        source = self if self.is_contiguous else self.copy()
        source.memory.ready(stream)
        copied: np.ndarray = np.empty(self.shape, self.dtype)
        to_host(copied, source.pointer, stream)
        return copied

    def copy(self) -> Array:
        """A contiguous copy on the device."""
        copied = empty(self.shape, self.dtype, device=self.device)
        copied._take(self, current_stream(self.memory.context))
        return copied

    def _take(self, source: Array, stream: Stream) -> None:
        """Copy another array's elements into this contiguous one, in stream order."""
        for memory in (self.memory, source.memory):
            memory.ready(stream)
            memory.used(stream)
        recorder = stream.recorder
        if recorder is not None:
            recorder.keep(self, source)
        item = source.dtype.itemsize
        on_device(self.pointer, source.pointer, source.shape, source.strides, item, stream)

    def reshape(self, shape: Sequence[int]) -> Array:
        """The same memory, of a contiguous array, with other extents."""
        extents = tuple(map(int, shape))
        if not self.is_contiguous or prod(extents) != self.size:
            raise ValueError(f"an array of the shape {self.shape} can't be seen as {extents}")
        return Array(self.pointer, extents, self.dtype, self.memory, is_read_only=self.is_read_only)

    def set(self, values: Any) -> None:
        """Overwrite the elements with those of an array of the same shape and type, on any device."""
        if self.is_read_only or not self.is_contiguous:
            raise ValueError("only a contiguous array that isn't read-only can be set")
        source = values if isinstance(values, np.ndarray) else asarray(values, device=self.device)
        if source.shape != self.shape or source.dtype != self.dtype:
            raise ValueError(
                f"an array of {self.dtype} and the shape {self.shape} can't be set to one of"
                f" {source.dtype} and the shape {source.shape}"
            )
        stream = current_stream(self.memory.context)
        if isinstance(source, Array):
            self._take(source, stream)
            return
        self.memory.ready(stream)
        self.memory.used(stream)
        from_host(self.pointer, source, stream)

    # --- other libraries ---

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Export the array; work in the consumer's `stream` is ordered after all writes so far."""
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError("an array is exported for its own device only; .numpy() copies it")
        if stream == 0:
            raise BufferError("DLPack has no stream 0; the legacy default stream is 1")
        source = self.copy() if copy else self
        if stream != -1:
            consumer = stream_of(self.memory.context, LEGACY if stream is None else int(stream))
            source.memory.ready(consumer)
        if isinstance(source.memory, DeviceMemory):
            source.memory.is_exported = True
        is_versioned = max_version is not None and max_version[0] >= 1
        if source.is_read_only and not is_versioned:
            raise BufferError("only version 1.0 of DLPack can export a read-only array")
        strides = tuple([stride // self.dtype.itemsize for stride in source.strides])
        place = source.__dlpack_device__()
        exported = dlpack.Exported(
            source.pointer, source.shape, strides, source.dtype, place, source.is_read_only, source
        )
        return capsule_of(exported, is_versioned=is_versioned, is_copy=bool(copy))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype.kind == "V" or self.dtype.name.startswith(("bfloat", "float8")):
            raise AttributeError(
                f"__cuda_array_interface__ has no type for {self.dtype}; use DLPack"
            )
        if isinstance(self.memory, DeviceMemory):
            self.memory.is_exported = True
            for other in self.memory.others:
                self.memory.stream.wait(other)
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, self.is_read_only),
            "strides": None if self.is_contiguous else self.strides,
            "version": 3,
            "stream": self.memory.stream.number or LEGACY,
        }

    def __array__(self, *arguments: Any, **keywords: Any) -> np.ndarray:
        raise TypeError("this array lies on a GPU, and NumPy can't reach it; .numpy() copies it")

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return f"<{self.dtype}[{shape}] on CUDA device {self.device}>"


class Packed(Array, Laid):
    """A device copy of a result of `taskc.pack`: one-dimensional memory, laid out as `type` specifies."""

    __slots__ = ("type",)

    def __init__(self, memory: Array, type: TensorType) -> None:
        super().__init__(memory.pointer, memory.shape, memory.dtype, memory.memory)
        self.type = type
        self.key = packed_class(type), self.device

    def unpack(self) -> np.ndarray:
        """A copy for the CPU, with the elements in their usual order."""
        return self.numpy().view(packed_class(self.type)).unpack()

    def copy(self) -> Packed:
        return Packed(super().copy(), self.type)

    def set(self, values: Any) -> None:
        """Overwrite the elements with those of an array packed in the same way."""
        if not isinstance(values, Laid) or packed_class(values.type) is not packed_class(self.type):
            raise ValueError(f"an array packed as {self.type} can only be set to another one")
        super().set(values)

    def __repr__(self) -> str:
        return f"<{self.type} on CUDA device {self.device}>"


def row_major(shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    return tuple([prod(shape[axis + 1 :]) * item for axis in range(len(shape))])


# --- constructors ----------------------------------------------------------------------------


def empty(shape: Shape, dtype: Any, *, device: int = 0, stream: Stream | None = None) -> Array:
    """An uninitialized array."""
    extents = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(map(int, shape))
    kind = dtype.numpy if isinstance(dtype, DType) else np.dtype(dtype)
    owner = context(device)
    memory = DeviceMemory(owner, prod(extents) * kind.itemsize, stream or current_stream(owner))
    return Array(memory.pointer, extents, kind, memory)


@overload
def array(values: HostPacked, *, device: int = 0) -> Packed: ...
@overload
def array(values: Any, *, device: int = 0) -> Array: ...
def array(values: Any, *, device: int = 0) -> Array:
    """A device copy of a NumPy array, packed or not, or of an array on a device."""
    if dlpack.is_on_cuda(values):
        return asarray(values, device=device).copy()
    source = dlpack.as_array(values) if _is_foreign(values) else np.asarray(values)
    uploaded = empty(source.shape, source.dtype, device=device)
    from_host(uploaded.pointer, source, uploaded.memory.stream)
    return Packed(uploaded, values.type) if isinstance(values, Laid) else uploaded


def asarray(values: Any, *, device: int | None = None, stream: Stream | None = None) -> Array:
    """A device array unchanged, from any library; a copy of anything else.

    stream  the stream that will use it, by default the current one
    """
    if isinstance(values, Array):
        shared = values
    elif not dlpack.is_on_cuda(values):
        copied: Array = array(values, device=device or 0)
        return copied
    elif hasattr(values, "__dlpack__"):
        shared = from_dlpack(values, stream=stream)
    else:
        shared = _from_interface(values, stream)
    if device is not None and shared.device != device:
        raise DeviceError(f"the array lies on CUDA device {shared.device}, and not on {device}")
    return shared


def from_dlpack(values: Any, *, stream: Stream | None = None) -> Array:
    """Share another library's memory; work in the stream is ordered after that library's writes."""
    kind, number = dlpack.device_of(values)
    if kind not in dlpack.CUDA_DEVICES:
        raise BufferError("the array doesn't lie on a CUDA device; device.array() copies it to one")
    owner = context(number)
    consumer = stream or current_stream(owner, library_of(values))
    # A capture can't wait for work outside of it, so nothing is ordered then.
    number = -1 if consumer.is_capturing else consumer.number or LEGACY
    exported = dlpack.exported(values, stream=number)
    item = exported.dtype.itemsize
    return Array(
        exported.pointer,
        exported.shape,
        exported.dtype,
        Borrowed(owner, consumer, exported.capsule, values),
        tuple([stride * item for stride in exported.strides]),
        is_read_only=exported.is_read_only,
    )


def _from_interface(values: Any, stream: Stream | None) -> Array:
    """Share the memory of an array that has only `__cuda_array_interface__`."""
    interface = values.__cuda_array_interface__
    pointer, is_read_only = interface["data"]
    if interface.get("mask") is not None:
        raise BufferError("the array is masked")
    shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
    owner = context(ordinal_of(values))
    consumer = stream or current_stream(owner, library_of(values))
    if interface.get("stream") is not None and not consumer.is_capturing:
        consumer.wait(stream_of(owner, interface["stream"]))
    memory = Borrowed(owner, consumer, values, values)
    strides = interface.get("strides")
    return Array(
        pointer or 0,
        shape,
        dtype,
        memory,
        None if strides is None else tuple(strides),
        is_read_only=bool(is_read_only),
    )


def ordinal_of(values: Any) -> int:
    """The number of an array's device."""
    if isinstance(values, Array):
        return values.device
    if hasattr(values, "__dlpack_device__"):
        return dlpack.device_of(values)[1]
    pointer = values.__cuda_array_interface__["data"][0]
    return device_of(pointer) if pointer else 0


def _is_foreign(values: Any) -> bool:
    return not isinstance(values, np.ndarray) and hasattr(values, "__dlpack__")
