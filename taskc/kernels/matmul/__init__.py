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
from taskc.kernels.signatures import Extent, require_numbers
from taskc.tune.choose import choose, remembered
from taskc.tune.space import Operator, Work

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
    return _matmul(**locals())


def _matmul(
    *, machine: Machine | None, schedule: Panels | None, tiling: Tiling | None, **options: Any
) -> Definition:
    machine, by = machine or tc.machine(), options["by"]
    if options["packed"] and not machine.is_processor:
        raise ValueError("this machine takes b as it is: pack it for processors")
    if by is not None and machine.is_processor:
        raise ValueError(f"a processor multiplies {options['dtype']} as it is, not by {by}")
    return build(problem_of(**options), schedule if machine.is_processor else tiling, machine)


@remembered
def build(
    problem: Problem, plan: Panels | FewRows | Tiling | Vectors | None, machine: Machine
) -> Definition:
    """Build it by this plan, or by the one that is chosen."""
    if is_worth_copying(problem, machine):
        product = build(lying_well(problem, machine), plan, machine)
        return with_copies(problem, product, machine)
    plan = plan or choose(MATMUL, problem, machine)
    if isinstance(plan, Panels):
        return panels(problem, plan)
    if isinstance(plan, FewRows):
        return few_rows_kernel(problem, plan)
    if isinstance(plan, Vectors):
        return gemv(problem, plan, machine)
    return tiles(problem, plan, machine)


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
    return _product(**locals())


def _product(
    *,
    dtype: DType,
    right: DType | None,
    machine: Machine | None,
    plan: Packs | None,
    **options: Any,
) -> tc.KernelDefinition:
    require_numbers("product", k=options["k"])
    if options["transpose_b"] and not options["packed"]:
        raise tc.CompileError(
            "b is [k, n] here, or packed from [n, k]", hint="packed=True, and pass kernel.pack(b)"
        )
    right = right or (tc.i8 if dtype is u8 else dtype)
    problem = problem_of(dtype=dtype, right=right, **options)
    return _build_product(problem, plan, machine or tc.machine())


@remembered
def _build_product(problem: Problem, plan: Packs | None, machine: Machine) -> tc.KernelDefinition:
    if not machine.is_processor:
        raise tc.CompileError(
            "products by packs are for processors", hint="tc.kernels.matmul has others"
        )
    return packs(problem, plan or choose(PRODUCT, problem, machine))


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
    return _batch_matmul(**locals())


def _batch_matmul(
    *, batch: Any, machine: Machine | None, schedule: Panels | None, **options: Any
) -> tc.KernelDefinition:
    problem = problem_of(batch=_batches(batch), **options)
    return _build_batches(problem, schedule, machine or tc.machine())


def _batches(batch: Any) -> tuple[Extents, Extents]:
    axes = batch if isinstance(batch, tuple | list) else (batch,)
    if len(axes) == 2 and all(isinstance(part, tuple | list) for part in axes):
        return tuple(axes[0]), tuple(axes[1])
    return tuple(axes), tuple(axes)


@remembered
def _build_batches(problem: Problem, plan: Panels | None, machine: Machine) -> tc.KernelDefinition:
    return panels(problem, plan or choose(BATCH_MATMUL, problem, machine))


def _work(problem: Problem, machine: Machine) -> Work:
    extents = (problem.products, problem.height, problem.n, problem.k)
    products = prod(n if isinstance(n, int) else 1 for n in extents)
    a, b, further, c = problem.types
    return work_of_products(products, problem.multiplied, (a, b, *further, c), machine)


MATMUL = Operator(
    "matmul", candidates, build, (FewRows, Panels, Tiling, Vectors), _work, smallest=smallest
)
PRODUCT = Operator(
    "product",
    candidates_of_packs,
    _build_product,
    (Packs,),
    _work,
)
BATCH_MATMUL = Operator(
    "batch_matmul",
    candidates_of_batches,
    _build_batches,
    (FewRows, Panels),
    _work,
)
