"""As much of PyTorch as taskc asks of it, so that tests need none; `-m torch` runs them with PyTorch itself."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from taskc import device as arrays
from taskc.arrays.dlpack import DTYPES, DLTensor, code_of
from taskc.arrays.torch import _ExchangeAPI
from taskc.backend.cpu.pool import pool

STRIDED = "torch.strided"


class DType:
    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.numpy = dtype

    def __repr__(self) -> str:
        return f"torch.{self.numpy.name}"


_DTYPES = {dtype: DType(dtype) for dtype in DTYPES}
_recording = [True]


class Tensor:
    """memory  an array of NumPy's, or of a device's
    said     what it says of itself: is_neg, layout, …
    """

    __module__ = "torch"
    __dlpack_c_exchange_api__: Any

    def __init__(self, memory: Any, requires_grad: bool = False, **said: Any) -> None:
        self.memory = memory
        self.requires_grad = requires_grad
        self.said = said
        self.exports = 0
        self.streams: list[int] = []  # that use it, besides its own
        self._version = 0

    shape = property(lambda self: tuple(self.memory.shape))
    dtype = property(lambda self: _DTYPES[self.memory.dtype])
    layout = property(lambda self: self.said.get("layout", STRIDED))
    is_nested = property(lambda self: self.said.get("is_nested", False))
    is_quantized = property(lambda self: self.said.get("is_quantized", False))
    is_cuda = property(lambda self: self.device.type == "cuda")

    @property
    def device(self) -> Any:
        on_cuda = isinstance(self.memory, arrays.Array)
        kind = self.said.get("device", "cuda" if on_cuda else "cpu")
        return SimpleNamespace(type=kind, index=self.memory.device if on_cuda else None)

    def is_neg(self) -> bool:
        return bool(self.said.get("is_neg", False))

    def is_conj(self) -> bool:
        return bool(self.said.get("is_conj", False))

    def stride(self) -> tuple[int, ...]:
        return tuple([step // self.memory.dtype.itemsize for step in self.memory.strides])

    def get_device(self) -> int:
        return self.memory.device if self.is_cuda else -1

    def data_ptr(self) -> int:
        return self.memory.pointer if self.is_cuda else self.memory.ctypes.data

    def detach(self) -> Tensor:
        self.exports += 1  # or is about to
        return Tensor(self.memory, **self.said)

    def record_stream(self, stream: Any) -> None:
        """Its memory is given to nobody else before what that stream has then has ended."""
        self.streams.append(stream.cuda_stream)

    def contiguous(self) -> Tensor:
        return Tensor(np.ascontiguousarray(self.memory), self.requires_grad)

    def __getitem__(self, at: slice) -> Tensor:
        return Tensor(self.memory[at])

    def view(self, dtype: DType) -> Tensor:
        return Tensor(self.memory.view(dtype.numpy))

    def new_empty(self, shape: Sequence[int], *, dtype: DType) -> Tensor:
        return Tensor(np.empty(shape, dtype.numpy))

    def new_empty_strided(self, shape: Sequence[int], strides: Sequence[int]) -> Tensor:
        made = Tensor(np.empty(shape, self.memory.dtype))
        made.strides_asked = tuple(strides)
        return made

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.device.type == "meta":
            raise ValueError("Unknown device type meta for Dlpack")
        return (2, self.memory.device) if self.is_cuda else (1, 0)

    def __dlpack__(self, **options: Any) -> Any:
        self.exports += 1
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        if isinstance(self.memory, arrays.Array):
            reader = options.get("stream", -1)
            if reader != -1:
                arrays.Stream.of(reader).wait(arrays.Stream.of(_current.cuda_stream))
            return self.memory.__dlpack__(**options)
        bits = self.memory.view(f"u{self.memory.dtype.itemsize}")  # NumPy doesn't export bf16
        capsule = bits.__dlpack__()
        managed = DLTensor.from_address(_pointer(capsule, b"dltensor"))
        managed.code, managed.bits = code_of(self.memory.dtype)
        managed.data = self.data_ptr()
        return capsule


class Parameter(Tensor):
    __module__ = "torch.nn.parameter"

    def __init__(self, memory: Any, requires_grad: bool = True) -> None:
        super().__init__(memory.memory if isinstance(memory, Tensor) else memory, requires_grad)


class FakeTensor(Tensor):
    __module__ = "torch._subclasses.fake_tensor"


_READ = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))


@_READ
def _read(tensor: Any, out: Any) -> int:
    """PyTorch's looks at neither a gradient nor a bit, and has only what has memory."""
    if tensor.device.type == "meta" or tensor.layout != STRIDED:
        return -1
    if tensor.is_nested or tensor.is_quantized:
        return -1
    count = len(tensor.shape)
    numbers = ctypes.c_int64 * count
    tensor.kept = numbers(*tensor.shape), numbers(*tensor.stride())
    kind, number = tensor.__dlpack_device__()
    code, bits = code_of(tensor.memory.dtype)
    pointer = tensor.data_ptr()
    offset = 16 if pointer else 0  # PyTorch has none, and another version may
    made = DLTensor(pointer - offset, kind, number, count, code, bits, 1, *tensor.kept, offset)
    ctypes.memmove(out, ctypes.byref(made), ctypes.sizeof(DLTensor))
    return 0


_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_api = _ExchangeAPI(1, 3, None, None, None, None, ctypes.cast(_read, ctypes.c_void_p), None)
_NAME = b"dlpack_exchange_api"  # which the capsule doesn't copy
Tensor.__dlpack_c_exchange_api__ = _new(ctypes.addressof(_api), _NAME, None)


@contextmanager
def _recorded(is_so: bool) -> Iterator[None]:
    before, _recording[0] = _recording[0], is_so
    yield
    _recording[0] = before


class Operator:
    """What torch.library.custom_op returns, without a dispatcher."""

    def __init__(self, name: str, run: Callable[..., Any], mutates_args: Any, schema: str) -> None:
        self.name, self.run, self.mutates_args, self.schema = name, run, mutates_args, schema
        self.fake = self.gradients = self.keep = None

    def register_fake(self, fake: Any) -> None:
        self.fake = fake

    def register_autograd(self, gradients: Any, *, setup_context: Any) -> None:
        self.gradients, self.keep = gradients, setup_context

    def __call__(self, *args: Any) -> Any:
        return self.run(*args)


_current = SimpleNamespace(cuda_stream=0)


@contextmanager
def _in_stream(stream: Any) -> Iterator[None]:
    before, _current.cuda_stream = _current.cuda_stream, stream.cuda_stream
    yield
    _current.cuda_stream = before


def _empty(shape: Sequence[int], *, dtype: DType, device: str) -> Tensor:
    if device == "cpu":
        return Tensor(np.empty(shape, dtype.numpy))
    number = int(device.partition(":")[2])
    stream = arrays.Stream.of(_current.cuda_stream, number)
    made = Tensor(arrays.empty(tuple(shape), dtype.numpy, device=number, stream=stream))
    made.stream = _current.cuda_stream
    return made


def increment_version(tensor: Any) -> None:
    tensor._version += 1


def module() -> ModuleType:
    made = ModuleType("torch")
    made.__dict__.update(
        {dtype.name: own for dtype, own in _DTYPES.items()},
        Tensor=Tensor,
        nn=SimpleNamespace(Parameter=Parameter),
        strided=STRIDED,
        empty=_empty,
        from_numpy=Tensor,
        is_grad_enabled=lambda: _recording[0],
        no_grad=lambda: _recorded(False),
        inference_mode=lambda is_so: _recorded(_recording[0]),
        autograd=SimpleNamespace(graph=SimpleNamespace(increment_version=increment_version)),
        library=SimpleNamespace(custom_op=Operator),
        cuda=SimpleNamespace(
            is_initialized=lambda: True,
            current_stream=lambda number: _current,
            stream=_in_stream,
            ExternalStream=lambda number, device: SimpleNamespace(cuda_stream=number),
        ),
        is_stand_in=True,
    )
    return made


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A PyTorch that has been imported."""
    made = module()
    monkeypatch.setitem(sys.modules, "torch", made)
    with _admitted_anew():
        yield made


@pytest.fixture(params=["stand-in", pytest.param("PyTorch", marks=pytest.mark.torch)])
def torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """PyTorch, in two forms."""
    made = module() if request.param == "stand-in" else importlib.import_module("torch")
    monkeypatch.setitem(sys.modules, "torch", made)
    with _admitted_anew():
        yield made


@contextmanager
def _admitted_anew() -> Iterator[None]:
    """Compiled code knows no tensors yet, nor afterwards these."""
    words = (ctypes.c_void_p * 8).from_address(pool().library["torch"])
    words[:] = [None] * 8
    yield
    words[:] = [None] * 8


def tensor_of(library: Any, array: np.ndarray) -> Any:
    """A tensor in the memory of an array, of any type."""
    bits = array.view(f"u{array.dtype.itemsize}")
    return library.from_numpy(bits).view(getattr(library, array.dtype.name))
