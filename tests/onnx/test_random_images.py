"""Nodes that read images at places that are data, and other rare ones, at random, against the reference."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto

from .test_random_nodes import Case, Source, failures, integers


def grid_sample(source: Source) -> Case:
    """Places within the image, around it and far from it; the reference divides by 0 for reflections in one pixel."""
    rank = source.one(1, 2, 2, 2, 3)
    padding = source.one("zeros", "border", "reflection")
    aligned, extents = source.number(0, 1), (1, 2, 3, 5, 6)
    if padding == "reflection" and aligned:
        extents = extents[1:]
    sizes = source.shape(rank, rank, *extents)
    x = source.array((source.number(1, 2), source.one(1, 3, 35), *sizes))
    results = source.shape(rank, rank, 1, 2, 3) if rank > 1 else (source.one(1, 5, 18),)
    reach = source.one(1.0, 1.5, 1.5, 9.0)
    grid = (source.random.random((len(x), *results, rank)) * 2 - 1) * reach
    mode = source.one("nearest", "linear", "linear", "cubic")
    opset = source.one(16, 20, 22) if rank == 2 else 20
    if opset == 16:  # the reference knows the newer names alone
        opset = 16 if mode == "nearest" else 20
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    return Case("GridSample", [x, grid.astype(np.float32)], attributes, opset)


def roi_align(source: Source) -> Case:
    """Boxes inside the image and outside, and some without any extent."""
    images, height, width = source.number(1, 3), source.one(1, 4, 9), source.one(1, 5, 8)
    x = source.array((images, source.one(1, 3, 70), height, width))
    count, scale = source.number(1, 4), source.one(1.0, 0.5, 0.25)
    ends = source.random.random((count, 4)) * (max(height, width) + 4) / scale - 2
    attributes = {
        "output_height": source.number(1, 3), "output_width": source.number(1, 3),
        "sampling_ratio": source.number(0, 3), "spatial_scale": scale,
        "mode": source.one("avg", "avg", "max"),
    }  # fmt: skip
    opset = source.one(10, 16, 22)
    if opset > 10:
        way = source.one("half_pixel", "output_half_pixel")
        attributes["coordinate_transformation_mode"] = way
    else:
        opset = 22  # the reference has one version
        attributes["coordinate_transformation_mode"] = "output_half_pixel"
    batch = integers(source.random.integers(0, images, count))
    return Case("RoiAlign", [x, ends.astype(np.float32), batch], attributes, opset)


def deform_conv(source: Source) -> Case:
    groups, parts = source.one((1, 1), (1, 2), (2, 1), (2, 2), (1, 3))
    channels = groups * parts
    size, stride = [source.number(1, 3), source.number(1, 2)], [source.number(1, 2), 1]
    apart, pads = [1, source.number(1, 2)], [source.number(0, 1) for _ in range(4)]
    extents = [source.number(5, 6), source.number(3, 5)]
    results = [
        (extents[n] + pads[n] + pads[n + 2] - (size[n] - 1) * apart[n] - 1) // stride[n] + 1
        for n in range(2)
    ]
    x = source.array((source.number(1, 2), channels, *extents))
    w = source.array((groups * source.number(1, 2), channels // groups, *size))
    taps = parts * size[0] * size[1]
    moved = source.random.standard_normal((len(x), taps * 2, *results)) * source.one(0.3, 3)
    bias = source.array((len(w),)) if source.is_so(0.5) else None
    mask = source.array((len(x), taps, *results)) if source.is_so(0.5) else None
    attributes = {
        "group": groups, "offset_group": parts, "strides": stride, "dilations": apart,
        "pads": pads, "kernel_shape": size,
    }  # fmt: skip
    given = [x, w, moved.astype(np.float32), bias, mask]
    return Case("DeformConv", given, attributes, 22, {1} if source.is_so(0.5) else set())


def local_response_norm(source: Source) -> Case:
    """As many images as channels: the reference takes one for the other."""
    channels = source.number(1, 7)
    x = source.array((channels, channels, source.one(1, 3), source.one(1, 5, 66)))
    return Case(
        "LRN",
        [x],
        {
            "size": source.number(1, 7),
            "alpha": 0.5,
            "beta": source.one(0.75, 0.5, 1.5),
            "bias": 2.0,
        },
    )


def max_unpool(source: Source) -> Case:
    rank = source.number(1, 3)
    size, stride = [source.number(1, 3) for _ in range(rank)], [source.number(1, 3)] * rank
    extents = [source.number(1, 4) for _ in range(rank)]
    pads = [0] * rank + [source.number(0, size[n] - 1) for n in range(rank)]
    made = [(extents[n] - 1) * stride[n] + size[n] - pads[n] - pads[n + rank] for n in range(rank)]
    while min(made) < 1 or np.prod(made) < np.prod(extents):
        made, pads, stride = [m + 1 for m in made], [0] * 2 * rank, [s + 1 for s in stride]
        size = [m - (e - 1) * s for m, e, s in zip(made, extents, stride, strict=True)]
        if min(size) < 1:
            size = [1] * rank
            made = [(e - 1) * s + 1 for e, s in zip(extents, stride, strict=True)]
    x = source.array((source.number(1, 2), source.number(1, 3), *extents))
    planes, volume = len(x) * x.shape[1], int(np.prod(made))
    places = np.argsort(source.random.random((planes, volume)))[:, : int(np.prod(extents))]
    whole = places + np.arange(planes)[:, None] * volume
    shape = None
    if source.is_so(0.4):
        shape = integers([*x.shape[:2], *(m + source.number(0, 2) for m in made)])
    attributes = {"kernel_shape": size, "strides": stride, "pads": pads}
    given = [x, whole.reshape(x.shape).astype(np.int64), shape]
    return Case("MaxUnpool", given, attributes, 11, {2} if shape is not None else set())


def running_product(source: Source) -> Case:
    x = source.array(source.shape(1, 3, 1, 3, 9), source.one(np.float32, np.int32, np.float64))
    axis = np.array(source.axis(x.ndim, source.number(0, x.ndim - 1)), np.int32)
    flags = {"exclusive": source.number(0, 1), "reverse": source.number(0, 1)}
    return Case("CumProd", [x, axis], flags, 26, {1})


BITS = {
    TensorProto.FLOAT: np.float32, TensorProto.INT32: np.int32, TensorProto.UINT32: np.uint32,
    TensorProto.DOUBLE: np.float64, TensorProto.INT64: np.int64, TensorProto.FLOAT16: np.float16,
    TensorProto.INT16: np.int16, TensorProto.UINT8: np.uint8, TensorProto.INT8: np.int8,
}  # fmt: skip


def bit_cast(source: Source) -> Case:
    to = source.one(*BITS)
    bits = [
        dtype for dtype in BITS.values() if np.dtype(dtype).itemsize == np.dtype(BITS[to]).itemsize
    ]
    x = source.array(source.shape(0, 3, 0, 1, 3, 5), source.one(*bits))
    return Case("BitCast", [x], {"to": to}, 26)


def tensor_scatter(source: Source) -> Case:
    rank = source.number(2, 4)
    past = source.array(source.shape(rank, rank, 1, 2, 5), source.one(np.float32, np.int32))
    axis, shape = source.number(1, rank - 1), [*past.shape]
    shape[axis] = source.number(1, past.shape[axis])
    mode = source.one("linear", "circular")
    most = past.shape[axis] - shape[axis] if mode == "linear" else 3 * past.shape[axis]
    first = source.random.integers(0, most + 1, len(past))
    given = [past, source.array(tuple(shape), past.dtype), integers(first)]
    known = {2} if source.is_so(0.3) else set()
    return Case("TensorScatter", given, {"axis": source.axis(rank, axis), "mode": mode}, 24, known)


def col2im(source: Source) -> Case:
    rank = source.number(1, 3)
    block, stride = (
        [source.number(1, 3) for _ in range(rank)],
        [source.number(1, 3) for _ in range(rank)],
    )
    apart, pads = (
        [source.number(1, 2) for _ in range(rank)],
        [source.number(0, 2) for _ in range(2 * rank)],
    )
    covered = [(block[n] - 1) * apart[n] + 1 for n in range(rank)]
    image = [source.number(covered[n], covered[n] + 4) for n in range(rank)]
    counts = [
        (image[n] + pads[n] + pads[n + rank] - covered[n]) // stride[n] + 1 for n in range(rank)
    ]
    taps, places = int(np.prod(block)), int(np.prod(counts))
    x = source.array((source.number(1, 2), source.number(1, 3) * taps, places))
    attributes = {"strides": stride, "dilations": apart, "pads": pads}
    return Case("Col2Im", [x, integers(image), integers(block)], attributes, 18, {1, 2})


def determinant(source: Source) -> Case:
    n = source.number(1, 6)
    x = source.random.standard_normal((*source.shape(0, 2, 1, 3), n, n)).astype(np.float32)
    if n > 1 and source.is_so(0.3):
        x[..., 0] = x[..., 1]
    return Case("Det", [x], opset=22)


def mel_weight_matrix(source: Source) -> Case:
    rate = source.one(8000, 16000, 22050)
    given = [source.number(1, 40), source.one(64, 400, 512), rate]
    edges = [source.one(0.0, 20.0, 133.3), source.one(0.25, 0.5) * rate]
    inputs = [np.array(n, np.int64) for n in given] + [np.array(n, np.float32) for n in edges]
    kind = source.one(TensorProto.FLOAT, TensorProto.DOUBLE)
    return Case("MelWeightMatrix", inputs, {"output_datatype": kind}, 17, {0, 1, 2, 3, 4})


MAKERS: list[Callable[[Source], Case]] = [
    grid_sample, roi_align, deform_conv, local_response_norm, max_unpool, running_product, bit_cast,
    tensor_scatter, col2im, determinant, mel_weight_matrix,
]  # fmt: skip


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_random_nodes(maker: Callable[[Source], Case]) -> None:
    assert failures(maker, range(2)) == []


@pytest.mark.sweep
@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_many_random_nodes(maker: Callable[[Source], Case]) -> None:
    assert failures(maker, range(2, 60)) == []
