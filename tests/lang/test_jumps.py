"""`break` and `continue` do what Python's do, on every target and after every pass."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import CompileError, f32, i32, i64, spatial
from taskc.analysis.touches import exit_condition
from taskc.ir import nodes as ir
from taskc.ir.rewrite import walk
from taskc.passes.pipeline import lower
from tests.backend.cpu.processors import loaded_for
from tests.backend.cuda import host
from tests.lang.notebook import body_text, cell, checked
from tests.stages import same_after_every_pass

COUNT = 20
KERNEL = """
@tc.kernel(workers=8)
def k(x: i64[20], y: tc.out[i64[20]]):
    for start in tc.tiles(20, by=8):
        for i in spatial(8):
            if start + i >= 20:
                continue
            t = x[start + i]
{body}
            y[start + i] = t
"""
# Uniform: loops around phases.
AROUND = """
@tc.kernel(workers=8)
def k(x: i64[20], y: tc.out[i64[20]]):
    for b in tc.tiles(20, by=1):
        held = tc.shared(i64[1])
        t = x[b]
{body}
        for i in spatial(8):
            if i == 0:
                y[b] = t
"""
PYTHON = """
def k(t):
{body}
    return t
"""


class Bodies:
    """Random loops; `between` is put among their statements."""

    def __init__(self, seed: int, between: list[str]) -> None:
        self.pick = random.Random(seed)
        self.between = between
        self.count = 0

    def lines(self, depth: int, loops: list[str]) -> list[str]:
        found = []
        for _ in range(self.pick.randint(1, 3)):
            found += self.statement(depth, loops)
        return found

    def statement(self, depth: int, loops: list[str]) -> list[str]:
        kind = self.pick.random()
        if loops and kind < 0.2:
            return [
                f"if {self.condition(loops)}:",
                f"    {self.pick.choice(['break', 'continue'])}",
            ]
        if depth and kind < 0.45:
            found = [f"if {self.condition(loops)}:", *self.inside(depth, loops)]
            if self.pick.random() < 0.5:
                found += ["else:", *self.inside(depth, loops)]
            return found
        if depth and kind < 0.8:
            return self.loop(depth, loops)
        if loops and kind < 0.85:
            return self.between
        return [f"t = (t * {self.pick.randint(2, 9)} + {self.pick.choice([*loops, '1'])}) % 10007"]

    def inside(self, depth: int, loops: list[str]) -> list[str]:
        lines = self.lines(depth - 1, loops)
        if loops and self.pick.random() < 0.3:
            lines.append(self.pick.choice(["break", "continue"]))
        return [f"    {line}" for line in lines]

    def loop(self, depth: int, loops: list[str]) -> list[str]:
        self.count += 1
        name = f"q{self.count}"
        inside = self.inside(depth, [*loops, name])
        kind = self.pick.random()
        if kind < 0.6:
            bounds = self.pick.choice(["7", "2, 40", "30, 0, -4", "t % 9", "0, 50, 3"])
            return [f"for {name} in range({bounds}):", *inside]
        asked = "True" if kind < 0.7 else f"{name} < {self.pick.choice(['11', 't % 13'])}"
        ends = [f"    if {name} > 12:", "        break"] if asked == "True" else []
        return [f"{name} = 0", f"while {asked}:", f"    {name} += 1", *ends, *inside]

    def condition(self, loops: list[str]) -> str:
        among = self.pick.choice([*loops, "t"])
        divisor = self.pick.randint(2, 6)
        return f"(t + {among}) % {divisor} == {self.pick.randrange(divisor)}"


def made(seed: int, template: str, between: list[str]) -> tuple[ir.Kernel, list[int], str]:
    """A kernel, and what Python says of its inputs, 0 to 19."""
    written = Bodies(seed, between)
    lines = [line for _ in range(2) for line in written.loop(3, [])]
    margin = 12 if template is KERNEL else 8
    body = "\n".join(" " * margin + line for line in lines)
    space: dict[str, Any] = {}
    skipped = {line.strip() for line in between}
    python = [line for line in lines if line.strip() not in skipped]
    exec(PYTHON.format(body="\n".join(f"    {line}" for line in _passed(python))), space)
    kernel = cell(template.format(body=body))["k"].ir
    return checked(kernel), [space["k"](t) for t in range(COUNT)], body


def _passed(lines: list[str]) -> list[str]:
    """With `pass` where nothing is left of a body."""
    found = []
    for line, behind in zip(lines, [*lines[1:], ""], strict=True):
        found.append(line)
        margin = len(line) - len(line.lstrip())
        if line.endswith(":") and len(behind) - len(behind.lstrip()) <= margin:
            found.append(" " * (margin + 4) + "pass")
    return found


PHASE = ["for i in spatial(8):", "    if i == 0:", "        held[0] = t"]


@pytest.mark.each_value
@pytest.mark.parametrize("template", [KERNEL, AROUND], ids=["inside", "around"])
@pytest.mark.parametrize("seed", range(12))
def test_random_loops(seed: int, template: str) -> None:
    kernel, expected, body = made(seed, template, PHASE if template is AROUND else ["pass"])
    x, y = np.arange(COUNT), np.zeros(COUNT, np.int64)
    loaded_for(kernel).run([x, y], {})
    assert y.tolist() == expected, body
    for target in ("sm_80", "avx2"):
        if seed < 6 or target == "sm_80":
            given = [x, np.zeros(COUNT, np.int64)]
            same_after_every_pass(replace(kernel, target=target), given, expected=[x, y])


@pytest.mark.skipif(host.COMPILER is None, reason="there is no g++ to compile for the host")
def test_random_loops_in_cuda() -> None:
    cases = [made(seed, template, ["pass"]) for seed in range(8) for template in (KERNEL, AROUND)]
    lowered = [lower(replace(kernel, target="sm_80")) for kernel, _, _ in cases]
    for runnable, (_, expected, body) in zip(host.build(lowered), cases, strict=True):
        x, y = np.arange(COUNT), np.zeros(COUNT, np.int64)
        assert runnable.run([x, y]) == 0
        assert y.tolist() == expected, body


LONG = 1 << 40  # what only a loop that ends early comes to the end of


@tc.kernel(workers=16)
def first_multiples(least: i64, y: tc.out[i64[16]]):
    for i in spatial(16):
        found = -1
        for q in range(least, LONG):
            if q % (i + 7) == 0:
                found = q
                break
        y[i] = found


@tc.kernel(workers=16)
def doubled_until(limit: i32, y: tc.out[i32[16]], steps: tc.out[i64[16]]):
    t = tc.tile(i32, spatial(16), 1)
    largest = tc.shared(i32[1])
    count = 0
    for _ in range(LONG):
        for i in spatial(16):
            t[i] = 2 * t[i]
            if i == 15:
                largest[0] = t[i]
        if largest[0] > limit:
            break
        count += 1
    for i in spatial(16):
        y[i] = t[i]
        steps[i] = count


@pytest.mark.parametrize("target", ["sim", "cpu"])
def test_what_is_left_of_a_range_takes_no_time(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKC_TARGET", target)
    assert first_multiples(100).tolist() == [-(-100 // n) * n for n in range(7, 23)]
    y, steps = doubled_until(1000)
    assert (y.tolist(), steps.tolist()) == ([1024] * 16, [9] * 16)


@pytest.mark.parametrize("target", ["sm_80", "avx512"])
@pytest.mark.parametrize("definition", [first_multiples, doubled_until], ids=str)
def test_a_loop_ends_early_on_all_targets(definition: Any, target: str) -> None:
    """Barriers between phases don't stand in the way."""
    lean = lower(replace(definition.ir, target=target))
    (loop,) = [node for node in walk(lean.body) if isinstance(node, ir.For)]
    assert exit_condition(loop) is not None


def test_what_is_behind_a_jump_belongs_to_the_other_branch() -> None:
    body = """
        for q in range(8):
            if x[q] > 0:
                continue
            tc.print("{}", q)
    """
    assert body_text(body) == (
        'for q in range(8):\n    if x[q] > 0.0:\n        pass\n    else:\n        print "{}", q'
    )


def test_what_a_loop_that_may_end_stores_is_not_proved_to_be_stored() -> None:
    @tc.kernel(workers=4)
    def perhaps(x: f32[4, 8], y: tc.out[f32[4, 8]]):
        for i in spatial(4):
            for q in range(8):
                if x[i, q] < 0:
                    break
                y[i, q] = x[i, q]

    with pytest.raises(CompileError, match="elements where `goes_on` does not hold are not stored"):
        lower(perhaps.ir)


def test_an_end_that_differs_between_workers_is_no_end_of_phases() -> None:
    with pytest.raises(CompileError, match="may differ between workers"):

        @tc.kernel(workers=4)
        def differs(x: f32[4], y: tc.out[f32[4]]):
            seen = 0
            for i in spatial(4):
                if x[i] > 0:
                    seen = 1
            for _ in range(8):
                if seen > 0:
                    break
                for i in spatial(4):
                    y[i] = x[i]


@pytest.mark.parametrize("limit", [0, 5])
def test_what_the_last_turn_has_written_is_there_behind_the_loop(limit: int) -> None:
    """A barrier stands behind a loop, too, whose own are inside of what may not run."""

    @tc.kernel(workers=64)
    def last(limit: i64, y: tc.out[i64[64]]):
        kept = tc.shared(i64[64])
        for q in range(100):
            if q > limit:
                break
            for i in spatial(64):
                kept[i] = i * 100 + q
        for i in spatial(64):
            y[i] = kept[63 - i]

    expected = np.arange(63, -1, -1) * 100 + limit
    given = [limit, np.zeros(64, np.int64)]
    kernel = replace(last.ir, target="sm_80")
    same_after_every_pass(kernel, given, expected=[limit, expected])
