"""Random nodes of com.microsoft with weights of few bits, with their results by NumPy."""

from __future__ import annotations

import numpy as np

import taskc as tc
from taskc.kernels.quantized.words import multiplies_words
from tests.operators.microsoft_cases import Array, Case, Random, case, coin, normal, sizes


def unpacked(rows: Array, bits: int, count: int) -> Array:
    """The first numbers of rows of bytes, the lowest bits first."""
    return np.stack([rows >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)], -1).reshape(
        *rows.shape[:-1], -1
    )[..., :count]


def _blocks(random: Random, n: int, k: int, bits: int, block: int) -> tuple[Array, Array]:
    blocks = -(-k // block)
    packed = random.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8)
    return packed, (random.random((n, blocks)) * 0.1 + 0.05).astype(np.float32)


@case
def product_of_few_bits(random: Random) -> Case:
    m, n = sizes(random, 2, 9)
    bits, block = int(random.choice([2, 4, 8])), int(random.choice([16, 32, 64, 128, 256]))
    k = int(random.integers(1, 3)) * block if coin(random) else block + 6
    packed, scales = _blocks(random, n, k, bits, block)
    blocks = scales.shape[1]
    codes = unpacked(packed.reshape(n, -1), bits, k).astype(np.float32)
    zeros, points = None, np.full((n, blocks), 1 << bits - 1, np.float32)
    match random.integers(3):
        case 1:
            zeros = random.integers(0, 256, (n, -(-blocks * bits // 8))).astype(np.uint8)
            points = unpacked(zeros, bits, blocks).astype(np.float32)
        case 2 if bits < 8:
            zeros = points = (random.random((n, blocks)) * (1 << bits)).astype(np.float32)
    places = np.arange(k) // block
    groups = None
    # With groups, ONNX Runtime doesn't read zero points of bytes.
    if bits == 4 and (zeros is None or zeros.dtype == np.float32) and coin(random):
        groups = random.permutation(places).astype(np.int32)
        places = groups
    w = (codes - points[:, places]) * scales[:, places]
    bias = normal(random, n) if coin(random) else None
    x = normal(random, 2, m, k)
    y = x @ w.T if bias is None else x @ w.T + bias
    attributes = {"N": n, "K": k, "bits": bits, "block_size": block}
    known = (1, 2, 3, 4, 5) if coin(random) or groups is not None else ()
    inputs = [x, packed, scales, zeros, groups, bias]
    return Case("MatMulNBits", inputs, [y], attributes, known, tolerance=1e-3, peer_tolerance=1e-3)


def _rounded(x: Array, block: int) -> Array:
    """Rows in blocks, whose largest element becomes 127 or -127 of a byte's numbers, and then floats again."""
    k = x.shape[-1]
    whole = np.zeros((*x.shape[:-1], -(-k // block), block), np.float32)
    whole.reshape(*x.shape[:-1], -1)[..., :k] = x
    factors = np.abs(whole).max(-1, keepdims=True) * np.float32(1 / 127)
    return (np.rint(whole * (1 / factors)) * factors).reshape(*x.shape[:-1], -1)[..., :k]


@case
def product_with_rounded_activations(random: Random) -> Case:
    """At level 4 rows are rounded to bytes, where a processor multiplies these fast."""
    m, n = sizes(random, 2, 19)
    bits, block = int(random.choice([2, 4, 8])), int(random.choice([16, 32, 64, 128]))
    k = int(random.integers(1, 3)) * block if coin(random) else block + 6
    packed, scales = _blocks(random, n, k, bits, block)
    blocks = scales.shape[1]
    zeros, points = None, np.full((n, blocks), 1 << bits - 1, np.float32)
    if coin(random):
        zeros = random.integers(0, 256, (n, -(-blocks * bits // 8))).astype(np.uint8)
        points = unpacked(zeros, bits, blocks).astype(np.float32)
    places = np.arange(k) // block
    w = (unpacked(packed.reshape(n, -1), bits, k) - points[:, places]) * scales[:, places]
    bias, x = normal(random, n) if coin(random) else None, normal(random, 2, m, k)
    is_fast = multiplies_words(bits, tc.machine())
    y = (_rounded(x, block) if is_fast else x) @ w.T
    y = y if bias is None else y + bias
    attributes = {"N": n, "K": k, "bits": bits, "block_size": block, "accuracy_level": 4}
    inputs = [x, packed, scales, zeros, None, bias]
    # ONNX Runtime rounds where it has a kernel for it: each element of x by half of a byte's step.
    step = np.abs(x).max() / 127
    most = 1e-3 + float(step * np.abs(w).sum(-1).max())
    return Case(
        "MatMulNBits", inputs, [y], attributes, (1, 2, 3, 5), tolerance=1e-3, peer_tolerance=most
    )


FP4 = [0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4]
NF4 = [
    -1, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0, 0.0795803,
    0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1,
]  # fmt: skip


@case
def product_of_float_codes(random: Random) -> Case:
    m, n = sizes(random, 2)
    k, kind = 16 * int(random.integers(1, 4)), int(coin(random))
    packed = random.integers(0, 256, n * k // 2).astype(np.uint8)
    scales = random.random(n * k // 16).astype(np.float32)
    table = np.array([[*FP4, *[-x for x in FP4]], NF4][kind], np.float32)
    codes = np.stack([packed >> 4, packed & 15], 1).reshape(-1)
    w = (table[codes] * np.repeat(scales, 16)).reshape(n, k)
    x = normal(random, m, k)
    attributes = {"N": n, "K": k, "block_size": 16, "quant_type": kind}
    return Case("MatMulBnb4", [x, packed, scales], [x @ w.T], attributes, (1, 2))


@case
def gathered_blocks(random: Random) -> Case:
    rows, bits = int(random.integers(2, 9)), int(random.choice([2, 4, 8]))
    blocks = int(random.integers(1, 4))
    width = 16 * blocks
    data = random.integers(0, 256, (rows, width * bits // 8)).astype(np.uint8)
    scales = random.random((rows, blocks)).astype(np.float32)
    zeros, points = None, np.full((rows, blocks), 1 << bits - 1, np.float32)
    if coin(random):
        zeros = random.integers(0, 256, (rows, -(-blocks * bits // 8))).astype(np.uint8)
        points = unpacked(zeros, bits, blocks).astype(np.float32)
    places = random.integers(-rows, rows, sizes(random, 2, 3))
    places = places.astype(np.int32) if coin(random) else places
    groups = np.arange(width) // 16
    whole = (unpacked(data, bits, width) - points[:, groups]) * scales[:, groups]
    attributes = {"bits": bits, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}
    return Case(
        "GatherBlockQuantized",
        [data, places, scales, zeros],
        [whole[places]],
        attributes,
        (0, 2, 3),
    )
