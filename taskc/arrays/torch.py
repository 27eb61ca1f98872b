"""PyTorch's tensors as arguments: an adapter as `taskc.arrays.dlpack.ArrayLibrary` describes.

PyTorch is never imported here: the caller who passes a tensor has done so.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from taskc.arrays.device import Device
from taskc.dataclass import dataclass
from taskc.ir.types import TensorType

NAME = "torch"


def torch() -> Any | None:
    """The module, where somebody has imported it."""
    return sys.modules.get(NAME)


def is_tensor(value: Any) -> bool:
    kind = getattr(sys.modules.get(NAME), "Tensor", None)
    return kind is not None and isinstance(value, kind)


takes = is_tensor


def argument(value: Any, is_written: bool) -> Any:
    try:
        return readable(value)
    except BufferError as error:
        raise BufferError(f"can't be read: {error}") from None


def readable(tensor: Any) -> Any:
    """The tensor without autograd, which exports its memory. A BufferError says why it can't.

    Autograd doesn't see what a kernel does. So a tensor that requires a gradient is taken only where none is recorded.
    """
    problem = _problem(tensor)
    if problem is not None:
        raise BufferError(problem)
    return tensor.detach() if tensor.requires_grad else tensor


def is_recorded(tensor: Any) -> bool:
    """Whether autograd records what is done with a tensor."""
    return bool(tensor.requires_grad) and sys.modules["torch"].is_grad_enabled()


def _problem(tensor: Any) -> str | None:
    library = torch()
    assert library is not None
    kind = type(tensor).__name__
    if tensor.device.type == "meta" or kind in ("FakeTensor", "FunctionalTensor"):
        what = "a meta tensor" if kind not in ("FakeTensor", "FunctionalTensor") else f"a {kind}"
        return f"it is {what}, which has no elements; tc.torch.operator() makes a kernel one that takes it"
    if tensor.is_nested:
        return "it is a nested tensor; .to_padded_tensor() makes one of it that isn't"
    if tensor.layout is not library.strided:
        return f"its layout is {tensor.layout}; .to_dense() makes an ordinary tensor of it"
    if tensor.is_quantized:
        return "it is quantized; .int_repr() are its integers, and .dequantize() their values"
    if is_recorded(tensor):
        return (
            "it requires a gradient, which a kernel doesn't record; call it under torch.no_grad(), with"
            " .detach(), or as a tc.torch.operator() with a backward"
        )
    for is_so, what, remedy in (
        (tensor.is_neg(), "negated", "neg"), (tensor.is_conj(), "conjugated", "conj"),
    ):  # fmt: skip
        if is_so:
            return f"it is a lazily {what} view; .resolve_{remedy}() makes a tensor of it"
    return None


def new_output(described: TensorType, place: Device | None) -> Any:
    if place is not None:
        return place.empty_tensor(described)
    return _empty(np.dtype(described.dtype.numpy), described.shape)


def _empty(dtype: np.dtype[Any], shape: Sequence[int], device: str = "cpu") -> Any:
    """A new tensor, as `torch.empty` makes it."""
    library = torch()
    assert library is not None
    return library.empty(tuple(shape), dtype=dtype_of(dtype), device=device)


def empty_on(dtype: np.dtype[Any], shape: Sequence[int], device: int, stream: int) -> Any:
    """A new tensor on a CUDA device. Its memory is given back in the order of the stream, by its number."""
    cuda = sys.modules["torch"].cuda
    if cuda.current_stream(device).cuda_stream == stream:
        return _empty(dtype, shape, f"cuda:{device}")
    with cuda.stream(cuda.ExternalStream(stream, device=device)):
        return _empty(dtype, shape, f"cuda:{device}")


def dtype_of(dtype: np.dtype[Any]) -> Any:
    """PyTorch's name of an element type: the same as NumPy's and ml_dtypes'."""
    return getattr(torch(), dtype.name)


def note_written(tensor: Any) -> None:
    """Make autograd refuse what it has saved of a tensor, as after an operator that works in place."""
    library = torch()
    assert library is not None
    library.autograd.graph.increment_version(tensor)


# --- for compiled code -----------------------------------------------------------------------


class _ExchangeAPI(ctypes.Structure):
    """DLPackExchangeAPI of dlpack.h 1.3."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed_of", ctypes.c_void_p),
        ("object_of", ctypes.c_void_p),
        ("read", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    )


_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@dataclass(frozen=True, slots=True)
class Door:
    """The functions by which compiled code asks about tensors.

    read     the address of a C function: int (PyObject *tensor, DLTensor *out)
    objects  classes and functions of PyTorch's
    samples  an empty tensor on the CPU for each element type that there is
    """

    read: int
    objects: tuple[Any, ...]
    samples: dict[np.dtype[Any], Any]


def door(dtypes: Sequence[np.dtype[Any]]) -> Door | None:
    """The functions for compiled code; None if this PyTorch has none (before 2.10), or none at present."""
    library = torch()
    capsule = getattr(getattr(library, "Tensor", None), "__dlpack_c_exchange_api__", None)
    if library is None or capsule is None:
        return None
    api = _ExchangeAPI.from_address(_pointer(capsule, b"dlpack_exchange_api"))
    if api.major != 1 or not api.read:
        return None
    kind = library.Tensor
    objects = (
        *(kind, library.nn.Parameter, "requires_grad", library.is_grad_enabled, kind.is_neg),
        *(library.autograd.graph.increment_version, kind.new_empty_strided),
    )
    known = [dtype for dtype in dtypes if hasattr(library, dtype.name)]
    with library.inference_mode(False):
        samples = {dtype: _empty(dtype, (0,)) for dtype in known}
    if any(type(sample) is not kind for sample in samples.values()):
        return None  # a mode of PyTorch's makes other tensors now, fake ones perhaps
    return Door(api.read, objects, samples)
