"""A computation whose result replaces what it reads: it writes there itself where each element reads its own place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, op
from taskc.ir.nodes import Kernel
from taskc.programs.ir import calls_of
from taskc.programs.pipeline import lower_program
from taskc.programs.write_in_place import in_place

n = tc.dim("n")


def kernels(program: tc.ProgramDefinition) -> tuple[int, int]:
    """The numbers of calls and of temporaries."""
    made = lower_program(program.ir, tc.machine())
    return len([*calls_of(made.calls)]), len(made.temporaries)


@tc.program
def decayed(p: tc.inout[f32[n]], m: tc.inout[f32[n]], g: f32[n]) -> None:
    tc.compute(n, lambda i: 0.9 * m[i] + g[i], out=m)
    size = tc.compute(n, lambda i: tc.sqrt(m[i]) + p[i] * p[i])
    tc.compute(n, lambda i: p[i] - size[i] * g[n - 1 - i], out=p)


@pytest.mark.parametrize("count", [0, 1, 7, 16, 1000, 40_000])
def test_several_computations_in_place(count: int) -> None:
    assert kernels(decayed) == (2, 0)
    random = np.random.default_rng(count)
    p, m, g = random.random((3, count), np.float32)
    moment = np.float32(0.9) * m + g
    expected = p - (np.sqrt(moment) + p * p) * g[::-1]
    decayed(p, m, g)
    np.testing.assert_allclose(m, moment, rtol=1e-6)
    np.testing.assert_allclose(p, expected, rtol=1e-5, atol=1e-6)


def test_elements_of_other_places_are_read_before_they_are_written() -> None:
    @tc.program
    def f(p: tc.inout[f32[64, 32]], x: f32[64, 32]) -> None:
        tc.compute((64, 32), lambda i, j: p[63 - i, j] + x[i, j], out=p)
        tc.compute((64, 32), lambda i, j: p[i, j] * p[i, 0], out=p)

    assert kernels(f) == (4, 2)
    p, x = np.random.default_rng(0).random((2, 64, 32), np.float32)
    sums = p[::-1] + x
    f(p, x)
    np.testing.assert_allclose(p, sums * sums[:, :1], rtol=1e-6)


def test_an_input_that_shares_memory_with_the_result() -> None:
    """The row is a part of what is written: other rows read it."""

    @tc.program
    def f(p: tc.inout[f32[8, 32]]) -> None:
        row = p[3]
        tc.compute((8, 32), lambda i, j: p[i, j] + row[j], out=p)

    (p,) = np.random.default_rng(0).random((1, 8, 32), np.float32)
    expected = p + p[3]
    f(p)
    np.testing.assert_array_equal(p, expected)


def test_the_old_elements_are_read_later() -> None:
    @tc.program
    def f(p: tc.inout[f32[64]], y: tc.out[f32[64]]) -> None:
        old = tc.compute(64, lambda i: p[i] + 1)
        tc.compute(64, lambda i: p[i] * 2, out=p)
        tc.compute(64, lambda i: old[63 - i] + p[i], out=y)

    p = np.arange(64, dtype=np.float32)
    y = f(p.copy())
    np.testing.assert_array_equal(y, p[::-1] + 1 + 2 * p)


def test_in_loops_and_parts() -> None:
    @tc.program
    def f(p: tc.inout[f32[5, 64]], x: f32[64]) -> None:
        for t in tc.steps(5):
            row = p[t]
            tc.compute(64, lambda i: row[i] * x[i] + t, out=row)

    assert kernels(f)[1] == 0
    p, x = np.random.default_rng(0).random((5, 64), np.float32), np.ones(64, np.float32)
    expected = p + np.arange(5, dtype=np.float32)[:, None]
    f(p, x)
    np.testing.assert_array_equal(p, expected)


def test_a_product_adds_to_its_result() -> None:
    """The computation is fused into the product's stores first."""

    @tc.program
    def f(a: f32[48, 20], b: f32[20, 64], c: tc.inout[f32[48, 64]]) -> None:
        sums = op.MatMul(a, b)
        tc.compute((48, 64), lambda i, j: c[i, j] * 0.5 + sums[i, j], out=c)

    assert kernels(f) == (1, 0)
    random = np.random.default_rng(0)
    a, b, c = (random.random(s, np.float32) for s in ((48, 20), (20, 64), (48, 64)))
    expected = c * 0.5 + a.astype(float) @ b
    f(a, b, c)
    np.testing.assert_allclose(c, expected, rtol=1e-5)


def test_a_kernel_that_reads_another_element_is_refused() -> None:
    @tc.kernel(workers=1)
    def turned(p: f32[64], y: tc.out[f32[64]]) -> None:
        for first in tc.tiles(64, by=16):
            for i in tc.repeat(16):  # one worker: there is no race
                y[first + i] = p[first + i] + p[first + 15 - i]

    @tc.kernel(workers=16)
    def moved(p: f32[64], y: tc.out[f32[64]]) -> None:
        for first in tc.tiles(64, by=16):
            for i in tc.spatial(16):
                y[first + i] = p[first + i] + 1

    def of(kernel: Any) -> Kernel | None:
        return in_place(kernel.ir, 0, 1, tc.machine())

    assert of(turned) is None
    made = of(moved)
    assert made is not None
    assert str(made.parameters[0].role) == "inout"  # type: ignore[union-attr]
