"""Linear attention: a state of each head, a matrix, that every step decays and adds to."""

from __future__ import annotations

import taskc as tc
from taskc import DType, KernelDefinition, Machine, f32, spatial
from taskc.kernels.signatures import Extent


def linear_attention(
    batches: Extent, steps: Extent, heads: int, kv_heads: int, features: int, value_features: int,
    *, delta: bool, scale: float, dtype: DType = f32, machine: Machine,
) -> KernelDefinition:  # fmt: skip
    """For each step, with e the step's decay of each feature, and r its rate:

        state = e * state + r * outer(k, v - k @ (e * state))        the last product only where `delta` says so
        y = scale * (q @ state)

    Neighbouring heads of q share one of k and v, or the other way around where there are fewer of q. The columns of a
    state are independent of each other: a worker has one.
    """
    lanes = machine.lanes
    groups, shared = max(1, heads // kv_heads), max(1, kv_heads // heads)

    @tc.kernel(workers=lanes)
    def linear_attention(
        q: tc.typed[dtype[batches, steps, heads, features]],
        k: tc.typed[dtype[batches, steps, kv_heads, features]],
        v: tc.typed[dtype[batches, steps, kv_heads, value_features]],
        decays: tc.typed[f32[batches, steps, kv_heads, features]],
        rates: tc.typed[f32[batches, steps, kv_heads]],
        past: tc.typed[f32[batches, kv_heads, features, value_features]],
        y: tc.out[dtype[batches, steps, kv_heads * groups, value_features]],
        present: tc.out[f32[batches, kv_heads, features, value_features]],
    ) -> None:
        for b, h, first in tc.tiles((batches, kv_heads, value_features), by=(1, 1, lanes)):
            state = tc.shared(f32[features, lanes])
            for j in spatial(lanes):
                for i in range(features):
                    if first + j < value_features:
                        state[i, j] = past[b, h, i, first + j]
            for t in range(steps):
                for j in spatial(lanes):
                    column = first + j
                    if column < value_features:
                        known = f32(0)
                        for i in range(features):
                            state[i, j] *= decays[b, t, h, i]
                            if delta:
                                known += state[i, j] * k[b, t, h, i].to(f32)
                        added = rates[b, t, h] * (v[b, t, h, column].to(f32) - known)
                        for i in range(features):
                            state[i, j] += k[b, t, h, i].to(f32) * added
                        for g in range(groups):
                            total = f32(0)
                            for i in range(features):
                                total += q[b, t, h * groups // shared + g, i].to(f32) * state[i, j]
                            y[b, t, h * groups + g, column] = (total * scale).to(dtype)
            for j in spatial(lanes):
                for i in range(features):
                    if first + j < value_features:
                        present[b, h, i, first + j] = state[i, j]

    return linear_attention
