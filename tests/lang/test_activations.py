"""Activations that are expressions: near their formulas in a wider type, also where these would overflow or cancel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import DType, f16, f32, f64

FORMULAS: dict[str, Any] = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(0, x),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
}


@pytest.mark.parametrize("dtype", [f16, f32, f64], ids=str)
@pytest.mark.parametrize("name", FORMULAS)
def test_an_activation_is_near_its_formula(name: str, dtype: DType) -> None:
    activation = getattr(tc, name)

    @tc.kernel(workers=16)
    def kernel(x: dtype[600], y: tc.out[dtype[600]]):
        for (first,) in tc.tiles(600, by=16):
            for i in tc.spatial(16):
                if first + i < 600:
                    y[first + i] = activation(x[first + i])

    given = np.concatenate(
        [np.linspace(-12, 12, 401), np.geomspace(1e-4, 500, 98), -np.geomspace(1e-4, 80, 99)]
    )
    x = np.append(given, [0.0, -0.0]).astype(dtype.numpy)
    found, wanted = kernel(x).astype(np.float64), FORMULAS[name](x.astype(np.longdouble))
    epsilon = 2.0**-dtype.mantissa_bits
    least = {f16: 1e-3, f64: 1e-300}.get(dtype, 1e-30)
    assert np.all(np.abs(found - wanted) <= 8 * epsilon * np.abs(wanted) + least * epsilon)


def test_all_work_on_numbers() -> None:
    assert tc.relu(-2.0) == 0
    assert tc.relu(3.0) == 3
    assert tc.softplus(1000.0) == 1000
    assert tc.hardswish(4.0) == 4
    assert abs(tc.mish(-30.0) + 30 * np.exp(-30)) < 1e-20
    assert abs(tc.silu(1.0) - 1 / (1 + np.exp(-1))) < 1e-15


def test_a_product_takes_one_as_its_activation() -> None:
    from taskc.kernels.matmul import matmul

    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((5, 7), np.float32), rng.standard_normal((7, 9), np.float32)
    found = matmul(5, 9, 7, activation=tc.mish)(a, b)
    np.testing.assert_allclose(found, FORMULAS["mish"](a @ b), rtol=1e-5, atol=1e-6)
