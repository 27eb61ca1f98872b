"""Random nodes of com.microsoft, with the results that ONNX Runtime's documentation of the operators asks for.

A case is a function of a random generator. Its results are NumPy's, so that tests need no other runtime; where ONNX
Runtime is installed, it is asked, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import erf
from typing import Any

import numpy as np
from onnx import ModelProto, helper, numpy_helper

from tests.onnx.models import model, node, tensor

Array = Any
Random = np.random.Generator


@dataclass(frozen=True, slots=True)
class Case:
    """A node and its results.

    inputs     None is one that is absent
    expected   an output each; None is one that the node doesn't have. One of floats may be NaN where nothing is said
    known      positions of inputs that are constants of the model
    tolerance  of ours, in quanta where results are integers. ONNX Runtime may round more: it has `peer_tolerance`
    has_peer   whether ONNX Runtime computes it on a CPU
    """

    operator: str
    inputs: Sequence[Array | None]
    expected: Sequence[Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    known: tuple[int, ...] = ()
    domain: str = "com.microsoft"
    opset: int = 21
    tolerance: float = 2e-4
    peer_tolerance: float = 2e-4
    has_peer: bool = True

    @property
    def model(self) -> ModelProto:
        names = ["" if x is None else f"x{n}" for n, x in enumerate(self.inputs)]
        outputs = ["" if y is None else f"y{n}" for n, y in enumerate(self.expected)]
        inputs = [
            tensor(f"x{n}", *x.shape, type=helper.np_dtype_to_tensor_dtype(x.dtype))
            for n, x in enumerate(self.inputs)
            if x is not None and n not in self.known
        ]
        constants = [
            numpy_helper.from_array(x, f"x{n}")
            for n, x in enumerate(self.inputs)
            if x is not None and n in self.known
        ]
        one = node(self.operator, names, outputs, name="n", domain=self.domain, **self.attributes)
        return model(
            [one], inputs, [*filter(None, outputs)], opset=self.opset, domains=("com.microsoft",),
            initializer=constants,
        )  # fmt: skip

    @property
    def feeds(self) -> dict[str, Array]:
        return {
            f"x{n}": x for n, x in enumerate(self.inputs) if x is not None and n not in self.known
        }

    def check(self, results: Sequence[Array], tolerance: float) -> None:
        wanted = [y for y in self.expected if y is not None]
        assert len(results) == len(wanted)
        for found, expected in zip(results, wanted, strict=True):
            assert found.shape == expected.shape
            assert found.dtype == expected.dtype
            is_float = expected.dtype.kind == "f"
            said = ~np.isnan(expected) if is_float else np.full(expected.shape, True)
            np.testing.assert_allclose(
                found[said].astype(np.float64),
                expected[said].astype(np.float64),
                rtol=min(tolerance, 1e-3) if is_float else 0,
                atol=tolerance,
            )


Maker = Callable[[Random], Case]
CASES: dict[str, Maker] = {}


def case(maker: Maker) -> Maker:
    """Enter a case, by the name of its function."""
    CASES[maker.__name__] = maker
    return maker


def normal(random: Random, *shape: int) -> Array:
    return random.standard_normal(shape).astype(np.float32)


def sizes(random: Random, count: int, most: int = 6) -> list[int]:
    return [int(n) for n in random.integers(1, most + 1, count)]


def coin(random: Random) -> bool:
    return bool(random.integers(2))


def gelu(x: Array) -> Array:
    return (x * (1 + np.vectorize(erf)(x / np.sqrt(2))) / 2).astype(np.float32)


def gelu_by_tanh(x: Array) -> Array:
    return (0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))).astype(np.float32)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array, axis: int = -1) -> Array:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def layer_norm(x: Array, scale: Array, shift: Array | None, epsilon: float) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * scale
    return y if shift is None else y + shift


def rms_norm(x: Array, scale: Array, epsilon: float) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * scale


# Norms.


@case
def skip_layer_norm(random: Random) -> Case:
    b, n, h = sizes(random, 3)
    h += 3
    x, scale = normal(random, b, n, h), normal(random, h)
    skip = normal(random, *[(b, n, h), (1, n, h), (n, h)][random.integers(3)])
    shift, bias = (normal(random, h) if coin(random) else None for _ in range(2))
    total = x + skip if bias is None else x + skip + bias
    y = layer_norm(total, scale, shift, 1e-3)
    outputs = [y, None, None, total] if coin(random) else [y]
    return Case("SkipLayerNormalization", [x, skip, scale, shift, bias], outputs, {"epsilon": 1e-3})


@case
def skip_simplified_layer_norm(random: Random) -> Case:
    b, n, h = sizes(random, 3)
    x, skip, scale = normal(random, b, n, h), normal(random, b, n, h), normal(random, h)
    bias = normal(random, h) if coin(random) else None
    total = x + skip if bias is None else x + skip + bias
    outputs = [rms_norm(total, scale, 1e-5), None, None, total]
    inputs = [x, skip, scale, bias]
    return Case("SkipSimplifiedLayerNormalization", inputs, outputs, {"epsilon": 1e-5})


@case
def simplified_layer_norm(random: Random) -> Case:
    x = normal(random, *sizes(random, 3))
    scale = normal(random, x.shape[-1])
    y = rms_norm(x, scale, 1e-5)
    return Case(
        "SimplifiedLayerNormalization", [x, scale], [y], {"axis": -1, "epsilon": 1e-5}, domain=""
    )


@case
def layer_norm_of_an_old_set(random: Random) -> Case:
    x = normal(random, *sizes(random, 2), 7)
    scale, shift = normal(random, 7), normal(random, 7)
    y = layer_norm(x, scale, shift, 1e-5)
    return Case("LayerNormalization", [x, scale, shift], [y], domain="", opset=12)


@case
def embed_layer_norm(random: Random) -> Case:
    b, n, h = sizes(random, 3)
    h += 3
    words, places, segments = normal(random, 9, h), normal(random, n + 2, h), normal(random, 3, h)
    scale, shift = normal(random, h), normal(random, h)
    ids = random.integers(0, 9, (b, n)).astype(np.int32)
    kinds = random.integers(0, 3, (b, n)).astype(np.int32) if coin(random) else None
    mask = random.integers(0, 2, (b, n)).astype(np.int32) if coin(random) else None
    at = random.integers(0, n + 2, (b, n)).astype(np.int32) if coin(random) else None
    total = words[ids] + (places[:n] if at is None else places[at])
    if kinds is not None:
        total = total + segments[kinds]
    counts = np.zeros(b, np.int32) if mask is None else mask.sum(1).astype(np.int32)
    inputs = [
        ids,
        kinds,
        words,
        places,
        None if kinds is None else segments,
        scale,
        shift,
        mask,
        at,
    ]
    y = layer_norm(total, scale, shift, 1e-6)
    return Case("EmbedLayerNormalization", inputs, [y, counts, total], {"epsilon": 1e-6})


# Activations.


@case
def bias_gelu(random: Random) -> Case:
    x = normal(random, *sizes(random, 3))
    bias = normal(random, x.shape[-1])
    return Case("BiasGelu", [x, bias], [gelu(x + bias)])


@case
def gelu_alone(random: Random) -> Case:
    x = normal(random, *sizes(random, 2))
    return Case("Gelu", [x], [gelu(x)])


@case
def fast_gelu(random: Random) -> Case:
    x = normal(random, *sizes(random, 3))
    bias = normal(random, x.shape[-1]) if coin(random) else None
    return Case("FastGelu", [x, bias], [gelu_by_tanh(x if bias is None else x + bias)])


@case
def quick_gelu(random: Random) -> Case:
    x, alpha = normal(random, *sizes(random, 3)), float(np.float32(random.random() * 2))
    return Case("QuickGelu", [x], [x * sigmoid(np.float32(alpha) * x)], {"alpha": alpha})


# Products and convolutions.


@case
def fused_product(random: Random) -> Case:
    b, m, n, k = sizes(random, 4)
    turn_a, turn_b = int(coin(random)), int(coin(random))
    a, w = normal(random, b, m, k), normal(random, *((k, n) if coin(random) else (b, k, n)))
    y = np.float32(0.5) * (a @ w)
    if turn_a:
        a = np.ascontiguousarray(a.swapaxes(-1, -2))
    if turn_b:
        w = np.ascontiguousarray(w.swapaxes(-1, -2))
    attributes = {"transA": turn_a, "transB": turn_b, "alpha": 0.5}
    known = (1,) if coin(random) else ()
    return Case("FusedMatMul", [a, w], [y], attributes, known)


@case
def fused_product_of_turned_batches(random: Random) -> Case:
    b, c, m, n, k = sizes(random, 5)
    a, w = normal(random, b, c, m, k), normal(random, b, c, k, n)
    y = a @ w
    given = np.ascontiguousarray(np.moveaxis(a, 2, 0))
    return Case("FusedMatMul", [given, w], [y], {"transBatchA": 1})


ACTIVATIONS: dict[str, tuple[list[float], Callable[..., Array]]] = {
    "Relu": ([], lambda x: np.maximum(x, 0)),
    "Tanh": ([], np.tanh),
    "Sigmoid": ([], sigmoid),
    "LeakyRelu": ([0.25], lambda x, alpha: np.where(x >= 0, x, alpha * x)),
    "Clip": ([-0.5, 0.75], np.clip),
    "HardSigmoid": ([0.25, 0.5], lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1)),
}


def convolution(x: Array, w: Array, bias: Array | None, padding: int) -> Array:
    """The convolution of images with filters, by windows."""
    padded = np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], (2, 3))
    y = np.einsum("nchwij,fcij->nfhw", windows, w)
    return y if bias is None else y + bias[:, None, None]


@case
def fused_convolution(random: Random) -> Case:
    n, c, f = sizes(random, 3)
    name = [*ACTIVATIONS][random.integers(len(ACTIVATIONS))]
    options, function = ACTIVATIONS[name]
    padding = int(random.integers(2))
    x, w = normal(random, n, c, 7, 6), normal(random, f, c, 3, 3)
    bias = normal(random, f) if coin(random) else None
    y = convolution(x, w, bias, padding)
    z = normal(random, *y.shape) if coin(random) and bias is not None else None
    expected = function(y if z is None else y + z, *options).astype(np.float32)
    attributes = {"activation": name, "pads": [padding] * 4, "kernel_shape": [3, 3]}
    if options:
        attributes["activation_params"] = options
    return Case("FusedConv", [x, w, bias, z], [expected], attributes, (1, 2))


@case
def fused_gemm(random: Random) -> Case:
    m, n, k = sizes(random, 3)
    a, b, c = normal(random, m, k), normal(random, k, n), normal(random, n)
    turn_a, turn_b = int(coin(random)), int(coin(random))
    y = 0.5 * (a @ b) + c
    attributes = {"transA": turn_a, "transB": turn_b, "alpha": 0.5}
    if coin(random):
        attributes |= {"activation": "LeakyRelu", "activation_alpha": 0.25}
        y = np.where(y >= 0, y, np.float32(0.25) * y)
    else:
        attributes |= {"activation": "Relu"}
        y = np.maximum(y, 0)
    a, b = a.T.copy() if turn_a else a, b.T.copy() if turn_b else b
    return Case("FusedGemm", [a, b, c], [y.astype(np.float32)], attributes, (1, 2))


# Shapes, and norms of groups.


@case
def range_of_floats(random: Random) -> Case:
    start, delta = float(random.integers(-5, 5)), float(random.integers(1, 4)) / 2
    limit = start + float(random.integers(0, 9))
    numbers = [np.float32(n) for n in (start, limit, delta)]
    inputs = [np.asarray(n) for n in numbers]
    if coin(random):
        inputs, delta = inputs[:2], 1.0
    y = np.arange(start, limit, delta, np.float32)
    return Case("Range", inputs, [y], known=(0, 1, 2))


@case
def triangle(random: Random) -> Case:
    x, k, upper = normal(random, *sizes(random, 3)), int(random.integers(-3, 4)), int(coin(random))
    y = np.triu(x, k) if upper else np.tril(x, k)
    return Case("Trilu", [x, np.array(k)], [y], {"upper": upper}, (1,))


@case
def padding(random: Random) -> Case:
    x = normal(random, *sizes(random, 2))
    amounts = random.integers(0, 3, (2, 2))
    y = np.pad(x, [*zip(*amounts, strict=True)], constant_values=0.5)
    pads = amounts.reshape(*([1, 4] if coin(random) else [4]))
    return Case("Pad", [x, pads, np.array([0.5], np.float32)], [y], known=(1, 2))


@case
def one_more_axis(random: Random) -> Case:
    x, axis = normal(random, *sizes(random, 3)), int(random.integers(-4, 4))
    return Case("ExpandDims", [x, np.array(axis, np.int32)], [np.expand_dims(x, axis)], known=(1,))


@case
def inverse(random: Random) -> Case:
    b, n = sizes(random, 2)
    x = normal(random, b, n, n) + 4 * np.eye(n, dtype=np.float32)[random.permutation(n)]
    y = np.linalg.inv(x.astype(np.float64)).astype(np.float32)
    return Case("Inverse", [x], [y], tolerance=2e-3, peer_tolerance=2e-3)


@case
def group_norm(random: Random) -> Case:
    n, h, w, groups, each = sizes(random, 5)
    c, epsilon, activation, is_last = groups * each, 1e-4, int(coin(random)), int(coin(random))
    x, scale, shift = normal(random, n, h, w, c), normal(random, c), normal(random, c)
    y = _group_norm(x, groups, scale, shift, epsilon)
    y = y * sigmoid(y) if activation else y
    attributes = {
        "groups": groups,
        "epsilon": epsilon,
        "activation": activation,
        "channels_last": is_last,
    }
    if not is_last:
        x, y = (np.ascontiguousarray(np.moveaxis(one, 3, 1)) for one in (x, y))
    return Case("GroupNorm", [x, scale, shift], [y], attributes, has_peer=False)


def _group_norm(x: Array, groups: int, scale: Array, shift: Array, epsilon: float) -> Array:
    parts = x.reshape(*x.shape[:3], groups, -1)
    centred = parts - parts.mean((1, 2, 4), keepdims=True)
    deviation = np.sqrt((centred**2).mean((1, 2, 4), keepdims=True) + np.float32(epsilon))
    return (centred / deviation).reshape(x.shape) * scale + shift


@case
def skip_group_norm(random: Random) -> Case:
    n, h, w, groups, each = sizes(random, 5)
    c = groups * each
    x, scale, shift = normal(random, n, h, w, c), normal(random, c), normal(random, c)
    skip = normal(random, *[(n, h, w, c), (n, 1, 1, c), (n, c)][random.integers(3)])
    bias = normal(random, c) if coin(random) else None
    total = x + (skip[:, None, None] if skip.ndim == 2 else skip)
    total = total if bias is None else total + bias
    y = _group_norm(total, groups, scale, shift, 1e-5)
    attributes = {"groups": groups, "activation": 0}
    inputs = [x, scale, shift, skip, bias]
    return Case("SkipGroupNorm", inputs, [y, total], attributes, has_peer=False)


@case
def bias_add(random: Random) -> Case:
    x = normal(random, *sizes(random, 3))
    bias, skip = normal(random, x.shape[-1]), normal(random, *x.shape)
    return Case("BiasAdd", [x, bias, skip], [x + bias + skip], has_peer=False)


@case
def bias_split_gelu(random: Random) -> Case:
    b, n, h = sizes(random, 3)
    x, bias = normal(random, b, n, 2 * h), normal(random, 2 * h)
    left, right = np.split(x + bias, 2, -1)
    return Case("BiasSplitGelu", [x, bias], [left * gelu(right)], has_peer=False)


# States.


@case
def linear_attention(random: Random) -> Case:
    b, steps, shared, features, wide = sizes(random, 5)
    rule = str(random.choice(["linear", "gated", "delta", "gated_delta"]))
    heads, kv_heads = [(2 * shared, 2), (2, 2 * shared)][random.integers(2)]
    q, k = (
        normal(random, b, steps, heads, features),
        0.3 * normal(random, b, steps, kv_heads, features),
    )
    v, past = normal(random, b, steps, kv_heads, wide), normal(random, b, kv_heads, features, wide)
    by_feature = coin(random)
    shape = (b, steps, kv_heads, features if by_feature else 1)
    decay = -random.random(shape).astype(np.float32) if "gated" in rule else None
    rate = None
    if "delta" in rule:
        rate = random.random((b, steps, kv_heads if coin(random) else 1)).astype(np.float32)
    y = np.zeros((b, steps, max(heads, kv_heads), wide), np.float32)
    state = past
    for t in range(steps):
        if decay is not None:
            state = state * np.exp(decay[:, t])[..., None]
        added = v[:, t]
        if rate is not None:
            added = rate[:, t, :, None] * (added - np.einsum("bhij,bhi->bhj", state, k[:, t]))
        state = state + k[:, t, :, :, None] * added[:, :, None]
        queries = np.repeat(q[:, t], max(1, kv_heads // heads), 1)
        states = np.repeat(state, max(1, heads // kv_heads), 1)
        y[:, t] = np.einsum("bhi,bhij->bhj", queries, states) / np.sqrt(features)
    flat = [None if x is None else x.reshape(b, steps, -1) for x in (q, k, v, decay, rate)]
    attributes = {"q_num_heads": heads, "kv_num_heads": kv_heads, "update_rule": rule}
    inputs = [*flat[:3], past, *flat[3:]]
    return Case("LinearAttention", inputs, [y.reshape(b, steps, -1), state], attributes)


@case
def causal_convolution(random: Random) -> Case:
    b, channels, length, taps = sizes(random, 4)
    apart, is_last = int(random.integers(1, 3)), int(coin(random))
    before = (taps - 1) * apart
    x, w = normal(random, b, channels, length), normal(random, channels, 1, taps)
    bias = normal(random, channels) if coin(random) else None
    past = normal(random, b, channels, before) if coin(random) else None
    start = np.zeros((b, channels, before), np.float32) if past is None else past
    whole = np.concatenate([start, x], 2)
    y = sum(whole[:, :, n * apart :][..., :length] * w[:, 0, n, None] for n in range(taps))
    y = y if bias is None else y + bias[:, None]
    activation = str(random.choice(["none", "silu", "swish"]))
    y = y if activation == "none" else y * sigmoid(y)
    present = whole[:, :, length:]
    attributes = {"activation": activation, "dilation": apart, "channels_last": is_last}
    tensors = [x, past, y.astype(np.float32), present]
    if is_last:
        tensors = [None if one is None else one.swapaxes(1, 2).copy() for one in tensors]
    x, past, y, present = tensors
    return Case("CausalConvWithState", [x, w, bias, past], [y, present], attributes)
