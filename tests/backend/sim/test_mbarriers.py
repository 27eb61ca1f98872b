"""mbarriers between a producer and its consumers, and what goes wrong with them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backend.sim.checking import expect, simulate
from tests.backend.sim.test_schedule import SEEDS

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
