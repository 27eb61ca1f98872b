"""One LLJIT for the process: what is compiled becomes a library of it."""

from __future__ import annotations

import itertools
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


def load_text(text: str, name: str, exported: Sequence[str]) -> Any:
    """LLVM IR as a library; it maps names to addresses, and keeps the code alive."""
    return _linked(llvm.JITLibraryBuilder().add_ir(text), name, exported)


def load_object(code: bytes, name: str, exported: Sequence[str]) -> Any:
    return _linked(llvm.JITLibraryBuilder().add_object_img(code), name, exported)


def _linked(builder: Any, name: str, exported: Sequence[str]) -> Any:
    builder.add_current_process()
    for symbol in exported:
        builder.export_symbol(symbol)
    with _lock:
        return builder.link(_compiler(), f"{name}.{next(_numbers)}")
