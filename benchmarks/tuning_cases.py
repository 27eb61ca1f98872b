"""Workloads of the tuner: those by which it is judged, which were drawn by a seed, and ordinary ones.

The seed was there before the cost model was made for any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import numpy as np

import taskc as tc
from taskc import f32
from taskc.kernels import convolution, matmul
from taskc.kernels.convolution.plan import candidates as convolution_plans
from taskc.kernels.convolution.problem import problem_of as convolution_problem
from taskc.kernels.matmul.plan import candidates as matmul_plans
from taskc.kernels.matmul.problem import problem_of as matmul_problem

SEED = 14
EACH = 5  # GEMMs and convolutions
WORK = 1 << 23, 1 << 30  # multiply-adds, the least and the most


@dataclass(frozen=True)
class Operands:
    """The arguments of kernels, and their expected results."""

    first: Any
    second: Any
    bias: tuple[Any, ...]
    made: Any
    expected: Any


@dataclass(frozen=True)
class Workload:
    name: str
    problem: Any
    work: int  # multiply-adds
    candidates: Callable[..., Any]
    build: Callable[..., Any]
    operands: Callable[[], Operands]


def workloads() -> list[Workload]:
    """The problems of the published figures."""
    random = Random(SEED)
    return [*_some(_gemms(random)), *_some(_convolutions(random))]


def ordinary() -> list[Workload]:
    """Problems with spaces so large that the best plan isn't found by chance."""
    side = 1024
    return [
        *[_gemm(side, side, side, packed) for packed in (False, True)],
        _convolution(56, 64, 64, 3, 1),
    ]


def _some(drawn: Iterator[Workload]) -> list[Workload]:
    """The first ones whose work is neither little nor much."""
    fitting = (one for one in drawn if WORK[0] <= one.work <= WORK[1])
    return [next(fitting) for _ in range(EACH)]


def _gemms(random: Random) -> Iterator[Workload]:
    """Few rows and many, square and skinny ones; b is given as it is, or packed."""
    while True:
        m, n, k = (_extent(random, 4, 4096) for _ in range(3))
        yield _gemm(m, n, k, packed=random.random() < 0.5)


def _gemm(m: int, n: int, k: int, packed: bool) -> Workload:
    problem = matmul_problem(m, n, k, f32, packed=packed)
    return Workload(
        f"{m}x{n}x{k}" + ", b packed" * packed, problem, m * n * k, matmul_plans,
        partial(matmul.build, problem), partial(_matrices, m, n, k),
    )  # fmt: skip


def _convolutions(random: Random) -> Iterator[Workload]:
    while True:
        side = random.choice((7, 10, 14, 19, 28, 38, 56, 75, 112))
        channels, features = (_extent(random, 16, 1024) for _ in range(2))
        size, stride = random.choice((1, 3, 3, 5)), random.choice((1, 1, 2))
        yield _convolution(side, channels, features, size, stride)


def _convolution(side: int, channels: int, features: int, size: int, stride: int) -> Workload:
    """Images in blocks, as they are between the kernels of a network, and filters packed ahead."""
    problem = convolution_problem(
        1, (side, side), channels, features, size=size, stride=stride, padding=size // 2, dilation=1,
        groups=1, order="NCHWc", filters="OIHW", packed=True, bias=True, scale=False, residual=False,
        activation=None, dtype=f32, total=None, result=None,
    )  # fmt: skip
    rows, columns = problem.outputs
    return Workload(
        f"{side}x{side}x{channels}->{features} {size}x{size}/{stride}", problem,
        rows * columns * features * problem.deep, convolution_plans,
        partial(convolution.build, problem), partial(_images, problem),
    )  # fmt: skip


def _extent(random: Random, least: int, most: int) -> int:
    """Its logarithm is as likely as any other; every second one is a multiple of a power of two."""
    extent = round(least * (most / least) ** random.random())
    unit = random.choice((1, 8, 16, 64)) if random.random() < 0.5 else 1
    return max(least, extent // unit * unit)


def _matrices(m: int, n: int, k: int) -> Operands:
    random = np.random.default_rng(1)
    a, b = random.standard_normal((m, k), np.float32), random.standard_normal((k, n), np.float32)
    a /= np.float32(np.sqrt(k))
    return Operands(a, b, (), np.empty((m, n), np.float32), a @ b)


def _images(problem: Any) -> Operands:
    """Results are about as large as a normal distribution's numbers."""
    random = np.random.default_rng(1)
    side, step, taps = problem.extents[0], problem.stride[0], problem.size[0]
    channels, features, outputs = problem.channels, problem.features, problem.outputs
    x = random.standard_normal((1, channels, side, side), np.float32)
    w = random.standard_normal((features, channels, taps, taps), np.float32)
    w /= np.float32(np.sqrt(problem.deep))
    bias = random.standard_normal(features, np.float32)
    edge = problem.padding[0]
    wide = np.pad(x[0], [(0, 0), (edge, edge), (edge, edge)])
    expected = np.zeros((features, *outputs), np.float32) + bias[:, None, None]
    for r in range(taps):
        for s in range(taps):
            seen = wide[:, r:, s:][:, ::step, ::step][:, : outputs[0], : outputs[1]]
            expected += np.einsum("fc,cij->fij", w[:, :, r, s], seen, optimize=True)
    type_ = convolution.blocked(1, channels, side, side)
    rest = (0, type_.shape[1] - channels)
    blocks = tc.pack(np.pad(x, [(0, 0), rest, (0, 0), (0, 0)]), type_)
    made = tc.empty(convolution.blocked(1, features, *outputs))
    return Operands(blocks, w, (bias,), made, expected[None])
