"""Convolutions of images of one axis and of three, against f64."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32
from taskc.kernels.convolution import (
    convolution,
    convolution_1d,
    convolution_3d,
    convolution_of,
)
from taskc.kernels.windows import Windows
from taskc.runtime import driver

Array = np.ndarray[Any, Any]


def exact(x: Array, w: Array, stride: Any, sides: Any, dilation: Any, groups: int) -> Array:
    """Of channels before the axes, in x and in w, whatever number of axes there is."""
    axes = len(stride)
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *sides))
    taps = w.shape[2:]
    outputs = [
        (n - (k - 1) * d - 1) // s + 1
        for n, k, d, s in zip(x.shape[2:], taps, dilation, stride, strict=True)
    ]
    letters = "dhw"[:axes]
    made = np.zeros((len(x), len(w), *outputs))
    for tap in np.ndindex(*taps):
        where = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilation, outputs, stride, strict=True)
        )
        part = x[(slice(None), slice(None), *where)]
        part = part.reshape(len(x), groups, -1, *outputs)
        filters = (
            w[(slice(None), slice(None), *tap)].astype(np.float64).reshape(groups, -1, w.shape[1])
        )
        made += np.einsum(f"ngc{letters},gkc->ngk{letters}", part, filters).reshape(made.shape)
    return made


def check(
    make: Any, extents: Any, size: Any, order: str, packed: bool, asked: Any = None, **options: Any
) -> None:
    """`asked` are the extents that the kernel is made for, if they aren't numbers."""
    axes, channels, features = len(extents), 6, 10
    groups = options.get("groups", 1)
    random = np.random.default_rng(0)
    x = random.standard_normal((2, channels, *extents)).astype(np.float32)
    w = random.standard_normal((features, channels // groups, *size)).astype(np.float32)
    b = random.standard_normal(features).astype(np.float32)
    kernel = make(
        2, *(asked or extents), channels, features, size=size if axes > 1 else size[0], order=order,
        filters="OIHW", packed=packed, bias=True, dtype=f32, **options,
    )  # fmt: skip
    last = (0, *range(2, axes + 2), 1)
    given = x if order == "NCHW" else np.ascontiguousarray(x.transpose(last))
    made = kernel(given, kernel.pack(w) if packed else w, b)
    made = made if order == "NCHW" else np.moveaxis(made, -1, 1)

    def each(name: str, otherwise: int) -> tuple[int, ...]:
        value = options.get(name, otherwise)
        return (value,) * axes if isinstance(value, int) else tuple(value)

    padding = options.get("padding", 0)
    if isinstance(padding, int):
        sides = [(padding, padding)] * axes
    elif len(padding) == 2 * axes:
        sides = list(zip(padding[:axes], padding[axes:], strict=True))
    else:
        sides = [(n, n) for n in padding]
    how = each("stride", 1), sides, each("dilation", 1), groups
    expected = exact(x, w, *how) + b.reshape(-1, *[1] * axes)
    sizes = exact(np.abs(x), np.abs(w), *how) + np.abs(b).reshape(-1, *[1] * axes)
    assert made.shape == expected.shape
    assert (np.abs(made - expected) <= 2.0**-24 * (w[0].size + 1) * sizes).all()


@pytest.mark.each_value(2)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("order", ["NHWC", "NCHW"])
@pytest.mark.parametrize(
    ("width", "size", "options"),
    [
        (40, 3, {"padding": 1}),
        (33, 15, {"padding": (14, 0), "dilation": 1}),
        (17, 5, {"stride": 2, "dilation": 3, "padding": (3, 6), "groups": 2}),
        (1, 1, {}),
    ],
)
def test_one_axis(width: int, size: int, options: Any, order: str, packed: bool) -> None:
    check(convolution_1d, (width,), (size,), order, packed, **options)


@pytest.mark.each_value(2)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("order", ["NHWC", "NCHW"])
@pytest.mark.parametrize(
    ("extents", "size", "options"),
    [
        ((5, 6, 7), (3, 3, 3), {"padding": 1}),
        ((4, 7, 9), (2, 1, 3), {"stride": (2, 1, 2), "padding": (1, 0, 2, 0, 3, 1)}),
        ((9, 5, 6), (3, 2, 2), {"dilation": (3, 1, 2), "groups": 2}),
        ((3, 4, 8), (1, 1, 1), {}),
        ((1, 1, 1), (3, 3, 3), {"padding": 1}),
        ((6, 1, 1), (3, 1, 1), {"stride": 2}),
        ((4, 9, 8), (2, 3, 3), {"padding": 1, "exact": False}),
    ],
)
def test_three_axes(extents: Any, size: Any, options: Any, order: str, packed: bool) -> None:
    check(convolution_3d, extents, size, order, packed, **options)


def test_what_is_refused() -> None:
    with pytest.raises(tc.CompileError, match="only images of two axes are blocked"):
        convolution_1d(1, 8, 4, 4, order="NCHWc")
    with pytest.raises(tc.CompileError, match="only images of two axes are blocked"):
        convolution_3d(1, 8, 8, 8, 4, 4, order="NCHWc", transposed=True)
    with pytest.raises(
        tc.CompileError, match="depth of convolution is known when a kernel is made"
    ):
        convolution_3d(1, tc.dim("depth"), 8, 8, 4, 4, transposed=True)
    with pytest.raises(
        tc.CompileError, match="this machine takes filters and residuals as they are"
    ):
        convolution_3d(1, 8, 8, 8, 4, 4, transposed=True, machine=tc.machine("sm_80"))
    with pytest.raises(tc.CompileError, match="does not fit"):  # all results are cut off
        convolution_3d(1, 1, 8, 8, 4, 4, size=3, transposed=True, padding=2)
    with pytest.raises(tc.CompileError, match="does not fit"):
        convolution_3d(1, 2, 8, 8, 4, 4)


@pytest.mark.each_value
@pytest.mark.parametrize("order", ["NHWC", "NCHW"])
@pytest.mark.parametrize("size", [1, 3])
def test_heights_and_widths_of_a_call(order: str, size: int) -> None:
    height, width = tc.dim("height"), tc.dim("width")
    options: dict[str, Any] = {"padding": size // 2, "packed": True}
    for length in (1, 130):
        check(convolution_1d, (length,), (size,), order, asked=(width,), **options)
    for extents, asked in (
        ((3, 1, 40), (3, height, width)), ((3, 5, 4), (3, height, 4)), ((2, 4, 7), (2, 4, width)),
    ):  # fmt: skip
        check(convolution_3d, extents, (size,) * 3, order, asked=asked, **options)


@pytest.mark.each_value(2)
@pytest.mark.parametrize("machine", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("order", "filters"), [("NCHW", "OIHW"), ("NHWC", "OHWI"), ("NHWC", "OIHW")]
)
@pytest.mark.parametrize(
    "options", [{}, {"groups": 2}, {"groups": 6}, {"stride": 2, "padding": (1, 2)}]
)
def test_lines_on_gpus(machine: str, order: str, filters: str, options: dict[str, Any]) -> None:
    for size in (3, 1):
        groups, stride = options.get("groups", 1), options.get("stride", 1)
        sides = options.get("padding", (0, 0))
        random = np.random.default_rng(size)
        x = random.standard_normal((2, 6, 11)).astype(np.float32)
        w = random.standard_normal((6, 6 // groups, size)).astype(np.float32)
        kernel = convolution_1d(
            2,
            11,
            6,
            6,
            size=size,
            order=order,
            filters=filters,
            machine=tc.machine(machine),
            dtype=f32,
            **options,
        )
        last = np.ascontiguousarray(x.transpose(0, 2, 1)) if order == "NHWC" else x
        given = np.ascontiguousarray(w.transpose(0, 2, 1)) if filters == "OHWI" else w
        made = driver.call(kernel, (last, given), {}, "sim")
        made = made.transpose(0, 2, 1) if order == "NHWC" else made
        expected = exact(x, w, (stride,), (sides,), (1,), groups)
        np.testing.assert_allclose(made, expected, atol=1e-5)


def test_the_number_of_axes_is_that_of_the_extents() -> None:
    how: dict[str, Any] = {
        "size": 3,
        "padding": 1,
        "dtype": f32,
        "machine": tc.machine("avx2"),
        "packed": True,
    }
    for extents, named in (
        ((9,), convolution_1d(1, 9, 8, 8, **how)),
        ((9, 7), convolution(1, 9, 7, 8, 8, **how)),
        ((5, 9, 7), convolution_3d(1, 5, 9, 7, 8, 8, **how)),
    ):
        assert convolution_of(1, extents, 8, 8, **how) is named
    how["packed"] = False
    assert convolution_of(1, (9, 7), 8, 8, is_constant=True, **how).packs.keys() == {"w"}
    how |= {"machine": tc.machine("sm_80"), "dtype": tc.f16}
    assert not convolution_of(1, (9, 7), 8, 8, is_constant=True, **how).packs, (
        "it takes them as they are"
    )


@pytest.mark.parametrize(
    ("axes", "padding", "before", "behind"),
    [
        (1, 2, (2,), (2,)), (1, (1, 2), (1,), (2,)), (2, (1, 2), (1, 2), (1, 2)),
        (2, (0, 1, 2, 3), (0, 1), (2, 3)), (3, (1, 2, 3), (1, 2, 3), (1, 2, 3)),
        (3, (0, 1, 2, 3, 4, 5), (0, 1, 2), (3, 4, 5)),
    ],
)  # fmt: skip
def test_padding_is_before_and_after_each_axis(
    axes: int, padding: Any, before: tuple[int, ...], behind: tuple[int, ...]
) -> None:
    made = Windows.of(axes, size=3, stride=None, padding=padding)
    ones = (1,) * axes
    assert made == Windows((3,) * axes, (3,) * axes, ones, before, behind)


@pytest.mark.parametrize(
    ("axes", "padding", "text"),
    [
        (2, (1, 2, 3), r"^padding is a number, \(above and below, beside\) or \(above, left, below, right\), and not"),
        (3, (1, 2), r"^padding, where it isn't six, is a number, or one for each of 3 axes, and not \(1, 2\)"),
    ],
)  # fmt: skip
def test_other_paddings_are_refused(axes: int, padding: Any, text: str) -> None:
    with pytest.raises(tc.CompileError) as raised:
        Windows.of(axes, size=3, stride=None, padding=padding)
    assert re.match(text, raised.value.message)


def test_gpus_have_no_images_of_three_axes() -> None:
    with pytest.raises(tc.CompileError, match="takes images of one axis or two"):
        convolution_3d(1, 3, 4, 5, 2, 2, size=(2, 2, 2), machine=tc.machine("sm_80"))
