"""Loops whose end lies so near to their type's that one step more would wrap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, i64, spatial
from taskc.backend.cuda.emit import emit
from taskc.passes.pipeline import lower
from taskc.runtime import driver
from tests.backend.cuda import host

n = tc.dim("n")
LARGEST, SMALLEST = 2**63 - 1, -(2**63)


@tc.kernel(workers=4)
def up(first: i64, stop: i64, y: tc.out[i64[2, 4]]):
    for i in spatial(4):
        count, last = i64(0), i64(0)
        for q in range(first, stop, 4):
            count += 1
            last = q
        y[0, i] = count
        y[1, i] = last


@tc.kernel(workers=4)
def down(first: i64, stop: i64, y: tc.out[i64[2, 4]]):
    for i in spatial(4):
        count, last = i64(0), i64(0)
        for q in range(first, stop, -3):
            count += 1
            last = q
        y[0, i] = count
        y[1, i] = last


@tc.kernel(workers=4)
def each_up(first: i64[4], stop: i64[4], y: tc.out[i64[2, 4]]):
    """Each worker has its own ends."""
    for i in spatial(4):
        count, last = i64(0), i64(0)
        for q in range(first[i], stop[i], 4):
            count += 1
            last = q
        y[0, i] = count
        y[1, i] = last


@tc.kernel(workers=4)
def each_down(first: i64[4], stop: i64[4], y: tc.out[i64[2, 4]]):
    for i in spatial(4):
        count, last = i64(0), i64(0)
        for q in range(first[i], stop[i], -3):
            count += 1
            last = q
        y[0, i] = count
        y[1, i] = last


@tc.kernel(workers=4)
def guarded(x: f32[n], p: i64, stop: i64, y: tc.out[f32[4]]):
    """q >= p >= 0 is proved, and doesn't hold of one that has wrapped."""
    assert p >= 0
    for i in spatial(4):
        a = f32(0)
        for q in range(p, stop, 4):
            if q < n:
                a += x[q]
        y[i] = a


def expected(first: int, stop: int, step: int) -> tuple[int, int]:
    numbers = range(first, stop, step)
    return (len(numbers), numbers[-1]) if numbers else (0, 0)


UP = [
    (LARGEST - 2, LARGEST),
    (LARGEST - 9, LARGEST - 1),
    (LARGEST, LARGEST),
    (LARGEST, SMALLEST),
    (SMALLEST, SMALLEST + 2),
    (0, 9),
    (8, 8),
]
DOWN = [
    (SMALLEST + 2, SMALLEST),
    (SMALLEST + 9, SMALLEST),
    (SMALLEST, SMALLEST),
    (SMALLEST, LARGEST),
    (LARGEST, LARGEST - 2),
    (9, 0),
]
CASES = [(up, 4, *ends) for ends in UP] + [(down, -3, *ends) for ends in DOWN]


@pytest.mark.each_value
@pytest.mark.parametrize("target", ["cpu", "sim"])
@pytest.mark.parametrize(("kernel", "step", "first", "stop"), CASES)
def test_a_loop_ends_where_pythons_does(
    kernel: Any, step: int, first: int, stop: int, target: str
) -> None:
    y = driver.call(kernel, (first, stop), {}, target=target)
    assert tuple(y[:, 0].tolist()) == expected(first, stop, step)


@pytest.mark.parametrize("target", ["cpu", "sim"])
@pytest.mark.parametrize(("kernel", "step", "ends"), [(each_up, 4, UP), (each_down, -3, DOWN)])
def test_each_worker_ends_where_pythons_loop_does(
    kernel: Any, step: int, ends: list[tuple[int, int]], target: str
) -> None:
    for start in range(0, len(ends), 4):
        four = (ends[start : start + 4] + [(0, 0)] * 4)[:4]
        first, stop = (np.array(part, np.int64) for part in zip(*four, strict=True))
        y = driver.call(kernel, (first, stop), {}, target=target)
        assert [tuple(lane) for lane in y.T.tolist()] == [expected(*two, step) for two in four]


@pytest.mark.parametrize("target", ["cpu", "sim"])
def test_what_was_proved_of_a_loops_variable_holds(target: str) -> None:
    x = np.ones(10, np.float32)
    for first, stop, total in ((LARGEST - 2, LARGEST, 0), (1, LARGEST - 2**62, None), (2, 9, 2)):
        if total is not None:
            y = driver.call(guarded, (x, first, stop), {}, target=target)
            assert y.tolist() == [total] * 4


@pytest.mark.skipif(host.COMPILER is None, reason="needs g++")
def test_loops_of_cuda_end_there_too() -> None:
    for kernel, step, cases in ((up, 4, UP), (down, -3, DOWN)):
        (runnable,) = host.build([lower(replace(kernel.ir, target="sm_90a"))])
        for first, stop in cases:
            y = np.zeros((2, 4), np.int64)
            runnable.run([np.int64(first), np.int64(stop), y])
            assert tuple(y[:, 0].tolist()) == expected(first, stop, step)


def test_cuda_counts_as_before_where_nothing_wraps() -> None:
    @tc.kernel(workers=4)
    def sizes(x: f32[n], y: tc.out[f32[4]]):
        for i in spatial(4):
            a = f32(0)
            for q in range(0, n, 4):
                a += x[q]
            y[i] = a

    text = emit(lower(replace(sizes.ir, target="sm_90a"))).text()
    assert "; q < n; q += 4)" in text


@pytest.mark.parametrize("target", ["avx512", "sm_80"])
def test_a_loop_of_more_iterations_than_len_counts(target: str) -> None:
    @tc.kernel(workers=4)
    def kernel(y: tc.inout[f32[4]]):
        for _ in range(SMALLEST, LARGEST):
            for i in spatial(4):
                y[i] += 1.0

    assert lower(replace(kernel.ir, target=target)).stage == "lean"
