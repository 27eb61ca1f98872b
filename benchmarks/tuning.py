"""The tuner: how good the plans are that it finds, and those that are chosen without it.

Workloads are drawn by a seed that was there before the cost model was made for any of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from taskc import f32
from taskc.kernels.convolution.problem import problem_of as convolution_problem
from taskc.kernels.matmul.problem import problem_of as matmul_problem

SEED = 14
EACH = 5  # GEMMs and convolutions
WORK = 1 << 23, 1 << 30  # multiply-adds, the least and the most


@dataclass(frozen=True)
class Workload:
    name: str
    problem: Any
    work: int  # multiply-adds


def workloads() -> list[Workload]:
    """Those that figures are about."""
    random = Random(SEED)
    return [*_some(_gemms(random)), *_some(_convolutions(random))]


def _some(drawn: Iterator[Workload]) -> list[Workload]:
    """The first ones whose work is neither little nor much."""
    fitting = (one for one in drawn if WORK[0] <= one.work <= WORK[1])
    return [next(fitting) for _ in range(EACH)]


def _gemms(random: Random) -> Iterator[Workload]:
    """Few rows and many, square and skinny ones; b is given as it is, or packed."""
    while True:
        m, n, k = (_extent(random, 4, 4096) for _ in range(3))
        packed = random.random() < 0.5
        problem = matmul_problem(m, n, k, f32, packed=packed)
        name = f"{m}x{n}x{k}" + ", b packed" * packed
        yield Workload(name, problem, m * n * k)


def _convolutions(random: Random) -> Iterator[Workload]:
    """Images in blocks, as they are between the kernels of a network, and filters packed ahead."""
    while True:
        side = random.choice((7, 10, 14, 19, 28, 38, 56, 75, 112))
        channels, features = (_extent(random, 16, 1024) for _ in range(2))
        size, stride = random.choice((1, 3, 3, 5)), random.choice((1, 1, 2))
        problem = convolution_problem(
            1, (side, side), channels, features, size=size, stride=stride, padding=size // 2, dilation=1,
            groups=1, order="NCHWc", filters="OIHW", packed=True, bias=True, scale=False, residual=False,
            activation=None, dtype=f32, total=None, result=None,
        )  # fmt: skip
        rows, columns = problem.outputs
        name = f"{side}x{side}x{channels}->{features} {size}x{size}/{stride}"
        yield Workload(name, problem, rows * columns * features * problem.deep)


def _extent(random: Random, least: int, most: int) -> int:
    """Its logarithm is as likely as any other; every second one is a multiple of a power of two."""
    extent = round(least * (most / least) ** random.random())
    unit = random.choice((1, 8, 16, 64)) if random.random() < 0.5 else 1
    return max(least, extent // unit * unit)


if __name__ == "__main__":
    for workload in workloads():
        print(f"{workload.name}: {workload.work / 1e6:.0f} million multiply-adds")
