"""Every index within its extent: for symbolic, ragged, prime, single and empty sizes."""

from __future__ import annotations

import pytest

from taskc.passes.proofs.bounds import bounds_findings
from tests.passes.proofs.programs import Case, cases, check

RAGGED = """
grid (row, col) in ({m}, {n}) by (4, 2):
    each (i, j) in spatial(4, 1).repeat(1, 2):
        if row + i < {m} and col + j < {n}:
            c[row + i, col + j] = a[row + i, col + j]
"""


@pytest.mark.parametrize(("m", "n"), [(7, 13), (1, 1), (0, 5), (4, 2), (97, 1)])
def test_guarded_tiles_of_any_constant_size(m: int, n: int) -> None:
    body = RAGGED.format(m=m, n=n)
    check(Case("", f"a: f32[{m}, {n}], c: out f32[{m}, {n}]", body), bounds_findings)


@cases(
    Case(
        "an index that is chosen", "a: f32[4, n], c: out f32[n]",
        """
        grid row in n by 4:
            each i in spatial(4):
                if row + i < n:
                    c[row + i] = a[select(row < 4, row, 0), n - 1 - select(row + i < 9, row + i, 0)]
        """,
        dimensions="n",
    ),
    Case(
        "an index that wraps", "c: out f32[4]",
        """
        each i in spatial(4):
            c[(-i.to(u8)).to(i64) + 3] = 1.0
        """,
        "index 258 is outside `c` (extent 4) at worker 1, task (1,)", "c[", "if ",
    ),
    Case(
        "an index that is chosen wrongly", "a: f32[4], c: out f32[n]",
        """
        grid row in n by 4:
            each i in spatial(4):
                if row + i < n:
                    c[row + i] = a[select(row < 5, row, 0)]
        """,
        "can't prove that index `select(row < 5, row, 0)` of `a` is below its extent 4",
        "a[select(row < 5, row, 0)]", "if select(row < 5, row, 0) < 4:", dimensions="n",
    ),
    Case(
        "guarded tiles of symbolic size", "a: f32[m, n], c: out f32[m, n]",
        RAGGED.format(m="m", n="n"), dimensions="m, n",
    ),
    Case(
        "no guard", "a: f32[m], c: out f32[m]",
        """
        grid row in m by 4:
            each i in spatial(4):
                c[row + i] = 1.0
        """,
        "can't prove that index `row + i` of `c` is below its extent m", "c[row + i]",
        "`if row + i < m:`", dimensions="m",
    ),
    Case(
        "no guard, but a known divisor", "a: f32[m], c: out f32[m]",
        """
        grid row in m by 4:
            each i in spatial(4):
                c[row + i] = 1.0
        """,
        dimensions="m multiple=4",
    ),
    Case(
        "an assertion instead of a guard", "a: f32[m], c: out f32[m]",
        """
        assert m % 4 == 0, "m"
        grid row in m by 4:
            each i in spatial(4):
                c[row + i] = 1.0
        """,
        dimensions="m",
    ),
    Case(
        "a guard of another dimension", "c: out f32[m, n]",
        """
        grid (row, col) in (m, n) by (4, 1):
            each i in spatial(4):
                if row + i < n:
                    c[row + i, col] = 1.0
        """,
        "can't prove that index `row + i` of `c` is below its extent m", "c[row + i, col]",
        dimensions="m, n",
    ),
    Case(
        "certainly outside", "a: f32[64], c: out f32[64]",
        """
        each i in spatial(4).repeat(16):
            c[i] = a[i + 2]
        """,
        "index 64 is outside `a` (extent 64) at worker 3, task (62,)", "a[i + 2]",
    ),
    Case(
        "outside in some block", "c: inout f32[6]",
        """
        grid row in 6 by 4:
            each i in spatial(4):
                c[row + i] = 1.0
        """,
        "index 6 is outside `c` (extent 6) at worker 2, task (2,)", "c[row + i]",
    ),
    Case(
        "below zero", "a: f32[64], c: out f32[64]",
        """
        each i in spatial(4).repeat(16):
            c[i] = a[i - 1]
        """,
        "index -1 is outside `a` (extent 64) at worker 0, task (0,)", "a[i - 1]",
    ),
    Case(
        "a halo", "a: f32[n], c: out f32[n]",
        """
        grid row in n by 4:
            each i in spatial(4):
                if row + i < n:
                    c[row + i] = select(row + i >= 1, a[row + i - 1], 0.0)
        """,
        dimensions="n",
    ),
    Case(
        "a halo with the wrong guard", "a: f32[n], c: out f32[n]",
        """
        grid row in n by 4:
            each i in spatial(4):
                if row + i < n:
                    c[row + i] = select(row + i >= 0, a[row + i - 1], 0.0)
        """,
        "can't prove that index `row + i - 1` of `a` is at least 0", "a[row + i - 1]",
        "`if row + i - 1 >= 0:`", dimensions="n",
    ),
    Case(
        "a lazy condition", "a: i64[8]",
        """
        shared s: i64[8]
        each i in spatial(4):
            for q in range(0, 9, 1):
                if q < 8 and a[q] > 0:
                    s[i] = 1
        """,
    ),
    Case(
        "a condition in the wrong order", "a: i64[8]",
        """
        shared s: i64[8]
        each i in spatial(4):
            for q in range(0, 9, 1):
                if a[q] > 0 and q < 8:
                    s[i] = 1
        """,
        "index 8 is outside `a` (extent 8) at task (0,)", "a[q]",
    ),
    Case(
        "a guarded move", "a: f32[m], c: out f32[m]",
        """
        grid row in m by 4:
            move c[row + i] = a[row + i] for i in 4 if row + i < m
        """,
        dimensions="m",
    ),
    Case(
        "an unguarded move", "a: f32[m], c: out f32[m]",
        """
        grid row in m by 4:
            move c[row + i] = 1.0 for i in 4
        """,
        "can't prove that index `row + i` of `c` is below its extent m", "move", dimensions="m",
    ),
    Case(
        "an index from memory", "a: f32[m], at: i64[8], c: out f32[8]",
        """
        each i in spatial(4).repeat(2):
            c[i] = a[at[i]]
        """,
        "can't prove that index `at[i]` of `a` is in [0, m)", "a[at[i]]", dimensions="m",
    ),
    Case(
        "a guarded index from memory", "a: f32[m], at: i64[8], c: out f32[8]",
        """
        each i in spatial(4).repeat(2):
            c[i] = select(at[i] >= 0 and at[i] < m, a[at[i]], 0.0)
        """,
        dimensions="m",
    ),
    Case(
        "an asserted index from memory", "a: f32[m], at: i64[8], c: out f32[8]",
        """
        each i in spatial(4).repeat(2):
            let where = at[i]
            assert 0 <= where, "low"
            assert where < m, "high"
            c[i] = a[where]
        """,
        dimensions="m",
    ),
    Case(
        "a cell that counts", "a: f32[m]",
        """
        shared s: f32[4]
        each i in spatial(4):
            local t: i64[()] = 0
            while t >= 0 and t < m:
                s[i] = a[t]
                t = t + 1
        """,
        dimensions="m",
    ),
    Case(
        "a cell that has counted on", "a: f32[m]",
        """
        shared s: f32[4]
        each i in spatial(4):
            local t: i64[()] = 0
            while t >= 0 and t < m:
                t = t + 1
                s[i] = a[t]
        """,
        "can't prove that index `t` of `a` is below its extent m", "a[t]", dimensions="m",
    ),
    Case(
        "a shift of a stated range", "n: i64, a: f32[8], c: out f32[4]",
        """
        assert 0 < n and n <= 4, "n"
        each i in spatial(4):
            c[i] = a[i + n]
        """,
    ),
    Case(
        "a shift of one too many", "n: i64, a: f32[8], c: out f32[4]",
        """
        assert 0 < n and n <= 5, "n"
        each i in spatial(4):
            c[i] = a[i + n]
        """,
        "can't prove that index `i + n` of `a` is below its extent 8", "a[i + n]",
        "guard the access with `if i + n < 8:`",
    ),
    Case(
        "a shift of any range", "n: i64, a: f32[8], c: out f32[4]",
        """
        each i in spatial(4):
            c[i] = a[i + n]
        """,
        "can't prove that index `i + n` of `a` is in [0, 8)", "a[i + n]",
        "`n` may be any i64, and so the sum may wrap; state before: `assert 0 <= n <= 4`",
    ),
    Case(
        "a shift whose guard may wrap", "n: i64, a: f32[m], c: out f32[4]",
        """
        assert 0 <= n and n + 4 <= m, "n"
        each i in spatial(4):
            c[i] = a[i + n]
        """,
        "can't prove that index `i + n` of `a` is in [0, m)", "a[i + n]",
        "`n` may be any i64, and so the sum may wrap; state before: `assert 0 <= n <= m - 4`",
        dimensions="m",
    ),
    Case(
        "a shift within a size", "n: i64, a: f32[m], c: out f32[4]",
        """
        assert 0 <= n and n <= m - 4, "n"
        each i in spatial(4):
            c[i] = a[i + n]
        """,
        dimensions="m",
    ),
    Case(
        "by enumeration", "c: inout f32[16]",
        """
        each i in spatial(4).repeat(4):
            c[(i ^ 5) % 16] = 1.0
            c[i * i // 15] = 1.0
        """,
    ),
    Case(
        "a matrix within its tensor", "a: f32[8, 8], b: f32[8, 8]",
        """
        tile acc: f32[4, 4] by spatial(2, 2).repeat(2, 2) = 0.0
        for q in range(0, 8, 4):
            mma acc += a[4, q].as(4, 4) @ b[q, 0].as(4, 4)
        """,
    ),
    Case(
        "a matrix that sticks out", "a: f32[8, 8], b: f32[8, 8]",
        """
        tile acc: f32[4, 4] by spatial(2, 2).repeat(2, 2) = 0.0
        mma acc += a[5, 0].as(4, 4) @ b[0, 0].as(4, 4)
        """,
        "index 8 is outside `a` (extent 8)", "mma",
    ),
)  # fmt: skip
def test_bounds(case: Case) -> None:
    check(case, bounds_findings)
