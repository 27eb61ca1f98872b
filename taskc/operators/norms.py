"""Normalizations, and softmax with its relatives."""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import DType, i64, repeat, spatial
from taskc.kernels.reductions import argmax, reduction
from taskc.kernels.rows import layer_norm, log_softmax, rms_norm, softmax
from taskc.kernels.signatures import wide
from taskc.operators.call import Call, Made, Tensor, at_least, operator
from taskc.operators.operands import (
    axis_of,
    computed,
    converted,
    element_type,
    repeated,
    reshaped,
    size,
    template,
    tensors,
    wants,
)
from taskc.programs.tracing import TensorHandle

_softmax, _log_softmax = template(softmax), template(log_softmax)
_layer_norm, _rms_norm = template(layer_norm), template(rms_norm)
_reduction, _argmax = template(reduction), template(argmax)

_VECTORS = 4  # of pixels in a block


@operator("BatchNormalization", since=7)
def batch_norm(call: Call) -> Made:
    x, scale, shift, mean, variance = tensors(call, 5)
    epsilon = call.attribute("epsilon", 1e-5)
    if not call.attribute("spatial", 1):
        raise call.node.error("taskc normalizes channels, and not each place of them (spatial=0)")
    is_training = call.attribute("training_mode", 0)
    if not is_training and any(wants(call, place) for place in range(1, 5)):
        raise call.node.error("taskc computes the running mean and variance in training mode only")
    if not is_training:
        return _of_channels(x, mean, variance, scale, shift, epsilon)
    momentum = call.attribute("momentum", 0.9)
    own_mean, own_variance = _moments(x, [0, *range(2, len(x.shape))])
    y = _of_channels(x, own_mean, own_variance, scale, shift, epsilon)
    return y, _mixed(mean, own_mean, momentum), _mixed(variance, own_variance, momentum)


def _of_channels(
    x: TensorHandle, mean: TensorHandle, variance: TensorHandle, scale: TensorHandle,
    shift: TensorHandle, epsilon: float,
) -> TensorHandle:  # fmt: skip
    """(x - mean) / sqrt(variance + epsilon) * scale + shift; each of these is a vector with one element per channel."""
    between, dtype = mean.dtype, x.dtype
    factor = computed(
        mean.shape, lambda c: scale[c].to(between) / tc.sqrt(variance[c].to(between) + epsilon)
    )
    offset = computed(mean.shape, lambda c: shift[c].to(between) - mean[c] * factor[c])

    @tc.function
    def normalized(*at):
        return (x[at].to(between) * factor[at[1]] + offset[at[1]]).to(dtype)

    if len(x.shape) == 1:  # of one channel
        return computed(x.shape, lambda n: (x[n].to(between) * factor[0] + offset[0]).to(dtype))
    return computed(x.shape, normalized)


def _moments(x: TensorHandle, axes: list[int]) -> tuple[TensorHandle, TensorHandle]:
    """The mean and the variance of x along axes."""
    fold = _reduction("mean", x.shape, tuple(axes), dtype=x.dtype)
    mean = fold(x)
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    squares = computed(
        x.shape,
        lambda *at: (
            (x[at] - mean[tuple(at[axis] for axis in kept)])
            * (x[at] - mean[tuple(at[axis] for axis in kept)])
        ),
    )
    return mean, fold(squares)


def _mixed(old: TensorHandle, new: TensorHandle, momentum: float) -> TensorHandle:
    dtype, rest = old.dtype, 1 - momentum
    return computed(old.shape, lambda c: old[c] * momentum + new[c].to(dtype) * rest)


@operator("InstanceNormalization", ranks=(at_least(2),))
def instance_norm(call: Call) -> Tensor:
    x, scale, shift = tensors(call, 3)
    images, channels, *extents = x.shape
    y = _rows_normalized(x, images * channels, size(extents), call.attribute("epsilon", 1e-5))
    return computed(x.shape, lambda *at: y[at] * scale[at[1]] + shift[at[1]])


@operator("GroupNormalization", since=18, ranks=(at_least(2),))
def group_norm_of_groups(call: Call) -> Tensor:
    return _group_norm(call, of_channels=False)


@operator("GroupNormalization", since=21, ranks=(at_least(2),))
def group_norm(call: Call) -> Tensor:
    return _group_norm(call, of_channels=True)


def _group_norm(call: Call, of_channels: bool) -> Tensor:
    """Group norm; scale and shift are per channel, or per group in its first version."""
    x, scale, shift = tensors(call, 3)
    images, channels, *extents = x.shape
    groups = call.count("num_groups")
    if channels % groups:
        raise call.node.error(f"{channels} channels aren't {groups} groups of as many")
    each = channels // groups
    y = _rows_normalized(x, images * groups, each * size(extents), call.attribute("epsilon", 1e-5))
    own = 1 if of_channels else each
    return computed(x.shape, lambda *at: y[at] * scale[at[1] // own] + shift[at[1] // own])


def _rows_normalized(x: TensorHandle, rows: Any, elements: Any, epsilon: float) -> TensorHandle:
    kernel = _layer_norm(
        rows, elements, dtype=x.dtype, scaled=False, shifted=False, epsilon=epsilon
    )
    normalized: TensorHandle = kernel(x.reshape(rows, elements)).reshape(*x.shape)
    return normalized


@operator("LayerNormalization", since=17)
def layer_normalization(call: Call) -> Made:
    x, scale, shift = tensors(call, 3)
    axis = axis_of(call, call.attribute("axis", -1), len(x.shape))
    rows, elements = size(x.shape[:axis]), size(x.shape[axis:])
    epsilon = call.attribute("epsilon", 1e-5)
    y = _scaled(call, _layer_norm, x, axis, scale, shift, epsilon)
    if not (wants(call, 1) or wants(call, 2)):
        return y
    stash = element_type(call, call.attribute("stash_type", 1))
    matrix = converted(x, stash).reshape(rows, elements)
    assert isinstance(matrix, TensorHandle)
    mean, variance = _moments(matrix, [1])
    inverse = computed((rows,), lambda i: 1 / tc.sqrt(variance[i] + epsilon))
    shape = (*x.shape[:axis], *[1] * (len(x.shape) - axis))
    return y, reshaped(mean, *shape), reshaped(inverse, *shape)


@operator("RMSNormalization", since=23)
def rms_normalization(call: Call) -> Tensor:
    x, scale = tensors(call, 2)
    axis = axis_of(call, call.attribute("axis", -1), len(x.shape))
    return _scaled(call, _rms_norm, x, axis, scale, None, call.attribute("epsilon", 1e-5))


def _scaled(
    call: Call, norm: Any, x: TensorHandle, axis: int, scale: TensorHandle,
    shift: TensorHandle | None, epsilon: float,
) -> TensorHandle:  # fmt: skip
    """Rows from an axis on, normalized, times scale and plus shift; these may broadcast or have another type."""
    rows, normalized = size(x.shape[:axis]), x.shape[axis:]
    elements = size(normalized)
    operands = [operand for operand in (scale, shift) if operand is not None]
    is_whole = all(operand.dtype is x.dtype and operand.shape == normalized for operand in operands)
    options: dict[str, Any] = {"dtype": x.dtype, "epsilon": epsilon, "scaled": is_whole}
    if norm is _layer_norm:
        options["shifted"] = is_whole and shift is not None
    kernel = norm(rows, elements, **options)
    factors = [operand.reshape(elements) for operand in operands] if is_whole else []
    y = kernel(x.reshape(rows, elements), *factors).reshape(*x.shape)
    if is_whole:
        result: TensorHandle = y
        return result
    dtype, factor = x.dtype, repeated(scale)
    if shift is None:
        return computed(x.shape, lambda *at: y[at] * factor(at).to(dtype))
    offset = repeated(shift)
    return computed(x.shape, lambda *at: y[at] * factor(at).to(dtype) + offset(at).to(dtype))


@operator("LpNormalization")
def lp_normalization(call: Call) -> Tensor:
    (x,) = tensors(call, 1)
    axis, power = axis_of(call, call.attribute("axis", -1), len(x.shape)), call.attribute("p", 2)
    if power not in (1, 2):
        raise call.node.error(f"taskc has the norms 1 and 2, and not {power}")
    parts = computed(x.shape, lambda *at: abs(x[at]) if power == 1 else x[at] * x[at])
    sums = _reduction("sum", x.shape, (axis,), dtype=x.dtype, keepdims=True)(parts)
    of = repeated(sums)

    @tc.function
    def normalized(*at):
        norm = of(at) if power == 1 else tc.sqrt(of(at))
        return 0 if norm == 0 else x[at] / norm

    return computed(x.shape, normalized)


@operator("Softmax")
@operator("LogSoftmax")
@operator("Hardmax")
def softmax_of_flattened(call: Call) -> Tensor:
    (x,) = tensors(call, 1)
    axis = axis_of(call, call.attribute("axis", 1), len(x.shape))
    return _of_rows(call, x, size(x.shape[:axis]), size(x.shape[axis:]), 1)


@operator("Softmax", since=13)
@operator("LogSoftmax", since=13)
@operator("Hardmax", since=13)
def softmax_of_axis(call: Call) -> Tensor:
    (x,) = tensors(call, 1)
    axis = axis_of(call, call.attribute("axis", -1), len(x.shape))
    return _of_rows(call, x, size(x.shape[:axis]), x.shape[axis], size(x.shape[axis + 1 :]))


def _of_rows(call: Call, x: TensorHandle, rows: Any, elements: Any, inner: Any) -> TensorHandle:
    if call.node.operator == "Hardmax":
        dtype: DType = x.dtype
        place = _argmax((rows, elements, inner), 1, dtype=dtype)(x.reshape(rows, elements, inner))
        y = computed(
            (rows, elements, inner),
            lambda i, j, k: (place[i, k] == j.to(i64)).to(dtype),
        )
        return reshaped(y, *x.shape)
    make = _softmax if call.node.operator == "Softmax" else _log_softmax
    return _by_rows(make, x, rows, elements, inner)


def softmax_along(x: TensorHandle, axis: int) -> TensorHandle:
    return _by_rows(_softmax, x, size(x.shape[:axis]), x.shape[axis], size(x.shape[axis + 1 :]))


def _by_rows(make: Any, x: TensorHandle, rows: Any, elements: Any, inner: Any) -> TensorHandle:
    if isinstance(inner, int) and inner == 1:
        y = make(rows, elements, dtype=x.dtype)(x.reshape(rows, elements))
    else:
        y = make(rows, elements, inner=inner, dtype=x.dtype)(x.reshape(rows, elements, inner))
    result: TensorHandle = reshaped(y, *x.shape)
    return result


@operator("LRN")
def local_response_norm(call: Call) -> Tensor:
    (x,) = tensors(call, 1)
    if len(x.shape) < 2 or call.attribute("size") < 1:
        raise call.node.error(
            f"there are no {call.attribute('size')} neighbouring channels in {[*x.shape]}"
        )
    images, channels, *extents = x.shape
    kernel = _local(
        images, channels, size(extents), dtype=x.dtype, neighbours=call.attribute("size"),
        alpha=call.attribute("alpha", 1e-4), beta=call.attribute("beta", 0.75),
        bias=call.attribute("bias", 1.0),
    )  # fmt: skip
    normalized: TensorHandle = kernel(x.reshape(images, channels, size(extents)))
    return reshaped(normalized, *x.shape)


def _make_local(
    images: Any, channels: Any, pixels: Any,
    *, dtype: DType, neighbours: int, alpha: float, beta: float, bias: float, machine: tc.Machine,
) -> tc.KernelDefinition:  # fmt: skip
    """x / (bias + alpha / neighbours * the sum of squares of neighbouring channels) ** beta."""
    total = wide(dtype)
    own = repeat(_VECTORS) * spatial(machine.of(total).lanes)
    many, before = own.shape[0], (neighbours - 1) // 2

    @tc.kernel(workers=own.workers)
    def local(x: dtype[images, channels, pixels], y: tc.out[dtype[images, channels, pixels]]):
        for image, channel, first in tc.tiles((images, channels, pixels), by=(1, 1, many)):
            sums = tc.tile(total, own, 0)
            for n in range(neighbours):
                other = channel + n - before
                if 0 <= other < channels:
                    for (j,) in own:
                        if first + j < pixels:
                            value = x[image, other, first + j].to(total)
                            sums[j] += value * value
            for (j,) in own:
                if first + j < pixels:
                    norm = (bias + alpha / neighbours * sums[j]) ** beta
                    y[image, channel, first + j] = (
                        x[image, channel, first + j].to(total) / norm
                    ).to(dtype)

    return local


_local = template(_make_local)
