"""Bulk copies: stores and loads, their fences, and pixels of images."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backend.sim.checking import expect, simulate
from tests.backend.sim.test_schedule import SEEDS

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
