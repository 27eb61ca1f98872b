"""Replicated elements that get their value from what their owners did before.

Random programs are run worker by worker, in plain Python, with values that tell how they came about:
where the copies of an element differ, the proofs must have said so.
"""

from __future__ import annotations

import random
from typing import Any

from taskc.ir.mapping import Mapping
from taskc.passes.proofs.program import collect
from taskc.passes.proofs.tiles import tile_findings
from tests.passes.proofs.programs import Case, cases, check

CROSSED = "mapping((2,), 4, [[(0,), (1,)], [(1,), (0,)], [(0,), (1,)], [(1,), (0,)]])"
MAPPINGS = (
    "spatial(2).replicate(2)", "spatial(2).replicate(2)", "repeat(2).replicate(4)", CROSSED,
    "replicate(2).spatial(2)", "repeat(2).replicate(4).within(1)",
)  # fmt: skip
NESTED = ("spatial(2)", "spatial(2).repeat(2)", "mapping((2,), 2, [[(0,), (1,)], [(1,), (0,)]])")
WORKERS = ("i", "1 - i", "worker % 2", "worker // 2", "0")
UPDATES = ("c = c + a[i]", "c = c + 1.0", "d = d + a[i]", "d = d * 2.0", "pass")
INNER = ("d = d + a[j]", "d = d + 1.0", "c = c + a[j]", "d = d + c")
VALUES = ("d", "c", "a[i] + d", "t[0] + a[i]", "t[i] + a[i]")


class Program:
    """each i: cells c (of the worker) and d (of the task) are updated, and t[i] made of them."""

    def __init__(self, seed: int) -> None:
        pick = random.Random(seed)
        self.owners = pick.choice(MAPPINGS)
        self.nested = pick.choice(NESTED)
        self.worker = pick.choice(WORKERS)
        self.update = pick.choice(UPDATES)
        self.inner = pick.choice(INNER)
        self.value = pick.choice(VALUES)

    @property
    def text(self) -> str:
        return f"""
        tile t: f32[2] by {self.owners} = 0.0
        local c: f32[()] = 0.0
        each i in {self.owners}:
            local d: f32[()] = 0.0
            {self.update}
            each j in {self.nested} on {self.worker}:
                {self.inner}
            t[i] = {self.value}
        """

    def copies(self) -> list[dict[int, list[Any]]]:
        """What each worker writes to each element of its own copy, in order."""
        owners, nested = Mapping.parse(self.owners), Mapping.parse(self.nested)
        result = []
        for worker in range(4):
            names: dict[str, Any] = {
                "a": [Term(f"a{n}") for n in range(4)],
                "c": Term("0"),
                "worker": worker,
            }
            names["t"] = [Term("0"), Term("0")]
            written: dict[int, list[Any]] = {}
            for task in owners(worker):
                if task is None:
                    continue
                names |= {"i": task[0], "d": Term("0")}
                exec(self.update, {}, names)
                for inner in nested(eval(self.worker, {}, names)):
                    names["j"] = inner[0]
                    exec(self.inner, {}, names)
                names["t"][task[0]] = value = eval(self.value, {}, names)
                written.setdefault(task[0], []).append(value)
            result.append(written)
        return result

    def agrees(self) -> bool:
        everyone = self.copies()
        return all(
            written[element] == other[element]
            for written in everyone
            for other in everyone
            for element in written.keys() & other.keys()
        )


class Term(str):
    """A value that is the text of how it was computed."""

    def __add__(self, other: object) -> Term:
        return Term(f"({self} + {other})")

    def __mul__(self, other: object) -> Term:
        return Term(f"({self} * {other})")


def test_what_is_accepted_agrees() -> None:
    accepted = agreeing = 0
    for seed in range(700):
        program = Program(seed)
        errors = list(tile_findings(collect(Case("", "a: f32[4]", program.text).kernel())))
        agrees = program.agrees()
        assert agrees or errors, program.text
        agreeing += agrees
        accepted += not errors
    assert accepted > agreeing * 0.6, (accepted, agreeing)


@cases(
    Case(
        "a sum over a nested loop, the same for all owners", "a: f32[4]",
        """
        tile t: f32[4] by spatial(4).replicate(2) = 0.0
        each i in spatial(4).replicate(2):
            local total: f32[()] = 0.0
            each j in spatial(4).repeat(2) on i:
                total = total + a[j // 2]
            t[i] = total
        """,
        workers=8,
    ),
    Case(
        "a sum over a nested loop, each owner's its own", "a: f32[4]",
        """
        tile t: f32[4] by spatial(4).replicate(2) = 0.0
        each i in spatial(4).replicate(2):
            local total: f32[()] = 0.0
            each j in spatial(4) on worker % 4:
                total = total + a[j]
            t[i] = total
        """,
        "the copies of `t` may get different values: each worker has its own `j`", "t[i]",
        "tc.reduce", workers=8,
    ),
    Case(
        "a sum of what came before, in another order", "a: f32[2]",
        f"""
        tile t: f32[2] by {CROSSED} = 0.0
        local total: f32[()] = 0.0
        each i in {CROSSED}:
            total = total + a[i]
            t[i] = total
        """,
        "the copies of `t` may get different values: each worker has its own `i`", "t[i]",
    ),
    Case(
        "a count of tasks", "a: f32[2]",
        f"""
        tile t: f32[2] by {CROSSED} = 0.0
        local total: f32[()] = 0.0
        each i in {CROSSED}:
            total = total + 1.0
            t[i] = total
        """,
        "the copies of `t` may get different values: each worker has its own `i`", "t[i]",
    ),
    Case(
        "a sum of what came before, in the same order", "a: f32[2]",
        """
        tile t: f32[2] by repeat(2).replicate(4) = 0.0
        local total: f32[()] = 0.0
        each i in repeat(2).replicate(4):
            total = total + a[i]
            t[i] = total
        """,
    ),
    Case(
        "another element, which some owners have written already", "a: f32[2]",
        f"""
        tile t: f32[2] by {CROSSED} = 0.0
        each i in {CROSSED}:
            t[i] = t[0] + a[i]
        """,
        "the copies of `t` may get different values: each worker has its own `i`", "t[i] =",
    ),
)  # fmt: skip
def test_lockstep(case: Case) -> None:
    check(case, tile_findings)
