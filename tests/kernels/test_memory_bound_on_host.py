"""Rows, reductions, transposes and pooling for GPUs, as emitted code that runs here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f16, f32, i8
from taskc.kernels.pooling import average_pool, max_pool
from taskc.kernels.reductions import reduction
from taskc.kernels.rows import layer_norm, log_softmax, rms_norm, softmax
from taskc.kernels.transpose import transpose
from tests.backend.cuda.host import COMPILER
from tests.kernels import test_memory_bound as simulated, test_pooling
from tests.kernels.hosted import Problem, check

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++ to compile for the host")


def rows(target: str, shape: tuple[int, int], dtype: tc.DType = f32) -> Iterator[Problem]:
    machine = tc.machine(target)
    x, scale = simulated.numbers(*shape, dtype=dtype), simulated.numbers(shape[1], dtype=dtype)
    shift = simulated.numbers(shape[1], dtype=dtype, seed=1)
    bound = 2e-5 if dtype is f32 else 2.0**-6
    exact = simulated.exact_softmax(x)
    yield Problem(softmax(*shape, dtype=dtype, machine=machine), target, [x], exact, bound)
    kernel = log_softmax(*shape, dtype=dtype, machine=machine)
    yield Problem(kernel, target, [x], np.log(exact), bound)
    wide, beside = scale.astype(np.float64), shift.astype(np.float64)
    expected = simulated.exact_norm(x, centred=True) * wide + beside
    kernel = layer_norm(*shape, dtype=dtype, machine=machine)
    yield Problem(kernel, target, [x, scale, shift], expected, bound)
    expected = simulated.exact_norm(x, centred=False) * wide
    kernel = rms_norm(*shape, dtype=dtype, machine=machine)
    yield Problem(kernel, target, [x, scale], expected, bound)


def reduced(
    target: str, operator: str, shape: tuple[int, ...], axes: tuple[int, ...], dtype: tc.DType
) -> Problem:
    """Of whole numbers, whose sums are exact; means and products are rounded."""
    low, high = (1, 2) if operator == "prod" else (-3, 4)
    x = np.random.default_rng(shape).integers(low, high, shape).astype(dtype.numpy)
    kernel = reduction(operator, shape, axes, dtype=dtype, machine=tc.machine(target))
    expected = getattr(np, operator)(x.astype(np.float64), axis=axes)
    expected = np.asarray(expected).astype(dtype.numpy).astype(np.float64)
    bound = 2.0**-10 if operator == "mean" else 0
    return Problem(kernel, target, [x], expected, bound)


def transposed(target: str, shape: Any, order: Any, dtype: tc.DType) -> Problem:
    kernel = transpose(shape, order, dtype=dtype, machine=tc.machine(target))
    x = simulated.numbers(*shape, dtype=dtype)
    return Problem(kernel, target, [x], x.transpose(order).astype(np.float64))


def pooled(target: str, operator: str, form: str, order: str) -> Problem:
    (images, channels, *extents), options = test_pooling.FORMS[form]
    make = max_pool if operator == "max" else average_pool
    kernel = make(images, *extents, channels, order=order, machine=tc.machine(target), **options)
    x = simulated.numbers(images, channels, *extents)
    expected = test_pooling.exact(operator, x.astype(np.float64), options)
    if order == "NHWC":
        x, expected = (np.ascontiguousarray(n.transpose(0, 2, 3, 1)) for n in (x, expected))
    return Problem(kernel, target, [x], expected, 2.0**-20)


def test_one_of_each() -> None:
    target = "sm_80"
    check(
        [
            *rows(target, (2, 2050)),
            reduced(target, "sum", (3, 1024), (1,), f32),
            reduced(target, "mean", (70, 256), (0,), f32),
            reduced(target, "sum", (40_003,), (0,), f32),
            transposed(target, (65, 36), (1, 0), f32),
            transposed(target, (64, 96), (1, 0), i8),
            pooled(target, "max", "3 by 3", "NCHW"),
            pooled(target, "average", "prime", "NHWC"),
        ]
    )


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("shape", simulated.ROWS)
@pytest.mark.parametrize("dtype", [f32, f16], ids=str)
def test_rows(target: str, shape: tuple[int, int], dtype: tc.DType) -> None:
    check(list(rows(target, shape, dtype)))


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_the_rest(target: str) -> None:
    check(
        [
            *(reduced(target, *case) for case in simulated.REDUCTIONS),
            *(transposed(target, *case) for case in simulated.TRANSPOSES),
        ]
    )
