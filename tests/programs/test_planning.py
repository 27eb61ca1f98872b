"""Plans: words of calls, sizes, and how much memory programs of different kinds take."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import boolean, f32, i32, i64
from taskc.ir.build import index, multiply
from taskc.ir.mapping import repeat
from taskc.ir.nodes import Variable
from taskc.programs.arena import blocks_of
from taskc.programs.plan import Given, InArena, InConstant, Jump, Plan, deciding
from taskc.programs.planning import plan, waits
from taskc.programs.schedule import schedule
from taskc.runtime.machine import machine
from tests.programs.random_calls import (
    as_awaited,
    as_planned,
    busy_of,
    in_order,
    large,
    random_program,
    values_of,
)

n, q = tc.dim("n"), tc.dim("q")


@tc.kernel(workers=4)
def shifted(x: f32[q], by: f32, y: tc.out[f32[q]]):
    for start in tc.tiles(q, by=4):
        for i in tc.spatial(4):
            if start + i < q:
                y[start + i] = x[start + i] + by


@tc.kernel(workers=4)
def turned(x: f32[q], y: tc.out[f32[q]]):
    for start in tc.tiles(q, by=4):
        for i in tc.spatial(4):
            if start + i < q:
                y[start + i] = x[q - 1 - start - i]


@tc.kernel(workers=4)
def numbers(first: i64, step: tc.i8, y: tc.out[i64[q]]):
    for start in tc.tiles(q, by=4):
        for i in tc.spatial(4):
            if start + i < q:
                y[start + i] = first + (start + i) * step.to(i64)


def planned(program: tc.ProgramDefinition, **sizes: int) -> Plan:
    """The plan of the program as it is written, with nothing fused."""
    made = schedule(program.ir, machine())
    known: Mapping[Any, int] = {item: sizes[item.name] for item in deciding(made)}
    return plan(made, blocks_of(made), known)


def test_words_of_calls() -> None:
    @tc.program
    def program(x: f32[4, n], by: f32, step: i32, y: tc.out[f32[n]], z: tc.out[i64[n]]):
        fixed = tc.constant(np.ones((2, 3), np.float32))
        shifted(fixed[1], -2.0)
        t = shifted(turned(x[2]), by)
        turned(t, out=y)
        numbers(n * 2, n - 5, out=z)

    found = planned(program, n=100)
    assert (found.arena, found.alive) == (
        448,
        400,
    )  # at 0: what nobody reads, then the one that both lie in
    minus_two = int(np.float32(-2).view(np.uint32))
    (first, second, third, fourth, fifth) = [call.words for call in found.calls]
    assert first == (InConstant(0, 12), minus_two, InArena(0), 3)
    assert second == (Given(0, 800), InArena(0), 100)
    assert third == (InArena(0), Given(1), InArena(0), 100)
    assert fourth == (InArena(0), Given(3), 100)
    assert fifth == (200, 95, Given(4), 100)
    assert [call.kernel for call in found.calls] == [0, 1, 0, 1, 2]
    assert found == planned(program, n=100)


def test_jumps_of_branches_and_whiles() -> None:
    """Numbers of steps, and where flags lie: an argument, a part of one, a temporary."""

    @tc.program
    def program(x: f32[8], flags: boolean[2], y: tc.inout[f32[8]]):
        goes_on = tc.compute((), lambda: flags[1], name="copy")
        for t in tc.steps(2):
            with tc.branch(flags[t]):
                shifted(x, 1, out=tc.empty(f32[8]))
                turned(x, out=tc.empty(f32[8]))
            with tc.otherwise():
                turned(x, out=tc.empty(f32[8]))
        for _ in tc.steps_while(goes_on):
            with tc.branch(flags[0]):
                shifted(x, 1, out=tc.empty(f32[8]))
            tc.compute((), lambda: False, name="no", out=goes_on)

    found = planned(program)
    shown = [step if isinstance(step, Jump) else step.kernel for step in found.steps]
    assert shown[:11] == [
        0, Jump(5, Given(1, 0)), 1, 2, Jump(6), 2, Jump(10, Given(1, 1)), 1, 2, Jump(11), 2,
    ]  # fmt: skip
    head, *body = shown[11:]
    assert isinstance(head, Jump)
    assert (head.to, type(head.unless)) == (16, InArena)
    assert body == [Jump(14, Given(1, 0)), 1, 3, Jump(11)]
    assert len(found.calls) == 9


def test_what_plans_depend_on() -> None:
    """Dimensions, and a scalar that says where a part begins; not one that is handed on."""

    @tc.program
    def program(x: f32[n + 1, 8], by: f32, step: i64, first: i64, y: tc.out[i64[q]]):
        shifted(x[0], by)
        numbers(first, 1, out=y)

    made = program.ir
    (view,) = made.views
    step = made.parameters[2]
    assert isinstance(step, Variable)
    assert [item.name for item in deciding(made)] == ["n", "q"]
    made = replace(made, views=(replace(view, offset=multiply(step, index(8))),))
    assert [item.name for item in deciding(made)] == ["n", "q", "step"]
    sizes = dict(zip(deciding(made), (3, 2, 2), strict=True))
    assert plan(made, blocks_of(made), sizes).calls[0].words[0] == Given(0, 64)


def test_a_layout_s_padding_has_its_place() -> None:
    laid = f32[5, 6].laid(repeat(1, 2) * repeat(8, 4))

    @tc.kernel(workers=1)
    def put(x: f32[5, 6], y: tc.out[laid]):
        for i, j in tc.repeat(5, 6):
            y[i, j] = x[i, j]

    @tc.program
    def program(x: f32[5, 6]):
        put(x)

    assert planned(program).alive == 64 * 4


def of(size: Any, *parts: Any) -> Any:
    """Something as large as that, which depends on all of these, and takes the place of none."""
    if len(parts) == 1:
        (one,) = parts
        return tc.compute((size,), lambda i: one[0])
    first, second = parts
    return tc.compute((size,), lambda i: first[0] + second[0])


def chain() -> tuple[tc.ProgramDefinition, dict[str, int]]:
    """Layers of different sizes, each read by the next alone."""

    @tc.program
    def program(x: f32[1 << 16]):
        for number in range(30):
            size = 1 << (10 + number * 7 % 6)
            x = of(size, x)

    return program, {}


def residual() -> tuple[tc.ProgramDefinition, dict[str, int]]:
    """Blocks around which what they get is led."""

    @tc.program
    def program(x: f32[n]):
        for _ in range(8):
            inner = turned(turned(turned(x)))
            around = x
            x = of(n, inner, around)
        turned(x)

    return program, {"n": 10_000}


def branches() -> tuple[tc.ProgramDefinition, dict[str, int]]:
    """Parts of different lengths and sizes that are put together at the end."""

    @tc.program
    def program(x: f32[1 << 16]):
        ends = []
        for branch in range(6):
            part = x
            for depth in range(branch + 1):
                size = 5000 + 700 * ((branch + depth) % 4)
                part = of(size, part)
            ends.append(part)
        total = ends[0]
        for branch, end in enumerate(ends[1:]):
            total = of(5000 + 700 * branch, total, end)

    return program, {}


def nested() -> tuple[tc.ProgramDefinition, dict[str, int]]:
    """What goes down level by level, each half as large, is needed on the way up again."""

    @tc.program
    def program(x: f32[1 << 14]):
        levels, size = [], 1 << 14
        for _ in range(6):
            x = of(size, x)
            levels.append((x, size))
            size //= 2
        for level, wide in reversed(levels):
            x = of(wide, x, level)
            x = turned(x)

    return program, {}


def layer() -> tuple[tc.ProgramDefinition, dict[str, int]]:
    """A transformer's layers: wide and narrow, queries, keys and values at one time."""
    tokens, wide = 128, 768

    @tc.program
    def program(x: f32[tokens * wide]):
        for _ in range(3):
            q, k, v = (of(tokens * wide, x) for _ in range(3))
            scores = turned(of(12 * tokens * tokens, q, k))
            x = of(tokens * wide, of(tokens * wide, scores, v), x)
            inner = of(tokens * wide * 4, x)
            x = of(tokens * wide, inner, x)

    return program, {}


@pytest.mark.parametrize("make", [chain, residual, branches, nested, layer])
def test_arenas_are_hardly_larger_than_what_is_alive_at_once(make: Any) -> None:
    program, sizes = make()
    found = planned(program, **sizes)
    assert 0 < found.alive <= found.arena <= 1.1 * found.alive


@pytest.mark.parametrize(("bigs", "is_beside"), [(2, True), (8, False)])
def test_as_much_memory_again_for_each_thread_and_no_more(bigs: int, is_beside: bool) -> None:
    """A chain of small tensors, and behind it large ones, each read at once: beside the chain all would be alive."""

    @tc.program
    def program(x: f32[4096], y: tc.out[f32[bigs, 4]]):
        small = x[0:4]
        for _ in range(bigs + 1):
            small = large(small, small, 1)
        for number in range(bigs):
            part = large(x, x, 1)[0:4]
            large(part, part, 1, out=y[number])

    made = program.ir
    alone = plan(made, blocks_of(made), {})
    found = plan(made, blocks_of(made), {}, 2, busy_of(made))
    assert any(call.beside for call in found.calls) == is_beside
    assert found.arena <= 3 * alone.arena
    assert (found == alone) != is_beside


def check_beside(seed: int) -> int:
    """How many calls of a random program run beside another one: no hazard is lost by it, and nothing else."""
    choose = random.Random(seed)
    program = random_program(choose)
    found = plan(program, blocks_of(program), {}, choose.randint(2, 5), busy_of(program))
    values = values_of(program, seed)
    expected = in_order(program, values)
    given = as_planned(program, found, values, choose)
    for ours, theirs in zip(given, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs, str(seed))
        assert not np.isnan(theirs).any()
    return sum(call.beside > 0 for call in found.calls)


def test_calls_that_wait_for_no_more_than_they_have_to() -> None:
    """In memory that is used again, each behind those only that it waits for; without one of these it goes wrong."""
    needed = kept = 0
    for seed in range(300):
        choose = random.Random(seed)
        program = random_program(choose)
        found = plan(program, blocks_of(program), {}, choose.randint(1, 5), busy_of(program))
        values, awaited = values_of(program, seed), waits(program, found)
        expected = in_order(program, values)

        def is_right(awaited: list[set[int]]) -> bool:
            given = as_awaited(program, found, awaited, values, choose)
            return all(map(np.array_equal, given, expected))

        for _ in range(5):
            assert is_right(awaited), seed
        for number, others in enumerate(awaited):
            for other in others:
                less = [*awaited[:number], others - {other}, *awaited[number + 1 :]]
                needed += not all(is_right(less) for _ in range(5))
                kept += 1
    assert kept > 1000
    assert needed > kept / 3


def test_random_programs_keep_every_hazard() -> None:
    assert sum(check_beside(seed) for seed in range(300)) > 300


@pytest.mark.sweep
def test_many_random_programs_keep_every_hazard() -> None:
    assert sum(check_beside(seed) for seed in range(300, 10_300)) > 10_000
