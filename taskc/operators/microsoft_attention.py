"""Attention of com.microsoft: packed projections, many heads, and grouped queries over a cache.

    Attention, QAttention    project the input to queries, keys and values first
    MultiHeadAttention       has them as inputs, with a bias
    GroupQueryAttention      rotates them, and appends keys and values to a cache

Masks are added to scores, as ONNX Runtime does, so that a row without a seen key is the same as there.
"""

from __future__ import annotations

from math import sqrt

import taskc as tc
from taskc import DType, f32, i32, i64
from taskc.dataclass import dataclass
from taskc.kernels.indices import place_of
from taskc.kernels.rows import rms_norm
from taskc.operators.attention import (
    LOST,
    by_kernel,
    flattened,
    for_keys,
    heads_of,
    turned_by,
)
from taskc.operators.call import Call, Made, operator
from taskc.operators.files import MICROSOFT
from taskc.operators.microsoft import require_absent, require_default, require_no_inputs
from taskc.operators.movement import appended, joined
from taskc.operators.norms import scaled_rows
from taskc.operators.operands import equals, repeated, total
from taskc.operators.products import integer_sums, rows_times
from taskc.operators.tensors import Extent, Function, State, Tensor, computed, reshaped
from taskc.programs.tracing import Computed, Element, TensorHandle

_FILTER = -10000.0  # what a mask adds to the score of a key that isn't seen


# Projections.


@operator("Attention", domain=MICROSOFT, ranks=(3, 2, 1))
def attention(call: Call) -> Made:
    require_default(call, do_rotary=0, past_present_share_buffer=0)
    (x,), weights = call.tensors(1), call.given(1)
    batches, length, width = x.shape
    bias = call.tensor(2) if call.has(2) else None
    rows = rows_times(reshaped(x, batches * length, width), weights, bias)
    return _of_projection(call, reshaped(rows, batches, length, weights.shape[1]), 3, 4, 5)


@operator("QAttention", domain=MICROSOFT, ranks=(3, 2, 1))
def quantized_attention(call: Call) -> Made:
    require_default(call, do_rotary=0, past_present_share_buffer=0)
    call.require_kernel()
    sums = integer_sums(call.given(0), call.given(1), call.optional(6), call.optional(7))
    bias, of_x, of_w = call.tensor(2), repeated(call.tensor(3)), repeated(call.tensor(4))
    rows = computed(sums.shape, lambda *at: sums[at].to(f32) * (of_x(at) * of_w(at)) + bias[at[-1]])
    return _of_projection(call, rows, 5, 8, None)


def _of_projection(call: Call, rows: TensorHandle, mask: int, past: int, bias: int | None) -> Made:
    """Attention of rows that are queries, keys and values one after the other; the numbers are positions of inputs."""
    heads = call.count("num_heads")
    third = rows.shape[2] // 3
    widths = call.attribute("qkv_hidden_sizes") or [third] * 3
    if len(widths) != 3 or sum(widths) != rows.shape[2] or any(n % heads for n in widths):
        raise call.node.error(
            f"its {rows.shape[2]} projected features aren't queries, keys and values of {heads} heads"
        )
    starts = 0, widths[0], widths[0] + widths[1]
    q, k, v = (
        heads_of(rows, heads, width // heads, start)
        for width, start in zip(widths, starts, strict=True)
    )
    before: Extent = 0
    if call.has(past):
        cache = call.tensor(past)
        before = cache.shape[3]
        k, v = joined([cache[0], k], 2, computed), joined([cache[1], v], 2, computed)
    y = _attended(call, q, k, v, before, mask, bias)
    if not call.wants(1):
        return y

    @tc.function
    def state(n: Element, b: Element, h: Element, i: Element, f: Element) -> Computed:
        return k[b, h, i, f] if n == 0 else v[b, h, i, f]

    return y, computed((2, *k.shape), state)


@operator("MultiHeadAttention", domain=MICROSOFT)
def many_heads(call: Call) -> Made:
    require_absent(call, 3)
    require_no_inputs(call, past_sequence_length=8, cache_indirection=9)
    heads = call.count("num_heads")
    q, k, v, bias = call.tensors(4)
    q, k, v = _operands(call, heads, q, k, v, bias)
    before: Extent = 0
    if call.has(6):
        before = call.shape(6)[2]
        k, v = appended(call, 6, k, 2), appended(call, 7, v, 2)
    return _attended(call, q, k, v, before, 4, 5), k, v, None


def _operands(
    call: Call, heads: int, q: TensorHandle, k: TensorHandle | None, v: TensorHandle | None,
    bias: TensorHandle | None,
) -> tuple[TensorHandle, TensorHandle, TensorHandle]:  # fmt: skip
    """Queries, keys and values as [batches, heads, length, features], however the node packs them, with the bias."""
    if len(q.shape) == 5:
        parts = [_part(q, number) for number in range(3)]
    elif k is None:
        raise call.node.error("it has no keys, and its queries aren't packed with them")
    elif len(k.shape) == 5:
        parts = [q, _part(k, 0), _part(k, 1)]
    elif v is None:
        raise call.node.error("it has no values, and its keys aren't packed with them")
    else:
        parts = [q, k, v]
    own: list[TensorHandle] = []
    first: Extent = 0
    for x in parts:
        if len(x.shape) == 3 and isinstance(x.shape[2], int) and x.shape[2] % heads:
            raise call.node.error(f"{x.shape[2]} features aren't {heads} heads of as many")
        split = x if len(x.shape) == 4 else heads_of(x, heads, x.shape[2] // heads)
        # Keys and values that come by heads are a cache, which has its bias.
        is_biased = bias is not None and len(x.shape) == 3
        own.append(_biased(split, bias, first) if bias is not None and is_biased else split)
        first += split.shape[1] * split.shape[3]
    queries, keys, values = own
    return queries, keys, values


def _part(packed: TensorHandle, number: int) -> TensorHandle:
    """One of the tensors in [batches, length, heads, parts, features], as [batches, length, heads * features]."""
    batches, length, heads, _, features = packed.shape
    return computed(
        (batches, length, heads * features),
        lambda b, i, c: packed[b, i, c // features, number, c % features],
    )


def _biased(x: TensorHandle, bias: TensorHandle, first: Extent) -> TensorHandle:
    features = x.shape[3]
    return computed(x.shape, lambda b, h, i, f: x[b, h, i, f] + bias[first + h * features + f])


def _attended(
    call: Call, q: TensorHandle, k: TensorHandle | State, v: TensorHandle | State, before: Extent, mask: int,
    bias: int | None,
) -> TensorHandle:  # fmt: skip
    """The attention with the node's mask and its bias of scores, which are inputs at these positions."""
    scale = call.attribute("scale") or 1 / sqrt(q.shape[3])
    is_causal = bool(call.attribute("unidirectional", 0))
    terms = [] if bias is None or not call.has(bias) else [_as_f32(call.tensor(bias))]
    if call.has(mask):
        terms.append(_mask_of(call, call.tensor(mask), mask, q, k, before))
    if not terms:
        return flattened(by_kernel(q, k, v, None, scale, before if is_causal else None))
    heads = q.shape[1] if bias is not None and call.has(bias) else 1
    shape = q.shape[0], heads, q.shape[2], k.shape[2]
    offset = total(terms)

    @tc.function
    def added(*at: Element) -> Computed:
        return LOST if is_causal and at[3] > before + at[2] else offset(at)

    return flattened(by_kernel(q, k, v, computed(shape, added), scale))


def _as_f32(x: TensorHandle) -> Function:
    """The elements of an input that broadcasts to all scores."""
    read = repeated(x)
    return tc.function(lambda at: read(at).to(f32))


def _mask_of(
    call: Call, mask: TensorHandle, place: int, q: TensorHandle, k: TensorHandle | State, before: Extent,
) -> Function:  # fmt: skip
    """The offset that a mask adds to the score of a batch, head, query and key."""
    lost = call.attribute("mask_filter_value", _FILTER)
    batches, shape = q.shape[0], mask.shape
    is_twice = len(shape) == 1 and not equals(shape[0], batches)

    seen_by_rank: dict[int, Function] = {
        1: lambda b, i, j: j < mask[b].to(i64) and (not is_twice or j >= mask[batches + b].to(i64)),
        2: lambda b, i, j: mask[b, j] > 0,
        3: lambda b, i, j: mask[b, i, j] > 0,
        4: lambda b, i, j: mask[b, 0, before + i, j] > 0,
    }
    if len(shape) not in seen_by_rank or (is_twice and not equals(shape[0], 2 * batches)):
        raise call.node.error(
            f"its input {place} is a mask of the shape {list(shape)}, which taskc doesn't have"
        )
    if len(shape) in (2, 3) and not equals(shape[-1], k.shape[2]):
        raise call.node.error(f"its mask {list(shape)} isn't of {k.shape[2]} keys")
    seen = tc.function(seen_by_rank[len(shape)])
    return tc.function(lambda at: f32(0) if seen(at[0], at[2], at[3]) else f32(lost))


# Grouped queries.


@dataclass(frozen=True, slots=True)
class _Cache:
    """The places of new keys: key i of batch b is at `start(b) + i`.

    place     where those of all batches begin, if that is one place
    longest   the places that the cache has with them
    is_first  whether nothing was there before
    is_grown  whether the new keys come after all that was there
    """

    start: Function
    place: Extent | None
    longest: Extent
    is_first: bool
    is_grown: bool


@operator("GroupQueryAttention", domain=MICROSOFT)
def grouped_queries(call: Call) -> Made:
    require_absent(call, 3)
    require_no_inputs(call, k_scale=12, v_scale=13)
    require_default(
        call, k_quant_type="NONE", v_quant_type="NONE", qk_output=0, sliding_window_cache=0,
        kv_cache_bit_width=0,
    )  # fmt: skip
    call.require_kernel()
    heads, kv_heads = call.count("num_heads"), call.count("kv_num_heads")
    if heads % kv_heads:
        raise call.node.error(f"{heads} heads aren't shared by {kv_heads} heads of keys")
    q, k, v = _split(call, heads, kv_heads)
    cache = _cache_of(call, q.shape[0], q.shape[2])
    q, k = _normalized(call, q, 14, "q_norm_epsilon"), _normalized(call, k, 15, "k_norm_epsilon")
    if call.attribute("do_rotary", 0):
        q, k = _rotated(call, q, cache), _rotated(call, k, cache)
    present_k, present_v = _appended(call, 3, k, cache), _appended(call, 4, v, cache)
    scale = call.attribute("scale") or 1 / sqrt(q.shape[3])
    # Before the first step, what is in a longer cache doesn't matter.
    keys, values = (k, v) if cache.is_first else (present_k, present_v)
    y = _by_places(call, q, keys, values, cache, scale)
    return flattened(y), present_k, present_v, None


def _split(
    call: Call, heads: int, kv_heads: int
) -> tuple[TensorHandle, TensorHandle, TensorHandle]:
    """Queries, keys and values by heads: three inputs, or packed in one."""
    q, k, v = call.tensors(3)
    count = heads if k is not None else heads + 2 * kv_heads
    if len(q.shape) != 3 or call.number(q.shape[2], "its number of features") % count:
        raise call.node.error(
            f"its queries {list(q.shape)} aren't {count} heads of as many features"
        )
    features = q.shape[2] // count
    if k is not None and v is not None:
        return (
            heads_of(q, heads, features),
            heads_of(k, kv_heads, features),
            heads_of(v, kv_heads, features),
        )
    starts = heads * features, (heads + kv_heads) * features
    k, v = (heads_of(q, kv_heads, features, start) for start in starts)
    return heads_of(q, heads, features), k, v


def _cache_of(call: Call, batches: Extent, length: Extent) -> _Cache:
    row, room = reshaped(call.tensor(5), batches), call.shape(3)[2] if call.has(3) else 0
    # A state's length is known, whatever a total says that is data.
    is_data = isinstance(call.inputs[3], State) and isinstance(call.given(6), TensorHandle)
    total = room + length if is_data else call.single(6)
    is_grown = equals(room + length, total)
    longest = room + length if is_grown else total if total > room else room
    place: Extent | None = None
    counts = reshaped(call.tensor(16), batches) if call.has(16) else None
    is_first = equals(length, total) and counts is None
    if is_first:
        place = 0  # queries begin at 0, whatever a batch's length
    elif equals(batches, 1) and counts is None:
        place = room if is_grown else total - length
    if place is not None:
        start = tc.function(lambda b: i64(place))
    elif counts is None:
        start = tc.function(lambda b: row[b].to(i64) + 1 - length)
    else:
        start = tc.function(lambda b: row[b].to(i64) + 1 - counts[b].to(i64))
    return _Cache(start, place, longest, is_first, is_grown)


def _normalized(call: Call, x: TensorHandle, place: int, own: str) -> TensorHandle:
    """The RMS norm of each head's features, where the node has weights for it."""
    if not call.has(place):
        return x
    epsilon = call.attribute(own) or call.attribute("qk_norm_epsilon", 1e-6)
    return scaled_rows(rms_norm, x, 3, call.tensor(place), None, epsilon)


def _rotated(call: Call, x: TensorHandle, cache: _Cache) -> TensorHandle:
    if not (call.has(7) and call.has(8)):
        raise call.node.error("it rotates, and has no cos_cache and sin_cache")
    cosine, sine = call.tensor(7), call.tensor(8)
    places = call.tensor(9) if call.has(9) else None
    start, most = cache.start, cosine.shape[0] - 1

    @tc.function
    def of_place(angles: Element, b: Element, i: Element, angle: Element) -> Computed:
        # Rows after the end of a short sequence may count to places that there are no angles for.
        place = start(b) + i if places is None else places[b, i].to(i64)
        return angles[min(max(place, 0), most), angle]

    turned = 2 * call.number(cosine.shape[1], "the number of its angles")
    is_interleaved = bool(call.attribute("rotary_interleaved", 0))
    return turned_by(
        x, call.number(x.shape[3], "its features"), turned, is_interleaved, cosine, sine, of_place
    )


def _appended(call: Call, place: int, new: TensorHandle, cache: _Cache) -> TensorHandle | State:
    """A cache with the new rows in their places."""
    if not call.has(place):
        return new
    if isinstance(call.inputs[place], State):
        if not cache.is_grown:
            raise call.node.error(
                "its total length isn't that of its states and of the new keys",
                "a mask has an element for each place that is filled, and for each new key",
            )
        return appended(call, place, new, 2, None if cache.place is not None else cache.start)
    past = call.tensor(place)
    batches, heads, length, features = new.shape
    before = past.shape[2]
    if equals(before, 0):
        return new
    if cache.is_grown and cache.place is not None:
        return appended(call, place, new, 2)
    start = cache.start

    @tc.function
    def element(b: Element, h: Element, i: Element, f: Element) -> Computed:
        place = i - start(b)
        is_new = place >= 0 and place < length
        return (
            new[b, h, min(max(place, 0), length - 1), f]
            if is_new
            else past[b, h, min(i, before - 1), f]
        )

    return computed((batches, heads, cache.longest, features), element)


def _sinks_of(call: Call, heads: Extent, dtype: DType) -> TensorHandle | None:
    """The score of a key that every query of a head sees, and that has no value."""
    if call.has(11):
        return call.tensor(11)
    if call.attribute("smooth_softmax", -1) > 0:
        return computed((heads,), lambda h: dtype(0))
    return None


def _by_places(
    call: Call,
    q: TensorHandle,
    k: TensorHandle | State,
    v: TensorHandle | State,
    cache: _Cache,
    scale: float,
) -> TensorHandle:
    """Attention to keys by their places: those up to the query's own, in its window, less what is past the end."""
    batches, heads, length, _ = q.shape
    keys, row = k.shape[2], reshaped(call.tensor(5), batches)
    window = call.attribute("local_window_size", -1)
    window = None if window < 0 else window
    bias = call.tensor(10) if call.has(10) else None
    if bias is not None:
        bias = for_keys(bias, keys)
    offset, lengths = cache.place, None
    if not call.attribute("causal", 1):
        if window is not None:
            raise call.node.error("it has a window, and isn't causal")
        offset, lengths = None, computed((batches,), lambda b: row[b].to(i32) + 1)
    elif offset is None:
        start, offset = cache.start, keys - length
        lengths = computed((batches,), lambda b: (start(b) + length).to(i32))
    return by_kernel(
        q, k, v, bias, scale, offset,
        lengths=lengths, sinks=_sinks_of(call, heads, q.dtype), window=window,
        cap=call.attribute("softcap") or 0.0,
    )  # fmt: skip


# Rotation.


@operator("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(call: Call) -> Tensor:
    require_default(call, is_packed_batching=0, scale=1.0)
    x, places, cosine, sine = call.tensors(4)
    turned = call.attribute("rotary_embedding_dim", 0) or 2 * call.number(
        cosine.shape[1], "the number of its angles"
    )
    width = call.number(x.shape[-1], "its number of features")
    heads = call.attribute("num_heads", 0)
    features = width // heads if heads and len(x.shape) == 3 else width
    if len(x.shape) == 3 and not heads:
        features = turned
    is_base = len(places.shape) == 1

    @tc.function
    def of_place(angles: Element, b: Element, i: Element, angle: Element) -> Computed:
        if is_base:
            return angles[place_of(places[0].to(i64) + i, angles.shape[0]), angle]
        else:
            return angles[place_of(places[b, i].to(i64), angles.shape[0]), angle]

    is_interleaved = bool(call.attribute("interleaved", 0))
    return turned_by(x, features, turned, is_interleaved, cosine, sine, of_place)
