"""One LLJIT for the process: what is compiled becomes a library of it."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from taskc.backend.cpu.processor import host

_numbers = itertools.count()
_lock = threading.Lock()


@cache
def _compiler() -> Any:
    return llvm.create_lljit_compiler(host().machine)


def load_object(code: bytes, name: str, exported: Sequence[str]) -> Any:
    """An object as a library; it maps names to addresses, and keeps the code alive."""
    builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
    for symbol in exported:
        builder.export_symbol(symbol)
    with _lock:
        return builder.link(_compiler(), f"{name}.{next(_numbers)}")


def _forget_lock() -> None:
    """Whoever has it in the parent of a fork isn't in the child."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)
