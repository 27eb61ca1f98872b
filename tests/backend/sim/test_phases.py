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


@pytest.mark.parametrize("operator", ["+", "min", "max", "*"])
def test_reduce_folds_slots_and_then_a_tree_of_owners(operator: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, 24)).astype(np.float32)
    y = np.zeros(4, np.float32)
    report = simulate(
        f"""
        kernel k(x: f32[4, 24], y: out f32[4]) workers=6 stage=parsed:
            tile t: f32[4, 24] by repeat(4, 2).spatial(1, 6).repeat(1, 2)
            each (i, j) in repeat(4, 2).spatial(1, 6).repeat(1, 2):
                t[i, j] = x[i, j]
            tile s: f32[4] by replicate(6).repeat(4)
            reduce s = {operator} over t axis=1
            move y[i] = s[i] for i in 4
        """,
        x,
        y,
    )

    def fold(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return arithmetic.binary(operator, a, b, f32)

    parts = []
    for worker in range(6):
        own = [x[:, 12 * j + 2 * worker + r] for j in range(2) for r in range(2)]
        total = own[0]
        for value in own[1:]:
            total = fold(total, value)
        parts.append(total)
    while len(parts) > 1:
        half = (len(parts) + 1) // 2
        parts = [
            fold(parts[i], parts[i + half]) if i + half < len(parts) else parts[i]
            for i in range(half)
        ]
    assert report.ok, report
    np.testing.assert_array_equal(y, parts[0])


@pytest.mark.parametrize("exclusive", [False, True])
def test_scan(exclusive: bool) -> None:
    x = np.arange(3, 19, dtype=np.int32).reshape(2, 8)
    y = np.zeros((2, 8), np.int32)
    report = simulate(
        f"""
        kernel k(x: i32[2, 8], y: out i32[2, 8]) workers=4 stage=parsed:
            tile t: i32[2, 8] by spatial(2, 2).repeat(1, 4)
            move t[i, j] = x[i, j] for (i, j) in (2, 8)
            tile s: i32[2, 8] by spatial(2, 2).repeat(1, 4)
            scan s = + over t axis=1 {"exclusive" if exclusive else ""}
            move y[i, j] = s[i, j] for (i, j) in (2, 8)
        """,
        x,
        y,
    )
    expected = np.cumsum(x, axis=1)
    assert report.ok, report
    assert y.tolist() == (expected - x if exclusive else expected).tolist()


def test_histogram_with_atomics_and_old_values() -> None:
    x = np.array([0, 1, 1, 3, 1, 0, 2, 1], np.int32)
    bins = np.zeros(4, np.int32)
    ranks = np.zeros(8, np.int32)
    report = simulate(
        """
        kernel k(x: i32[8], bins: inout i32[4], ranks: out i32[8]) workers=4 stage=parsed:
            grid r in 8 by 4:
                each i in spatial(4):
                    let old: i32 = atomic bins[x[r + i].to(i64)] += 1
                    ranks[r + i] = old
        """,
        x,
        bins,
        ranks,
    )
    assert report.ok, report
    assert bins.tolist() == [2, 4, 1, 1]
    assert ranks.tolist() == [0, 0, 1, 0, 2, 1, 0, 3]


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


# --- bugs, and their correct twins -------------------------------------------------------------

SHIFT = """
    kernel k(x: f32[8], y: out f32[8]) workers=8 stage=parsed:
        shared s: f32[8]
        each i in spatial(8):
            s[i] = x[i]  # other
            {between}
            {access}
"""


def test_race_in_a_phase() -> None:
    report = expect(SHIFT.format(between="", access="y[i] = s[7 - i]  # here"), "race")
    finding = report.findings[0]
    assert dict(finding.details)["worker"] != dict(finding.details)["other"]
    assert "s[" in finding.message


def test_no_race_with_oneself_or_between_phases() -> None:
    expect(SHIFT.format(between="", access="y[i] = s[i]"))
    expect(
        """
        kernel k(x: f32[8], y: out f32[8]) workers=8 stage=parsed:
            shared s: f32[8]
            each i in spatial(8):
                s[i] = x[i]
            each i in spatial(8):
                y[i] = s[7 - i]
        """
    )


def test_race_of_two_writers() -> None:
    expect(
        """
        kernel k(y: inout f32[8]) workers=8 stage=parsed:
            each i in spatial(8):
                y[i // 2] = 1.0  # here
        """,
        "race",
    )


def test_race_of_a_read_before_the_write() -> None:
    expect(
        """
        kernel k(x: f32[8], y: out f32[8]) workers=8 stage=parsed:
            shared s: f32[8]
            move s[i] = 0.0 for i in 8
            each i in spatial(8):
                y[i] = s[(i + 1) % 8]  # other
                s[i] = x[i]  # here
        """,
        "race",
    )


def test_race_between_tasks_of_workers_run_slot_by_slot() -> None:
    expect(
        """
        kernel k(y: inout i32[4]) workers=2 stage=parsed:
            each i in repeat(2).spatial(2):
                y[i // 2] = y[i // 2] + 1  # here
        """,
        "race",
    )
    expect(
        """
        kernel k(y: inout i32[4]) workers=2 stage=parsed:
            each i in spatial(2).repeat(2):
                y[i // 2] = y[i // 2] + 1
        """
    )


def test_race_between_blocks() -> None:
    for access, kind in (
        ("y[i] = 1.0  # here", "race"),
        ("y[r + i] = y[(r + i + 4) % 8]  # here", "race"),
        ("y[r + i] = y[r + i] + 1.0", None),
        ("y[r + i] = y[r + i] + z[i]", None),
    ):
        expect(
            f"""
            kernel k(y: inout f32[8], z: inout f32[8]) workers=4 stage=parsed:
                grid r in 8 by 4:
                    each i in spatial(4):
                        {access}
            """,
            kind,
        )


def test_atomics_race_with_plain_accesses_only() -> None:
    expect(
        """
        kernel k(y: inout i32[1], z: out i32[8]) workers=8 stage=parsed:
            each i in spatial(8):
                atomic y[0] += 1  # other
                z[i] = y[0]  # here
        """,
        "race",
    )
    expect(
        """
        kernel k(y: inout i32[1], z: out i32[8]) workers=8 stage=parsed:
            each i in spatial(8):
                atomic y[0] += 1
            each i in spatial(8):
                z[i] = y[0]
        """
    )


def test_race_within_a_move() -> None:
    expect(
        """
        kernel k(x: f32[8], y: out f32[8]) workers=4 stage=parsed:
            shared s: f32[8]
            move s[i] = 0.0 for i in 8
            move s[i // 2] = x[i] for i in 8  # here
            move y[i] = s[i] for i in 8
        """,
        "race",
    )


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


RING = """
    kernel k(x: f32[6, 4], y: inout f32[6, 4]) workers=4 stage=pipelined:
        shared s: f32[2, 4]
        ring r = (s) stages=2 transport=cp.async
        acquire r[0]
        move s[0, i] = x[0, i] for i in 4
        commit r[0]
        for t in range(6):
            if t + 1 < 6:
                acquire r[t + 1]{acquire}
                move s[(t + 1) % 2, i] = x[t + 1, i] for i in 4{move}
                commit r[t + 1]
            {wait}
            each i in spatial(4):
                y[t, i] = s[{slot}, i]{read}
            {release}
"""


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (None, {}),
        ("stale-stage", {"wait": "pass", "read": "  # here", "release": "pass", "acquire": ""}),
        ("stale-stage", {"slot": "(t + 1) % 2", "read": "  # here"}),
        ("slot-in-use", {"release": "pass", "acquire": "  # here"}),
    ],
)
def test_rings(kind: str | None, changes: dict[str, str]) -> None:
    parts = {
        "acquire": "",
        "move": "",
        "wait": "wait r[t]",
        "slot": "t % 2",
        "read": "",
        "release": "release r[t]",
    }
    text = RING.format(**{**parts, **changes})
    if "wait" in changes:
        text = text.replace("range(6)", "range(1)")
    elif "slot" in changes:
        text = text.replace("range(6)", "range(5)")
    expect(text, kind)


def test_reading_a_released_slot() -> None:
    expect(
        RING.format(
            acquire="",
            move="",
            wait="wait r[t]\n            release r[t]",
            slot="t % 2",
            read="  # here",
            release="pass",
        ),
        "early-release",
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
