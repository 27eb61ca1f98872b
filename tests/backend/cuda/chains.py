"""A program of two chains of kernels, what it computes, and the nodes of its graph."""

from __future__ import annotations

from typing import Any

import numpy as np

import taskc as tc
from taskc import device, f32, repeat, spatial
from tests.backend.cuda.fake_driver import FakeDriver

n = tc.dim("n")
OWN = spatial(4) * repeat(2)


@tc.kernel(workers=OWN.workers)
def plus(a: f32[n], b: f32[n], c: tc.out[f32[n]]):
    for start in tc.tiles(n, by=8):
        for i in OWN:
            if start + i < n:
                c[start + i] = a[start + i] + b[start + i]


@tc.kernel(workers=OWN.workers)
def turned(x: f32[n], y: tc.out[f32[n]]):
    for start in tc.tiles(n, by=8):
        for i in OWN:
            if start + i < n:
                y[start + i] = x[n - 1 - start - i] * 2


def make_chains() -> Any:
    """Two chains that nothing joins, and a kernel that needs both of them."""

    @tc.program(fuse=False)
    def chains(a: f32[n], b: f32[n], c: tc.out[f32[n]], d: tc.out[f32[n]], e: tc.out[f32[n]]):
        first, second, third = tc.empty(f32[n]), tc.empty(f32[n]), tc.empty(f32[n])
        other, more = tc.empty(f32[n]), tc.empty(f32[n])
        turned(a, out=first)
        turned(first, out=second)
        turned(second, out=third)
        turned(third, out=c)
        turned(b, out=other)
        turned(other, out=more)
        turned(more, out=d)
        plus(third, more, out=e)

    return chains


def numbers(size: int = 20, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 9, size).astype(np.float32)


def expected_of(a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    return [a * 16, b[::-1] * 8, a[::-1] * 8 + b * 4]


def check_chains(chains: Any, size: int = 20, seed: int = 0) -> None:
    a, b = numbers(size, seed), numbers(size, seed + 1)
    found = chains(device.array(a), device.array(b))
    for one, expected in zip(found, expected_of(a, b), strict=True):
        np.testing.assert_array_equal(one.numpy(), expected)


def check_often(chains: Any) -> None:
    for seed in range(40):
        check_chains(chains, seed=seed)


def nodes_of(fake: FakeDriver) -> dict[int, Any]:
    (executable,) = fake.graphs.executables.values()
    return executable.nodes


def chained(seeds: range) -> dict[str, Any]:
    """All arguments of the chains."""
    return {
        name: device.array(numbers(seed=seed)) for name, seed in zip("abcde", seeds, strict=True)
    }
