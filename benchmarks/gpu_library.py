"""Operators of the library besides products, convolutions and attention: how they are built, and their references."""

from __future__ import annotations

from math import erf
from typing import Any

import numpy as np
from gpu_kernels import Size, example, library

import taskc as tc
from taskc import bf16, f16, f32, i8, i32, u4


def feed_forward(machine: Any, m: int, n: int, k: int) -> Any:
    return library(
        "matmul", "matmul", m, n, k, dtype=bf16, total=f32, result=bf16, bias=True, activation=tc.gelu,
        machine=machine,
    )  # fmt: skip


def feed_forward_reference(a: Any, b: Any, bias: Any) -> Any:
    x = a @ b + bias
    return x * 0.5 * (1 + np.vectorize(erf, otypes=[float])(x / 2**0.5))


def torch_feed_forward(torch: Any, a: Any, b: Any, bias: Any) -> Any:
    functional = torch.nn.functional
    return functional.gelu(functional.linear(a, b.T, bias.to(a.dtype)))


def of_feed_forward(size: Size) -> tuple[float, float]:
    """One rounding to 8 bits, gelu's own error, and a sum's times the slope of gelu, which is below 1.13."""
    return 2.0**-8 + 2.0**-10, 1.13 * size[2] * 2.0**-18


def scan(machine: Any, m: int, n: int) -> Any:
    return library("scans", "cumsum", (m, n), 1, dtype=f32, machine=machine)


def reduction(machine: Any, m: int, n: int, k: int) -> Any:
    return library("reductions", "reduction", "sum", (m, n, k), (1,), dtype=f32, machine=machine)


def of_sums(size: Size) -> tuple[float, float]:
    """Sums of random numbers grow as √n, and each addition rounds one."""
    return 2.0**-20, size[1] ** 0.5 * 2.0**-16


def pooling(machine: Any, images: int, height: int, width: int, channels: int) -> Any:
    return library(
        "pooling", "max_pool", images, height, width, channels, size=(3, 3), stride=(2, 2), padding=1,
        dtype=f32, machine=machine,
    )  # fmt: skip


def pooled(x: Any) -> Any:
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return windows[:, ::2, ::2].max(axis=(-1, -2))


def torch_pooling(torch: Any, x: Any) -> Any:
    made = torch.nn.functional.max_pool2d(x.permute(0, 3, 1, 2), 3, 2, 1)
    return made.permute(0, 2, 3, 1)


def depthwise(machine: Any, images: int, height: int, width: int, channels: int) -> Any:
    return library(
        "convolution", "convolution", images, height, width, channels, channels, size=3, padding=1,
        groups=channels, dtype=f16, machine=machine,
    )  # fmt: skip


def depthwise_reference(x: Any, w: Any) -> Any:
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return np.einsum("byxcij,cij->byxc", windows, w[..., 0])


def torch_depthwise(torch: Any, x: Any, w: Any) -> Any:
    x, w = x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)
    made = torch.nn.functional.conv2d(x, w, padding=1, groups=w.shape[0])
    return made.permute(0, 2, 3, 1)


def quantized(machine: Any, m: int, n: int, k: int) -> Any:
    return library(
        "quantized", "quantized_matmul", m, n, k, dtype=f16, right=i8, group=32, scales=f32, result=f32,
        machine=machine,
    )  # fmt: skip


def quantized_reference(a: Any, b: Any, scales: Any) -> Any:
    return a @ (b * np.repeat(scales, 32, axis=0))


def four_bits(machine: Any, m: int, n: int, k: int) -> Any:
    return library(
        "quantized", "quantized_matmul", m, n, k, dtype=f16, right=u4, group=128, scales=f16, zero=8,
        machine=machine,
    )  # fmt: skip


def four_bits_inputs(kernel: Any) -> list[Any]:
    """Weights are all numbers of 4 bits; with scales so small that products are near 1."""
    a, b, scales = (tuple(map(int, one.argument_shape)) for one in kernel.ir.parameters[:3])
    random = np.random.default_rng(0)
    return [
        random.standard_normal(a).astype(np.float16),
        np.resize(random.integers(0, 16, 4093), b).astype(u4.numpy),
        (random.random(scales) / 4).astype(np.float16),
    ]


def four_bits_reference(a: Any, b: Any, scales: Any) -> Any:
    return a @ ((b - 8) * np.repeat(scales, 128, axis=0))


def of_quantized(size: Size) -> tuple[float, float]:
    """Each weight is rounded to 11 bits before it is multiplied: half of that of a term, of sums that grow as √k."""
    return 2.0**-9, size[2] ** 0.5 * 2.0**-9


def look_back(machine: Any, n: int) -> Any:
    return example("17_look_back", "make_scan", n)


def look_back_inputs(kernel: Any) -> list[Any]:
    """Small whole numbers; what blocks say to each other begins as nothing."""
    x, state = kernel.ir.parameters[:2]
    random = np.random.default_rng(0)
    values = random.integers(-9, 10, int(x.shape[0])).astype(i32.numpy)
    return [values, np.zeros(int(state.shape[0]), np.int64)]


def look_back_reference(x: Any, state: Any) -> Any:
    return np.cumsum(x)
