"""Expressions of several inputs: broadcasting, types, ragged sizes."""

import math
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.kernels.elementwise import elementwise

SIZES = (1, 2, 3, 15, 16, 17, 127, 129, 1009)


def twice(a):
    return a + a


def weigh(a, b):
    return a * b + 1


def blend(a, b, c):
    return a * c + b * (1 - c)


def total(a, b, c, d):
    return (a + b) + (c + d)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("n", SIZES)
def test_sizes(n: int, same_bits: Any) -> None:
    x = numbers(n)
    assert np.array_equal(same_bits(lambda: elementwise(twice, ((n,),)), x), x + x)


BROADCASTS = [
    ((3, 4, 5), (4, 5)), ((3, 1, 5), (1, 4, 1)), ((7, 1), (1, 33)), ((2, 3, 4, 5), (3, 1, 1)),
    ((5,), ()), ((), ()), ((2, 1, 3, 1), (1, 17, 1, 4)), ((40, 17), (40, 1)), ((0, 3), (1, 3)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", BROADCASTS)
def test_broadcasting(shapes: tuple[tuple[int, ...], ...], same_bits: Any) -> None:
    a, b = (numbers(*shape) for shape in shapes)
    y = same_bits(lambda: elementwise(weigh, shapes), a, b)
    # The product is exact in f64; the sum is rounded there first, which could make a difference of
    # an ulp only for a tie, and none of these is one.
    expected = (a.astype(np.float64) * b + 1).astype(np.float32)
    assert y.shape == expected.shape
    assert np.array_equal(y, expected)


@pytest.mark.parametrize(("expression", "count"), [(blend, 3), (total, 4)])
def test_more_inputs(expression: Any, count: int, same_bits: Any) -> None:
    shapes = ((6, 19), (19,), (6, 1), (1,))[:count]
    inputs = [numbers(*shape) for shape in shapes]
    y = same_bits(lambda: elementwise(expression, shapes), *inputs)
    exact = expression(*[x.astype(np.float64) for x in inputs])
    assert np.abs(y - exact).max() <= 4 * 2**-23 * np.abs(exact).max()


def test_symbolic_sizes_share_a_kernel() -> None:
    m, n = tc.dim("m"), tc.dim("n")
    kernel = elementwise(weigh, ((m, n), (m, 1)))
    for rows, columns in ((1, 1), (3, 17), (20, 300), (0, 5)):
        a, b = numbers(rows, columns), numbers(rows, 1)
        expected = (a.astype(np.float64) * b + 1).astype(np.float32)
        assert np.array_equal(kernel(a, b), expected)


def test_types(same_bits: Any) -> None:
    def scale(a, b):
        return a.to(tc.f32) * b

    a = np.arange(-50, 50, dtype=np.int8)
    b = numbers(100)
    y = same_bits(
        lambda: elementwise(scale, ((100,), (100,)), (tc.i8, tc.f32), result=tc.f16), a, b
    )
    assert np.array_equal(y, (a.astype(np.float32) * b).astype(np.float16))


def test_a_function_of_the_language_is_an_expression() -> None:
    x = numbers(1000) * 3
    exact = [v / 2 * (1 + math.erf(v / math.sqrt(2))) for v in x.ravel().tolist()]
    y = elementwise(tc.gelu, ((1000,),))(x)
    assert np.abs(y.ravel() - exact).max() <= 2e-6


def test_refusals() -> None:
    with pytest.raises(tc.CompileError, match=r"\(2, 3\), \(4,\) can't be broadcast"):
        elementwise(weigh, ((2, 3), (4,)))
    with pytest.raises(tc.CompileError, match=r"alternate too often\n  hint: .* 5 axes are left"):
        elementwise(weigh, ((2, 1, 2, 1, 2), (1, 2, 1, 2, 1)))
    with pytest.raises(tc.CompileError, match="an expression of 5 inputs: there are 1 to 4"):
        elementwise(weigh, ((2,),) * 5)
    with pytest.raises(tc.CompileError, match="2 inputs, and 3 types"):
        elementwise(weigh, ((2,), (2,)), (tc.f32,) * 3)
