"""Compiled code as a Python function."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from taskc.arrays.packed import packed_class
from taskc.backend.cpu.entry import GIVEN_UP, context_size
from taskc.backend.cpu.jit import Library
from taskc.backend.cpu.pool import pool
from taskc.backend.cpu.torch_tensors import TABLE
from taskc.backend.cpu.unpacking import BITS, Called, packed_of, packed_type, viewed_of
from taskc.ir.nodes import Kernel
from taskc.ir.signature import outputs_of


def python_function(
    called: Called,
    library: Library,
    addresses: Sequence[int],
    slow: Callable[..., Any],
    failed: Callable[[int], Any],
    needs: object = None,
) -> Callable[..., Any] | None:
    """The `entry` of a library; None where Python objects don't have the layout compiled code expects.

    addresses  the last words of the context: what runs, as c/calls.c has it
    slow       takes a call that compiled code doesn't
    failed     raises what an assertion says
    needs      what that code needs to be there
    """
    if not _objects_are_plain():
        return None

    def ended(number: int) -> None:
        if number == GIVEN_UP:
            pool().raise_again()
        failed(number)

    outputs = outputs_of(called.parameters)
    classes = [packed_class(packed_type(item)) for item in packed_of(called)]
    types = [tensor.dtype.numpy for tensor in outputs]
    viewed = [
        np.dtype(dtype.numpy)
        for tensor in viewed_of(called)
        for dtype in (tensor.dtype, BITS[tensor.dtype.name])
    ]
    names = sys.intern("out"), sys.intern("dtype")
    objects = (np.ndarray, np.empty, names[0], ended, names[1], np.ndarray.view)
    described = (*types, *classes, *viewed)
    call = "call_kernel" if isinstance(called, Kernel) else "call_program"
    functions = [pool().library[name] for name in (call, "read_argument", "ask_slow")]
    words = (*functions, *map(id, objects), TABLE, *map(id, described), *addresses)
    assert len(words) == context_size(called) + len(addresses)
    context = (ctypes.c_void_p * len(words)).from_address(library["context"])
    for number, word in enumerate(words):
        context[number] = word
    return _builtin(
        called.name, library["entry"], _Slow(slow, (library, objects, described, needs))
    )


class _MethodDefinition(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    )


_FASTCALL, _KEYWORDS = 0x80, 0x02


class _Slow:
    """The fallback for calls that compiled code doesn't accept. It also keeps that code's data alive."""

    __slots__ = ("definition", "needs", "slow")

    def __init__(self, slow: Callable[..., Any], needs: object) -> None:
        self.slow = slow
        self.needs = needs
        self.definition: _MethodDefinition | None = None

    def __call__(self, values: tuple[Any, ...], names: tuple[str, ...] | None) -> Any:
        """Called by compiled code with all arguments, and the names of the last of them."""
        count = len(values) - len(names or ())
        keywords = dict(zip(names or (), values[count:], strict=True))
        return self.slow(*values[:count], **keywords)


def _objects_are_plain() -> bool:
    """Whether objects have the layout that compiled code expects: a reference count, then the type.

    So it is in CPython, but not where threads run without its lock, nor where it traces references.
    """
    if sys.implementation.name != "cpython" or sys.maxsize < 1 << 62:
        return False
    if object.__basicsize__ != 16:
        return False
    probe = object()
    return ctypes.c_void_p.from_address(id(probe) + 8).value == id(object)


def _builtin(name: str, address: int, slow: _Slow) -> Callable[..., Any]:
    """The C function at an address as a Python function, with `slow` as its self."""
    definition = _MethodDefinition(name.encode(), address, _FASTCALL | _KEYWORDS, None)
    slow.definition = definition  # Python keeps a pointer to it
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    function: Callable[..., Any] = make(ctypes.addressof(definition), slow, None)
    return function
