"""Operators that ONNX Runtime fused, written by ONNX's again."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, numpy_helper

from taskc.onnx.passes.separate_fused import separate_fused
from taskc.onnx.session import compile
from tests.onnx.models import model, node, tensor

from .recognition import is_left_alone, operators

RANDOM = np.random.default_rng(0)
W = RANDOM.integers(-90, 90, (32, 32, 3, 3)).astype(np.float32)


def chain() -> ModelProto:
    """Two convolutions with what follows them, and a Gelu between."""
    shape = {"kernel_shape": [3, 3], "pads": [1] * 4}
    clip = {"activation": "Clip", "activation_params": [-3.0, 6.0]}
    return model(
        [
            node("FusedConv", ["x", "w"], ["a"], domain="com.microsoft", **shape, **clip),
            node("QuickGelu", ["a"], ["b"], domain="com.microsoft", alpha=1.0),
            node(
                "FusedConv", ["b", "w", "", "x"], ["y"], domain="com.microsoft", activation="Relu", **shape
            ),
        ],
        [tensor("x", 1, 32, 8, 8)],
        ["y"],
        domains=("com.microsoft",),
        initializer=[numpy_helper.from_array(W * 1e-3, "w")],
    )  # fmt: skip


def test_they_are_separate() -> None:
    kinds = ["Conv", "Clip", "Swish", "Conv", "Add", "Relu"]
    assert [one for one in operators(chain()) if "Blocks" not in one] == kinds


def test_results() -> None:
    x = RANDOM.standard_normal((1, 32, 8, 8)).astype(np.float32)
    a = np.clip(convolved(x), -3, 6)
    y = np.maximum(convolved(a / (1 + np.exp(-a))) + x, 0)
    np.testing.assert_allclose(compile(chain())(x), y, rtol=1e-4, atol=1e-4)


def convolved(x: Any) -> Any:
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return np.einsum("nchwij,fcij->nfhw", windows, W * np.float32(1e-3))


def test_sums_are_exact_where_the_user_asks() -> None:
    one = node(
        "FusedConv", ["x", "w"], ["y"], domain="com.microsoft", activation="Relu", pads=[1] * 4
    )
    made = model(
        [one], [tensor("x", 1, 32, 28, 28)], ["y"], domains=("com.microsoft",),
        initializer=[numpy_helper.from_array(W, "w")],
    )  # fmt: skip
    x = RANDOM.integers(-300, 300, (1, 32, 28, 28)).astype(np.float32)
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)]).astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    expected = np.maximum(np.einsum("nchwij,fcij->nfhw", windows, W.astype(np.float64)), 0)
    (exact,) = compile(made, exact=True).run(None, {"x": x})
    np.testing.assert_array_equal(exact, expected)


def test_gelu_by_tanh() -> None:
    x = np.linspace(-4, 4, 9, dtype=np.float32)
    one = node("FastGelu", ["x"], ["y"], domain="com.microsoft")
    made = model([one], [tensor("x", 9)], ["y"], domains=("com.microsoft",))
    assert operators(made) == ["Gelu"]
    y = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(compile(made)(x), y, atol=1e-6)


def test_others_stay() -> None:
    biased = node("FastGelu", ["x", "x"], ["y"], domain="com.microsoft")
    made = model([biased], [tensor("x", 3)], ["y"], domains=("com.microsoft",))
    assert is_left_alone(made, separate_fused)
