"""Operators of the library that the ladder looks at once each, at sizes that nothing divides."""

from __future__ import annotations

from typing import Any

import numpy as np
from gpu_kernels import Size, example, library

from taskc import f16, f32, i8, i32


def scan(machine: Any, m: int, n: int) -> Any:
    return library("scans", "cumsum", (m, n), 1, dtype=f32, machine=machine)


def reduction(machine: Any, m: int, n: int, k: int) -> Any:
    return library("reductions", "reduction", "sum", (m, n, k), (1,), dtype=f32, machine=machine)


def of_sums(size: Size) -> tuple[float, float]:
    return 2.0**-20, size[1] * 2.0**-22


def pooling(machine: Any, images: int, height: int, width: int, channels: int) -> Any:
    return library(
        "pooling", "max_pool", images, height, width, channels, size=(3, 3), stride=(2, 2), padding=1,
        dtype=f32, machine=machine,
    )  # fmt: skip


def pooled(x: Any) -> Any:
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return windows[:, ::2, ::2].max(axis=(-1, -2))


def depthwise(machine: Any, images: int, height: int, width: int, channels: int) -> Any:
    return library(
        "convolution", "convolution", images, height, width, channels, channels, size=3, padding=1,
        groups=channels, dtype=f16, machine=machine,
    )  # fmt: skip


def depthwise_reference(x: Any, w: Any) -> Any:
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return np.einsum("byxcij,cij->byxc", windows, w[..., 0])


def quantized(machine: Any, m: int, n: int, k: int) -> Any:
    return library(
        "quantized", "quantized_matmul", m, n, k, dtype=f16, right=i8, group=32, scales=f32, result=f32,
        machine=machine,
    )  # fmt: skip


def quantized_reference(a: Any, b: Any, scales: Any) -> Any:
    return a @ (b * np.repeat(scales, 32, axis=0))


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
