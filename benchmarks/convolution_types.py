"""Convolutions of ResNet-50 in bf16, and of unsigned bytes by signed ones, as they are in a chain.

Images are blocked, and of peers they are NHWC: PyTorch's packed kernels of both types, and ONNX Runtime's QLinearConv
of channels that are last, as it makes it of a network. It has no bf16 on processors. A sum of bytes is scaled, moved
and rounded to a byte, which cuts it off at 0 and 255; residuals are bf16's only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from convolution_cases import built, compiled_ms, in_blocks, is_first, options_of, ours, shape_of
from convolution_layers import Layer, resnet50
from convolution_peers import Array, Operands, operands_of
from cpu_cases import Call, Case, session_of, torch_on

import taskc as tc
from taskc import bf16, i8, u8
from taskc.kernels.convolution import blocked, convolution

# Rates are given as parts of the f32 peak, of which these are as many times.
_TIMES_BF16, _TIMES_BYTES = 2, 4
_BOUND = 0.1  # of results of bf16, that are about 1


@tc.function
def byte(x):  # type: ignore[no-untyped-def]
    return round(x)


def typed_cases(threads: int, quick: bool) -> Iterator[Case]:
    few = slice(2) if quick else slice(None)
    without = [replace(layer, residual=False) for layer in resnet50()]
    for layer in resnet50()[few]:
        yield from _case("convolution, bf16", layer, partial(_of_bf16, layer, threads))
    for layer in list(dict.fromkeys(without))[few]:
        yield from _case("convolution, bytes", layer, partial(_of_bytes, layer, threads))


def _case(benchmark: str, layer: Layer, make: Any) -> Iterator[Case]:
    case = built(f"{benchmark} {layer}", partial(make, benchmark))
    if case is not None:
        yield case


def _of_bf16(layer: Layer, threads: int, benchmark: str) -> Case:
    given = operands_of(layer)
    x, weights = (array.astype(bf16.numpy) for array in (given.x, given.weights))
    residual = [array.astype(bf16.numpy) for array in given.residual]
    operands = replace(given, x=x, weights=weights, residual=residual)
    options = {**options_of(layer, is_blocked=True, is_exact=True), "dtype": bf16}
    make = partial(convolution, *shape_of(layer), **options)
    made = ours(make, layer, operands, result=bf16)
    given.checked(made.result(), _BOUND)
    peers: dict[str, Call] = {}
    if torch := torch_on(threads):
        peers["torch, packed"] = _torch_bf16(torch, layer, given)
        given.checked(peers["torch, packed"]().float().numpy(), _BOUND)  # type: ignore[attr-defined]
    return Case(
        benchmark, str(layer), made.call, peers,
        operations=layer.operations / _TIMES_BF16, compiled_ms=compiled_ms(make),
    )  # fmt: skip


def _of_bytes(layer: Layer, threads: int, benchmark: str) -> Case:
    given = operands_of(layer)
    random = np.random.default_rng(4)
    x = random.integers(0, 256, given.x.shape).astype(np.uint8)
    weights = random.integers(-127, 128, given.weights.shape).astype(np.int8)
    deep = weights[0].size
    scales = random.uniform(0.5, 1.5, layer.features).astype(np.float32) / np.float32(
        100 * deep**0.5
    )
    bias = (random.standard_normal(layer.features) * 32 + 64).astype(np.float32)
    options = options_of(layer, is_blocked=True, is_exact=True)
    options |= {"dtype": u8, "right": i8, "scale": True, "result": u8, "activation": byte}
    make = partial(convolution, *shape_of(layer), **options)
    kernel = make()
    laid = x if is_first(layer) else in_blocks(x)
    y = tc.empty(blocked(1, layer.features, *layer.outputs, u8))
    call = partial(kernel, laid, kernel.pack(weights), bias, scales, out=y)
    call()
    found = y.unpack()[:, : layer.features]
    peers: dict[str, Call] = {}
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    if torch := torch_on(threads):
        peers["torch, packed"] = _torch_bytes(torch, layer, x, weights, bias, scales)
        _check_bytes(found, peers["torch, packed"]().numpy())  # type: ignore[attr-defined]
    if run := _onnxruntime_bytes(layer, threads, last, weights, bias, scales):
        peers["onnxruntime"] = run
        _check_bytes(found, run()[0].transpose(0, 3, 1, 2))  # type: ignore[index]
    return Case(
        benchmark, str(layer), call, peers,
        operations=layer.operations / _TIMES_BYTES, compiled_ms=compiled_ms(make),
    )  # fmt: skip


def _check_bytes(ours: Array, theirs: Array) -> None:
    """A peer's bias may be rounded to a unit of its sums."""
    far = np.abs(ours.astype(int) - theirs.astype(int))
    assert far.max() <= 1, f"results are {far.max()} apart"
    assert len(np.unique(ours)) > 100, "results are cut off"


def _torch_bf16(torch: Any, layer: Layer, operands: Operands) -> Call:
    order = torch.channels_last

    def images(array: Array) -> Any:
        return torch.from_numpy(array).bfloat16().contiguous(memory_format=order)

    x, w = images(operands.x), images(operands.weights)
    bias, residual = (
        torch.from_numpy(operands.bias).bfloat16(),
        list(map(images, operands.residual)),
    )
    settings = list(layer.padding), [layer.stride] * 2, [layer.dilation] * 2, layer.groups
    run = torch.ops.mkldnn._convolution_pointwise
    filters = torch.ops.mkldnn._reorder_convolution_weight(w, *settings, list(x.shape))
    if residual:
        return partial(
            run.binary, x, *residual, filters, bias, *settings, "add", 1.0, "relu", [], ""
        )
    return partial(run, x, filters, bias, *settings, "relu", [], "")


def _torch_bytes(
    torch: Any, layer: Layer, x: Array, weights: Array, bias: Array, scales: Array
) -> Call:
    images = torch.from_numpy(x).contiguous(memory_format=torch.channels_last)
    w, b, s = (torch.from_numpy(array) for array in (weights, bias, scales))
    zeros = torch.zeros(layer.features, dtype=torch.int32)
    settings = [layer.stride] * 2, list(layer.padding), [layer.dilation] * 2, layer.groups
    filters = torch.ops.onednn.qconv_prepack(w, s, 1.0, 0, *settings, list(x.shape))
    return partial(
        torch.ops.onednn.qconv2d_pointwise,
        images, 1.0, 0, filters, s, zeros, b, *settings, 1.0, 0, torch.uint8, "relu", [], "",
    )  # fmt: skip


def _onnxruntime_bytes(
    layer: Layer, threads: int, x: Array, weights: Array, bias: Array, scales: Array
) -> Call | None:
    one, zero = np.float32(1), np.uint8(0)
    zeros = np.zeros(layer.features, np.int8)
    arrays = [
        x, np.array(one), np.array(zero), weights, scales, zeros, np.array(one), np.array(zero),
        np.rint(bias / scales).astype(np.int32),
    ]  # fmt: skip
    shape = 1, *layer.outputs, layer.features
    return session_of(
        "QLinearConv", arrays, shape, threads, domain="com.microsoft", result=np.uint8,
        channels_last=1, kernel_shape=layer.size, strides=[layer.stride] * 2,
        pads=layer.padding * 2, dilations=[layer.dilation] * 2, group=layer.groups,
    )  # fmt: skip
