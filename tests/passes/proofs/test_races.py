"""Workers of one phase, and blocks, that meet at one element."""

from __future__ import annotations

from taskc.passes.proofs.accesses import collect
from taskc.passes.proofs.races import race_findings
from tests.passes.proofs.programs import Case, cases, check

IN = "a: f32[64]"


@cases(
    Case(
        "each its own", IN,
        """
        shared s: f32[8]
        each i in spatial(4).repeat(2):
            s[i] = s[i] + a[i]
        """,
    ),
    Case(
        "all the same", IN,
        """
        shared s: f32[1]
        each i in spatial(4):
            s[0] = a[i]
        """,
        "race: worker 0 (task (0,)) and worker 1 (task (1,)) both write s[0] in one phase", "s[0]",
        "tc.atomic_add",
    ),
    Case(
        "one worker", IN,
        """
        shared s: f32[1]
        each i in spatial(4):
            if i == 2:
                s[0] = a[i]
        """,
    ),
    Case(
        "a loop that never runs", IN,
        """
        shared s: f32[8]
        each i in spatial(4):
            for q in range(3, 0, 4):
                s[q] = a[i]
        """,
    ),
    Case(
        "replicas", IN,
        """
        shared s: f32[4]
        each i in spatial(4).replicate(2):
            s[i] = a[i]
        """,
        workers=8,
    ),
    Case(
        "reading the neighbour", IN,
        """
        shared s: f32[8]
        each i in spatial(4).repeat(2):
            s[i] = s[(i + 1) % 8] + a[i]
        """,
        "race: worker 1 (task (2,)) writes s[2],"
        " which worker 0 (task (1,)) reads in the same phase",
        "s[i] =",
    ),
    Case(
        "reading the neighbour before writing, in two phases", IN,
        """
        shared s: f32[8]
        shared t: f32[8]
        each i in spatial(4).repeat(2):
            t[i] = s[(i + 1) % 8] + a[i]
        each i in spatial(4).repeat(2):
            s[i] = t[i]
        """,
    ),
    Case(
        "two stores", IN,
        """
        shared s: f32[8]
        each i in spatial(4):
            s[i] = a[i]
            s[i + 2] = a[i]
        """,
        "race: worker 0 (task (0,)) writes s[2],"
        " which worker 2 (task (2,)) writes in the same phase",
        "s[i + 2]",
    ),
    Case(
        "two stores, apart", IN,
        """
        shared s: f32[8]
        each i in spatial(4):
            s[i] = a[i]
            s[i + 4] = a[i]
        """,
    ),
    Case(
        "two stores of one worker", IN,
        """
        shared s: f32[8]
        each i in spatial(4):
            s[2 * i] = a[i]
            s[2 * i + 1] = a[i]
            s[2 * i] = s[2 * i + 1]
        """,
    ),
    Case(
        "uniform offsets that cancel", "a: f32[n]",
        """
        shared s: f32[64, 4]
        for p in range(0, n, 1):
            each i in spatial(4):
                s[p, i] = s[p, i] + a[p]
        """,
        dimensions="n",
    ),
    Case(
        "uniform offsets that differ", "n: i64, m: i64",
        """
        shared s: f32[64]
        each i in spatial(4):
            s[n + i] = s[m + i]
        """,
        "can't prove that two workers never meet at one element of `s`, which this writes",
        "s[n + i] =",
    ),
    Case(
        "a double buffer", IN,
        """
        shared s: f32[2, 8]
        for p in range(0, 16, 1):
            each i in spatial(4).repeat(2):
                s[(p + 1) % 2, i] = s[p % 2, (i + 1) % 8]
        """,
    ),
    Case(
        "a double buffer that is used as one", IN,
        """
        shared s: f32[2, 8]
        for p in range(0, 16, 1):
            each i in spatial(4).repeat(2):
                s[(p + 2) % 2, i] = s[p % 2, (i + 1) % 8]
        """,
        "race: worker 1 (task (2,)) writes s[0, 2],"
        " which worker 0 (task (1,)) reads in the same phase", "s[(p + 2) % 2, i] =",
    ),
    Case(
        "a pivot", IN,
        """
        shared s: f32[4]
        for p in range(0, 4, 1):
            each i in spatial(4):
                if i > p:
                    s[i] = s[i] - s[p]
        """,
    ),
    Case(
        "a pivot that is written", IN,
        """
        shared s: f32[4]
        for p in range(0, 4, 1):
            each i in spatial(4):
                if i >= p:
                    s[i] = s[i] - s[p]
        """,
        "race: worker 0 (task (0,)) writes s[0],"
        " which worker 1 (task (1,)) reads in the same phase",
        "s[i] =",
    ),
    Case(
        "a scatter", "at: i64[4]",
        """
        shared s: f32[4]
        each i in spatial(4):
            s[at[i]] = 1.0
        """,
        "can't prove that two workers never meet at one element of `s`, which this writes",
        "s[at[i]]", "`tc.atomic_exchange(s[at[i]], f32(1.0))`; to combine them, tc.atomic_add",
    ),
    Case(
        "a histogram", "at: i64[4]",
        """
        shared s: f32[4] = 1.0
        each i in spatial(4):
            let k = at[i]
            s[k] = s[k] + 1.0
        """,
        "can't prove that two workers never meet at one element of `s`, which this writes",
        "s[k] =", "update it with `tc.atomic_add(s[k], f32(1.0))`",
    ),
    Case(
        "an atomic scatter", "at: i64[4]",
        """
        shared s: f32[4]
        each i in spatial(4):
            atomic s[at[i]] += 1.0
        """,
    ),
    Case(
        "an atomic and a store", "at: i64[4]",
        """
        shared s: f32[4]
        each i in spatial(4):
            s[i] = 0.0
            atomic s[at[i]] += 1.0
        """,
        "can't prove that two workers never meet at one element of `s`, which this updates",
        "atomic",
    ),
    Case(
        "an atomic of replicas", "at: i64[4]",
        """
        shared s: f32[4]
        each i in spatial(2).replicate(2):
            atomic s[i] += 1.0
        """,
        "several workers have each task of spatial(2).replicate(2):"
        " all of them would update `s`", "atomic", "without replicas",
    ),
    Case(
        "an atomic of all workers", IN,
        """
        shared s: f32[4]
        atomic s[0] += 1.0
        """,
        "all 4 workers would update `s`: this atomic is in no mapping loop", "atomic",
    ),
    Case(
        "a row each, of unknown length", "n: i64",
        """
        shared s: f32[4, 64]
        each i in spatial(4):
            for q in range(0, n, 1):
                s[i, q] = s[i, 0]
        """,
    ),
    Case(
        "a column each iteration, of unknown length", "n: i64",
        """
        shared s: f32[64]
        each i in spatial(4):
            for q in range(0, n, 1):
                s[q] = 1.0
        """,
        "can't prove that two workers never meet at one element of `s`, which this writes", "s[q]",
    ),
    Case(
        "a move in place", IN,
        """
        shared s: f32[8]
        move s[i] = s[i] + 1.0 for i in 8
        """,
    ),
    Case(
        "a shifting move", IN,
        """
        shared s: f32[8]
        move s[i] = s[i + 1] for i in 7
        """,
        "race: task (1,) writes s[1], which task (0,) reads in the same phase", "move",
    ),
    Case(
        "a tree of run-time strides", "n: i64",
        """
        shared s: f32[4] = 1.0
        local half: i64 = 2
        while half > 0:
            each i in spatial(4):
                if i < half:
                    s[i] = s[i] + s[i + half]
            half = half // 2
        """,
    ),
    Case(
        "a tree in which one too many takes part", "n: i64",
        """
        shared s: f32[4] = 1.0
        local half: i64 = 2
        while half > 0:
            each i in spatial(4):
                if i <= half:
                    s[i] = s[i] + s[i + half]
            half = half // 2
        """,
        "can't prove that two workers never meet at one element of `s`, which this writes",
        "s[i] =",
    ),
    Case(
        "a stride that changes within the phase", "n: i64",
        """
        shared s: f32[8] = 1.0
        each i in spatial(4):
            local half: i64 = 2
            if i < half:
                half = 0
                s[i] = s[i] + s[i + half + 1]
        """,
        "can't prove that two workers never meet at one element of `s`, which this writes",
        "s[i] =",
    ),
    Case(
        "a stride of before", "n: i64",
        """
        shared s: f32[8] = 1.0
        local half: i64 = 4
        while half > 0:
            let before = half
            half = half // 2
            each i in spatial(4):
                if i < half:
                    s[i] = s[i] + s[i + before]
        """,
        "can't prove that two workers never meet at one element of `s`, which this writes",
        "s[i] =",
    ),
    Case(
        "a guard of before", "n: i64",
        """
        shared s: f32[8] = 1.0
        local half: i64 = 4
        while half > 0:
            if half > 3:
                half = half // 4
                each i in spatial(4):
                    s[i] = s[i] + s[i + half]
        """,
        "can't prove that two workers never meet at one element of `s`, which this writes",
        "s[i] =",
    ),
    Case(
        "a guard that holds in the phase", "n: i64",
        """
        shared s: f32[8] = 1.0
        local half: i64 = 4
        while half > 0:
            half = half // 4
            each i in spatial(4):
                if half > 3:
                    s[i] = s[i] + s[i + half]
        """,
    ),
    Case(
        "a stride of at least one", "n: i64",
        """
        shared s: f32[64] = 1.0
        assert 1 <= n and n <= 16, "n"
        each i in spatial(4):
            s[i * n] = 1.0
        """,
    ),
    Case(
        "a stride of none", "n: i64",
        """
        shared s: f32[64] = 1.0
        assert 0 <= n and n <= 16, "n"
        each i in spatial(4):
            s[i * n] = 1.0
        """,
        "can't prove that two workers never meet at one element of `s`, which this writes",
        "s[i * n]",
    ),
    Case(
        "a symbolic guard", "n: i64",
        """
        shared s: f32[8]
        each i in spatial(4):
            if i < n:
                s[i // 2] = 1.0
        """,
        "can't prove that two workers never meet at one element of `s`, which this writes",
        "s[i // 2]",
    ),
)  # fmt: skip
def test_phases(case: Case) -> None:
    check(case, race_findings)


def test_both_places_are_named() -> None:
    case = Case(
        "", IN,
        """
        shared s: f32[8]
        each i in spatial(4):
            s[i] = a[i]
            s[i + 1] = 0.0
        """,
    )  # fmt: skip
    (error,) = race_findings(collect(case.kernel()))
    ((text, location),) = error.notes
    assert text == "worker 1 (task (1,)) writes s[1] here"
    assert (location.line, error.location.line) == (4, 5)


@cases(
    Case(
        "a tile each", "c: inout f32[m, n]",
        """
        grid (row, col) in (m, n) by (4, 8):
            each (i, j) in spatial(4, 1).repeat(1, 8):
                if row + i < m and col + j < n:
                    c[row + i, col + j] = c[row + i, col + j] * 2.0
        """,
        dimensions="m, n",
    ),
    Case(
        "a tile each, with its halo", "c: inout f32[m]",
        """
        grid row in m by 4:
            each i in spatial(4):
                if row + i + 1 < m:
                    c[row + i] = 1.0
            each i in spatial(4):
                shared s: f32[4]
                if row + i + 1 < m:
                    s[i] = c[row + i + 1]
        """,
        "can't prove that no two blocks meet at one element of `c`, which this reads",
        "c[row + i + 1]", "tc.tiles", dimensions="m",
    ),
    Case(
        "a missing grid variable", "c: inout f32[m]",
        """
        grid (row, col) in (m, n) by (4, 4):
            each i in spatial(4):
                if row + i < m:
                    c[row + i] = 1.0
        """,
        "can't prove that no two blocks meet at one element of `c`", "c[row + i]",
        "tc.tiles", dimensions="m, n",
    ),
    Case(
        "a missing grid variable of one tile", "c: inout f32[m]",
        """
        grid (row, col) in (m, 4) by (4, 4):
            each i in spatial(4):
                if row + i < m:
                    c[row + i] = 1.0
        """,
        dimensions="m",
    ),
    Case(
        "a missing grid variable, atomically", "c: inout f32[m]",
        """
        grid (row, col) in (m, n) by (4, 4):
            each i in spatial(4):
                if row + i < m:
                    atomic c[row + i] += 1.0
        """,
        dimensions="m, n",
    ),
    Case(
        "overlapping blocks of constant number", "c: inout f32[16]",
        """
        grid row in 12 by 3:
            each i in spatial(4):
                c[row + i] = 1.0
        """,
        "race: blocks (0,) and (1,) both write c[3]", "c[row + i]",
    ),
    Case(
        "scrambled blocks of constant number", "c: inout f32[16]",
        """
        grid row in 4 by 1:
            each i in spatial(4):
                c[(row ^ 2) * 4 + i] = 1.0
        """,
        "can't prove that no two blocks meet at one element of `c`", "c[(row ^ 2)",
    ),
    Case(
        "mixed radix", "c: inout f32[4096]",
        """
        grid (row, col) in (64, 64) by (1, 4):
            each i in spatial(4):
                c[row * 64 + col + i] = 1.0
        """,
    ),
    Case(
        "steps of a loop within the tile", "c: inout f32[m, n]",
        """
        grid row in m by 4:
            for p in range(0, n, 1):
                each i in spatial(4):
                    if row + i < m:
                        c[row + i, p] = c[row + i, 0] + 1.0
        """,
        dimensions="m, n",
    ),
    Case(
        "flattened",
        "c: inout f32[m, n]",
        """
        grid t in m * n by 4:
            each i in spatial(4):
                if t + i < m * n:
                    c[(t + i) // n, (t + i) % n] = c[(t + i) // n, (t + i) % n] + 1.0
        """,
        dimensions="m, n",
    ),
    Case(
        "a stride of at least one", "n: i64, c: inout f32[m]",
        """
        grid row in m by 4:
            assert 1 <= n and n <= 16, "n"
            each i in spatial(4):
                if (row + i) * n < m:
                    c[(row + i) * n] = 1.0
        """,
        dimensions="m",
    ),
    Case(
        "what all blocks read first", "c: inout f32[m]",
        """
        let first = c[0]
        grid row in m by 4:
            each i in spatial(4):
                if row + i < m:
                    c[row + i] = first
        """,
        "can't prove that no two blocks meet at one element of `c`, which this writes", "c[row",
        dimensions="m",
    ),
    Case(
        "a stride of less than a tile", "n: i64, c: inout f32[m]",
        """
        grid row in m by 4:
            assert 1 <= n and n <= 16, "n"
            each i in spatial(4):
                if row * n + i < m:
                    c[row * n + 2 * i] = 1.0
        """,
        "can't prove that no two blocks meet at one element of `c`", "c[row",
        dimensions="m",
    ),
    Case(
        "a block's own variable", "c: inout f32[m]",
        """
        grid row in m by 4:
            local k: i64 = 0
            while k < row:
                k = k + 5
            each i in spatial(4):
                if k + i < m:
                    c[k + i] = 1.0
        """,
        "can't prove that no two blocks meet at one element of `c`", "c[k",
        dimensions="m",
    ),
    Case(
        "reading an output back", "c: out f32[m]",
        """
        grid row in m by 4:
            shared s: f32[4]
            move c[row + i] = 1.0 for i in 4 if row + i < m
            move s[i] = c[row + i] for i in 4 if row + i < m
        """,
        dimensions="m",
    ),
    Case(
        "reading an output of others", "c: out f32[m]",
        """
        grid row in m by 4:
            shared s: f32[4]
            move c[row + i] = 1.0 for i in 4 if row + i < m
            move s[i] = c[i] for i in 4
        """,
        "can't prove that no two blocks meet at one element of `c`, which this reads",
        "c[i]", dimensions="m",
    ),
)  # fmt: skip
def test_blocks(case: Case) -> None:
    check(case, race_findings)
