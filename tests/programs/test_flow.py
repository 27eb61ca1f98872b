"""Branches and whiles: what they read and write is respected, calls become one in their bodies, and they run right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import boolean, f32
from taskc.ir import calls_text
from taskc.programs import calls, planning, redundancy, specialize
from taskc.programs.arena import blocks_of
from taskc.programs.ir import Branch, Program, While, steps_of
from taskc.programs.schedule import schedule
from taskc.runtime import driver
from taskc.runtime.machine import machine
from tests.programs import test_branches as branches
from tests.programs.lookalikes import doubled, updated
from tests.programs.random_flow import expected, given, program as random_program, statements
from tests.programs.running import check
from tests.random_programs.mutations.mutation import Mutation, edited

n = tc.dim("n", example=3)
SHAPE = (8, 12)


def lines(program: Program) -> list[str]:
    """The steps of its text."""
    _, text = calls_text(program).split("):\n", 1)
    declared = ("    temporary", "    view")
    return [line[4:] for line in text.splitlines() if not line.startswith(declared)]


def test_nothing_moves_into_a_body_or_out_of_it() -> None:
    """Before the branch values of w as it was; in it, as it is then; behind it a value that one body reads, too."""

    @tc.program
    def program(
        x: f32[8, 12],
        flag: boolean[1],
        w: tc.inout[f32[8, 12]],
        y: tc.out[f32[8, 12]],
        z: tc.out[f32[8, 12]],
    ):
        before = tc.compute(SHAPE, lambda i, j: w[i, j] * 2, name="before")
        sum = tc.compute(SHAPE, lambda i, j: x[i, j] + 1, name="sum")
        with tc.branch(flag):
            updated(x, w)
            tc.compute(SHAPE, lambda i, j: sum[i, j] * 3, name="tripled", out=y)
        with tc.otherwise():
            own = tc.compute(SHAPE, lambda i, j: x[i, j] * x[i, j], name="own")
            updated(x, w)
            tc.compute(SHAPE, lambda i, j: own[i, j] - sum[i, j], name="less", out=y)
        tc.compute(SHAPE, lambda i, j: before[i, j] + w[i, j], name="behind", out=z)

    for target in ("parsed", "cpu", "sm_90a"):
        assert lines(check(program, target)) == [
            "before(w, out=before)",
            "sum(x, out=sum)",
            "if flag:",
            "    updated(x, w)",
            "    tripled(sum, out=y)",
            "else:",
            "    updated(x, w)",
            "    own_less(sum, x, out=y)",
            "behind(before, w, out=z)",
        ]


def test_what_a_while_carries_stays() -> None:
    """The state that the next turn reads, and the flag that only the while does."""

    @tc.program
    def program(x: f32[8, 12], y: tc.out[f32[8, 12]]):
        state = tc.compute(SHAPE, lambda i, j: x[i, j] * 0.5, name="start")
        flag = tc.compute((), lambda: state[0, 1] < 9.0, name="first")
        for _ in tc.steps_while(flag):
            sum = tc.compute(SHAPE, lambda i, j: abs(state[i, j]) + 1, name="sum")
            more = tc.compute(SHAPE, lambda i, j: sum[i, j] * 2, name="more")
            doubled(more, out=state)
            tc.compute((), lambda: state[0, 1] < 9.0, name="again", out=flag)
        doubled(state, out=y)

    for target in ("parsed", "cpu", "sm_80"):
        found = lines(check(program, target))
        assert found[2] == "while flag:"
        assert [line.strip().split("(")[0] for line in found[3:]] == [
            "sum_more", "doubled", "first", "doubled",
        ]  # fmt: skip


def test_bodies_that_write_nothing_that_is_read_go() -> None:
    @tc.program
    def program(x: f32[8, 12], flag: boolean[1], y: tc.out[f32[8, 12]]):
        unread = tc.compute(SHAPE, lambda i, j: x[i, j] + 1)
        other = tc.compute((), lambda: not flag[0])
        with tc.branch(flag):
            updated(x, unread)
        for _ in tc.steps_while(other):
            updated(x, unread)
            tc.compute((), lambda: flag[0], out=other)
        doubled(x, out=y)

    assert lines(check(program)) == ["doubled(x, out=y)"]


def test_memory_of_what_bodies_touch() -> None:
    """Of a while as long as it lasts; a body of a branch needs none in the other one."""

    @tc.program
    def program(x: f32[16], flag: boolean[1], y: tc.out[f32[16]]):
        state = tc.compute(16, lambda i: x[15 - i])
        more = tc.compute((), lambda: x[0] > 0)
        for _ in tc.steps_while(more):
            inner = tc.compute(16, lambda i: state[15 - i])
            tc.compute(16, lambda i: inner[15 - i], out=state)
            tc.compute((), lambda: flag[0], out=more)
        with tc.branch(flag):
            one = tc.compute(16, lambda i: state[15 - i])
            tc.compute(16, lambda i: one[15 - i], out=y)
        with tc.otherwise():
            other = tc.compute(16, lambda i: state[15 - i])
            tc.compute(16, lambda i: other[15 - i], out=y)

    found = {
        tuple([it.name for it in block.tensors]): (block.first, block.last)
        for block in blocks_of(schedule(program.ir, machine()))
    }
    assert found == {
        ("state",): (0, 9),
        ("more",): (1, 5),
        ("inner",): (2, 5),
        ("one",): (7, 8),
        ("other",): (9, 10),
    }


# --- by chance ---


def run(seed: int, target: str = "cpu") -> tuple[int, int]:
    """Holds a random program to what Python does; how many branches and whiles it has."""
    program = random_program(seed)
    for number in range(3):
        arguments = given(seed * 10 + number)
        wanted = expected(statements(seed), arguments)
        found = driver.call(program, (arguments,), {}, target)
        assert [one.tolist() for one in found] == [one.tolist() for one in wanted]
    steps = [*steps_of(program.ir.calls)]
    return sum(isinstance(it, Branch) for it in steps), sum(isinstance(it, While) for it in steps)


@pytest.mark.parametrize("target", ["cpu", "sim"])
def test_random_programs_are_what_python_does(target: str) -> None:
    counts = [run(seed, target) for seed in (range(6) if target == "cpu" else range(8, 11))]
    assert min(np.sum(counts, 0)) >= 5


@pytest.mark.parametrize("target", ["parsed", "sm_90a"])
def test_bits_stay(target: str) -> None:
    for seed in range(12, 14):
        check(random_program(seed), target)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_random_programs_in_a_sweep(first: int) -> None:
    for seed in range(first, first + 100):
        run(seed)
        check(random_program(seed), "parsed" if seed % 2 else "sm_80", is_processor=bool(seed % 2))


# --- planted mistakes ---


MISTAKES: list[tuple[Mutation, Callable[[], Any]]] = [
    (
        Mutation(
            "planning", "a while is over with each call in it", planning, "_laid",
            edited("min(whiles, default=(time, time))", "(time, time)"),
        ),
        lambda: run(4),
    ),
    (
        Mutation(
            "planning", "a condition needs no memory", planning, "_accesses",
            edited("[(step.unless, False)] if step.unless else []", "[]"),
        ),
        lambda: run(0),
    ),
    (
        Mutation(
            "calls", "a condition is nothing that is read", calls.Calls, "reads",
            edited("reads_of(call)", "[it for it in reads_of(call) if str(it.dtype) != 'bool']"),
        ),
        test_what_a_while_carries_stays,
    ),
    (
        Mutation(
            "drop_dead", "a condition names nothing", redundancy, "tensors_named",
            edited("*map(reads_of, steps)", "*map(reads_of, [it for it in steps if isinstance(it, Call)])"),
        ),
        branches.test_branches_in_loops_choose_by_steps,
    ),
    (
        Mutation(
            "specialize", "a while is a branch", specialize._Steps, "each",
            edited("line.append(Leap(start))", ""),
        ),
        lambda: run(2),
    ),
    (
        Mutation(
            "specialize", "one body of a branch follows the other", specialize._Steps, "each",
            edited("line[over] = Leap(len(line))", "line[over] = Leap(over + 1)"),
        ),
        lambda: run(2),
    ),
]  # fmt: skip


def is_shown(shown_by: Callable[[], Any]) -> bool:
    try:
        shown_by()
    except Exception:  # of any kind: the mistake was no success
        return True
    return False


@pytest.mark.parametrize(("mistake", "shown_by"), MISTAKES, ids=[str(it) for it, _ in MISTAKES])
def test_a_mistake_is_shown(mistake: Mutation, shown_by: Callable[[], Any]) -> None:
    assert not is_shown(shown_by)
    with mistake.planted():
        assert is_shown(shown_by)
