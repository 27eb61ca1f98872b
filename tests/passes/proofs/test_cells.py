"""Bounds of integer variables: random loops, run in plain Python, never leave them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from taskc.passes.proofs.accesses import cell_ranges, collect
from taskc.passes.proofs.bounds import bounds_findings
from taskc.passes.proofs.races import race_findings
from tests.passes.proofs.programs import Case, cases, check

CONDITIONS = ("s > 0", "s < 20", "t <= 9", "t > s", "s != 4", "s >= 2 and t < 30")
VALUES = (
    "s // 2", "s + 1", "s * 2", "t - 1", "1 - t", "s + t", "t // 2", "7", "s % 5", "-s", "max(s, t)",
    "0", "t * 3 + 1", "min(t + 1, 6)",
)  # fmt: skip


class Program:
    """A loop over assignments to s and t, some of them conditional."""

    def __init__(self, seed: int) -> None:
        pick = random.Random(seed)
        self.start = pick.choice((0, 1, 8, 31)), pick.choice((0, 2, -3))
        self.condition = pick.choice(CONDITIONS)
        self.updates = [
            (pick.choice((None, None, *CONDITIONS)), pick.choice("st"), pick.choice(VALUES))
            for _ in range(pick.choice((1, 2, 2, 3)))
        ]

    @property
    def text(self) -> str:
        lines = [f"local s: i64 = {self.start[0]}", f"local t: i64 = {self.start[1]}"]
        lines.append(f"while {self.condition}:")
        for condition, name, value in self.updates:
            indent = "    "
            if condition is not None:
                lines.append(f"    if {condition}:")
                indent = "        "
            lines.append(f"{indent}{name} = {value}")
        return "\n".join(lines)

    def values(self) -> tuple[set[int], set[int]]:
        names: dict[str, Any] = {"s": self.start[0], "t": self.start[1], "max": max, "min": min}
        seen = {self.start[0]}, {self.start[1]}
        for _ in range(80):
            if not eval(self.condition, {}, names):
                break
            for condition, name, value in self.updates:
                if condition is None or eval(condition, {}, names):
                    names[name] = (eval(value, {}, names) + 2**63) % 2**64 - 2**63
                    seen["st".index(name)].add(names[name])
        return seen


def test_values_stay_in_their_bounds() -> None:
    finite = 0
    for seed in range(500):
        program = Program(seed)
        ranges = cell_ranges(Case("", "n: i64", program.text).kernel())
        for cell, interval in ranges.items():
            seen = program.values()["st".index(cell.name)]
            low, high = interval
            assert low is not None
            assert high is not None
            assert low <= min(seen), (program.text, str(interval))
            assert max(seen) <= high, (program.text, str(interval))
            finite += high - low < 1000
    assert finite > 300, finite


@cases(
    Case(
        "halving", "a: f32[9]",
        """
        local s: i64 = 8
        shared t: f32[4]
        while s > 0:
            each i in spatial(4):
                t[i] = a[s]
            s = s // 2
        """,
    ),
    Case(
        "halving, behind the loop", "a: f32[8]",
        """
        local s: i64 = 8
        shared t: f32[4]
        while s > 0:
            s = s // 2
        each i in spatial(4):
            t[i] = a[s - 1]
        """,
        "can't prove that index `s - 1` of `a` is at least 0", "a[s",
    ),
    Case(
        "doubling", "a: f32[64]",
        """
        local s: i64 = 1
        shared t: f32[4]
        while s < 64:
            each i in spatial(4):
                t[i] = a[s]
            s = s * 2
        """,
    ),
    Case(
        "doubling, behind the loop", "a: f32[126]",
        """
        local s: i64 = 1
        shared t: f32[4]
        while s < 64:
            s = s * 2
        each i in spatial(4):
            t[i] = a[s]
        """,
        "can't prove that index `s` of `a` is below its extent 126", "a[s]",
    ),
    Case(
        "what a store to something else leaves in force", "n: i64",
        """
        shared t: f32[32] = 0.0
        local s: i64 = 16
        while s > 0:
            each i in spatial(4):
                if i < s:
                    if t[i + s] > t[i]:
                        t[i] = 1.0
                        t[i] = t[i + s]
            s = s // 2
        """,
    ),
    Case(
        "a private counter that another path sets", "a: f32[8]",
        """
        shared t: f32[4]
        each i in spatial(4):
            local s: i64 = 0
            while s < 8:
                t[i] = a[s]
                if s == 3:
                    s = 6
                else:
                    s = s + 1
        """,
    ),
    Case(
        "counted on before use", "a: f32[8]",
        """
        shared t: f32[4]
        each i in spatial(4):
            local s: i64 = 0
            while s < 8:
                s = s + 1
                t[i] = a[s]
        """,
        "can't prove that index `s` of `a` is below its extent 8", "a[s]",
    ),
)  # fmt: skip
def test_bounds(case: Case) -> None:
    check(case, bounds_findings)


BITONIC = """
shared t: f32[16] = 0.0
local s: i64 = 8
while s > 0:
    each i in spatial(16):
        let other = {}
        if other > i and other < 16:
            let low = t[i]
            t[i] = t[other]
            t[other] = low
    s = s // 2
"""


@pytest.mark.parametrize(
    ("other", "is_right"),
    [("i ^ s", True), ("i + s", False), ("i ^ s ^ 1", True), ("i | s", False)],
)
def test_partners(other: str, is_right: bool) -> None:
    program = collect(Case("", "n: i64", BITONIC.format(other), workers=16).kernel())
    assert bool(list(race_findings(program))) is not is_right


def test_a_name_from_before_the_phase() -> None:
    """What was read before the variable changed is no value of the variable in the phase."""
    body = """
    shared t: f32[16] = 0.0
    local s: i64 = 8
    while s > 0:
        let before = s
        s = s // 2
        each i in spatial(4):
            if i < 2:
                t[i + {}] = t[i + {}]
    """
    for own, other, is_right in (
        ("2 * s", "2 * s", True), ("before", "before", True), ("2 * s", "before", False),
        ("s + 4", "before", False), ("s", "s + 2", True), ("before", "s + 2", False),
    ):  # fmt: skip
        program = collect(Case("", "n: i64", body.format(own, other)).kernel())
        assert bool(list(race_findings(program))) is not is_right, (own, other)
