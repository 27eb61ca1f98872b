"""Softmax and normalizations against f64: ragged rows, types, large and infinite numbers."""

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.kernels.rows import group_norm, instance_norm, layer_norm, log_softmax, rms_norm, softmax
from taskc.kernels.rows.plan import Strips, candidates
from taskc.kernels.rows.problem import Problem

SIZES = (1, 2, 3, 15, 16, 17, 127, 129, 1009)
ULP = 2.0**-23


def numbers(m: int, n: int, scale: float = 1.0, inner: tuple[int, ...] = ()) -> np.ndarray:
    return (scale * np.random.default_rng(n).standard_normal((m, n, *inner))).astype(np.float32)


def exact_softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    result: np.ndarray = powers / powers.sum(axis=1, keepdims=True)
    return result


def exact_layer_norm(x: np.ndarray, epsilon: float = 1e-5) -> np.ndarray:
    off = x - x.astype(np.float64).mean(axis=1, keepdims=True)
    result: np.ndarray = off / np.sqrt((off**2).mean(axis=1, keepdims=True) + epsilon)
    return result


@pytest.mark.each_value
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_softmax(n: int, scale: float) -> None:
    x = numbers(5, n, scale)
    exact = exact_softmax(x)
    y = softmax(5, n)(x)
    # Of exp(d), an error of half an ulp in d is one of |d| / 2 ulps in the power.
    bound = (8 + np.abs(x - x.max(axis=1, keepdims=True))) * ULP * exact + 1e-37
    assert (np.abs(y - exact) <= bound).all()
    logarithms = log_softmax(5, n)(x)
    assert (np.abs(logarithms - np.log(exact)) <= 8 * ULP * (1 + np.abs(np.log(exact)))).all()


def test_softmax_of_rows_too_long_to_keep() -> None:
    n = tc.machine().fast_memory // 16 + 3  # a quarter of a core's cache, and a few
    x = numbers(2, n)
    for kernel in (softmax(2, n), softmax(tc.dim("m"), tc.dim("n"))):
        exact = exact_softmax(x)
        assert (np.abs(kernel(x) - exact) <= 16 * ULP * exact).all()


@pytest.mark.each_value
@pytest.mark.parametrize("m", [1, 2, 15, 16, 17, 129, 300])
@pytest.mark.parametrize("n", [17, 1024, 2049])
def test_softmax_of_several_rows_a_block(m: int, n: int) -> None:
    x = numbers(m, n)
    x[m // 2] += 100  # were it another row's, its peak would tell
    exact = exact_softmax(x)
    bound = (8 + np.abs(x - x.max(axis=1, keepdims=True))) * ULP * exact + 1e-37
    assert (np.abs(softmax(m, n)(x) - exact) <= bound).all()


def test_rows_of_up_to_a_quarter_of_the_cache_go_in_pairs() -> None:
    """The powers of one are computed while those of the row before are divided."""
    machine = tc.machine("avx512", threads=2)
    most = machine.fast_memory // 4 // 8
    for n, rows in ((4099, 16), (most, 16), (most + 1, 1)):
        problem = Problem(function="softmax", m=300, n=n, dtype=tc.f64)
        (plan,) = candidates(problem, machine.of(tc.f64))
        assert isinstance(plan, Strips)
        assert (plan.rows, plan.kept) == (rows, min(n, most))
    x = numbers(17, 9001)
    assert (np.abs(softmax(17, 9001)(x) - exact_softmax(x)) <= 16 * ULP * exact_softmax(x)).all()


@pytest.mark.parametrize("n", [20, 200_000])
def test_weights_that_would_be_subnormal_are_zeros(n: int) -> None:
    """They would slow down their own computation, and products with them."""
    x = np.zeros((3, n), np.float32)
    x[:, :4] = -80, -88, -100, -1e30
    x[2, 5] = np.nan
    y = softmax(3, n)(x)
    assert np.isnan(y[2]).all()
    x, y = x[:2], y[:2]
    assert (y[:, 0] > 0).all()
    assert not y[:, 1:4].any()
    logarithms = log_softmax(2, n)(x)
    assert (np.abs(logarithms[:, 2] + 100 + np.log(n - 4)) < 1e-4).all()


def test_softmax_of_infinite_numbers() -> None:
    x = np.zeros((3, 20), np.float32)
    x[0, 3] = -np.inf
    x[1, :] = 3e38
    x[2, 5] = np.nan
    y = softmax(3, 20)(x)
    assert y[0, 3] == 0
    assert np.allclose(y[0].sum(), 1)
    assert np.allclose(y[1], 1 / 20)
    assert np.isnan(y[2]).all()


@pytest.mark.parametrize("n", SIZES)
def test_layer_norm(n: int) -> None:
    x, scale, shift = numbers(4, n), numbers(1, n)[0], numbers(2, n)[1]
    exact = exact_layer_norm(x)
    bound = 16 * ULP * (1 + np.abs(exact))
    pairs = [
        (layer_norm(4, n, scaled=False, shifted=False)(x), exact),
        (layer_norm(4, n, shifted=False)(x, scale), exact * scale),
        (layer_norm(4, n, scaled=False)(x, shift), exact + shift),
        (layer_norm(4, n)(x, scale, shift), exact * scale + shift),
    ]
    for y, expected in pairs:
        assert (np.abs(y - expected) <= bound * 4).all()


def test_a_mean_far_from_zero_keeps_the_variance() -> None:
    x = numbers(3, 1000) + np.float32(1000)
    y = layer_norm(3, 1000, scaled=False, shifted=False)(x)
    # The mean itself is rounded to f32: an ulp of 1000 in numbers of size 1.
    assert np.abs(y - exact_layer_norm(x)).max() <= 1000 * ULP


@pytest.mark.parametrize("n", SIZES)
def test_rms_norm(n: int) -> None:
    x, scale = numbers(4, n), numbers(1, n)[0]
    exact = x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-5)
    bound = 8 * ULP * (1 + np.abs(exact))
    assert (np.abs(rms_norm(4, n, scaled=False)(x) - exact) <= bound).all()
    assert (np.abs(rms_norm(4, n)(x, scale) - exact * scale) <= 4 * bound).all()


@pytest.mark.parametrize("n", [1, 64, 1009])
@pytest.mark.parametrize("inner", [2, 129])
def test_rows_along_the_middle_axis(n: int, inner: int) -> None:
    x, scale, shift = numbers(3, n, inner=(inner,)), numbers(1, n)[0], numbers(2, n)[1]
    exact = exact_softmax(x)
    # Of sums of n numbers, one after another: each addition rounds.
    rounded = 8 + n / 2
    bound = (rounded + np.abs(x - x.max(axis=1, keepdims=True))) * ULP * exact + 1e-37
    assert (np.abs(softmax(3, n, inner=inner)(x) - exact) <= bound).all()
    difference = log_softmax(3, n, inner=inner)(x) - np.log(exact)
    assert (np.abs(difference) <= rounded * ULP * (1 + np.abs(np.log(exact)))).all()
    normal = exact_layer_norm(x) * scale[:, None] + shift[:, None]
    bound = 8 * rounded * ULP * (1 + np.abs(exact_layer_norm(x))) * (1 + np.abs(scale[:, None]))
    assert (np.abs(layer_norm(3, n, inner=inner)(x, scale, shift) - normal) <= bound).all()
    root = np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-5)
    y = rms_norm(3, n, inner=inner, scaled=False)(x)
    assert (np.abs(y - x / root) <= rounded * ULP * (1 + np.abs(x / root))).all()


def test_rows_along_the_middle_axis_of_any_size() -> None:
    kernel = softmax(tc.dim("m"), tc.dim("n"), inner=tc.dim("inner"))
    for m, n, inner in ((3, 5, 1), (1, 300, 17), (2, 1, 40), (0, 2, 3), (2, 0, 3), (2, 3, 0)):
        x = numbers(m, n, inner=(inner,))
        y = kernel(x)
        assert y.shape == x.shape
        assert not x.size or np.abs(y - exact_softmax(x)).max() <= 1e-6


@pytest.mark.parametrize("shape", [(3, 17), (2, 129)])
def test_as_in_the_simulator(shape: tuple[int, int], same_bits: Any) -> None:
    """There is no mathematical function in these but the square root, which is exact."""
    x, scale = numbers(*shape), numbers(1, shape[1])[0]
    same_bits(lambda: rms_norm(*shape), x, scale)
    same_bits(lambda: layer_norm(*shape), x, scale, scale)
    x = numbers(*shape, inner=(5,))
    same_bits(lambda: rms_norm(*shape, inner=5), x, scale)
    same_bits(lambda: layer_norm(*shape, inner=5), x, scale, scale)


def test_symbolic_sizes_share_a_kernel() -> None:
    m, n = tc.dim("m"), tc.dim("n")
    kernels = softmax(m, n), layer_norm(m, n, scaled=False, shifted=False)
    for rows, columns in ((1, 1), (3, 17), (7, 1009), (0, 5), (5, 0)):
        x = numbers(rows, columns)
        for kernel, exact in zip(kernels, (exact_softmax, exact_layer_norm), strict=True):
            y = kernel(x)
            assert y.shape == x.shape
            if x.size:
                assert np.abs(y - exact(x)).max() <= 1e-5


@pytest.mark.parametrize(("dtype", "bits"), [(tc.f16, 11), (tc.bf16, 8), (tc.f64, 53)])
def test_types(dtype: tc.DType, bits: int) -> None:
    x = numbers(4, 70).astype(dtype.numpy)
    bound = 2.0 ** (2 - bits) if dtype is tc.f64 else 2.0**-bits
    for make, exact in ((softmax, exact_softmax), (rms_norm, None)):
        y = make(4, 70, dtype=dtype, **({} if exact else {"scaled": False}))(x).astype(np.float64)
        wide = x.astype(np.float64)
        expected = (
            exact_softmax(wide)
            if exact
            else wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5)
        )
        # Half an ulp for the last rounding, and what the arithmetic before it has lost.
        assert (np.abs(y - expected) <= (bound + 16 * ULP) * np.abs(expected) + 1e-7).all()


@pytest.mark.parametrize("dtype", [tc.bf16, tc.f32], ids=str)
@pytest.mark.parametrize(
    ("shape", "groups"), [((2, 6, 5, 7), 3), ((1, 8, 62, 31), 4), ((3, 4), 2), ((2, 5, 3), 5)]
)
def test_group_norm(shape: tuple[int, ...], groups: int, dtype: tc.DType) -> None:
    rng = np.random.default_rng(7)
    x, scale, shift = (
        rng.standard_normal(own).astype(dtype.numpy) for own in (shape, shape[1], shape[1])
    )
    rows = x.astype(np.float64).reshape(shape[0] * groups, -1)
    off = rows - rows.mean(1, keepdims=True)
    exact = (off / np.sqrt((off**2).mean(1, keepdims=True) + 1e-5)).reshape(shape)
    at = slice(None), *[None] * (len(shape) - 2)
    exact = exact * scale.astype(np.float64)[at] + shift.astype(np.float64)[at]
    bound = {tc.f16: 4e-3, tc.bf16: 3e-2, tc.f32: 4e-6, tc.f64: 1e-13}[dtype]
    for images in (shape[0], tc.dim("images")):
        y = group_norm((images, *shape[1:]), groups, dtype=dtype)(x, scale, shift)
        np.testing.assert_allclose(y.astype(np.float64), exact, bound, bound)
    if groups == shape[1]:
        alike = instance_norm(shape, dtype=dtype)(x, scale, shift)
        np.testing.assert_array_equal(alike.view(np.uint8), y.view(np.uint8))


def test_group_norm_is_that_of_gpus_too() -> None:
    from taskc.runtime.checking import check

    kernel = group_norm((2, 6, 5, 7), 3, machine=tc.machine("sm_80"))
    found = check(kernel, stages=("parsed", "lean"), target="sm_80")
    assert not [finding for finding in found if finding.severity == "error"]
    with pytest.raises(tc.CompileError, match="6 channels are not 4 groups of as many"):
        group_norm((2, 6, 5), 4)
