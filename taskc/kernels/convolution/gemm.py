"""Convolutions on GPUs as programs around a GEMM of gathered.py, with copies of what doesn't lie as it should."""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import Machine
from taskc.kernels import matmul
from taskc.kernels.convolution.copies import shaped_residual, with_copies
from taskc.kernels.convolution.gathered import as_it_lies, product_of
from taskc.kernels.convolution.plan_gpu import Gemm
from taskc.kernels.convolution.problem import Problem


def gemm(problem: Problem, plan: Gemm, machine: Machine) -> tc.ProgramDefinition:
    inner = as_it_lies(problem)
    product: Any = matmul.build(product_of(problem), plan.tiling, machine)
    rows = problem.images * problem.extents[0] * problem.extents[1]
    results = problem.pixels, problem.features

    def multiply(x: Any, w: Any, further: tuple[Any, ...], y: Any) -> None:
        shape = (rows, inner.channels) if inner.is_pointwise else inner.types[0].shape
        w = w.reshape(problem.features, inner.deep)
        further = shaped_residual(problem, further, results)
        product(x.reshape(*shape), w, *further, out=y.reshape(*results))

    return with_copies(problem, inner, multiply, machine)
