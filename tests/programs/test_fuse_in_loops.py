"""Loops: what they read and write is respected, and in their bodies calls become one as they do outside."""

from __future__ import annotations

from typing import Any

import pytest

import taskc as tc
from taskc import f32, i64
from taskc.kernels.matmul import matmul
from taskc.programs.ir import Loop, Program, Step
from tests.programs.lookalikes import doubled, updated
from tests.programs.running import check

n = tc.dim("n", example=3)


def steps(program: Program) -> list[Any]:
    """The name of each call, and of a loop a list of those in its body."""

    def named(step: Step) -> Any:
        return [*map(named, step.body)] if isinstance(step, Loop) else step.callee.name

    return [*map(named, program.calls)]


def test_what_a_loop_reads_stays() -> None:
    @tc.program
    def program(x: f32[8, 12], turns: i64[n], w: tc.inout[f32[8, 12]], y: tc.out[f32[8, 12]]):
        t = tc.compute((8, 12), lambda i, j: x[i, j] + 1, name="one")
        u = doubled(x)
        for _ in tc.steps(n):
            updated(t, w)
            updated(u, w)
        tc.compute((8, 12), lambda i, j: x[i, j] * u[i, j], name="last", out=y)

    assert steps(check(program)) == ["one", "doubled_last", ["updated", "updated"]]


def test_nothing_moves_across_a_loop_that_writes_what_it_reads() -> None:
    """Before it, values of w as it was; behind it, as it is then."""

    @tc.program
    def program(
        x: f32[n, 8, 12], w: tc.inout[f32[8, 12]], y: tc.out[f32[8, 12]], z: tc.out[f32[8, 12]]
    ):
        before = tc.compute((8, 12), lambda i, j: w[i, j] * 2, name="before")
        own = doubled(w)
        for s in tc.steps(n):
            updated(x[s], w)
        tc.compute((8, 12), lambda i, j: before[i, j] + 1, name="moved", out=y)
        tc.compute((8, 12), lambda i, j: own[i, j] + w[i, j], name="behind", out=z)

    assert steps(check(program)) == ["before", "doubled", ["updated"], "moved", "behind"]


@pytest.mark.parametrize("target", ["parsed", "cpu", "sm_90a"])
def test_a_recurrent_cell_is_one_kernel(target: str) -> None:
    """Its product has the computations behind it, also where a step's state is a row and the next one's another."""
    product = matmul(4, 16, 16)

    @tc.program
    def program(x: f32[n, 4, 16], r: f32[16, 16], y: tc.out[f32[n + 1, 4, 16]]):
        tc.compute((4, 16), lambda i, j: f32(0.5), name="start", out=y[0])
        for t in tc.steps(n):
            given, turned = x[t], product(y[t], r)
            sums = tc.compute((4, 16), lambda i, j: turned[i, j] * 0.25 + given[i, j])
            tc.compute((4, 16), lambda i, j: max(sums[i, j], 0.0), name="cell", out=y[t + 1])

    made = check(program, target, is_processor=target != "sm_90a")
    assert [len(step) for step in steps(made) if isinstance(step, list)] == [1]
    assert not made.temporaries


def test_a_step_may_be_told_by_its_number_and_loops_may_be_in_loops() -> None:
    @tc.program
    def program(x: f32[n, 8, 12], y: tc.out[f32[n, 8, 12]], w: tc.inout[f32[8, 12]]):
        for s in tc.steps(n):
            row = x[s]
            t = tc.compute((8, 12), lambda i, j: row[i, j] + s.to(f32), name="t")
            u = tc.compute((8, 12), lambda i, j: t[i, j] * t[7 - i, j], name="u")
            doubled(u, out=y[s])
            for q in tc.steps(3):
                v = tc.compute((8, 12), lambda i, j: row[i, j] - q.to(f32), name="v")
                updated(v, w)

    for target in ("parsed", "cpu", "sm_80"):
        assert steps(check(program, target)) == [["t_u_doubled", ["v_updated"]]]


def test_what_lasts_from_step_to_step_stays() -> None:
    """A state that the next step reads, and one that is read behind the loop."""

    @tc.program
    def program(x: f32[n, 8, 12], y: tc.out[f32[8, 12]], z: tc.out[f32[8, 12]]):
        state = tc.compute((8, 12), lambda i, j: x[0, i, j], name="start")
        last = tc.compute((8, 12), lambda i, j: f32(0.0), name="zeros")
        for s in tc.steps(n):
            row = x[s]
            tc.compute((8, 12), lambda i, j: state[i, j] + row[i, j], name="next", out=last)
            tc.compute((8, 12), lambda i, j: row[i, j] * 0.5, name="half", out=state)
        tc.compute((8, 12), lambda i, j: last[i, j] + 1, name="behind", out=y)
        tc.compute((8, 12), lambda i, j: state[i, j] + 2, name="state", out=z)

    assert steps(check(program)) == ["start", "zeros", ["next", "half"], "behind", "state"]


def test_rows_that_overlap_are_the_same_memory() -> None:
    """A product that reads four rows, and a computation that writes the last of them, and three more."""
    product = matmul(4, 16, 16)

    @tc.program
    def program(x: f32[n, 4, 16], r: f32[16, 16], y: tc.inout[f32[n * 4 + 4, 16]]):
        for t in tc.steps(n):
            given, turned = x[t], product(y[t * 4 : t * 4 + 4], r)
            behind = y[t * 4 + 3 : t * 4 + 7]
            tc.compute((4, 16), lambda i, j: turned[i, j] + given[i, j], name="cell", out=behind)

    assert [len(step) for step in steps(check(program))] == [2]
