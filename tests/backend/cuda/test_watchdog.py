"""Planted hangs are named by the barrier that somebody waits for, on emitted code that the host executes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import device, f32
from taskc.backend.cuda import watchdog
from taskc.backend.cuda.compile import compile_source
from taskc.backend.cuda.emit import emit
from taskc.passes.pipeline import lower
from tests.backend.cuda.fake_driver import FakeDriver
from tests.backend.cuda.host import COMPILER, build

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
X = np.arange(64, dtype=np.float32)


@pytest.fixture
def watched() -> Iterator[None]:
    watchdog.watch(2)
    yield
    watchdog.watch(0)


def arrivals_missing(count: int) -> Any:
    """Warp 1 waits for the second of two mbarriers, at which 32 of `count` workers arrive."""

    @tc.cuda.kernel(workers=64, target="sm_90a")
    def hanging(x: f32[64], y: tc.out[f32[64]]):
        near = tc.shared(f32[32])
        full = tc.cuda.barriers(2)
        w = tc.worker()
        if w == 0:
            tc.cuda.mbarrier_init(full[0], 1)
            tc.cuda.mbarrier_init(full[1], count)
        tc.sync()
        if w < 32:
            near[w] = x[w]
            tc.cuda.mbarrier_arrive(full[1])
            y[w] = x[w]
        else:
            tc.cuda.mbarrier_wait(full[1], 0)
            y[w] = near[w - 32]

    return hanging


@needs_compiler
def test_a_hang_names_its_barrier(watched: None) -> None:
    (runnable,) = build([lower(arrivals_missing(33).ir)])
    with pytest.raises(AssertionError) as caught:
        runnable.run([X, np.zeros(64, np.float32)])
    said = str(caught.value)
    assert "block 0, warp 1 of hanging() waited in vain for full[1], parity 0" in said
    assert "test_watchdog.py:" in said


@needs_compiler
def test_what_does_not_hang_is_not_stopped(watched: None) -> None:
    y = np.zeros(64, np.float32)
    (runnable,) = build([lower(arrivals_missing(32).ir)])
    for number in range(4):
        assert runnable.run([X, y], number) == 0
        np.testing.assert_array_equal(y, np.tile(X[:32], 2))


@needs_compiler
def test_without_it_a_hang_is_a_hang() -> None:
    (runnable,) = build([lower(arrivals_missing(33).ir)])
    with pytest.raises(AssertionError, match=r"hanging: all threads wait$"):
        runnable.run([X, np.zeros(64, np.float32)])


@needs_compiler
def test_a_call_says_which_barrier(emitted: FakeDriver, watched: None) -> None:
    """As on a device: the launch fails, and the error has the words that the kernel has written."""
    with pytest.raises(device.DeviceError) as caught:
        arrivals_missing(33)(device.array(X)).numpy()
    assert "waited in vain for full[1], parity 0" in str(caught.value)


def test_code_that_is_not_watched_has_no_clock() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC isn't published for this machine")
    lean = lower(arrivals_missing(32).ir)
    plain = emit(lean)
    assert "globaltimer" not in plain.text()
    assert [one.kind for one in plain.arguments] == ["tensor"] * 2
    watchdog.watch(2)
    try:
        source = emit(lean)
        assert source.arguments[-1].kind == "hang"
        assert compile_source(source).waits == source.waits
        assert [one.name for one in source.waits] == ["full"]
    finally:
        watchdog.watch(0)
