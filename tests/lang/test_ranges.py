"""`tc.range(..., unroll=...)` runs the turns of `range`, and its loops are copied as it says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, i64, spatial
from taskc.ir import nodes as ir
from taskc.ir.rewrite import walk
from taskc.passes.pipeline import lower
from tests.lang.notebook import checked
from tests.stages import same_after_every_pass

RANGES = [(0, 12, 1), (0, 13, 1), (3, 3, 1), (5, 2, 1), (2, 40, 3), (11, -4, -2), (-9, -1, 5)]


def made(ends: tuple[Any, ...], unroll: Any) -> tc.KernelDefinition:
    @tc.kernel(workers=4)
    def kernel(stop: i64, y: tc.out[i64[4]]):
        for i in spatial(4):
            found = i
            for q in tc.range(*ends, unroll=unroll):
                found = found * 31 + q
            y[i] = found

    return kernel


def symbolic(start: int, step: int, unroll: int) -> tc.KernelDefinition:
    """The number of turns is known at the call."""

    @tc.kernel(workers=4)
    def kernel(stop: i64, y: tc.out[i64[4]]):
        for i in spatial(4):
            found = i
            for q in tc.range(start, stop, step, unroll=unroll):
                found = found * 31 + q
            y[i] = found

    return kernel


def expected(ends: tuple[int, ...]) -> list[int]:
    found = [0, 1, 2, 3]
    for q in range(*ends):
        found = [one * 31 + q for one in found]
    return [(one + 2**63) % 2**64 - 2**63 for one in found]


@pytest.mark.each_value
@pytest.mark.parametrize("target", ["sim", "cpu"])
@pytest.mark.parametrize("ends", RANGES, ids=str)
def test_turns_are_those_of_range(
    ends: tuple[int, int, int], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKC_TARGET", target)
    start, stop, step = ends
    for unroll in (None, True, 2, 5, 16):
        assert made(ends, unroll)(stop).tolist() == expected(ends)
        if unroll is not None:
            count = 4 if unroll is True else unroll
            assert symbolic(start, step, count)(stop).tolist() == expected(ends)


@pytest.mark.parametrize("target", ["sm_80", "avx2"])
def test_passes_keep_them(target: str) -> None:
    for ends in RANGES[1], RANGES[4]:
        y = np.array(expected(ends))
        for kernel in (made(ends, True).ir, symbolic(ends[0], ends[2], 4).ir):
            given = [ends[1], np.zeros(4, np.int64)]
            same_after_every_pass(
                replace(checked(kernel), target=target), given, expected=[ends[1], y]
            )


@pytest.mark.parametrize(("unroll", "kinds"), [(True, {"unroll"}), (4, {"serial", "unroll"})])
def test_they_are_copied_as_asked_for(unroll: Any, kinds: set[str]) -> None:
    """Without it a loop of 100 turns stays one."""
    loops = {True: made((100,), True), 4: made((100,), 4)}
    lean = lower(replace(loops[unroll].ir, target="sm_80"))
    assert {node.kind for node in walk(lean.body) if isinstance(node, ir.For)} == kinds
    plain = lower(replace(made((100,), None).ir, target="sm_80"))
    assert {node.kind for node in walk(plain.body) if isinstance(node, ir.For)} == {"serial"}


def test_indices_and_outputs_are_proved() -> None:
    n = tc.dim("n", example=11)

    @tc.kernel(workers=4)
    def doubled(x: f32[4, n], y: tc.out[f32[4, n]]):
        for i in spatial(4):
            for q in tc.range(n, unroll=4):
                y[i, q] = 2 * x[i, q]

    x = np.random.default_rng(2).normal(size=(4, 11)).astype(np.float32)
    np.testing.assert_array_equal(doubled(x), 2 * x)


def test_steps_so_long_that_several_are_no_number() -> None:
    ends = 0, 2**62, 2**61 + 5
    assert symbolic(ends[0], ends[2], 8)(ends[1]).tolist() == expected(ends)
    with pytest.raises(tc.CompileError, match="out of range for i64"):
        made((2**70,), 4)


def test_in_plain_python_it_is_range() -> None:
    assert tc.range(2, 9, 3, unroll=2) == range(2, 9, 3)
