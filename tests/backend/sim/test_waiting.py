"""Loops that wait for what other workers, warps and blocks do: those that should, end; the others are found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import taskc as tc
from taskc.backend.sim import run
from taskc.passes.pipeline import lower
from taskc.runtime.checking import check
from tests.backend.sim.checking import expect, simulate

SEEDS = [None, 0, 1, 2]


def scan_of(each: int, workers: int, parts: int) -> tc.lang.definition.KernelDefinition:
    """A decoupled look-back: a block waits for the total of the block before."""
    own = tc.spatial(workers) * tc.repeat(each)
    size = own.shape[0]
    n = size * parts

    @tc.kernel(workers=workers)
    def scan(
        x: tc.i32[n],
        flag: tc.inout[tc.i32[parts]],
        total: tc.inout[tc.i32[parts]],
        y: tc.out[tc.i32[n]],
    ):
        for first in tc.tiles(n, by=size):
            b = first // size
            t = tc.tile(tc.i32, own, 0)
            tc.copy(t, x[first : first + size])
            whole = tc.scan(t, 0, "+")
            mine = tc.reduce(t, 0, "+")
            base = tc.shared(tc.i32[1])
            for w in tc.spatial(workers):
                if w == 0:
                    before = tc.i32(0)
                    if b > 0:
                        ready = tc.atomic_add(flag[b - 1], 0)
                        while ready == 0:
                            ready = tc.atomic_add(flag[b - 1], 0)
                        before = tc.atomic_add(total[b - 1], 0)
                    base[0] = before
                    tc.atomic_exchange(total[b], before + mine[0])
                    tc.atomic_exchange(flag[b], 1)
            for i in own:
                whole[i] += base[0]
            tc.store(y[first : first + size], whole)

    return scan


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("stage", ["parsed", "pipelined", "synchronized", "lean"])
def test_a_look_back_comes_to_its_end(stage: str, seed: int | None) -> None:
    kernel = lower(scan_of(2, 4, 5).ir, stage)
    x = np.arange(40, dtype=np.int32) % 7
    y = np.zeros_like(x)
    report = run(kernel, [x, np.zeros(5, np.int32), np.zeros(5, np.int32), y], seed=seed)
    assert not report.findings, report
    np.testing.assert_array_equal(y, np.cumsum(x))


def test_the_checker_takes_it_through_all_passes() -> None:
    flag, total = np.zeros(3, np.int32), np.zeros(3, np.int32)
    assert check(scan_of(1, 2, 3), (np.ones(6, np.int32), flag, total)) == ()


WARPS = """
    kernel k(flag: inout i32[2], y: inout i32[64]) workers=64 blocks={blocks} stage=synchronized:
        {first}
        if worker == {waiting}:
            local ready: i32 = 0
            while ready == 0:
                let now = atomic flag[{element}] += 0
                ready = now
            let old = atomic y[worker] += 5
        if worker == {setting}:
            let old = atomic flag[1] exchange= 1
        {last}
"""


def ordered(text: str) -> str:
    """With an acquire load and a release store in place of other atomics."""
    text = text.replace("let now = atomic flag[1] += 0", "let now = atomic flag[1] acquire= 0")
    return text.replace("let old = atomic flag[1] exchange= 1", "atomic flag[1] release= 1")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("waiting", "setting"), [(0, 32), (40, 3)])
@pytest.mark.parametrize("form", [str, ordered])
def test_warps_wait_for_each_other(
    form: Callable[[str], str], waiting: int, setting: int, seed: int | None
) -> None:
    flag, y = np.zeros(2, np.int32), np.zeros(64, np.int32)
    text = form(
        WARPS.format(blocks=1, waiting=waiting, setting=setting, element=1, first="", last="")
    )
    assert not simulate(text, flag, y, seed=seed).findings
    assert y[waiting] == 5


@pytest.mark.parametrize("seed", SEEDS)
def test_who_waits_for_what_is_said(seed: int | None) -> None:
    text = WARPS.format(blocks=1, waiting=33, setting=3, element=0, first="", last="")
    report = simulate(text, np.zeros(2, np.int32), np.zeros(64, np.int32), seed=seed)
    (finding,) = report.findings
    assert finding.kind == "deadlock"
    assert finding.message == "nobody makes progress: worker 33 waits for flag[0] to change"
    assert dict(finding.details) == {"block": 0, "worker": 33, "count": 1}
    assert finding.location.line == 6
    assert finding.notes


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_that_run_together_wait_for_each_other(seed: int | None) -> None:
    """Where there is a barrier of the grid, those that come first may wait for later ones."""
    for element, found in ((1, []), (0, ["deadlock"])):
        text = WARPS.format(
            blocks=3,
            waiting="0 and block == 0",
            setting="40 and block == 2",
            element=element,
            first="",
            last="barrier grid",
        )
        report = simulate(text, np.zeros(2, np.int32), np.zeros(64, np.int32), seed=seed)
        assert [finding.kind for finding in report.findings] == found, report


LOOP = """
    kernel k(x: inout i32[4], y: inout i32[4]) workers=4 stage={stage}:
        each w in spatial(4):
            local at: i32 = 0
            local turns: i32 = 0
            while {condition}:
                turns = turns + 1
                {body}
            y[w] = turns
"""


@pytest.mark.parametrize("stage", ["parsed", "synchronized"])
@pytest.mark.parametrize(
    ("condition", "body", "kind"),
    [
        ("at == 0", "let now = atomic x[0] += 0\n                at = now", "deadlock"),
        ("at == 0", "x[w] = 3", "endless-loop"),
        ("at == 0", "pass", "endless-loop"),
        ("x[w] < 9", "x[w] = 5", "deadlock"),
        ("x[w] < 9", "x[w] = x[w] + 1", None),
        ("at == 0 and turns < 500", "let now = atomic x[0] += 0\n                at = now", None),
        ("at == 0", "if turns > 300:\n                    at = 1", None),
    ],
)
def test_turns_that_change_nothing(condition: str, body: str, kind: str | None, stage: str) -> None:
    """A count that decides about nothing is nothing; one that does may be as long as it likes."""
    text = LOOP.format(stage=stage, condition=condition, body=body)
    zeros = np.zeros(4, np.int32)
    kinds = [finding.kind for finding in simulate(text, zeros, zeros.copy()).findings]
    assert kinds == ([] if kind is None else [kind])


def test_a_loop_that_never_ends_ends_the_run() -> None:
    text = LOOP.format(stage="parsed", condition="at == 0", body="pass  # nothing")
    expect(text.replace("while at == 0:", "while at == 0:  # here"), "endless-loop")
