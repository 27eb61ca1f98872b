"""TopK with all kinds of numbers, extents and axes, against sorting by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import taskc as tc

from .models import model, node, tensor

Array = np.ndarray[Any, Any]


def few(x: Array, count: int, axis: int, is_largest: bool) -> tuple[Array, Array]:
    """NaN is larger than any number, and of equal ones the first is better."""
    line = np.moveaxis(x, axis, -1)
    is_nan = line != line
    numbers = np.where(is_nan, 0, line).astype(object)  # whose negatives are no other numbers
    sign = -1 if is_largest else 1
    order = np.lexsort(
        (np.broadcast_to(np.arange(line.shape[-1]), line.shape), sign * numbers, sign * is_nan)
    )
    places = order[..., :count]
    return (
        np.moveaxis(np.take_along_axis(line, places, -1), -1, axis),
        np.moveaxis(places, -1, axis),
    )


CASES: list[tuple[tuple[int, ...], int, int, Any]] = [
    ((1,), 1, -1, np.float32), ((2, 5), 0, 1, np.float32), ((3, 100), 100, 1, np.float32),
    ((2, 31, 5), 17, 1, np.float16),
    ((3, 50), 9, 1, np.uint8), ((129, 4), 64, 0, np.int64), ((0, 5), 2, 1, np.int32),
]  # fmt: skip


@pytest.mark.each_value
@pytest.mark.parametrize("is_largest", [True, False])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_best_few(case: tuple[tuple[int, ...], int, int, Any], is_largest: bool) -> None:
    shape, count, axis, dtype = case
    nodes = [node("TopK", ["x", "k"], ["v", "i"], axis=axis, largest=int(is_largest))]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    known = [numpy_helper.from_array(np.array([count]), "k")]
    found = tc.compile(
        model(nodes, [tensor("x", *shape, type=kind)], ["v", "i"], initializer=known)
    )
    random = np.random.default_rng(0)
    x = random.integers(0, 12, shape).astype(dtype)  # many are equal
    if np.issubdtype(dtype, np.floating):
        x[random.random(shape) < 0.1] = np.nan
        x[random.random(shape) < 0.1] = -np.inf
    elif x.size:
        x.flat[0] = np.iinfo(dtype).max
        x.flat[-1] = np.iinfo(dtype).min
    values, places = found(x)
    wanted = few(x, count, axis, is_largest)
    np.testing.assert_array_equal(values, wanted[0])
    np.testing.assert_array_equal(places, wanted[1])


def test_many_of_many() -> None:
    nodes = [node("TopK", ["x", "k"], ["v", "i"])]
    inputs = [tensor("x", None, None), tensor("k", 1, type=TensorProto.INT64)]
    found = tc.compile(model(nodes, inputs, ["v", "i"]))
    x = np.random.default_rng(1).standard_normal((2, 100_000)).astype(np.float32)
    for count in (1, 1000):
        values, places = found(x, np.array([count]))
        order = np.argsort(-x, axis=1, kind="stable")[:, :count]
        np.testing.assert_array_equal(places, order)
        np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))
