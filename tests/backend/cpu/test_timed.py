"""Calls of a program timed one by one: they do what the whole program does, and each takes its own time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, i32
from taskc.backend.cpu import program as programs
from taskc.backend.cpu.pool import pool
from taskc.backend.cpu.program import timed
from taskc.runtime import driver

n = tc.dim("n")


@tc.kernel(workers=4)
def bumped(x: tc.inout[f32[4]], by: f32):
    for i in tc.spatial(4):
        assert x[i] < 4, "this is more than two calls"
        x[i] += by


@tc.kernel(workers=4)
def slow(x: f32[4], y: tc.out[f32[4]]):
    for i in tc.spatial(4):
        total = x[i]
        for _ in range(200_000):
            total = total * 0.5 + x[i]
        y[i] = total


@pytest.fixture(autouse=True)
def unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured calls go to the pool itself: tests/guards.py puts checks around each call."""
    monkeypatch.setattr(programs, "pool", pool)


def measured(program: tc.ProgramDefinition, *arguments: Any) -> tuple[np.ndarray, np.ndarray, Any]:
    runner = driver.whole_program(program, "cpu")
    assert runner is not None
    bound = driver.signature(program).bind(arguments, {})
    runner.run(bound)
    expected = bound.returned
    expected = None if expected is None else np.array(expected)
    samples, whole = timed(runner.code, bound.values, bound.dimensions, 5)
    if expected is not None:
        np.testing.assert_array_equal(bound.returned, expected)
    return samples, whole, bound


def test_the_slow_call_is_found() -> None:
    @tc.program(fuse=False)
    def program(x: f32[4], y: tc.out[f32[4]]):
        t = tc.compute((4,), lambda i: x[i] + 1)
        u = slow(t)
        tc.compute((4,), lambda i: u[i] + 1, out=y)

    samples, whole, _ = measured(program, np.ones(4, np.float32))
    first, second, third = np.median(samples, axis=0)
    assert samples.shape == (5, 3)
    assert second > 20 * max(first, third)
    assert second > 0.5 * np.median(whole) > 0


def test_what_is_modified_is_put_back() -> None:
    @tc.program
    def program(x: tc.inout[f32[4]], by: f32):
        bumped(x, by)
        bumped(x, 1)

    x = np.zeros(4, np.float32)
    samples, _, _ = measured(program, x, 1)
    assert samples.shape == (5, 2)
    np.testing.assert_array_equal(x, np.full(4, 2, np.float32))  # of the one call before


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_each_turn_of_a_loop_has_its_calls(turns: int) -> None:
    @tc.program
    def program(x: f32[n, 4], y: tc.out[f32[4]]):
        total = tc.empty(f32[4])
        tc.compute((4,), lambda i: f32(0), out=total)
        for t in tc.steps(x.shape[0]):
            row = x[t]
            after = tc.compute((4,), lambda i: total[i] + row[i])
            tc.compute((4,), lambda i: after[i] * 1.0, out=total)
        tc.compute((4,), lambda i: total[i], out=y)

    x = np.random.default_rng(0).standard_normal((turns, 4)).astype(np.float32)
    samples, _, bound = measured(program, x)
    made, _ = driver.scheduled(program)
    (_, loop, _) = made.calls
    assert samples.shape == (5, 2 + turns * len(loop.body))
    np.testing.assert_allclose(bound.returned, x.sum(0), rtol=1e-5, atol=1e-6)


def test_constants_scalars_and_several_kernels() -> None:
    table = np.arange(8, dtype=np.int32)

    @tc.program(fuse=False)
    def program(by: i32, y: tc.out[i32[8]]):
        fixed = tc.constant(table)
        t = tc.compute((8,), lambda i: fixed[i] * 2)
        tc.compute((8,), lambda i: t[i] - 1, out=y)

    samples, _, bound = measured(program, 3)
    assert samples.shape == (5, 2)
    np.testing.assert_array_equal(bound.returned, table * 2 - 1)


def test_calls_that_are_shorter_than_a_look_at_the_clock_add_up() -> None:
    @tc.program
    def program(x: f32[n, 4], y: tc.out[f32[4]]):
        total = tc.empty(f32[4])
        tc.compute((4,), lambda i: f32(0), out=total)
        for t in tc.steps(x.shape[0]):
            after = tc.compute((4,), lambda i: tc.tanh(total[3 - i] + x[t, i]))
            tc.compute((4,), lambda i: after[i] * 0.5, out=total)
        tc.compute((4,), lambda i: total[i], out=y)

    samples, whole, _ = measured(program, np.ones((3000, 4), np.float32))
    assert samples.shape == (5, 6002)
    together, alone = np.median(samples.sum(axis=1)), np.median(whole)
    assert alone / 5 < together < 5 * alone
