"""Operators of com.microsoft that carry a state from one call to the next: LinearAttention, CausalConvWithState."""

from __future__ import annotations

from math import sqrt
from typing import Any

import taskc as tc
from taskc import f32
from taskc.kernels.linear_attention import linear_attention
from taskc.operators.call import Call, Made, operator
from taskc.operators.files import MICROSOFT
from taskc.operators.microsoft import require_default
from taskc.operators.movement import joined, transposed
from taskc.operators.operands import are_equal, converted, kernel_of, total
from taskc.operators.tensors import Extent, Function, computed, reshaped
from taskc.programs.tracing import Computed, Element, TensorHandle

# For each rule, whether the state decays, and whether it adds only what it doesn't know yet.
_RULES = {
    "linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True),
}  # fmt: skip


@operator("LinearAttention", domain=MICROSOFT, ranks=(3, 3, 3, 4, 3, 3))
def attend_by_state(call: Call) -> Made:
    require_default(call, state_window=0)
    q, k, v, past, decay, rate = call.tensors(6)
    rule = call.attribute("update_rule", "gated_delta")
    if rule not in _RULES:
        raise call.node.error(f"taskc doesn't have its attribute 'update_rule' of '{rule}'")
    decays, has_rate = _RULES[rule]
    if (decays and decay is None) or (has_rate and rate is None):
        raise call.node.error(f"its rule '{rule}' needs decays and rates that it doesn't have")
    heads, kv_heads = call.count("q_num_heads"), call.count("kv_num_heads")
    if heads % kv_heads and kv_heads % heads:
        raise call.node.error(
            f"{heads} heads of queries and {kv_heads} of keys share nothing evenly"
        )
    batches, steps, _ = q.shape
    features = call.number(q.shape[2], "its number of features") // heads
    wide = call.number(v.shape[2], "its number of features") // kv_heads
    shape, dtype = (batches, steps, kv_heads, features), q.dtype

    @tc.function
    def factor(b: Element, t: Element, h: Element, i: Element) -> Computed:
        if not decays:
            return f32(1)
        elif are_equal(decay.shape[2], kv_heads):
            return tc.exp(decay[b, t, h].to(f32))
        else:
            return tc.exp(decay[b, t, h * features + i].to(f32))

    @tc.function
    def step(b: Element, t: Element, h: Element) -> Computed:
        if not has_rate:
            return f32(1)
        elif are_equal(rate.shape[2], 1):
            return rate[b, t, 0].to(f32)
        else:
            return rate[b, t, h].to(f32)

    before = (batches, kv_heads, features, wide)
    state_type = f32 if past is None else past.dtype
    states = computed(before, lambda *at: f32(0)) if past is None else converted(past, f32)
    kernel = kernel_of(
        linear_attention, batches, steps, heads, kv_heads, features, wide, delta=has_rate,
        scale=call.attribute("scale") or 1 / sqrt(features), dtype=dtype,
    )  # fmt: skip
    operands = (
        reshaped(q, batches, steps, heads, features),
        reshaped(k, *shape),
        reshaped(v, batches, steps, kv_heads, wide),
        computed(shape, factor),
        computed(shape[:3], step),
        states,
    )
    made: Any = kernel(*operands)
    y, present = made
    return reshaped(y, batches, steps, max(heads, kv_heads) * wide), converted(present, state_type)


@operator("CausalConvWithState", domain=MICROSOFT)
def causal_convolution(call: Call) -> Made:
    """A convolution of each channel with its filter, over the positions up to its own and those of the state."""
    require_default(
        call, ndim=1, state_window=0, state_length=0, state_channels_last=-1, input_channels=0,
        input_channel_offset=0, state_update_capacity=0,
    )  # fmt: skip
    activation = call.attribute("activation", "none")
    if activation not in ("none", "silu", "swish"):
        raise call.node.error(f"taskc doesn't have its attribute 'activation' of '{activation}'")
    x, w, bias, past = call.tensors(4)
    is_last, apart = bool(call.attribute("channels_last", 0)), call.count("dilation")
    channels, taps = w.shape[0], call.number(w.shape[2], "its number of taps")
    length, end = (taps - 1) * apart, x.shape[1 if is_last else 2]
    batches, dtype = x.shape[0], x.dtype
    rows = _channels_first(x, channels) if is_last else x
    if past is None:
        before = computed((batches, channels, length), lambda *at: dtype(0))
    else:
        before = _channels_first(past, channels) if is_last else past
    whole = joined([before, rows], 2, computed) if length else rows

    def tap(n: int) -> Function:
        return tc.function(
            lambda at: whole[at[0], at[1], at[2] + n * apart].to(f32) * w[at[1], 0, n].to(f32)
        )

    sums = total([tap(n) for n in range(taps)])

    @tc.function
    def value(*at: Element) -> Computed:
        plain = sums(at) if bias is None else sums(at) + bias[at[1]].to(f32)
        return (plain if activation == "none" else plain * tc.sigmoid(plain)).to(dtype)

    y = computed((batches, channels, end), value)
    present = computed((batches, channels, length), lambda b, c, t: whole[b, c, end + t])
    if not is_last:
        return y, present
    shape = batches, length, *x.shape[2:]
    return transposed(y, (0, 2, 1)).reshape(*x.shape), transposed(present, (0, 2, 1)).reshape(
        *shape
    )


def _channels_first(x: TensorHandle, channels: Extent) -> TensorHandle:
    """[batches, length, ...] as [batches, channels, length]"""
    return transposed(reshaped(x, x.shape[0], x.shape[1], channels), (0, 2, 1))
