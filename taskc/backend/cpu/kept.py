"""Objects of LLVM's text that is no kernel's: the pool, and how programs are called. The cache keeps them."""

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
    """`key` is the hash of all that the code was made from."""

    key: str
    code: bytes


def keep_code(cache: Cache, version: str) -> None:
    """Says where such code is kept, under the version of what makes it."""
    _kept[:] = [(cache, version)]


def give_code(objects: Mapping[str, bytes]) -> None:
    """Objects by their keys that need not be made: what a bundle brings along."""
    _given.update(objects)


def object_of(kind: str, text: str, *, optimize: bool = True) -> Object:
    """Compiled for this processor; without `optimize` as it is written, where compiling takes longer than running."""
    processor = host()
    cache, version = _kept[0] if _kept else (None, "")
    key = key_of(kind, text, processor.fingerprint, version)
    found = _given.get(key) or (cache and cache.get(key))
    if not found:
        module = optimized(text, processor) if optimize else llvm.parse_assembly(text)
        module.verify()
        found = processor.machine.emit_object(module)
        if cache is not None:
            cache.put(key, found)
    return Object(key, bytes(found))
