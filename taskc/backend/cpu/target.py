"""The CPU as a target of the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from taskc.backend.cache import Cache, code_text, key_of
from taskc.backend.cpu.compile import CompiledObject, LoadedKernel, compile_kernel, refuse
from taskc.backend.cpu.entry import admit_arrays, admit_tensors
from taskc.backend.cpu.jit import keep_code
from taskc.backend.cpu.pool import limit_threads
from taskc.backend.cpu.processor import host
from taskc.backend.cpu.program import LoadedProgram
from taskc.ir import nodes as ir

__all__ = ["LoadedProgram", "admit", "cache_key", "keep_code", "limit_threads", "load"]

Lower = Callable[[ir.Kernel], ir.Kernel]


def admit(foreign: Mapping[str, type]) -> None:
    """Let compiled code accept PyTorch tensors or arrays of a JAX class directly, once a call has had one."""
    if "torch" in foreign:
        admit_tensors()
    if "jax" in foreign:
        admit_arrays(foreign["jax"])


def load(kernel: ir.Kernel, lower: Lower, cache: Cache, version: str) -> LoadedKernel:
    """A kernel as its author wrote it, compiled for this processor or loaded from the cache.

    lower    lowers it to stage lean
    version  version of the whole compiler
    """
    refuse(kernel)
    processor = host()
    key = cache_key(kernel, version)
    cached = cache.get(key)
    if cached is not None:
        return LoadedKernel(kernel, CompiledObject.from_bytes(cached))
    compiled = compile_kernel(lower(replace(kernel, target=processor.target)), processor)
    cache.put(key, compiled.to_bytes())
    return LoadedKernel(kernel, compiled)


def cache_key(kernel: ir.Kernel, version: str) -> str:
    """The cache key of a kernel's code, from its text at stage parsed or any other."""
    return key_of(code_text(kernel), host().fingerprint, version)
