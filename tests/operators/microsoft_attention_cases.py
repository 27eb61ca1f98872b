"""Random nodes of com.microsoft's attention, with their results by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.operators.microsoft_cases import Array, Case, Random, case, coin, normal, rms_norm, sizes

LOWEST = np.float32(-1e30)


def attended(q: Array, k: Array, v: Array, scale: float, offset: Array | float = 0.0) -> Array:
    """softmax(q @ k.T * scale + offset) @ v by heads; neighbouring heads of q share one of k and v."""
    each = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, each, 1), np.repeat(v, each, 1)
    return _shares(q @ k.swapaxes(2, 3) * np.float32(scale) + offset) @ v


def _shares(scores: Array, sink: Array | None = None) -> Array:
    """softmax of the last axis; a sink is one more score of each head, whose share is dropped."""
    if sink is not None:
        column = np.broadcast_to(sink[:, None, None], (*scores.shape[:3], 1))
        scores = np.concatenate([scores, column], 3)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    shares = powers / powers.sum(-1, keepdims=True)
    return shares if sink is None else shares[..., :-1]


def by_heads(x: Array, heads: int) -> Array:
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def flat(x: Array) -> Array:
    return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape[0], x.shape[2], -1)


def causal(queries: int, keys: int, before: int) -> Array:
    seen = np.arange(keys) <= before + np.arange(queries)[:, None]
    return np.where(seen, np.float32(0), LOWEST)


def masked(seen: Array, filter_value: float) -> Array:
    return np.where(seen, np.float32(0), np.float32(filter_value))


def _mask(random: Random, b: int, n: int, keys: int) -> tuple[Array | None, Array]:
    """A mask in one of its forms, and [b, 1, n, keys] of the keys that it shows."""
    places = np.arange(keys)
    match random.integers(5):
        case 0:
            ends = random.integers(1, keys + 1, b).astype(np.int32)
            return ends, (places < ends[:, None])[:, None, None]
        case 1:
            starts = random.integers(0, keys, b).astype(np.int32)
            ends = random.integers(starts, keys + 1).astype(np.int32)
            seen = (places < ends[:, None]) & (places >= starts[:, None])
            return np.concatenate([ends, starts]), seen[:, None, None]
        case 2:
            mask = random.integers(0, 2, (b, keys)).astype(np.int32)
            return mask, (mask > 0)[:, None, None]
        case 3:
            mask = random.integers(0, 2, (b, n, keys)).astype(np.int32)
            return mask, (mask > 0)[:, None]
    return None, np.full((1, 1, 1, 1), True)


@case
def attention(random: Random) -> Case:
    b, n, width, heads, head, past = sizes(random, 6, 5)
    head *= 2
    hidden, has_past = heads * head, coin(random)
    own = hidden if has_past or coin(random) else 3 * heads
    past = past if has_past else 0
    x, w = normal(random, b, n, width), normal(random, width, 2 * hidden + own)
    bias = normal(random, 2 * hidden + own) if coin(random) else None
    rows = x @ w if bias is None else x @ w + bias
    parts = np.split(rows, [hidden, 2 * hidden], -1)
    q, k, v = (by_heads(part, heads) for part in parts)
    cache = normal(random, 2, b, heads, past, head) if has_past else None
    if cache is not None:
        k, v = np.concatenate([cache[0], k], 2), np.concatenate([cache[1], v], 2)
    keys = past + n
    mask, seen = _mask(random, b, n, keys)
    is_causal, filter_value = int(coin(random)), float(random.integers(-60, -40))
    offset = masked(seen, filter_value)
    added = None
    if cache is None and coin(random):
        added = normal(random, int(random.choice([1, b])), int(random.choice([1, heads])), n, keys)
        offset = offset + added
    if is_causal:
        offset = np.where(causal(n, keys, past) < 0, LOWEST, offset)
    scale = float(np.float32(random.random() + 0.1))
    y = flat(attended(q, k, v, scale, offset)).astype(np.float32)
    attributes: dict[str, Any] = {"num_heads": heads, "unidirectional": is_causal, "scale": scale}
    attributes |= {"mask_filter_value": filter_value}
    if own != hidden:
        attributes["qkv_hidden_sizes"] = [hidden, hidden, own]
    present = np.stack([k, v]) if own == hidden else None
    expected = [y] if present is None else [y, present]
    known = (1, 2) if coin(random) else ()
    return Case("Attention", [x, w, bias, mask, cache, added], expected, attributes, known)


@case
def quantized_attention(random: Random) -> Case:
    b, n, width, heads, head = sizes(random, 5, 4)
    hidden = heads * head
    x = random.integers(0, 256, (b, n, width)).astype(np.uint8)
    w = random.integers(-100, 100, (width, 3 * hidden)).astype(np.int8)
    bias, of_x = normal(random, 3 * hidden), np.array(0.02, np.float32)
    of_w = (random.random(3 * hidden) * 0.01 + 0.001).astype(np.float32)
    if coin(random):
        of_w = np.array(0.005, np.float32)
    zero = np.array(random.integers(100, 140), np.uint8)
    rows = (x.astype(np.int32) - int(zero)) @ w.astype(np.int32) * (of_x * of_w) + bias
    q, k, v = (by_heads(part, heads) for part in np.split(rows.astype(np.float32), 3, -1))
    is_causal = int(coin(random))
    offset = causal(n, n, 0) if is_causal else 0.0
    y = flat(attended(q, k, v, head**-0.5, offset))
    inputs = [x, w, bias, of_x, of_w, None, zero, np.zeros(of_w.shape, np.int8)]
    attributes = {"num_heads": heads, "unidirectional": is_causal}
    return Case(
        "QAttention", inputs, [y], attributes, (1, 4, 7), tolerance=1e-3, peer_tolerance=1e-3
    )


@case
def multi_head_attention(random: Random) -> Case:
    b, n, m, heads, head, past = sizes(random, 6, 5)
    head *= 2
    hidden, is_causal, has_past = heads * head, int(coin(random)), coin(random)
    if is_causal or has_past:
        m = n
    past = past if has_past else 0
    q, k, v = (
        normal(random, b, n, hidden),
        normal(random, b, m, hidden),
        normal(random, b, m, hidden),
    )
    bias = normal(random, 3 * hidden) if coin(random) else None
    parts = np.zeros((3, hidden), np.float32) if bias is None else bias.reshape(3, hidden)
    queries, keys, values = (
        by_heads(x + part, heads) for x, part in zip((q, k, v), parts, strict=True)
    )
    caches = [normal(random, b, heads, past, head) if has_past else None for _ in range(2)]
    if caches[0] is not None and caches[1] is not None:
        keys, values = (
            np.concatenate([cache, x], 2) for cache, x in zip(caches, (keys, values), strict=True)
        )
    count, filter_value = past + m, float(random.integers(-60, -40))
    offset = np.zeros((1, 1, 1, 1), np.float32)
    mask = None
    if coin(random):
        mask = random.integers(0, 2, (b, count)).astype(np.int32)
        offset = masked((mask > 0)[:, None, None], filter_value)
    added = None
    if coin(random):
        added = normal(random, int(random.choice([1, b])), int(random.choice([1, heads])), n, count)
        offset = offset + added
    if is_causal:
        offset = np.where(causal(n, count, past) < 0, LOWEST, offset)
    y = flat(attended(queries, keys, values, head**-0.5, offset)).astype(np.float32)
    attributes = {
        "num_heads": heads,
        "unidirectional": is_causal,
        "mask_filter_value": filter_value,
    }
    expected = [y, keys, values] if has_past else [y]
    return Case("MultiHeadAttention", [q, k, v, bias, mask, added, *caches], expected, attributes)


@case
def multi_head_attention_of_a_cache(random: Random) -> Case:
    """Keys and values of another sequence come by heads, as the encoder's cache of a decoder."""
    b, n, m, heads, head = sizes(random, 5)
    q, k, v = normal(random, b, n, heads * head), *(normal(random, b, heads, m, head) for _ in "kv")
    bias = normal(random, 3 * heads * head) if coin(random) else None
    queries = by_heads(q if bias is None else q + bias[: heads * head], heads)
    y = flat(attended(queries, k, v, head**-0.5))
    return Case("MultiHeadAttention", [q, k, v, bias], [y], {"num_heads": heads})


@case
def multi_head_attention_of_packed(random: Random) -> Case:
    b, n, heads, head = sizes(random, 4)
    packed = normal(random, b, n, heads, 3, head)
    q, k, v = np.moveaxis(packed, 3, 0).swapaxes(2, 3)
    y = flat(attended(q, k, v, head**-0.5))
    return Case("MultiHeadAttention", [packed], [y], {"num_heads": heads}, has_peer=False)


def turned(x: Array, places: Array, cosine: Array, sine: Array, is_interleaved: bool) -> Array:
    """x[b, heads, n, features] with pairs of features rotated by the angles of places[b, n]."""
    half = cosine.shape[1]
    c, s = cosine[places][:, None], sine[places][:, None]
    first = x[..., 0 : 2 * half : 2] if is_interleaved else x[..., :half]
    second = x[..., 1 : 2 * half : 2] if is_interleaved else x[..., half : 2 * half]
    pairs = first * c - second * s, second * c + first * s
    y = x.copy()
    if is_interleaved:
        y[..., 0 : 2 * half : 2], y[..., 1 : 2 * half : 2] = pairs
    else:
        y[..., :half], y[..., half : 2 * half] = pairs
    return y


@case
def rotary_embedding(random: Random) -> Case:
    b, n, heads, half = sizes(random, 4)
    cosine, sine, is_interleaved = normal(random, 12, half), normal(random, 12, half), coin(random)
    attributes: dict[str, Any] = {"interleaved": int(is_interleaved)}
    head = 2 * half
    if coin(random):
        head += 2
        attributes |= {"num_heads": heads, "rotary_embedding_dim": 2 * half}
    x = normal(random, b, heads, n, head)
    places = random.integers(0, 12, (b, n))
    if coin(random):
        start = int(random.integers(0, 12 - n))
        places = np.arange(start, start + n)[None].repeat(b, 0)
    y = turned(x, places, cosine, sine, is_interleaved)
    given = np.array([places[0, 0]]) if (places == places[0, 0] + np.arange(n)).all() else places
    if coin(random):
        x, y = flat(x), flat(y)
    return Case("RotaryEmbedding", [x, given, cosine, sine], [y], attributes)


@case
def grouped_queries(random: Random) -> Case:
    """A first step, or a later one, of sequences with lengths of their own; the cache may be longer than they are."""
    b, kv_heads, each = sizes(random, 3, 3)
    heads, head, is_first = kv_heads * each, 16, coin(random)
    n = int(random.integers(1, 6)) if is_first or b == 1 else 1
    total = n if is_first else n + int(random.integers(1, 6))
    lengths = random.integers(1 if is_first else n + 1, total + 1, b)
    lengths[random.integers(b)] = total
    room = 0 if is_first and coin(random) else int(random.choice([total - n, total + 3]))
    if b == 1 or is_first:
        lengths = np.where(is_first, lengths, total)
    q, k, v = (
        normal(random, b, n, heads * head),
        *(normal(random, b, n, kv_heads * head) for _ in "kv"),
    )
    past_k, past_v = (normal(random, b, kv_heads, room, head) for _ in "kv")
    starts = np.zeros(b, int) if is_first else lengths - n
    places = starts[:, None] + np.arange(n)
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": kv_heads}
    queries, new_k, new_v = by_heads(q, heads), by_heads(k, kv_heads), by_heads(v, kv_heads)
    cosine = sine = None
    if coin(random):
        cosine, sine, is_interleaved = normal(random, 32, 8), normal(random, 32, 8), coin(random)
        attributes |= {"do_rotary": 1, "rotary_interleaved": int(is_interleaved)}
        queries, new_k = (turned(x, places, cosine, sine, is_interleaved) for x in (queries, new_k))
    present_k, present_v = (
        _appended(past, new, lengths, starts, max(room, total))
        for past, new in ((past_k, new_k), (past_v, new_v))
    )
    window = int(random.integers(1, 5)) if coin(random) else -1
    cap = 2.0 if coin(random) else 0.0
    added = normal(random, 1, heads, n, total) if coin(random) else None
    sink = normal(random, heads) if coin(random) else None
    attributes |= {"local_window_size": window, "softcap": cap}
    y = np.full((b, n, heads * head), np.nan, np.float32)
    for at, (length, start) in enumerate(zip(lengths, starts, strict=True)):
        k_of, v_of = (np.repeat(x[at, :, :length], each, 0) for x in (present_k, present_v))
        scores = queries[at] @ k_of.swapaxes(1, 2) * np.float32(head**-0.5)
        scores = np.tanh(scores / cap) * cap if cap else scores
        scores = scores if added is None else scores + added[0, :, :, :length]
        behind = start + np.arange(n)[:, None] - np.arange(length)
        seen = (behind >= 0) & ((window < 0) | (behind < window))
        shares = _shares(np.where(seen, scores, LOWEST)[None], sink)[0]
        rows = min(n, length)
        y[at, :rows] = flat((shares @ v_of)[None])[0, :rows]
    inputs = [q, k, v, past_k, past_v, (lengths - 1).astype(np.int32), np.array(total, np.int32)]
    inputs += [cosine, sine, None, added, sink]
    if coin(random):
        inputs[:3] = [np.concatenate([q, k, v], 2), None, None]
    expected = [y, present_k, present_v]
    return Case("GroupQueryAttention", inputs, expected, attributes, (6,))


@case
def grouped_queries_of_padded_chunks(random: Random) -> Case:
    """The rows of a chunk that count are as many as a batch has; the caches have room for all."""
    b, kv_heads, each, n = sizes(random, 4, 4)
    heads, head, room = kv_heads * each, 16, 12
    counts = random.integers(1, n + 1, b)
    starts = random.integers(0, room - n, b)
    q, k, v = (
        normal(random, b, n, heads * head),
        *(normal(random, b, n, kv_heads * head) for _ in "kv"),
    )
    past = [normal(random, b, kv_heads, room, head) for _ in "kv"]
    ends = starts + counts
    present = [
        _appended(x, by_heads(new, kv_heads), ends, starts, room)
        for x, new in zip(past, (k, v), strict=True)
    ]
    keys, values = (np.nan_to_num(x) for x in present)
    behind = starts[:, None, None] + np.arange(n)[:, None] - np.arange(room)
    offset = np.where(behind >= 0, np.float32(0), LOWEST)[:, None]
    y = flat(attended(by_heads(q, heads), keys, values, head**-0.5, offset)).astype(np.float32)
    y[np.arange(n) >= counts[:, None]] = np.nan
    inputs = [q, k, v, *past, (ends - 1).astype(np.int32), np.array(room, np.int32)]
    inputs += [None] * 9 + [counts.astype(np.int32)]
    attributes = {"num_heads": heads, "kv_num_heads": kv_heads}
    return Case("GroupQueryAttention", inputs, [y, *present], attributes, (6,))


def _appended(past: Array, new: Array, lengths: Array, starts: Array, room: int) -> Array:
    """The cache up to each sequence's length; the rest may be anything."""
    present = np.full((*past.shape[:2], room, past.shape[3]), np.nan, np.float32)
    for at, (length, start) in enumerate(zip(lengths, starts, strict=True)):
        present[at, :, :start] = past[at, :, :start]
        present[at, :, start:length] = new[at, :, : length - start]
    return present


@case
def grouped_queries_with_norms(random: Random) -> Case:
    b, n, kv_heads, each = sizes(random, 4, 3)
    heads, head = kv_heads * each, 16
    q, k, v = (
        normal(random, b, n, heads * head),
        *(normal(random, b, n, kv_heads * head) for _ in "kv"),
    )
    of_q, of_k = normal(random, head), normal(random, head)
    queries = rms_norm(by_heads(q, heads), of_q, 1e-6)
    keys, values = rms_norm(by_heads(k, kv_heads), of_k, 1e-6), by_heads(v, kv_heads)
    y = flat(attended(queries, keys, values, 0.3, causal(n, n, 0)))
    none = np.zeros((b, kv_heads, 0, head), np.float32)
    inputs = [q, k, v, none, none, np.full(b, n - 1, np.int32), np.array(n, np.int32)]
    inputs += [None] * 7 + [of_q, of_k]
    attributes = {"num_heads": heads, "kv_num_heads": kv_heads, "scale": 0.3}
    return Case(
        "GroupQueryAttention",
        inputs,
        [y.astype(np.float32), keys, values],
        attributes,
        (6,),
        has_peer=False,
    )
