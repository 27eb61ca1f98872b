"""The rows of ldmatrix and stmatrix against the formulas of PTX, and which owners they serve."""

from __future__ import annotations

import numpy as np
import pytest

from taskc.ir.fragments import line_namers
from taskc.ir.mapping import Mapping, repeat, spatial
from taskc.ir.nodes import SHARED, Tensor
from taskc.ir.operations import OPERATIONS
from taskc.ir.target import (
    MATRIX_MOVES,
    SM_80,
    SM_90A,
    TARGETS,
    WARP_INSTRUCTIONS,
    MatrixMove,
)
from taskc.ir.types import DType, bf16, f16, f32, f64, i8, tf32

ROWS = list(MATRIX_MOVES.values())
LDMATRIX = [row for row in ROWS if row.is_load]


def shared(dtype: DType) -> Tensor:
    return Tensor("s", dtype, (256, 256), SHARED)


def test_the_families() -> None:
    ends = [f"x{n}{end}" for n in (4, 2, 1) for end in ("", ".trans")]
    assert [row.name for row in SM_80.moves] == [f"ldmatrix.{end}" for end in ends]
    assert [row.name for row in SM_90A.moves[6:]] == [f"stmatrix.{end}" for end in ends]
    assert not any(target.moves for target in TARGETS.values() if target.is_processor)
    assert set(MATRIX_MOVES) <= set(OPERATIONS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", [f16, bf16, i8, tf32, f32, f64], ids=str)
def test_lane_by_lane(row: MatrixMove, dtype: DType) -> None:
    """PTX, m8n8: lane l has elements 2 * (l % 4) and the next one of row l / 4, as 32 bits."""
    if row.transposed or dtype.nbytes == 8:
        assert row.fits(dtype) == (dtype.nbytes == 2)
    if not row.fits(dtype):
        return
    fragment = row.fragment(dtype)
    count = 4 // dtype.nbytes
    lane, i = np.indices((32, count))
    line, element = lane // 4, lane % 4 * count + i
    if row.transposed:
        line, element = element, line
    assert fragment.shape == (8, 16 // dtype.nbytes)
    assert np.array_equal(fragment.tasks, np.stack((line, element), axis=-1))


def operands() -> list[tuple[str, DType, Mapping, int]]:
    """Of every mma.sync: an operand's owners, and the dimension along which its lines lie in memory."""
    found = []
    for row in WARP_INSTRUCTIONS.values():
        left = spatial(2, 1) * repeat(3, 1) * row.left_fragment
        right = spatial(1, 3) * repeat(1, 4) * row.right_fragment
        found += [(f"{row.name} left", row.operand, left, 1)]
        found += [(f"{row.name} right", row.operand, right, 0)]
        if row.operand.nbytes == 2:
            found += [(f"{row.name} left of [k, m]", row.operand, left, 0)]
            found += [(f"{row.name} right of [k, n]", row.operand, right, 1)]
    return found


@pytest.mark.parametrize(
    ("dtype", "owners", "axis"),
    [pytest.param(*rest, id=name) for name, *rest in operands()],
)
@pytest.mark.parametrize("count", [4, 2, 1])
def test_owners_get_what_is_named_for_them(
    dtype: DType, owners: Mapping, axis: int, count: int
) -> None:
    """PTX: lane 8 * i + r gives the address of row r of matrix i, which is in each lane's register i."""
    is_transposed = owners.tasks[0, 1, axis] == owners.tasks[0, 0, axis] and dtype.nbytes == 2
    row = MATRIX_MOVES[f"ldmatrix.x{count}{'.trans' if is_transposed else ''}"]
    namers = line_namers(owners, axis, row, shared(dtype))
    assert namers is not None
    line, elements = 16 // dtype.nbytes, 4 // dtype.nbytes
    for group in range(owners.slots // (count * elements)):
        for worker in range(owners.workers):
            warp, lane = worker // 32 * 32, worker % 32
            for matrix in range(count):
                for element in range(elements):
                    at = lane // 4, lane % 4 * elements + element
                    in_line, along = at[::-1] if is_transposed else at
                    named = namers.tasks[warp + 8 * matrix + in_line, group * line].copy()
                    named[axis] += along
                    slot = (group * count + matrix) * elements + element
                    assert owners.tasks[worker, slot].tolist() == named.tolist()


def test_lines_are_whole_slots() -> None:
    row = MATRIX_MOVES["ldmatrix.x2"]
    owners = spatial(2, 1) * repeat(2, 1) * spatial(8, 4) * repeat(1, 2)
    namers = line_namers(owners, 1, row, shared(f16))
    assert namers is not None
    assert namers.workers == 64
    assert namers.slots == 8
    for worker in range(64):
        tasks = namers.tasks[worker]
        expected = worker // 32 * 16 + worker % 16
        assert tasks[:, 0].tolist() == [expected] * 8
        assert tasks[:, 1].tolist() == list(range(8))


@pytest.mark.parametrize(
    ("owners", "axis", "name"),
    [
        (spatial(8, 4) * repeat(1, 2), 0, "ldmatrix.x1"),  # the lines lie across
        (spatial(8, 4) * repeat(1, 2), 1, "ldmatrix.x1.trans"),
        (spatial(8, 4) * repeat(1, 2), 1, "ldmatrix.x2"),  # more than there are
        (repeat(3, 1) * spatial(8, 4) * repeat(1, 2), 1, "ldmatrix.x2"),  # three matrices
        (spatial(4, 8) * repeat(1, 2), 1, "ldmatrix.x1"),
        (spatial(4, 4) * repeat(1, 2), 1, "ldmatrix.x1"),  # half a warp
        (spatial(8, 4) * repeat(1, 1), 1, "ldmatrix.x1"),  # half a word
        ((spatial(8, 4) * repeat(1, 2)).within(8, 7), 1, "ldmatrix.x1"),
    ],
)
def test_other_owners(owners: Mapping, axis: int, name: str) -> None:
    assert line_namers(owners, axis, MATRIX_MOVES[name], shared(f16)) is None
