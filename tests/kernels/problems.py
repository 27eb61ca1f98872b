"""Problems of GEMM, and the tilings of least cost, as tests ask for them."""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import DType, Machine
from taskc.kernels.matmul import Problem, Tiling, build
from taskc.kernels.matmul.gpu import lying_well, with_copies
from taskc.kernels.matmul.plan_gpu import candidate_tilings
from taskc.tune.space import least


def gemm(m: Any, n: Any, k: Any, types: tuple[DType, DType, DType], **options: Any) -> Problem:
    """types  of both operands and the sum"""
    left, right, total = types
    options.setdefault("result", total)
    return Problem(m=m, n=n, k=k, dtype=left, right=right, total=total, **options)


def tiling_of(
    m: Any, n: Any, k: Any, types: tuple[DType, DType, DType], machine: Machine, **options: Any
) -> Tiling:
    return least(candidate_tilings, gemm(m, n, k, types, **options), machine)


def copied(problem: Problem, tiling: Tiling, machine: Machine) -> tc.ProgramDefinition:
    """Copies, and the product of these, of matrices whatever their size."""
    return with_copies(problem, build(lying_well(problem, machine), tiling, machine), machine)
