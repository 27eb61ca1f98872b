"""Strided loops of workers that start apart."""

from __future__ import annotations

import random
from dataclasses import replace
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f64, repeat, spatial
from taskc.ir import nodes as ir
from taskc.ir.printer import to_text
from taskc.ir.rewrite import walk
from taskc.passes.common_strides import common_strides
from taskc.passes.prove import findings
from tests.passes.kernels import kernel
from tests.stages import same_after_every_pass

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
