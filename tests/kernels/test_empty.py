"""Extents of 0: a sum of nothing is 0, and a result without elements is one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product as pairs
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, i8, i32, repeat, spatial
from taskc.kernels.attention import attention
from taskc.kernels.convolution import convolution
from taskc.kernels.matmul import batch_matmul, matmul, product
from taskc.kernels.pooling import average_pool, global_average_pool, max_pool
from taskc.kernels.reductions import reduction
from taskc.kernels.rows import softmax
from taskc.kernels.transpose import transpose
from taskc.lang.definition import Definition

PRODUCTS = [(0, 5, 3), (5, 0, 3), (1, 5, 0), (40, 5, 0), (0, 0, 0)]


def ones(*shape: int, dtype: tc.DType = f32) -> Any:
    return np.ones(shape, dtype.numpy)


def sums_of_nothing(machine: tc.Machine) -> Iterator[tuple[Definition, list[Any], Any]]:
    """Every template, with what it is called with and what has to come out."""
    for (m, n, k), transposed in pairs(PRODUCTS, (False, True)):
        b = ones(n, k) if transposed else ones(k, n)
        kernel = matmul(m, n, k, transpose_b=transposed, bias=True, machine=machine)
        yield kernel, [ones(m, k), b, ones(n)], np.full((m, n), k + 1)
    for heads, length, keys in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
        q, k = ones(1, heads, length, 8), ones(1, heads, keys, 8)
        whole = np.full((1, heads, length, 8), 1.0 if keys else 0.0)
        yield attention(1, heads, length, keys, 8, machine=machine), [q, k, k], whole
    for images, channels, features in ((0, 4, 4), (1, 0, 4), (1, 4, 0)):
        x, w = ones(images, 5, 5, channels), ones(features, 3, 3, channels)
        kernel = convolution(images, 5, 5, channels, features, dtype=f32, machine=machine)
        yield kernel, [x, w], np.full((images, 3, 3, features), 9 * channels)
    for dtype in (i8, f32) if machine.is_processor else ():
        x, w = ones(1, 5, 5, 4, dtype=dtype), ones(0, 3, 3, 2, dtype=dtype)
        kernel = convolution(1, 5, 5, 4, 0, groups=2, dtype=dtype, machine=machine)
        yield kernel, [x, w], ones(1, 3, 3, 0)
    for images, channels in ((0, 4), (2, 0)):
        x = ones(images, 5, 5, channels)
        for make in (max_pool, average_pool):
            pool = make(images, 5, 5, channels, size=3, stride=2, machine=machine)
            yield pool, [x], ones(images, 2, 2, channels)
        mean = global_average_pool(images, 5, 5, channels, machine=machine)
        yield mean, [x], ones(images, 1, 1, channels)
    for shape in ((0, 3), (3, 0), (0, 0)):
        yield softmax(*shape, machine=machine), [ones(*shape)], ones(*shape)
        for axis in (0, 1):
            made = reduction("sum", shape, (axis,), machine=machine)
            yield made, [ones(*shape)], ones(*shape).sum(axis)
    for order in permutations(range(3)):
        yield (
            transpose((2, 0, 3), order, machine=machine),
            [ones(2, 0, 3)],
            ones(2, 0, 3).transpose(order),
        )


def test_on_processors() -> None:
    for kernel, arguments, expected in sums_of_nothing(tc.machine()):
        np.testing.assert_array_equal(kernel(*arguments), expected, strict=False)


@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
def test_on_gpus(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKC_TARGET", "sim")
    for kernel, arguments, expected in sums_of_nothing(tc.machine(name)):
        np.testing.assert_array_equal(kernel(*arguments), expected)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [f32, i8])
@pytest.mark.parametrize("sizes", PRODUCTS)
def test_products(sizes: tuple[int, int, int], dtype: tc.DType) -> None:
    m, n, k = sizes
    a, b = ones(m, k, dtype=dtype), ones(k, n, dtype=dtype)
    into = i32 if dtype is i8 else f32
    for packed, height in pairs((False, True), (m, tc.dim("m"))):
        kernel = product(height, n, k, dtype=dtype, total=into, packed=packed)
        made = kernel(a, kernel.pack(b) if packed else b)
        np.testing.assert_array_equal(made, np.full((m, n), k))
    batched = batch_matmul(((2,), (1,)), m, n, k, dtype=dtype, total=into)
    expected = np.full((2, m, n), k)
    np.testing.assert_array_equal(batched(np.stack([a, a]), b[None]), expected)


def test_dimensions_of_any_size() -> None:
    kernel = matmul(tc.dim("m"), tc.dim("n"), tc.dim("k"))
    for m, n, k in PRODUCTS:
        np.testing.assert_array_equal(kernel(ones(m, k), ones(k, n)), np.full((m, n), k))


def test_what_never_runs_is_no_part_of_a_kernel() -> None:
    own = repeat(2) * spatial(4)

    def make(n: int) -> tc.KernelDefinition:
        @tc.kernel(workers=4)
        def total(x: f32[n], y: tc.out[f32[8]]):
            some = tc.load(x[0:n])
            acc = tc.tile(f32, own, 1)
            for p in tc.pipeline(n, by=1, stages=2):
                part = tc.load(x[p : p + 1])
                for i in own:
                    acc[i] += part[0]
            for p in range(n):
                for i in own:
                    acc[i] += some[p] + x[min(p, n - 1)]
            for i in own:
                y[i] = acc[i]

        return total

    np.testing.assert_array_equal(make(0)(ones(0)), np.ones(8))
    np.testing.assert_array_equal(make(2)(ones(2)), np.full(8, 7))


def test_an_output_that_has_elements_is_not_left_unwritten() -> None:
    @tc.kernel(workers=4)
    def nothing(x: f32[0], y: tc.out[f32[8]]):
        for (row,) in tc.tiles((0,), by=(4,)):
            for i in spatial(4):
                y[row + i] = x[row + i]

    with pytest.raises(tc.CompileError, match="`y` is never stored"):
        nothing(ones(0))
