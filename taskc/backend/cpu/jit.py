"""Compiled code in this process: each object becomes a library, and is freed with its last reference.

JITLink lays out an object's code, constants and data in one block, so that its 32-bit offsets always reach. The
older linker, llvmlite's default, maps each kind wherever there is room, and aborts the process where the distance
exceeds 2 GiB.

`object_of` compiles and caches LLVM text that belongs to no kernel: the thread pool.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import llvmlite.binding as llvm

from taskc.backend.cache import Cache, key_of
from taskc.backend.cpu.processor import host
from taskc.backend.cpu.tiers import compiling
from taskc.dataclass import dataclass
from taskc.ir.reentry import door
from taskc.ir.spans import span

# An LLJIT costs 2 ms, and leaks 10 KB for each library that it ever had.
_LIBRARIES = 64

_numbers = itertools.count()
_newest: tuple[Any, int] = (None, 0)  # an LLJIT, and how many more libraries it may take


class LinkedLibrary:
    """Maps exported names to addresses, and keeps the code alive."""

    __slots__ = ("_linker", "_tracker")

    def __init__(self, tracker: Any, linker: Any) -> None:
        self._tracker = tracker
        self._linker = linker

    def __getitem__(self, name: str) -> int:
        address: int = self._tracker[name]
        return address

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_ending():  # globals may be gone, and no other thread runs
            del self._tracker
            return
        with door():  # LLVM has a lock of its own
            del self._tracker  # frees the code, which has to happen before the linker goes


@span("load code")
def load_object(
    code: bytes, name: str, exported: Sequence[str], imported: Mapping[str, int] | None = None
) -> LinkedLibrary:
    """Link an object; `imported` maps names it takes from other libraries to addresses."""
    global _newest
    builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
    for symbol in exported:
        builder.export_symbol(symbol)
    for symbol, address in (imported or {}).items():
        builder.import_symbol(symbol, address)
    linker, left = _newest
    if not left:
        linker, left = llvm.create_lljit_compiler(host().machine, use_jit_link=True), _LIBRARIES
    _newest = linker, left - 1  # a race of two calls only makes the count inexact
    return LinkedLibrary(builder.link(linker, f"{name}.{next(_numbers)}"), linker)


# A fork waits until LLVM is idle, so that no thread of the child waits for a lock whose owner doesn't exist there.
_of_llvm = llvm.ffi.lib._lock


def _before_fork() -> None:
    _of_llvm.__enter__()


def _after_fork() -> None:
    _of_llvm.__exit__(None, None, None)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


_kept: list[tuple[Cache, str]] = []
_given: dict[str, bytes] = {}


@dataclass(frozen=True, slots=True)
class Object:
    """`key` is the hash of everything the code was compiled from."""

    key: str
    code: bytes


def keep_code(cache: Cache, version: str) -> None:
    """Set the cache for such code, and the compiler's version."""
    _kept[:] = [(cache, version)]


def give_code(objects: Mapping[str, bytes]) -> None:
    """Add precompiled objects by their keys, from a bundle."""
    _given.update(objects)


def object_of(kind: str, text: str) -> Object:
    """Compile for this processor; the text is optimized already."""
    processor = host()
    cache, version = _kept[0] if _kept else (None, "")
    key = key_of(kind, text, processor.fingerprint, version)
    code = _given.get(key) or (cache and cache.get(key))
    if not code:
        with compiling(), span("LLVM/generate code of entries"):
            module = llvm.parse_assembly(text)
            module.verify()
            code = processor.machine.emit_object(module)
        if cache is not None:
            cache.put(key, code)
    return Object(key, bytes(code))
