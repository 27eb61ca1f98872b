"""Loops that look for signals: which, how often, and that they count as others do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, i64, spatial
from taskc.backend.cpu import emit
from taskc.backend.cpu.compile import LoadedKernel, assembly_of, compile_kernel, llvm_text
from taskc.backend.cpu.flow import APART, FEW, MOST, SHORT, TURNS, turns_between_looks
from taskc.backend.cpu.module import LOOK
from taskc.backend.cpu.processor import host
from taskc.ir import nodes as ir
from taskc.ir.rewrite import walk
from taskc.passes.pipeline import lower
from tests.test_loop_ends import CASES, expected

N = tc.dim("n")


def lowered(kernel: tc.Kernel) -> ir.Kernel:
    return lower(replace(kernel.ir, target=host().target))


def looking(kernel: tc.Kernel) -> dict[str, int]:
    return {v.name: turns for v, turns in turns_between_looks(lowered(kernel), 1).items()}


def series(trips: Any) -> tc.Kernel:
    @tc.kernel(workers=16)
    def series(n: i64, x: f32[64], y: tc.out[f32[16]]):
        for i in spatial(16):
            total = f32(0)
            for q in range(trips if trips is not None else n):
                total += x[q % 64]
            y[i] = total

    return series


def test_a_loop_looks_where_it_may_be_long() -> None:
    assert looking(series(1000)) == {}
    assert looking(series(SHORT // 8)) == {}
    (turns,) = looking(series(SHORT)).values()
    assert APART // 8 < turns < APART
    assert looking(series(10**11)) == looking(series(None)) == {"q": turns}


def test_what_bounds_a_loop_is_known() -> None:
    @tc.kernel(workers=16)
    def parts(x: f32[N], y: tc.out[f32[N]]):
        for (first,) in tc.tiles((N,), by=(16,)):
            for i in spatial(16):
                total = f32(0)
                for q in range(first, min(first + 16, N)):
                    total += x[q]
                if first + i < N:
                    y[first + i] = total

    assert looking(parts) == {}


def test_a_loop_around_one_that_may_be_long_looks_after_a_few_turns() -> None:
    @tc.kernel(workers=16)
    def nest(n: i64, m: i64, x: f32[16], y: tc.out[f32[16]]):
        for i in spatial(16):
            total = f32(0)
            for _ in range(3):
                for r in range(n):
                    for p in range(n):
                        for q in range(m):
                            total = total * x[(p + q + r) % 16] + 1.0
            y[i] = total

    found = looking(nest)
    assert found["p"] == FEW
    assert found["r"] == MOST // (FEW * APART) == 4
    assert set(found) == {"r", "p", "q", "_"}


def test_short_loops_are_code_without_looks() -> None:
    text = llvm_text(lowered(series(1000)), host())[0]
    assert text.count(f"call i1 @{LOOK}") == 0
    text = llvm_text(lowered(series(None)), host())[0]
    assert text.count(f"call i1 @{LOOK}") == 1


def test_a_tight_while_looks_once_in_some_turns() -> None:
    """Turns are written out one after another, each with its own test of where the loop ends."""

    @tc.kernel(workers=1)
    def search(x: i64[N], y: tc.inout[i64[1]]):
        for _ in spatial(1):
            k = i64(0)
            while k < N and x[k] != 7117:
                k += 1
            y[0] = k

    assembly = assembly_of(lowered(search), host())
    assert assembly.count("taskc_look") == 1
    assert assembly.count("7117") == TURNS >= 4
    for n in range(3 * TURNS):
        y = np.zeros(1, np.int64)
        search(np.full(n, 5), y)
        assert y[0] == n
        for place in range(n):
            search(np.where(np.arange(n) == place, 7117, 5), y)
            assert y[0] == place


def in_parts(monkeypatch: pytest.MonkeyPatch, kernel: tc.Kernel, turns: int) -> LoadedKernel:
    """A kernel all of whose loops look after so many turns."""
    lean = lowered(kernel)
    monkeypatch.setattr(
        emit,
        "turns_between_looks",
        lambda kernel, vectors: dict.fromkeys(
            [loop.variable for loop in walk(kernel.body) if isinstance(loop, ir.For)], turns
        ),
    )
    text = llvm_text(lean, host())[0]
    assert f"call i1 @{LOOK}" in text
    return LoadedKernel(lean, compile_kernel(lean, host()))


@pytest.mark.each_value(2)
@pytest.mark.parametrize("turns", [1, 2, 3, 1 << 62])
@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_loop_in_parts_ends_where_pythons_does(
    monkeypatch: pytest.MonkeyPatch, number: int, turns: int
) -> None:
    kernel, step, first, stop = CASES[number]
    y = np.zeros((2, 4), np.int64)
    assert not in_parts(monkeypatch, kernel, turns).run([np.int64(first), np.int64(stop), y], {})
    assert {tuple(lane) for lane in y.T.tolist()} == {expected(first, stop, step)}


@pytest.mark.parametrize("turns", [1, 7, 100])
def test_nests_and_breaks_in_parts(monkeypatch: pytest.MonkeyPatch, turns: int) -> None:
    @tc.kernel(workers=16)
    def nest(n: i64, m: i64, x: i64[16], y: tc.out[i64[16]]):
        for i in spatial(16):
            total = i64(0)
            for p in range(n):
                for q in range(p, m):
                    if total > 1000:
                        break
                    total += p * q + x[i]
            y[i] = total

    x = np.arange(16)
    for n, m in ((0, 5), (5, 0), (1, 1), (20, 31), (20, 500), (400, 40)):
        y = np.zeros(16, np.int64)
        assert not in_parts(monkeypatch, nest, turns).run([np.int64(n), np.int64(m), x, y], {})
        for i in range(16):
            total = 0
            for p in range(n):
                for q in range(p, m):
                    if total > 1000:
                        break
                    total += p * q + i
                if total > 1000:
                    break
            assert y[i] == total
