"""What `gpu.py` checks and measures: a row of FAMILIES for each kernel. A new one is one more row.

Nothing here loads torch, llvmlite or onnx; `peer` is given torch where it is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from math import prod, sqrt
from typing import Any

import numpy as np

import taskc as tc
from taskc import bf16, f16, f32, tf32

Size = tuple[Any, ...]


@dataclass(frozen=True)
class Family:
    """name       of the benchmark
    build      a kernel or a program of a size, for a machine
    reference  what it computes, of float64 arrays
    bound      how far a result may be away: (of its own magnitude, absolute), for a size
    checks     sizes that are compared with the reference
    sizes      sizes that are measured; `quick` those of --quick
    peer       what torch has: a function of torch and tensors, which is called again and again
    work       floating-point operations of a size
    is_bound_by_memory  whether it is held against a copy of as many bytes
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
    is_bound_by_memory: bool = False


def name_of(size: Size) -> str:
    return "x".join(str(part) for part in size)


# --- matrix products -------------------------------------------------------------------------


def library(module: str, function: str, /, *arguments: Any, **keywords: Any) -> Any:
    return getattr(import_module(f"taskc.kernels.{module}"), function)(*arguments, **keywords)


def example(file: str, function: str, /, *arguments: Any, **keywords: Any) -> Any:
    """A kernel of an example: `examples` has to be a folder of modules that can be imported."""
    return getattr(import_module(file), function)(*arguments, **keywords)


def matmul(dtype: Any, result: Any, machine: Any, m: int, n: int, k: int) -> Any:
    return library(
        "matmul", "matmul", m, n, k, dtype=dtype, total=f32, result=result, machine=machine
    )


def product(a: Any, b: Any) -> Any:
    return a @ b


def product_work(size: Size) -> float:
    return 2.0 * prod(size[:3])


def of_bf16(size: Size) -> tuple[float, float]:
    """One rounding to 8 bits; sums of normally distributed products in f32."""
    return 2.0**-8, size[2] * 2.0**-21


def of_tf32(size: Size) -> tuple[float, float]:
    """Operands of 11 bits: k products of two rounded numbers, whose errors add up like a random walk."""
    return 2.0**-20, 8 * sqrt(size[2]) * 2.0**-11


def of_f32(size: Size) -> tuple[float, float]:
    return 2.0**-20, size[2] * 2.0**-21


MATMULS = (
    (4096, 4096, 4096), (8192, 8192, 8192), (8192, 8192, 1024), (128, 768, 3072), (2039, 2039, 2039),
)  # fmt: skip
QUICK_MATMULS = ((4096, 4096, 4096), (128, 768, 3072))
MATMUL_CHECKS = ((256, 512, 320), (131, 72, 264), (1, 128, 512), (129, 257, 67))


# --- rows ------------------------------------------------------------------------------------


def softmax(machine: Any, m: int, n: int) -> Any:
    return library("rows", "softmax", m, n, dtype=f32, machine=machine)


def layer_norm(machine: Any, m: int, n: int) -> Any:
    return library("rows", "layer_norm", m, n, dtype=f32, machine=machine)


def softmax_reference(x: Any) -> Any:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def layer_norm_reference(x: Any, scale: Any, shift: Any) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * scale + shift


def torch_layer_norm(torch: Any, x: Any, scale: Any, shift: Any) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], scale, shift)


def of_rows(size: Size) -> tuple[float, float]:
    return 2.0**-18, size[1] * 2.0**-24


ROWS = ((16384, 1024), (8192, 4096), (4096, 8192))
ROW_CHECKS = ((33, 64), (5, 1000), (3, 4099))


# --- attention and convolution ---------------------------------------------------------------


def attention(
    causal: bool, machine: Any, batches: int, heads: int, length: int, features: int
) -> Any:
    return library(
        "attention", "attention", batches, heads, length, length, features,
        causal=causal, dtype=bf16, machine=machine,
    )  # fmt: skip


def attention_reference(causal: bool, q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.swapaxes(-1, -2) / sqrt(q.shape[-1])
    if causal:
        rows, columns = np.indices(scores.shape[-2:])
        scores = np.where(columns <= rows, scores, -np.inf)
    return softmax_reference(scores) @ v


def torch_attention(causal: bool, torch: Any, q: Any, k: Any, v: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def attention_work(causal: bool, size: Size) -> float:
    batches, heads, length, features = size
    return 4.0 * batches * heads * length * length * features / (2 if causal else 1)


def of_attention(size: Size) -> tuple[float, float]:
    """Powers and results are rounded to 8 bits; results are means of numbers near 1."""
    return 2.0**-7, 2.0**-7


def convolution(machine: Any, *size: int) -> Any:
    """NHWC, of (batch, channels, height, width, filters, kernel, stride), padded by kernel // 2."""
    batch, channels, height, width, filters, kernel, stride = size
    return library(
        "convolution", "convolution", batch, height, width, channels, filters,
        size=kernel, stride=stride, padding=kernel // 2, dtype=f16, machine=machine,
    )  # fmt: skip


def convolution_reference(x: Any, w: Any, *, stride: int) -> Any:
    kernel = w.shape[1]
    pad = kernel // 2
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(1, 2))
    return np.einsum("byxcij,oijc->byxo", windows[:, ::stride, ::stride], w)


# --- what needs no template ------------------------------------------------------------------


def add(machine: Any, n: int) -> Any:
    return example("01_vector_add", "make_vector_add", n)


def transposed(machine: Any, m: int, n: int) -> Any:
    return example("02_transpose", "make_transpose", m, n)


def exact(size: Size) -> tuple[float, float]:
    return 0.0, 0.0


def one_rounding(size: Size) -> tuple[float, float]:
    return 2.0**-23, 2.0**-23


def fma_matmul(machine: Any, m: int, n: int, k: int) -> Any:
    return example("03_matmul", "make_pipelined", m, n, k, bk=16, stages=3)


FAMILIES: tuple[Family, ...] = (
    Family(
        "vector add", add, lambda a, b: a + b, one_rounding,
        checks=((1000,), (4097,)), sizes=((1 << 26,),), quick=((1 << 26,),),
        peer=lambda torch, a, b: a + b, is_bound_by_memory=True,
    ),
    Family(
        "transpose", transposed, np.transpose, exact,
        checks=((37, 70), (64, 64)), sizes=((8192, 8192),), quick=((8192, 8192),),
        peer=lambda torch, x: x.T.contiguous(), is_bound_by_memory=True,
    ),
    Family(
        "matmul bf16", partial(matmul, bf16, bf16), product, of_bf16,
        MATMUL_CHECKS, MATMULS, QUICK_MATMULS,
        peer=lambda torch, a, b: a @ b, work=product_work,
    ),
    Family(
        "matmul tf32", partial(matmul, tf32, f32), product, of_tf32,
        MATMUL_CHECKS, MATMULS, QUICK_MATMULS,
        peer=lambda torch, a, b: a @ b, work=product_work,
    ),
    Family(
        "matmul f32", partial(matmul, f32, f32), product, of_f32,
        MATMUL_CHECKS, MATMULS, QUICK_MATMULS,
        peer=lambda torch, a, b: a @ b, work=product_work,
    ),
    Family(
        "matmul f32, of the example", fma_matmul, product, of_f32,
        checks=((50, 70, 44), (128, 128, 64)), sizes=((4096, 4096, 4096),), quick=(),
        peer=lambda torch, a, b: a @ b, work=product_work,
    ),
    Family(
        "softmax f32", softmax, softmax_reference, of_rows, ROW_CHECKS, ROWS, ROWS[:1],
        peer=lambda torch, x: torch.softmax(x, -1), is_bound_by_memory=True,
    ),
    Family(
        "layer_norm f32", layer_norm, layer_norm_reference, of_rows, ROW_CHECKS, ROWS, ROWS[:1],
        peer=torch_layer_norm, is_bound_by_memory=True,
    ),
    *(
        Family(
            f"attention bf16{', causal' if causal else ''}", partial(attention, causal),
            partial(attention_reference, causal), of_attention,
            checks=((1, 2, 128, 64), (2, 1, 200, 128)), sizes=((4, 16, 4096, 128),),
            quick=((4, 16, 4096, 128),), peer=partial(torch_attention, causal),
            work=partial(attention_work, causal),
        )
        for causal in (False, True)
    ),
)  # fmt: skip


# ResNet-50's: (channels, height and width, filters, kernel, stride), each once.
RESNET = (
    (3, 224, 64, 7, 2), (64, 56, 64, 1, 1), (64, 56, 64, 3, 1), (64, 56, 256, 1, 1),
    (256, 56, 64, 1, 1), (256, 56, 128, 1, 1), (128, 56, 128, 3, 2), (128, 28, 512, 1, 1),
    (256, 56, 512, 1, 2), (512, 28, 128, 1, 1), (128, 28, 128, 3, 1), (512, 28, 256, 1, 1),
    (256, 28, 256, 3, 2), (256, 14, 1024, 1, 1), (512, 28, 1024, 1, 2), (1024, 14, 256, 1, 1),
    (256, 14, 256, 3, 1), (1024, 14, 512, 1, 1), (512, 14, 512, 3, 2), (512, 7, 2048, 1, 1),
    (1024, 14, 2048, 1, 2), (2048, 7, 512, 1, 1), (512, 7, 512, 3, 1),
)  # fmt: skip


def _convolutions() -> tuple[Family, ...]:
    """A family for each stride, which the reference and the peer have to know."""
    found = []
    for stride in (1, 2):
        sizes = tuple([(32, c, s, s, o, k, step) for c, s, o, k, step in RESNET if step == stride])

        def peer(torch: Any, x: Any, w: Any, stride: int = stride) -> Any:
            # The same numbers in the same order, which torch calls channels_last.
            x, w = x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)
            made = torch.nn.functional.conv2d(x, w, stride=stride, padding=w.shape[-1] // 2)
            return made.permute(0, 2, 3, 1)

        found.append(
            Family(
                f"conv2d f16, stride {stride}", convolution,
                partial(convolution_reference, stride=stride),
                lambda size: (2.0**-9, size[1] * size[5] ** 2 * 2.0**-16),
                checks=((2, 16, 9, 9, 24, 3, stride), (1, 8, 7, 7, 16, 1, stride)),
                sizes=sizes, quick=sizes[1:3], peer=peer, work=_convolution_work,
            )
        )  # fmt: skip
    return tuple(found)


def _convolution_work(size: Size) -> float:
    batch, channels, height, width, filters, kernel, stride = size
    return 2.0 * batch * channels * kernel**2 * filters * -(-height // stride) * -(-width // stride)


FAMILIES += _convolutions()
FAMILY = {family.name: family for family in FAMILIES}

__all__ = ["FAMILIES", "FAMILY", "Family", "Size", "name_of", "tc"]
