"""Where warps run by themselves: roles, named barriers, and deadlocks with their witness."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backend.sim.checking import expect, simulate

SEEDS = [None, 0, 1, 2]


@pytest.mark.parametrize("seed", SEEDS)
def test_named_barriers(seed: int | None) -> None:
    text = """
        kernel k(x: f32[96], y: out f32[64]) workers=96 blocks=1 stage=scalar:
            let w = worker
            shared s: f32[64]
            if w < 64:
                s[w] = x[w]
                do barrier.named(1, {count})
                y[w] = s[63 - w]{here}
    """
    expect(text.format(count="64", here=""), seed=seed)
    report = simulate(
        text.format(count="96", here=""),
        np.zeros(96, np.float32),
        np.zeros(64, np.float32),
        seed=seed,
    )
    assert {f.kind for f in report.findings} <= {"deadlock", "barrier-divergence"}
    assert not report.ok


def test_a_warp_barrier_orders_no_other_warp() -> None:
    report = simulate(
        """
        kernel k(x: f32[64], y: out f32[64]) workers=64 blocks=1 stage=scalar:
            let w = worker
            shared s: f32[64]
            s[w] = x[w]
            do barrier.named(1, 32)
            y[w] = s[63 - w]
        """,
        np.zeros(64, np.float32),
        np.zeros(64, np.float32),
    )
    assert "race" in {finding.kind for finding in report.findings}


def test_deadlock_has_a_witness() -> None:
    report = simulate(
        """
        kernel k(y: out f32[64]) workers=64 blocks=1 stage=scalar:
            let w = worker
            mbarrier m: u64[1]
            if w == 0:
                do mbarrier.init(&m[0], 64)
            barrier block
            if w < 32:
                do mbarrier.arrive(&m[0])
            do mbarrier.wait(&m[0], 0)
            y[w] = 1.0
        """,
        np.zeros(64, np.float32),
    )
    (finding,) = report.findings
    assert finding.kind == "deadlock"
    assert "32 arrivals and 0 bytes are missing" in finding.message
    assert [text.split(" wait")[0] for text, _ in finding.notes] == [
        "workers 0..31",
        "workers 32..63",
    ]


def test_a_loop_that_waits_for_another_warp() -> None:
    report = simulate(
        """
        kernel k(y: inout i32[65]) workers=64 blocks=1 stage=scalar:
            if worker < 32:
                while y[64] == 0:  # here
                    pass
            else:
                if worker == 32:
                    atomic y[64] += 1
            y[worker] = 1
        """,
        y := np.zeros(65, np.int32),
        seed=0,
    )
    assert y.tolist() == [1] * 65
    assert [(f.kind, f.location.line) for f in report.findings] == [("race", 4)]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_role_reads_as_one_is_its_own(seed: int | None) -> None:
    """The tasks of a move without a mapping have numbers, which are no workers' of another role."""
    report = simulate(
        """
        kernel k(x: f32[64], y: out f32[32]) workers=32 helpers=32 blocks=1 stage=synchronized:
            shared s: f32[64]
            move s[i] = 0.0 for i in 64
            barrier block
            roles:
                role writer first=0 workers=32:
                    barrier role
                    move s[i] = x[i] for i in 64 by spatial(32).repeat(2)
                    barrier role
                role reader first=32 workers=32:
                    move y[i] = s[63 - i] for i in 32
        """,
        np.ones(64, np.float32),
        np.zeros(32, np.float32),
        seed=seed,
    )
    assert {(f.kind, f.location.line) for f in report.findings} <= {("race", 9), ("race", 12)}
    assert report.findings


ROLES = """
    kernel k(x: f32[6, 8], y: out f32[6, 8]) workers=8 helpers=4 stage={stage}:
        shared s: f32[2, 8]
        ring r = (s) stages=2 transport={transport}
        {barrier}
        roles:
            role producer first=8 workers=4:
                for k in range(6):
                    {acquire}
                    move s[k % 2, i] = x[k, i] for i in 8 by spatial(4).repeat(2){how}
                    commit r[k]
            role consumer first=0 workers=8:
                for k in range(6):
                    {wait}
                    each i in spatial(8):
                        y[k, i] = s[k % 2, 7 - i]
                    {release}
"""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("stage", "transport"),
    [
        ("pipelined", "registers"),
        ("pipelined", "tma"),
        ("synchronized", "registers"),
        ("synchronized", "tma"),
    ],
)
def test_roles_that_share_a_ring(stage: str, transport: str, seed: int | None) -> None:
    parts = {
        "stage": stage,
        "transport": transport,
        "barrier": "pass",
        "acquire": "acquire r[k]",
        "wait": "wait r[k]",
        "release": "release r[k]",
        "how": " how=tma" if transport == "tma" else "",
    }
    x = np.arange(48, dtype=np.float32).reshape(6, 8)
    y = np.zeros_like(x)
    report = simulate(ROLES.format(**parts), x, y, seed=seed)
    assert report.findings == ()
    np.testing.assert_array_equal(y, x[:, ::-1])
    for missing in ("acquire", "wait", "release"):
        broken = ROLES.format(**{**parts, missing: "pass"})
        assert not simulate(broken, x, np.zeros_like(x), seed=seed).ok, missing
