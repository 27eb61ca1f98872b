"""Reductions along any axes against f64, and against the simulator."""

import re
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.backend.cpu.compile import llvm_text
from taskc.backend.cpu.processor import typical
from taskc.kernels.reductions import argmax, argmin, reduction
from taskc.kernels.reductions.plan import candidates
from taskc.kernels.reductions.problem import problem_of
from taskc.passes.pipeline import lower

SIZES = (1, 2, 3, 15, 16, 17, 127, 129, 1009)
OPERATORS = ("sum", "mean", "prod", "max", "min")


def numbers(shape: tuple[int, ...]) -> np.ndarray:
    # Near 1, so that a product of many is no zero.
    return (1 + np.random.default_rng(7).standard_normal(shape) / 64).astype(np.float32)


def check(operator: str, shape: tuple[int, ...], axes: tuple[int, ...], same_bits: Any) -> None:
    x = numbers(shape)
    y = same_bits(lambda: reduction(operator, shape, axes), x)
    exact = getattr(np, operator)(x.astype(np.float64), axis=axes)
    # Each of the operations rounds once, and no partial result is larger than the last by much.
    rounded = 0 if operator in ("max", "min") else x.size
    bound = rounded * 2.0**-23 * np.maximum(np.abs(exact), 1)
    assert y.shape == exact.shape
    assert (np.abs(y - exact) <= bound).all()


@pytest.mark.each_value(2)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_sizes(operator: str, n: int, same_bits: Any) -> None:
    check(operator, (n,), (0,), same_bits)
    check(operator, (3, n), (0,), same_bits)
    check(operator, (n, 3), (0,), same_bits)


@pytest.mark.parametrize(
    "axes", [(0,), (1,), (2,), (3,), (0, 2), (1, 3), (0, 3), (0, 1, 2, 3), (2, -1), (0, 1, 3), ()]
)
def test_axes(axes: tuple[int, ...], same_bits: Any) -> None:
    for operator in ("sum", "max"):
        check(operator, (2, 3, 5, 18), axes, same_bits)


@pytest.mark.parametrize("axes", [(0, 2, 4), (0, 2, 4, 6), (1, 3, 5), (0, 1, 3, 5)])
def test_axes_in_many_groups(axes: tuple[int, ...], same_bits: Any) -> None:
    shape = (2, 3, 4, 1, 5, 2, 3)
    for operator in ("mean", "max"):
        check(operator, shape, axes, same_bits)
    x = numbers(shape).astype(np.float16)
    y = reduction("sum", shape, axes, dtype=tc.f16, keepdims=True)(x)
    exact = x.astype(np.float64).sum(axes, keepdims=True)
    np.testing.assert_array_equal(y, exact.astype(np.float16), strict=True)  # rounded once


@pytest.mark.parametrize("dtype", [tc.f32, tc.f64])
def test_a_strip_of_columns_is_a_whole_row(dtype: tc.DType, same_bits: Any) -> None:
    """As far as threads have one each, and totals are in the nearest cache. Rows are added in their order."""
    for threads, strips in ((1, 1), (2, 2), (64, 3)):
        machine = replace(tc.machine("avx512"), threads=threads)
        problem = problem_of("sum", (9, 48 * 16), (0,), dtype, keepdims=False)
        (plan,) = {plan.own.shape[1] for plan in candidates(problem, machine.of(dtype))}
        assert ceil(48 * 16 / plan) == (strips if dtype is tc.f32 else min(threads, 6))
    x = numbers((9, 1301)).astype(dtype.numpy)
    total = np.zeros(1301, dtype.numpy)
    for row in x:
        total += row
    y = same_bits(lambda: reduction("sum", x.shape, (0,), dtype=dtype), x)
    np.testing.assert_array_equal(y, total)
    y = same_bits(lambda: argmax(x.shape, 0, dtype=dtype), x)
    np.testing.assert_array_equal(y, x.argmax(0))


def test_a_wider_result(same_bits: Any) -> None:
    x = numbers((3, 700)).astype(np.float16)
    y = same_bits(lambda: reduction("sum", (3, 700), (1,), dtype=tc.f16, result=tc.f32), x)
    assert y.dtype == np.float32
    assert (np.abs(y - x.astype(np.float64).sum(1)) <= 700 * 700 * 2.0**-24).all()


def test_in_two_steps(same_bits: Any) -> None:
    """Many numbers make few: each part by its own block."""
    assert isinstance(reduction("sum", (200_003,), (0,)), tc.ProgramDefinition)
    check("mean", (200_003,), (0,), same_bits)
    check("max", (200_003,), (0,), same_bits)
    check("sum", (70_001, 3), (0,), same_bits)


@pytest.mark.parametrize("shape", ["n", "mn", "nk", "kn"])
def test_symbolic_sizes(shape: str) -> None:
    m, n = tc.dim("m"), tc.dim("n")
    extents = tuple([{"m": m, "n": n, "k": 5}[letter] for letter in shape])
    for axis in range(len(extents)):
        kernels = [reduction(operator, extents, (axis,)) for operator in ("sum", "max", "mean")]
        for size in (1, 17, 300):
            sizes = tuple([{"m": 3, "n": size, "k": 5}[letter] for letter in shape])
            x = numbers(sizes)
            for kernel, operator in zip(kernels, (np.sum, np.max, np.mean), strict=True):
                y, exact = kernel(x), operator(x.astype(np.float64), axis=axis)
                assert y.shape == exact.shape
                assert np.abs(y - exact).max() <= 2e-5 * np.abs(exact).max()


def test_symbolic_axes_are_joined() -> None:
    extents = tuple(map(tc.dim, "abcd"))
    for axes in ((0, 1), (2, 3), (1, 2), (0, 3), (0, 1, 2, 3)):
        kernel = reduction("sum", extents, axes, keepdims=True)
        for shape in ((1, 1, 1, 1), (3, 4, 5, 7), (2, 17, 1, 33), (2, 0, 3, 5)):
            x = numbers(shape)
            exact = x.astype(np.float64).sum(axis=axes, keepdims=True)
            assert kernel(x).shape == exact.shape
            assert np.abs(kernel(x) - exact).max(initial=0) <= 1e-3


@pytest.mark.parametrize("dtype", [tc.i8, tc.u8, tc.i32, tc.i64, tc.f16, tc.bf16, tc.f64])
def test_types(dtype: tc.DType, same_bits: Any) -> None:
    x = np.random.default_rng(3).integers(0, 7, (6, 35)).astype(dtype.numpy)
    for axis, operator in ((0, "sum"), (1, "max"), (1, "min"), (0, "prod")):
        y = same_bits(lambda: reduction(operator, (6, 35), (axis,), dtype=dtype), x)
        with np.errstate(over="ignore"):
            exact = getattr(np, operator)(x.astype(np.int64), axis=axis).astype(dtype.numpy)
        if operator != "prod" or dtype.is_integer:
            assert np.array_equal(y, exact)


def check_places(x: np.ndarray, axis: int, dtype: tc.DType, same_bits: Any) -> None:
    """Of the first and of the last of several."""
    turned = np.flip(x, axis)
    for make, place in ((argmax, np.argmax), (argmin, np.argmin)):
        y = same_bits(lambda make=make: make(x.shape, axis, dtype=dtype), x)
        np.testing.assert_array_equal(y, place(x, axis=axis), strict=True)
        y = same_bits(
            lambda make=make: make(x.shape, axis, dtype=dtype, last=True, keepdims=True), x
        )
        last = x.shape[axis] - 1 - place(turned, axis=axis, keepdims=True)
        np.testing.assert_array_equal(y, last, strict=True)


@pytest.mark.parametrize("n", [1, 17, 129])
def test_places_of_extremes(n: int, same_bits: Any) -> None:
    for shape, axis in (((3, n), 0), ((3, n), -1), ((2, n, 5), 1)):
        few = np.random.default_rng(n).integers(-3, 3, shape).astype(np.float32)  # most not alone
        check_places(few, axis, tc.f32, same_bits)


@pytest.mark.parametrize("dtype", [tc.i8, tc.u8, tc.i64, tc.f16, tc.bf16, tc.f64])
def test_places_of_types(dtype: tc.DType, same_bits: Any) -> None:
    x = np.random.default_rng(3).integers(0, 7, (6, 35)).astype(dtype.numpy)
    x[3], x[4] = dtype.minimum, dtype.maximum
    check_places(x, 1, dtype, same_bits)


def test_places_of_what_has_no_order(same_bits: Any) -> None:
    x = np.full((4, 70), -np.inf, np.float32)
    x[1] = np.inf
    x[2, 50] = np.inf
    x[3, [7, 33, 69]] = np.nan
    for axis in (0, 1):
        check_places(x, axis, tc.f32, same_bits)


def test_places_of_any_size() -> None:
    m, n = tc.dim("m"), tc.dim("n")
    kernels = [argmax((m, n), axis) for axis in (0, 1)]
    for shape in ((1, 1), (3, 17), (300, 5)):
        x = numbers(shape)
        for axis, kernel in enumerate(kernels):
            assert np.array_equal(kernel(x), x.argmax(axis))


def test_no_elements() -> None:
    assert reduction("sum", (3, 0), (1,))(np.zeros((3, 0), np.float32)).tolist() == [0, 0, 0]
    with pytest.raises(tc.CompileError, match="the max of no elements has no value"):
        reduction("max", (3, 0), (1,))
    with pytest.raises(tc.CompileError, match="the max of no elements has no value"):
        argmax((3, 0), 1)
    assert argmax((0, 3), 1)(np.zeros((0, 3), np.float32)).shape == (0,)


def test_a_missing_number_is_not_lost() -> None:
    x = numbers((100,))
    x[77] = np.nan
    assert np.isnan(reduction("max", (100,), (0,))(x)).all()


def test_a_result_is_stored_alone() -> None:
    kernel = reduction("max", (300, 1023), (1,))
    assert isinstance(kernel, tc.KernelDefinition)
    text, _ = llvm_text(lower(replace(kernel.ir, target="avx512")), typical("avx512"))
    assert "scatter" not in text
    assert len(re.findall(r"store float %\w+, ptr", text)) == 1


def test_refusals() -> None:
    with pytest.raises(tc.CompileError, match="there is no reduction 'median'"):
        reduction("median", (3,), (0,))
    with pytest.raises(tc.CompileError, match="axis 2 is not one of 2"):
        reduction("sum", (3, 4), (2,))
    with pytest.raises(tc.CompileError, match="there is no mean of i32"):
        reduction("mean", (3,), (0,), dtype=tc.i32)
