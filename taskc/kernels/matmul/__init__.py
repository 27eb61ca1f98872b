"""GEMM: products of matrices, of one, of many, of vectors, on processors and GPUs.

problem.py is what is computed, plan.py (of processors) and plan_gpu.py how. The algorithms, in panels.py, packs.py and,
for GPUs, gpu.py:

panels, few_rows  on processors: tiles in vector registers; what `matmul` takes for up to 8 rows
packs             on processors: by instructions that multiply packs of 8- or 16-bit numbers (`product`)
batches           on processors: panels of many products (`batch_matmul`) whose rows lie across them
tiles             on GPUs: blocks of warps, operands in shared memory, software pipelining, warp specialization
gemv              on GPUs: of up to 4 vectors and a matrix
split_k           on GPUs: sums in parts, where blocks would be few
padded            on GPUs: operands that lie badly, by way of copies that lie well
"""

from __future__ import annotations

from math import prod
from typing import Any

import taskc as tc
from taskc import DType, Machine, f32, u8
from taskc.kernels.machine_facts import work_of_products
from taskc.kernels.matmul.gpu import gemv, is_worth_copying, lying_well, tiles, with_copies
from taskc.kernels.matmul.panels import few_rows_kernel, packs, panels
from taskc.kernels.matmul.plan import (
    FewRows,
    Packs,
    Panels,
    candidates,
    candidates_of_batches,
    candidates_of_packs,
    smallest,
)
from taskc.kernels.matmul.plan_gpu import Tiling, Vectors
from taskc.kernels.matmul.problem import Activation, Extents, Problem, problem_of
from taskc.kernels.operator import KernelOperator, operator
from taskc.kernels.signatures import Extent, require_numbers
from taskc.tune.space import Work

__all__ = ["Packs", "Panels", "Problem", "Tiling", "batch_matmul", "build", "matmul", "product"]

Definition = tc.KernelDefinition | tc.ProgramDefinition


def matmul(
    m: Extent,
    n: Extent,
    k: Extent,
    *,
    dtype: DType = f32,
    right: DType | None = None,
    total: DType | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    packed: bool = False,
    bias: bool = False,
    scale: bool = False,
    residual: bool = False,
    activation: Activation | None = None,
    by: DType | None = None,
    schedule: Panels | None = None,
    result: DType | None = None,
    machine: Machine | None = None,
    tiling: Tiling | None = None,
) -> Definition:
    """A kernel: c[m, n] = activation(scale[n] * (a[m, k] @ b[k, n]) + bias[n] + residual[m, n]).

    right        b's type, where it isn't a's: i8 beside u8
    total        the type that is summed in: f32, or i32, of narrower operands, if not said
    transpose_a  a is given as [k, m]; transpose_b: b as [n, k]
    packed       b comes as `kernel.pack(b)` makes it: of [k, n], or with transpose_b of [n, k], as nn.Linear has it
    bias         an operand is added to each row; scale: another one multiplies it before; residual: one of c's
                 type is added to c. Scaled integers have scale and bias in f32
    activation   a function of the sum, such as tc.gelu
    result       c's type: `total` where that is said; else the operands', or of integers that of the sum
    by           tf32: operands of f32 are rounded to that as they are multiplied, on a GPU
    machine      what it is built for, by its mappings: `tc.machine()`, where calls run, or another one:
                 `tc.machine("avx2")`, `tc.machine("sm_80")`. On a GPU long sums may be split; then it is a program
    schedule     how, on a processor; `tiling`: elsewhere
    """
    return MATMUL(**locals())


def _checked(
    problem: Problem, plan: Panels | FewRows | Tiling | Vectors | None, machine: Machine
) -> Definition | None:
    """A program around the product of copies, if operands lie badly."""
    if problem.packed and not machine.is_processor:
        raise ValueError("this machine takes b as it is: pack it for processors")
    if problem.by is not None and machine.is_processor:
        raise ValueError(f"a processor multiplies {problem.dtype} as it is, not by {problem.by}")
    if is_worth_copying(problem, machine):
        product = build(lying_well(problem, machine), plan, machine)
        return with_copies(problem, product, machine)
    return None


def product(
    m: Extent,
    n: int,
    k: int,
    *,
    dtype: DType = tc.bf16,
    right: DType | None = None,
    total: DType | None = None,
    result: DType | None = None,
    transpose_b: bool = False,
    packed: bool = False,
    bias: bool = False,
    scale: bool = False,
    residual: bool = False,
    activation: Activation | None = None,
    machine: Machine | None = None,
    plan: Packs | None = None,
) -> tc.KernelDefinition:
    """A kernel: c[m, n] = activation(a[m, k] @ b[k, n]), by instructions for products of packs.

    dtype       a's type: bf16, i8, u8, or any other, for which there may be no instruction
    right       b's: a's, or i8 where that is u8
    total       what is summed in, and the bias's type; result: c's, to which `activation(…)` is converted in
                the end: as in `matmul`
    packed      b comes as `kernel.pack(b)` makes it, with transpose_b of [n, k]
    bias        an operand, and so are scale and residual: as in `matmul`
    activation  a function of the sum, such as tc.gelu
    machine     the processor that it is built for, if it isn't that at hand
    """
    return PRODUCT(**locals())


def _product(
    *, dtype: DType, right: DType | None, transpose_b: bool, packed: bool, **options: Any
) -> Problem:
    require_numbers("product", k=options["k"])
    if transpose_b and not packed:
        raise tc.CompileError(
            "b is [k, n] here, or packed from [n, k]", hint="packed=True, and pass kernel.pack(b)"
        )
    right = right or (tc.i8 if dtype is u8 else dtype)
    return problem_of(dtype=dtype, right=right, transpose_b=transpose_b, packed=packed, **options)


def _on_processors(problem: Problem, plan: Packs | None, machine: Machine) -> None:
    if not machine.is_processor:
        raise tc.CompileError(
            "products by packs are for processors", hint="tc.kernels.matmul has others"
        )


def batch_matmul(
    batch: Extent | Extents | tuple[Extents, Extents],
    m: Extent,
    n: Extent,
    k: Extent,
    *,
    dtype: DType = f32,
    total: DType | None = None,
    result: DType | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    packed: bool = False,
    bias: bool = False,
    scale: bool = False,
    residual: bool = False,
    by_rows: bool = False,
    activation: Activation | None = None,
    machine: Machine | None = None,
    schedule: Panels | None = None,
) -> tc.KernelDefinition:
    """A kernel: c[..., m, n] = activation(a[..., m, k] @ b[..., k, n]), with bias, scale and residual.

    batch    what stands in front of the last two axes: a number or numbers of both, or numbers of a and of b
    by_rows  bias and scale are [m], of c's rows
    machine  the processor that it is built for, if it isn't that at hand

    All else is as in `matmul`; a packed b is the same for all products.
    """
    return BATCH_MATMUL(**locals())


def _batches(*, batch: Any, **options: Any) -> Problem:
    axes: Any = batch if isinstance(batch, tuple | list) else (batch,)
    is_of_both = len(axes) == 2 and all(isinstance(part, tuple | list) for part in axes)
    left, right = axes if is_of_both else (axes, axes)
    return problem_of(batch=(tuple(left), tuple(right)), **options)


def _work(problem: Problem, machine: Machine) -> Work:
    extents = (problem.products, problem.height, problem.n, problem.k)
    products = prod(n if isinstance(n, int) else 1 for n in extents)
    a, b, further, c = problem.types
    return work_of_products(products, problem.multiplied, (a, b, *further, c), machine)


MATMUL: KernelOperator[Problem, Panels | FewRows | Tiling | Vectors, Definition] = operator(
    "matmul", problem_of, candidates,
    {FewRows: few_rows_kernel, Panels: panels, Tiling: tiles, Vectors: gemv},
    instead=_checked, work=_work, smallest=smallest,
)  # fmt: skip
PRODUCT: KernelOperator[Problem, Packs, tc.KernelDefinition] = operator(
    "product", _product, candidates_of_packs, {Packs: packs}, instead=_on_processors, work=_work
)
BATCH_MATMUL: KernelOperator[Problem, Panels, tc.KernelDefinition] = operator(
    "batch_matmul", _batches, candidates_of_batches, {Panels: panels}, work=_work, kinds=(FewRows,)
)
build = MATMUL.build
