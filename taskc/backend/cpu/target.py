"""The CPU as a target of the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from taskc.backend.cache import Cache, code_text, key_of
from taskc.backend.cpu import processes
from taskc.backend.cpu.compile import CompiledObject, LoadedKernel, compile_kernel, refuse
from taskc.backend.cpu.entry import admit_arrays, admit_tensors
from taskc.backend.cpu.jit import keep_code
from taskc.backend.cpu.pool import limit_threads
from taskc.backend.cpu.processor import host
from taskc.backend.cpu.program import LoadedProgram
from taskc.backend.cpu.tiers import compiling, finish
from taskc.ir import nodes as ir

__all__ = [
    "LoadedProgram",
    "admit",
    "cache_key",
    "compiling",
    "finish",
    "keep_code",
    "limit_threads",
    "load",
]

Lower = Callable[[ir.Kernel], ir.Kernel]


def admit(foreign: Mapping[str, type]) -> None:
    """Let compiled code accept PyTorch tensors or arrays of a JAX class directly, once a call has had one."""
    if "torch" in foreign:
        admit_tensors()
    if "jax" in foreign:
        admit_arrays(foreign["jax"])


def load(
    kernel: ir.Kernel, lower: Lower, cache: Cache, version: str, tier: str | None
) -> LoadedKernel:
    """A kernel as its author wrote it, compiled for this processor or loaded from the cache.

    lower    lowers it to stage lean
    version  version of the whole compiler
    tier     "quick" or "full" code; None: one after the other (tiers.py)
    """
    refuse(kernel)
    key = cache_key(kernel, version)
    cached = cache.get(key)
    compiled = None if cached is None else CompiledObject.from_bytes(cached)
    if compiled is None:
        with compiling():
            compiled = processes.call(_compiled, kernel, lower, is_quick=tier != "full")
        cache.put(key, compiled.to_bytes())
    loaded = LoadedKernel(kernel, compiled, key, cache, stays_quick=tier is not None)
    if tier == "full" and compiled.text:
        loaded.complete()
    return loaded


def _compiled(kernel: ir.Kernel, lower: Lower, *, is_quick: bool) -> CompiledObject:
    processor = host()
    lean = lower(replace(kernel, target=processor.target))
    return compile_kernel(lean, processor, is_quick=is_quick)


def cache_key(kernel: ir.Kernel, version: str) -> str:
    """The cache key of a kernel's code, from its text at stage parsed or any other."""
    return key_of(code_text(kernel), host().fingerprint, version)
