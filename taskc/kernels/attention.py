"""Attention with an online softmax: softmax(q @ k.T * scale + mask) @ v for each head.

The scores are never stored as a whole: some keys at a time are scored, raised to powers of e less the
largest score so far, and multiplied by their values; where a larger score comes up, what has been summed
is scaled down. On processors: for many queries see attention_tiles.py, for few, as in decoding,
attention_few.py. Elsewhere: attention_products.py, and attention_parts.py for few queries of many keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import taskc as tc
from taskc import (
    CompileError,
    DType,
    KernelDefinition,
    Machine,
    ProgramDefinition,
    TensorType,
    boolean,
    f32,
)
from taskc.kernels.attention_few import MOST, few_queries
from taskc.kernels.attention_parts import in_parts
from taskc.kernels.attention_plan import Plan, choose_plan
from taskc.kernels.attention_problem import Extent, Problem, types_of
from taskc.kernels.attention_products import products
from taskc.kernels.attention_tiles import Schedule, choose, tiles

__all__ = ["Plan", "Schedule", "attention", "choose", "choose_plan"]


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
    groups = heads if kv_heads is None else kv_heads
    if (groups < 1 or heads % groups) and groups != heads:
        raise CompileError(f"{heads} heads can't share {groups} heads of k and v evenly")
    if features < 1:
        raise CompileError(f"scores are products of features, of which there are {features}")
    if offset is not None and not causal:
        raise CompileError("an offset says what a causal attention sees: causal=True is missing")
    if mask is not None:
        _check_mask(mask, (batches, heads, length, keys))
    ahead = keys - length if offset is None else offset
    if not causal or (isinstance(keys, int) and keys == 0):
        ahead = None
    problem = Problem(
        batches=batches,
        groups=groups,
        share=heads // groups if groups else 1,
        length=length,
        keys=keys,
        features=features,
        results=features if value_features is None else value_features,
        ahead=ahead,
        mask=mask,
        scale=features**-0.5 if scale is None else scale,
        dtype=dtype,
    )
    if any(isinstance(n, int) and n == 0 for n in (batches, heads, length, problem.results)):
        return _kernel(problem, 1, _nothing)
    machine = machine or tc.machine()
    if not machine.is_processor:
        plan = plan or choose_plan(problem, machine)
        if plan.part:
            return in_parts(problem, plan, machine)
        return _kernel(problem, *products(problem, plan, machine))
    tile = schedule or choose(problem, machine)
    if schedule is None and isinstance(length, int) and 0 < length * problem.share <= MOST:
        return _kernel(problem, tile.lanes, _groups(problem, tile.lanes, machine))
    single = None
    if not isinstance(length, int):
        single = few_queries(replace(problem, length=1, share=1), tile.lanes, machine)
    return _kernel(problem, tile.lanes, tiles(problem, tile, single))


@tc.function
def _nothing(q, k, v, mask, y):
    pass


def _groups(problem: Problem, lanes: int, machine: tc.Machine) -> Callable[..., Any]:
    """Few queries: a block has those of all heads that share one of k and v."""
    block = few_queries(problem, lanes, machine)

    @tc.function
    def blocks(q, k, v, mask, y):
        for batch, group in tc.tiles((problem.batches, problem.groups), by=(1, 1)):
            block(q, k, v, mask, y, batch, group * problem.share, group)

    return blocks


def _check_mask(mask: TensorType, whole: tuple[Extent, ...]) -> None:
    if not (mask.dtype.is_float or mask.dtype is boolean):
        raise CompileError(f"a mask has floats, which are added, or bools; {mask} has neither")
    pairs = zip(mask.shape[::-1], whole[::-1], strict=False)
    fits = all(extent == 1 or extent is full or extent == full for extent, full in pairs)
    if not fits or not 1 <= mask.rank <= 4:
        raise CompileError(
            f"a mask {mask} can't be broadcast to {whole}",
            hint="its axes are batches, heads, queries and keys, or the last of these",
        )


def _kernel(problem: Problem, workers: int, blocks: Callable[..., Any]) -> KernelDefinition:
    """The blocks as a kernel, with the parameters that the problem has."""
    mask_type = problem.mask
    queries, keys, values, result = types_of(problem)
    if mask_type is None:

        @tc.kernel(workers=workers)
        def attention(q: queries, k: keys, v: values, y: tc.out[result]):
            blocks(q, k, v, None, y)

    else:

        @tc.kernel(workers=workers)
        def attention(q: queries, k: keys, v: values, mask: mask_type, y: tc.out[result]):
            blocks(q, k, v, mask, y)

    return attention
