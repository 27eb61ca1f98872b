"""Processors that this one can stand in for, and kernels compiled for them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from taskc.backend.cpu.compile import LoadedKernel, compile_kernel
from taskc.backend.cpu.processor import Processor, host, typical
from taskc.ir import nodes as ir
from taskc.passes.pipeline import lower

# An x86 processor runs what was compiled for lesser ones.
_OF_AVX512, _OF_AVX2 = ("avx2", "sse2"), ("sse2",)
_LESSER = {
    **dict.fromkeys(("avx512", "avx512_vnni", "avx512_bf16", "avx512_amx"), _OF_AVX512),
    **dict.fromkeys(("avx2", "avx2_vnni"), _OF_AVX2),
}
NAMES = ("host", *_LESSER.get(host().target, ()))


@cache
def processor(name: str) -> Processor:
    return host() if name == "host" else typical(name)


def loaded_for(kernel: ir.Kernel, name: str = "host") -> LoadedKernel:
    chosen = processor(name)
    lean = lower(replace(kernel, target=chosen.target))
    return LoadedKernel(kernel, compile_kernel(lean, chosen))


def sizes_of(kernel: ir.Kernel, arguments: dict[str, Any]) -> dict[ir.Variable, int]:
    return {
        extent: size
        for parameter in kernel.parameters
        if isinstance(parameter, ir.Tensor)
        for extent, size in zip(parameter.shape, arguments[parameter.name].shape, strict=True)
        if isinstance(extent, ir.Variable)
    }
