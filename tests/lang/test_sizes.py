"""Extents that are computed from symbolic dimensions."""

from __future__ import annotations

import numpy as np
import pytest

import taskc as tc
from taskc import f32, spatial
from taskc.arguments import ArgumentError
from taskc.lang.sizes import Extent

m, n = tc.dim("m", example=5), tc.dim("n", example=4)


@tc.kernel(workers=8)
def flatten(x: f32[m, n], y: tc.out[f32[m * n]]):
    for row, col in tc.tiles((m, n), by=(2, 4)):
        for i, j in spatial(2, 4):
            if row + i < m and col + j < n:
                y[(row + i) * n + col + j] = x[row + i, col + j]


@tc.kernel(workers=8)
def smooth(x: f32[n], y: tc.out[f32[n - 2]]):
    for start in tc.tiles(n - 2, by=8):
        for i in spatial(8):
            if start + i < n - 2:
                y[start + i] = x[start + i] + x[start + i + 1] + x[start + i + 2]


@pytest.mark.parametrize("shape", [(5, 4), (1, 1), (0, 3), (3, 0), (7, 13)])
def test_a_product(shape: tuple[int, int]) -> None:
    x = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(flatten(x), x.ravel())


def test_a_difference() -> None:
    np.testing.assert_array_equal(smooth(np.ones(9, np.float32)), np.full(7, 3, np.float32))
    assert smooth(np.ones(2, np.float32)).shape == (0,)
    with pytest.raises(ArgumentError, match=r"output 'y' would have the extent n - 2 = -1"):
        smooth(np.ones(1, np.float32))


def test_a_dimension_that_only_the_output_has() -> None:
    @tc.kernel(workers=8)
    def pairs(x: f32[n + 1], y: tc.out[f32[n]]):
        for start in tc.tiles(n, by=8):
            for i in spatial(8):
                if start + i < n:
                    y[start + i] = x[start + i] + x[start + i + 1]

    x = np.arange(10, dtype=np.float32)
    np.testing.assert_array_equal(pairs(x), x[1:] + x[:-1])
    assert pairs(x[:1]).shape == (0,)
    with pytest.raises(ArgumentError, match=r"'x' has the extent n \+ 1, and no argument has"):
        pairs(x[:0])
    with pytest.raises(ArgumentError, match=r"'x' must be f32\[n \+ 1\] with n = 8 \(from 'y'\)"):
        pairs(x, out=np.empty(8, np.float32))


def test_what_does_not_fit() -> None:
    x = np.ones((5, 4), np.float32)
    message = r"output 'y' must be f32\[m \* n\] with m \* n = 20, not f32\[21\]"
    with pytest.raises(ArgumentError, match=message):
        flatten(x, out=np.empty(21, np.float32))

    @tc.kernel(workers=1)
    def unknown(y: tc.inout[f32[m * n]]):
        for i in spatial(1):
            if m * n > 0:
                y[i] = 0

    with pytest.raises(ArgumentError, match=r"has the extent m \* n, and no argument has the ext"):
        unknown(np.ones(4, np.float32))


def test_examples_and_names() -> None:
    assert repr(flatten) == "<tc.kernel flatten(x: f32[m, n], y: out f32[m * n]), 8 workers>"
    assert smooth.example()[0].shape == (4,)
    extent = 2 * (m + 1) - n // 3
    assert isinstance(extent, Extent)
    assert (extent.example, str(extent)) == (11, "(2 * (m + 1)) - (n // 3)")
    assert (-m).example == -5
    assert (7 - m).example == 2
    assert tc.cdiv(m, 2).example == 3
    with pytest.raises(TypeError):
        m * 1.5  # type: ignore[operator]
