"""Compiled LLVM text that belongs to no kernel: the thread pool, and the entries of programs. The cache stores it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import llvmlite.binding as llvm

from taskc.backend.cache import Cache, key_of
from taskc.backend.cpu.module import optimized
from taskc.backend.cpu.processor import host

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


def object_of(kind: str, text: str, *, optimize: bool = True) -> Object:
    """Compile for this processor. `optimize=False` is for code that takes longer to optimize than to run."""
    processor = host()
    cache, version = _kept[0] if _kept else (None, "")
    key = key_of(kind, text, processor.fingerprint, version)
    code = _given.get(key) or (cache and cache.get(key))
    if not code:
        module = optimized(text, processor) if optimize else llvm.parse_assembly(text)
        module.verify()
        code = processor.machine.emit_object(module)
        if cache is not None:
            cache.put(key, code)
    return Object(key, bytes(code))
