"""Compiled code sees guarded copies of its arrays: in front of each and behind it is what nobody may write or read.

A call's array is copied to a room of its own, between two pages without access. One time it ends where the last
page begins, at whatever address that gives; the next time it begins where the first one ends. On the other side
are canaries. An output begins as canaries, too, and inputs must come out as they went in.

`install()` puts this between kernels and the pool that runs their blocks, which every call on the CPU goes through:
tests need not know. What was found is in `found()`; an access to a page without access ends the process.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from taskc.arrays.packed import slots_of
from taskc.backend.cpu import compile as compiling, program as programs
from taskc.backend.cpu.compile import CompiledObject, LoadedKernel
from taskc.backend.cpu.pool import Pool, pool
from taskc.ir import nodes as ir
from taskc.ir.extents import extent_value

CANARIES = 256  # bytes
LARGEST = 1 << 26  # bytes of what is guarded
_PAGE = mmap.PAGESIZE
_CANARY = 0xA7
_RUN = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_bool),
)
_STEP = ctypes.CFUNCTYPE(
    None,
    *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_bool),
)
_CALL = 64  # bytes of `call` of c/runtime.h
_RAN = 0  # what the pool returns
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_memcmp, _memmove, _memset = _libc.memcmp, _libc.memmove, _libc.memset
_memcmp.argtypes = _memmove.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
_CANARIES = bytes([_CANARY]) * CANARIES


class Room:
    """Memory between two pages without access."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.memory = mmap.mmap(-1, size + 2 * _PAGE)
        first = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.start, self.end = first + _PAGE, first + _PAGE + size
        for page in (first, self.end):
            if _libc.mprotect(page, _PAGE, 0):
                raise OSError(ctypes.get_errno(), "mprotect")


@dataclass(slots=True)
class Guarded:
    """An argument's copy."""

    parameter: ir.Tensor
    size: int
    original: int
    room: Room
    at_end: bool
    address: int = 0

    def __post_init__(self) -> None:
        self.address = self.room.end - self.size if self.at_end else self.room.start
        _memset(self._canaries, _CANARY, CANARIES)
        if self.parameter.role == "out":
            _memset(self.address, _CANARY, self.size)
        else:
            _memmove(self.address, self.original, self.size)

    @property
    def _canaries(self) -> int:
        """Where they begin: on the side without a page."""
        return self.address - CANARIES if self.at_end else self.address + self.size

    def wrong(self) -> str | None:
        """What was written that nobody may write."""
        if _memcmp(self._canaries, _CANARIES, CANARIES):
            there = ctypes.string_at(self._canaries, CANARIES)
            changed = [place for place, byte in enumerate(there) if byte != _CANARY]
            side, first = (
                ("before", changed[0] - CANARIES) if self.at_end else ("behind", changed[0])
            )
            return f"{len(changed)} bytes were written {side} it, the first at {first}"
        if self.parameter.role == "in" and _memcmp(self.address, self.original, self.size):
            return "an input was written"
        return None

    def copy_back(self) -> None:
        if self.parameter.role != "in":
            _memmove(self.original, self.address, self.size)


_known: WeakValueDictionary[int, _Known] = WeakValueDictionary()  # by where their code lies
_rooms: dict[int, list[Room]] = {}  # that nobody is in
_found: list[str] = []
_installed: list[object] = []
_calls = 0


def found() -> list[str]:
    """What was found since the last time."""
    messages = _found[:]
    _found.clear()
    return messages


def install() -> None:
    """Guards all calls of this process from now on."""
    if _installed:
        return
    make = LoadedKernel.__init__

    def make_known(
        self: LoadedKernel, kernel: ir.Kernel, compiled: CompiledObject, *entry: Any, **options: Any
    ) -> None:
        make(self, kernel, compiled, *entry, **options)
        self.guarded = _known[self.library["job"]] = _Known(kernel)  # type: ignore[attr-defined]

    LoadedKernel.__init__ = make_known  # type: ignore[method-assign]
    _installed.append(_Guarding(pool()))
    compiling.pool = programs.pool = lambda: _installed[0]  # type: ignore[assignment, return-value]


@contextmanager
def absent() -> Iterator[None]:
    """Kernels that are loaded inside run as they do for users: for tests of time."""
    stands_in = compiling.pool
    compiling.pool = programs.pool = pool
    yield
    compiling.pool = programs.pool = stands_in


class _Guarding:
    """Stands in for the pool."""

    def __init__(self, behind: Pool) -> None:
        self._pool = behind
        plain, step = _RUN(behind.run), _STEP(behind.step)
        self._guarded = _RUN(lambda *call: self._run(plain, *call))
        self._step = _STEP(lambda *calls: self._run_step(step, *calls))
        self.run = ctypes.cast(self._guarded, ctypes.c_void_p).value
        self.step = ctypes.cast(self._step, ctypes.c_void_p).value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def _run(
        self, run: Any, job: int, blocks: int, words: int, scratch: int | None, share: bool
    ) -> int:
        with _copied(job, blocks, words) as ran:
            status: int = run(job, blocks, words, scratch, share)
            ran.append(status == _RAN)
        return status

    def _run_step(
        self, step: Any, calls: int, blocks: int, scratch: int | None, share: bool
    ) -> None:
        """One call, or those that run beside it, too."""
        others = _word(calls, 7).value if share else 0
        with ExitStack() as stack:
            for call in range(calls, calls + (others + 1) * _CALL, _CALL):
                job, words, begin, end = [_word(call, place).value for place in range(4)]
                stack.enter_context(_copied(job, end - begin, words)).append(True)
            step(calls, blocks, scratch, share)


@contextmanager
def _copied(job: int, blocks: int, words: int) -> Iterator[list[bool]]:
    """Has a call's words name copies, and looks at them if it ran, as who runs it says."""
    known = _known.get(job)
    copies = {} if known is None or not blocks else known.copies(words)
    for place, copy in copies.items():
        _word(words, place).value = copy.address
    ran: list[bool] = []
    yield ran
    for place, copy in copies.items():
        _word(words, place).value = copy.original
    if known is not None and any(ran):
        known.look_at(copies, words)
    for copy in copies.values():
        _rooms[copy.room.size].append(copy.room)


class _Known:
    """A kernel that was loaded, and which of its parameters are arrays."""

    def __init__(self, kernel: ir.Kernel) -> None:
        self.kernel = kernel
        self.tensors = [
            (place, parameter, _constant_size(parameter))
            for place, parameter in enumerate(kernel.parameters)
            if isinstance(parameter, ir.Tensor)
        ]

    def copies(self, words: int) -> dict[int, Guarded]:
        """Of the arrays among a call's arguments, by their place there."""
        global _calls
        _calls += 1
        made = {}
        for place, parameter, constant in self.tensors:
            size = self._size(parameter, words) if constant is None else constant
            if size <= LARGEST:
                original = _word(words, place).value
                at_end = (_calls + place) % 2 == 0
                made[place] = Guarded(parameter, size, original, _room(size), at_end)
        return made

    def look_at(self, copies: dict[int, Guarded], words: int) -> None:
        """Notes what is wrong after a run, and hands on what it wrote."""
        kernel = self.kernel
        failed = _word(words, len(kernel.parameters) + len(kernel.dimensions)).value  # an assertion
        for copy in copies.values():
            wrong = copy.wrong()
            if wrong is not None:
                _found.append(
                    f"'{kernel.name}', {copy.parameter.name} of {copy.size} bytes: {wrong}"
                )
        for copy in copies.values():  # in a program an output may take an input's place
            if not (failed and copy.parameter.role == "out"):
                copy.copy_back()

    def _size(self, parameter: ir.Tensor, words: int) -> int:
        kernel, sizes = self.kernel, {}
        for place, variable in enumerate((*kernel.parameters, *kernel.dimensions)):
            if isinstance(variable, ir.Variable) and variable.dtype.is_integer:
                is_scalar = place < len(kernel.parameters)
                kind = variable.dtype.numpy if is_scalar else np.dtype(np.int64)
                word = ctypes.string_at(words + 8 * place, 8)
                sizes[variable] = np.frombuffer(word, kind, 1).item()
        return _bytes(parameter, tuple(extent_value(extent, sizes) for extent in parameter.shape))


def _constant_size(parameter: ir.Tensor) -> int | None:
    """In bytes, with the padding of its layout; None where it depends on the call."""
    extents = [extent for extent in parameter.shape if isinstance(extent, int)]
    return _bytes(parameter, tuple(extents)) if len(extents) == len(parameter.shape) else None


def _bytes(parameter: ir.Tensor, shape: tuple[int, ...]) -> int:
    layout = parameter.layout
    count = prod(shape) if layout is None else slots_of(shape, layout)
    return parameter.dtype.bytes_of(count)


def _word(words: int, place: int) -> ctypes.c_int64:
    return ctypes.c_int64.from_address(words + 8 * place)


def _room(size: int) -> Room:
    """One that is large enough, a power of two of pages."""
    wanted = _PAGE << max(0, -(-(size + CANARIES) // _PAGE) - 1).bit_length()
    try:
        return _rooms.setdefault(wanted, []).pop()
    except IndexError:
        return Room(wanted)
