"""Tiles of a line are described in groups, however long the line is."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, i8
from taskc.kernels.convolution import convolution, convolution_1d, convolution_3d
from taskc.kernels.images import results_inside, tiles_of_line
from taskc.kernels.pooling import max_pool
from tests.kernels import convolved

HUGE = 1 << 50


def test_groups_are_the_tiles_one_by_one() -> None:
    random = Random(5)
    for _ in range(5000):
        length, wide, pixels = random.randint(0, 300), random.randint(1, 16), random.randint(1, 100)
        stride, low = random.randint(1, 4), random.randint(-60, 5)
        high = low + random.randint(0, 30)
        inside = results_inside(pixels, stride, low, high)
        listed = [
            (group.number + t, group.first + t * group.wide, group.wide, group.is_inside)
            for group in tiles_of_line(length, wide, inside)
            for t in range(group.count)
        ]
        expected = []
        for number, first in enumerate(range(0, length, wide)):
            last = min(first + wide, length) - 1
            is_inside = first * stride + low >= 0 and last * stride + high < pixels
            expected.append((number, first, last - first + 1, is_inside))
        assert listed == expected


@pytest.mark.parametrize("dtype", [f32, i8], ids=str)
def test_a_line_of_any_length_is_a_few_groups(dtype: tc.DType) -> None:
    """These took time in proportion to the line, or never ended."""
    for options in ({}, {"padding": HUGE}, {"padding": 4096, "dilation": 4096}):
        convolution_1d(1, 10_000_000, 4, 16, size=3, dtype=dtype, **options)
    convolution(1, 10, 10, 4, 16, size=3, padding=(0, HUGE), dtype=dtype)
    max_pool(1, 10, HUGE, 4, size=3)


@pytest.mark.parametrize("order", ["NHWC", "NCHW"])
def test_many_tiles_outside_of_the_image_are_right(order: str) -> None:
    """Wide padding and dilation: each tap is outside for many tiles."""
    random = np.random.default_rng(3)
    sizes, options = [1, 3, 90, 5, 20], {"padding": (1, 300), "dilation": (1, 200), "order": order}
    of = convolved.problem(sizes, options, tc.machine())
    kernel = convolution(*sizes, **options, dtype=f32)  # type: ignore[arg-type]
    x, w = (random.integers(-3, 4, s).astype(np.float32) for s in ((1, 3, 90, 5), (20, 3, 3, 5)))
    exact = convolved.exact(x, w, of.stride, of.padding, of.dilation, 1)
    found = kernel(convolved.given(x, order, of.types[0]), w)
    np.testing.assert_array_equal(found, exact if order == "NHWC" else exact.transpose(0, 3, 1, 2))


def test_bytes_in_three_axes_and_transposed() -> None:
    """Plans by packs are not for these: others are taken."""
    x: Any = np.ones((1, 4, 4, 4, 4), np.int8)
    made = convolution_3d(1, 4, 4, 4, 4, 8, size=3, dtype=i8)(x, np.ones((8, 3, 3, 3, 4), np.int8))
    np.testing.assert_array_equal(made, np.full((1, 2, 2, 2, 8), 27 * 4))
    made = convolution(1, 4, 4, 4, 8, size=1, dtype=i8, transposed=True)(
        x[0, :1], np.ones((8, 1, 1, 4), np.int8)
    )
    np.testing.assert_array_equal(made, np.full((1, 4, 4, 8), 4))
