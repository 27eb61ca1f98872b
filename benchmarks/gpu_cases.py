"""The kernels that `gpu.py` checks and measures: a row of FAMILIES for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gpu_kernels as kernels
import gpu_library
import gpu_parts
import gpu_single
import numpy as np
from gpu_kernels import Size

from taskc import DType, bf16, f16, f32, tf32


@dataclass(frozen=True)
class Family:
    """name       of the benchmark
    build      a kernel or a program of a size, for a machine
    reference  what it computes, of float64 arrays
    bound      how far a result may be away: (of its own magnitude, absolute), for a size
    checks     sizes that are compared with the reference
    ladder     more of them, large enough to be lowered to what small ones aren't: rungs of the bring-up's ladder
    sizes      sizes that are measured; `quick` those of --quick
    peer       what torch has: a function of torch and tensors, which is called again and again
    work       floating-point operations of a size, and `dtype`, of what: whose peak they are held against
    is_bound_by_memory  whether it is held against a copy of as many bytes
    counted    sizes whose accesses are held against a profiler's counters
    target     the only machine that it is for
    inputs     makes a kernel's inputs, where random numbers won't do
    """

    name: str
    build: Callable[..., Any]
    reference: Callable[..., Any]
    bound: Callable[[Size], tuple[float, float]]
    checks: tuple[Size, ...]
    sizes: tuple[Size, ...]
    quick: tuple[Size, ...]
    peer: Callable[..., Any] | None = None
    work: Callable[[Size], float] | None = None
    dtype: DType = f32
    is_bound_by_memory: bool = False
    counted: tuple[Size, ...] = ()
    ladder: tuple[Size, ...] = ()
    target: str = ""
    inputs: Callable[[Any], list[Any]] | None = None


def name_of(size: Size) -> str:
    return "x".join(str(part) for part in size)


MATMULS = (
    (4096, 4096, 4096), (8192, 8192, 8192), (8192, 8192, 1024), (128, 768, 3072), (2039, 2039, 2039),
)  # fmt: skip
QUICK_MATMULS = ((4096, 4096, 4096), (128, 768, 3072))
MATMUL_CHECKS = ((256, 512, 320), (131, 72, 264), (1, 128, 512), (129, 257, 67))
MATMUL_LADDER = (
    (64, 2048, 2048), (1024, 1024, 1000), (4056, 2280, 136), (2040, 2040, 136), (4056, 4088, 136),
    (2040, 2296, 264),
)  # fmt: skip

ROWS = ((16384, 1024), (8192, 4096), (4096, 8192))
ROW_CHECKS = ((33, 64), (5, 1000), (3, 4099))
ATTENTION_CHECKS = ((1, 2, 2, 128, 128, 64), (2, 2, 1, 200, 200, 128))

# ResNet-50's: (channels, height and width, filters, kernel, stride), each once.
RESNET = (
    (3, 224, 64, 7, 2), (64, 56, 64, 1, 1), (64, 56, 64, 3, 1), (64, 56, 256, 1, 1),
    (256, 56, 64, 1, 1), (256, 56, 128, 1, 1), (128, 56, 128, 3, 2), (128, 28, 512, 1, 1),
    (256, 56, 512, 1, 2), (512, 28, 128, 1, 1), (128, 28, 128, 3, 1), (512, 28, 256, 1, 1),
    (256, 28, 256, 3, 2), (256, 14, 1024, 1, 1), (512, 28, 1024, 1, 2), (1024, 14, 256, 1, 1),
    (256, 14, 256, 3, 1), (1024, 14, 512, 1, 1), (512, 14, 512, 3, 2), (512, 7, 2048, 1, 1),
    (1024, 14, 2048, 1, 2), (2048, 7, 512, 1, 1), (512, 7, 512, 3, 1),
)  # fmt: skip


CONVOLUTION_LADDER = {1: (4, 64, 30, 30, 128, 3, 1), 2: (16, 64, 57, 57, 128, 3, 2)}


def resnet(stride: int) -> tuple[Size, ...]:
    return tuple([(32, c, s, s, o, k, step) for c, s, o, k, step in RESNET if step == stride])


def _matmuls(
    name: str,
    dtype: Any,
    result: Any,
    bound: Any,
    ladder: tuple[Size, ...] = (),
    counted: tuple[Size, ...] = (),
) -> Family:
    return Family(
        name, partial(kernels.matmul, dtype, result), kernels.product, bound, MATMUL_CHECKS, MATMULS, QUICK_MATMULS,
        peer=lambda torch, a, b: a @ b, work=kernels.product_work, dtype=dtype, counted=counted, ladder=ladder,
    )  # fmt: skip


def _instruction(
    instruction: str,
    build: Callable[..., Any],
    dtype: DType,
    total: DType,
    result: DType,
    target: str = "",
) -> Family:
    """A product by one instruction, and nothing else that is new: it is only checked."""
    return Family(
        f"{instruction} {dtype}", partial(build, dtype, total, result), partial(gpu_parts.product, dtype),
        partial(gpu_parts.of_sums, dtype, result), checks=((130, 208, 320),), sizes=(), quick=(),
        dtype=dtype, target=target,
    )  # fmt: skip


def _attention(
    name: str,
    causal: bool,
    checks: tuple[Size, ...],
    sizes: tuple[Size, ...],
    ladder: tuple[Size, ...] = (),
    **changes: Any,
) -> Family:
    """`changes` are of the plan, with a producer."""
    is_decoding = all(length == 1 for _, _, _, length, _, _ in sizes)
    return Family(
        name, partial(kernels.attention, causal, **changes), partial(kernels.attention_reference, causal),
        kernels.of_attention, checks, sizes, sizes[:1], peer=partial(kernels.torch_attention, causal),
        work=partial(kernels.attention_work, causal), dtype=bf16, is_bound_by_memory=is_decoding, ladder=ladder,
        target="sm_90a" if changes else "",
    )  # fmt: skip


def _vectors(name: str, dtype: Any, transposed: bool) -> Family:
    return Family(
        name, partial(kernels.vector, dtype, transposed),
        partial(kernels.vector_reference, transposed), kernels.of_vector,
        checks=((130, 520), (67, 33)), sizes=((4096, 4096), (16384, 8192)), quick=((16384, 8192),),
        peer=(lambda torch, a, b: a @ b.T) if transposed else (lambda torch, a, b: a @ b),
        is_bound_by_memory=True,
    )  # fmt: skip


def _convolutions(stride: int) -> Family:
    """A family for each stride, which the reference and the peer have to know."""
    return Family(
        f"conv2d f16, stride {stride}", kernels.convolution, partial(kernels.convolution_reference, stride=stride),
        lambda size: (2.0**-9, size[1] * size[5] ** 2 * 2.0**-16),
        checks=((2, 16, 9, 9, 24, 3, stride), (1, 8, 7, 7, 16, 1, stride)),
        sizes=resnet(stride), quick=resnet(stride)[1:3], peer=partial(kernels.torch_convolution, stride),
        work=kernels.convolution_work, dtype=f16, ladder=(CONVOLUTION_LADDER[stride],),
    )  # fmt: skip


FAMILIES: tuple[Family, ...] = (
    Family(
        "vector add", kernels.add, lambda a, b: a + b, kernels.one_rounding,
        checks=((1000,), (4097,)), sizes=((1 << 26,),), quick=((1 << 26,),),
        peer=lambda torch, a, b: a + b, is_bound_by_memory=True, counted=((5000,),),
    ),
    Family(
        "transpose", kernels.transposed, kernels.swapped, kernels.exact,
        checks=((37, 70), (64, 64), (130, 257)), sizes=((8192, 8192),), quick=((8192, 8192),),
        peer=lambda torch, x: kernels.swapped(x).contiguous(), is_bound_by_memory=True, counted=((256, 192),),
    ),
    Family(
        "sum in one launch", kernels.summed, kernels.sum_reference, kernels.of_sum,
        checks=((5, 1000), (16, 4099)), sizes=((128, 1 << 19),), quick=(),
        peer=lambda torch, x, sums: x.sum().reshape(1), is_bound_by_memory=True,
    ),
    Family(
        "elementwise, broadcast", kernels.scaled_and_shifted, lambda x, a, b: x * a + b, kernels.one_rounding,
        checks=((37, 70), (5, 1024)), sizes=((8192, 8192),), quick=(),
        peer=lambda torch, x, a, b: torch.addcmul(b, x, a), is_bound_by_memory=True,
        counted=((64, 1024),),
    ),
    Family(
        "every third", kernels.every_third, lambda x: x[::3], kernels.exact, checks=((1000,),), sizes=(), quick=(),
        counted=((4096,),),
    ),
    Family(
        "transpose, unpadded", kernels.unpadded, np.transpose, kernels.exact, checks=((37, 70),), sizes=(), quick=(),
        counted=((128, 128),),
    ),
    _matmuls("matmul bf16", bf16, bf16, kernels.of_bf16, MATMUL_LADDER),
    Family(
        "matmul bf16 and a residual", kernels.with_residual, kernels.residual_reference, kernels.of_bf16,
        checks=((256, 512, 320), (129, 257, 67)), sizes=((8192, 8192, 1024), (4096, 4096, 4096)), quick=(),
        peer=lambda torch, a, b, residual: torch.addmm(residual, a, b), work=kernels.product_work, dtype=bf16,
        ladder=MATMUL_LADDER[2:3],
    ),
    _matmuls("matmul tf32", tf32, f32, kernels.of_tf32, ((1000, 1032, 520),)),
    _matmuls("matmul f32", f32, f32, kernels.of_f32, counted=((128, 128, 64),)),
    Family(
        "matmul f16, by mma.sync", kernels.older_matmul, kernels.product, lambda size: (2.0**-9, size[2] * 2.0**-16),
        MATMUL_CHECKS, sizes=((4096, 4096, 4096),), quick=(), peer=lambda torch, a, b: a @ b,
        work=kernels.product_work, dtype=f16, counted=((256, 128, 128),),
    ),
    Family(
        "matmul f32, of the example", kernels.fma_matmul, kernels.product, kernels.of_f32,
        checks=((50, 70, 44), (128, 128, 64)), sizes=((4096, 4096, 4096),), quick=(),
        peer=lambda torch, a, b: a @ b, work=kernels.product_work,
    ),
    _vectors("vector times matrix bf16", bf16, False),
    _vectors("vector times rows bf16", bf16, True),
    Family(
        "softmax f32", kernels.softmax, kernels.softmax_reference, kernels.of_rows, ROW_CHECKS, ROWS, ROWS[:1],
        peer=lambda torch, x: torch.softmax(x, -1), is_bound_by_memory=True, counted=((16, 1024),),
    ),
    Family(
        "layer_norm f32", kernels.layer_norm, kernels.layer_norm_reference, kernels.of_rows, ROW_CHECKS, ROWS, ROWS[:1],
        peer=kernels.torch_layer_norm, is_bound_by_memory=True, counted=((16, 1024),),
    ),
    *[_instruction("mma.sync", gpu_parts.by_mma_sync, *types) for types in gpu_parts.MMA_SYNC],
    *[_instruction("wgmma", gpu_parts.by_wgmma, *types, "sm_90a") for types in gpu_parts.WGMMA],
    Family(
        "bulk copies", gpu_parts.moved_by_bulk_copies, gpu_parts.moved_reference, kernels.one_rounding,
        checks=((150, 100),), sizes=(), quick=(), target="sm_90a",
    ),
    _attention(
        "attention bf16", False, ATTENTION_CHECKS, ((4, 16, 16, 4096, 4096, 128),), ((1, 2, 1, 512, 520, 128),)
    ),
    _attention(
        "attention bf16, causal", True, ATTENTION_CHECKS, ((4, 16, 16, 4096, 4096, 128),), ((1, 2, 1, 520, 520, 64),)
    ),
    _attention(
        "attention bf16, at one time", False, ATTENTION_CHECKS[:1], ((4, 16, 16, 4096, 4096, 128),),
        ((1, 2, 1, 512, 520, 128),), alternate=False,
    ),
    _attention(
        "attention bf16, causal, at one time", True, ATTENTION_CHECKS[:1], ((4, 16, 16, 4096, 4096, 128),),
        ((1, 2, 1, 520, 520, 64),), alternate=False,
    ),
    _attention(
        "attention bf16, causal, persistent", True, ((1, 67, 67, 520, 520, 64),), ((4, 16, 16, 4096, 4096, 128),),
        ((1, 67, 67, 520, 520, 64),), turns=11, alternate=True,
    ),
    _attention(
        "attention bf16, decoding", False, ((2, 8, 2, 1, 300, 128), (1, 4, 4, 1, 64, 64)),
        ((64, 32, 8, 1, 4096, 128), (16, 32, 32, 1, 4096, 128)),
    ),
    _convolutions(1),
    _convolutions(2),
    Family(
        "matmul bf16, bias and gelu", gpu_library.feed_forward, gpu_library.feed_forward_reference,
        gpu_library.of_feed_forward, MATMUL_CHECKS, sizes=((4096, 16384, 4096), (8192, 8192, 1024)), quick=(),
        peer=gpu_library.torch_feed_forward, work=kernels.product_work, dtype=bf16,
    ),
    Family(
        "scan", gpu_library.scan, lambda x: np.cumsum(x, axis=1), gpu_library.of_sums,
        checks=((5, 3001), (1, 50_000)), sizes=((1, 1 << 24), (4096, 4096)), quick=(),
        peer=lambda torch, x: x.cumsum(1), is_bound_by_memory=True,
    ),
    Family(
        "look-back", gpu_library.look_back, gpu_library.look_back_reference, kernels.exact,
        checks=((12_800_000 - 37,),), sizes=(), quick=(), inputs=gpu_library.look_back_inputs,
    ),
    Family(
        "reduction", gpu_library.reduction, lambda x: x.sum(axis=1), gpu_library.of_sums,
        checks=((7, 1001, 33),), sizes=((64, 1024, 1024),), quick=(),
        peer=lambda torch, x: x.sum(1), is_bound_by_memory=True,
    ),
    Family(
        "max_pool", gpu_library.pooling, gpu_library.pooled, kernels.exact, checks=((2, 29, 31, 24),),
        sizes=((32, 112, 112, 64),), quick=(), peer=gpu_library.torch_pooling, is_bound_by_memory=True,
    ),
    Family(
        "depthwise conv2d", gpu_library.depthwise, gpu_library.depthwise_reference,
        lambda size: (2.0**-9, 2.0**-9), checks=((2, 15, 17, 40),), sizes=((32, 56, 56, 128),), quick=(),
        peer=gpu_library.torch_depthwise, is_bound_by_memory=True,
    ),
    Family(
        "quantized matmul", gpu_library.quantized, gpu_library.quantized_reference, gpu_library.of_quantized,
        checks=((33, 96, 256),), sizes=((4096, 4096, 4096),), quick=(), work=kernels.product_work, dtype=f16,
    ),
    Family(
        "W4A16", gpu_library.four_bits, gpu_library.four_bits_reference, gpu_library.of_quantized,
        checks=((5, 128, 256), (33, 192, 512)), sizes=((1, 4096, 4096), (16, 4096, 4096), (16, 14336, 4096)), quick=(),
        is_bound_by_memory=True, inputs=gpu_library.four_bits_inputs,
    ),
)  # fmt: skip

# One instruction each: only the ladder looks at them.
SINGLES: tuple[Family, ...] = tuple(
    [
        Family(
            one.name, one.build, one.reference, kernels.exact, checks=((1,),), sizes=(), quick=(), target="sm_90a",
            inputs=gpu_single.one_hot if one.reference is gpu_single.product else gpu_single.numbered,
        )
        for one in gpu_single.SINGLES
    ]
)  # fmt: skip


__all__ = ["FAMILIES", "SINGLES", "Family", "Size", "name_of"]
