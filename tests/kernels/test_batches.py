"""Products of many matrices: every way to broadcast, to the bit what single products are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.kernels.matmul import batch_matmul
from tests.kernels.test_matmul import in_order, relu

BATCHES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3,), ()), ((3,), (1,)), ((3,), (3,)), ((), (3,)), ((1,), (1,)), ((2, 3), (3,)), ((2, 1), (3,)),
    ((2, 1, 2), (3, 1)), ((2, 3, 2), (2, 3, 2)), ((1, 3), (2, 1, 1)),
]  # fmt: skip


def operands(batch: tuple[Any, Any], m: int, n: int, k: int) -> tuple[Any, Any]:
    random = np.random.default_rng(m)
    left, right = (*batch[0], m, k), (*batch[1], k, n)
    return tuple(random.standard_normal(shape).astype(np.float32) for shape in (left, right))  # type: ignore[return-value]


def one_by_one(a: Any, b: Any) -> Any:
    """Each product by itself, in the order of the language."""
    whole = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    result = np.empty((*whole, a.shape[-2], b.shape[-1]), np.float32)
    a, b = (np.broadcast_to(x, (*whole, *x.shape[-2:])) for x in (a, b))
    for place in np.ndindex(*whole):
        result[place] = in_order(a[place], b[place], tc.f32)
    return result


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_batches(batch: tuple[Any, Any]) -> None:
    for m, n, k in ((1, 3, 2), (5, 50, 7), (17, 33, 9)):
        a, b = operands(batch, m, n, k)
        kernel = batch_matmul(batch, m, n, k)
        np.testing.assert_array_equal(kernel(a, b), one_by_one(a, b))


@pytest.mark.parametrize("batch", [((2, 3), ()), ((2, 1), (1, 3))], ids=str)
@pytest.mark.parametrize("transposed", [(True, False), (False, True), (True, True)])
def test_transposed(batch: tuple[Any, Any], transposed: tuple[bool, bool]) -> None:
    a, b = operands(batch, 17, 33, 9)
    given = [
        np.ascontiguousarray(x.swapaxes(-1, -2)) if turned else x
        for x, turned in zip((a, b), transposed, strict=True)
    ]
    kernel = batch_matmul(batch, 17, 33, 9, transpose_a=transposed[0], transpose_b=transposed[1])
    np.testing.assert_array_equal(kernel(*given), one_by_one(a, b))


@pytest.mark.parametrize("batch", [((0,), (0,)), ((2, 0), (1,)), ((0, 3), ())], ids=str)
def test_no_products(batch: tuple[Any, Any]) -> None:
    made = batch_matmul(batch, 3, 4, 5)(*operands(batch, 3, 4, 5))
    assert made.shape == (*np.broadcast_shapes(*batch), 3, 4)


def test_a_weight_in_common() -> None:
    """Packed ahead, with bias and activation: the rows of all products are one matrix's."""
    a, b = operands(((2, 3), ()), 7, 50, 9)
    bias = np.linspace(-1, 1, 50, dtype=np.float32)
    kernel = batch_matmul(((2, 3), ()), 7, 50, 9, packed=True, bias=True, activation=relu)
    panels = kernel.pack(b)
    expected = np.maximum(one_by_one(a, b) + bias, 0)
    np.testing.assert_array_equal(kernel(a, panels, bias), expected)


@pytest.mark.parametrize("batch", [((), ()), ((), (3,)), ((2, 1), (3,))], ids=str)
def test_bias_and_scale_of_rows(batch: tuple[Any, Any]) -> None:
    a, b = operands(batch, 9, 50, 7)
    bias, scale = np.random.default_rng(1).standard_normal((2, 9), np.float32)
    kernel = batch_matmul(batch, 9, 50, 7, bias=True, scale=True, by_rows=True)
    exact = (a.astype(np.float64) @ b) * scale[:, None] + bias[:, None]
    np.testing.assert_allclose(kernel(a, b, bias, scale), exact, rtol=1e-4, atol=1e-4)


def test_one_kernel_for_all_batches() -> None:
    batch, m = tc.dim("batch"), tc.dim("m")
    shared = batch_matmul(((batch, 2), ()), 5, 20, 6)
    paired = batch_matmul(((2, batch), (2, batch)), m, 20, 6)
    for count, height in ((1, 3), (4, 17), (0, 2)):
        a, b = operands(((count, 2), ()), 5, 20, 6)
        np.testing.assert_array_equal(shared(a, b), one_by_one(a, b))
        a, b = operands(((2, count), (2, count)), height, 20, 6)
        np.testing.assert_array_equal(paired(a, b), one_by_one(a, b))


def test_as_in_the_simulator(same_bits: Any) -> None:
    batch = ((2, 1), (3,))
    same_bits(lambda: batch_matmul(batch, 5, 20, 6), *operands(batch, 5, 20, 6))
    same_bits(lambda: batch_matmul(((4,), ()), 5, 20, 6), *operands(((4,), ()), 5, 20, 6))


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(
        tc.CompileError, match=r"the batch axes \(2, 3\) and \(4,\) can't be broadc"
    ):
        batch_matmul(((2, 3), (4,)), 4, 4, 4)
    with pytest.raises(tc.CompileError, match=r"at most 3 batch axes, and these 4"):
        batch_matmul(((1, 2, 3, 4), ()), 4, 4, 4)
    with pytest.raises(tc.CompileError, match=r"order of its own, and no batch axes"):
        batch_matmul(((2,), (2,)), 4, 4, 4, packed=True)
