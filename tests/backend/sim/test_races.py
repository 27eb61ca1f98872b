"""Races: of tasks in a phase, of blocks, of atomics with plain accesses; and what is none."""

from __future__ import annotations

from tests.backend.sim.checking import expect

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
