"""Strided loops of workers that start apart."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f64, repeat, spatial
from taskc.backend import sim
from taskc.ir import nodes as ir
from taskc.ir.printer import to_text
from taskc.ir.rewrite import walk
from taskc.passes.common_strides import common_strides
from taskc.passes.prove import findings
from tests.passes.kernels import kernel
from tests.random_programs.mutations.mutation import Wrong, edited
from tests.stages import same_after_every_pass

common = sys.modules[common_strides.__module__]  # whose name is the function's, too
N = tc.dim("n")


def strided(n: Any, *, workers: int = 16, step: int = 16, shift: int = 0, out: bool = True) -> Any:
    role = tc.out[f64[n]] if out else tc.inout[f64[n]]

    @tc.kernel(workers=workers)
    def doubled(a: f64[n], y: role):
        for w in spatial(workers):
            for j in range(w + shift, n, step):
                y[j] = 2 * a[j] + 1

    return doubled


@pytest.mark.parametrize("out", [True, False])
@pytest.mark.parametrize("n", [N, 1, 15, 100, 10_000, 10_000_019])
def test_strided_loops_are_proved_for_every_size(n: Any, out: bool) -> None:
    doubled = strided(n, out=out)
    for size in (1, 15, 16, 17, 100, 1009) if n is N else (n,) if n <= 10_000 else ():
        a, y = np.arange(size) * 1.0, np.zeros(size)
        doubled(a, y) if not out else doubled(a, out=y)
        np.testing.assert_array_equal(y, 2 * a + 1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"step": 15}, "the range of `j` differs between workers"),
        ({"step": 17}, "leave out the others"),
        ({"shift": 1}, "y[0] is never stored"),
        ({"step": 15, "out": False}, "can't prove that two workers never meet"),
    ],
)
def test_other_strides_are_refused(wrong: dict[str, Any], message: str) -> None:
    (error,) = findings(strided(N, **wrong).ir)
    assert message in error.message


def test_elements_between_strides_may_be_left_out() -> None:
    assert findings(strided(N, step=32, shift=5, out=False).ir) == ()


def test_a_worker_of_its_own_may_read_what_it_writes() -> None:
    @tc.kernel(workers=6)
    def first_worker(c: tc.inout[f64[N]]) -> None:
        for w in spatial(6):
            for j in range(w + 4, N, 6):
                c[j] = (c[j] if w == 0 else 0) - 1

    assert findings(first_worker.ir) == ()


def test_one_worker_goes_through_all() -> None:
    assert findings(strided(N, workers=1, step=1).ir) == ()


def test_what_becomes_of_a_loop() -> None:
    before = kernel(
        """
        each w in spatial(32):
            for j in range(w, n[0].to(i64), 32):
                c[j] = x[j]
        """,
        "x: f32[64], n: i32[1], c: inout f32[64]",
    )
    after = common_strides(before)
    assert dedent(to_text(after).partition("\n")[2]) == dedent(
        """\
        each w in spatial(32):
            let stop = n[0].to(i64)
            for turn in range(0, stop, 32):
                let j = turn + w
                if j < stop:
                    c[j] = x[j]
        """
    )


def test_each_worker_of_a_gpu_counts_its_own_turns() -> None:
    doubled = strided(N, out=False).ir
    for target in ("sm_80", "sm_90a"):
        kernel = replace(doubled, target=target)
        assert common_strides(kernel) is kernel
        assert findings(kernel) == ()


@pytest.mark.parametrize("seed", range(6))
def test_random_strides_keep_their_results(seed: int) -> None:
    pick = random.Random(seed)
    workers, rows = pick.choice([4, 8]), pick.choice([1, 2])
    step = pick.choice([workers, 2 * workers])
    shift, size = pick.choice([0, 3]), pick.choice([1, 7, 40, 61])
    breaks, mapping = pick.random() < 0.5, spatial(workers) * repeat(rows)

    @tc.kernel(workers=workers)
    def summed(a: f64[size], y: tc.out[f64[workers * rows]]):
        for w in mapping:
            total = f64(0)
            for j in range(w + shift, size, step * rows):
                if a[j] < 0 and breaks:
                    break
                total += a[j]
            y[w] = total

    assert any(isinstance(node, ir.If) for node in walk(common_strides(summed.ir).body))
    arguments = [np.random.default_rng(seed).normal(size=size), np.zeros(workers * rows)]
    same_after_every_pass(summed.ir, arguments)


PLANTED = [
    edited('ir.If(ir.Binary("<", loop.variable, stop), loop.body, loc=loc)', "loop.body"),
    edited("add(common, index(low))", "add(common, index(high))"),
    edited("loop.start if shift is first else subtract", "subtract"),
    edited("start=ZERO if shift is first else first", "start=first"),
]


@pytest.mark.parametrize("wrong", [None, *PLANTED])
def test_planted_mistakes_are_seen(wrong: Wrong | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if wrong is not None:
        found = wrong(common._Strides._with_common_range)
        monkeypatch.setattr(common._Strides, "_with_common_range", found)
    before = strided(61, workers=8, step=8, shift=3, out=False).ir
    after, a, y = common_strides(before), np.arange(61) * 1.0, np.zeros(61)
    assert after is not before
    report = sim.run(after, [a, y])
    expected = np.where(np.arange(61) < 3, 0, 2 * a + 1)
    is_seen = bool(report.findings) or not np.array_equal(y, expected)
    assert is_seen == (wrong is not None)
