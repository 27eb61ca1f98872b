"""The simulator before stage synchronized: results, and what it finds wrong."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

from taskc.ir import arithmetic
from taskc.ir.types import f32
from tests.backend.sim.checking import expect, simulate
from tests.passes.kernels import keeps_its_result, kernel

MATMUL = """
    kernel matmul(a: f32[50, 30], b: f32[30, 40], c: out f32[50, 40]) workers=8 stage=parsed:
        grid (row, col) in (50, 40) by (8, 16):
            tile acc: f32[8, 16] by spatial(2, 1).repeat(2, 2).spatial(2, 2).repeat(1, 4) = 0.0
            pipeline p in 30 by 4 stages=2:
                constant shared sa: f32[8, 4]
                move sa[x, y] = select(row + x < 50 and p + y < 30, a[row + x, p + y], 0.0) for (x, y) in (8, 4)
                constant shared sb: f32[4, 16]
                move sb[z, w] = select(p + z < 30 and col + w < 40, b[p + z, col + w], 0.0) for (z, w) in (4, 16)
                {work}
            move c[row + u, col + v] = acc[u, v] for (u, v) in (8, 16) if row + u < 50 and col + v < 40
"""


FMA = """for q in range(4):
                    each (i, j) in spatial(2, 1).repeat(2, 2).spatial(2, 2).repeat(1, 4):
                        acc[i, j] = fma(sa[i, q], sb[q, j], acc[i, j])"""


@pytest.mark.parametrize("work", [FMA, "mma acc += sa[0, 0].as(8, 4) @ sb[0, 0].as(4, 16)"])
def test_matmul_is_a_chain_of_fma(work: str) -> None:
    rng = np.random.default_rng(1)
    a = rng.standard_normal((50, 30)).astype(np.float32)
    b = rng.standard_normal((30, 40)).astype(np.float32)
    c = np.full((50, 40), np.nan, np.float32)
    report = simulate(MATMUL.format(work=work), a, b, c)
    expected = np.zeros((50, 40), np.float32)
    for q in range(30):
        expected = arithmetic.fma(a[:, q, None], b[None, q], expected, f32)
    for _ in range(2):  # the last step reads two columns of zeros
        expected = arithmetic.fma(np.float32(0), np.float32(0), expected, f32)
    assert report.findings == ()
    np.testing.assert_array_equal(c.view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("allocated", ["tile t: f32[4, 16] by {own} = 0.0", "shared t: f32[4, 16]"])
@pytest.mark.parametrize(
    "turns", ["for r in range(4):", "for q in range(2):\n        for r in range(4):"]
)
def test_each_turn_of_a_loop_has_its_own(allocated: str, turns: str) -> None:
    """What is allocated in a loop is one memory: its turns come one after another, after each pass."""
    own = "repeat(4, 1).spatial(1, 16)"
    body = f"""
{allocated.format(own=own)}
each (i, j) in {own}:
    t[i, j] = x[oh + r, i] + j.to(f32)
each (i, j) in {own}:
    y[oh + r, i, j] = t[i, j]
"""
    depth = "    " * (1 + turns.count("for"))
    loops = "grid oh in 8 by 4:\n    " + turns + textwrap.indent(body, depth)
    keeps_its_result(kernel(loops, "x: f32[8, 4], y: inout f32[8, 4, 16]", workers=16))


@pytest.mark.parametrize("stage", ["parsed", "synchronized"])
def test_blocks_that_take_more_steps_than_others(stage: str) -> None:
    """Where some blocks are through, their tiles of a further step aren't there to be read."""
    c = np.full((2, 2, 2), np.nan, np.float32)
    report = simulate(
        f"""
        kernel k(c: out f32[2, 2, 2]) workers=2 stage={stage}:
            grid n in 2 by 1:
                tile acc: f32[2, 2] by spatial(2, 1).repeat(1, 2) = 0.0
                local steps: i64 = 1
                steps = n + 1
                for p in range(steps):
                    tile t: f32[2, 2] by spatial(2, 1).repeat(1, 2)
                    each (i, j) in spatial(2, 1).repeat(1, 2):
                        t[i, j] = 1.0
                    mma acc += t[0, 0].as(2, 2) @ t[0, 0].as(2, 2)
                each (i, j) in spatial(2, 1).repeat(1, 2):
                    c[n, i, j] = acc[i, j]
        """,
        c,
    )
    assert report.findings == ()
    assert c.tolist() == [[[2, 2], [2, 2]], [[4, 4], [4, 4]]]


def test_tasks_of_one_worker_run_in_order() -> None:
    x = np.arange(1, 13, dtype=np.int32)
    y = np.zeros(2, np.int32)
    report = simulate(
        """
        kernel k(x: i32[12], y: out i32[2]) workers=2 stage=parsed:
            grid () in () by ():
                local s: i32[()] = 0
                each i in spatial(2).repeat(6):
                    s[] = s[] * 3 + x[i]
                each i in spatial(2):
                    y[i] = s[]
        """,
        x,
        y,
    )
    expected = [0, 0]
    for i in range(12):
        expected[i // 6] = expected[i // 6] * 3 + int(x[i])
    assert report.ok
    assert y.tolist() == expected


def test_the_last_task_of_a_worker_wins() -> None:
    y = np.zeros(4, np.int32)
    report = simulate(
        """
        kernel k(y: inout i32[4]) workers=2 stage=parsed:
            each (i, j) in spatial(2, 1).repeat(1, 3):
                each l in repeat(2) on 0:
                    y[i * 2 + (j + l) % 2] = 10 * (j.to(i32)) + l.to(i32)
        """,
        y,
    )
    expected = np.zeros(4, np.int32)
    for i in range(2):
        for j in range(3):
            for inner in range(2):
                expected[i * 2 + (j + inner) % 2] = 10 * j + inner
    assert report.ok, report
    assert y.tolist() == expected.tolist()


def test_blocks_may_loop_differently_often() -> None:
    y = np.zeros(6, np.int64)
    report = simulate(
        """
        kernel k(y: out i64[6]) workers=2 stage=parsed:
            grid r in 6 by 2:
                local n: i64[()] = 0
                for t in range(0, r):
                    n[] = n[] + t
                while n[] % 2 == 1:
                    n[] = n[] + 5
                if r == 4:
                    n[] = n[] * 100
                each i in spatial(2):
                    y[r + i] = n[] + i
        """,
        y,
    )
    assert report.ok, report
    assert y.tolist() == [0, 1, 6, 7, 600, 601]


def test_symbolic_dimensions_come_from_the_arguments() -> None:
    x = np.arange(7, dtype=np.float32)
    y = np.zeros(7, np.float32)
    report = simulate(
        """
        kernel k[n](x: f32[n], y: out f32[n], s: f32) workers=4 stage=parsed:
            grid r in n by 4:
                each i in spatial(4):
                    if r + i < n:
                        y[r + i] = x[r + i] * s
        """,
        x,
        y,
        3.0,
    )
    assert report.ok, report
    assert y.tolist() == (x * 3).tolist()


def test_printing() -> None:
    lines: list[str] = []
    simulate(
        """
        kernel k(y: inout i64[4]) workers=2 stage=parsed:
            grid r in 4 by 2:
                print "block {}", r
                each i in spatial(2):
                    if i == 1:
                        print "{} of {}", i, r
        """,
        np.zeros(4, np.int64),
        on_print=lines.append,
    )
    assert lines == ["block 0", "block 2", "1 of 0", "1 of 2"]


def test_out_of_bounds() -> None:
    report = expect(
        """
        kernel k(x: f32[6, 4], y: out f32[8]) workers=8 stage=parsed:
            each i in spatial(8):
                y[i] = x[i, 3]  # here
        """,
        "out-of-bounds",
    )
    finding = report.findings[0]
    assert finding.message == "index 6 is outside 0..5 in dimension 0 of x"
    assert dict(finding.details) == {"block": 0, "worker": 6, "count": 2}
    expect(
        """
        kernel k(x: f32[6, 4], y: out f32[8]) workers=8 stage=parsed:
            each i in spatial(8):
                y[i] = select(i < 6 and x[i, 3] > 0.0, x[i, 3], 0.0)
        """
    )


def test_uninitialized() -> None:
    report = expect(
        """
        kernel k(x: f32[8], y: out f32[8]) workers=8 stage=parsed:
            shared s: f32[8]
            each i in spatial(8):
                if i != 5:
                    s[i] = x[i]
            each i in spatial(8):
                y[i] = s[i]  # here
        """,
        "uninitialized",
    )
    assert "s[5]" in report.findings[0].message


def test_memory_dies_with_its_scope() -> None:
    expect(
        """
        kernel k(x: f32[8], y: inout f32[8]) workers=8 stage=parsed:
            for t in range(2):
                shared s: f32[8]
                if t == 0:
                    each i in spatial(8):
                        s[i] = x[i]
                each i in spatial(8):
                    y[i] = s[i]  # here
        """,
        "uninitialized",
    )


@pytest.mark.parametrize("scope", ["tile t: f32[8] by spatial(8)", "local t: f32[8]"])
def test_uninitialized_registers(scope: str) -> None:
    expect(
        f"""
        kernel k(y: out f32[8]) workers=8 stage=parsed:
            {scope}
            each i in spatial(8):
                y[i] = t[i]  # here
        """,
        "uninitialized",
    )


def test_a_tile_belongs_to_its_owners() -> None:
    report = expect(
        """
        kernel k(y: out f32[8]) workers=4 stage=parsed:
            tile t: f32[8] by repeat(2).spatial(4) = 1.0
            each i in spatial(4).repeat(2):
                y[i] = t[i]  # here
        """,
        "not-owned",
    )
    assert report.findings[0].message == "worker 1 does not own t[2]"
    expect(
        """
        kernel k(y: out f32[8]) workers=4 stage=parsed:
            tile t: f32[8] by repeat(2).spatial(4) = 1.0
            each i in repeat(2).spatial(4):
                y[i] = t[i]
        """
    )


def test_outputs_are_written_once() -> None:
    expect(
        """
        kernel k(y: out f32[8]) workers=4 stage=parsed:
            each i in spatial(4).repeat(2):
                y[i] = 1.0
            each i in spatial(4):
                y[i] = 1.0  # here
        """,
        "written-twice",
    )
    expect(
        """
        kernel k(y: out f32[8]) workers=4 stage=parsed:
            each i in spatial(4).repeat(4):
                y[i // 2] = 1.0  # here
        """,
        "written-twice",
    )
    report = expect(
        """
        kernel k(y: out f32[8]) workers=4 stage=parsed:  # here
            each i in spatial(4):
                y[i] = 1.0
        """,
        "not-written",
    )
    assert dict(report.findings[0].details) == {"element": "y[4]", "count": 4}


def test_replicas_store_once() -> None:
    expect(
        """
        kernel k(y: out f32[8]) workers=8 stage=parsed:
            each i in spatial(4).replicate(2).repeat(2):
                y[i] = 1.0
        """
    )


def test_division_by_zero_and_assertions() -> None:
    expect(
        """
        kernel k(y: out i64[8]) workers=8 stage=parsed:
            each i in spatial(8):
                y[i] = select(i != 3, 12 // (i - 3), 0) + 5 % (i - 9)
        """
    )
    expect(
        """
        kernel k(y: out i64[8]) workers=8 stage=parsed:
            each i in spatial(8):
                y[i] = 12 // (i - 3)  # here
        """,
        "division-by-zero",
    )
    report = expect(
        """
        kernel k(y: out i64[8]) workers=8 stage=parsed:
            each i in spatial(8):
                assert i < 7, "seven {at} most"  # here
                y[i] = i
        """,
        "assertion",
    )
    assert report.findings[0].message == "seven {at} most"


def test_uniform_control_flow() -> None:
    expect(
        """
        kernel k(y: inout i64[8]) workers=8 stage=parsed:
            local n: i64[()] = 0
            each i in spatial(8):
                n[] = i
            if n[] > 3:  # here
                each i in spatial(8):
                    y[i] = 1
        """,
        "divergence",
    )


def test_a_run_may_end_at_the_first_error() -> None:
    text = """
        kernel k(x: f32[4], y: inout f32[8]) workers=4 stage=parsed:
            each i in spatial(4):
                y[i // 2] = x[i]
            each i in spatial(4):
                y[4 + i // 2] = x[i]
    """
    x = np.arange(4, dtype=np.float32)
    whole = simulate(text, x, np.zeros(8, np.float32))
    ended = simulate(text, x, np.zeros(8, np.float32), until_error=True)
    assert [finding.kind for finding in whole.findings] == ["race", "race"]
    (first,) = ended.findings
    assert (first.kind, first.location.line) == ("race", 4)
    assert first.message == whole.findings[0].message
