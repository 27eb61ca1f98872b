"""Random nodes of com.microsoft on quantized numbers, with their results by NumPy.

Results that are quantized may be one quantum off: where a float lies halfway between two, its rounding decides.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.operators.microsoft_cases import (
    Array,
    Case,
    Random,
    case,
    coin,
    normal,
    sigmoid,
    sizes,
    softmax,
)


def quantized(
    random: Random, *shape: int, signed: bool = False
) -> tuple[Array, Array, Array, Array]:
    """Bytes, their scale and zero point, and the floats that they are."""
    dtype = np.int8 if signed else np.uint8
    low = -128 if signed else 0
    x = random.integers(low, low + 256, shape).astype(dtype)
    scale = np.array(random.random() * 0.05 + 0.01, np.float32)
    zero = np.array(low + random.integers(90, 160), dtype)
    return x, scale, zero, (x.astype(np.float32) - np.float32(zero)) * scale


def bytes_of(y: Array, scale: Array, zero: Array) -> Array:
    limits = np.iinfo(zero.dtype)
    return np.clip(np.round(y / scale) + np.float32(zero), limits.min, limits.max).astype(
        zero.dtype
    )


def _result(random: Random, y: Array, dtype: Any) -> tuple[Array, Array, Array]:
    """A scale and a zero point, and what they make of a result."""
    scale = np.array(max(float(np.abs(y).max()), 0.1) / 100, np.float32)
    zero = np.array(np.iinfo(dtype).min + random.integers(100, 150), dtype)
    return scale, zero, bytes_of(y, scale, zero)


def _quantum(operator: str, inputs: list[Any], y: Array, **options: Any) -> Case:
    return Case(operator, inputs, [y], **{"tolerance": 1, "peer_tolerance": 1, **options})


@case
def floats_of_words(random: Random) -> Case:
    return _words(random, "DequantizeLinear")


@case
def words(random: Random) -> Case:
    return _words(random, "QuantizeLinear")


def _words(random: Random, operator: str) -> Case:
    """16 bits, with a scale for all or for each row."""
    rows, columns = sizes(random, 2)
    dtype: Any = np.int16 if coin(random) else np.uint16
    middle = 0 if dtype is np.int16 else 32768
    shape = (rows,) if coin(random) else ()
    scale = np.asarray(random.random(shape) * 1e-3 + 1e-3, np.float32)
    zero = np.full(shape, middle, dtype)
    of, at = (x.reshape(-1, 1) if shape else x for x in (scale, zero.astype(np.float32)))
    x = normal(random, rows, columns)
    codes = np.round(x / of) + at
    attributes = {"axis": 0} if shape else {}
    if operator == "QuantizeLinear":
        return _quantum(operator, [x, scale, zero], codes.astype(dtype), attributes=attributes)
    y = ((codes - at) * of).astype(np.float32)
    return Case(operator, [codes.astype(dtype), scale, zero], [y], attributes)


@case
def quantized_sum(random: Random) -> Case:
    return _of_two(random, "QLinearAdd")


@case
def quantized_product(random: Random) -> Case:
    return _of_two(random, "QLinearMul")


def _of_two(random: Random, operator: str) -> Case:
    shape, is_signed = sizes(random, 3), coin(random)
    a, of_a, zero_a, left = quantized(random, *shape, signed=is_signed)
    b, of_b, zero_b, right = quantized(random, *shape[random.integers(3) :], signed=is_signed)
    y = left + right if operator == "QLinearAdd" else left * right
    scale, zero, expected = _result(random, y, a.dtype)
    return _quantum(operator, [a, of_a, zero_a, b, of_b, zero_b, scale, zero], expected)


@case
def quantized_sigmoid(random: Random) -> Case:
    x, of_x, zero_x, floats = quantized(random, *sizes(random, 3), signed=coin(random))
    scale, zero, expected = _result(random, sigmoid(floats), x.dtype)
    inputs = [x, of_x, zero_x, scale, zero]
    return _quantum("QLinearSigmoid", inputs, expected, known=(1, 2, 3, 4))


@case
def quantized_leaky_relu(random: Random) -> Case:
    x, of_x, zero_x, floats = quantized(random, *sizes(random, 3), signed=coin(random))
    y = np.where(floats >= 0, floats, np.float32(0.25) * floats)
    scale, zero, expected = _result(random, y, x.dtype)
    inputs = [x, of_x, zero_x, scale, zero]
    return _quantum(
        "QLinearLeakyRelu", inputs, expected, attributes={"alpha": 0.25}, known=(1, 2, 3, 4)
    )


@case
def quantized_softmax(random: Random) -> Case:
    """ONNX Runtime's powers are integers, and two quanta off at times."""
    x, of_x, zero_x, floats = quantized(random, *sizes(random, 3), signed=coin(random))
    opset, axis = int(random.choice([11, 13])), int(random.integers(3))
    if opset < 13:
        rows = int(np.prod(x.shape[:axis]))
        y = softmax(floats.reshape(rows, -1)).reshape(x.shape)
    else:
        y = softmax(floats, axis)
    scale, zero = np.array(1 / 256, np.float32), np.array(np.iinfo(x.dtype).min, x.dtype)
    inputs = [x, of_x, zero_x, scale, zero]
    attributes = {"opset": opset, "axis": axis}
    return _quantum(
        "QLinearSoftmax", inputs, bytes_of(y, scale, zero), attributes=attributes, known=(1, 2, 3, 4),
        peer_tolerance=2,
    )  # fmt: skip


@case
def quantized_average(random: Random) -> Case:
    n, c = sizes(random, 2)
    is_last = coin(random)
    x, of_x, zero_x, floats = quantized(random, n, c, 6, 5, signed=coin(random))
    windows = np.lib.stride_tricks.sliding_window_view(floats, (3, 2), (2, 3))
    y = windows.mean((4, 5))
    scale, zero, expected = _result(random, y, x.dtype)
    if is_last:
        x, expected = (np.ascontiguousarray(np.moveaxis(one, 1, 3)) for one in (x, expected))
    attributes = {"kernel_shape": [3, 2], "channels_last": int(is_last)}
    return _quantum(
        "QLinearAveragePool", [x, of_x, zero_x, scale, zero], expected, attributes=attributes
    )


@case
def quantized_global_average(random: Random) -> Case:
    is_last = coin(random)
    x, of_x, zero_x, floats = quantized(random, *sizes(random, 4), signed=coin(random))
    y = floats.mean((1, 2) if is_last else (2, 3), keepdims=True)
    scale, zero, expected = _result(random, y, x.dtype)
    inputs = [x, of_x, zero_x, scale, zero]
    return _quantum(
        "QLinearGlobalAveragePool", inputs, expected, attributes={"channels_last": int(is_last)}
    )


@case
def quantized_parts(random: Random) -> Case:
    is_signed, count = coin(random), int(random.integers(1, 4))
    parts = [
        quantized(random, 2, int(random.integers(1, 5)), 3, signed=is_signed) for _ in range(count)
    ]
    y = np.concatenate([floats for *_, floats in parts], 1)
    scale, zero, expected = _result(random, y, parts[0][0].dtype)
    inputs = [scale, zero, *[one for x, of, at, _ in parts for one in (x, of, at)]]
    known = tuple(place for place in range(len(inputs)) if place < 2 or place % 3 != 2)
    return _quantum("QLinearConcat", inputs, expected, attributes={"axis": 1}, known=known)


@case
def quantized_choice(random: Random) -> Case:
    shape, is_signed = sizes(random, 3), coin(random)
    condition = random.integers(0, 2, shape).astype(bool)
    a, of_a, zero_a, left = quantized(random, *shape, signed=is_signed)
    b, of_b, zero_b, right = quantized(random, *shape[1:], signed=is_signed)
    scale, zero, expected = _result(random, np.where(condition, left, right), a.dtype)
    inputs = [condition, a, of_a, zero_a, b, of_b, zero_b, scale, zero]
    return _quantum("QLinearWhere", inputs, expected, known=(2, 3, 5, 6, 7, 8))


def _weights(random: Random, k: int, n: int) -> tuple[Array, Array, Array, Array]:
    """Bytes with a scale and a zero point for all columns or for each, and the floats that they are."""
    w, scale, zero, floats = quantized(random, k, n, signed=coin(random))
    if coin(random):
        scale = (random.random(n) * 0.05 + 0.01).astype(np.float32)
        zero = np.full(n, zero)
        floats = (w.astype(np.float32) - zero.astype(np.float32)) * scale
    return w, scale, zero, floats


@case
def quantized_gemm(random: Random) -> Case:
    m, n, k = sizes(random, 3, 20)
    w, of_w, zero_w, right = _weights(random, k, n)
    x, of_x, zero_x, left = quantized(random, m, k, signed=w.dtype == np.int8)
    c = random.integers(-999, 999, n).astype(np.int32) if coin(random) else None
    turn_a, turn_b = int(coin(random)), int(coin(random))
    y = 0.5 * (left @ right)
    if c is not None:
        y = y + c * (0.5 * of_x * of_w)
    attributes = {"alpha": 0.5, "transA": turn_a, "transB": turn_b}
    x, w = x.T.copy() if turn_a else x, w.T.copy() if turn_b else w
    inputs = [x, of_x, zero_x, w, of_w, zero_w, c]
    known = (1, 2, 3, 4, 5, 6, 7, 8)
    if coin(random):
        return Case(
            "QGemm",
            inputs,
            [y.astype(np.float32)],
            attributes,
            known,
            tolerance=1e-3,
            peer_tolerance=1e-3,
        )
    scale, zero, expected = _result(random, y, x.dtype)
    return _quantum("QGemm", [*inputs, scale, zero], expected, attributes=attributes, known=known)


@case
def product_of_rounded_floats(random: Random) -> Case:
    b, m, n, k = sizes(random, 4, 9)
    x = normal(random, b, m, k)
    w, of_w, zero_w, floats = _weights(random, k, n)
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    of_x = np.float32((high - low) / np.float32(255))
    zero_x = np.clip(np.round(-low / of_x), 0, 255)
    codes = np.clip(np.round(x / of_x) + zero_x, 0, 255)
    y = (codes - zero_x) * of_x @ floats
    bias = normal(random, n) if coin(random) else None
    y = (y if bias is None else y + bias).astype(np.float32)
    # A number halfway between two bytes may be rounded to either.
    tolerance = 1e-3 + 1.01 * float(of_x) * float(np.abs(floats).max())
    inputs = [x, w, of_w, zero_w, bias]
    options: dict[str, Any] = {
        "known": (1, 2, 3, 4),
        "tolerance": tolerance,
        "peer_tolerance": tolerance,
    }
    return Case("DynamicQuantizeMatMul", inputs, [y], **options)


@case
def product_to_floats(random: Random) -> Case:
    b, m, n, k = sizes(random, 4, 9)
    x, of_x, zero_x, left = quantized(random, b, m, k)
    w, of_w, zero_w, right = _weights(random, k, n)
    bias = normal(random, n) if coin(random) else None
    y = left @ right if bias is None else left @ right + bias
    inputs = [x, w, of_x, of_w, zero_x, zero_w, bias]
    return Case(
        "MatMulIntegerToFloat", inputs, [y], known=(1, 3, 5, 6), tolerance=1e-3, peer_tolerance=1e-3
    )


@case
def rounded_lstm(random: Random) -> Case:
    """ONNX Runtime rounds inputs and states to bytes, and taskc doesn't."""
    steps, b, width, hidden = sizes(random, 4)
    directions = 1 + int(coin(random))
    x = normal(random, steps, b, width)
    w, of_w, zero_w, of_inputs = _gates(random, directions, width, hidden)
    r, of_r, zero_r, of_states = _gates(random, directions, hidden, hidden)
    bias = 0.1 * normal(random, directions, 8 * hidden)
    ends = [
        _lstm(x if d == 0 else x[::-1], of_inputs[d], of_states[d], bias[d])
        for d in range(directions)
    ]
    every = [states if d == 0 else states[::-1] for d, (states, _, _) in enumerate(ends)]
    expected = [np.stack(every, 1), *(np.stack([end[n] for end in ends]) for n in (1, 2))]
    attributes = {
        "hidden_size": hidden,
        "direction": "bidirectional" if directions == 2 else "forward",
    }
    inputs = [x, w, r, bias, None, None, None, None, of_w, zero_w, of_r, zero_r]
    known = (1, 2, 3, 8, 9, 10, 11)
    return Case(
        "DynamicQuantizeLSTM",
        inputs,
        expected,
        attributes,
        known,
        tolerance=1e-3,
        peer_tolerance=0.05,
    )


def _gates(
    random: Random, directions: int, rows: int, hidden: int
) -> tuple[Array, Array, Array, Array]:
    w = random.integers(-100, 100, (directions, rows, 4 * hidden)).astype(np.int8)
    scale = (random.random(directions) * 0.005 + 0.001).astype(np.float32)
    return w, scale, np.zeros(directions, np.int8), w * scale[:, None, None]


def _lstm(x: Array, w: Array, r: Array, bias: Array) -> tuple[Array, Array, Array]:
    """All states of one direction, and the last state and cell; the gates are input, output, forget and cell."""
    hidden = len(r)
    h = c = np.zeros((x.shape[1], hidden), np.float32)
    states = []
    for row in x:
        i, o, f, g = np.split(row @ w + h @ r + bias[: 4 * hidden] + bias[4 * hidden :], 4, 1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        states.append(h)
    return np.stack(states), h, c


@case
def largest_of_last_channels(random: Random) -> Case:
    n, c = sizes(random, 2)
    x = random.integers(0, 256, (n, 6, 5, c)).astype(np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 3), (1, 2))[:, ::2]
    expected = np.ascontiguousarray(windows.max((4, 5)))
    return Case("NhwcMaxPool", [x], [expected], {"kernel_shape": [2, 3], "strides": [2, 1]})
