"""Signals that come while a kernel runs: the main thread handles them, and what a handler raises ends the call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import taskc as tc
from taskc import f32, i64, repeat, spatial
from taskc.backend.cpu.pool import pool

ROOT = Path(__file__).parents[3]
BLOCKS = 1024  # which are worth more than one thread
SIZE = 16 * BLOCKS


@tc.kernel(workers=16)
def counting(x: i64[SIZE], y: tc.out[i64[SIZE]]):
    """Counts up to each element; one below 0 is never reached."""
    for (k,) in tc.tiles((SIZE,), by=(16,)):
        for i in spatial(16):
            n = i64(0)
            while n != x[k + i]:
                n += 1
            y[k + i] = n


@tc.kernel(workers=16)
def counting_together(end: i64, y: tc.out[i64[16]]):
    n = i64(0)
    while n != end:
        n += 1
    for i in spatial(16):
        y[i] = n


@tc.kernel(workers=16)
def series(terms: i64, x: f32[SIZE], y: tc.out[f32[SIZE]]):
    """Its loop looks for signals now and then, since nothing says how long it is."""
    for (k,) in tc.tiles((SIZE,), by=(16,)):
        for i in spatial(16):
            total = f32(0)
            for _ in range(terms):
                total = total * x[k + i] + 1.0
            y[k + i] = total


@tc.kernel(workers=16)
def short_series(terms: i64, x: f32[16], y: tc.out[f32[16]]):
    for i in spatial(16):
        total = f32(0)
        for _ in range(terms):
            total = total * x[i] + 1.0
        y[i] = total


@tc.kernel(workers=16)
def chatty(end: i64, y: tc.out[i64[16]]):
    n = i64(0)
    while n != end:
        n += 1
        tc.print("{}", n)
    for i in spatial(16):
        y[i] = n


@tc.program(fuse=False)
def many_series(terms: i64, x: f32[16], y: tc.out[f32[16]]):
    z = short_series(terms, x)
    for _ in range(600):
        z = short_series(terms, z)
    short_series(terms, z, out=y)


@tc.program(fuse=False)
def two_series(terms: i64, x: f32[16], y: tc.out[f32[16]], z: tc.out[f32[16]]):
    """Beside each other, where there is a thread for each."""
    short_series(terms, x, out=y)
    short_series(terms, x, out=z)


@tc.kernel(workers=16)
def nest(n: i64, x: f32[16], y: tc.out[f32[16]]):
    """The innermost loop is short, and not always entered."""
    for i in spatial(16):
        total = f32(0)
        for p in range(1 << 50):
            for _ in range(p % n):
                total = total * x[i] + 1.0
        y[i] = total


@tc.kernel(workers=16)
def many_tasks(x: f32[16], y: tc.out[f32[16]]):
    """A worker's tasks are a loop, too."""
    s = tc.shared(f32[16])
    for i in spatial(16):
        s[i] = x[i]
    for k, i in repeat(1 << 20, 1) * spatial(1, 16):
        for _ in range(k):
            s[i] = s[i] * x[i] + 1.0
    for i in spatial(16):
        y[i] = s[i]


HALVES = np.full(SIZE, 0.5, np.float32)
FEW = np.arange(SIZE) % 100
ENDLESS = np.full(SIZE, -1)
LAST_IS_ENDLESS = np.where(np.arange(SIZE) < SIZE - 1, FEW, -1)  # of a helper's blocks


class OtherError(Exception):
    pass


def interrupted(call: Callable[[], object], after: float = 0.05) -> float:
    """Sends an interrupt while a call runs, and says how many seconds later the call ended."""
    timer = threading.Timer(after, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    begin = time.monotonic()
    with pytest.raises((KeyboardInterrupt, OtherError)):
        call()
    return time.monotonic() - begin - after


def in_a_process(name: str) -> None:
    """Runs a function of this file in a process of its own, where nothing stands around kernels."""
    program = f"""
import signal
from tests.backend.cpu import test_signals
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
test_signals.{name}()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def is_well() -> bool:
    """Whether kernels run as if nothing had been."""
    fine = series(100, HALVES)
    return (counting(FEW) == FEW).all() and (fine == 2).all()


def one_call_after_another() -> None:
    series(1, HALVES), counting(FEW), counting_together(1), many_series(1, HALVES[:16])
    late = []
    strided = np.full(2 * SIZE, -1)[::2]
    for threads in (1, 3):
        pool().limit(threads)
        late += [
            interrupted(lambda: counting(ENDLESS)),
            interrupted(lambda: counting(LAST_IS_ENDLESS)),
            interrupted(lambda: counting_together(-1)),
            interrupted(lambda: series(1 << 50, HALVES)),
            interrupted(lambda: many_series(1 << 50, HALVES[:16])),
            interrupted(lambda: two_series(1 << 50, HALVES[:16])),
            interrupted(lambda: nest(3, HALVES[:16])),
            interrupted(lambda: many_tasks(HALVES[:16])),
        ]
        with pytest.warns(tc.CopyWarning):
            late.append(interrupted(lambda: counting(strided)))
        assert is_well()
    assert max(late) < 5, late  # 0.5 as a rule, and more on a machine that is busy


def test_an_interrupt_ends_a_call() -> None:
    in_a_process("one_call_after_another")


def handlers() -> None:
    series(1, HALVES)
    pool().limit(3)
    seen: list[bool] = []

    def handler(number: int, frame: object) -> None:
        seen.append(is_well())
        if len(seen) > 2:
            raise OtherError

    signal.signal(signal.SIGINT, handler)
    me = os.getpid()
    threading.Timer(0.05, lambda: os.kill(me, signal.SIGINT)).start()
    terms = 1 << 12
    while not seen:  # one of these is met
        y = series(terms, HALVES)
        assert (y == 2).all()
        terms *= 2
    threading.Timer(0.05, lambda: os.kill(me, signal.SIGINT)).start()
    assert interrupted(lambda: counting(LAST_IS_ENDLESS), 0.8) < 5
    assert seen == [True, True, True]
    assert is_well()


def test_a_handler_runs_meanwhile() -> None:
    """It may call kernels; where it raises nothing the call goes on, and has its result."""
    in_a_process("handlers")


def prints() -> None:
    os.environ["TASKC_TARGET"] = "cpu"
    chatty(1)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (this process ends)
    assert interrupted(lambda: chatty(-1)) < 5
    sys.stdout.close()
    with pytest.raises(ValueError, match="closed file"):
        chatty(-1)
    sys.stdout = sys.__stdout__
    assert is_well()


def test_an_interrupt_while_a_kernel_prints() -> None:
    in_a_process("prints")


def other_threads() -> None:
    pool().limit(3)
    terms = 1 << 20
    assert is_well()
    made: list[np.ndarray] = []
    other = threading.Thread(target=lambda: made.append(series(terms, HALVES)))
    other.start()
    time.sleep(0.1)
    interrupted(lambda: counting(LAST_IS_ENDLESS), 0.2)
    is_at_it = other.is_alive()
    other.join()
    assert is_at_it, "the other thread has to be at it meanwhile"
    assert (made[0] == 2).all()
    child = os.fork()
    if not child:
        interrupted(lambda: counting(ENDLESS))
        os._exit(0 if is_well() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert is_well()


def test_calls_of_other_threads_go_on() -> None:
    """An interrupt is the main thread's; and a fork's child has its own."""
    in_a_process("other_threads")
