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
from taskc.kernels.signatures import Extent
from taskc.tune.choose import choose, remembered
from taskc.tune.space import Operator

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
    schedule: Schedule | None = None,
    machine: Machine | None = None,
    plan: Plan | None = None,
) -> KernelDefinition | ProgramDefinition:
    """A kernel, or a program, of q, k, v, and a mask if there is one: y = softmax(q @ k.T * scale + mask) @ v.

        q[batches, heads, length, features]         k[batches, kv_heads, keys, features]
        y[batches, heads, length, value_features]   v[batches, kv_heads, keys, value_features]

    kv_heads  a divisor of heads: neighbours share a head of k and v. As many as heads if not said
    causal    the query i sees the keys 0 to i + offset. If not said, the offset is keys - length: the last
              query sees all keys, also those of a cache that came before. PyTorch's is_causal has 0
    mask      the type of a fourth operand that broadcasts to [batches, heads, length, keys]: floats are
              added to the scores; of tc.boolean, True says that a key is seen
    scale     1 / sqrt(features) if not said
    machine   what it is built for, by its mappings: `tc.machine()`, where calls run, or `tc.machine("sm_80")`
    schedule  how, on a processor; `plan`: elsewhere

    A query that sees no key gets zeros, as in PyTorch and by ONNX's Attention. Numbers of 16 bits are
    converted as they are read, and the result is rounded once.
    """
    return _attention(**locals())


def _attention(
    *, machine: Machine | None, schedule: Schedule | None, plan: Plan | None, **options: Any
) -> KernelDefinition | ProgramDefinition:
    machine = machine or tc.machine()
    return build(problem_of(**options), schedule if machine.is_processor else plan, machine)


@remembered
def build(
    problem: Problem, plan: FewQueries | Schedule | Plan | None, machine: Machine
) -> KernelDefinition | ProgramDefinition:
    """Build it by this plan, or by the one that is chosen."""
    if problem.is_empty:
        return problem.kernel(1, _nothing)
    plan = plan or choose(ATTENTION, problem, machine)
    if isinstance(plan, FewQueries):
        return few_queries_kernel(problem, plan)
    if isinstance(plan, Schedule):
        return tiles(problem, plan)
    return in_parts(problem, plan, machine) if plan.part else products(problem, plan, machine)


@tc.function
def _nothing(q: Any, k: Any, v: Any, mask: Any, y: Any) -> Any:
    pass


ATTENTION = Operator("attention", candidates, build, (FewQueries, Plan, Schedule))
