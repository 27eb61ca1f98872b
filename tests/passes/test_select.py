"""Who moves what, and how wide."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping
from taskc.passes.select import select
from tests.passes.kernels import (
    before_and_after,
    keeps_its_result,
    kernel,
    nodes,
    through,
)

Golden = Callable[[str, str], None]


def test_golden(golden: Golden) -> None:
    start = kernel(
        """
        tile acc: f32[8, 8] by spatial(8, 1).repeat(1, 8)
        tile turned: f32[8, 8] by spatial(1, 8).repeat(8, 1)
        shared s: f32[8, 8]
        move s[i, j] = x[i, j] for (i, j) in (8, 8)
        move acc[i, j] = s[i, j] for (i, j) in (8, 8)
        move turned[i, j] = acc[i, j] for (i, j) in (8, 8)
        mma acc += s[0, 0].as(8, 8) @ s[0, 0].as(8, 8)
        move c[i, j] = acc[i, j] * 2.0 for (i, j) in (4, 8)
        move c[i + 4, j] = turned[i, j] for (i, j) in (4, 8)
        """,
        "x: f32[8, 8], c: out f32[8, 8]",
        workers=8,
    )
    golden("passes/select", before_and_after(start, through(start, select)))


# Moves.
def mapping_of(move: str, parameters: str, workers: int = 32) -> Mapping:
    start = kernel(f"grid row in 64 by 8:\n    {move}", parameters, workers=workers)
    (made,) = nodes(select(start), ir.Move)
    assert made.by is not None
    return made.by


@pytest.mark.parametrize(
    ("dtype", "columns", "index", "width"),
    [
        ("f32", 64, "row, j", 4),
        ("f16", 64, "row, j", 8),
        ("i8", 64, "row, j", 16),
        ("f64", 64, "row, j", 2),
        ("f32", 64, "row, 4 + j", 4),
        ("f32", 64, "row, j + 4 - 2", 2),
        ("f32", 64, "row, j + 1", 1),
        ("f32", 66, "row, j", 2),  # a row of 66 elements
        ("f32", 67, "row, j", 1),
        ("f32", 64, "j, row", 1),  # transposed
        ("f32", 64, "row, 2 * j", 1),
        ("f32", 64, "row, row * 3 + j", 4),  # row is a multiple of 8
        ("f16", 64, "(row + j) // 8, (row + j) % 8", 8),
        ("f16", 64, "(row + j) // 12, (row + j) % 12", 4),
        ("f16", 64, "(row + j + 4) // 8, (row + j + 4) % 8", 4),
        ("f16", 64, "(row + j) // 8, (row + j + 1) % 8", 1),
        ("f16", 64, "(row + j) // 3, (row + j) % 8", 1),
        ("f16", 64, "2 * j, (row + j) % 8", 1),
        ("f32", 64, "row, row // 2 + j", 1),
    ],
)
def test_widths(dtype: str, columns: int, index: str, width: int) -> None:
    move = f"move c[row // 8, j] = x[{index}] for j in 16"
    by = mapping_of(move, f"x: {dtype}[{columns}, {columns}], c: inout {dtype}[8, 16]", 2)
    run_of_worker = [task for (task,) in by(0)]
    assert run_of_worker[:width] == list(range(width))
    assert width == 16 or by(1)[0] == (width,), "the neighbour has the next ones"


@pytest.mark.parametrize(
    ("shape", "workers", "by"),
    [
        ((8, 16), 32, "spatial(8, 4).repeat(1, 4)"),
        ((16, 16), 32, "repeat(2, 1).spatial(8, 4).repeat(1, 4)"),
        ((8, 6), 24, "spatial(8, 3).repeat(1, 2)"),
        ((5, 4), 8, "spatial(8, 1).repeat(1, 4).within(5, 4)"),
    ],
)
def test_a_cover_is_coalesced_and_masked(shape: tuple[int, int], workers: int, by: str) -> None:
    extents = f"[{shape[0]}, {shape[1]}]"
    found = mapping_of(
        f"move c[i, j] = x[i, j] for (i, j) in {shape}", f"x: f32{extents}, c: inout f32{extents}",
        workers,
    )  # fmt: skip
    assert found.workers == workers
    assert found.covers(shape)
    assert found.iterated == shape, "no task outside the shape"
    assert found == Mapping.parse(by)


def test_owners_move_their_own() -> None:
    own = "spatial(8, 1).repeat(1, 8)"
    start = kernel(
        f"""
        tile bias: f32[8] by repeat(8).replicate(8) = 1.0
        tile acc: f32[8, 8] by {own}
        tile product: f32[8, 8] by {own}
        move acc[i, j] = x[i, j] for (i, j) in (8, 8)
        move product[i, j] = bias[j] * acc[i, j] for (i, j) in (8, 8)
        move c[i, j] = bias[j] + product[i, j] for (i, j) in (8, 8)
        move d[i, j] = product[i, j] for (i, j) in (4, 8)
        """,
        "x: f32[8, 8], c: out f32[8, 8], d: out f32[4, 8]",
        workers=8,
    )
    moves = nodes(select(start), ir.Move)
    whole = Mapping.parse(own)
    assert [move.by for move in moves] == [whole, whole, whole, whole.within(4, 8)]
    keeps_its_result(start)


@pytest.mark.parametrize("index", ["j, i", "i, j"])
def test_whom_the_author_names(index: str) -> None:
    """Not the tile's owners by the position that they move, but those that were named."""
    by = "spatial(1, 8).repeat(8, 1)" if index == "j, i" else "spatial(8, 1).repeat(1, 8)"
    start = kernel(
        f"""
        tile acc: f32[8, 8] by spatial(8, 1).repeat(1, 8)
        move acc[{index}] = x[i, j] for (i, j) in (8, 8) by {by}
        move c[i, j] = acc[i, j] for (i, j) in (8, 8)
        """,
        "x: f32[8, 8], c: out f32[8, 8]",
        workers=8,
    )
    assert nodes(select(start), ir.Move)[0].by == Mapping.parse(by)
    keeps_its_result(start)


def test_a_named_mapping_may_cover_more() -> None:
    start = kernel(
        """
        shared s: f32[8, 8]
        move s[i, j] = x[i, j] for (i, j) in (8, 8) by spatial(8, 4).repeat(2, 2)
        move c[i, j] = s[i, j] for (i, j) in (8, 8)
        """,
        "x: f32[8, 8], c: out f32[8, 8]",
    )
    keeps_its_result(start)


def test_a_change_of_mapping_goes_through_shared_memory() -> None:
    start = kernel(
        """
        tile acc: f32[8, 8] by spatial(8, 1).repeat(1, 8)
        tile turned: f32[8, 8] by spatial(1, 8).repeat(8, 1)
        move acc[i, j] = x[i, j] for (i, j) in (8, 8)
        move turned[i, j] = acc[i, j] for (i, j) in (8, 8)
        move c[i, j] = turned[i, j] for (i, j) in (8, 8)
        """,
        "x: f32[8, 8], c: out f32[8, 8]",
        workers=8,
    )
    scratch = [n.tensor for n in nodes(select(start), ir.Allocate) if n.tensor.scope == ir.SHARED]
    assert [tensor.shape for tensor in scratch] == [(8, 8)]
    lean = keeps_its_result(start)
    assert [barrier.scope for barrier in nodes(lean, ir.Barrier)] == ["warp"]
