"""Attention and rotary position embeddings."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

import taskc as tc
from taskc import boolean, f32, f64, i32, i64
from taskc.kernels.attention import attention
from taskc.kernels.indices import place_of
from taskc.kernels.matmul import batch_matmul
from taskc.kernels.signatures import wide
from taskc.lang.sizes import Size
from taskc.operators.call import Call, Made, at_least, operator
from taskc.operators.movement import appended, transposed
from taskc.operators.norms import softmax_along
from taskc.operators.operands import are_equal, converted, element, kernel_of, ones, repeated
from taskc.operators.products import multiplied
from taskc.operators.reductions import folded
from taskc.operators.tensors import Extent, Function, Shape, State, Tensor, computed, rows_of
from taskc.programs.tracing import Computed, Element, TensorHandle

LOST = -1e30  # added to a score, it makes the key's share 0, if the query sees other keys
_ALL = 1 << 40  # keys, more than there are


_FLAT_OR_HEADS = range(3, 5)


@operator("Attention", since=23, ranks=(_FLAT_OR_HEADS,) * 3 + (at_least(1), 4, 4, 1))
def attend(call: Call) -> Made:
    q, k, v, mask = call.tensors(4)
    lengths = call.tensor(6) if call.has(6) else None
    is_flat = len(q.shape) == 3
    if len({len(x.shape) for x in (q, k, v)}) > 1 or call.has(4) != call.has(5):
        raise call.node.error("its queries, keys and values aren't of one form")
    if is_flat:
        if call.attribute("q_num_heads") is None or call.attribute("kv_num_heads") is None:
            raise call.node.error("of three axes, it doesn't say q_num_heads and kv_num_heads")
        q = _by_heads(call, q, "q_num_heads")
        k, v = (_by_heads(call, x, "kv_num_heads") for x in (k, v))
    before = call.shape(4)[2] if call.has(4) else 0
    if call.has(4):
        k, v = appended(call, 4, k, 2), appended(call, 5, v, 2)
    scale = call.attribute("scale")
    if are_equal(q.shape[3], 0) or are_equal(k.shape[1], 0) or are_equal(v.shape[1], 0):
        raise call.node.error("it has no heads or no features")
    scale = 1 / sqrt(q.shape[3]) if scale is None else scale
    if not call.wants(3):
        y, scores = _by_options(call, q, k, v, mask, lengths, before, scale), None
    else:
        y, scores = _in_steps(call, q, rows_of(k), rows_of(v), mask, lengths, before, scale)
    return flattened(y) if is_flat else y, k, v, scores


@operator("Attention", domain="taskc")
def attend_by_rows(call: Call) -> Tensor:
    """softmax(q @ k.T * scale + mask) @ v, found by a pass, for all shapes that these products take."""
    call.require_kernel()
    q, mask = call.tensor(0), call.tensor(3) if call.has(3) else None
    k, v = (
        x if isinstance(x, State) else call.tensor(at)
        for at, x in ((1, call.inputs[1]), (2, call.inputs[2]))
    )
    scale, axis = call.attribute("scale"), call.attribute("axis") % max(len(q.shape), len(k.shape))
    if scale is None:
        scale = 1.0 if are_equal(q.shape[-1], 0) else 1 / sqrt(q.shape[-1])
    if not _fits(q, k, v, mask) or axis != 3:
        return _as_written(call, q, rows_of(k), rows_of(v), mask, scale, axis)
    if mask is not None and _is_causal(call.given(3), q.shape[2], k.shape[2]):
        return by_kernel(q, k, v, None, scale, k.shape[2] - q.shape[2])
    return by_kernel(q, k, v, mask, scale)


def _fits(
    q: TensorHandle, k: TensorHandle | State, v: TensorHandle | State, mask: TensorHandle | None
) -> bool:
    """Whether the attention kernel takes operands of these shapes; it broadcasts none of them."""
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4:
        return False
    batches, heads, length, features = q.shape
    groups, keys = k.shape[1:3]
    pairs = [
        (batches, k.shape[0]), (batches, v.shape[0]), (groups, v.shape[1]), (keys, v.shape[2]),
        (features, k.shape[3]),
    ]  # fmt: skip
    if mask is not None:
        whole = (batches, heads, length, keys)
        if not 1 <= len(mask.shape) <= 4 or not (mask.dtype.is_float or mask.dtype is boolean):
            return False
        ends = zip(mask.shape[::-1], whole[::-1], strict=False)
        pairs += [(have, want) for have, want in ends if not are_equal(have, 1)]
    counts = heads, groups, features, v.shape[3]
    is_counted = all(isinstance(count, int) and count > 0 for count in counts)
    return is_counted and heads % groups == 0 and all(are_equal(*pair) for pair in pairs)


def _is_causal(mask: Tensor, length: Extent, keys: Extent) -> bool:
    """Whether a mask is known to be causal, with the last query seeing all keys."""
    if isinstance(mask, TensorHandle) or not (isinstance(length, int) and isinstance(keys, int)):
        return False
    if mask.shape[-2:] != (length, keys) or keys < length:
        return False
    seen = np.tri(length, keys, keys - length, dtype=bool)
    if mask.dtype == bool:
        return bool((mask == seen).all())
    wide = mask.astype(np.float32)  # in f16 there is no number as low as LOST
    return bool(np.where(seen, wide == 0, wide <= LOST).all())


def _as_written(
    call: Call, q: TensorHandle, k: TensorHandle, v: TensorHandle, mask: TensorHandle | None,
    scale: float, axis: int,
) -> TensorHandle:  # fmt: skip
    """The two products and the softmax, for shapes that the attention kernel doesn't take."""
    last = len(k.shape) - 1
    raw = multiplied(q, transposed(k, (*range(last - 1), last, last - 1)))
    shape = raw.shape if mask is None else call.broadcast(raw.shape, mask.shape)
    product, dtype = repeated(raw), raw.dtype
    if mask is None:
        scores = computed(shape, lambda *at: product(at) * scale)
    elif mask.dtype is boolean:
        is_seen = repeated(mask)
        scores = computed(shape, lambda *at: product(at) * scale if is_seen(at) else -tc.inf)
    else:
        offset = repeated(mask)
        scores = computed(shape, lambda *at: product(at) * scale + offset(at).to(dtype))
    return multiplied(softmax_along(scores, axis), v)


def by_kernel(
    q: TensorHandle, k: TensorHandle | State, v: TensorHandle | State, mask: TensorHandle | None, scale: float,
    offset: Extent | None = None, *, lengths: TensorHandle | None = None, sinks: TensorHandle | None = None,
    **options: Any,
) -> TensorHandle:  # fmt: skip
    """offset  causal attention: query i sees keys 0 to i + offset"""
    batches, heads, length, features = q.shape
    end, is_causal = k.shape[2] if offset is None else offset + length, offset is not None
    (k, v), is_state = (
        (x.memory if isinstance(x, State) else x for x in (k, v)),
        isinstance(k, State),
    )
    keys = k.shape[2]
    if are_equal(end, keys):
        offset = None  # the kernel's default
    elif lengths is None and (
        is_state or isinstance(end, Size)
    ):  # data, for it's no extent of an operand
        lengths = computed((batches,), lambda b: i64(end).to(i32))
    if lengths is not None:
        offset = None
    if mask is not None:
        mask = for_keys(mask, keys)
    kernel = kernel_of(
        attention, batches, heads, length, keys, features, kv_heads=k.shape[1], value_features=v.shape[3],
        causal=is_causal, offset=offset, lengths=lengths is not None, sinks=sinks is not None,
        mask=None if mask is None else mask.dtype[mask.shape], scale=scale, dtype=q.dtype, **options,
    )  # fmt: skip
    return kernel(q, k, v, *[x for x in (mask, lengths, sinks) if x is not None])


def for_keys(mask: TensorHandle, keys: Extent) -> TensorHandle:
    """A mask for memory with room for more keys than it has: its last one repeats, where no query sees a key."""
    width = mask.shape[-1]
    if are_equal(width, 1) or are_equal(width, keys):
        return mask

    @tc.function
    def element(*at: Element) -> Computed:
        place = (*at[:-1], min(at[-1], width - 1))
        return mask[place]

    return computed((*mask.shape[:-1], keys), element)


def _by_options(
    call: Call, q: TensorHandle, k: TensorHandle | State, v: TensorHandle | State, mask: TensorHandle | None,
    lengths: TensorHandle | None, before: Extent, scale: float,
) -> TensorHandle:  # fmt: skip
    batches, length, keys = q.shape[0], q.shape[2], k.shape[2]
    left, right = call.attribute("left_window_size", -1), call.attribute("right_window_size", -1)
    ahead = 0 if call.attribute("is_causal", 0) else right if right >= 0 else _ALL
    is_causal, counts = left >= 0 or ahead < _ALL, None
    if lengths is not None:
        counts = computed((batches,), lambda b: lengths[b].to(i32))
    if mask is not None and not are_equal(mask.shape[-1], keys):
        value = _masked(call, mask, (batches, q.shape[1], length, keys))
        shape = *((1,) * (4 - len(mask.shape)) + mask.shape)[:3], keys
        mask = computed(shape, lambda *at: f32(value(*at)))
    return by_kernel(
        q, k, v, mask, scale, before if is_causal else None,
        lengths=counts, ahead=ahead if is_causal else 0, window=left + 1 + ahead if left >= 0 else None,
        cap=call.attribute("softcap", 0.0),
    )  # fmt: skip


def _in_steps(
    call: Call, q: TensorHandle, k: TensorHandle, v: TensorHandle, mask: TensorHandle | None,
    lengths: TensorHandle | None, before: Extent, scale: float,
) -> tuple[TensorHandle, TensorHandle | None]:  # fmt: skip
    """Attention whose scores are an output."""
    batches, heads, queries, _ = q.shape
    keys = k.shape[2]
    shape = batches, heads, queries, keys
    dtype, cap = wide(q.dtype), call.attribute("softcap", 0.0)
    raw = raw_scores(q, k)
    if call.attribute("softmax_precision", 0):
        precise = call.element_type(call.attribute("softmax_precision"))
        dtype = f64 if precise is f64 else dtype
    scaled = computed(shape, lambda *at: raw[at].to(dtype) * scale)
    capped = computed(shape, lambda *at: tc.tanh(scaled[at] / cap) * cap) if cap else scaled
    offset, is_seen = _masked(call, mask, shape), _seen(call, lengths, before, queries)

    @tc.function
    def biased(b: Element, h: Element, i: Element, j: Element) -> Computed:
        value = capped[b, h, i, j] + offset(b, h, i, j).to(dtype)
        return value if is_seen(b, i, j) else -tc.inf

    scores = computed(shape, biased)
    peaks, powers = folded("max", scores, (3,), keepdims=False), softmax_along(scores, 3)
    own = q.dtype

    @tc.function
    def share(b: Element, h: Element, i: Element, j: Element) -> Computed:
        return own(tc.where(peaks[b, h, i] == -tc.inf, 0, powers[b, h, i, j]))

    shares = computed(shape, share)
    y = mixed(shares, v)
    outputs = scaled, capped, scores, shares
    mode = call.attribute("qk_matmul_output_mode", 0)
    if mode not in range(len(outputs)):
        raise call.node.error(f"it has no scores of mode {mode}")
    asked = outputs[mode]
    return y, converted(asked, own) if call.wants(3) else None


def raw_scores(q: TensorHandle, k: TensorHandle) -> TensorHandle:
    """q @ k.T for each head, in the type of sums; neighbouring heads of q share a head of k."""
    batches, heads, queries, features = q.shape
    _, kv_heads, keys, _ = k.shape
    stacks, rows = (batches, kv_heads), heads // kv_heads * queries
    product = kernel_of(
        batch_matmul, (stacks, stacks), rows, keys, features, dtype=q.dtype, total=wide(q.dtype),
        transpose_b=True,
    )  # fmt: skip
    return product(q.reshape(*stacks, rows, features), k).reshape(batches, heads, queries, keys)


def mixed(shares: TensorHandle, v: TensorHandle) -> TensorHandle:
    """shares @ v for each head, as in `raw_scores`."""
    batches, heads, queries, keys = shares.shape
    _, kv_heads, _, features = v.shape
    stacks, rows = (batches, kv_heads), heads // kv_heads * queries
    product = kernel_of(batch_matmul, (stacks, stacks), rows, features, keys, dtype=v.dtype)
    y = product(shares.reshape(*stacks, rows, keys), v)
    return y.reshape(batches, heads, queries, features)


def _masked(call: Call, mask: TensorHandle | None, shape: Shape) -> Function:
    """The offset that a mask adds to a score; keys after the end of a short mask aren't seen."""
    if mask is None:
        return tc.function(lambda b, h, i, j: 0.0)
    once, width, is_truth = ones(mask.shape), mask.shape[-1], mask.dtype is boolean

    @tc.function
    def found(b: Element, h: Element, i: Element, j: Element) -> Computed:
        return element(mask, once, (b, h, i, j))

    @tc.function
    def value(*at: Element) -> Computed:
        return (0.0 if found(*at) else -tc.inf) if is_truth else found(*at)

    if are_equal(width, shape[-1]):
        return value
    return tc.function(lambda b, h, i, j: value(b, h, i, j) if j < width else -tc.inf)


def _seen(call: Call, lengths: TensorHandle | None, before: Extent, queries: Extent) -> Function:
    """Whether query i of batch b sees key j."""
    is_causal = bool(call.attribute("is_causal", 0))
    left, right = call.attribute("left_window_size", -1), call.attribute("right_window_size", -1)

    @tc.function
    def is_seen(b: Element, i: Element, j: Element) -> Computed:
        ahead = j - i - (before if lengths is None else lengths[b].to(i64) - queries)
        return (
            (not is_causal or ahead <= 0)
            and (left < 0 or -ahead <= left)
            and (right < 0 or ahead <= right)
            and (lengths is None or j < lengths[b].to(i64))
        )

    return is_seen


def _by_heads(call: Call, x: TensorHandle, attribute: str) -> TensorHandle:
    """[batches, length, heads * features] as [batches, heads, length, features]"""
    hidden, heads = x.shape[2], call.count(attribute)
    if isinstance(hidden, int) and hidden % heads:
        raise call.node.error(f"{hidden} features aren't {heads} heads of as many")
    return heads_of(x, heads, hidden // heads)


def heads_of(x: TensorHandle, heads: int, features: Extent, first: Extent = 0) -> TensorHandle:
    """Columns of x[batches, length, ...], from the first one on, as [batches, heads, length, features]."""
    batches, length, _ = x.shape
    return computed(
        (batches, heads, length, features), lambda b, h, i, f: x[b, i, first + h * features + f]
    )


def flattened(x: TensorHandle) -> TensorHandle:
    """[batches, heads, length, features] as [batches, length, heads * features]"""
    batches, heads, length, features = x.shape
    return computed(
        (batches, length, heads * features), lambda b, i, c: x[b, c // features, i, c % features]
    )


@operator("RotaryEmbedding", since=23)
def rotated(call: Call) -> Tensor:
    x, cosine, sine, places = call.tensors(4)
    features = x.shape[-1]
    if len(x.shape) == 3:
        heads = call.attribute("num_heads", 0)
        if not heads:
            raise call.node.error("of three axes, it doesn't say num_heads")
        features //= heads
    turned = call.attribute("rotary_embedding_dim", 0) or features

    @tc.function
    def of_place(cache: Element, b: Element, i: Element, angle: Element) -> Computed:
        if places is None:
            return cache[b, i, angle]
        else:
            return cache[place_of(places[b, i], cache.shape[0]), angle]

    is_interleaved = bool(call.attribute("interleaved", 0))
    return turned_by(x, features, turned, is_interleaved, cosine, sine, of_place)


def turned_by(
    x: TensorHandle, features: int, turned: int, is_interleaved: bool, cosine: TensorHandle,
    sine: TensorHandle, of_place: Function,
) -> TensorHandle:  # fmt: skip
    """The first `turned` of each head's features, as pairs that are rotated; x has its queries along its last axis
    but one.

    of_place  (cache, batch, query, pair) -> the element of `cosine` or `sine`
    """
    half = turned // 2
    apart = 1 if is_interleaved else half

    @tc.function
    def value(*at: Element) -> Computed:
        before, c = at[:-1], at[-1]
        b, i, f = before[0], before[-1], c % features
        angle = f // 2 if is_interleaved else f % half
        is_first = f % 2 == 0 if is_interleaved else f < half
        behind, ahead = (*before, c - apart), (*before, c + apart)
        other = -x[ahead] if is_first else x[behind]
        turn = x[at] * of_place(cosine, b, i, angle) + other * of_place(sine, b, i, angle)
        return turn if f < turned else x[at]

    return computed(x.shape, value)
