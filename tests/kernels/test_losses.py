"""Losses and logsumexp against f64: types, reductions, infinite numbers, labels that are ignored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import CompileError, DType, bf16, f32
from taskc.kernels import losses

BOUNDS = {f32: 1e-5, bf16: 2e-2}
TYPES = pytest.mark.parametrize("dtype", [f32, bf16], ids=str)


def of_pairs(x: np.ndarray, target: np.ndarray) -> dict[str, tuple[dict[str, Any], np.ndarray]]:
    far = np.abs(x - target)
    return {
        "mse_loss": ({}, far**2),
        "l1_loss": ({}, far),
        "smooth_l1_loss": ({"beta": 0.5}, np.where(far < 0.5, far**2, far - 0.25)),
        "huber_loss": ({"delta": 0.5}, np.where(far < 0.5, far**2 / 2, 0.5 * (far - 0.25))),
        "kl_div": ({}, np.where(target > 0, target * (np.log(np.maximum(target, 1e-9)) - x), 0)),
        "bce_with_logits": ({}, np.logaddexp(0, x) - x * target),
    }


@TYPES
@pytest.mark.parametrize("name", of_pairs(np.ones(1), np.ones(1)))
def test_losses_of_pairs(name: str, dtype: DType) -> None:
    rng = np.random.default_rng(3)
    x, target = rng.standard_normal((7, 33, 2)), rng.random((7, 33, 2))
    x[0, 0], target[0, 1] = 60.0, 0.0
    x, target = x.astype(dtype.numpy), target.astype(dtype.numpy)
    options, exact = of_pairs(x.astype(np.float64), target.astype(np.float64))[name]
    for reduction, expected in (("mean", exact.mean()), ("sum", exact.sum()), ("none", exact)):
        make = getattr(losses, name)
        found = make(x.shape, reduction=reduction, dtype=dtype, **options)(x, target)
        np.testing.assert_allclose(found.astype(np.float64), expected, BOUNDS[dtype], BOUNDS[dtype])
        if reduction == "mean":
            opened = make((tc.dim("m"), 33, 2), dtype=dtype, **options)(x, target)
            np.testing.assert_allclose(opened.astype(np.float64), expected, BOUNDS[dtype])


def test_kl_div_of_logarithms() -> None:
    x, target = np.random.default_rng(1).standard_normal((2, 5, 9)).astype(np.float32)
    expected = np.exp(target) * (target - x)
    found = losses.kl_div((5, 9), log_target=True, reduction="none")(x, target)
    np.testing.assert_allclose(found, expected, 1e-5, 1e-5)


@TYPES
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)], ids=str)
def test_logsumexp(axes: tuple[int, ...], dtype: DType) -> None:
    x = (30 * np.random.default_rng(2).standard_normal((6, 19))).astype(dtype.numpy)
    x[0, 0], x[1], x[2, 3] = np.inf, -np.inf, 300
    exact = x.astype(np.float64)
    peak = exact.max(axes, keepdims=True)
    off = np.where(np.isfinite(peak), peak, 0)
    with np.errstate(divide="ignore"):
        expected = np.log(np.exp(exact - off).sum(axes, keepdims=True)) + off
    found = losses.logsumexp((6, 19), axes, keepdims=True, dtype=dtype)(x)
    np.testing.assert_allclose(found.astype(np.float64), expected, BOUNDS[dtype])
    without = losses.logsumexp((tc.dim("m"), 19), axes, dtype=dtype)(x)
    np.testing.assert_array_equal(without.reshape(found.shape), found)


@TYPES
@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
def test_losses_by_labels(name: str, dtype: DType) -> None:
    rng = np.random.default_rng(4)
    x, labels = rng.standard_normal((6, 9)).astype(dtype.numpy), rng.integers(0, 9, 6)
    labels[2] = -100
    exact, is_counted = x.astype(np.float64), labels != -100
    own = exact[np.arange(6), np.where(is_counted, labels, 0)]
    each = np.log(np.exp(exact).sum(1)) - own if name == "cross_entropy" else -own
    each = np.where(is_counted, each, 0)
    for reduction, expected in (("mean", each.sum() / 5), ("sum", each.sum()), ("none", each)):
        for rows in (6, tc.dim("rows")):
            made = getattr(losses, name)(rows, 9, reduction=reduction, dtype=dtype)
            found = made(x, labels).astype(np.float64)
            np.testing.assert_allclose(found, expected, BOUNDS[dtype], BOUNDS[dtype])


def test_a_reduction_that_there_is_not() -> None:
    with pytest.raises(CompileError, match="there is no reduction 'max' of a loss"):
        losses.mse_loss((3,), reduction="max")
