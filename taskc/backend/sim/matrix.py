"""What a matrix instruction computes, on the fragments that the workers of a group hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskc.ir.arithmetic import convert, fma
from taskc.ir.mapping import Mapping
from taskc.ir.target import MatrixInstruction

Values = NDArray[Any]


def matrix_product(
    row: MatrixInstruction, accumulator: Values, left: Values, right: Values
) -> Values:
    """The accumulator's registers after the product: arrays [..., worker of the group, register].

    Ascending k, one fused multiply-add a step, as `Mma` means it.
    """
    whole = _gather(accumulator, row.accumulator_fragment)
    lefts = convert(_gather(left, row.left_fragment), row.operand, row.accumulator)
    rights = convert(_gather(right, row.right_fragment), row.operand, row.accumulator)
    for q in range(row.shape[2]):
        whole = fma(lefts[..., :, q, None], rights[..., q, None, :], whole, row.accumulator)
    tasks = row.accumulator_fragment.tasks
    return whole[..., tasks[..., 0], tasks[..., 1]]


def _gather(registers: Values, fragment: Mapping) -> Values:
    """The matrix [..., row, column] that the registers are parts of."""
    matrix = np.empty((*registers.shape[:-2], *fragment.shape), registers.dtype)
    tasks = fragment.tasks
    matrix[..., tasks[..., 0], tasks[..., 1]] = registers
    return matrix
