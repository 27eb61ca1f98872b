"""Pooling of images of one axis and of three against NumPy: ragged windows, types, orders, open numbers of images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import CompileError, DType, f16, f32
from taskc.kernels import pooling

CASES: dict[str, tuple[Any, ...]] = {
    # extents, channels, size, stride, dilation, padding of each axis, and the last window may reach beyond it
    "ragged": ((5, 7, 6), 3, (2, 3, 2), (2, 1, 2), (1, 2, 1), ((0, 1), (1, 0), (1, 1)), True),
    "padded": ((4, 5, 5), 17, (3, 3, 3), (2, 2, 2), (1, 1, 1), ((1, 1),) * 3, False),
    "depth alone": ((6, 4, 4), 2, (2, 1, 1), (2, 1, 1), (1, 1, 1), ((0, 0),) * 3, False),
    "whole": ((3, 4, 5), 5, (3, 4, 5), (1, 1, 1), (1, 1, 1), ((0, 0),) * 3, False),
    "line": ((7,), 5, (3,), (2,), (1,), ((1, 0),), True),
    "apart": ((9,), 1, (2,), (1,), (3,), ((0, 0),), False),
}
BOUNDS = {f32: 1e-5, f16: 2e-3}


def pooled(operator: str, x: np.ndarray, case: tuple[Any, ...], counts_padding: bool) -> np.ndarray:
    extents, _, size, stride, dilation, around, is_ceil = case
    axes = range(len(extents))
    results = []
    for axis in axes:
        covered = (size[axis] - 1) * dilation[axis] + 1
        left = extents[axis] + sum(around[axis]) - covered
        count = (-(-left // stride[axis]) if is_ceil else left // stride[axis]) + 1
        beyond = is_ceil and (count - 1) * stride[axis] >= extents[axis] + around[axis][0]
        results.append(count - beyond)
    y = np.zeros((*x.shape[:2], *results))
    for at in np.ndindex(*results):
        taps = [
            [at[k] * stride[k] - around[k][0] + t * dilation[k] for t in range(size[k])]
            for k in axes
        ]
        inside = [[p for p in taps[k] if 0 <= p < extents[k]] for k in axes]
        padded = [
            [p for p in taps[k] if -around[k][0] <= p < extents[k] + around[k][1]] for k in axes
        ]
        window = x[(slice(None), slice(None), *np.ix_(*inside))].astype(np.float64)
        folded = tuple(range(2, window.ndim))
        counted = np.prod([len(part) for part in (padded if counts_padding else inside)])
        value = window.max(folded) if operator == "max" else window.sum(folded)
        y[(slice(None), slice(None), *at)] = value / (counted if operator == "average" else 1)
    return y


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("operator", ["max", "sum", "average"])
def test_windows_are_those_of_numpy(operator: str, name: str, dtype: DType) -> None:
    extents, channels, size, stride, dilation, around, is_ceil = case = CASES[name]
    rank, is_counted = len(extents), operator == "average" and name == "padded"
    make = getattr(pooling, f"{operator}_pool_{rank}d")
    parts = (size, stride, dilation) if rank == 3 else (size[0], stride[0], dilation[0])
    options: dict[str, Any] = dict(zip(("size", "stride", "dilation"), parts, strict=True))
    options["padding"] = (*[first for first, _ in around], *[last for _, last in around])
    if operator == "average":
        options["count_include_pad"] = is_counted
    x = np.random.default_rng(5).standard_normal((2, channels, *extents)).astype(dtype.numpy)
    expected = pooled(operator, x, case, is_counted)
    for order, images in (("NCHW", 2), ("NHWC", tc.dim("images"))):
        pool = make(
            images, *extents, channels, ceil_mode=is_ceil, order=order, dtype=dtype, **options
        )
        given = x if order == "NCHW" else np.ascontiguousarray(np.moveaxis(x, 1, -1))
        found = pool(given).astype(np.float64)
        found = found if order == "NCHW" else np.moveaxis(found, -1, 1)
        np.testing.assert_allclose(found, expected, BOUNDS[dtype], BOUNDS[dtype])


def test_windows_of_other_axes_are_refused() -> None:
    with pytest.raises(
        CompileError, match=r"size is a number, or one for each of 3 axes, and not \(2, 2\)"
    ):
        pooling.max_pool_3d(1, 4, 4, 4, 3, size=(2, 2))  # type: ignore[arg-type]
    with pytest.raises(CompileError, match=r"size is a number, or one for each of 2 axes"):
        pooling.max_pool(1, 4, 4, 3, size=(2, 2, 2))  # type: ignore[arg-type]
