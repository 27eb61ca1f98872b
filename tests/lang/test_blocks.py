"""Whole-block operations, the grid, pipelines, symbolic dimensions, and kernels of tc.cuda."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import taskc as tc
from taskc import f16, f32, repeat, spatial
from taskc.ir import nodes as ir
from taskc.ir.operations import OFFERED, OPERATIONS
from taskc.ir.printer import to_text
from tests.lang.notebook import cell, checked, kernel
from tests.lang.test_statements import assert_becomes


def matmul(
    m: Any, n: Any, k: Any, *, warps=(2, 4), tile=(2, 2), lanes=(4, 8), regs=(4, 4), bk=8, stages=2
) -> tc.KernelDefinition:
    own = spatial(*warps) * repeat(*tile) * spatial(*lanes) * repeat(*regs)
    bm, bn = own.shape

    @tc.kernel(workers=own.workers)
    def kernel(a: f32[m, k], b: f32[k, n], c: tc.out[f32[m, n]]):
        for row, col in tc.tiles((m, n), by=(bm, bn)):
            acc = tc.tile(f32, own, 0)
            for p in tc.pipeline(k, by=bk, stages=stages):
                sa = tc.load(a[row : row + bm, p : p + bk])
                sb = tc.load(b[p : p + bk, col : col + bn])
                for q in range(bk):
                    for i, j in own:
                        acc[i, j] += sa[i, q] * sb[q, j]
            tc.store(c[row : row + bm, col : col + bn], acc)

    return kernel


def test_matmul(golden: Callable[[str, str], None]) -> None:
    golden("lang/matmul", to_text(checked(matmul(256, 256, 128).ir)))


def test_matmul_of_symbolic_dimensions(golden: Callable[[str, str], None]) -> None:
    m, n = tc.dim("m", multiple=16), tc.dim("n")
    made = checked(matmul(m, n, 128).ir)
    golden("lang/matmul_symbolic", to_text(made))
    assert [(d.name, d.multiple) for d in made.dimensions] == [("m", 16), ("n", 1)]


def test_loads_of_slices() -> None:
    assert_becomes(
        """
        for r in tc.tiles(64, by=8):
            whole = tc.load(a)
            row = tc.load(a[r, :])
            inside = tc.load(a[0:8, 3:19])
            end = r + 8
            named = tc.load(a[r:end, 1])
            around = tc.load(x[r - 1 : r + 7], fill=1)
            if r > 100:
                scaled = tc.load(x[8 * r // 2 : 4 + 8 * r // 2])
        """,
        """
        grid r in 64 by 8:
            constant shared whole: f32[64, 32]
            move whole[i, j] = a[i, j] for (i, j) in (64, 32)
            constant shared row: f32[32]
            move row[i_1] = a[r, i_1] for i_1 in 32
            constant shared inside: f32[8, 16]
            move inside[i_2, j_1] = a[i_2, 3 + j_1] for (i_2, j_1) in (8, 16)
            let end = r + 8
            constant shared named: f32[8]
            move named[i_3] = select(r + i_3 < 64, a[r + i_3, 1], 0.0) for i_3 in 8
            constant shared around: f32[8]
            move around[i_4] = select(0 <= r - 1 + i_4 and r - 1 + i_4 < 64, x[r - 1 + i_4], 1.0) for i_4 in 8
            if r > 100:
                constant shared scaled: f32[4]
                move scaled[i_5] = select(8 * r // 2 + i_5 < 64, x[8 * r // 2 + i_5], 0.0) for i_5 in 4
        """,
    )


def test_a_slice_to_the_end_has_the_size_that_is_left() -> None:
    assert_becomes(
        "t = tc.load(x[60:])",
        "constant shared t: f32[4]\nmove t[i] = x[60 + i] for i in 4",
    )


def test_a_size_is_not_taken_from_a_cell_that_changed() -> None:
    body = """
        v = n[0]
        start = v
        v = v + 1
        t = tc.load(x[start : v + 8])
    """
    with pytest.raises(tc.CompileError, match="the size of this slice isn't known"):
        kernel(body)


def test_loads_in_the_general_form() -> None:
    assert_becomes(
        """
        t = tc.load((8, 4), lambda i, q: a[i, q] if q < 3 else 0)
        u = tc.load(8, lambda i: x[n[i] + 1], fill=0.5)
        w = tc.load((4,), twice)
        """,
        """
        constant shared t: f32[8, 4]
        move t[i, q] = select(q < 3, a[i, q], 0.0) for (i, q) in (8, 4)
        constant shared u: f32[8]
        move u[i_1] = select(i_1 < 8 and 0 <= (n[i_1] + 1).to(i64) and (n[i_1] + 1).to(i64) < 64, x[(n[i_1] + 1).to(i64)], 0.5) for i_1 in 8
        constant shared w: i64[4]
        move w[e] = e * 2 for e in 4
        """,  # noqa: E501
        twice=tc.function(twice),
    )


def twice(e: int) -> int:
    return e * 2


def test_stores_and_copies() -> None:
    assert_becomes(
        """
        own = spatial(4, 8).repeat(2, 2)
        acc = tc.tile(f32, own)
        other = tc.tile(f32, spatial(8, 4).repeat(1, 4))
        buf = tc.shared(f32[2, 8, 16])
        tc.store(c[0:8, 24:40], acc)
        tc.store(c[8:16, 0:16], lambda i, j: acc[i, j] * s)
        tc.copy(other, acc)
        tc.copy(buf[1, :, :], a[0:8, 16:32], by=spatial(2, 16).repeat(4, 1))
        tc.copy(acc, buf[n[0], 0:8, :])
        tc.copy(y[n[0] : n[0] + 8], x[0:8])
        """,
        """
        tile acc: f32[8, 16] by spatial(4, 8).repeat(2, 2)
        tile other: f32[8, 16] by spatial(8, 4).repeat(1, 4)
        shared buf: f32[2, 8, 16]
        move c[i, 24 + j] = acc[i, j] for (i, j) in (8, 16) if 24 + j < 32
        move c[8 + i_1, j_1] = acc[i_1, j_1] * s for (i_1, j_1) in (8, 16)
        move other[i_2, j_2] = acc[i_2, j_2] for (i_2, j_2) in (8, 16)
        move buf[1, i_3, j_3] = a[i_3, 16 + j_3] for (i_3, j_3) in (8, 16) by spatial(2, 16).repeat(4, 1)
        move acc[i_4, j_4] = buf[n[0].to(i64), i_4, j_4] for (i_4, j_4) in (8, 16)
        move y[n[0].to(i64) + i_5] = x[i_5] for i_5 in 8 if 0 <= n[0].to(i64) + i_5 and n[0].to(i64) + i_5 < 64
        """,
    )


def test_tiles_shared_memory_and_layouts() -> None:
    made = kernel(
        """
        padded = tc.shared(f32[8, 16].laid(repeat(8, 17)))
        acc = tc.tile(f16, spatial(4, 8).repeat(2, 2), 1)
        free = tc.tile(i32, spatial(32), fill=None)
        ragged = tc.tile(f32, auto_map((5, 7), workers=32))
        """
    )
    padded, acc, free, ragged = made.body.statements
    assert (padded.tensor.shape, padded.tensor.layout) == ((8, 16), repeat(8, 17))
    assert (acc.tensor.shape, acc.fill.value, acc.tensor.dtype) == ((8, 16), 1.0, f16)
    assert free.fill is None
    assert ragged.tensor.shape == (5, 7)


def test_products() -> None:
    assert_becomes(
        """
        acc = tc.tile(f32, repeat(2, 1).spatial(4, 8), 0)
        sa = tc.load(a[0:8, 0:16])
        slots = tc.shared(f32[3, 8, 32])
        tc.mma(acc, sa, sa.T)
        tc.mma(acc, slots[2, 0:8, 16:32], slots[n[0], :, 0:16].T)
        tc.mma(acc, acc, sa.T.T[0:8, 8:16] if False else sa[0:8, 8:16])
        """,
        """
        tile acc: f32[8, 8] by repeat(2, 1).spatial(4, 8) = 0.0
        constant shared sa: f32[8, 16]
        move sa[i, j] = a[i, j] for (i, j) in (8, 16)
        shared slots: f32[3, 8, 32]
        mma acc += sa[0, 0].as(8, 16) @ sa[0, 0].as(16, 8, transposed)
        mma acc += slots[2, 0, 16].as(8, 16) @ slots[n[0].to(i64), 0, 0].as(16, 8, transposed)
        mma acc += acc[0, 0].as(8, 8) @ sa[0, 8].as(8, 8)
        """,
    )


def test_products_of_narrow_types() -> None:
    header = "@tc.kernel(workers=32)\ndef k(a: f16[8, 16], b: i8[8, 16]):\n"
    made = kernel(
        """
        acc, count = tc.tile(f32, repeat(2, 1).spatial(4, 8), 0), tc.tile(i32, own, 0)
        sa = tc.load(a)
        sb = tc.load(b)
        tc.mma(acc, sa, sa.T)
        tc.mma(count, sb, sb.T)
        """,
        header,
        own=repeat(2, 1).spatial(4, 8),
    )
    assert sum(isinstance(part, ir.Mma) for part in made.body.statements) == 2


def test_reductions_and_scans() -> None:
    assert_becomes(
        """
        acc = tc.tile(f32, spatial(4, 8).repeat(2, 2), 1)
        rows = tc.reduce(acc, 1, "+")
        columns = tc.reduce(acc, axis=-2, op="max")
        total = tc.reduce(tc.reduce(acc, 1, "min"), 0, "min")
        before = tc.scan(acc, 0, "+", exclusive=True)
        if total[0] > 1:
            for i, j in acc.mapping:
                acc[i, j] -= rows[i] + columns[j] + before[i, j]
        """,
        """
        tile acc: f32[8, 16] by spatial(4, 8).repeat(2, 2) = 1.0
        tile rows: f32[8] by spatial(4).replicate(8).repeat(2)
        reduce rows = + over acc axis=1
        tile columns: f32[16] by replicate(4).spatial(8).repeat(2)
        reduce columns = max over acc axis=0
        tile acc_1: f32[8] by spatial(4).replicate(8).repeat(2)
        reduce acc_1 = min over acc axis=1
        tile total: f32[1] by replicate(32)
        reduce total = min over acc_1 axis=0
        tile before: f32[8, 16] by spatial(4, 8).repeat(2, 2)
        scan before = + over acc axis=0 exclusive
        if total[0] > 1.0:
            each (i, j) in spatial(4, 8).repeat(2, 2):
                acc[i, j] = acc[i, j] - (rows[i] + columns[j] + before[i, j])
        """,
    )


def test_grids() -> None:
    assert_becomes(
        """
        half = 64 // 2
        v = s * 2
        for r, q in tc.tiles(
            (half, n[0] + 1), by=(8, 16), order=("grouped", 4), persistent=True, cluster=(2, 1)
        ):
            t = v
        """,
        """
        let v = s * 2.0
        grid (r, q) in (32, (n[0] + 1).to(i64)) by (8, 16) order=("grouped", 4) persistent cluster=(2, 1):
            let t = v
        """,
    )
    assert_becomes(
        "for r, q in tc.tiles((8, 8), by=(8, 8), order=(1, 0)):\n    pass",
        "grid (r, q) in (8, 8) by (8, 8) order=(1, 0):\n    pass",
    )


def test_pipelines() -> None:
    assert_becomes(
        """
        for p in tc.pipeline(64, by=8, stages=3, transport="cp.async", specialize=True):
            t = tc.load(x[p : p + 8])
        for p in tc.pipeline(n[0]):
            pass
        """,
        """
        pipeline p in 64 by 8 stages=3 transport=cp.async specialize:
            constant shared t: f32[8]
            move t[i] = select(p + i < 64, x[p + i], 0.0) for i in 8
        pipeline p_1 in n[0].to(i64) by 1 stages=1:
            pass
        """,
    )


def test_symbolic_dimensions() -> None:
    header = """\
@tc.kernel(workers=32)
def k(a: f32[m, 8], b: bf16[2, m].laid(repeat(1, 64) * repeat(2, 1)), q: bool, y: tc.out[f32[m]]):
"""
    assert_becomes(
        """
        for r in tc.tiles(m, by=32):
            t = tc.load(a[r : r + 32, :])
            tc.store(y[r : r + 32], lambda i: t[i, m % 8] if q else 0)
        """,
        """
        grid r in m by 32:
            constant shared t: f32[32, 8]
            move t[i, j] = select(r + i < m, a[r + i, j], 0.0) for (i, j) in (32, 8)
            move y[r + i_1] = select(q, t[i_1, m % 8], 0.0) for i_1 in 32 if r + i_1 < m
        """,
        header,
        m=tc.dim("m", multiple=8),
    )


def test_the_same_dimension_is_one_variable() -> None:
    m = tc.dim("m", multiple=4)
    text = """
@tc.kernel(workers=32)
def k(a: f32[m], b: tc.inout[f32[m]]):
    for r in tc.tiles(shape[0], by=4):
        v = b.shape[0] - a.shape[0]
"""
    made = checked(cell(text, m=m, shape=(m, 3))["k"].ir)
    (variable,) = made.dimensions
    a, b = made.parameters
    assert a.shape == b.shape == (variable,)
    assert variable.multiple == 4
    assert made.body.shape == (variable,)


CUDA = """\
@tc.cuda.kernel(workers=160)
def k(x: f32[64], y: tc.inout[f32[64]]):
"""


def test_a_cuda_kernel() -> None:
    assert_becomes(
        """
        buf = tc.shared(f32[2, 32])
        full = tc.cuda.barriers(2)
        w = tc.worker()
        if w == 0:
            tc.cuda.mbarrier_init(full[0], 32)
        tc.sync()
        with tc.cuda.roles():
            with tc.cuda.role("producer", warps=1):
                for i in spatial(32):
                    tc.cuda.cp_async(buf[0, i], x[i], 1, True)
                tc.cuda.mbarrier_arrive(full[0])
            with tc.cuda.role("consumer", warps=4):
                tc.cuda.mbarrier_wait(full[0], 0)
                v = buf[0, w % 32]
                v += tc.cuda.shuffle_xor(v, 16)
                z = tc.cuda.shuffle_xor(v, 8)
                tc.cuda.syncrole()
                if tc.cuda.vote_any(z > 0):
                    y[w] = z
        tc.cuda.syncwarp()
        """,
        """
        shared buf: f32[2, 32]
        mbarrier full: u64[2]
        let w = worker
        if w == 0:
            do mbarrier.init(&full[0], 32)
        barrier block
        roles:
            role producer first=0 workers=32:
                each i in spatial(32):
                    do cp.async(&buf[0, i], &x[i], 1, True)
                do mbarrier.arrive(&full[0])
            role consumer first=32 workers=128:
                do mbarrier.wait(&full[0], 0)
                local v: f32
                v = buf[0, w % 32]
                let shuffle_xor = do shuffle.xor(v, 16)
                v = v + shuffle_xor
                let z = do shuffle.xor(v, 8)
                barrier role
                let vote_any = do vote.any(z > 0.0)
                if vote_any:
                    y[w] = z
        barrier warp
        """,
        CUDA,
    )


def test_a_cuda_kernel_is_born_synchronized() -> None:
    made = kernel("pass", CUDA)
    assert (made.stage, made.target) == ("synchronized", "sm_90a")
    assert kernel("pass").stage == "parsed"


ARGUMENTS = {"place": "b[0]", "remote": "b[0]", "constant": "1", "value": "x[0]"}


@pytest.mark.parametrize("name", [row.name for row in OFFERED])
def test_every_operation_is_a_function(name: str) -> None:
    row = OPERATIONS[name]
    arguments = [ARGUMENTS[kind.rstrip("*")] for kind in row.operands]
    if name.startswith("barrier."):
        arguments = ["1", "32"]  # a constant, whole warps
    if name == "setmaxnreg":
        arguments[0] = "40"  # a multiple of 8
    call = f"tc.cuda.{name.replace('.', '_')}({', '.join(arguments)})"
    tiles = "for t in tc.tiles(2, by=1, cluster=2):\n    "
    kind = "tc.f16" if "matrix" in name else "f32"
    body = f"{tiles}b = tc.shared({kind}[8])\n    {'v = ' if row.result else ''}{call}"
    made = cell(CUDA + "".join(f"    {line}\n" for line in body.splitlines()))["k"].ir
    last = made.body.body.statements[-1]
    assert last.operation == name
    if row.result:
        assert last.result.name == "v"
