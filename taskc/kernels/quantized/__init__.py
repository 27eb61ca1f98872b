"""Products with weights of few bits, in groups that have a scale each (W4A16, weight-only quantization).

problem.py is what is computed, plan.py how. algorithms.py has:

panels  on processors: packed panels of weights, which become floats in registers
strips  on GPUs, of few rows: weights of 4 bits go packed through shared memory, and become floats in registers
tiles   on GPUs: blocks of warps; weights become floats on their way to shared memory

words.py is another kernel for processors, of few rows or of rows that are rounded to bytes (W4A8).
"""

from __future__ import annotations

import taskc as tc
from taskc import DType, Machine, f32, u4
from taskc.kernels.operator import KernelOperator, operator
from taskc.kernels.quantized.algorithms import panels, strips, tiles
from taskc.kernels.quantized.plan import Panels, Strips, Tiles, candidates
from taskc.kernels.quantized.problem import Activation, Problem, problem_of
from taskc.kernels.signatures import Extent

__all__ = ["Panels", "Problem", "Strips", "Tiles", "build", "quantized_matmul"]


def quantized_matmul(
    m: Extent,
    n: int,
    k: int,
    *,
    dtype: DType = f32,
    right: DType = u4,
    group: int = 32,
    scales: DType = f32,
    zeros: bool = False,
    zero: int = 0,
    result: DType | None = None,
    bias: bool = False,
    residual: bool = False,
    activation: Activation | None = None,
    machine: Machine | None = None,
    plan: Panels | Strips | Tiles | None = None,
) -> tc.KernelDefinition | tc.ProgramDefinition:
    """A kernel, or a program of two for parts of k: with quantized weights

        c[m, n] = activation(a[m, k] @ w[k, n] + bias[n] + residual[m, n])

        w[q, j] = (b[q, j] - zeros[q // group, j]) * scales[q // group, j]

    dtype    a's type
    right    b's: of 8, 6 or 4 bits, such as u4, i4, i8 or f4e2m1. On a processor b comes as `kernel.pack(b)` makes it
    scales   the type of the scales
    zeros    zero points are an operand of b's type; else `zero` is that of all weights
    result   c's type, a's if not said; sums are f32
    machine  what it is built for, if not the processor at hand
    """
    return QUANTIZED(**locals())


QUANTIZED: KernelOperator[
    Problem, Panels | Strips | Tiles, tc.KernelDefinition | tc.ProgramDefinition
] = operator(
    "quantized_matmul", problem_of, candidates, {Panels: panels, Strips: strips, Tiles: tiles}
)
build = QUANTIZED.build
