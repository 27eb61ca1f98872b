"""Templates that take the same options share one signature."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from taskc.kernels.losses import bce_with_logits, cross_entropy, l1_loss, mse_loss, nll_loss
from taskc.kernels.pooling import (
    global_average_pool,
    global_max_pool,
    max_pool,
    max_pool_1d,
    max_pool_3d,
    sum_pool,
    sum_pool_1d,
    sum_pool_3d,
)
from taskc.kernels.reductions import argmax, argmin
from taskc.kernels.rows import log_softmax, softmax
from taskc.kernels.scans import cumprod, cumsum
from taskc.kernels.signatures import parameters_of

PAIRS = [
    (softmax, log_softmax), (cumsum, cumprod), (argmax, argmin), (max_pool, sum_pool),
    (max_pool_1d, sum_pool_1d), (max_pool_3d, sum_pool_3d), (global_max_pool, global_average_pool),
    (mse_loss, l1_loss), (mse_loss, bce_with_logits), (nll_loss, cross_entropy),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_signatures_are_equal_and_texts_are_not(one: Any, other: Any) -> None:
    assert inspect.signature(other) == inspect.signature(one)
    assert "options" not in inspect.signature(other).parameters
    assert inspect.getdoc(other) != inspect.getdoc(one)


def test_arguments_come_by_name_with_defaults() -> None:
    def base(a: int, *, b: int = 2) -> object:
        return a, b

    @parameters_of(base)
    def other(**options: Any) -> object:
        return options

    assert other(1) == {"a": 1, "b": 2}
    assert other(b=3, a=1) == {"a": 1, "b": 3}
    with pytest.raises(TypeError, match=r"^other\(\) missing a required argument: 'a'"):
        other(b=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^other\(\) got an unexpected keyword argument 'c'"):
        other(1, c=3)  # type: ignore[call-arg]
