"""Random nodes of com.microsoft's mixtures of experts, with their results by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.operators.microsoft_cases import (
    Array,
    Case,
    Random,
    case,
    coin,
    gelu_by_tanh,
    normal,
    sigmoid,
    sizes,
    softmax,
)
from tests.operators.microsoft_weight_cases import unpacked

ACTIVATIONS: dict[str, Any] = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * sigmoid(x),
    "gelu": gelu_by_tanh,
    "identity": lambda x: x,
}
SWIGLU = {"activation_alpha": 1.25, "activation_beta": 0.5, "swiglu_limit": 1.5}


def swiglu(g: Array, linear: Array) -> Array:
    g, linear = np.minimum(g, 1.5), np.clip(linear, -1.5, 1.5)
    return g * sigmoid(1.25 * g) * (linear + 0.5)


def routed(x: Array, logits: Array, k: int, is_normalized: bool, expert: Any) -> Array:
    """The results of each row's experts, by their shares; expert(e, row) is the result of one."""
    y = np.zeros_like(x)
    shares = softmax(logits)
    for t, row in enumerate(x):
        chosen = np.argsort(-logits[t], kind="stable")[:k]
        weights = shares[t, chosen]
        weights = weights / weights.sum() if is_normalized else weights
        y[t] = sum(w * expert(e, row) for w, e in zip(weights, chosen, strict=True))
    return y


def _attributes(random: Random, name: str, k: int) -> dict[str, Any]:
    attributes = {"k": k, "activation_type": name, "normalize_routing_weights": int(coin(random))}
    return attributes | (SWIGLU if name == "swiglu" else {})


@case
def mixture(random: Random) -> Case:
    rows, width, inner, count = sizes(random, 4)
    count, name = count + 3, str(random.choice([*ACTIVATIONS, "swiglu"]))
    fusion = int(random.integers(3)) if name == "swiglu" else 0
    has_third = (name == "swiglu" and fusion == 0) or (name != "swiglu" and coin(random))
    attributes = _attributes(random, name, int(random.integers(1, 4))) | {"swiglu_fusion": fusion}
    x, logits = normal(random, rows, width), normal(random, rows, count)
    w1, b1 = (normal(random, count, inner * (2 if fusion else 1), *last) for last in ([width], []))
    w2, b2 = normal(random, count, width, inner), normal(random, count, width)
    w3 = normal(random, count, inner, width) if has_third else None
    b3 = normal(random, count, inner) if has_third and coin(random) else None

    def expert(e: int, row: Array) -> Array:
        h = w1[e] @ row + b1[e]
        gate = None if w3 is None else w3[e] @ row + (0 if b3 is None else b3[e])
        if fusion == 1:
            h, gate = h[::2], h[1::2]
        elif fusion == 2:
            h, gate = np.split(h, 2)
        if name == "swiglu":
            h = swiglu(h, gate)
        else:
            h = ACTIVATIONS[name](h) * (1 if gate is None else gate)
        return w2[e] @ h + b2[e]

    y = routed(x, logits, attributes["k"], bool(attributes["normalize_routing_weights"]), expert)
    inputs = [x, logits, w1, b1, w2, b2, w3, b3]
    has_peer = not has_third and fusion != 2
    return Case("MoE", inputs, [y], attributes, has_peer=has_peer)


@case
def quantized_mixture(random: Random) -> Case:
    """Shares are normalized, whatever the attribute says; ONNX Runtime rounds rows to bytes at times."""
    rows, width, inner, count = *sizes(random, 1), 32, 32, int(random.integers(3, 7))
    name, bits = str(random.choice(["silu", "swiglu"])), int(random.choice([4, 8]))
    block = 16 if coin(random) else 0
    attributes = _attributes(random, name, int(random.integers(1, 4)))
    attributes |= {"expert_weight_bits": bits, "weights_prepacked": 0}
    attributes |= {"swiglu_fusion": 1} if name == "swiglu" else {}
    attributes |= {"block_size": block} if block else {}
    x, logits = normal(random, rows, width), normal(random, rows, count)
    tall = inner * (2 if name == "swiglu" else 1)
    w1, scales1, zeros1, first = _weights(random, count, tall, width, bits, block)
    w2, scales2, zeros2, second = _weights(random, count, width, inner, bits, block)
    b1, b2 = (normal(random, count, n) if coin(random) else None for n in (tall, width))

    def expert(e: int, row: Array) -> Array:
        h = first[e] @ row + (0 if b1 is None else b1[e])
        h = swiglu(h[::2], h[1::2]) if name == "swiglu" else ACTIVATIONS[name](h)
        return second[e] @ h + (0 if b2 is None else b2[e])

    y = routed(x, logits, attributes["k"], True, expert)
    inputs = [x, logits, w1, scales1, b1, w2, scales2, b2, None, None, None, zeros1, zeros2]
    known = (2, 3, 4, 5, 6, 7, 11, 12)
    rounding = 0.1 * float(np.abs(y).max())
    return Case("QMoE", inputs, [y], attributes, known, tolerance=1e-3, peer_tolerance=rounding)


def _weights(
    random: Random, count: int, rows: int, width: int, bits: int, block: int
) -> tuple[Array, Array, Array | None, Array]:
    """Packed weights, scales, perhaps zero points, and the floats that they are."""
    packed = random.integers(0, 256, (count, rows, width * bits // 8)).astype(np.uint8)
    groups = np.arange(width) // block if block else np.zeros(width, int)
    blocks = int(groups[-1]) + 1
    scales = ((random.random((count, rows, blocks)) + 0.5) * 2.0**-bits).astype(np.float32)
    points, zeros = np.full((count, rows, blocks), 1 << bits - 1), None
    if coin(random):
        shape = (count, rows, -(-blocks * bits // 8)) if block else (count, -(-rows * bits // 8))
        zeros = random.integers(0, 256, shape).astype(np.uint8)
        points = unpacked(zeros, bits, blocks if block else rows).reshape(count, rows, blocks)
    codes = unpacked(packed, bits, width).astype(np.float32)
    floats = (codes - points[:, :, groups]) * scales[:, :, groups]
    own = scales if block else scales[:, :, 0]
    return packed, own, zeros, floats.astype(np.float32)
