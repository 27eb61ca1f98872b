"""`tc.print` on the processor: the lines of the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import boolean, f32, i32, i64, repeat, spatial
from taskc.backend.sim import run
from taskc.ir.types import DTYPES


def lines_of(kernel: Any, capsys: pytest.CaptureFixture[str], *arguments: Any) -> list[str]:
    """What is printed on the processor, in any order of workers, is what the simulator prints."""
    expected: list[str] = []
    inputs = [np.array(argument) for argument in arguments]
    run(kernel.ir, inputs, on_print=expected.append)
    kernel(*arguments)
    printed = capsys.readouterr().out.splitlines()
    assert sorted(printed) == sorted(expected)
    assert printed
    return printed


@pytest.fixture(autouse=True)
def on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKC_TARGET", "cpu")


@pytest.mark.parametrize("workers", [1, 2, 5, 16, 37])
def test_who_takes_part_prints(workers: int, capsys: pytest.CaptureFixture[str]) -> None:
    own = spatial(workers) * repeat(3)

    @tc.kernel(workers=workers)
    def chatty(x: f32[150]):
        for (k,) in tc.tiles((150,), by=(3 * workers,)):
            tc.print("block {}", k)
            for i in own:
                if k + i < 150 and x[k + i] > 3:
                    tc.print("x[{}] of {} is {}, {}", i, k, x[k + i], x[k + i] > 100)
            tc.print("done")

    printed = lines_of(chatty, capsys, np.arange(150, dtype=np.float32))
    assert sum(line == "done" for line in printed) == -(-150 // (3 * workers))


@pytest.mark.parametrize("name", [name for name in DTYPES if name != "tf32"])
def test_types(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    dtype = DTYPES[name]

    @tc.kernel(workers=16)
    def chatty(x: dtype[20]):
        tc.print("{0} of all: {}", x[3])
        for i in spatial(16) * repeat(2):
            if i < 20:
                tc.print("{} {}", i, x[i])

    given = np.random.default_rng(0).standard_normal(20) * 100
    lines_of(chatty, capsys, given.astype(dtype.numpy))


def test_in_loops_that_end_apart(capsys: pytest.CaptureFixture[str]) -> None:
    @tc.kernel(workers=16)
    def chatty(x: i32[20]):
        for i in spatial(16) * repeat(2):
            if i < 20:
                n = i64(0)
                while n < x[i]:
                    tc.print("{} at {}", i, n)
                    n += 1
                for q in range(x[i] // 2):
                    tc.print("{} again at {}", i, q)

    lines_of(chatty, capsys, np.arange(20, dtype=np.int32) % 7)


def test_what_was_kept_on_disk_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):

        @tc.kernel(workers=4)
        def chatty(x: boolean[4]):
            for i in spatial(4):
                tc.print("{} is {}", i, x[i])

        lines_of(chatty, capsys, np.array([True, False, True, True]))
