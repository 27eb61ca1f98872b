"""Who owns what: accesses to tiles, whole-block statements, replicated elements."""

from __future__ import annotations

import textwrap

from taskc.ir.parser import parse
from taskc.passes.proofs.replicas import dropped_findings
from taskc.passes.proofs.tiles import tile_findings
from taskc.passes.prove import findings
from tests.passes.proofs.programs import Case, cases, check

IN = "a: f32[64, 64]"


@cases(
    Case(
        "own elements", IN,
        """
        tile acc: f32[4, 4] by spatial(2, 2).repeat(2, 2) = 0.0
        each (i, j) in spatial(2, 2).repeat(2, 2):
            acc[i, j] = acc[i, j] + a[i, j]
        """,
    ),
    Case(
        "other workers' elements", IN,
        """
        tile acc: f32[4, 4] by spatial(2, 2).repeat(2, 2) = 0.0
        each (i, j) in repeat(2, 2).spatial(2, 2):
            acc[i, j] = 1.0
        """,
        "worker 0 does not own acc[0, 2] (task (0, 2)); worker 1 does", "acc[i, j] =",
    ),
    Case(
        "an element that another worker may read, and this one", "c: out f32[4]",
        """
        tile acc: f32[4] by spatial(4) = 0.0
        each (i) in spatial(4):
            if i == 0:
                c[i] = acc[0]
        each (i) in spatial(4):
            if i > 0:
                c[i] = acc[0]
        """,
        "worker 1 does not own acc[0] (task (1,)); worker 0 does", "acc[0]",
    ),
    Case(
        "another mapping with the same owners", IN,
        """
        tile acc: f32[4, 4] by spatial(2, 2).repeat(2, 2) = 0.0
        each (i, j) in spatial(2, 2).repeat(2, 2, order=(1, 0)):
            acc[i, j] = 1.0
        """,
    ),
    Case(
        "the neighbour's element", IN,
        """
        tile acc: f32[8] by spatial(4).repeat(2) = 0.0
        shared s: f32[8]
        each i in spatial(4).repeat(2):
            s[i] = acc[i + 1]
        """,
        "worker 0 does not own acc[2] (task (1,)); worker 1 does", "acc[i + 1]",
    ),
    Case(
        "the neighbour's element, where it is one's own", IN,
        """
        tile acc: f32[8] by spatial(4).repeat(2) = 0.0
        shared s: f32[8]
        each i in spatial(4).repeat(2):
            if i % 2 == 0:
                s[i] = acc[i + 1]
        """,
    ),
    Case(
        "partly outside", IN,
        """
        tile acc: f32[8] by spatial(4).repeat(2) = 0.0
        each i in spatial(4).repeat(2):
            acc[i + 6] = 1.0
        """,
        "worker 0 does not own acc[6] (task (0,)); worker 3 does", "acc[i + 6]",
    ),
    Case(
        "outside only", IN,
        """
        tile acc: f32[8] by spatial(4).repeat(2) = 0.0
        each i in spatial(4).repeat(2):
            acc[i + 8] = 1.0
        """,
        "acc[8] is outside its shape (8,): worker 0 (task (0,))", "acc[i + 8]",
    ),
    Case(
        "constant inner loop", IN,
        """
        tile acc: f32[4, 3] by spatial(4, 1).repeat(1, 3) = 0.0
        each i in spatial(4):
            for q in range(0, 3, 1):
                acc[i, q] = a[i, q]
        """,
    ),
    Case(
        "constant outer loop that is too long", IN,
        """
        tile acc: f32[4, 3] by spatial(4, 1).repeat(1, 3) = 0.0
        for q in range(0, 5, 2):
            each i in spatial(4):
                acc[i, q] = a[i, q]
        """,
        "acc[0, 4] is outside its shape (4, 3): worker 0 (task (0,))", "acc[i, q]",
    ),
    Case(
        "run-time loop", "a: f32[64, 64], n: i64",
        """
        tile acc: f32[4, 3] by spatial(4, 1).repeat(1, 3) = 0.0
        each i in spatial(4):
            for q in range(0, n, 1):
                acc[i, q] = a[i, q]
        """,
        "the index `q` of `acc` is known only at run time; a tile's index must be constant",
        "acc[i, q]", "registers have no run-time index",
    ),
    Case(
        "index from memory", "a: i64[64]",
        """
        tile acc: f32[4] by spatial(4) = 0.0
        each i in spatial(4):
            acc[a[i]] = 1.0
        """,
        "the index `a[i]` of `acc` is known only at run time; a tile's index must be constant",
        "acc[a[i]]",
    ),
    Case(
        "another worker number", IN,
        """
        tile acc: f32[4] by spatial(4) = 0.0
        each i in spatial(2) on worker // 2:
            acc[i * 2] = 1.0
        """,
        "worker 1 does not own acc[0] (task (0,)); worker 0 does", "acc[i * 2]",
    ),
    Case(
        "nested mapping loops", IN,
        """
        tile acc: f32[2, 2] by spatial(2, 2) = 0.0
        each i in spatial(2) on worker // 2:
            each j in spatial(2) on worker % 2:
                acc[i, j] = 1.0
        """,
    ),
    Case(
        "uniform access to an element of one worker", IN,
        """
        tile acc: f32[4] by spatial(4) = 0.0
        acc[2] = 1.0
        """,
        "worker 0 does not own acc[2]; worker 2 does", "acc[2]",
    ),
    Case(
        "uniform access to a replicated element", IN,
        """
        tile acc: f32[1] by replicate(4) = 0.0
        acc[0] = 1.0
        """,
    ),
    Case(
        "wrong number of workers", IN,
        """
        tile acc: f32[4] by spatial(4) = 0.0
        each i in spatial(4) on worker:
            acc[i] = 1.0
        """,
        "`acc` is laid out over 4 workers, but the block has 8", "acc[i]", workers=8,
    ),
)  # fmt: skip
def test_accesses(case: Case) -> None:
    check(case, tile_findings)


@cases(
    Case(
        "every owner writes its copy", IN,
        """
        tile m: f32[4] by spatial(4).replicate(2) = 0.0
        each i in spatial(4).replicate(2):
            m[i] = a[i, 0] + m[i]
        """,
        workers=8,
    ),
    Case(
        "a value that differs between owners", IN,
        """
        tile m: f32[2] by spatial(2).replicate(2) = 0.0
        each (i, j) in spatial(2, 2):
            m[i] = a[i, j]
        """,
        "workers 0 and 1 both have a copy of m[0], but their values may differ: they depend on `j`",
        "m[i]", "tc.reduce",
    ),
    Case(
        "the same through a cell", IN,
        """
        tile m: f32[2] by spatial(2).replicate(2) = 0.0
        each (i, j) in spatial(2, 2):
            local x: f32[()] = 0.0
            x = a[i, j]
            m[i] = x
        """,
        "workers 0 and 1 both have a copy of m[0], but their values may differ: they depend on `j`",
        "m[i]", "tc.reduce",
    ),
    Case(
        "a cell that all owners fill alike", IN,
        """
        tile m: f32[2] by spatial(2).replicate(2) = 0.0
        each (i, j) in spatial(2, 2):
            local x: f32[()] = 0.0
            x = a[i, 0]
            m[i] = x
        """,
    ),
    Case(
        "a condition that differs between owners", IN,
        """
        tile m: f32[2] by spatial(2).replicate(2) = 0.0
        each (i, j) in spatial(2, 2):
            if j == 0:
                m[i] = a[i, 0]
        """,
        "worker 0 writes m[0], but worker 1, which has a copy, does not", "m[i]", "tc.reduce",
    ),
    Case(
        "folding its own slots", IN,
        """
        tile m: f32[2] by spatial(2).replicate(2) = 0.0
        each (i, j) in spatial(2, 2).repeat(1, 4):
            m[i] = m[i] + a[i, j]
        """,
        "workers 0 and 1 both have a copy of m[0], but their values may differ: they depend on `j`",
        "m[i] =", "tc.reduce",
    ),
    Case(
        "folding in the same order", IN,
        """
        tile m: f32[2] by spatial(2).replicate(2) = 0.0
        each (i, j) in spatial(2, 1).replicate(2).repeat(1, 4):
            m[i] = m[i] + a[i, j]
        """,
    ),
    Case(
        "a result of its own", "a: i64[4]",
        """
        tile m: i64[2] by spatial(2).replicate(2) = 0
        each (i, j) in spatial(2, 2):
            let old = atomic a[i] += 1
            m[i] = old
        """,
        "the copies of `m` may get different values: each worker has its own `old`",
        "m[i]", "tc.reduce",
    ),
)  # fmt: skip
def test_replicas(case: Case) -> None:
    check(case, tile_findings)


@cases(
    Case(
        "a tile stored by its owners", "c: out f32[4, 4]",
        """
        tile acc: f32[4, 4] by spatial(2, 2).repeat(2, 2) = 0.0
        move c[i, j] = acc[i, j] for (i, j) in (4, 4)
        """,
    ),
    Case(
        "a tile stored by others", "c: out f32[4, 4]",
        """
        tile acc: f32[4, 4] by spatial(2, 2).repeat(2, 2) = 0.0
        move c[i, j] = acc[i, j] for (i, j) in (4, 4) by repeat(2, 2).spatial(2, 2)
        """,
        "worker 0 does not own acc[0, 2] (task (0, 2)); worker 1 does",
        "acc[i, j]", "tc.copy(tile, tile)",
    ),
    Case(
        "a copy to another mapping", IN,
        """
        tile x: f32[4, 4] by spatial(2, 2).repeat(2, 2) = 0.0
        tile y: f32[4, 4] by repeat(2, 2).spatial(2, 2)
        move y[i, j] = x[i, j] for (i, j) in (4, 4)
        """,
    ),
    Case(
        "a sum of two mappings", IN,
        """
        tile x: f32[4, 4] by spatial(2, 2).repeat(2, 2) = 0.0
        tile y: f32[4, 4] by repeat(2, 2).spatial(2, 2)
        move y[i, j] = x[i, j] + 1.0 for (i, j) in (4, 4)
        """,
        "worker 0 does not own x[0, 2] (task (0, 2)); worker 1 does",
        "x[i, j]", "tc.copy(tile, tile)",
    ),
    Case(
        "a transposed tile", "c: out f32[4, 4]",
        """
        tile acc: f32[4, 4] by spatial(2, 2).repeat(2, 2) = 0.0
        move c[i, j] = acc[j, i] for (i, j) in (4, 4)
        """,
        "who moves what is not known: no tile here has the index `i, j`", "acc[j, i]", "by=",
    ),
    Case(
        "a move larger than the tile", "c: out f32[8, 4]",
        """
        tile acc: f32[4, 4] by spatial(2, 2).repeat(2, 2) = 0.0
        move c[i, j] = acc[i, j] for (i, j) in (8, 4)
        """,
        "nobody owns all of (8, 4) in `acc`", "acc[i, j]",
    ),
    Case(
        "a reduction", IN,
        """
        tile x: f32[4, 4] by spatial(2, 2).repeat(2, 2) = 0.0
        tile m: f32[4] by spatial(2).replicate(2).repeat(2)
        reduce m = + over x axis=1
        """,
    ),
    Case(
        "a reduction to other owners", IN,
        """
        tile x: f32[4, 4] by spatial(2, 2).repeat(2, 2) = 0.0
        tile m: f32[4] by spatial(4)
        reduce m = + over x axis=1
        """,
        "the owners of `m` must be those of `x` without axis 1:"
        " spatial(2).replicate(2).repeat(2)", "reduce",
    ),
    Case(
        "a reduction of the wrong shape", IN,
        """
        tile x: f32[4, 8] by spatial(2, 2).repeat(2, 4) = 0.0
        tile m: f32[4] by spatial(2).replicate(2).repeat(2)
        reduce m = + over x axis=0
        """,
        "`x` reduced over axis 0 is (8,), but `m` is (4,)", "reduce",
    ),
    Case(
        "a scan to other owners", IN,
        """
        tile x: f32[4] by spatial(4) = 0.0
        tile y: f32[4] by spatial(2).replicate(2).repeat(2)
        scan y = + over x axis=0
        """,
        "`y` and `x` have different owners", "scan",
    ),
    Case(
        "a product", IN,
        """
        tile acc: f32[4, 4] by spatial(2, 2).repeat(2, 2) = 0.0
        mma acc += a[0, 0].as(4, 8) @ a[0, 0].as(8, 4)
        """,
    ),
    Case(
        "a product of unequal inner extents", IN,
        """
        tile acc: f32[4, 4] by spatial(2, 2).repeat(2, 2) = 0.0
        mma acc += a[0, 0].as(4, 8) @ a[0, 0].as(4, 4)
        """,
        "the inner extents of a product differ: (4, 8) @ (4, 4)", "mma",
    ),
    Case(
        "a product of another shape", IN,
        """
        tile acc: f32[4, 4] by spatial(2, 2).repeat(2, 2) = 0.0
        mma acc += a[0, 0].as(4, 8) @ a[0, 0].as(8, 8)
        """,
        "(4, 8) @ (8, 8) is (4, 8), but `acc` is (4, 4)", "mma",
    ),
)  # fmt: skip
def test_whole_block_statements(case: Case) -> None:
    check(case, tile_findings)


OUT = "a: f32[64, 64], y: out f32[2]"


@cases(
    Case(
        "a sum of which one worker's part would be stored", OUT,
        """
        local total: f32[()] = 0.0
        each i in spatial(4):
            total = total + a[i, 0]
        each j in spatial(2).replicate(2):
            y[j] = total
        """,
        "workers 0 and 1 both have task (0,), and each has its own `total`: only that of worker 0"
        " would be stored", "y[j]", "tc.reduce",
    ),
    Case(
        "a condition", OUT,
        """
        local found: bool[()] = False
        each i in spatial(2).repeat(2):
            if a[i, 0] > 1.0:
                found = True
        each j in replicate(2):
            if found:
                y[j] = 1.0
        """,
        "workers 0 and 1 both have task (0,), and each has its own `found`: only that of worker 0"
        " would be stored", "y[j]", workers=2,
    ),
    Case(
        "the same tasks in both loops", OUT,
        """
        local x: f32[()] = 0.0
        each i in spatial(2).replicate(2):
            x = x + a[i, 0]
        each j in spatial(2).replicate(2):
            y[j] = x
        """,
    ),
    Case(
        "a sum that all workers have", OUT,
        """
        local total: f32[()] = 0.0
        each i in replicate(4).repeat(8):
            total = total + a[i, 0]
        each j in spatial(2).replicate(2):
            y[j] = total
        """,
    ),
    Case(
        "a private variable of the loop itself", OUT,
        """
        each j in spatial(2).replicate(2):
            local total: f32[()] = 0.0
            for q in range(8):
                total = total + a[j, q]
            y[j] = total
        """,
    ),
)  # fmt: skip
def test_what_would_be_dropped(case: Case) -> None:
    check(case, dropped_findings)


def test_a_role_has_tiles_of_its_own() -> None:
    """Its workers are numbered from its first one on; `worker` is the number in the block."""
    text = """
        kernel k(y: out f32[96]) workers=96 stage=synchronized:
            roles:
                role one first=0 workers=32:
                    barrier warp
                role two first=32 workers=64:
                    tile t: f32[64] by spatial(64) = 0.0
                    each i in spatial(64):
                        t[i] = 1.0
                    each i_1 in spatial(64) on worker - 32:
                        t[i_1] = t[{index}]
        """
    assert not findings(parse(textwrap.dedent(text.format(index="i_1")).strip()))
    (error,) = findings(parse(textwrap.dedent(text.format(index="63 - i_1")).strip()))
    assert error.message == "worker 0 does not own t[63] (task (0,)); worker 63 does"
