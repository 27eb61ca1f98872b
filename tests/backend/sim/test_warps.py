"""Where warps run by themselves: mbarriers, bulk copies, roles, fences, deadlocks."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backend.sim.checking import expect, simulate

SEEDS = [None, 0, 1, 2]

RING = """
    kernel k(x: f32[6, 64], y: out f32[6, 64]) workers=64 helpers=32 blocks=1 stage=scalar:
        let w = worker
        shared s: f32[2, 64]
        mbarrier full: u64[2]
        mbarrier empty: u64[2]
        if w == 0:
            for i in unroll(2):
                do mbarrier.init(&full[i], 1)
                do mbarrier.init(&empty[i], {readers})
        {init}
        roles:
            role producer first=64 workers=32:
                for k in range(6):
                    {acquire}
                    if w == 64:
                        do tma.load(&s[k % 2, 0], &x[k, 0], &full[k % 2], 1, 64){load}
                        {expect}
            role consumer first=0 workers=64:
                for k in range(6):
                    {wait}
                    y[k, w] = s[{slot}, 63 - w]{read}
                    {release}
"""
GOOD = {
    "readers": "64",
    "init": "barrier block",
    "acquire": "do mbarrier.wait(&empty[k % 2], k // 2 % 2 ^ 1)",
    "load": "",
    "expect": "do mbarrier.expect(&full[k % 2], 256)",
    "wait": "do mbarrier.wait(&full[k % 2], k // 2 % 2)",
    "slot": "k % 2",
    "read": "",
    "release": "do mbarrier.arrive(&empty[k % 2])",
}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_producer_and_consumers(seed: int | None) -> None:
    x = np.arange(384, dtype=np.float32).reshape(6, 64)
    y = np.zeros_like(x)
    report = simulate(RING.format(**GOOD), x, y, seed=seed)
    assert report.findings == ()
    np.testing.assert_array_equal(y, x[:, ::-1])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("kinds", "changes"),
    [
        ({"deadlock"}, {"expect": "pass"}),
        ({"deadlock"}, {"expect": "do mbarrier.expect(&full[k % 2], 512)"}),
        ({"deadlock"}, {"release": "pass"}),
        ({"deadlock"}, {"readers": "65"}),
        ({"unwaited-copy", "uninitialized", "race"}, {"wait": "pass"}),
        ({"unwaited-copy", "uninitialized", "race"}, {"slot": "(k + 1) % 2"}),
        ({"race", "unwaited-copy", "deadlock", "over-arrival"}, {"acquire": "pass"}),
        ({"race", "over-arrival", "unwaited-copy", "deadlock"}, {"readers": "32"}),
        ({"race", "uninitialized"}, {"init": "pass"}),
    ],
)
def test_protocols_gone_wrong(kinds: set[str], changes: dict[str, str], seed: int | None) -> None:
    text = RING.format(**{**GOOD, **changes})
    x = np.arange(384, dtype=np.float32).reshape(6, 64)
    report = simulate(text, x, np.zeros_like(x), seed=seed)
    assert kinds & {finding.kind for finding in report.findings}, report


@pytest.mark.parametrize("seed", SEEDS)
def test_release_before_the_last_reader(seed: int | None) -> None:
    """One lane arrives for its warp, with and without a warp barrier that orders the others."""
    text = RING.format(
        **{
            **GOOD,
            "readers": "2",
            "release": "{sync}\n                    if w % 32 == 0:\n"
            "                        do mbarrier.arrive(&empty[k % 2])",
        }
    )
    x = np.arange(384, dtype=np.float32).reshape(6, 64)
    assert simulate(text.format(sync="barrier warp"), x, np.zeros_like(x), seed=seed).ok
    report = simulate(text.format(sync="pass"), x, np.zeros_like(x), seed=seed)
    assert [finding.kind for finding in report.findings] == ["race"]


STORE = """
    kernel k(x: f32[64], y: out f32[64], z: out f32[64]) workers=64 blocks=1 stage=scalar:
        let w = worker
        shared s: f32[64]
        s[w] = x[w]  # other
        {fence}
        {barrier}
        {late}
        if w == {issuer}:
            do tma.store(&y[0], &s[0], 64){here}
            do tma.commit()
        {wait}
        {after}
        s[w] = 2.0{again}
        z[w] = s[w]
"""
STORED = {
    "fence": "do fence.proxy.async()",
    "barrier": "barrier block",
    "late": "pass",
    "issuer": "0",
    "here": "",
    "wait": "if w == 0:\n            do tma.wait(0)",
    "after": "barrier block",
    "again": "",
}


@pytest.mark.parametrize("seed", SEEDS)
def test_bulk_store(seed: int | None) -> None:
    x = np.arange(64, dtype=np.float32)
    y, z = np.zeros_like(x), np.zeros_like(x)
    report = simulate(STORE.format(**STORED), x, y, z, seed=seed)
    assert report.findings == ()
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("missing-fence", {"fence": "pass", "here": "  # here"}),
        ("missing-fence", {"fence": "pass", "late": "do fence.proxy.async()", "here": "  # here"}),
        ("unwaited-copy", {"wait": "pass", "again": "  # here"}),
        ("unwaited-copy", {"wait": "if w == 32:\n            do tma.wait(0)", "again": "  # here"}),
        ("unwaited-copy", {"wait": "if w == 0:\n            do tma.wait(1)", "again": "  # here"}),
    ],
)
def test_bulk_stores_gone_wrong(kind: str, changes: dict[str, str], seed: int | None) -> None:
    report = simulate(
        STORE.format(**{**STORED, **changes}),
        *(np.zeros(64, np.float32) for _ in range(3)),
        seed=seed,
    )
    lines = STORE.format(**{**STORED, **changes}).splitlines()
    here = next(i for i, line in enumerate(lines) if "# here" in line) + 1
    assert here in [f.location.line for f in report.findings if f.kind == kind], report


@pytest.mark.parametrize("seed", SEEDS)
def test_a_bulk_store_needs_an_end(seed: int | None) -> None:
    expect(
        """
        kernel k(y: out f32[64]) workers=64 blocks=1 stage=scalar:
            let w = worker
            shared s: f32[64]
            s[w] = 1.0
            do fence.proxy.async()
            barrier block
            if w == 0:
                do tma.store(&y[0], &s[0], 64)  # here
                do tma.commit()
        """,
        "unwaited-copy",
        seed=seed,
    )


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


REUSED = """
    kernel k(x: f32[64], y: out f32[64], z: out f32[64]) workers=64 blocks=1 stage=scalar:
        let w = worker
        shared s: f32[64]
        mbarrier full: u64[1]
        if w == 0:
            do mbarrier.init(&full[0], 1)
        s[w] = 2.0  # other
        {early}
        {fence}
        {barrier}
        z[w] = s[63 - w]
        barrier block
        {late}
        if w == 0:
            do tma.load(&s[0], &x[0], &full[0], 64){here}
            do mbarrier.expect(&full[0], 256)
        do mbarrier.wait(&full[0], 0)
        y[w] = s[63 - w]
"""
REUSING = {
    "early": "pass",
    "fence": "do fence.proxy.async()",
    "barrier": "barrier block",
    "late": "pass",
    "here": "",
}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_bulk_load_into_memory_that_was_stored_to(seed: int | None) -> None:
    x = np.arange(64, dtype=np.float32)
    y, z = np.zeros_like(x), np.zeros_like(x)
    report = simulate(REUSED.format(**REUSING), x, y, z, seed=seed)
    assert report.findings == ()
    np.testing.assert_array_equal(y, x[::-1])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "changes",
    [
        {"fence": "pass"},
        {"fence": "pass", "late": "do fence.proxy.async()"},  # behind the barriers
        {"fence": "if w == 0:\n            do fence.proxy.async()"},  # not by those who stored
    ],
)
def test_a_bulk_load_without_a_fence(changes: dict[str, str], seed: int | None) -> None:
    expect(REUSED.format(**{**REUSING, **changes, "here": "  # here"}), "missing-fence", seed=seed)


AGAIN = """
    kernel k(x: f32[64], y: out f32[64]) workers=64 blocks=1 stage=scalar:
        let w = worker
        mbarrier full: u64[1]
        for k in range(2):
            {before}
            if w == 0:
                do mbarrier.init(&full[0], 32){here}
            barrier block
            if w < 32:
                do mbarrier.arrive(&full[0])
            do mbarrier.wait(&full[0], 0)
        y[w] = x[w]
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_an_mbarrier_that_is_set_up_again(seed: int | None) -> None:
    expect(AGAIN.format(before="barrier block", here=""), seed=seed)
    text = AGAIN.format(before="pass", here="  # here")
    report = simulate(text, *(np.zeros(64, np.float32) for _ in range(2)), seed=seed)
    here = next(i for i, line in enumerate(text.splitlines()) if "# here" in line) + 1
    (found, *_) = report.findings
    assert (found.kind, found.location.line) == ("race", here), report
    assert "nothing orders that after its use by worker" in found.message


PIXELS = """
    kernel k(x: f16[2, 4, 4, 64], y: out f16[8, 64]) workers=32 blocks=1 stage=scalar:
        let w = worker
        shared s: f16[8, 64]
        mbarrier full: u64[1]
        if w == 0:
            do mbarrier.init(&full[0], 1)
        barrier block
        if w == 0:
            do tma.load.pixels(&s[0, 0], &x[{first}, 0], &full[0], {tap}, 8, 64, 3, 2, 1, 2, 0, 1)  # here
            do mbarrier.expect(&full[0], 1024)
        do mbarrier.wait(&full[0], 0)
        for i in range(8):
            for j in unroll(2):
                y[i, w * 2 + j] = s[i, w * 2 + j]
"""


def test_pixels_are_counted_through_columns_rows_and_images() -> None:
    """Of three rows of two filters, from the fourth on: the last one's row, the next image, and no third."""
    x = np.arange(2048, dtype=np.float16).reshape(2, 4, 4, 64)
    y = np.zeros((8, 64), np.float16)
    report = simulate(PIXELS.format(first="0, 1, 1", tap="1, 0"), x, y)
    assert report.findings == ()
    nothing = np.zeros(64)
    rows = [x[0, 2, 1], nothing, x[0, 3, 1], nothing, x[1, 1, 1], nothing, x[1, 2, 1], nothing]
    np.testing.assert_array_equal(y, np.array(rows))


@pytest.mark.parametrize(
    ("first", "tap", "text"),
    [
        ("0, 1, 0", "0, 0", "no filter begins in row 1 and column 0"),
        ("0, 3, 1", "0, 0", "no filter begins in row 3 and column 1"),
        (
            "0, 0, 1",
            "0, 300",
            "a tap is up to 255 rows and columns from its filter's first: [0, 300]",
        ),
    ],
)
def test_pixels_that_no_filter_begins_at(first: str, tap: str, text: str) -> None:
    x, y = np.zeros((2, 4, 4, 64), np.float16), np.zeros((8, 64), np.float16)
    report = simulate(PIXELS.format(first=first, tap=tap), x, y)
    assert [(f.kind, f.message) for f in report.findings][:1] == [("out-of-bounds", text)]
