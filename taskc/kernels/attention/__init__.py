"""Attention with an online softmax (flash attention): softmax(q @ k.T * scale + mask) @ v for each head.

The scores are never stored as a whole: some keys at a time are scored, raised to powers of e less the
largest score so far, and multiplied by their values; where a larger score comes up, what has been summed
is scaled down. problem.py is what is computed, plan.py how. The algorithms (gpu.py has those of GPUs):

tiles     on processors, many queries
few       on processors, few queries, as in decoding
products  on GPUs: matrix products of a tile of queries with all keys, step by step
parts     on GPUs: few queries of many keys, by parts of these
"""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import DType, KernelDefinition, Machine, ProgramDefinition, TensorType, f32
from taskc.kernels.attention.few import few_queries_kernel
from taskc.kernels.attention.gpu import in_parts, products
from taskc.kernels.attention.plan import FewQueries, Plan, Schedule, candidates
from taskc.kernels.attention.problem import Problem, problem_of
from taskc.kernels.attention.tiles import tiles
from taskc.kernels.operator import KernelOperator, operator
from taskc.kernels.signatures import Extent, Value

__all__ = ["Plan", "Problem", "Schedule", "attention", "build"]


def attention(
    batches: Extent,
    heads: int,
    length: Extent,
    keys: Extent,
    features: int,
    *,
    kv_heads: int | None = None,
    value_features: int | None = None,
    causal: bool = False,
    offset: Extent | None = None,
    mask: TensorType | None = None,
    scale: float | None = None,
    dtype: DType = f32,
    window: Extent | None = None,
    lengths: bool = False,
    sinks: bool = False,
    cap: float = 0.0,
    ahead: int = 0,
    schedule: Schedule | None = None,
    machine: Machine | None = None,
    plan: Plan | None = None,
) -> KernelDefinition | ProgramDefinition:
    """A kernel, or a program, of q, k, v, and options as operands: y = softmax(q @ k.T * scale + mask) @ v.

        q[batches, heads, length, features]         k[batches, kv_heads, keys, features]
        y[batches, heads, length, value_features]   v[batches, kv_heads, keys, value_features]

    kv_heads  a divisor of heads: neighbours share a head of k and v. As many as heads if not said
    causal    the query i sees the keys 0 to i + offset. If not said, the offset is keys - length: the last
              query sees all keys, also those of a cache that came before. PyTorch's is_causal has 0
    mask      the type of a fourth operand that broadcasts to [batches, heads, length, keys]: floats are
              added to the scores; of tc.boolean, True says that a key is seen
    scale     1 / sqrt(features) if not said
    ahead     of a causal attention: so many keys more than by its offset
    window    of a causal attention: a query sees only so many keys, the last ones that it would see without
    lengths   whether an operand tc.i32[batches] says how many keys each batch has; where it is fewer than `keys`, the
              offset is less by as many, so that the last query sees the last key that there is
    sinks     whether an operand [heads] has scores of which every query sees its head's, as that of a key without value
    cap       each score becomes cap * tanh(score / cap), before the mask is added; 0: it stays as it is
    machine   what it is built for, by its mappings: `tc.machine()`, where calls run, or `tc.machine("sm_80")`
    schedule  how, on a processor; `plan`: elsewhere

    A query that sees no key gets zeros, as in PyTorch and by ONNX's Attention. Numbers of 16 bits are
    converted as they are read, and the result is rounded once.
    """
    return _attention(**locals())


def _attention(*, plan: Plan | None, **options: Any) -> KernelDefinition | ProgramDefinition:
    return ATTENTION(tiling=plan, **options)


def _on_gpu(problem: Problem, plan: Plan, machine: Machine) -> KernelDefinition | ProgramDefinition:
    return (in_parts if plan.part else products)(problem, plan, machine)


def _empty(problem: Problem, plan: object, machine: Machine) -> KernelDefinition | None:
    return problem.kernel(1, _nothing) if problem.is_empty else None


@tc.function
def _nothing(q: Value, k: Value, v: Value, extra: Value, y: Value) -> None:
    pass


ATTENTION: KernelOperator[Problem, FewQueries | Plan | Schedule, KernelDefinition | ProgramDefinition] = operator(
    "attention", problem_of, candidates,
    {FewQueries: few_queries_kernel, Plan: _on_gpu, Schedule: tiles}, instead=_empty,
)  # fmt: skip
build = ATTENTION.build
