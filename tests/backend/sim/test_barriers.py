"""From stage synchronized on, in lockstep: races, barriers, registers, copies by each worker."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

from tests.backend.sim.checking import expect, simulate

EXCHANGE = """
    kernel k(x: f32[2, 64], y: out f32[2, 64]) workers=64 stage=synchronized:
        grid r in 2 by 1:
            shared s: f32[64]
            for t in range(3):
                each i in spatial(64):
                    s[i] = x[r, i]{write}
                {first}
                each i in spatial(64):
                    if t == 2:
                        y[r, i] = s[{index}]{read}
                    else:
                        let unused: f32 = s[{index}]
                {second}
"""
BLOCK = "barrier block"
WARP = "barrier warp"


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize(
    ("first", "second", "index", "good"),
    [
        (BLOCK, BLOCK, "63 - i", True),
        (WARP, WARP, "i ^ 1", True),
        ("pass", "pass", "i", True),
        (BLOCK, WARP, "i ^ 1", True),
    ],
)
def test_enough_barriers(first: str, second: str, index: str, good: bool, seed: int | None) -> None:
    expect(EXCHANGE.format(first=first, second=second, index=index, write="", read=""), seed=seed)


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize(
    ("first", "second", "index", "here"),
    [
        ("pass", BLOCK, "63 - i", "read"),
        (BLOCK, "pass", "63 - i", "write"),
        (WARP, BLOCK, "63 - i", "read"),
        (BLOCK, WARP, "63 - i", "write"),
        ("pass", WARP, "i ^ 1", "read"),
        (WARP, "pass", "i ^ 1", "write"),
    ],
)
def test_missing_barriers(first: str, second: str, index: str, here: str, seed: int | None) -> None:
    marks = {"write": "  # other", "read": "  # other", here: "  # here"}
    text = EXCHANGE.format(first=first, second=second, index=index, **marks)
    text = text.replace("if t == 2:", "if t < 3:").replace("y: out", "y: inout")
    if seed is None:
        expect(text, "race")
        return
    # In another order the same conflict may show from its other side, and by stale data.
    lines = textwrap.dedent(text).splitlines()
    marked = {i + 1 for i, line in enumerate(lines) if "# " in line}
    x, y = np.zeros((2, 64), np.float32), np.zeros((2, 64), np.float32)
    findings = simulate(text, x, y, seed=seed).findings
    assert "race" in {finding.kind for finding in findings}
    assert {finding.location.line for finding in findings} <= marked


@pytest.mark.parametrize("seed", [None, 3])
def test_divergent_barrier(seed: int | None) -> None:
    expect(
        """
        kernel k(y: out f32[64]) workers=64 stage=synchronized:
            each i in spatial(64):
                if i < 10:
                    barrier block  # here
                y[i] = 1.0
        """,
        "barrier-divergence",
        seed=seed,
    )


def test_warps_at_different_barriers() -> None:
    y = np.zeros(64, np.float32)
    for otherwise in ("barrier block", "pass"):
        report = simulate(
            f"""
            kernel k(y: out f32[64]) workers=64 stage=scalar:
                if worker < 32:
                    barrier block
                else:
                    {otherwise}
                y[worker] = 1.0
            """,
            y,
            seed=0,
        )
        (finding,) = report.findings
        assert finding.kind == "barrier-divergence"
        assert finding.location.line in (4, 6)


def test_overlaid_tensors_share_bytes() -> None:
    text = """
        kernel k(x: f32[64], y: out f32[64]) workers=64 stage=synchronized:
            scope:
                shared s: f32[64].at(0)
                each i in spatial(64):
                    s[i] = x[i]
                barrier block
                each i in spatial(64):
                    y[i] = s[63 - i]  # other
            {barrier}
            scope:
                shared h: f16[128].at(128)
                each i in spatial(64):
                    h[i] = f16(1.0){here}
                    {use}
    """
    text = text.replace("f16(1.0)", "x[i].to(f16)")
    expect(text.format(barrier="barrier block", here="", use="pass"))
    expect(text.format(barrier="pass", here="  # here", use="pass"), "race")
    expect(
        text.replace("  # other", "").format(
            barrier="barrier block", here="", use="let v: f16 = h[127 - i]  # here"
        ),
        "uninitialized",
    )


def test_a_uniform_store_is_everyones() -> None:
    text = """
        kernel k(y: out f32[64]) workers=64 stage=synchronized:
            shared s: f32[2]
            s[0] = 1.0  # other
            {barrier}
            each i in spatial(64):
                y[i] = s[0]{here}
    """
    expect(text.format(barrier="barrier block", here=""))
    expect(text.format(barrier="pass", here="  # here"), "race")


def test_scalar_stage() -> None:
    y = np.zeros((3, 8), np.float32)
    report = simulate(
        """
        kernel k(y: out f32[3, 8]) workers=4 blocks=3 stage=scalar:
            let w = worker
            let b = block
            register r: f32[2]
            for s in unroll(2):
                r[s] = (w * 2 + s).to(f32)
            local n: i64[4]
            for t in range(4):
                n[(t + w) % 4] = t
            for s in unroll(2):
                y[b, w * 2 + s] = r[s] + n[w].to(f32) * 100.0 + b.to(f32) * 1000.0
        """,
        y,
    )
    assert report.ok, report
    expected = [[w * 2 + s + b * 1000 for w in range(4) for s in range(2)] for b in range(3)]
    assert y.tolist() == expected


def test_lean_stage_has_linear_offsets_in_the_layout() -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    y = np.zeros((4, 6), np.float32)
    report = simulate(
        """
        kernel k(
            x: f32[4, 6].laid(repeat(1, 2).repeat(4, 3)), y: out f32[4, 6]
        ) workers=4 blocks=1 stage=lean:
            let w = worker
            for t in range(6):
                y[w * 6 + t] = x[t // 3 * 12 + w * 3 + t % 3]
        """,
        x,
        y,
    )
    assert report.ok, report
    np.testing.assert_array_equal(x, y)


def test_shuffles_and_votes() -> None:
    y = np.zeros((6, 64), np.int64)
    report = simulate(
        """
        kernel k(y: out i64[6, 64]) workers=64 blocks=1 stage=scalar:
            let w = worker
            let a: i64 = do shuffle.xor(w, 5)
            y[0, w] = a
            let b: i64 = do shuffle.up(w, 3)
            y[1, w] = b
            let c: i64 = do shuffle.down(w, 4)
            y[2, w] = c
            let d: i64 = do shuffle.index(w, w // 2 % 32)
            y[3, w] = d
            let e: u32 = do vote.ballot(w % 3 == 0)
            y[4, w] = e.to(i64)
            let f: bool = do vote.any(w == 40)
            y[5, w] = select(f, 1, 0)
        """,
        y,
    )
    assert report.ok, report
    w = np.arange(64)
    lane, base = w % 32, w // 32 * 32
    assert y[0].tolist() == (w ^ 5).tolist()
    assert y[1].tolist() == np.where(lane < 3, w, w - 3).tolist()
    assert y[2].tolist() == np.where(lane > 27, w, w + 4).tolist()
    assert y[3].tolist() == (base + w // 2 % 32).tolist()
    ballots = [sum(1 << i for i in range(32) if (first + i) % 3 == 0) for first in (0, 32)]
    assert y[4].tolist() == [ballots[i // 32] for i in range(64)]
    assert y[5].tolist() == (w >= 32).astype(int).tolist()


def test_a_shuffle_from_a_sleeping_lane() -> None:
    expect(
        """
        kernel k(y: out i64[32]) workers=32 blocks=1 stage=scalar:
            let w = worker
            y[w] = 1
            if w < 8:
                let a: i64 = do shuffle.xor(w, 8)  # here
                assert a >= 0, ""
        """,
        "inactive-lane",
    )


COPIES = """
    kernel k(x: f32[8, 64], y: out f32[8, 64]) workers=64 blocks=1 stage=scalar:
        let w = worker
        shared s: f32[3, 64]
        for t in unroll(2):
            do cp.async(&s[t, w], &x[t, w], 1, True){copy}
            do cp.async.commit()
        for t in range(8):
            {wait}
            {barrier}
            y[t, w] = s[{slot}, 63 - w]{read}
            if t + 2 < 8:
                do cp.async(&s[(t + 2) % 3, w], &x[t + 2, w], 1, True){next}
            do cp.async.commit()
"""
GOOD = {
    "copy": "", "next": "", "read": "", "wait": "do cp.async.wait(1)", "barrier": "barrier block",
    "slot": "t % 3",
}  # fmt: skip


@pytest.mark.parametrize("seed", [None, 0])
def test_copies_by_each_worker(seed: int | None) -> None:
    x = np.arange(512, dtype=np.float32).reshape(8, 64)
    y = np.zeros_like(x)
    report = simulate(COPIES.format(**GOOD), x, y, seed=seed)
    assert report.findings == ()
    np.testing.assert_array_equal(y, x[:, ::-1])


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("unwaited-copy", {"wait": "pass", "read": "  # here"}),
        ("unwaited-copy", {"wait": "do cp.async.wait(2)", "read": "  # here"}),
        ("race", {"barrier": "pass", "read": "  # here"}),
        ("race", {"barrier": "barrier warp", "read": "  # here"}),
    ],
)
def test_copies_that_are_not_waited_for(kind: str, changes: dict[str, str]) -> None:
    text = COPIES.format(**{**GOOD, **changes})
    # Later turns would report more of the same.
    expect(text.replace("range(8)", "range(1)").replace("out f32", "inout f32"), kind)


def test_copies_outside_are_zeros() -> None:
    x = np.arange(1, 6, dtype=np.float32)
    y = np.zeros(8, np.float32)
    report = simulate(
        """
        kernel k(x: f32[5], y: out f32[8]) workers=8 blocks=1 stage=scalar:
            let w = worker
            shared s: f32[8]
            do cp.async(&s[w], &x[w], 1, w < 5)
            do cp.async.commit()
            do cp.async.wait(0)
            y[w] = s[w]
        """,
        x,
        y,
    )
    assert report.ok, report
    assert y.tolist() == [1, 2, 3, 4, 5, 0, 0, 0]


def test_a_matrix_instruction() -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(-4, 5, (16, 16)).astype(np.float16)
    b = rng.integers(-4, 5, (16, 8)).astype(np.float16)
    c = np.zeros((16, 8), np.float32)
    report = simulate(
        """
        kernel k(a: f16[16, 16], b: f16[16, 8], c: out f32[16, 8]) workers=32 blocks=1 stage=scalar:
            let w = worker
            register ra: f16[8]
            register rb: f16[4]
            register rc: f32[4]
            for s in unroll(8):
                ra[s] = a[s // 2 % 2 * 8 + w // 4, s // 4 * 8 + w % 4 * 2 + s % 2]
            for s in unroll(4):
                rb[s] = b[s // 2 * 8 + w % 4 * 2 + s % 2, w // 4]
                rc[s] = 1.0
            do mma.sync.m16n8k16.f16(&rc[0], &ra[0], &rb[0])
            for s in unroll(4):
                c[s // 2 * 8 + w // 4, w % 4 * 2 + s % 2] = rc[s]
        """,
        a,
        b,
        c,
    )
    assert report.ok, report
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32) + 1)


def test_an_element_beside_smaller_ones_is_named() -> None:
    """Memory is watched by the byte here, and elements of four bytes lie behind those of one."""
    report = simulate(
        """
        kernel k(x: u8[32], y: out f32[32]) workers=32 blocks=1 stage=lean:
            shared small: u8[32].at(0)
            shared large: f32[32].at(32)
            small[worker] = x[worker]
            if worker < 20:
                large[worker] = 1.0
            barrier block
            y[worker] = large[31 - worker] + small[31 - worker].to(f32)
        """,
        np.ones(32, np.uint8),
        np.zeros(32, np.float32),
    )
    (finding,) = report.findings
    assert finding.message == "large[31] is read before it is written"
