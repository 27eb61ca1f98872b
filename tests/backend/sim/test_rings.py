"""Rings: slots are waited for, and not read when they are released."""

from __future__ import annotations

import pytest

from tests.backend.sim.checking import expect

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
