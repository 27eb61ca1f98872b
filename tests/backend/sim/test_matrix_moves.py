"""ldmatrix and stmatrix in the simulator: what lanes get, and what is wrong with what they name."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backend.sim.checking import expect, simulate

FILL = """
            for s in unroll(8):
                sa[worker, s] = a[worker, s]
            barrier block
"""


def program(name: str, count: int, line: str, *, fill: str = FILL, pitch: int = 8) -> str:
    return f"""
        kernel k(a: f16[32, 8], c: out f16[32, {2 * count}]) workers=32 blocks=1 stage=scalar:
            shared sa: f16[33, {pitch}]
            register r: f16[{2 * count}]
            {fill}
            do {name}(&r[0], &sa[{line}])  # here
            for s in unroll({2 * count}):
                c[worker, s] = r[s]
        """


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("end", ["", ".trans"])
def test_loads(count: int, end: str) -> None:
    """PTX: register i of lane l is row l / 4 of matrix i, elements 2 * (l % 4) on, or that transposed."""
    a = np.arange(256, dtype=np.float16).reshape(32, 8)
    c = np.zeros((32, 2 * count), np.float16)
    line = "31 - worker, 0"  # the lines lie in the opposite order
    report = simulate(program(f"ldmatrix.x{count}{end}", count, line), a, c)
    assert not report.findings, report
    for lane in range(32):
        for matrix in range(count):
            named = a[::-1][8 * matrix : 8 * matrix + 8]
            named = named.T if end else named
            expected = named[lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2]
            assert c[lane, 2 * matrix : 2 * matrix + 2].tolist() == expected.tolist()


@pytest.mark.parametrize("end", ["", ".trans"])
def test_stores(end: str) -> None:
    a = np.arange(256, dtype=np.float16).reshape(32, 8)
    c = np.zeros((32, 8), np.float16)
    report = simulate(
        f"""
        kernel k(a: f16[32, 8], c: out f16[32, 8]) workers=32 blocks=1 stage=scalar:
            shared sc: f16[32, 8]
            register r: f16[8]
            for s in unroll(8):
                r[s] = a[worker, s]
            do stmatrix.x4{end}(&sc[worker, 0], &r[0])
            barrier block
            for s in unroll(8):
                c[worker, s] = sc[worker, s]
        """,
        a,
        c,
    )
    assert not report.findings, report
    for lane in range(32):
        for matrix in range(4):
            stored = c[8 * matrix : 8 * matrix + 8]
            stored = stored.T if end else stored
            pair = stored[lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2]
            assert pair.tolist() == a[lane, 2 * matrix : 2 * matrix + 2].tolist()


def test_lanes_that_name_nothing() -> None:
    """Of x1 the lines of lanes from 8 on don't count: they may be anywhere."""
    expect(program("ldmatrix.x1", 1, "select(worker < 8, worker, 32), 0"))
    expect(program("ldmatrix.x2", 2, "select(worker < 8, worker, 32), 0"), "uninitialized")


def test_a_line_that_is_not_aligned() -> None:
    expect(program("ldmatrix.x4", 4, "worker, 0", pitch=12), "misaligned")


def test_a_line_over_the_end() -> None:
    text = program("ldmatrix.x4", 4, "worker + 1, 0").replace("f16[33, 8]", "f16[32, 8]")
    expect(text, "out-of-bounds")


def test_a_line_that_another_worker_is_writing() -> None:
    fill = FILL.replace("barrier block", "")
    expect(program("ldmatrix.x4", 4, "(worker + 1) % 32, 0", fill=fill), "race")


def test_half_a_warp() -> None:
    fill = FILL + "            if worker < 16:"
    text = program("ldmatrix.x4", 4, "worker, 0", fill=fill)
    text = text.replace("            do ldmatrix", "                do ldmatrix")
    text = text.replace("c[worker, s] = r[s]", "c[worker, s] = a[0, 0]")
    expect(text, "inactive-lane")


def test_lines_in_the_same_banks() -> None:
    """Eight lines are served at a time: with 64 bytes between them they are in two groups of banks."""
    a, c = np.zeros((32, 8), np.float16), np.zeros((32, 8), np.float16)
    text = program("ldmatrix.x4", 4, "worker, 0", pitch=32)
    report = simulate(text, a, c, statistics=True)
    named = [
        t
        for t in report.accesses
        if t.location.line == text[: text.index("# here")].count("\n") + 1
    ]
    assert [traffic.ways for traffic in named] == [4]


def test_registers_that_were_not_written() -> None:
    expect(
        """
        kernel k(c: out f16[32, 8]) workers=32 blocks=1 stage=scalar:
            shared sc: f16[32, 8]
            register r: f16[8]
            for s in unroll(7):
                r[s] = 1.0
            do stmatrix.x4(&sc[worker, 0], &r[0])  # here
            barrier block
            for s in unroll(8):
                c[worker, s] = sc[worker, s]
        """,
        "uninitialized",
    )
