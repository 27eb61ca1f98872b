"""The rows of wgmma against the formulas of PTX, and where operands may lie in shared memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from taskc.ir.fragments import (
    Placement,
    alignment,
    left_owners,
    placement,
    quotient_of,
    swizzle_of,
)
from taskc.ir.mapping import Mapping, repeat, spatial
from taskc.ir.nodes import SHARED, Tensor
from taskc.ir.target import SM_80, SM_90A, WARPGROUP_INSTRUCTIONS, WarpgroupInstruction
from taskc.ir.types import DType, bf16, f8e4m3, f16, i8, tf32

ROWS = [*WARPGROUP_INSTRUCTIONS.values()]


def test_the_family() -> None:
    assert [row for row in SM_90A.matrix if row.asynchronous] == ROWS
    assert not any(row.asynchronous for row in SM_80.matrix)
    names = {row.name for row in ROWS}
    for dtype, k in (("f16", 16), ("bf16", 16), ("tf32", 8), ("f8e4m3", 32), ("f8e5m2", 32)):
        assert {f"wgmma.m64n{n}k{k}.{dtype}" for n in range(8, 257, 8)} <= names
    integers = [row.shape[1] for row in ROWS if row.operand is i8]
    assert sorted(integers) == [8, 16, 24, *range(32, 257, 16)]
    assert len(names) == len(ROWS) == 5 * 32 + 18


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_accumulators_lane_by_lane(row: WarpgroupInstruction) -> None:
    """PTX, m64nN: d[i] of a lane is in row lane / 4 + 8 * (i / 2 % 2) of its warp's 16."""
    fragment = row.accumulator_fragment
    assert (fragment.shape, fragment.workers) == ((64, row.shape[1]), 128)
    worker, i = np.indices((128, row.shape[1] // 2))
    warp, lane = worker // 32, worker % 32
    assert (fragment.tasks[..., 0] == 16 * warp + lane // 4 + 8 * (i // 2 % 2)).all()
    assert (fragment.tasks[..., 1] == lane % 4 * 2 + i % 2 + 8 * (i // 4)).all()


@pytest.mark.parametrize("dtype", [f16, bf16, tf32, f8e4m3, i8], ids=str)
def test_left_operands_lane_by_lane(dtype: DType) -> None:
    """Four 32-bit registers: rows 8 apart, then the other half of k."""
    row = next(row for row in ROWS if row.operand is dtype)
    packed = 4 // dtype.nbytes
    worker, i = np.indices((128, 4 * packed))
    warp, lane, register = worker // 32, worker % 32, i // packed
    tasks = row.left_fragment.tasks
    assert row.left_fragment.shape == (64, 32 // dtype.nbytes)
    assert (tasks[..., 0] == 16 * warp + lane // 4 + 8 * (register % 2)).all()
    column = lane % 4 * packed + i % packed + row.shape[2] // 2 * (register // 2)
    assert (tasks[..., 1] == column).all()


def test_results_may_be_left_operands() -> None:
    """Attention's P stays in registers: its mapping as an accumulator is that of an operand."""
    row = WARPGROUP_INSTRUCTIONS["wgmma.m64n128k16.bf16"]
    accumulator = spatial(2, 1) * row.accumulator_fragment
    quotient = quotient_of(spatial(2, 1) * row.accumulator_fragment, row)
    assert quotient is not None
    assert left_owners(quotient, row, 128) == accumulator


def test_a_mapping_that_does_not_divide() -> None:
    row = WARPGROUP_INSTRUCTIONS["wgmma.m64n16k16.bf16"]
    assert quotient_of(spatial(8, 16).repeat(8, 1), row) is None
    assert quotient_of(row.accumulator_fragment.within(64, 9), row) is None


# --- memory ----------------------------------------------------------------------------------


def _descriptor_address(form_width: int, line: int, nbytes: int, start: int, offset: int) -> int:
    """What the hardware does: the swizzle's bits of the whole byte address."""
    address = start + offset
    bits = (form_width // 16).bit_length() - 1
    return address ^ ((address >> 7 & (1 << bits) - 1) << 4)


@pytest.mark.parametrize("dtype", [bf16, tf32, i8], ids=str)
@pytest.mark.parametrize("width", [32, 64, 128])
def test_lines_along_k(dtype: DType, width: int) -> None:
    columns = width // dtype.nbytes
    tensor = Tensor("s", dtype, (4, 128, columns), SHARED, swizzle=swizzle_of(width, dtype))
    row = next(row for row in ROWS if row.operand is dtype)
    found = placement(tensor, "k", row, is_left=True)
    assert found is not None
    assert (found.form.along, found.form.width, found.stride) == ("k", width, 8 * columns)
    # Byte by byte: the tensor's own order, and the address that a descriptor leads to.
    swizzle = tensor.swizzle
    assert swizzle is not None
    size, k = dtype.nbytes, row.shape[2]
    assert alignment(tensor) == 8 * width
    for start_row, start_column in ((0, 0), (64, columns - k)):
        start = start_row * columns + start_column
        assert found.is_aligned(start)
        offsets = found.offsets(64, k)
        for r, q in ((0, 0), (1, k - 1), (9, 1), (63, k // 2)):
            plain = (start_row + r) * columns + start_column + q
            mask = (1 << swizzle.bits) - 1
            mine = plain ^ ((plain >> swizzle.shift & mask) << swizzle.base)
            theirs = _descriptor_address(
                width, columns, size, start * size, int(offsets[r, q]) * size
            )
            assert mine * size == theirs
    assert not found.is_aligned(4 * columns)


def test_units_without_a_swizzle() -> None:
    row = WARPGROUP_INSTRUCTIONS["wgmma.m64n32k16.f16"]
    panels = repeat(1, 4) * repeat(128, 8)
    tensor = Tensor("s", f16, (128, 32), SHARED, layout=panels)
    found = placement(tensor, "k", row, is_left=True)
    assert found is not None
    assert (found.form.width, found.leading, found.stride) == (16, 128 * 8, 64)
    blocks = repeat(16, 4) * repeat(8, 8)
    found = placement(replace(tensor, layout=blocks), "k", row, is_left=False)
    assert found is not None
    assert (found.leading, found.stride) == (64, 4 * 64)


def test_lines_along_the_rows() -> None:
    row = WARPGROUP_INSTRUCTIONS["wgmma.m64n64k16.f16"]
    tensor = Tensor("s", f16, (64, 64), SHARED, swizzle=swizzle_of(128, f16))
    found = placement(tensor, "mn", row, is_left=False)
    assert found is not None
    assert (found.form.along, found.form.width, found.stride) == ("mn", 128, 512)
    panels = replace(tensor, shape=(32, 128), layout=repeat(1, 2) * repeat(32, 64))
    wide = WARPGROUP_INSTRUCTIONS["wgmma.m64n128k16.f16"]
    found = placement(panels, "mn", wide, is_left=False)
    assert found is not None
    assert (found.leading, found.stride) == (32 * 64, 512)


@pytest.mark.parametrize(
    ("dtype", "shape", "layout", "width", "along"),
    [
        (bf16, (64, 64), None, 0, "k"),  # no swizzle, and not in units
        (bf16, (64, 64), None, 64, "k"),  # a swizzle of half a row
        (bf16, (64, 72), None, 128, "k"),  # padded
        (bf16, (32, 64), None, 128, "k"),  # too small
        (bf16, (64, 64), repeat(64, 64, order=(1, 0)), 128, "k"),
        (tf32, (8, 64), None, 128, "mn"),  # only 16-bit types are transposed
        (bf16, (16, 128), None, 128, "mn"),
    ],
)
def test_what_lies_otherwise(
    dtype: DType, shape: tuple[int, int], layout: Mapping | None, width: int, along: str
) -> None:
    swizzle = swizzle_of(width, dtype) if width else None
    tensor = Tensor("s", dtype, shape, SHARED, layout=layout, swizzle=swizzle)
    row = next(row for row in ROWS if row.operand is dtype and row.shape[1] == 64)
    assert placement(tensor, along, row, is_left=True) is None


@pytest.mark.parametrize("row", ROWS[::32], ids=lambda row: row.name)
def test_a_fragment_is_as_many_elements(row: WarpgroupInstruction) -> None:
    nbytes, k = row.operand.nbytes, row.shape[2]
    for form in row.memory:
        line = form.width // nbytes
        leading, stride = (64 * line, 8 * line) if form.along == "k" else (k * line, 8 * line)
        if form.along == "mn" and form.width == 16:
            leading, stride = stride, leading
        offsets = Placement(form, nbytes, leading, stride).offsets(64, k)
        assert len(np.unique(offsets)) == 64 * k
