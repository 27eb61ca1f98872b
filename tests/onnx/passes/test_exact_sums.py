"""Sums that are exact: of numbers whose sums f32 holds, but whose transforms it rounds."""

from __future__ import annotations

import numpy as np
from onnx import helper, numpy_helper

from taskc.onnx.session import compile
from tests.onnx.models import model, tensor


def test_whole_numbers_are_added_up_without_error() -> None:
    random = np.random.default_rng(0)
    x = random.integers(-300, 300, (1, 64, 28, 28)).astype(np.float32)
    w = random.integers(-90, 90, (64, 64, 3, 3)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    made = model(
        [node], [tensor("x", *x.shape)], ["y"], initializer=[numpy_helper.from_array(w, "w")]
    )
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))).astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    expected = np.einsum("nchwij,fcij->nfhw", windows, w.astype(np.float64))
    assert np.abs(expected).max() < 2**24
    (exact,) = compile(made, exact=True).run(None, {"x": x})
    np.testing.assert_array_equal(exact, expected)
    (fast,) = compile(made).run(None, {"x": x})
    assert np.abs(fast - expected).max() < 1e-4 * np.abs(expected).max()
