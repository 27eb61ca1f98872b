"""What kernels load and compute, beside what is counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

import taskc as tc
from taskc import f32, i32, repeat, spatial
from taskc.ir.nodes import Kernel
from taskc.kernels.convolution import convolution
from taskc.kernels.matmul import matmul, product
from taskc.programs.schedule import kernel_of
from taskc.programs.traffic import Traffic, traffic
from taskc.runtime.machine import machine

n = tc.dim("n")


def counted(definition: Any, **sizes: int) -> Traffic:
    kernel = definition.ir
    assert isinstance(kernel, Kernel)
    return traffic(kernel, {own: sizes[own.name] for own in kernel.dimensions})


@tc.kernel(workers=8)
def centred(x: f32[n, 48], y: tc.out[f32[n, 48]]):
    for row in tc.tiles(n, by=1):
        total = tc.tile(f32, spatial(8), 0)
        for k in range(6):
            for i in spatial(8):
                total[i] += x[row, 8 * k + i]
        mean = tc.reduce(total, 0, "+")
        for k in range(6):
            for i in spatial(8):
                y[row, 8 * k + i] = x[row, 8 * k + i] - mean[0]


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_what_is_needed_again_is_loaded_again(rows: int) -> None:
    found = counted(centred, n=rows)
    assert found.bytes == 2 * rows * 48 * 4
    assert found.operations[f32] == rows * (48 + 8 + 48)


@tc.kernel(workers=16)
def scaled(x: f32[n, 40], by: f32[40], y: tc.out[f32[n, 40]]):
    for row, column in tc.tiles((n, 40), by=(4, 16)):
        for i, j in repeat(4, 1) * spatial(1, 16):
            if row + i < n and column + j < 40:
                y[row + i, column + j] = x[row + i, column + j] * by[column + j]


@pytest.mark.parametrize("rows", [1, 3, 4, 9])
def test_of_tiles_at_edges_what_is_inside_counts(rows: int) -> None:
    """A row of factors is loaded for each tile, however few of its rows are inside."""
    tiles = -(-rows // 4)
    found = counted(scaled, n=rows)
    assert found.bytes == pytest.approx(4 * (rows * 40 + tiles * 40))
    assert found.operations == {f32: pytest.approx(rows * 40)}


def test_what_a_loop_inside_does_not_change_is_loaded_once() -> None:
    @tc.kernel(workers=4)
    def outer(a: f32[8], b: f32[12], y: tc.out[f32[8, 12]]):
        for i in range(8):
            for j in range(3):
                for k in spatial(4):
                    y[i, 4 * j + k] = a[i] * b[4 * j + k]

    assert counted(outer).bytes == 4 * (8 + 8 * 12)


def test_gathers_load_their_indices_too() -> None:
    @tc.program
    def program(x: f32[100, 16], at: i32[6], y: tc.out[f32[6, 16]]):
        tc.compute((6, 16), lambda i, j: x[at[i], j], name="gather", out=y)

    (call,) = program.ir.calls
    found = traffic(kernel_of(call.callee, machine()), {})
    assert 4 * (6 * 16) < found.bytes <= 4 * (6 * 16 + 6 * 16)


def test_loops_that_data_decide_count_as_something() -> None:
    @tc.kernel(workers=1)
    def halved(x: f32[1], y: tc.out[f32[1]]):
        for i in spatial(1):
            value = x[i]
            while value > 1:
                value = value * 0.5
            y[i] = value

    assert counted(halved).operations[f32] > 1


@pytest.mark.parametrize("size", [(64, 48, 32), (33, 47, 129), (1, 100, 64), (5, 1, 7)])
def test_products_are_counted_once(size: tuple[int, int, int]) -> None:
    m, n, k = size
    found = counted(matmul(m, n, k))
    assert sum(found.operations.values()) == pytest.approx(2 * m * n * k, rel=0.1)


def test_convolutions_are_counted_once() -> None:
    made = convolution(1, 14, 14, 32, 32, size=3, padding=1, dtype=f32)
    found = [traffic(kernel.ir, {}) for kernel in made.kernels]
    operations = sum(one.operations.get(f32, 0.0) for one in found)
    assert operations == pytest.approx(2 * 14 * 14 * 32 * 32 * 9, rel=0.01)


def test_instructions_for_products_are_counted_by_their_types() -> None:
    found = counted(
        product(32, 64, 64, dtype=tc.u8)
    )  # whole steps of every instruction: AMX sums 64
    assert found.products == {(tc.u8, tc.i8, i32): pytest.approx(32 * 64 * 64)}


def test_one_of_two_branches_counts() -> None:
    @tc.kernel(workers=4)
    def either(x: f32[4], y: tc.out[f32[4]], flag: i32):
        if flag > 0:
            for i in spatial(4):
                y[i] = x[i] * x[i] + x[i] * x[3 - i]
        else:
            for i in spatial(4):
                y[i] = x[i] + 1

    assert counted(either).operations == {f32: 4 * 3}
