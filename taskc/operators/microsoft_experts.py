"""Mixtures of experts: MoE, and QMoE with weights of few bits.

    y[t] = sum of share[t, e] * (act(x[t] @ fc1[e].T) @ fc2[e].T) over the k experts that the router prefers

A few rows gather the weights of their own experts. With more of them, those of an expert of few bits are gathered, and
every expert of floats computes all rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import taskc as tc
from taskc import f32, i32, i64
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

_HEIGHT = 8  # rows of an expert that share its weights in registers


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
    layers = [layer for layer in (first, second, third) if layer is not None]
    slots = None
    if isinstance(count, int) and count * chosen < first.experts:
        slots = _slot_each(places)
    elif all(layer.words is not None for layer in layers):
        slots = _slots_of_experts(places, first.experts)

    def results(left: TensorHandle) -> TensorHandle:
        gate = None if third is None else _product(third, left, slots)
        return _product(second, _activated(call, _product(first, left, slots), gate), slots)

    if slots is None:
        y = results(reshaped(rows, 1, count, rows.shape[1]))
        share = total([_chosen_share(places, shares, number) for number in range(chosen)])
        dtype = y.dtype
        parts = computed(y.shape, lambda e, t, c: (share((t, e)) * y[e, t, c]).to(dtype))
        return reshaped(folded("sum", parts, (0,), keepdims=False), *x.shape)
    row = slots.row
    y = results(
        computed((slots.count, slots.height, rows.shape[1]), lambda s, i, q: rows[row(s, i), q])
    )
    mixed = total([_term(y, shares, slots, number) for number in range(chosen)])
    return reshaped(computed((count, y.shape[2]), lambda *at: mixed(at)), *x.shape)


@dataclass(frozen=True, slots=True)
class _Slots:
    """Products, each of `height` rows by the weights of one expert.

    expert  slot -> expert
    row     (slot, i) -> the row of x
    place   (row of x, number of its choice) -> (slot, i)
    """

    count: Extent
    height: int
    expert: Function
    row: Function
    place: Function


def _slot_each(places: TensorHandle) -> _Slots:
    """A slot for each choice of each row."""
    count, chosen = places.shape
    return _Slots(
        count * chosen,
        1,
        tc.function(lambda s: places[s // chosen, s % chosen]),
        tc.function(lambda s, i: s // chosen),
        tc.function(lambda t, number: (t * chosen + number, 0)),
    )


def _slots_of_experts(places: TensorHandle, experts: int) -> _Slots:
    """Slots of several rows that chose the same expert; the last one of an expert may have fewer."""
    rows, chosen = places.shape
    count, height = rows * chosen, _HEIGHT
    slots = (count + height - 1) // height + experts  # at most

    @tc.function
    def choice(n: Element) -> Computed:
        return places[n // chosen, n % chosen]

    takes = computed((count, experts), lambda n, e: i32(1) if choice(n) == e else i32(0))
    ranks = handle_of(op.CumSum(takes, np.int64(0)))  # how many up to a choice take an expert
    needed = computed((experts,), lambda e: (ranks[count - 1, e] + height - 1) // height)
    ends = handle_of(op.CumSum(needed, np.int64(0)))
    behind = computed((slots, experts), lambda s, e: i32(1) if ends[e] <= s else i32(0))
    owners = folded("sum", behind, (1,), keepdims=False)

    @tc.function
    def begin(e: Element) -> Computed:
        return (ends[e] - needed[e]) * height

    spots = computed((count,), lambda n: (begin(choice(n)) + ranks[n, choice(n)] - 1).to(i64))
    sources = computed((count,), lambda n: (n // chosen).to(i32))
    none = computed((slots * height,), lambda n: i32(0))
    filled = handle_of(op.ScatterElements(none, spots, sources))
    return _Slots(
        slots,
        height,
        tc.function(lambda s: min(owners[s], experts - 1)),
        tc.function(lambda s, i: filled[s * height + i]),
        tc.function(
            lambda t, number: (
                spots[t * chosen + number] // height,
                spots[t * chosen + number] % height,
            )
        ),
    )


def _product(layer: _Layer, left: TensorHandle, slots: _Slots | None) -> TensorHandle:
    """left[slots, m, columns] by the weights of each slot's expert; without slots left[1, m, columns] by all."""
    weight, dtype, bias = layer.weight, left.dtype, layer.bias
    own, height = left.shape[0], left.shape[1]
    count: Extent = layer.experts if slots is None else slots.count
    expert: Function = tc.function(lambda s: s) if slots is None else slots.expert
    if layer.words is not None and slots is not None:
        sums = layer.words.products(left, computed((count,), lambda s: expert(s).to(i32)))
    else:
        right = layer.whole
        if right is None or slots is not None:
            shape = count, layer.rows, layer.columns
            right = computed(shape, lambda s, j, q: weight(expert(s), j, q))
        kernel = kernel_of(
            batch_matmul, ((own,), (count,)), height, layer.rows, layer.columns, dtype=dtype,
            total=wide(dtype), result=dtype, transpose_b=True,
        )  # fmt: skip
        sums = kernel(left, right)
    if bias is None:
        return sums
    return computed(sums.shape, lambda s, i, j: sums[s, i, j] + bias[expert(s), j])


def _term(y: TensorHandle, shares: TensorHandle, slots: _Slots, number: int) -> Function:
    """A row's share of one of its experts, times the expert's result."""
    place = slots.place

    @tc.function
    def term(at: Computed) -> Computed:
        slot, i = place(at[0], number)
        return shares[at[0], number] * y[slot, i, at[1]]

    return term


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
