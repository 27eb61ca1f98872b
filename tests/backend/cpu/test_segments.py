"""Indices by quotients and remainders of neighbours: loads of segments, which no lane of another one takes part in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import taskc as tc
from taskc import DType, f32, i8, spatial
from taskc.backend.cpu.compile import llvm_text
from taskc.passes.pipeline import lower
from tests.backend.cpu.processors import NAMES, loaded_for, processor

ROWS = 3


def along(length: int, dtype: DType, channels: int) -> tc.KernelDefinition:
    """Sums of an element by channel, one by pixel, and one by both, for a run of neighbours, whose end is ragged."""
    n = channels * length

    @tc.kernel(workers=16)
    def kernel(
        a: dtype[channels], b: dtype[length], c: dtype[length, channels], y: tc.out[dtype[ROWS, n]]
    ):
        for row, col in tc.tiles((ROWS, n), by=(1, 64)):
            for _, j in tc.repeat(1, 4) * spatial(1, 16):
                if col + j < n:
                    at = col + j
                    both = c[at % length, at // length]
                    y[row, at] = a[at // length] + b[at % length] + both

    return kernel


@pytest.mark.parametrize("dtype", [f32, i8], ids=str)
@pytest.mark.parametrize(("length", "channels"), [(62, 3), (15, 4), (6, 11), (5, 7)])
@pytest.mark.parametrize("name", NAMES)
def test_segments_have_what_lanes_read(name: str, length: int, channels: int, dtype: DType) -> None:
    """Behind the arrays is a page that nobody may read."""
    rng = np.random.default_rng(length)
    a, b, c = (
        rng.integers(-9, 9, shape).astype(dtype.numpy)
        for shape in ((channels,), (length,), (length, channels))
    )
    y = np.zeros((ROWS, channels * length), dtype.numpy)
    loaded_for(along(length, dtype, channels).ir, name).run([a, b, c, y], {})
    expected = (a[:, None] + b + c.T).reshape(-1)
    np.testing.assert_array_equal(y, np.broadcast_to(expected, y.shape))


@pytest.mark.parametrize(("length", "is_gathered"), [(62, False), (15, False), (3, True)])
def test_few_segments_need_no_gather(length: int, is_gathered: bool) -> None:
    @tc.kernel(workers=16)
    def kernel(a: f32[9], b: f32[length], y: tc.out[f32[9 * length]]):
        for (col,) in tc.tiles(9 * length, by=16):
            for (j,) in spatial(16):
                if col + j < 9 * length:
                    y[col + j] = a[(col + j) // length] * b[(col + j) % length]

    which = processor("avx512")
    text, _ = llvm_text(lower(replace(kernel.ir, target=which.target)), which)
    assert ("masked.gather" in text) == is_gathered
