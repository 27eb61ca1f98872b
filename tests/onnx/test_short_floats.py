"""Models of f16 and bf16: products are summed in f32, and rounded once to the type that the model says."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from taskc.onnx.session import compile
from tests.onnx.models import model, node, tensor

KINDS = {np.float16: TensorProto.FLOAT16, ml_dtypes.bfloat16: TensorProto.BFLOAT16}


def numbers(dtype: Any, *shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


def constant(name: str, array: Any) -> TensorProto:
    return helper.make_tensor(name, KINDS[array.dtype.type], array.shape, array.tobytes(), raw=True)


@pytest.mark.parametrize("dtype", KINDS)
def test_products_are_rounded_once(dtype: Any) -> None:
    x, w, c = (numbers(dtype, *shape, seed=n) for n, shape in enumerate([(5, 70), (70, 33), (33,)]))
    made = model(
        [node("MatMul", ["x", "w"], ["y"]), node("Gemm", ["x", "w", "c"], ["z"])],
        [tensor("x", 5, 70, type=KINDS[dtype])], ["y", "z"],
        initializer=[constant("w", w), constant("c", c)],
    )  # fmt: skip
    y, z = compile(made).run(None, {"x": x})
    products = x.astype(np.float64) @ w.astype(np.float64)
    for found, expected in ((y, products), (z, products + c.astype(np.float64))):
        assert found.dtype == dtype
        half_a_step = np.abs(expected) * float(ml_dtypes.finfo(dtype).eps) / 2
        assert (np.abs(found.astype(np.float64) - expected) <= half_a_step + 1e-5).all()


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("is_constant", [True, False])
def test_convolutions_are_rounded_once(dtype: Any, is_constant: bool) -> None:
    """Two in a row, so that images are in blocks between them; and the first one's results are an output, too."""
    shapes = (1, 5, 6, 7), (20, 5, 3, 3), (4, 20, 1, 1)
    x, w, v = (numbers(dtype, *shape, seed=n) for n, shape in enumerate(shapes))
    weights = {"w": w, "v": v}
    feeds = {"x": x} if is_constant else {"x": x, **weights}
    made = model(
        [node("Conv", ["x", "w"], ["y"], pads=[1] * 4), node("Conv", ["y", "v"], ["z"])],
        [tensor(name, *it.shape, type=KINDS[dtype]) for name, it in feeds.items()],
        ["y", "z"],
        initializer=[constant(name, it) for name, it in weights.items()] if is_constant else [],
    )  # fmt: skip
    y, z = compile(made).run(None, feeds)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    first = np.einsum("nchwij,fcij->nfhw", windows, w.astype(np.float64))
    second = np.einsum("nchw,fc->nfhw", y.astype(np.float64), v[:, :, 0, 0].astype(np.float64))
    for found, expected in ((y, first), (z, second)):  # of what the first one was rounded to
        assert found.dtype == dtype
        half_a_step = np.abs(expected) * float(ml_dtypes.finfo(dtype).eps) / 2
        assert (np.abs(found.astype(np.float64) - expected) <= half_a_step + 1e-4).all()
