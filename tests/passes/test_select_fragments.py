"""Moves of whole matrices between shared memory and fragments: chosen, laid out, lowered, run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from taskc.backend import sim
from taskc.ir import nodes as ir
from taskc.ir.printer import to_text
from taskc.passes.select import select
from tests.passes.kernels import after, arguments_for, keeps_its_result, kernel, nodes, result

Golden = Callable[[str, str], None]

FRAGMENT = "repeat(2, 1).spatial(8, 4).repeat(1, 2)"


def product(
    dtype: str = "f16",
    *,
    own: str = f"spatial(2, 1).repeat(1, 4).{FRAGMENT}",
    size: tuple[int, int] = (32, 32),
    bk: int = 32,
    transposed: tuple[bool, bool] = (False, False),
    target: str = "sm_80",
) -> ir.Kernel:
    """c = a @ b, five steps through three stages."""
    m, n = size
    k = 5 * bk
    total, zero = ("i32", "0") if dtype in ("i8", "u8") else ("f32", "0.0")
    a, at_a, sa, shape_a = "i, k", "i, p + k", (m, bk), (m, k)
    b, at_b, sb, shape_b = "k, j", "p + k, j", (bk, n), (k, n)
    if transposed[0]:
        a, at_a, sa, shape_a = "k, i", "p + k, i", sa[::-1], shape_a[::-1]
    if transposed[1]:
        b, at_b, sb, shape_b = "j, k", "j, p + k", sb[::-1], shape_b[::-1]
    flags = [", transposed" if flag else "" for flag in transposed]
    return kernel(
        f"""
        tile acc: {total}[{m}, {n}] by {own} = {zero}
        pipeline p in {k} by {bk} stages=3:
            constant shared sa: {dtype}{[*sa]}
            move sa[{a}] = a[{at_a}] for ({a}) in {sa}
            constant shared sb: {dtype}{[*sb]}
            move sb[{b}] = b[{at_b}] for ({b}) in {sb}
            mma acc += sa[0, 0].as({m}, {bk}{flags[0]}) @ sb[0, 0].as({bk}, {n}{flags[1]})
        move c[i, j] = acc[i, j] for (i, j) in ({m}, {n})
        """,
        f"a: {dtype}{[*shape_a]}, b: {dtype}{[*shape_b]}, c: out {total}[{m}, {n}]",
        workers=64,
        target=target,
    )


def lowered(start: ir.Kernel) -> ir.Kernel:
    """The last program, which computes what the first one does."""
    lean = after(start, "hoist")
    for made, expected in zip(result(lean), result(start), strict=True):
        assert made.tobytes() == expected.tobytes()
    return lean


def instructions(start: ir.Kernel) -> list[str | None]:
    return [move.how for move in nodes(select(start), ir.Move) if move.tensor.scope == ir.TILE]


CASES = {
    "f16": ("f16", (False, False), ["ldmatrix.x4", "ldmatrix.x4.trans"]),
    "bf16 b[n, k]": ("bf16", (False, True), ["ldmatrix.x4", "ldmatrix.x4"]),
    "f16 a[k, m]": ("f16", (True, False), ["ldmatrix.x4.trans", "ldmatrix.x4.trans"]),
    "i8 b[n, k]": ("i8", (False, True), ["ldmatrix.x4", "ldmatrix.x4"]),
    "i8": ("i8", (False, False), ["ldmatrix.x4", None]),
    "tf32 b[n, k]": ("tf32", (False, True), ["ldmatrix.x4", "ldmatrix.x4"]),
    "tf32 a[k, m]": ("tf32", (True, True), [None, "ldmatrix.x4"]),
}


@pytest.mark.parametrize(("dtype", "transposed", "how"), CASES.values(), ids=list(CASES))
def test_operands(dtype: str, transposed: tuple[bool, bool], how: list[str | None]) -> None:
    start = product(dtype, transposed=transposed)
    assert instructions(start) == how
    lean = lowered(start)
    operations = {do.operation for do in nodes(lean, ir.Do)}
    assert {name for name in how if name} <= operations
    if None not in how:
        report = sim.run(lean, arguments_for(start), statistics=True)
        assert max(traffic.ways for traffic in report.accesses) == 1


@pytest.mark.parametrize(
    ("dtype", "target"), [("u8", "sm_80"), ("f8e4m3", "sm_89"), ("f8e5m2", "sm_90a")]
)
def test_other_bytes(dtype: str, target: str) -> None:
    start = product(dtype, transposed=(False, True), target=target)
    assert instructions(start) == ["ldmatrix.x4", "ldmatrix.x4"]
    assert f"mma.sync.m16n8k32.{dtype}" in {mma.how for mma in nodes(select(start), ir.Mma)}
    lowered(start)


@pytest.mark.parametrize("bk", [16, 32, 64, 48])
def test_layouts_are_free_of_conflicts(bk: int) -> None:
    """What lanes name is counted: rows of 32, 64, 96 and 128 bytes."""
    start = product(bk=bk, transposed=(False, True))
    lean = after(start, "hoist")
    report = sim.run(lean, arguments_for(start), statistics=True)
    assert not report.findings
    assert max(traffic.ways for traffic in report.accesses) == 1


def test_three_fragments_come_by_twos() -> None:
    own = f"spatial(2, 1).repeat(1, 3).{FRAGMENT}"
    start = product(own=own, size=(32, 24), transposed=(False, True))
    assert instructions(start) == ["ldmatrix.x4", "ldmatrix.x2"]
    keeps_its_result(start)


def test_warps_that_share_an_operand() -> None:
    own = f"spatial(1, 2).repeat(2, 2).{FRAGMENT}"
    start = product(own=own)
    assert instructions(start) == ["ldmatrix.x4", "ldmatrix.x4.trans"]
    lowered(start)


def test_the_text(golden: Golden) -> None:
    start = product(bk=16)
    golden(
        "passes/select_fragments", to_text(select(start)) + to_text(after(start, "lower_mappings"))
    )


def test_a_target_without_them() -> None:
    assert instructions(product(target="generic")) == []


@pytest.mark.parametrize(
    "where",
    ["s[i, j + 1]", "s[i, 2 * j]", "s[i + j, j]", "s[j, i]", "s[i, j] + 1.0", "s[i, 0]"],
)
def test_moves_of_another_kind(where: str) -> None:
    """Unaligned lines, gaps in them, lines across, values that are computed."""
    start = kernel(
        f"""
        shared s: f32[16, 16]
        tile t: f32[8, 4] by spatial(8, 4)
        move s[i, j] = x[i, j] for (i, j) in (16, 16)
        move t[i, j] = {where} for (i, j) in (8, 4)
        move c[i, j] = t[i, j] for (i, j) in (8, 4)
        """,
        "x: f32[16, 16], c: out f32[8, 4]",
        workers=32,
        target="sm_80",
    )
    assert [move.how for move in nodes(select(start), ir.Move)] == [None] * 3
    keeps_its_result(start)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("place", "how"), [("s[i, j]", "stmatrix.x4"), ("s[j, i]", "stmatrix.x4.trans")]
)
def test_stores(place: str, how: str, target: str) -> None:
    start = kernel(
        f"""
        tile t: f16[32, 32] by spatial(2, 1).repeat(1, 4).{FRAGMENT}
        move t[i, j] = x[i, j] for (i, j) in (32, 32)
        shared s: f16[32, 32]
        move {place} = t[i, j] for (i, j) in (32, 32)
        move c[i, j] = s[i, j] for (i, j) in (32, 32)
        """,
        "x: f16[32, 32], c: out f16[32, 32]",
        workers=64,
        target=target,
    )
    chosen = [move.how for move in nodes(select(start), ir.Move)]
    assert chosen == [None, how if target == "sm_90a" else None, None]
    lean = keeps_its_result(start)
    report = sim.run(lean, arguments_for(start), statistics=True)
    shared = [traffic.ways for traffic in report.accesses if traffic.scope == ir.SHARED]
    if target == "sm_90a":
        assert max(shared) == 1


@pytest.mark.parametrize(
    ("value", "how"),
    [
        ("t[i, 32 * n + j].to(f16)", "stmatrix.x4"),
        ("fma(t[i, 32 * n + j], 2.0, z[j]).to(f16)", "stmatrix.x4"),
        ("z[j].to(f16)", None),
    ],
    ids=["a part", "computed", "of no tile"],
)
def test_stores_of_what_is_computed(value: str, how: str | None) -> None:
    """Panels of a wider tile, converted on the way; from registers of their own."""
    fragment = f"spatial(2, 1).repeat(1, 4).{FRAGMENT}"
    start = kernel(
        f"""
        tile t: f32[32, 64] by spatial(2, 1).repeat(1, 8).{FRAGMENT}
        move t[i, j] = x[i, j] for (i, j) in (32, 64)
        shared s: f16[32, 32]
        for n in unroll(2):
            move s[i, j] = {value} for (i, j) in (32, 32) by {fragment}
            move c[i, 32 * n + j] = s[i, j] for (i, j) in (32, 32)
        """,
        "x: f32[32, 64], z: f32[32], c: out f16[32, 64]",
        workers=64,
        target="sm_90a",
    )
    stores = [m.how for m in nodes(select(start), ir.Move) if m.tensor.scope == ir.SHARED]
    assert stores == [how]
    report = sim.run(keeps_its_result(start), arguments_for(start), statistics=True)
    ways = [traffic.ways for traffic in report.accesses if traffic.scope == ir.SHARED]
    assert how is None or max(ways) == 1


def test_another_lane_of_the_warp_names_the_line() -> None:
    """Each worker reads what it wrote itself; but who names a line read it for others."""
    start = kernel(
        """
        shared s: f16[8, 8]
        tile t: f16[8, 8] by spatial(8, 4).repeat(1, 2)
        tile u: f16[8, 8] by spatial(8, 4).repeat(1, 2)
        move t[i, j] = x[i, j] for (i, j) in (8, 8)
        each (i, j) in spatial(8, 4).repeat(1, 2):
            s[i, j] = t[i, j]
        move u[i, j] = s[i, j] for (i, j) in (8, 8)
        move c[i, j] = u[i, j] for (i, j) in (8, 8)
        """,
        "x: f16[8, 8], c: out f16[8, 8]",
        workers=32,
        target="sm_80",
    )
    lean = keeps_its_result(start)
    assert [do.operation for do in nodes(lean, ir.Do)] == ["ldmatrix.x1"]
    assert [barrier.scope for barrier in nodes(lean, ir.Barrier)] == ["warp"]


@pytest.mark.parametrize("depth", [16, 64])
def test_operands_stay_in_registers(depth: int) -> None:
    """A result rounded to 16 bits has the owners of a left operand: attention's probabilities."""
    own = f"spatial(2, 1).repeat(1, {depth // 8}).{FRAGMENT}"
    start = kernel(
        f"""
        tile p: f16[32, {depth}] by {own}
        move p[i, j] = x[i, j] for (i, j) in (32, {depth})
        constant shared v: f16[{depth}, 16]
        move v[k, j] = y[k, j] for (k, j) in ({depth}, 16)
        tile acc: f32[32, 16] by spatial(2, 1).repeat(1, 2).{FRAGMENT} = 0.0
        mma acc += p[0, 0].as(32, {depth}) @ v[0, 0].as({depth}, 16)
        move c[i, j] = acc[i, j] for (i, j) in (32, 16)
        """,
        f"x: f16[32, {depth}], y: f16[{depth}, 16], c: out f32[32, 16]",
        workers=64,
        target="sm_80",
    )
    shared = [
        n.tensor.name for n in nodes(select(start), ir.Allocate) if n.tensor.scope == ir.SHARED
    ]
    assert shared == ["v"]
    keeps_its_result(start)


def test_both_operands_in_registers() -> None:
    """Two warps share the rows of the right one, and each has the left one."""
    start = kernel(
        f"""
        tile l: f16[16, 32] by replicate(2).repeat(1, 2).repeat(2, 2, order=(1, 0)).spatial(8, 4).repeat(1, 2)
        tile r: f16[32, 32] by spatial(1, 2).repeat(1, 2).repeat(4, 1).spatial(4, 8, order=(1, 0)).repeat(2, 1)
        move l[i, j] = x[i, j] for (i, j) in (16, 32)
        move r[k, j] = y[k, j] for (k, j) in (32, 32)
        tile acc: f32[16, 32] by spatial(1, 2).repeat(1, 2).{FRAGMENT} = 0.0
        mma acc += l[0, 0].as(16, 32) @ r[0, 0].as(32, 32)
        move c[i, j] = acc[i, j] for (i, j) in (16, 32)
        """,
        "x: f16[16, 32], y: f16[32, 32], c: out f32[16, 32]",
        workers=64,
        target="sm_80",
    )
    assert not [n for n in nodes(select(start), ir.Allocate) if n.tensor.scope == ir.SHARED]
    keeps_its_result(start)
