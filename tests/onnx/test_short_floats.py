"""Models of f16 and bf16: nodes compute in f32, and what is written to memory is rounded once to the model's type."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from taskc.onnx.session import compile
from taskc.programs.ir import calls_of
from taskc.programs.pipeline import lower_program
from taskc.runtime.machine import machine
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


def half_a_step(expected: Any, dtype: Any) -> Any:
    return np.abs(expected) * float(ml_dtypes.finfo(dtype).eps) / 2


def values_of(made: Any, x: Any, kernel: str) -> Any:
    """The one output, which a fused kernel of this name computes."""
    (y,) = made.run(None, {"x": x})
    assert y.dtype == x.dtype
    *_, last = calls_of(lower_program(made.program({"x": x}).program.ir, machine()).calls)
    assert last.callee.name == kernel
    return y.astype(np.float64)


@pytest.mark.parametrize("dtype", KINDS)
def test_a_fused_chain_is_rounded_once(dtype: Any) -> None:
    """Between nodes that are fused values stay f32; each rounding in between would show in some element."""
    x, a = numbers(dtype, 40, 64), numbers(dtype, 64, seed=1)
    chain = [
        node("Mul", ["x", "a"], ["p"]),
        node("Sigmoid", ["p"], ["q"]),
        node("Where", ["yes", "q", "p"], ["r"]),
        node("Transpose", ["r"], ["s"]),
        node("Tanh", ["s"], ["t"]),
        node("Sub", ["t", "one"], ["u"]),
        node("Gelu", ["u"], ["y"]),
    ]
    made = model(
        chain, [tensor("x", 40, 64, type=KINDS[dtype])], ["y"],
        initializer=[
            constant("a", a), constant("one", np.ones((), dtype)),
            helper.make_tensor("yes", TensorProto.BOOL, (), [True]),
        ],
    )  # fmt: skip
    y = values_of(compile(made), x, "mul_sigmoid_mul_where_transpose_tanh_sub_gelu")
    exact = np.tanh(1 / (1 + np.exp(-(x.astype(np.float64) * a.astype(np.float64))))).T - 1
    expected = exact * (1 + np.vectorize(math.erf)(exact / math.sqrt(2))) / 2
    assert (np.abs(y - expected) <= half_a_step(expected, dtype) + 1e-6).all()


@pytest.mark.parametrize("dtype", KINDS)
def test_a_product_and_what_follows_are_rounded_once(dtype: Any) -> None:
    x, w, c = (numbers(dtype, *shape, seed=n) for n, shape in enumerate([(5, 64), (64, 32), (32,)]))
    made = model(
        [
            node("MatMul", ["x", "w"], ["p"]),
            node("Add", ["p", "c"], ["q"]),
            node("Gelu", ["q"], ["y"], approximate="tanh"),
        ],
        [tensor("x", 5, 64, type=KINDS[dtype])], ["y"],
        initializer=[constant("w", w), constant("c", c)],
    )  # fmt: skip
    y = values_of(compile(made), x, "matmul_add_gelu")
    exact = x.astype(np.float64) @ w.astype(np.float64) + c.astype(np.float64)
    inner = math.sqrt(2 / math.pi) * (exact + 0.044715 * exact**3)
    expected = exact * (1 + np.tanh(inner)) / 2
    assert (np.abs(y - expected) <= half_a_step(expected, dtype) + 1e-5).all()


@pytest.mark.parametrize("dtype", KINDS)
def test_a_batch_normalization_is_rounded_once(dtype: Any) -> None:
    x = numbers(dtype, 3, 20, 11)
    vectors = [numbers(dtype, 20, seed=n) for n in range(1, 5)]
    vectors[3] = abs(vectors[3])
    names = ["scale", "shift", "mean", "variance"]
    made = model(
        [node("BatchNormalization", ["x", *names], ["z"]), node("Relu", ["z"], ["y"])],
        [
            tensor(name, *it.shape, type=KINDS[dtype])
            for name, it in zip(["x", *names], [x, *vectors], strict=True)
        ],
        ["y"],
    )
    (y,) = compile(made).run(None, {"x": x, **dict(zip(names, vectors, strict=True))})
    scale, shift, mean, variance = (it.astype(np.float64)[:, None] for it in vectors)
    exact = (x.astype(np.float64) - mean) / np.sqrt(variance + 1e-5) * scale + shift
    assert (abs(y.astype(np.float64) - exact.clip(0)) <= half_a_step(exact, dtype) + 1e-5).all()


def test_a_conversion_of_the_model_is_not_skipped() -> None:
    x = numbers(np.float32, 200)
    made = model(
        [
            node("Mul", ["x", "x"], ["p"]),
            node("Cast", ["p"], ["q"], to=TensorProto.FLOAT16),
            node("Cast", ["q"], ["r"], to=TensorProto.FLOAT),
            node("Sub", ["r", "p"], ["y"]),
        ],
        [tensor("x", 200)],
        ["y"],
    )
    (y,) = compile(made).run(None, {"x": x})
    np.testing.assert_array_equal(y, (x * x).astype(np.float16).astype(np.float32) - x * x)
    assert y.any()
