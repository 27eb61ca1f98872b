"""Every element of an output stored exactly once."""

from __future__ import annotations

import pytest

from taskc.ir import nodes as ir
from taskc.passes.proofs.accesses import collect
from taskc.passes.proofs.coverage import coverage_findings
from taskc.passes.proofs.enumeration import Enumerator
from tests.passes.proofs.programs import Case, cases, check

TILED = """
grid (row, col) in ({m}, {n}) by (4, 4):
    each (i, j) in {mapping}:
        if row + i < {m} and col + j < {n}:
            c[row + i, col + j] = 1.0
"""
TWO_WAYS = """
grid (row, col) in (m, n) by (1, 4):
    if col + 4 <= n:
        each j in repeat(4).replicate(4):
            c[row, col + j + {first}] = 1.0
    else:
        each j in spatial(4):
            if col + j < {last}:
                c[row, col + j] = 2.0
"""
CANT = "can't prove that every element of `c` is stored exactly once: "


@pytest.mark.parametrize(("m", "n"), [(7, 13), (1, 1), (0, 5), (4, 4), (97, 1), (64, 3)])
@pytest.mark.parametrize(
    "mapping",
    [
        "spatial(4, 1).repeat(1, 4)",
        "repeat(2, 2).spatial(2, 2)",
        "spatial(1, 4, order=(1, 0)).repeat(4, 1)",
        "spatial(2, 1).replicate(2).repeat(2, 4)",
    ],
)
def test_tiles_of_any_constant_size(m: int, n: int, mapping: str) -> None:
    body = TILED.format(m=m, n=n, mapping=mapping)
    check(Case("", f"c: out f32[{m}, {n}]", body), coverage_findings)


C = "c: out f32[m, n]"


@cases(
    Case(
        "tiles", C, TILED.format(m="m", n="n", mapping="spatial(2, 2).repeat(2, 2)"),
        dimensions="m, n",
    ),
    Case(
        "a hole in each tile", C,
        TILED.format(m="m", n="n", mapping="spatial(2, 2).repeat(1, 2)"),
        CANT + "its steps store 2 of every 4 indices in dimension 0 of `c`,"
        " and leave out the others",
        "c[row + i, col + j]", "tc.inout", dimensions="m, n",
    ),
    Case(
        "overlapping tiles", C,
        TILED.format(m="m", n="n", mapping="spatial(2, 2).repeat(4, 2)"),
        CANT + "its steps of 4 in dimension 0 of `c` store 8 indices each, and so overlap",
        "c[row + i, col + j]", dimensions="m, n",
    ),
    Case(
        "a guard with a hole", C,
        """
        grid (row, col) in (m, n) by (4, 1):
            each i in spatial(4):
                if row + i < m - 1:
                    c[row + i, col] = 1.0
        """,
        CANT + "elements where `row + i < m - 1` does not hold are not stored",
        "c[row + i, col]", dimensions="m, n",
    ),
    Case(
        "whole tiles one way, those that stick out another", C,
        TWO_WAYS.format(first=0, last="n"), dimensions="m, n",
    ),
    Case(
        "whole tiles stored beside themselves", C,
        TWO_WAYS.format(first=4, last="n"),
        CANT + "elements where `col + 4 <= n` holds are not stored",
        "c[row, col + j]", dimensions="m, n",
    ),
    Case(
        "tiles that stick out stored up to the last element", C,
        TWO_WAYS.format(first=0, last="n - 1"),
        CANT + "elements where `col + 4 <= n` does not hold are not stored",
        "c[row, col + j + 0]", dimensions="m, n",
    ),
    Case(
        "a missing dimension", C,
        """
        grid row in m by 4:
            move c[row + i, 0] = 1.0 for i in 4 if row + i < m
        """,
        "c[0, 1] is never stored", "move", dimensions="m, n",
    ),
    Case(
        "from the far end, in both dimensions", C,
        """
        grid (row, col) in (m, n) by (1, 4):
            each j in repeat(2).spatial(2).replicate(2):
                if col + j < n:
                    c[m - 1 - row, n - 1 - col - j] = 1.0
        """,
        dimensions="m, n",
    ),
    Case(
        "from the far end, and not to the near one", C,
        """
        grid (row, col) in (m, n) by (1, 4):
            each j in spatial(4):
                if col + j < n - 1:
                    c[m - 1 - row, n - 2 - col - j] = 1.0
        """,
        CANT + "index `n - 2 - col - j` does not count down from end to end",
        "c[m", dimensions="m, n",
    ),
    Case(
        "the upper part from the far end, the lower one forwards", "c: out f32[100, m]",
        """
        grid col in m by 1:
            for p in range(0, 60, 1):
                each j in spatial(1).replicate(4):
                    c[99 - p, col] = 1.0
            for q in range(0, 40, 1):
                each j in spatial(1).replicate(4):
                    c[q, col] = 1.0
        """,
        dimensions="m",
    ),
    Case(
        "the upper part from the far end, with a gap", "c: out f32[100, m]",
        """
        grid col in m by 1:
            for p in range(0, 59, 1):
                each j in spatial(1).replicate(4):
                    c[99 - p, col] = 1.0
            for q in range(0, 40, 1):
                each j in spatial(1).replicate(4):
                    c[q, col] = 1.0
        """,
        "c[40, 0] is never stored", "c[q", dimensions="m",
    ),
    Case(
        "a loop that stores again", C,
        """
        grid (row, col) in (m, n) by (4, 1):
            for p in range(0, n, 1):
                move c[row + i, col] = 1.0 for i in 4 if row + i < m
        """,
        CANT + "it is stored again for each `p`", "move", dimensions="m, n",
    ),
    Case(
        "a loop over columns, of symbolic length, in a mapping loop", C,
        """
        grid row in m by 4:
            each i in spatial(4):
                for p in range(0, n, 1):
                    if row + i < m:
                        c[row + i, p] = 1.0
        """,
        dimensions="m, n",
    ),
    Case(
        "a loop over columns, strided", C,
        """
        grid row in m by 1:
            for p in range(0, n, 8):
                each j in repeat(2).spatial(4):
                    if p + j < n:
                        c[row, p + j] = 1.0
        """,
        dimensions="m, n",
    ),
    Case(
        "strides the other way round", "c: out f32[m]",
        """
        for p in range(0, 8, 1):
            each j in spatial(4):
                c[j * 8 + p] = 1.0
        """,
        "c[32] is never stored", "c[j * 8 + p]", dimensions="m",
    ),
    Case(
        "as far as an assertion allows", "c: out f32[m]",
        """
        assert m <= 32, "m"
        for p in range(0, 8, 1):
            each j in spatial(4):
                if j * 8 + p < m:
                    c[j * 8 + p] = 1.0
        """,
        dimensions="m",
    ),
    Case(
        "one worker", "c: out f32[m]",
        """
        grid row in m by 1:
            each i in spatial(4):
                if i == 0:
                    c[row] = 1.0
        """,
        dimensions="m",
    ),
    Case(
        "all workers", "c: out f32[m]",
        """
        grid row in m by 1:
            each i in spatial(4):
                c[row] = 1.0
        """,
        CANT + "workers of one block store some elements twice", "c[row]", dimensions="m",
    ),
    Case(
        "an xor", "c: out f32[m]",
        """
        grid row in m by 16:
            each i in spatial(4).repeat(4):
                if row + (i ^ 5) < m:
                    c[row + (i ^ 5)] = 1.0
        """,
        dimensions="m",
    ),
    Case(
        "both branches", "a: f32[m], c: out f32[m]",
        """
        grid row in m by 4:
            each i in spatial(4):
                if row + i < m:
                    if a[row + i] > 0.0:
                        c[row + i] = 1.0
                    else:
                        c[row + i] = 0.0
        """,
        dimensions="m",
    ),
    Case(
        "one branch", "a: f32[m], c: out f32[m]",
        """
        grid row in m by 4:
            each i in spatial(4):
                if row + i < m:
                    if a[row + i] > 0.0:
                        c[row + i] = 1.0
        """,
        CANT + "elements where `a[row + i] > 0.0` does not hold are not stored",
        "c[row + i] =", "tc.inout", dimensions="m",
    ),
    Case(
        "in two parts", C,
        """
        grid row in m by 1:
            each j in spatial(4):
                if j < n:
                    c[row, j] = 1.0
            for p in range(4, n, 4):
                each j in spatial(4):
                    if p + j < n:
                        c[row, p + j] = 1.0
        """,
        dimensions="m, n",
    ),
    Case(
        "in two parts that overlap", C,
        """
        grid row in m by 1:
            each j in spatial(4):
                if j < n:
                    c[row, j] = 1.0
            for p in range(2, n, 4):
                each j in spatial(4):
                    if p + j < n:
                        c[row, p + j] = 1.0
        """,
        "c[0, 2] is stored twice", "c[row, p + j]", dimensions="m, n",
    ),
    Case(
        "in the first step only", "c: out f32[4]",
        """
        for p in range(0, 8, 1):
            each i in spatial(4):
                if p == 3:
                    c[i] = 1.0
        """,
    ),
    Case(
        "flattened", C,
        """
        grid t in m * n by 4:
            each i in spatial(4):
                if t + i < m * n:
                    c[(t + i) // n, (t + i) % n] = 1.0
        """,
        dimensions="m, n",
    ),
    Case(
        "flattened by the wrong size", C,
        """
        grid t in m * n by 4:
            each i in spatial(4):
                if t + i < m * n:
                    c[(t + i) // m, (t + i) % m] = 1.0
        """,
        CANT + "elements where `t + i < m * n` does not hold are not stored", "c[(t",
        dimensions="m, n",
    ),
    Case(
        "flattened three times", "c: out f32[m, 6, 7]",
        """
        grid t in m * 42 by 4:
            each i in spatial(4):
                let x = t + i
                let y = x // 7
                if x < m * 42:
                    c[y // 6, y % 6, x % 7] = 1.0
        """,
        dimensions="m",
    ),
    Case(
        "flattened four times at once",
        "c: out f32[b, 6, 7, 5]",
        """
        grid (t, col) in (b * 42, 5) by (4, 1):
            each i in spatial(4):
                if t + i < b * 42:
                    c[(t + i) // 42, (t + i) // 7 % 6, (t + i) % 7, col] = 1.0
        """,
        dimensions="b",
    ),
    Case(
        "flattened, with another dimension between",
        "c: out f32[b, 5, 6, 7]",
        """
        grid (t, f) in (b * 42, 5) by (4, 1):
            each i in spatial(4):
                if t + i < b * 42:
                    c[(t + i) // 42, f, (t + i) // 7 % 6, (t + i) % 7] = 1.0
        """,
        dimensions="b",
    ),
    Case(
        "flattened, with a sum in groups between",
        "c: out f32[b, 15, 7]",
        """
        grid (t, g, f) in (b * 7, 3, 5) by (4, 1, 2):
            each (i, j) in spatial(4, 1).repeat(1, 2):
                if t + i < b * 7 and f + j < 5:
                    c[(t + i) // 7, g * 5 + f + j, (t + i) % 7] = 1.0
        """,
        dimensions="b",
    ),
    Case(
        "groups that overlap",
        "c: out f32[b, 15, 7]",
        """
        grid (t, g, f) in (b * 7, 3, 6) by (4, 1, 2):
            each (i, j) in spatial(4, 1).repeat(1, 2):
                if t + i < b * 7 and f + j < 6 and g * 5 + f + j < 15:
                    c[(t + i) // 7, g * 5 + f + j, (t + i) % 7] = 1.0
        """,
        CANT + "its steps of 5 in dimension 1 of `c` store 6 indices each, and so overlap",
        "c[(t",
        dimensions="b",
    ),
    Case(
        "flattened with a wrong factor",
        "c: out f32[b, 6, 7]",
        """
        grid t in b * 42 by 4:
            each i in spatial(4):
                if t + i < b * 42:
                    c[(t + i) // 42, (t + i) // 6 % 6, (t + i) % 7] = 1.0
        """,
        CANT + "index `(t + i) // 42` is not a sum of loop variables",
        "c[(t",
        dimensions="b",
    ),
    Case(
        "an index from memory", "at: i64[8], c: out f32[8]",
        """
        each i in spatial(4).repeat(2):
            c[at[i]] = 1.0
        """,
        CANT + "index `at[i]` is not a sum of loop variables", "c[at[i]]", "tc.inout",
    ),
    Case("never", "c: out f32[8]", "pass", "`c` is never stored", "c: out"),
    Case("never, but empty", "c: out f32[0, 8]", "pass"),
    Case(
        "atomically", "c: out f32[4]",
        """
        each i in spatial(4):
            atomic c[i] += 1.0
        """,
        "`c` is tc.out, whose elements are stored once; this updates them", "atomic", "tc.inout",
    ),
    Case(
        "a scalar", "c: out f32[1]",
        """
        c[0] = 1.0
        """,
    ),
    Case(
        "a grid that may be empty", "c: out f32[4]",
        """
        grid row in n by 4:
            each i in spatial(4):
                if row + i < 4:
                    c[row + i] = 1.0
        """,
        CANT + "its loop up to `n` may not reach the extent `4` of dimension 0", "c[row + i]",
        dimensions="n multiple=4",
    ),
    Case(
        "a grid that is empty where the output is", "c: out f32[n, 4]",
        """
        grid (row, col) in (n, m) by (1, 4):
            each j in spatial(4):
                if col + j < 4:
                    c[row, col + j] = 1.0
        """,
        CANT + "its loop up to `m` may not reach the extent `4` of dimension 1", "c[row",
        dimensions="n, m multiple=4",
    ),
    Case(
        "an output that is empty where the grid is", "c: out f32[n, m, 4]",
        """
        grid (row, col) in (n, m) by (1, 4):
            each i in spatial(4):
                for q in range(0, 4, 1):
                    if col + i < m:
                        c[row, col + i, q] = 1.0
        """,
        dimensions="n, m",
    ),
    Case(
        "a loop within tells how long the one around is", "c: out f32[m, 1]",
        """
        each i in spatial(1).replicate(4):
            for q in range(0, n, 1):
                for r in range(0, n - m + 1, 1):
                    if q < m and r < 1:
                        c[q, r] = 1.0
        """,
        CANT + "its loop up to `n` may not reach the extent `m` of dimension 0", "c[q, r]",
        dimensions="n, m",
    ),
    Case(
        "a promise within a loop that may not run", "c: out f32[4]",
        """
        for q in range(0, n, 1):
            assert n == 1, ""
            each i in spatial(4):
                c[i] = 1.0
        """,
        CANT + "it is stored again for each `q`", "c[i]", dimensions="n",
    ),
    Case(
        "a promise before", "c: out f32[4]",
        """
        assert n == 1, ""
        for q in range(0, n, 1):
            each i in spatial(4):
                c[i] = 1.0
        """,
        dimensions="n",
    ),
    Case(
        "a worker's loop that may not run", "c: out f32[4]",
        """
        each i in spatial(4):
            for q in range(0, n, 1):
                c[i] = 1.0
        """,
        CANT + "it is stored again for each `q`", "c[i]", dimensions="n",
    ),
    *(
        Case(
            f"{groups} groups of {of_one}", f"c: out f32[n, {groups * of_one}]",
            f"""
            grid (group, row, col) in ({groups}, n, {of_one}) by (1, 1, 4):
                each i in spatial(4):
                    if col + i < {of_one}:
                        c[row, group * {of_one} + (col + i)] = 1.0
            """,
            dimensions="n",
        )
        for groups, of_one in ((1, 1), (3, 1), (1, 3), (2, 5))
    ),
    *(
        Case(
            f"rows of {groups} groups", f"c: out f32[n, {groups * 5}, 2]",
            f"""
            grid (batch, group, row) in (n, {groups}, 10) by (1, 1, 4):
                each i in spatial(4):
                    if row + i < 10:
                        c[batch, group * 5 + (row + i) // 2, (row + i) % 2] = 1.0
            """,
            dimensions="n",
        )
        for groups in (1, 2)
    ),
    Case(
        "the number of a tile", "c: out f32[(n + 7) // 8]",
        """
        grid row in n by 8:
            each i in spatial(1).replicate(4):
                c[row // 8 + i] = 1.0
        """,
        dimensions="n",
    ),
    Case(
        "the number of half a tile", "c: out f32[(n + 3) // 4]",
        """
        grid row in n by 8:
            each i in spatial(1).replicate(4):
                c[row // 4 + i] = 1.0
        """,
        CANT + "its steps store 1 of every 2 indices in dimension 0 of `c`, and leave out the others",
        "c[row", dimensions="n",
    ),
)  # fmt: skip
def test_structure(case: Case) -> None:
    check(case, coverage_findings)


@cases(
    Case(
        "a triangle and its mirror image", "c: out f32[4, 4]",
        """
        each (i, j) in spatial(4, 1).repeat(1, 4):
            if j <= i:
                c[i, j] = 1.0
            if j < i:
                c[j, i] = 1.0
        """,
    ),
    Case(
        "a triangle twice", "c: out f32[4, 4]",
        """
        each (i, j) in spatial(4, 1).repeat(1, 4):
            if j <= i:
                c[i, j] = 1.0
            if j <= i:
                c[j, i] = 1.0
        """,
        "c[0, 0] is stored twice: by worker 0, two times", "c[j, i]",
    ),
    Case(
        "an anti-diagonal left out", "c: out f32[4, 4]",
        """
        each (i, j) in spatial(4, 1).repeat(1, 4):
            if i + j != 3:
                c[i, j] = 1.0
        """,
        "c[0, 3] is never stored", "c[i, j]",
    ),
    Case(
        "by two workers", "c: out f32[8, 8]",
        """
        grid (row, col) in (8, 8) by (4, 8):
            each (i, j) in spatial(4, 1).repeat(1, 8):
                c[row + i // 2, col + j] = 1.0
        """,
        "c[0, 0] is stored twice: by worker 0 and worker 1 (block (0, 0))", "c[row",
    ),
    Case(
        "by two blocks", "c: out f32[8]",
        """
        grid row in 8 by 2:
            each i in spatial(4):
                if row + i < 8:
                    c[row + i] = 1.0
        """,
        "c[2] is stored twice: by block (0,) and block (1,)", "c[row + i]",
    ),
    Case(
        "by two tasks of a move", "c: out f32[4]",
        """
        move c[i // 2] = 1.0 for i in 8
        """,
        "c[0] is stored twice: by task (0,) and task (1,)", "move",
    ),
    Case(
        "a triangular mapping", "c: out f32[3, 3]",
        """
        each (i, j) in mapping((3, 3), 3, [[(0, 0)], [(1, 0), (1, 1)], [(2, 0), (2, 1), (2, 2)]]):
            c[i, j] = 1.0
        """,
        "c[0, 1] is never stored", "c[i, j]", workers=3,
    ),
    Case(
        "a length that depends on the worker", "c: out f32[4, 4]",
        """
        each i in spatial(4):
            for j in range(0, i, 1):
                c[i, j] = 1.0
            for j in range(i, 4, 1):
                c[i, j] = 0.0
        """,
    ),
)  # fmt: skip
def test_counting(case: Case) -> None:
    check(case, coverage_findings)


def test_what_is_known_of_an_expression_is_not_taken_for_another_one() -> None:
    body = "grid s in m by 4:\n    each i in spatial(4):\n        if s + i < m:\n            c[s + i] = 1.0"
    program = collect(Case("", "c: out f32[m]", body, dimensions="m").kernel())
    (store,) = program.on(program.kernel.parameters[0])
    enumerator = Enumerator(program, "iterations")
    for number in range(50):  # each of them may stand where the one before stood
        shifted = ir.Binary("+", store.indices[0], ir.constant(number))
        condition = ir.Binary("<", ir.constant(number), ir.constant(25))
        form = enumerator.index(shifted)
        assert form is not None
        assert form.base.min() == number
        assert bool(enumerator.truth(condition).must) is (number < 25)
        del shifted, condition


TALL = """
            each (i, j) in repeat(4, 1).spatial(1, 4):
                if row + i < m:
                    c[row + i, j] = 1.0
"""
SHORT = """
            for i in range(0, m, 1):
                each j in spatial(4):
                    c[i, j] = 2.0
"""
EITHER = "grid row in m by 4:\n    if {condition}:{short}    else:{tall}"


def either(condition: str, short: str = SHORT, tall: str = TALL) -> str:
    return EITHER.format(condition=condition, short=short, tall=tall)


@cases(
    Case("one block, known to be the first", "c: out f32[m, 4]", either("m <= 4"), dimensions="m"),
    Case(
        "a scalar decides", "c: out f32[m, 4], flag: i32",
        either("flag > 0", TALL.replace("1.0", "2.0").replace("[row + i, j]", "[row + i, 3 - j]")),
        dimensions="m",
    ),
    Case(
        "three cases", "c: out f32[m, 4]",
        either("m <= 1", SHORT, "\n        if m <= 3:" + SHORT.replace("\n", "\n    ").rstrip()
               + "\n        else:" + TALL.replace("\n", "\n    ").rstrip() + "\n"),
        dimensions="m",
    ),
    Case(
        "more than one block", "c: out f32[m, 4]", either("m <= 5"),
        CANT + "it is stored again for each `row`", "c[i, j]", dimensions="m",
    ),
    Case(
        "a hole in one case", "c: out f32[m, 4]", either("m <= 4", tall=TALL.replace("4, 1", "3, 1")),
        CANT + "its steps store 3 of every 4 indices in dimension 0 of `c`,"
        " and leave out the others", "c[row + i, j]", dimensions="m",
    ),
    Case(
        "data decides", "x: f32[4], c: out f32[m, 4]",
        either("x[0] > 0.0", TALL.replace("[row + i, j]", "[row + i, 3 - j]")),
        CANT + "elements where `x[0] > 0.0` does not hold are not stored",
        "c[row + i, 3 - j]", dimensions="m",
    ),
    Case(
        "a block decides", "c: out f32[m, 4]",
        either("row > 0", TALL.replace("[row + i, j]", "[row + i, 3 - j]")), dimensions="m",
    ),
    Case(
        "a block decides, and stores another's rows", "c: out f32[m, 4]",
        either("row > 0", TALL.replace("[row + i, j]", "[m - 1 - row - i, j]")),
        CANT + "elements where `row > 0` does not hold are not stored",
        "c[m - 1 - row - i, j]", dimensions="m",
    ),
    Case(
        "a loop that may not run", "c: out f32[m, 4]",
        "grid row in m by 4:\n    for q in range(0, p, 1):\n        if q == 0:" + TALL,
        CANT + "`q` may never be 0", "c[row + i, j]", dimensions="m, p",
    ),
    Case(
        "a loop that runs once, if at all", "c: out f32[m, 4]",
        "grid row in m by 4:\n    assert p <= 1, \"p\"\n    for q in range(0, p, 1):" + TALL,
        CANT + "it is stored again for each `q`", "c[row + i, j]", dimensions="m, p",
    ),
)  # fmt: skip
def test_conditions_that_hold_for_all_blocks(case: Case) -> None:
    check(case, coverage_findings)


def test_the_case_that_fails_is_named() -> None:
    case = Case("", "c: out f32[m, 4]", either("m <= 5"), dimensions="m")
    (error,) = coverage_findings(collect(case.kernel()))
    assert [message for message, _ in error.notes] == ["this is where `m <= 5` holds"]
