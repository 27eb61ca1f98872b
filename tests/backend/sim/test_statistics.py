"""Bank conflicts, sectors and budgets."""

from __future__ import annotations

import numpy as np
import pytest

from taskc.backend.sim import Report
from tests.backend.sim.checking import simulate


def access(tensor: str, index: str, workers: int = 32) -> Report:
    size, place = (1024, "t // 32, t % 32") if "32, 32" in tensor else (2048, "t")
    return simulate(
        f"""
        kernel k(x: f32[2048], y: inout f32[64]) workers={workers} blocks=1 stage=scalar:
            shared s: {tensor}
            if worker == 0:
                for t in range(0, {size}, 1):
                    s[{place}] = 0.0
            barrier block
            y[worker] = s[{index}].to(f32) + x[worker]
        """,
        np.zeros(2048, np.float32),
        np.zeros(64, np.float32),
        statistics=True,
    )


@pytest.mark.parametrize(
    ("tensor", "index", "ways"),
    [
        ("f32[2048]", "worker", 1),
        ("f32[2048]", "0 * worker", 1),
        ("f32[2048]", "worker * 2", 2),
        ("f32[2048]", "worker * 8", 8),
        ("f32[2048]", "worker * 32", 32),
        ("f32[2048]", "worker * 33", 1),
        ("f16[2048]", "worker", 1),
        ("f16[2048]", "worker * 2", 1),
        ("f16[2048]", "worker * 4", 2),
        ("f64[2048]", "worker", 1),
        ("f64[2048]", "worker * 2", 2),
        ("f32[32, 32]", "worker, 3", 32),
        ("f32[32, 32].laid(repeat(32, 32).within(32, 32))", "worker, 3", 32),
        ("f32[32, 32].swizzled(5, 0, 5)", "worker, 3", 1),
    ],
)
def test_bank_conflicts(tensor: str, index: str, ways: int) -> None:
    report = access(tensor, index)
    assert max(traffic.ways for traffic in report.accesses) == ways
    found = [finding for finding in report.findings if finding.kind == "bank-conflict"]
    assert [dict(finding.details)["ways"] for finding in found] == ([ways] if ways > 1 else [])
    assert report.ok, "these are warnings"


def test_what_all_requests_take() -> None:
    """Of a warp and a half, in two blocks."""
    report = simulate(
        """
        kernel k(x: f32[256], y: inout f32[256]) workers=48 blocks=2 stage=scalar:
            shared s: f32[256]
            for t in range(0, 2, 1):
                s[worker * 2 + t] = x[worker * 4 + t]
            barrier block
            y[block * 48 + worker] = s[worker * 4] + x[7]
        """,
        np.zeros(256, np.float32),
        np.zeros(256, np.float32),
        statistics=True,
    )
    found = {
        (traffic.tensor, traffic.kind, traffic.ways, traffic.sectors): traffic.total
        for traffic in report.accesses
    }
    blocks, turns = 2, 2
    assert found == {
        ("s", "store", 2, 0): blocks * turns,  # by the whole warp; half a warp has no conflict
        ("x", "load", 1, 16): blocks * turns * (16 + 8),
        ("s", "load", 4, 0): blocks * (3 + 1),
        ("y", "store", 1, 4): blocks * (4 + 2),
        ("x", "load", 1, 1): blocks * 2,
    }


@pytest.mark.parametrize(
    ("index", "sectors", "ideal", "warned"),
    [
        ("worker", 4, 4, False),
        ("worker + 1", 5, 4, False),
        ("worker * 2", 8, 4, True),
        ("worker * 8", 32, 4, True),
        ("worker // 32", 1, 1, False),
    ],
)
def test_sectors(index: str, sectors: int, ideal: int, warned: bool) -> None:
    report = simulate(
        f"""
        kernel k(x: f32[2048], y: out f32[32]) workers=32 blocks=1 stage=scalar:
            y[worker] = x[{index}]
        """,
        np.zeros(2048, np.float32),
        np.zeros(32, np.float32),
        statistics=True,
    )
    (traffic,) = (traffic for traffic in report.accesses if traffic.tensor == "x")
    assert (traffic.sectors, traffic.ideal) == (sectors, ideal)
    assert ("uncoalesced" in {finding.kind for finding in report.findings}) == warned


@pytest.mark.parametrize(("factor", "ways"), [(4, 1), (8, 2), (36, 1), (32, 8)])
def test_wide_accesses_take_turns(factor: int, ways: int) -> None:
    report = simulate(
        f"""
        kernel k(y: inout f32[128]) workers=32 blocks=1 stage=lean:
            shared s: f32[2048]
            if worker == 0:
                for t in range(0, 2048, 1):
                    s[t] = 0.0
            barrier block
            register r: f32[4]
            for t in vector(4):
                r[t] = s[worker * {factor} + t]
            for t in vector(4):
                y[worker * 4 + t] = r[t]
        """,
        np.zeros(128, np.float32),
        statistics=True,
    )
    traffic = {traffic.tensor: traffic for traffic in report.accesses}
    assert traffic["s"].ways == ways
    assert (traffic["y"].sectors, traffic["y"].ideal) == (16, 16)


def test_an_element_that_all_turns_read_is_no_wide_access() -> None:
    report = simulate(
        """
        kernel k(x: inout f32[128], y: inout f32[128]) workers=32 blocks=1 stage=lean:
            shared s: f32[64]
            s[worker * 2] = 1.0
            for t in vector(4):
                y[worker * 4 + t] = s[worker * 2] + s[(worker * 8 + t) // 4]
        """,
        np.zeros(128, np.float32),
        np.zeros(128, np.float32),
        statistics=True,
    )
    assert [traffic.ways for traffic in report.accesses if traffic.tensor == "s"] == [2, 2, 2]


def test_a_wide_access_of_a_part_of_the_lanes() -> None:
    report = simulate(
        """
        kernel k(x: f32[200], y: inout f32[200]) workers=32 blocks=2 stage=lean:
            register r: f32[4]
            if block * 128 + worker * 4 < 200:
                for t in vector(4):
                    r[t] = x[block * 128 + worker * 4 + t]
                for t in vector(4):
                    y[block * 128 + worker * 4 + t] = r[t]
        """,
        np.zeros(200, np.float32),
        np.zeros(200, np.float32),
        statistics=True,
    )
    assert not report.findings
    assert {(traffic.sectors, traffic.ideal) for traffic in report.accesses} == {(16, 16)}


def test_an_asynchronous_copy_is_one_access() -> None:
    report = simulate(
        """
        kernel k(x: f16[512], y: inout f16[512]) workers=32 blocks=1 stage=lean target=sm_80:
            shared s: f16[256]
            do cp.async(&s[worker * 8], &x[worker * 8], 8, True)
            do cp.async.commit()
            do cp.async.wait(0)
            for t in vector(8):
                y[worker * 8 + t] = s[worker * 8 + t]
        """,
        np.zeros(512, np.float16),
        np.zeros(512, np.float16),
        statistics=True,
    )
    assert not report.findings
    (traffic,) = (traffic for traffic in report.accesses if traffic.tensor == "x")
    assert (traffic.sectors, traffic.ideal) == (16, 16)


def test_budgets() -> None:
    text = """
        kernel k(y: out f32[32]) workers=32 blocks=1 stage=scalar:
            shared s: f32[100]
            shared h: f16[100]
            register r: f32[5]
            y[worker] = 1.0
    """
    report = simulate(text, np.zeros(32, np.float32), shared_limit=600)
    assert report.ok
    assert report.shared_bytes == 600
    assert report.register_bytes == 20
    report = simulate(text, np.zeros(32, np.float32), shared_limit=599)
    assert [finding.kind for finding in report.findings] == ["shared-memory"]
