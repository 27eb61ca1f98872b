"""The CPU as a target of the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from taskc.backend.cache import Cache, key_of
from taskc.backend.code_text import code_text
from taskc.backend.cpu.compile import Compiled, Loaded, compile_kernel, refuse
from taskc.backend.cpu.kept import keep_code
from taskc.backend.cpu.pool import limit_threads
from taskc.backend.cpu.processor import host
from taskc.backend.cpu.program import LoadedProgram
from taskc.backend.cpu.torch_tensors import admit_arrays, admit_tensors
from taskc.ir import nodes as ir

__all__ = ["LoadedProgram", "admit", "cache_key", "keep_code", "limit_threads", "load"]

Lower = Callable[[ir.Kernel], ir.Kernel]


def admit(foreign: Mapping[str, type]) -> None:
    """From now on compiled code takes PyTorch's tensors, or JAX's arrays of a class, if a call has had such."""
    if "torch" in foreign:
        admit_tensors()
    if "jax" in foreign:
        admit_arrays(foreign["jax"])


def load(kernel: ir.Kernel, lower: Lower, cache: Cache, version: str) -> Loaded:
    """A kernel at the stage its author wrote it at, compiled for this processor or found compiled.

    lower    takes it to stage lean
    version  of everything that compiles
    """
    refuse(kernel)
    processor = host()
    key = cache_key(kernel, version)
    kept = cache.get(key)
    if kept is not None:
        return Loaded(kernel, Compiled.from_bytes(kept))
    compiled = compile_kernel(lower(replace(kernel, target=processor.target)), processor)
    cache.put(key, compiled.to_bytes())
    return Loaded(kernel, compiled)


def cache_key(kernel: ir.Kernel, version: str) -> str:
    """Where a kernel's code is in the cache: at stage parsed, or at any other."""
    return key_of(code_text(kernel), host().fingerprint, version)
