"""Transposed convolutions: what each number of an image adds to the results around its place, against f64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32
from taskc.kernels.convolution import blocked, convolution, convolution_1d, convolution_3d
from taskc.kernels.convolution.plan import candidates
from taskc.kernels.convolution.problem import problem_of
from taskc.tune.space import plans

Array = np.ndarray[Any, Any]


def exact(
    x: Array, w: Array, stride: Any, padding: Any, dilation: Any, groups: int, more: Any
) -> Array:
    """Of NCHW and IOHW."""
    images, channels, height, width = x.shape
    _, of_group, rows, columns = w.shape
    reach = (rows - 1) * dilation[0] + 1, (columns - 1) * dilation[1] + 1
    down, right = (height - 1) * stride[0], (width - 1) * stride[1]
    whole = np.zeros(
        (images, of_group * groups, down + reach[0] + more[0], right + reach[1] + more[1])
    )
    parts = x.reshape(images, groups, channels // groups, height, width).astype(np.float64)
    filters = w.reshape(groups, channels // groups, of_group, rows, columns).astype(np.float64)
    for r in range(rows):
        for s in range(columns):
            added = np.einsum("ngchw,gck->ngkhw", parts, filters[..., r, s])
            top, left = r * dilation[0], s * dilation[1]
            below, behind = (
                slice(top, top + down + 1, stride[0]),
                slice(left, left + right + 1, stride[1]),
            )
            whole[:, :, below, behind] += added.reshape(images, -1, height, width)
    above, before, below, behind = padding
    return whole[:, :, above : whole.shape[2] - below, before : whole.shape[3] - behind]


@pytest.mark.each_value(2)
@pytest.mark.parametrize("order", ["NHWC", "NCHW", "NCHWc"])
@pytest.mark.parametrize(
    ("shape", "size", "options"),
    [
        ((16, 5, 7, 16), (4, 4), {"stride": (2, 2), "padding": (1, 1, 1, 1)}),
        (
            (8, 6, 5, 20),
            (3, 3),
            {"stride": (2, 2), "padding": (1, 1, 1, 1), "output_padding": (1, 1)},
        ),
        ((12, 4, 9, 8), (3, 2), {"stride": (3, 2), "padding": (0, 1, 2, 0), "dilation": (2, 1)}),
        ((12, 4, 9, 8), (3, 3), {"stride": (2, 2), "groups": 4}),
        ((16, 9, 9, 16), (3, 3), {"padding": (1, 1, 1, 1), "groups": 16}),
        ((5, 3, 3, 7), (1, 1), {"stride": (2, 3)}),
        ((5, 1, 40, 7), (2, 2), {"stride": (1, 2)}),
        ((3, 1, 1, 1), (1, 1), {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("packed", [False, True])
def test_transposed(shape: Any, size: Any, options: Any, order: str, packed: bool) -> None:
    channels, height, width, features = shape
    whole: dict[str, Any] = {
        "stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1,
        "output_padding": (0, 0), **options,
    }  # fmt: skip
    random = np.random.default_rng(height)
    x = random.standard_normal((2, channels, height, width)).astype(np.float32)
    w = random.standard_normal((channels, features // whole["groups"], *size)).astype(np.float32)
    kernel = convolution(
        2, height, width, channels, features, size=size, order=order, filters="IOHW",
        transposed=True, packed=packed, dtype=f32, **whole,
    )  # fmt: skip
    expected = exact(x, w, *list(whole.values()))
    given: Any = x
    if order == "NHWC":
        given = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    elif order == "NCHWc":
        kind = blocked(2, channels, height, width)
        rest = kind.shape[1] - channels
        given = tc.pack(np.pad(x, ((0, 0), (0, rest), (0, 0), (0, 0))), kind)
    made = kernel(given, kernel.pack(w) if packed else w)
    if order == "NHWC":
        made = made.transpose(0, 3, 1, 2)
    terms = channels * size[0] * size[1] + 1
    sizes = exact(np.abs(x), np.abs(w), *list(whole.values()))
    assert made[:, :features].shape == expected.shape
    assert (np.abs(made[:, :features] - expected) <= 2.0**-24 * terms * sizes).all()
    assert not made[:, features:].any()


@pytest.mark.parametrize("stride", [(1, 2), (2, 3)])
def test_sums_wait_for_further_channels(stride: tuple[int, int]) -> None:
    """Those of all tiles of a line, of each phase of the stride."""
    channels, features = 8 * tc.machine().lanes, 16
    random = np.random.default_rng(0)
    x = random.standard_normal((1, channels, 3, 20)).astype(np.float32)
    w = random.standard_normal((channels, features, 3, 4)).astype(np.float32)
    options: Any = {"size": (3, 4), "stride": stride, "order": "NCHW", "filters": "IOHW"}
    how = stride, (0, 0, 0, 0), (1, 1), 1, (0, 0)
    expected, sizes = exact(x, w, *how), exact(np.abs(x), np.abs(w), *how)
    of = problem_of(
        1, (3, 20), channels, features, padding=0, dilation=1, groups=1, bias=False, scale=False,
        residual=False, activation=None, dtype=f32, total=None, result=None, transposed=True,
        lanes=tc.machine().lanes, **options,
    )  # fmt: skip
    found = [plan for plan in plans(candidates, of, tc.machine()) if plan.depth < channels]
    assert found
    for plan in (found[0], found[-1]):
        kernel = convolution(
            1, 3, 20, channels, features, transposed=True, schedule=plan, dtype=f32, **options
        )
        bound = 2.0**-24 * (12 * channels + 1) * sizes
        assert (np.abs(kernel(x, w) - expected) <= bound).all()


def test_what_is_refused() -> None:
    with pytest.raises(tc.CompileError, match="filters are OHWI or OIHW, not IOHW"):
        convolution(1, 4, 4, 8, 8, filters="IOHW", dtype=f32)
    with pytest.raises(tc.CompileError, match="this machine takes"):
        convolution(1, 4, 4, 8, 8, transposed=True, dtype=f32, machine=tc.machine("sm_80"))


def exact_3d(
    x: Array, w: Array, stride: Any, around: Any, dilation: Any, groups: int, more: Any
) -> Array:
    """Of NCHW and IOHW, with three axes, or with one."""
    images, channels, *extents = x.shape
    of_group, size = w.shape[1], w.shape[2:]
    whole = [
        (n - 1) * step + (taps - 1) * apart + 1 + end
        for n, step, taps, apart, end in zip(extents, stride, size, dilation, more, strict=True)
    ]
    y = np.zeros((images, groups, of_group, *whole))
    parts = x.astype(np.float64).reshape(images, groups, channels // groups, *extents)
    filters = w.astype(np.float64).reshape(groups, channels // groups, of_group, *size)
    for tap in np.ndindex(*size):
        at = tuple(
            slice(t * apart, t * apart + (n - 1) * step + 1, step)
            for t, apart, n, step in zip(tap, dilation, extents, stride, strict=True)
        )
        added = np.einsum("ngc...,gck->ngk...", parts, filters[(..., *tap)])
        y[(slice(None), slice(None), slice(None), *at)] += added
    cut = tuple(slice(first, n - last) for (first, last), n in zip(around, whole, strict=True))
    return y.reshape(images, groups * of_group, *whole)[(slice(None), slice(None), *cut)]


@pytest.mark.parametrize(("order", "dtype"), [("NCHW", f32), ("NHWC", tc.f16)], ids=str)
@pytest.mark.parametrize(
    ("extents", "channels", "features", "size", "stride", "dilation", "around", "more", "groups"),
    [
        ((3, 4, 5), 4, 6, (3, 3, 3), (2, 2, 2), (1, 1, 1), ((1, 1),) * 3, (1, 1, 1), 1),
        ((2, 5, 3), 3, 17, (2, 3, 1), (1, 2, 3), (2, 1, 1), ((0, 1), (1, 0), (0, 0)), (0, 1, 0), 1),
        ((4, 3, 6), 4, 8, (3, 2, 2), (3, 1, 2), (1, 2, 1), ((2, 0), (0, 1), (1, 1)), (2, 0, 1), 2),
        ((7,), 4, 6, (3,), (2,), (1,), ((1, 1),), (1,), 1),
    ],
)
def test_three_axes_and_one(
    extents: Any, channels: int, features: int, size: Any, stride: Any, dilation: Any, around: Any,
    more: Any, groups: int, dtype: tc.DType, order: str,
) -> None:  # fmt: skip
    rng = np.random.default_rng(features)
    x = rng.standard_normal((2, channels, *extents)).astype(dtype.numpy)
    w = rng.standard_normal((channels, features // groups, *size)).astype(dtype.numpy)
    padding = (*[first for first, _ in around], *[last for _, last in around])
    rank = len(extents)
    parts = (
        (size, stride, dilation, more) if rank == 3 else (size[0], stride[0], dilation[0], more[0])
    )
    options: dict[str, Any] = dict(
        zip(("size", "stride", "dilation", "output_padding"), parts, strict=True)
    )
    make = convolution_3d if rank == 3 else convolution_1d
    kernel = make(
        2, *extents, channels, features, padding=padding, transposed=True, filters="IOHW",
        groups=groups, order=order, dtype=dtype, **options,
    )  # fmt: skip
    given = x if order == "NCHW" else np.ascontiguousarray(np.moveaxis(x, 1, -1))
    found = kernel(given, w).astype(np.float64)
    found = found if order == "NCHW" else np.moveaxis(found, -1, 1)
    bound = {tc.f16: 1e-2, f32: 1e-5}[dtype]
    expected = exact_3d(x, w, stride, around, dilation, groups, more)
    np.testing.assert_allclose(found, expected, bound, bound)
