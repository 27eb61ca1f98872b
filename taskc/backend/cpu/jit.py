"""Compiled code in this process: each object becomes a library, and goes when nobody holds that any more.

JITLink lays out an object's code, constants and data side by side, so that its 32-bit offsets reach however
much memory the process has between two mappings; the older linker, llvmlite's default, maps each kind where
there is room, and ends the process where that is more than 2 GiB away.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import llvmlite.binding as llvm

from taskc.backend.cpu.processor import host
from taskc.ir.reentry import door

# An LLJIT costs 2 ms, and keeps 10 KB of each library that it ever had.
_LIBRARIES = 64

_numbers = itertools.count()
_newest: tuple[Any, int] = (None, 0)  # an LLJIT, and how many libraries it may still take


class Library:
    """It maps names to addresses, and keeps the code alive."""

    __slots__ = ("_linker", "_tracker")

    def __init__(self, tracker: Any, linker: Any) -> None:
        self._tracker = tracker
        self._linker = linker

    def __getitem__(self, name: str) -> int:
        address: int = self._tracker[name]
        return address

    def __del__(self) -> None:
        with door():  # LLVM has a lock of its own
            del self._tracker  # whose end is the code's, before that of what linked it


def load_object(
    code: bytes, name: str, exported: Sequence[str], imported: Mapping[str, int] | None = None
) -> Library:
    """`imported` are the addresses of what it has from other libraries."""
    global _newest
    builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
    for symbol in exported:
        builder.export_symbol(symbol)
    for symbol, address in (imported or {}).items():
        builder.import_symbol(symbol, address)
    linker, left = _newest
    if not left:
        linker, left = llvm.create_lljit_compiler(host().machine, use_jit_link=True), _LIBRARIES
    _newest = linker, left - 1  # two calls at once count as one
    return Library(builder.link(linker, f"{name}.{next(_numbers)}"), linker)


# LLVM is in the midst of nothing when a process forks: whoever is waits for no thread that isn't in the child.
_of_llvm = llvm.ffi.lib._lock


def _before_fork() -> None:
    _of_llvm.__enter__()


def _after_fork() -> None:
    _of_llvm.__exit__(None, None, None)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
