"""As much of JAX as taskc asks of it, so that tests need none; `-m jax` runs them with JAX itself.

XLA's frames are written here as words, after xla/ffi/api/c_api.h, so that taskc's reading of them has a second opinion.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from taskc.backend.cpu.pool import pool

_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_CODES = {"bool": 1, "int32": 4, "float16": 10, "float32": 11, "float64": 12, "bfloat16": 16}


class JaxRuntimeError(RuntimeError):
    pass


class Tracer:
    def __init__(self, array: np.ndarray) -> None:
        self.shape, self.dtype = array.shape, array.dtype


class _Words:
    """Memory of 64-bit words, and what they point to."""

    def __init__(self, *words: int | _Words) -> None:
        self.needs = words
        numbers = [word.address if isinstance(word, _Words) else word for word in words]
        self.memory = np.array([number % 2**64 for number in numbers], np.uint64)
        self.address = self.memory.ctypes.data


def _buffers(arrays: Sequence[np.ndarray]) -> list[int | _Words]:
    made = [
        _Words(
            48, 0, _CODES[it.dtype.name], it.ctypes.data if it.size else 0, it.ndim, _Words(*it.shape)
        )
        for it in arrays
    ]  # fmt: skip
    return [40, 0, len(arrays), _Words(*[1] * len(arrays)), _Words(*made)]


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def _make_error(address: int) -> int:
    said = (ctypes.c_void_p * 4).from_address(address)
    _errors.append(ctypes.string_at(said[2] or 0).decode())
    return len(_errors)


_errors: list[str] = []


def run(handler: int, arguments: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
    """Calls a handler as XLA does."""
    make = ctypes.cast(_make_error, ctypes.c_void_p).value or 0
    api = _Words(0, 0, 24, 0, 3 << 32, 0, make)
    frame = _Words(0, 0, api, 0, 3, *_buffers(arguments), *_buffers(results))
    failed = _HANDLER(handler)(frame.address)
    if failed:
        raise JaxRuntimeError(f"INTERNAL: {_errors[failed - 1]}")


def version_of(handler: int) -> tuple[int, int]:
    """What a handler says it was made for."""
    metadata = _Words(48, 24, 0, 0, 0, 0)
    extension = _Words(32, 1, 0, metadata)
    assert not _HANDLER(handler)(_Words(0, extension, 0, 0, 0).address)
    word = int(metadata.memory[3])
    return word & 0xFFFFFFFF, word >> 32


class CustomVJP:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def defvjp(self, keep: Any, gradients: Any) -> None:
        self.keep, self.gradients = keep, gradients

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)


def module() -> ModuleType:
    """`targets` are the handlers by name and platform."""
    made = ModuleType("jax")
    targets: dict[tuple[str, str], int] = {}

    def register(name: str, capsule: object, *, platform: str) -> None:
        handler = _pointer(capsule, b"xla._CUSTOM_CALL_TARGET")
        assert version_of(handler) == (0, 1)
        targets[name, platform] = handler

    def ffi_call(
        name: str, shapes: Sequence[Any], *, vmap_method: str, input_output_aliases: dict[int, int]
    ) -> Any:
        def call(*arrays: np.ndarray) -> list[np.ndarray]:
            results = [np.empty(it.shape, it.dtype) for it in shapes]
            given = [*arrays]
            for index, number in input_output_aliases.items():
                results[number][...] = given[index]
                given[index] = results[number]
            run(targets[name, "cpu"], given, results)
            return results

        return call

    made.__dict__.update(
        targets=targets,
        Array=type("Array", (), {}),
        core=SimpleNamespace(Tracer=Tracer),
        numpy=SimpleNamespace(asarray=np.asarray, arange=np.arange, ones=np.ones),
        dtypes=SimpleNamespace(
            canonicalize_dtype=lambda it: np.dtype("f4") if it == np.float64 else it
        ),
        ShapeDtypeStruct=lambda shape, dtype: SimpleNamespace(shape=shape, dtype=dtype),
        jit=lambda function, inline=False: function,
        custom_vjp=CustomVJP,
        ffi=SimpleNamespace(register_ffi_target=register, ffi_call=ffi_call),
    )
    return made


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A JAX that has been imported."""
    made = module()
    monkeypatch.setitem(sys.modules, "jax", made)
    yield made
    ctypes.c_void_p.from_address(pool().library["buffers_class"]).value = None


@pytest.fixture(params=["stand-in", pytest.param("JAX", marks=pytest.mark.jax)])
def jax(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """JAX, in two forms."""
    made = module() if request.param == "stand-in" else importlib.import_module("jax")
    monkeypatch.setitem(sys.modules, "jax", made)
    yield made
    ctypes.c_void_p.from_address(pool().library["buffers_class"]).value = None
