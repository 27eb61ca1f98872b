"""GridSample, RoiAlign and other rare nodes: awkward inputs, types, extents of a call, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import taskc as tc

from .models import model, node, tensor

RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def one_node(
    operator: str, arrays: list[Any], *, opset: int = 22, open_axes: bool = False, **attributes: Any
) -> Any:
    """A model of one node, whose inputs are of these types; `open_axes`: their extents are a call's."""
    inputs = [
        tensor(
            f"x{n}",
            *([None] * x.ndim if open_axes else x.shape),
            type=helper.np_dtype_to_tensor_dtype(x.dtype),
        )
        for n, x in enumerate(arrays)
    ]
    names = [f"x{n}" for n in range(len(arrays))]
    return model([node(operator, names, ["y"], name="n", **attributes)], inputs, ["y"], opset=opset)


def made(operator: str, *arrays: Any, **options: Any) -> Any:
    return tc.compile(one_node(operator, [*arrays], **options))(*arrays)


# Operators, their attributes, and inputs of two calls, which differ in every extent that may.
OPEN: list[tuple[str, dict[str, Any], list[list[Any]]]] = [
    ("GridSample", {"mode": "linear", "padding_mode": "reflection"}, [
        [normal(n, 3, h, w), normal(n, h, 2, 2)] for n, h, w in ((1, 3, 4), (2, 5, 3), (3, 2, 7))
    ]),
    ("RoiAlign", {"output_height": 2, "output_width": 3}, [
        [normal(1, c, h, h), abs(normal(n, 4)) * 4, np.zeros(n, np.int64)]
        for n, c, h in ((1, 3, 4), (4, 17, 6), (2, 5, 9))
    ]),
    ("DeformConv", {"pads": [1] * 4, "kernel_shape": [3, 3]}, [
        [normal(n, 2, h, w), normal(2, 2, 3, 3), normal(n, 18, h, w)] for n, h, w in ((1, 3, 4), (2, 4, 3), (1, 5, 2))
    ]),
    ("Det", {}, [[normal(n, m, m)] for n, m in ((1, 2), (4, 3), (2, 5))]),
    ("LRN", {"size": 3}, [[normal(m, m, h, h)] for m, h in ((2, 3), (5, 4), (3, 17))]),
    ("LpPool", {"kernel_shape": [2, 2], "p": 3}, [[normal(n, 3, h, h)] for n, h in ((1, 3), (2, 9), (3, 4))]),
    ("TensorScatter", {"opset": 24}, [
        [normal(n, 2, m, 3), normal(n, 2, 2, 3), np.arange(n)] for n, m in ((1, 4), (2, 9), (3, 5))
    ]),
]  # fmt: skip


@pytest.mark.parametrize("case", OPEN, ids=lambda case: case[0])
def test_extents_of_a_call(case: Any) -> None:
    operator, attributes, calls = case
    proto = one_node(operator, calls[0], open_axes=True, **attributes)
    found = tc.compile(proto)
    for arrays in calls:
        feeds = {f"x{n}": x for n, x in enumerate(arrays)}
        (wanted,) = ReferenceEvaluator(proto).run(None, feeds)
        np.testing.assert_allclose(found(feeds), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_norms_of_whole_images(p: int) -> None:
    """The package onnx has neither a case nor a reference of it."""
    x = normal(2, 3, 4, 5)
    wanted = np.linalg.norm(x.reshape(2, 3, 20).astype(np.float64), p, 2).reshape(2, 3, 1, 1)
    np.testing.assert_allclose(made("GlobalLpPool", x, p=p), wanted, rtol=1e-5)


@pytest.mark.each_value
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_places_that_are_no_numbers_or_infinite(mode: str, padding: str) -> None:
    """Nothing outside of the image is read; what lies infinitely far outside of zeros is 0."""
    grid = np.full((1, 1, 5, 2), np.nan, np.float32)
    grid[0, 0, 1:, 0] = np.inf, -np.inf, 3e38, -3e38
    grid[0, 0, 1:, 1] = 0
    y = made("GridSample", normal(1, 2, 3, 3), grid, mode=mode, padding_mode=padding)
    if padding == "zeros":
        assert not y[..., 1:].any()
    if padding == "border":
        assert np.isfinite(y[..., 1:]).all()


def test_a_corner_that_counts_nothing_is_not_read() -> None:
    """An infinity at the border doesn't make NaN of the zeros around the image."""
    x = np.full((1, 1, 2, 2), np.inf, np.float32)
    grid = np.full((1, 1, 1, 2), -3, np.float32)
    assert made("GridSample", x, grid)[0, 0, 0, 0] == 0


def test_reflection_in_one_pixel() -> None:
    x, grid = np.float32([[[[7]]]]), np.float32([[[[-5, 5], [0.3, 2]]]])
    for aligned in (0, 1):
        y = made("GridSample", x, grid, padding_mode="reflection", align_corners=aligned)
        np.testing.assert_allclose(y, 7, rtol=1e-6)


def test_images_of_bytes_are_rounded() -> None:
    x = np.uint8([[[[0, 255], [4, 8]]]])
    grid = np.float32([[[[0, -0.5], [0, 0.5], [-0.5, 0.5]]]])
    assert made("GridSample", x, grid)[0, 0, 0].tolist() == [128, 6, 4]


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_floats(dtype: Any) -> None:
    x, w, moved = (
        normal(*shape).astype(dtype) for shape in ((1, 3, 5, 5), (2, 3, 3, 3), (1, 18, 3, 3))
    )
    wide = [array.astype(np.float32) for array in (x, w, moved)]
    bound = 0.05 if dtype is np.float16 else 1e-4
    for operator, arrays, others in (
        ("DeformConv", (x, w, moved), wide),
        (
            "GridSample",
            (x, np.ascontiguousarray(moved[..., :2])),
            (wide[0], np.ascontiguousarray(wide[2][..., :2])),
        ),
        ("LRN", (x,), wide[:1]),
        ("Det", (x,), wide[:1]),
    ):
        options = {"size": 3} if operator == "LRN" else {}
        y = made(operator, *arrays, **options)
        assert y.dtype == dtype
        np.testing.assert_allclose(y, made(operator, *others, **options), rtol=bound, atol=bound)


def test_nothing_at_all() -> None:
    none = made("RoiAlign", normal(1, 3, 4, 4), normal(0, 4), np.zeros(0, np.int64))
    assert none.shape == (0, 3, 1, 1)
    assert made("GridSample", normal(0, 3, 4, 4), normal(0, 2, 2, 2)).shape == (0, 3, 2, 2)
    assert made("Det", normal(3, 0, 0)).tolist() == [1, 1, 1]
    assert made("LRN", normal(2, 3, 0, 4), size=3).shape == (2, 3, 0, 4)


# An operator, its attributes, inputs that are right, and one that has something outside.
OUTSIDE: list[tuple[str, dict[str, Any], list[Any], int, Any]] = [
    ("RoiAlign", {}, [normal(2, 1, 3, 3), normal(2, 4), np.array([0, 1])], 2, np.array([0, 2])),
    ("MaxUnpool", {"kernel_shape": [2, 2], "strides": [2, 2]},
     [normal(1, 2, 1, 1), np.array([0, 7]).reshape(1, 2, 1, 1)], 1, np.array([0, 3]).reshape(1, 2, 1, 1)),
    ("TensorScatter", {"opset": 24}, [normal(2, 1, 4, 1), normal(2, 1, 2, 1), np.array([0, 2])], 2, np.array([0, 3])),
]  # fmt: skip


@pytest.mark.parametrize("case", OUTSIDE, ids=lambda case: case[0])
def test_a_place_outside_is_an_error_that_names_the_node(case: Any) -> None:
    operator, attributes, arrays, position, wrong = case
    found = tc.compile(one_node(operator, arrays, **attributes))
    found(*arrays)
    with pytest.raises(tc.CheckError, match=f"{operator} node 'n': "):
        found(*arrays[:position], wrong, *arrays[position + 1 :])


# An operator, its attributes, its inputs, and what is wrong with them.
MISFITS: list[tuple[str, dict[str, Any], list[Any], str]] = [
    ("GridSample", {"mode": "best"}, [normal(1, 1, 2, 2), normal(1, 1, 1, 2)], "mode 'best' with padding 'zeros'"),
    ("GridSample", {}, [normal(1, 1, 2, 2), normal(1, 1, 1, 3)], r"its grid \[1, 1, 1, 3\] names no places"),
    ("GridSample", {}, [normal(1, 1, 2, 2), normal(2, 1, 1, 2)], r"its grid \[2, 1, 1, 2\] names no places"),
    ("GridSample", {}, [np.ones((1, 1, 2, 2), bool), normal(1, 1, 1, 2)], "there is nothing between bools"),
    ("RoiAlign", {"mode": "sum"}, [normal(1, 1, 2, 2), normal(1, 4), np.zeros(1, np.int64)], "its mode 'sum'"),
    ("RoiAlign", {"coordinate_transformation_mode": "x"}, [normal(1, 1, 2, 2), normal(1, 4), np.zeros(1, np.int64)],
     "its coordinates 'x'"),
    ("RoiAlign", {}, [normal(1, 1, 2, 2), normal(1, 5), np.zeros(1, np.int64)], r"and its boxes \[1, 5\]"),
    ("DeformConv", {}, [normal(1, 1, 3), normal(1, 1, 2), normal(1, 4, 2)], "for 2 spatial axes, and x has 1"),
    ("DeformConv", {},
     [normal(1, 3, 3, 3), normal(1, 2, 2, 2), normal(1, 8, 2, 2)], r"don't fit filters \[1, 2, 2, 2\]"),
    ("DeformConv", {},
     [normal(1, 1, 3, 3), normal(1, 1, 2, 2), normal(1, 4, 2, 2)], "it has 4 offsets of a window, and not 8"),
    ("DeformConv", {},
     [normal(1, 1, 3, 3), normal(1, 1, 2, 2), normal(1, 8, 3, 3)], r"are of \[3, 3\] windows, and not \[2, 2\]"),
    ("LRN", {"size": 0}, [normal(1, 1, 2, 2)], "there are no 0 neighbouring channels"),
    ("LpPool", {"kernel_shape": [2, 2], "p": 0}, [normal(1, 1, 2, 2)], "there is no norm 0"),
    ("MaxUnpool", {"kernel_shape": [2, 2]},
     [normal(1, 1, 2, 2), np.zeros((1, 1, 2, 1), np.int64)], r"it has places \[1, 1, 2, 1\]"),
    ("TensorScatter", {"opset": 24},
     [normal(1, 2, 3), normal(1, 4, 3)], r"\[1, 4, 3\] isn't a part of \[1, 2, 3\] along axis 1"),
    ("TensorScatter", {"opset": 24, "mode": "x"}, [normal(1, 2, 3), normal(1, 1, 3)], "its mode 'x'"),
    ("Det", {}, [normal(2, 3)], r"its input \[2, 3\] is no square matrix"),
    ("BitCast", {"opset": 26, "to": TensorProto.INT64}, [normal(2)], "f32 and i64 have other numbers of bits"),
    ("BitCast", {"opset": 26, "to": TensorProto.BOOL},
     [np.ones(2, np.uint8)], "not all bits of a number are those of a bool"),
]  # fmt: skip


@pytest.mark.parametrize("case", MISFITS, ids=lambda case: case[3])
def test_what_does_not_fit_is_refused(case: Any) -> None:
    operator, attributes, arrays, message = case
    with pytest.raises(tc.CompileError, match=f"{operator} node 'n': .*{message}"):
        made(operator, *arrays, **attributes)


def with_known(operator: str, x: Any, known: list[Any], **attributes: Any) -> Any:
    names = [f"c{n}" for n in range(len(known))]
    proto = model(
        [node(operator, [*(["x"] if x is not None else []), *names], ["y"], name="n", **attributes)],
        [tensor("x", *x.shape)] if x is not None else [],
        ["y"],
        initializer=[numpy_helper.from_array(np.array(n), c) for n, c in zip(known, names, strict=True)],
    )  # fmt: skip
    return tc.compile(proto)(*([x] if x is not None else []))


def test_what_does_not_fit_what_is_known_is_refused() -> None:
    with pytest.raises(
        tc.CompileError, match=r"Col2Im node 'n': its columns \[4, 3\] aren't windows"
    ):
        with_known("Col2Im", normal(1, 4, 3), [[3, 3], [2, 2]])
    with pytest.raises(tc.CompileError, match="Col2Im node 'n': its columns are f32"):
        with_known("Col2Im", normal(4, 4), [[3, 3], [2, 2]])
    with pytest.raises(tc.CompileError, match="MelWeightMatrix node 'n': there are no 0 bands"):
        with_known("MelWeightMatrix", None, [0, 16, 8000, np.float32(0), np.float32(4000)])


def test_floats_of_8_bits_that_are_too_large() -> None:
    """From halfway to what would be the next number on: an infinity where there is one."""
    x = np.float32([57344, 61439, 61440, -61440, np.inf, -np.inf, np.nan, 1])
    proto = one_node("Cast", [x], to=TensorProto.FLOAT8E5M2, saturate=0)
    y = tc.compile(proto)(x).astype(np.float32)
    np.testing.assert_array_equal(y, [57344, 57344, np.inf, -np.inf, np.inf, -np.inf, np.nan, 1])
