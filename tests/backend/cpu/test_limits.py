"""Programs with fewer threads than there are, and with a limit of memory."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import CompileError, f32
from taskc.backend.cpu.pool import pool, thread_count
from taskc.backend.limits import Limits, limited
from tests import guards
from tests.backend.cpu.test_program import loaded

n = tc.dim("n")
COUNT = 1 << 16


@pytest.fixture(autouse=True)
def _three_threads() -> Iterator[None]:
    pool().limit(3)
    with guards.absent():  # it has a step of its own
        yield
    pool().limit(thread_count())


def twice() -> tc.ProgramDefinition:
    """Two kernels, and between them a temporary that is as large as what is given."""

    @tc.program(fuse=False)
    def program(x: f32[n], y: tc.out[f32[n]]):
        t = tc.compute((n,), lambda i: x[n - 1 - i] * 2)
        tc.compute((n,), lambda i: t[n - 1 - i] + 1, out=y)

    return program


_Step = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_bool)


@pytest.fixture
def helpers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many each step of a program may have, which those that are made then tell."""
    found: list[int] = []
    real = _Step(pool().step)

    def step(calls: Any, blocks: Any, scratch: Any, share: Any) -> None:
        found.append(pool()._memory.helpers)
        real(calls, blocks, scratch, share)

    callback = _Step(step)
    monkeypatch.setattr(pool(), "step", ctypes.cast(callback, ctypes.c_void_p).value)
    monkeypatch.setattr(pool(), "_callback", callback, raising=False)  # it stays as long
    return found


@pytest.mark.parametrize(("most", "expected"), [(None, 2), (1, 0), (2, 1), (3, 2), (9, 2)])
def test_calls_have_no_more_threads(most: int | None, expected: int, helpers: list[int]) -> None:
    x = np.arange(COUNT, dtype=np.float32)
    with limited(Limits(threads=most)):
        program = twice()
        np.testing.assert_array_equal(program(x), 2 * x + 1)
    helpers.clear()
    np.testing.assert_array_equal(program(x), 2 * x + 1)  # which is its own, wherever it is called
    assert helpers == [expected] * 2
    assert pool()._memory.helpers == 2
    assert pool().threads == 3


def test_limits_are_of_the_program_and_not_of_others(helpers: list[int]) -> None:
    x = np.arange(COUNT, dtype=np.float32)
    with limited(Limits(threads=1)):
        few = twice()
        few(x)
    many = twice()
    many(x)
    helpers.clear()
    for program in (few, many, few):
        program(x)
    assert helpers == [0, 0, 2, 2, 0, 0]


def test_memory_is_limited_to_what_a_call_takes() -> None:
    x = np.arange(COUNT, dtype=np.float32)
    with limited(Limits(memory=4 * COUNT)):
        program = twice()
        np.testing.assert_array_equal(program(x), 2 * x + 1)
        with pytest.raises(CompileError) as error:
            program(np.ones(COUNT + 64, np.float32))
        np.testing.assert_array_equal(program(x), 2 * x + 1)
    assert error.value.message == (
        "'program' takes 0.0 MiB for constants and 0.3 MiB for temporaries, and is limited to 0.2 MiB"
    )


def test_what_is_limited_has_no_more_than_its_largest_call_needs() -> None:
    with limited(Limits(memory=4 * COUNT)):
        program = twice()
        for size in range(COUNT - 64, COUNT + 1, 16):
            program(np.ones(size, np.float32))
        assert sum(arena.node.bytes for arena in loaded(program).arenas) <= 4 * COUNT


def test_constants_count() -> None:
    weights = np.ones(COUNT, np.float32)

    def made() -> tc.ProgramDefinition:
        @tc.program(fuse=False)
        def program(x: f32[COUNT], y: tc.out[f32[COUNT]]):
            w = tc.constant(weights)
            t = tc.compute((COUNT,), lambda i: x[COUNT - 1 - i] * w[i])
            tc.compute((COUNT,), lambda i: t[COUNT - 1 - i] + 1, out=y)

        return program

    with limited(Limits(memory=8 * COUNT)):
        assert made()(weights)[0] == 2
    with (
        limited(Limits(memory=8 * COUNT - 1)),
        pytest.raises(CompileError, match=r"takes 0\.2 MiB for constants and 0\.2 MiB"),
    ):
        made()(weights)


def test_calls_at_one_time_share_the_limit() -> None:
    """One call has all of the memory; another that would need as much at the same time is refused."""
    entered, leave = threading.Event(), threading.Event()
    real = _Step(pool().step)
    is_first = True

    def step(calls: Any, blocks: Any, scratch: Any, share: Any) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            entered.set()
            leave.wait(60)
        real(calls, blocks, scratch, share)

    x = np.arange(COUNT, dtype=np.float32)
    callback = _Step(step)
    own, pool().step = pool().step, ctypes.cast(callback, ctypes.c_void_p).value
    try:
        with limited(Limits(memory=6 * COUNT)):
            program = twice()
            is_first = False
            program(x)
            is_first = True
            made: list[Any] = []
            thread = threading.Thread(target=lambda: made.append(program(x)))
            thread.start()
            assert entered.wait(60)
            try:
                with pytest.raises(CompileError, match=r"beside 0\.2 MiB of calls that run"):
                    program(x)
            finally:
                leave.set()
                thread.join()
    finally:
        pool().step = own
    np.testing.assert_array_equal(made[0], 2 * x + 1)


@pytest.mark.parametrize("wrong", [{"threads": 0}, {"threads": 1.5}, {"memory": -1}])
def test_limits_are_numbers(wrong: Any) -> None:
    (name,) = wrong
    with pytest.raises(CompileError, match=f"{name} is a number of at least"):
        Limits(**wrong)
