"""Parts of a program's tensors along any axes: read, written in place, and given to kernels, as NumPy's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, f64, spatial

n, m = tc.dim("n"), tc.dim("m")
SIZES = [(0, 3), (1, 1), (2, 2), (3, 1), (2, 0), (5, 7)]


@pytest.mark.parametrize("size", SIZES)
def test_parts_of_any_size_are_those_of_numpy(size: tuple[int, int]) -> None:
    @tc.program
    def parts(x: f64[n, m], y: tc.inout[f64[n, m]], z: tc.inout[f64[n]]) -> None:
        rest = x[:, 1:]
        tc.compute((n - 2, m - 2), lambda i, j: x[i, j] + y[i + 2, j + 2], out=y[1:-1, 1:-1])
        tc.compute((n, m // 2), lambda i, j: x[i, 2 * j] + y[i, j], out=y[:, 1::2])
        tc.compute(n - 1, lambda i: z[i] + rest.shape[1], out=z[1:])

    x, y, z = np.random.default_rng(0).random((3, *size))
    z = z.sum(1)
    expected, ends = y.copy(), z.copy()
    columns = size[1]
    if min(size) > 2:
        expected[1:-1, 1:-1] = x[:-2, :-2] + y[2:, 2:]
    half = columns // 2
    expected[:, 1::2] = x[:, : 2 * half : 2] + expected[:, :half]
    ends[1:] = z[:-1] + (columns - 1)
    parts(x, y, z)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(z, ends)


@pytest.mark.parametrize("seed", range(12))
def test_random_parts(seed: int) -> None:
    pick = random.Random(seed)
    shape = tuple(pick.randint(1, 4) for _ in range(pick.randint(1, 3)))

    def some_key(extents: tuple[int, ...]) -> tuple[Any, ...]:
        key: list[Any] = []
        for extent in extents[: pick.randint(1, len(extents))]:
            if pick.random() < 0.3:
                key.append(pick.randrange(-extent, extent))
                continue
            start = pick.randint(0, extent)
            stop = pick.randint(start, extent)
            step = pick.choice([None, 1, 2, 3])
            key.append(slice(pick.choice([start, start - extent or None]), stop, step))
        return tuple(key)

    x, y = np.random.default_rng(seed).random((2, *shape))
    expected = y.copy()
    target, source = some_key(shape), some_key(shape)
    kind = f64[shape]

    @tc.program
    def moved(x: kind, y: tc.inout[kind]) -> None:  # type: ignore[valid-type]
        part, out = x[source], y[target]
        if tuple(part.shape) == tuple(out.shape):
            tc.compute(part.shape, lambda *at: part[at] + out[at], out=out)
        else:
            tc.compute(out.shape, lambda *at: out[at] * 2, out=out)

    same = x[source].shape == expected[target].shape
    expected[target] = x[source] + y[target] if same else 2 * y[target]
    moved(x, y)
    np.testing.assert_array_equal(y, expected)


def test_kernels_take_and_write_parts() -> None:
    @tc.kernel(workers=4)
    def twice(x: f64[n], z: tc.inout[f64[n]], y: tc.out[f64[n]]) -> None:
        for start in tc.tiles(n, by=4):
            for i in spatial(4):
                if start + i < n:
                    y[start + i] = 2 * x[start + i]
                    z[start + i] += 1

    @tc.program
    def columns(x: tc.inout[f64[n + 2, 3]], y: tc.inout[f64[n, 4]]) -> None:
        twice(x[1:-1, 1], x[2:, 0], out=y[:, -1])

    x, y = np.random.default_rng(0).random((7, 3)), np.zeros((5, 4))
    before = x.copy()
    columns(x, y)
    np.testing.assert_array_equal(y[:, 3], 2 * before[1:-1, 1])
    before[2:, 0] += 1
    np.testing.assert_array_equal(x, before)
    assert not y[:, :3].any()


def test_a_part_of_a_tensor_of_another_type() -> None:
    @tc.program
    def halves(x: f32[4, 6], y: tc.inout[f32[4, 3]]) -> None:
        part = x[:, ::2]
        tc.compute((4, 3), lambda *at: part[at].to(f64).to(f32), out=y)

    x, y = np.random.default_rng(0).random((4, 6), np.float32), np.zeros((4, 3), np.float32)
    halves(x, y)
    np.testing.assert_array_equal(y, x[:, ::2])
