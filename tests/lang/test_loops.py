"""Ranges, static loops, and loops over mappings."""

from __future__ import annotations

from taskc import spatial
from tests.lang.test_statements import assert_becomes


def test_ranges() -> None:
    assert_becomes(
        """
        for j in range(2, 8):
            for q in range(j, n[0], 3):
                for r in range(9, -1, -2):
                    pass
        """,
        """
        for j in range(2, 8):
            for q in range(j, n[0].to(i64), 3):
                for r in range(9, -1, -2):
                    pass
        """,
    )


def test_static_loops_are_unrolled_while_parsing() -> None:
    assert_becomes(
        """
        v = s
        for p, (name, q) in tc.static([(1, ("a", 2)), (3, ("b", 4))]):
            v += p * q
            if name == "b":
                w = s * 2
                v = w
        """,
        """
        local v: f32
        v = s
        v = v + 2.0
        scope:
            v = v + 12.0
            let w = s * 2.0
            v = w
        """,
    )


def test_mapping_loops() -> None:
    assert_becomes(
        """
        for i, j in spatial(4, 8).repeat(2, 2):
            for p, in repeat(4).on(tc.worker() % 1):
                y[i] = a[j, p]
        for p, q in inner.on(tc.worker() // 8):
            y[p] = s
        """,
        """
        each (i, j) in spatial(4, 8).repeat(2, 2):
            each p in repeat(4) on worker % 1:
                y[i] = a[j, p]
        each (p_1, q) in spatial(2, 2) on worker // 8:
            y[p_1] = s
        """,
        inner=spatial(2, 2),
    )


def test_a_mapping_loop_in_a_mapping_loop_is_the_same_workers() -> None:
    assert_becomes(
        """
        for i in spatial(32):
            for j in repeat(4).spatial(32):
                y[i] += x[j]
        """,
        """
        each i in spatial(32):
            each j in repeat(4).spatial(32):
                y[i] = y[i] + x[j]
        """,
    )
