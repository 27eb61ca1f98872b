"""Mixtures of experts: MoE, and QMoE with weights of few bits.

    y[t] = sum of share[t, e] * (act(x[t] @ fc1[e].T) @ fc2[e].T) over the k experts that the router prefers

A few rows gather the weights of their own experts; with more of them, every expert computes all rows.
"""

from __future__ import annotations

from collections.abc import Callable

import taskc as tc
from taskc import f32, i32
from taskc.dataclass import dataclass
from taskc.kernels.matmul import batch_matmul
from taskc.kernels.signatures import wide
from taskc.operators.call import Call, Made, operator
from taskc.operators.elementwise import gelu_by_tanh
from taskc.operators.files import MICROSOFT
from taskc.operators.microsoft import require_default, require_no_inputs
from taskc.operators.microsoft_weights import ExpertWeights, expert_weights, number_at
from taskc.operators.norms import softmax_along
from taskc.operators.op import op
from taskc.operators.operands import kernel_of, size, total
from taskc.operators.reductions import folded
from taskc.operators.tensors import Extent, Function, computed, handle_of, reshaped
from taskc.programs.tracing import Computed, Element, TensorHandle


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights w[experts, rows, columns] of one product, and a bias [experts, rows].

    whole   all weights, where they are floats
    weight  (expert, row, column) -> the float
    words   all weights, where they are constants of few bits that a kernel takes as they are
    """

    experts: int
    rows: int
    columns: int
    whole: TensorHandle | None
    weight: Function
    bias: TensorHandle | None
    words: ExpertWeights | None = None


@operator("MoE", domain=MICROSOFT)
def experts(call: Call) -> Made:
    call.require_kernel()

    def layer(weights: int, bias: int) -> _Layer:
        w = call.tensor(weights)
        if len(w.shape) != 3:
            raise call.node.error(f"its weights {list(w.shape)} aren't one matrix an expert")
        count, rows, columns = (call.number(n, "an extent of its weights") for n in w.shape)
        own = call.tensor(bias) if call.has(bias) else None
        return _Layer(count, rows, columns, w, tc.function(lambda e, j, q: w[e, j, q]), own)

    third = layer(6, 7) if call.has(6) else None
    return _of_chosen(call, layer(2, 3), layer(4, 5), third, None)


@operator("QMoE", domain=MICROSOFT)
def quantized_experts(call: Call) -> Made:
    call.require_kernel()
    require_default(call, quant_type="int")
    require_no_inputs(
        call, fc1_global_scale=15, fc2_global_scale=16, fc1_act_scale=17, fc2_act_scale=18
    )
    if call.attribute("weights_prepacked", -1) == 1:
        raise call.node.error("taskc doesn't have its attribute 'weights_prepacked' of 1")
    layers = [_quantized(call, number) if call.has(3 * number + 2) else None for number in range(3)]
    first, second, third = layers
    if first is None or second is None:
        raise call.node.error("it has no weights")
    return _of_chosen(call, first, second, third, call.tensor(14) if call.has(14) else None)


def _quantized(call: Call, number: int) -> _Layer:
    """The weights of one product: packed, with a scale for each row, or for each block of a row."""
    bits = call.attribute(f"fc{number + 1}_expert_weight_bits") or call.attribute(
        "expert_weight_bits", 4
    )
    if bits not in (2, 4, 8):
        raise call.node.error(f"its weights have {bits} bits, and taskc has those of 2, 4 and 8")
    block, dtype = call.attribute("block_size") or 0, call.dtype(0)
    w, scales = call.tensor(3 * number + 2), call.tensor(3 * number + 3)
    bias = call.tensor(3 * number + 4) if call.has(3 * number + 4) else None
    zeros = call.tensor(11 + number) if call.has(11 + number) else None
    experts, rows, width = (call.number(extent, "an extent of its weights") for extent in w.shape)
    middle = 1 << bits - 1

    @tc.function
    def weight(e: Element, j: Element, q: Element) -> Computed:
        group = (e, j, q // block) if block else (e, j)
        code = number_at(w, (e, j, q), bits)
        zero = middle if zeros is None else number_at(zeros, group, bits)
        return ((code - zero).to(f32) * scales[group].to(f32)).to(dtype)

    given = call.given(3 * number + 2), call.given(3 * number + 3), call.optional(11 + number)
    words = expert_weights(bits, block, *given)
    return _Layer(experts, rows, width * 8 // bits, None, weight, bias, words)


def _of_chosen(
    call: Call, first: _Layer, second: _Layer, third: _Layer | None, mixing: TensorHandle | None
) -> TensorHandle:
    """mixing  the experts' shares for each row, where these aren't the softmax of what chooses them"""
    require_default(call, use_sparse_mixer=0, swiglu_limit_after_activation=0)
    x, logits = call.tensor(0), call.tensor(1)
    count, chosen = size(x.shape[:-1]), call.count("k")
    rows = reshaped(x, count, x.shape[-1])
    places, shares = _routes(call, logits, mixing, chosen)
    is_few = isinstance(count, int) and count * chosen < first.experts
    slots = count * chosen if is_few else first.experts

    @tc.function
    def expert(slot: Element) -> Computed:
        return places[slot // chosen, slot % chosen] if is_few else slot

    def biased(layer: _Layer, sums: TensorHandle) -> TensorHandle:
        bias = layer.bias
        if bias is None:
            return sums
        return computed(sums.shape, lambda s, i, j: sums[s, i, j] + bias[expert(s), j])

    def product(layer: _Layer, left: TensorHandle) -> TensorHandle:
        """left[slots or 1, m, columns] by the weights of each slot's expert."""
        weight, dtype = layer.weight, left.dtype
        own, height = left.shape[0], left.shape[1]
        if layer.words is not None:
            chosen_ones = computed((slots,), lambda s: expert(s).to(i32))
            return biased(layer, layer.words.products(left, chosen_ones))
        if layer.whole is not None and not is_few:
            right = layer.whole
        else:
            shape = slots, layer.rows, layer.columns
            right = computed(shape, lambda s, j, q: weight(expert(s), j, q))
        kernel = kernel_of(
            batch_matmul, ((own,), (slots,)), height, layer.rows, layer.columns, dtype=dtype,
            total=wide(dtype), result=dtype, transpose_b=True,
        )  # fmt: skip
        return biased(layer, kernel(left, right))

    width = rows.shape[1]
    if is_few:
        left = computed((slots, 1, width), lambda s, i, q: rows[s // chosen, q])
    else:
        left = reshaped(rows, 1, count, width)
    hidden = _activated(call, product(first, left), None if third is None else product(third, left))
    y = product(second, hidden)
    if is_few:
        terms = [_term(y, shares, chosen, number) for number in range(chosen)]
        mixed = total(terms)
        return reshaped(computed((count, y.shape[2]), lambda *at: mixed(at)), *x.shape)
    share = total([_chosen_share(places, shares, number) for number in range(chosen)])
    dtype = y.dtype
    parts = computed(y.shape, lambda e, t, c: (share((t, e)) * y[e, t, c]).to(dtype))
    return reshaped(folded("sum", parts, (0,), keepdims=False), *x.shape)


def _term(y: TensorHandle, shares: TensorHandle, chosen: int, number: int) -> Function:
    """A row's share of one of its experts, times the expert's result."""
    return tc.function(lambda at: shares[at[0], number] * y[at[0] * chosen + number, 0, at[1]])


def _chosen_share(places: TensorHandle, shares: TensorHandle, number: int) -> Function:
    """The share that a row gives to an expert as its choice of this number, or 0."""
    return tc.function(lambda at: shares[at[0], number] if places[at[0], number] == at[1] else 0)


def _routes(
    call: Call, logits: TensorHandle, mixing: TensorHandle | None, chosen: int
) -> tuple[TensorHandle, TensorHandle]:
    """The experts of each row, and their shares, both [rows, chosen].

    ONNX Runtime's QMoE normalizes shares that it computes itself, whatever the attribute says.
    """
    _, places = op.TopK(logits, [chosen])
    places = handle_of(places)
    weights = softmax_along(logits, 1) if mixing is None else mixing
    own = computed(places.shape, lambda t, n: weights[t, places[t, n]])
    is_own = call.node.operator == "QMoE" and mixing is None
    if not (is_own or call.attribute("normalize_routing_weights", 0)):
        return places, own
    sums = folded("sum", own, (1,), keepdims=False)
    return places, computed(own.shape, lambda t, n: own[t, n] / sums[t])


_ACTIVATIONS: dict[str, Callable[..., Computed]] = {
    "relu": lambda x: max(x, 0),
    "silu": lambda x: x * tc.sigmoid(x),
    "gelu": lambda x: gelu_by_tanh(x),
    "identity": lambda x: x,
}


def _activated(call: Call, h: TensorHandle, gate: TensorHandle | None) -> TensorHandle:
    """The activation of the first product, and of the third where there is one."""
    name = call.attribute("activation_type", "relu")
    if name != "swiglu":
        if name not in _ACTIVATIONS:
            raise call.node.error(f"taskc doesn't have its attribute 'activation_type' of '{name}'")
        function = tc.function(_ACTIVATIONS[name])
        if gate is None:
            return computed(h.shape, lambda *at: function(h[at]))
        return computed(h.shape, lambda *at: function(h[at]) * gate[at])
    alpha, beta = call.attribute("activation_alpha", 1.0), call.attribute("activation_beta", 0.0)
    limit, fusion = call.attribute("swiglu_limit"), call.attribute("swiglu_fusion", 0)
    if (fusion == 0) != (gate is not None) or fusion not in (0, 1, 2):
        raise call.node.error(
            f"its attribute 'swiglu_fusion' is {fusion}, which doesn't fit its weights"
        )
    most: Extent | float = tc.inf if limit is None else limit
    slots, rows, width = h.shape
    half = width if fusion == 0 else width // 2

    @tc.function
    def first(s: Element, i: Element, j: Element) -> Computed:
        return h[s, i, 2 * j] if fusion == 1 else h[s, i, j]

    @tc.function
    def second(s: Element, i: Element, j: Element) -> Computed:
        if gate is not None:
            return gate[s, i, j]
        else:
            return h[s, i, 2 * j + 1] if fusion == 1 else h[s, i, half + j]

    @tc.function
    def value(*at: Element) -> Computed:
        g, linear = min(first(*at), most), min(max(second(*at), -most), most)
        return g * tc.sigmoid(alpha * g) * (linear + beta)

    return computed((slots, rows, half), value)
