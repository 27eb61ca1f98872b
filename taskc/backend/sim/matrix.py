"""The computation of a matrix instruction, on the fragments that the workers of a group hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskc.ir.arithmetic import convert, fma
from taskc.ir.mapping import Mapping
from taskc.ir.target import MatrixInstruction, WarpInstruction

Values = NDArray[Any]


def matrix_product(
    row: WarpInstruction, accumulator: Values, left: Values, right: Values
) -> Values:
    """The accumulator's registers after the product: arrays [..., worker of the group, register].

    Ascending k, one fused multiply-add a step, as `Mma` means it.
    """
    whole = gathered(accumulator, row.accumulator_fragment)
    lefts, rights = gathered(left, row.left_fragment), gathered(right, row.right_fragment)
    return scattered(folded(row, whole, lefts, rights), row.accumulator_fragment)


def folded(row: MatrixInstruction, total: Values, left: Values, right: Values) -> Values:
    """total + left @ right on whole matrices [..., row, column]."""
    lefts = convert(left, row.operand, row.accumulator)
    rights = convert(right, row.types[1], row.accumulator)
    for q in range(row.shape[2]):
        total = fma(lefts[..., :, q, None], rights[..., q, None, :], total, row.accumulator)
    return total


def scattered(matrix: Values, fragment: Mapping) -> Values:
    """The registers [..., worker of the group, register] that hold a matrix."""
    tasks = fragment.tasks
    held: Values = matrix[..., tasks[..., 0], tasks[..., 1]]
    return held


def gathered(registers: Values, fragment: Mapping) -> Values:
    """The matrix [..., row, column] that the registers are parts of."""
    matrix = np.empty((*registers.shape[:-2], *fragment.shape), registers.dtype)
    tasks = fragment.tasks
    matrix[..., tasks[..., 0], tasks[..., 1]] = registers
    return matrix
