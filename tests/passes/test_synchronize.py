"""Barriers where workers meet, as narrow as they can be, and no more of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.analysis import accesses
from taskc.analysis.accesses import element_numbers
from taskc.backend.sim import run
from taskc.ir import nodes as ir
from taskc.ir.rewrite import walk
from taskc.passes import synchronize as module
from taskc.passes.lower_rings import lower_rings
from taskc.passes.synchronize import is_synchronized, synchronize
from tests.each_value import few
from tests.passes.kernels import (
    after,
    arguments_for,
    before_and_after,
    keeps_its_result,
    kernel,
    nodes,
    through,
)
from tests.random_programs.generator import program
from tests.random_programs.runner import parsed
from tests.stages import changes

Golden = Callable[[str, str], None]
SEED = 7


def small(body: str, workers: int = 64, **options: str) -> ir.Kernel:
    return kernel(body, "x: f32[64], c: inout f32[64]", workers=workers, **options)


def barriers(start: ir.Kernel) -> list[str]:
    return [barrier.scope for barrier in nodes(after(start, "synchronize"), ir.Barrier)]


def where(statement: ir.Statement) -> list[str]:
    """What stands in front of which, in the order of the program: barriers, loops, accesses."""
    match statement:
        case ir.Sequence():
            return [word for inner in statement.statements for word in where(inner)]
        case ir.For() | ir.While():
            return ["loop", *(f"  {word}" for word in where(statement.body)), "end"]
        case ir.If():
            otherwise = [] if statement.otherwise is None else where(statement.otherwise)
            return ["if", *(f"  {word}" for word in (*where(statement.then), *otherwise)), "end"]
        case ir.Barrier():
            return [statement.scope]
        case ir.Each() | ir.Move():
            stores = [n.tensor.name for n in walk(statement) if isinstance(n, (ir.Store, ir.Move))]
            return [f"write {stores[0]}"]
    return []


def test_golden(golden: Golden) -> None:
    start = small(
        """
        shared s: f32[64]
        shared t: f32[64]
        each i in spatial(64):
            s[i] = x[i]
        for k in range(3):
            each i in spatial(64):
                t[i] = s[i] + 1.0
            each i in spatial(64):
                s[i] = t[i // 32 * 32 + (i + k) % 32]
        each i in spatial(64):
            c[i] = s[63 - i]
        """
    )
    start = after(start, "overlay")
    golden("passes/synchronize", before_and_after(start, through(start, synchronize)))


SHARED = """
shared s: f32[64]
each i in spatial(64):
    s[i] = x[i]
each i in spatial(64):
    c[i] = s[{index}]
"""


@pytest.mark.parametrize(
    ("index", "scopes"),
    [
        ("i", []),
        ("i.to(i32).to(i64)", []),
        ("(63 - i).to(i8).to(i64)", ["block"]),
        ("i // 32 * 32 + 31 - i % 32", ["warp"]),
        ("i // 32 * 32", ["warp"]),
        ("63 - i", ["block"]),
        ("0", ["block"]),
        ("c[i].to(i64) % 64", ["block"]),  # who knows
    ],
)
def test_as_narrow_as_possible(index: str, scopes: list[str]) -> None:
    assert barriers(small(SHARED.format(index=index), stage="selected")) == scopes


@pytest.mark.parametrize(
    ("condition", "scopes"),
    [
        ("i < 1 and s[0] > 0.0", []),
        ("i > 0 or s[0] > 0.0", []),
        ("i > 0 and s[0] > 0.0", ["block"]),
        ("i < 1 or s[0] > 0.0", ["block"]),
    ],
)
def test_a_lazy_operand_is_read_by_those_who_ask(condition: str, scopes: list[str]) -> None:
    body = SHARED.format(index="i").replace("c[i] =", f"if {condition}:\n        c[i] =")
    assert barriers(small(body, stage="selected")) == scopes


@pytest.mark.parametrize(
    ("index", "target", "scope"),
    [
        ("i // 128 * 128 + 127 - i % 128", "sm_90a", "warpgroup"),
        ("i // 128 * 128 + 127 - i % 128", "sm_80", "block"),
        ("i // 32 * 32 + 31 - i % 32", "sm_90a", "warp"),
        ("255 - i", "sm_90a", "block"),
    ],
)
@pytest.mark.parametrize("loop", ["if x[0] < 9.0:", "for k in range(2):"], ids=["branch", "loop"])
def test_warpgroups_meet_by_themselves(index: str, target: str, scope: str, loop: str) -> None:
    """Where the target has barriers for them; in front of a loop, too. Each barrier is needed."""
    start = kernel(
        f"""
        shared s: f32[256]
        each i in spatial(256):
            s[i] = x[i]
        {loop}
            each i in spatial(256):
                c[i] = s[{index}]
        """,
        "x: f32[256], c: inout f32[256]",
        workers=256,
        target=target,
    )
    made = after(start, "synchronize")
    (barrier,) = nodes(made, ir.Barrier)
    assert barrier.scope == scope
    keeps_its_result(start)
    fewer = lower_rings(without(made, barrier))
    assert {finding.kind for finding in run(fewer, arguments_for(fewer)).findings} == {"race"}


def test_a_barrier_names_what_it_orders() -> None:
    (barrier,) = nodes(after(small(SHARED.format(index="63 - i")), "synchronize"), ir.Barrier)
    assert barrier.orders == "write of s in line 4, read of s in line 6"


def test_reads_do_not_meet() -> None:
    body = """
        each i in spatial(64):
            c[i] = x[63 - i]
        each i in spatial(64):
            c[i] = c[i] + x[0]
        """
    assert barriers(small(body)) == []


def test_atomics_do_not_meet_but_with_reads() -> None:
    body = """
        shared n: f32[1]
        each i in spatial(64):
            if i == 0:
                n[0] = 0.0
        each i in spatial(64):
            atomic n[0] += x[i]
        each i in spatial(64):
            atomic n[0] += 1.0
        each i in spatial(64):
            c[i] = n[0]
        """
    assert barriers(small(body, stage="selected")) == ["block", "block"]


def test_what_an_atomic_gave_is_another_number_in_another_iteration() -> None:
    body = """
        shared n: i64[1]
        shared s: f32[260]
        for k in range(4):
            each i in spatial(64):
                let old: i64 = atomic n[0] += 1
                if old >= 0 and old < 256:
                    atomic s[old] += x[i]
                    c[i] = s[old + 1]
        """
    assert barriers(small(body, stage="selected")) == ["block"]


def test_global_memory_that_is_written_and_read() -> None:
    body = """
        each i in spatial(64):
            c[i] = x[i]
        each i in spatial(64):
            c[63 - i] = c[63 - i] + {}
        """
    assert barriers(small(body.format("1.0"))) == ["block"]
    assert barriers(small(body.replace("63 - i", "i").format("1.0"))) == []


COUNT = """
shared n: i64[1]
each i in spatial(64):
    if i == 0:
        n[0] = 3
{}
    each i in spatial(64):
        if i == 0:
            n[0] = n[0] - 1
"""


@pytest.mark.parametrize(
    ("loop", "around"),
    [
        ("for k in range(n[0]):", ["loop", "  block", "  write n", "end"]),
        ("for k in range(3 - n[0]):", ["loop", "  block", "  write n", "end"]),
        # The condition is asked again behind the body.
        ("while n[0] > 0:", ["loop", "  block", "  write n", "  block", "end"]),
    ],
)
def test_what_a_loop_asks_waits_for_writes(loop: str, around: list[str]) -> None:
    made = after(small(COUNT.format(loop), stage="selected"), "synchronize")
    assert where(made.body) == ["write n", "block", *around]
    assert is_synchronized(made)
    assert run(lower_rings(made), arguments_for(made)).ok


def test_one_barrier_for_many() -> None:
    body = """
        shared s: f32[64]
        shared t: f32[64]
        each i in spatial(64):
            s[i] = x[i]
        each i in spatial(64):
            t[i] = x[i]
        each i in spatial(64):
            c[i] = s[63 - i]
        each i in spatial(64):
            c[i] = c[i] + t[63 - i] + s[(i + 1) % 64]
        """
    assert barriers(small(body)) == ["block"]


LOOP = """
shared s: f32[64]
each i in spatial(64):
    s[i] = x[i]
for k in range({turns}):
    each i in spatial(64):
        c[i] = c[i] + s[{read}]
    {store}
"""


@pytest.mark.parametrize(
    ("read", "store", "placed"),
    [
        # Only what stood before the loop: once, in front of it.
        ("63 - i", "pass", ["write s", "block", "loop", "  write c", "end"]),
        # A turn overwrites what others still read, and the next one reads it.
        ("63 - i", "each i in spatial(64):\n        s[i] = c[i]",
         ["write s", "loop", "  block", "  write c", "  block", "  write s", "end"]),
        # Everybody stays with its own.
        ("i", "each i in spatial(64):\n        s[i] = c[i]",
         ["write s", "loop", "  write c", "  write s", "end"]),
        ("i // 32 * 32 + 31 - i % 32", "each i in spatial(64):\n        s[i] = c[i]",
         ["write s", "loop", "  warp", "  write c", "  warp", "  write s", "end"]),
    ],
    ids=["in front of it", "in it", "nowhere", "of the warp"],
)  # fmt: skip
def test_loops(read: str, store: str, placed: list[str]) -> None:
    start = small(LOOP.format(turns=3, read=read, store=store))
    body = after(start, "synchronize").body
    assert where(body) == placed
    keeps_its_result(start)


def test_loops_that_an_access_does_not_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the same access in all their iterations, and is compared with another only once."""
    asked = []
    compare = module.conflict_scope
    monkeypatch.setattr(module, "conflict_scope", lambda *args: asked.append(0) or compare(*args))
    body = """
        shared s: f32[64]
        for a in range(2):
            for b in range(3):
                for d in range(4):
                    for e in range(5):
                        each i in spatial(64):
                            s[i] = x[i]
                        each i in spatial(64):
                            c[i] = s[i]
        """
    assert barriers(small(body)) == []
    assert len(asked) <= 8


def test_uniform_branches() -> None:
    start = small(
        """
        shared s: f32[64]
        each i in spatial(64):
            s[i] = x[i]
        if x[0] < 3.0:
            each i in spatial(64):
                c[i] = s[i] + 1.0
            each i in spatial(64):
                c[i] = c[i] + s[63 - i]
        each i in spatial(64):
            s[i] = x[63 - i]
        """
    )
    placed = where(after(start, "synchronize").body)
    expected = ["write s", "block", "if", "  write c", "  write c", "end", "block", "write s"]
    assert placed == expected
    keeps_its_result(start)


def test_slots_of_a_ring_are_distinct() -> None:
    """The slot that is filled is not the one that is read: one barrier a step."""
    start = kernel(
        """
        tile acc: f32[8, 8] by spatial(8, 8) = 0.0
        pipeline p in 64 by 8 stages=3:
            constant shared s: f32[8, 8]
            move s[i, j] = x[p + i, j] for (i, j) in (8, 8)
            each (i, j) in spatial(8, 8):
                acc[i, j] = acc[i, j] + s[7 - i, j]
        move c[i, j] = acc[i, j] for (i, j) in (8, 8)
        """,
        "x: f32[64, 8], c: out f32[8, 8]",
        workers=64,
        target="sm_80",
    )
    assert barriers(start) == ["block"]
    assert barriers(replace(start, target="generic")) == ["block"]


@pytest.mark.parametrize(
    ("read", "orders"),
    [
        ("", "read of s_full in line 3, write of s_full in line 4"),
        ("s[7 - i, j]", "read of s in line 7, write of s in line 5"),
    ],
)
def test_mbarriers_are_set_up_again_when_all_have_waited(read: str, orders: str) -> None:
    """Where nobody reads what has arrived, nothing else has the workers meet."""
    store = f"each (i, j) in spatial(8, 8): c[i, j] = c[i, j] + {read}" if read else ""
    store = store.replace(": ", ":\n" + 24 * " ")
    start = kernel(
        f"""
        for t in range(2):
            pipeline p in 16 by 8 stages=2 transport=tma:
                constant shared s: f32[8, 8]
                move s[i, j] = x[p + i, j] for (i, j) in (8, 8)
                {store}
        """,
        "x: f32[64, 8], c: inout f32[8, 8]",
        workers=64,
        target="sm_90a",
    )
    (barrier,) = nodes(after(start, "synchronize"), ir.Barrier)
    assert (barrier.scope, barrier.orders) == ("block", orders)
    keeps_its_result(start)


def test_bytes_that_two_tensors_share() -> None:
    start = small(
        """
        shared s: f32[64]
        each i in spatial(64):
            s[i] = x[i]
        each i in spatial(64):
            c[i] = s[i]
        shared t: f32[64]
        each i in spatial(64):
            t[63 - i] = x[i]
        each i in spatial(64):
            c[i] = c[i] + t[63 - i]
        """
    )
    made = after(start, "overlay")
    assert {n.tensor.offset for n in nodes(made, ir.Allocate)} == {0}
    (barrier,) = nodes(synchronize(made), ir.Barrier)
    assert "of s" in barrier.orders
    assert "of t" in barrier.orders
    keeps_its_result(start)


OVERLAID = """
shared s: f32[64]
each i in spatial(64):
    s[i] = x[i]
each i in spatial(64):
    c[i] = s[i]
shared t: {type}
each i in spatial(64):
    {stores}
each i in spatial(64):
    c[i] = c[i] + {value}
"""


@pytest.mark.parametrize(
    ("type", "stores", "value", "scopes"),
    [
        ("f32[64]", "t[i] = x[i]", "t[i]", []),
        ("u32[64]", "t[i] = x[i].to(u32)", "t[i].to(f32)", []),
        ("f32[8, 8]", "t[i // 8, i % 8] = x[i]", "t[i // 8, i % 8]", []),
        ("f32[16, 4].laid(repeat(16, 5))", "t[i // 4, i % 4] = x[i]", "t[i // 4, i % 4]", ["block"]),
        ("f32[2, 32].swizzled(1, 0, 5)", "t[i // 32, i % 32] = x[i]", "t[i // 32, i % 32]", ["block"]),
        ("u16[128]", "t[2 * i] = x[i].to(u16)\n    t[2 * i + 1] = x[i].to(u16)", "t[2 * i].to(f32)", []),
        ("u16[64]", "t[i] = x[i].to(u16)", "t[i].to(f32)", ["block"]),
        ("f64[64]", "t[i] = x[i].to(f64)", "t[i].to(f32)", ["block"]),
        ("f32[64]", "t[i // 32 * 32 + 31 - i % 32] = x[i]", "t[i // 32 * 32 + 31 - i % 32]", ["warp"]),
    ],
)  # fmt: skip
def test_a_worker_needs_no_barrier_for_its_own_bytes(
    type: str, stores: str, value: str, scopes: list[str]
) -> None:
    """Whatever tensor they were of, if it has no layout. No barrier is one too many or missing."""
    start = small(OVERLAID.format(type=type, stores=stores, value=value))
    made = after(start, "overlay")
    assert {n.tensor.offset for n in nodes(made, ir.Allocate)} == {0}
    made = synchronize(made)
    found = nodes(made, ir.Barrier)
    assert [barrier.scope for barrier in found] == scopes
    keeps_its_result(start)
    for barrier in found if "(" not in type else []:  # layouts and swizzles are unknown bytes
        fewer = lower_rings(without(made, barrier))
        report = run(fewer, arguments_for(fewer))
        assert {finding.kind for finding in report.findings} == {"race"}, barrier.orders


@tc.kernel(workers=64)
def above_the_least(x: tc.i32[64], y: tc.out[tc.i32[64]]):
    mine = tc.tile(tc.i32, tc.spatial(64), 0)
    for b in tc.spatial(64):
        mine[b] = x[b]
    below = tc.scan(mine, 0, "+")
    least = tc.reduce(below, 0, "min")
    for b in tc.spatial(64):
        y[b] = below[b] - least[0]


def test_what_a_worker_has_scanned_it_may_overwrite() -> None:
    """The parts of the reduction lie where those of the scan lay, six levels of a tree, once each has read its own."""
    made = after(above_the_least.ir, "synchronize")
    found = nodes(made, ir.Barrier)
    assert len(found) == 8
    for barrier in found:
        fewer = lower_rings(without(made, barrier))
        report = run(fewer, arguments_for(fewer))
        assert {finding.kind for finding in report.findings} == {"race"}, barrier.orders


# Irredundance.


def without(start: ir.Kernel, barrier: ir.Barrier) -> ir.Kernel:
    return replace(start, body=module._without(start.body, barrier))


MEETINGS = [
    SHARED.format(index="63 - i"),
    SHARED.format(index="i // 32 * 32 + 31 - i % 32"),
    LOOP.format(turns=3, read="63 - i", store="pass"),
    LOOP.format(turns=3, read="63 - i", store="each i in spatial(64):\n        s[i] = c[i]"),
]


@pytest.mark.parametrize("body", MEETINGS)
def test_the_simulator_misses_every_barrier(body: str) -> None:
    made = after(small(body), "synchronize")
    assert is_synchronized(made)
    assert run(lower_rings(made), arguments_for(made)).ok
    found = nodes(made, ir.Barrier)
    assert found
    for barrier in found:
        fewer = without(made, barrier)
        assert not is_synchronized(fewer)
        report = run(lower_rings(fewer), arguments_for(fewer))
        assert {finding.kind for finding in report.findings} == {"race"}, barrier.orders


def test_elements_of_other_rows_are_told_apart_by_their_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Workers are looked at one by one only where constants leave a doubt: a row with itself, not with all others."""
    looked = 0

    def counted(*arguments: Any) -> Any:
        nonlocal looked
        looked += 1
        return element_numbers(*arguments)

    monkeypatch.setattr(accesses, "element_numbers", counted)
    rows = 24
    lines = [f"    s[{row}, i] = x[i]" for row in range(rows)]
    lines += [f"    c[i] = s[{row}, 63 - i]" for row in range(rows)]
    each = "\n".join(
        ["each i in spatial(64):", *lines[:rows], "each i in spatial(64):", *lines[rows:]]
    )
    assert barriers(small(f"shared s: f32[{rows}, 64]\n{each}")) == ["block"]
    assert 0 < looked <= rows


@pytest.mark.parametrize("first", few(range(0, 100, 25), 1))
def test_random_programs_have_no_barrier_too_many(first: int) -> None:
    seen = 0
    for number in range(first, first + 25):
        made = after(parsed(program(SEED, number)), "synchronize")
        assert is_synchronized(made)
        if nodes(made, ir.Roles):
            continue  # the barriers of a role are its own walk's
        for barrier in nodes(made, ir.Barrier):
            seen += 1
            assert not is_synchronized(without(made, barrier)), (number, barrier.orders)
    assert seen >= 10


def test_what_a_block_prints_it_prints_once() -> None:
    """Outside of mapping loops it is the block that prints, and inside each worker."""

    @tc.kernel(workers=64)
    def chatty(x: tc.f32[128]):
        for (k,) in tc.tiles((128,), by=(64,)):
            tc.print("block {}", k)
            for i in tc.spatial(64):
                tc.print("{}", k + i)

    for step in changes(chatty.ir):
        lines: list[str] = []
        run(step.kernel, [np.zeros(128, np.float32)], on_print=lines.append)
        expected = ["block 0", "block 64", *map(str, range(128))]
        assert sorted(lines) == sorted(expected), step.name
