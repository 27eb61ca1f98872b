"""Products by a processor's instructions: operands in packs, and what is left of k."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping, repeat
from taskc.ir.rewrite import walk
from taskc.ir.verify import verify
from taskc.passes.overlay import place
from taskc.passes.pipeline import lower
from taskc.passes.select import select
from tests.passes.kernels import (
    after,
    before_and_after,
    keeps_its_result,
    kernel,
    messages,
    nodes,
    through,
)

Golden = Callable[[str, str], None]
PRODUCT = """
    tile acc: i32[4, 32] by {own} = 7
    constant shared a: {left}[4, {k}]
    move a[i, j] = x[i, j] for (i, j) in (4, {k})
    constant shared b: i8[{k}, 32]
    move b[i, j] = y[i, j] for (i, j) in ({k}, 32)
    mma acc += a[0, 0].as(4, {k}) @ b[0, 0].as({k}, 32)
    move c[i, j] = acc[i, j] for (i, j) in (4, 32)
"""
OWN = "repeat(4, 2).spatial(1, 16)"


def product(own: str = OWN, left: str = "i8", k: int = 8, target: str = "avx512_vnni") -> ir.Kernel:
    parameters = f"x: {left}[4, {k}], y: i8[{k}, 32], c: out i32[4, 32]"
    workers = Mapping.parse(own).workers
    return kernel(
        PRODUCT.format(own=own, left=left, k=k), parameters, workers=workers, target=target
    )


def instructions(start: ir.Kernel) -> list[tuple[str | None, int]]:
    """What the products become, and how much of k each takes."""
    return [(mma.how, mma.left.shape[1]) for mma in nodes(select(start), ir.Mma)]


def test_golden(golden: Golden) -> None:
    start = product(k=10)
    golden("passes/select_packs", before_and_after(start, through(start, select)))
    golden("passes/lower_dots", before_and_after(*_around_lowering(start)))


def _around_lowering(start: ir.Kernel) -> tuple[ir.Kernel, ir.Kernel]:
    return after(start, "lower_grid"), after(start, "lower_mappings")


@pytest.mark.parametrize(
    ("own", "left", "k", "target"),
    [
        (OWN, "i8", 10, "avx512_vnni"),
        (OWN, "u8", 10, "avx2_vnni"),
        ("repeat(1, 2).spatial(4, 16)", "i8", 10, "avx512_vnni"),  # a vector's lanes: several rows
        ("repeat(2, 2).spatial(2, 16, order=(1, 0))", "i8", 4, "avx512_vnni"),
        ("spatial(1, 4).repeat(4, 8)", "u8", 4, "avx512_vnni"),
        ("repeat(4, 32)", "i8", 4, "avx2_vnni"),  # one worker
        ("spatial(2, 1).replicate(3).repeat(2, 2).spatial(1, 16)", "i8", 4, "avx2_vnni"),
    ],
)
def test_integers_are_exact(own: str, k: int, left: str, target: str) -> None:
    start = product(own, left, k, target)
    assert instructions(start) == [(f"vpdpbusd.{left}", k // 4 * 4)]
    keeps_its_result(start)


def test_operands_in_registers_lie_in_packs_on_their_way() -> None:
    start = kernel(
        """
        tile acc: i32[8, 8] by spatial(8, 1).repeat(1, 8) = 0
        tile t: i8[8, 8] by spatial(1, 8).repeat(8, 1)
        move t[i, j] = x[i, j] for (i, j) in (8, 8)
        mma acc += t[0, 0].as(8, 8, transposed) @ t[0, 0].as(8, 8)
        move c[i, j] = acc[i, j] for (i, j) in (8, 8)
        """,
        "x: i8[8, 8], c: out i32[8, 8]",
        workers=8,
        target="avx2_vnni",
    )
    assert instructions(start) == [("vpdpbusd.i8", 8)]
    layouts = {n.tensor.layout for n in nodes(select(start), ir.Allocate) if n.tensor.layout}
    assert layouts == {repeat(2, 8) * repeat(4, 1)}
    keeps_its_result(start)


@pytest.mark.parametrize("turned", ["", ", transposed"])
def test_transposed_operands(turned: str) -> None:
    start = kernel(
        f"""
        tile acc: i32[8, 8] by repeat(8, 1).spatial(1, 8) = 0
        constant shared a: i8[8, 8]
        move a[i, j] = x[i, j] for (i, j) in (8, 8)
        mma acc += a[0, 0].as(8, 8, transposed) @ a[0, 0].as(8, 8{turned})
        move c[i, j] = acc[i, j] for (i, j) in (8, 8)
        """,
        "x: i8[8, 8], c: out i32[8, 8]",
        workers=8,
        target="avx2_vnni",
    )
    keeps_its_result(start)
    # One array can't have k in packs along both of its dimensions.
    assert instructions(start) == ([] if turned else [("vpdpbusd.i8", 8)])


GLOBALS = """
    grid (row, p) in (8, 16) by (8, {by}):
        tile acc: i32[8, 8] by repeat(8, 1).spatial(1, 8) = 0
        mma acc += x[row, p].as(8, {by}) @ y[p, {column}].as({by}, 8)
        move c[p // {by} * 8 + i, j] = acc[i, j] for (i, j) in (8, 8)
"""


@pytest.mark.parametrize(
    ("layout", "by", "column", "fits"),
    [
        ("repeat(4, 24).repeat(4, 1)", 8, 3, True),
        ("repeat(1, 3).repeat(4, 8).repeat(4, 1)", 8, 8, True),  # panels
        ("repeat(4, 24).repeat(4, 1)", 2, 0, False),  # it begins within a pack
        ("repeat(8, 24).repeat(2, 1)", 8, 0, False),  # too short
        ("repeat(16, 24)", 8, 0, False),
        ("repeat(4, 24).repeat(4, 1, order=(1, 0))", 8, 0, True),
        ("repeat(16, 24, order=(1, 0))", 8, 0, True),  # by columns
    ],
)
def test_constant_operands(layout: str, by: int, column: int, fits: bool) -> None:
    """Parameters lie as their authors say."""
    start = kernel(
        GLOBALS.format(by=by, column=column),
        f"x: i8[8, 16], y: i8[16, 24].laid({layout}), c: out i32[{16 // by * 8}, 8]",
        workers=8,
        target="avx2_vnni",
    )
    assert instructions(start) == ([("vpdpbusd.i8", by)] if fits else [])
    said = messages(select(start))
    assert said == [] if fits else said[0].startswith("tc.mma of i8 into i32 by repeat(8, 1)")
    keeps_its_result(start)


@pytest.mark.parametrize(("first", "expected"), [(2, []), (4, [("vpdpbusd.i8", 8)])])
def test_a_slice_begins_with_a_pack(first: int, expected: list[tuple[str, int]]) -> None:
    start = kernel(
        f"""
        tile acc: i32[8, 8] by repeat(8, 1).spatial(1, 8) = 0
        mma acc += x[0, {first}].as(8, 8) @ y[{first}, 0].as(8, 8)
        move c[i, j] = acc[i, j] for (i, j) in (8, 8)
        """,
        "x: i8[8, 16], y: i8[16, 8].laid(repeat(4, 8).repeat(4, 1)), c: out i32[8, 8]",
        workers=8,
        target="avx2_vnni",
    )
    assert instructions(start) == expected
    keeps_its_result(start)


def test_a_tail_of_a_layout_is_no_pack() -> None:
    """Whole layouts of ten rows follow one another: the third pack of each ends in the next one."""
    start = kernel(
        GLOBALS.format(by=4, column=0).replace("(8, 16)", "(8, 20)"),
        "x: i8[8, 20], y: i8[20, 24].laid(repeat(5, 24).repeat(2, 1)), c: out i32[40, 8]",
        workers=8,
        target="avx2_vnni",
    )
    assert instructions(start) == []


@pytest.mark.parametrize("target", ["avx512", "avx2", "sse2", "neon"])
def test_processors_without_instructions_say_nothing(target: str) -> None:
    selected = select(product(target=target))
    assert not nodes(selected, ir.Mma)
    assert selected.notes == ()


def test_types_without_an_instruction_say_nothing() -> None:
    start = product(target="avx512_vnni")
    text = PRODUCT.replace("i32", "f32").replace("i8", "f32").format(own=OWN, left="f32", k=8)
    floats = kernel(
        text.replace("= 7", "= 7.0"),
        "x: f32[4, 8], y: f32[8, 32], c: out f32[4, 32]",
        workers=16,
        target=start.target,
    )
    assert select(floats).notes == ()
    assert nodes(select(floats), ir.Fused)


def test_the_verifier_asks_for_packs() -> None:
    selected = select(product())
    plain = {
        n.tensor: replace(n.tensor, layout=None)
        for n in nodes(selected, ir.Allocate)
        if n.tensor.layout is not None
    }
    with pytest.raises(
        InternalError, match=r"b does not lie in packs of 4, as vpdpbusd\.i8 takes it"
    ):
        verify(place(selected, plain))


def test_moves_into_packs_store_whole_ones() -> None:
    lean = lower(product())
    stores = [do for do in nodes(lean, ir.Do) if do.operation == "store.pack"]
    assert [len(do.operands) - 2 for do in stores] == [4]
    shared = [s for s in nodes(lean, ir.Store) if s.tensor.scope == ir.SHARED]
    assert {store.tensor.name for store in shared} == {"a"}


# Tiles.

TILES = "repeat(1, 2).repeat(16, 1).spatial(1, 16)"


def of_tiles(own: str = TILES, k: int = 64, turned: bool = False, m: int = 16) -> ir.Kernel:
    shape, flag = (f"{k}, {m}", ", transposed") if turned else (f"{m}, {k}", "")
    return kernel(
        f"""
        tile acc: i32[{m}, 32] by {own} = 7
        constant shared a: i8[{shape}]
        move a[i, j] = x[i, j] for (i, j) in ({shape})
        constant shared b: i8[{k}, 32]
        move b[i, j] = y[i, j] for (i, j) in ({k}, 32)
        mma acc += a[0, 0].as({m}, {k}{flag}) @ b[0, 0].as({k}, 32)
        move c[i, j] = acc[i, j] for (i, j) in ({m}, 32)
        """,
        f"x: i8[{shape}], y: i8[{k}, 32], c: out i32[{m}, 32]",
        workers=Mapping.parse(own).workers,
        target="avx512_amx",
    )


def test_golden_of_tiles(golden: Golden) -> None:
    golden("passes/lower_tiles", before_and_after(*_around_lowering(of_tiles())))


@pytest.mark.parametrize(
    ("own", "m", "k", "turned", "expected"),
    [
        (TILES, 16, 64, False, [("tdpbssd", 64)]),
        (TILES, 16, 69, False, [("tdpbssd", 64), ("vpdpbusd.i8", 4)]),
        (
            "spatial(2, 1).repeat(1, 2).repeat(16, 1).spatial(1, 16)",
            32,
            64,
            False,
            [("tdpbssd", 64)],
        ),
        ("repeat(16, 2).spatial(1, 16)", 16, 64, False, [("vpdpbusd.i8", 64)]),  # rows come later
        (TILES, 16, 60, False, [("vpdpbusd.i8", 60)]),
        (TILES, 16, 64, True, [("vpdpbusd.i8", 64)]),  # lines of a transposed matrix lie in pieces
    ],
)
def test_tiles_and_the_next_best(
    own: str, m: int, k: int, turned: bool, expected: list[tuple[str, int]]
) -> None:
    start = of_tiles(own, k, turned, m)
    assert instructions(start) == expected
    if expected[0][0] == "tdpbssd":
        keeps_its_result(start)


# Sums of a right operand.

LOOP = """
    grid col in 48 by 32:
        constant shared s: i8[8, 64]
        move s[i, j] = y[i, j % 48] for (i, j) in (8, 64)
        shared m: i8[8, 64]
        for r in range(0, 8, 4):
            constant shared t: i8[8, 64]
            move t[i, j] = y[i, j % 48] for (i, j) in (8, 64)
            move m[i, j] = y[i, (j + r) % 48] for (i, j) in (8, 64)
            tile acc: i32[4, 32] by repeat(4, 2).spatial(1, 16) = 0
            if r < 4 or col + 32 <= 48:
                mma acc += x[r, 0].as(4, 8) @ {operand}.as(8, 32)
            move c[r + i, col + j] = acc[i, j] for (i, j) in (4, 32) if col + j < 48
"""


@pytest.mark.parametrize(
    ("operand", "inside"),
    [
        ("s[0, 0]", 0),
        ("s[0, col]", 0),
        ("s[0, r]", 1),  # another one each time
        ("t[0, 0]", 1),  # made in the loop
        ("m[0, 0]", 1),  # changed in the loop
        ("y[0, col]", 1),  # the condition alone keeps it inside
        ("y[0, col // 2]", 0),
    ],
)
def test_sums_stand_before_a_loop(operand: str, inside: int) -> None:
    start = kernel(
        LOOP.format(operand=operand).replace("r < 4 or ", "" if "y[" in operand else "r < 4 or "),
        "x: i8[8, 8], y: i8[8, 48].laid(repeat(2, 48).repeat(4, 1)), c: out i32[8, 48]",
        workers=16,
        target="avx512_vnni",
    )
    scalar = after(start, "lower_mappings")
    everywhere = [do for do in nodes(scalar, ir.Do) if do.operation == "vpdpbusd.i8.sums"]
    (loop,) = [n for n in nodes(scalar, ir.For) if n.variable.name == "r"]
    within = [do for do in walk(loop) if do in everywhere]
    assert (len(everywhere), len(within)) == (1, inside)
    keeps_its_result(start)
