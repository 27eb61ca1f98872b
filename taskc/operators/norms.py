"""Normalizations, and softmax with its relatives."""

from __future__ import annotations

from collections.abc import Sequence

import taskc as tc
from taskc import i64
from taskc.kernels.reductions import argmax, reduction
from taskc.kernels.rows import layer_norm, log_softmax, rms_norm, softmax
from taskc.kernels.signatures import wide
from taskc.operators.call import Call, Made, at_least, operator
from taskc.operators.operands import Template, converted, is_one, kernel_of, repeated, size
from taskc.operators.tensors import Extent, Tensor, computed, reshaped
from taskc.programs.tracing import Computed, Element, TensorHandle


@operator("BatchNormalization", since=7)
def batch_norm(call: Call) -> Made:
    x, scale, shift, mean, variance = call.tensors(5)
    epsilon = call.attribute("epsilon", 1e-5)
    if not call.attribute("spatial", 1):
        raise call.node.error("taskc normalizes channels, and not each place of them (spatial=0)")
    is_training = call.attribute("training_mode", 0)
    if not is_training and any(call.wants(place) for place in range(1, 5)):
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
    between, dtype = wide(mean.dtype), x.dtype
    factor = computed(
        mean.shape, lambda c: scale[c].to(between) / tc.sqrt(variance[c].to(between) + epsilon)
    )
    offset = computed(mean.shape, lambda c: shift[c].to(between) - mean[c].to(between) * factor[c])

    @tc.function
    def normalized(*at: Element) -> Computed:
        channel = at[1] if len(at) > 1 else 0
        return (x[at].to(between) * factor[channel] + offset[channel]).to(dtype)

    return computed(x.shape, normalized)


def _moments(x: TensorHandle, axes: Sequence[int]) -> tuple[TensorHandle, TensorHandle]:
    """The mean and the variance of x along axes."""
    fold = kernel_of(reduction, "mean", x.shape, tuple(axes), dtype=x.dtype)
    mean = fold(x)
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]

    @tc.function
    def square(*at: Element) -> Computed:
        distance = x[at] - mean[tuple(at[axis] for axis in kept)]
        return distance * distance

    return mean, fold(computed(x.shape, square))


def _mixed(old: TensorHandle, new: TensorHandle, momentum: float) -> TensorHandle:
    dtype, rest = old.dtype, 1 - momentum
    return computed(old.shape, lambda c: old[c] * momentum + new[c].to(dtype) * rest)


@operator("InstanceNormalization", ranks=(at_least(2),))
def instance_norm(call: Call) -> Tensor:
    return _by_groups(call, call.shape(0)[1], 1, 1)


@operator("GroupNormalization", since=18, ranks=(at_least(2),))
def group_norm(call: Call) -> Tensor:
    """Group norm; scale and shift are per channel, or per group in its first version."""
    channels, groups = call.shape(0)[1], call.count("num_groups")
    if channels % groups:
        raise call.node.error(f"{channels} channels aren't {groups} groups of as many")
    each = channels // groups
    return _by_groups(call, groups, each, each if call.node.version < 21 else 1)


def _by_groups(call: Call, groups: Extent, each: Extent, own: Extent) -> Tensor:
    """Groups of `each` channels, normalized; `own` neighbouring channels share a scale and a shift."""
    x, scale, shift = call.tensors(3)
    rows, elements = x.shape[0] * groups, each * size(x.shape[2:])
    kernel = kernel_of(
        layer_norm, rows, elements, dtype=x.dtype, scaled=False, shifted=False,
        epsilon=call.attribute("epsilon", 1e-5),
    )  # fmt: skip
    y = kernel(x.reshape(rows, elements)).reshape(*x.shape)
    return computed(x.shape, lambda *at: y[at] * scale[at[1] // own] + shift[at[1] // own])


@operator("LayerNormalization")
def layer_normalization(call: Call) -> Made:
    x, scale, shift = call.tensors(3)
    axis = call.axis(len(x.shape), -1)
    rows, elements = size(x.shape[:axis]), size(x.shape[axis:])
    epsilon = call.attribute("epsilon", 1e-5)
    y = scaled_rows(layer_norm, x, axis, scale, shift, epsilon)
    if not (call.wants(1) or call.wants(2)):
        return y
    stash = call.element_type(call.attribute("stash_type", 1))
    mean, variance = _moments(converted(x, stash).reshape(rows, elements), [1])
    inverse = computed((rows,), lambda i: 1 / tc.sqrt(variance[i] + epsilon))
    shape = (*x.shape[:axis], *[1] * (len(x.shape) - axis))
    return y, reshaped(mean, *shape), reshaped(inverse, *shape)


@operator("RMSNormalization", since=23)
def rms_normalization(call: Call) -> Tensor:
    x, scale = call.tensors(2)
    axis = call.axis(len(x.shape), -1)
    return scaled_rows(rms_norm, x, axis, scale, None, call.attribute("epsilon", 1e-5))


def scaled_rows(
    norm: Template, x: TensorHandle, axis: int, scale: TensorHandle,
    shift: TensorHandle | None, epsilon: float,
) -> TensorHandle:  # fmt: skip
    """Rows from an axis on, normalized, times scale and plus shift; these may broadcast or have another type."""
    rows, normalized = size(x.shape[:axis]), x.shape[axis:]
    elements = size(normalized)
    operands = [operand for operand in (scale, shift) if operand is not None]
    is_whole = all(operand.dtype is x.dtype and operand.shape == normalized for operand in operands)
    options: dict[str, object] = {"dtype": x.dtype, "epsilon": epsilon, "scaled": is_whole}
    if norm is layer_norm:
        options["shifted"] = is_whole and shift is not None
    kernel = kernel_of(norm, rows, elements, **options)
    factors = [operand.reshape(elements) for operand in operands] if is_whole else []
    y = kernel(x.reshape(rows, elements), *factors).reshape(*x.shape)
    if is_whole:
        return y
    dtype, factor = x.dtype, repeated(scale)
    if shift is None:
        return computed(x.shape, lambda *at: y[at] * factor(at).to(dtype))
    offset = repeated(shift)
    return computed(x.shape, lambda *at: y[at] * factor(at).to(dtype) + offset(at).to(dtype))


@operator("LpNormalization")
def lp_normalization(call: Call) -> Tensor:
    (x,) = call.tensors(1)
    axis, power = call.axis(len(x.shape), -1), call.attribute("p", 2)
    if power not in (1, 2):
        raise call.node.error(f"taskc has the norms 1 and 2, and not {power}")
    parts = computed(x.shape, lambda *at: abs(x[at]) if power == 1 else x[at] * x[at])
    sums = kernel_of(reduction, "sum", x.shape, (axis,), dtype=x.dtype, keepdims=True)(parts)
    of = repeated(sums)

    @tc.function
    def normalized(*at: Element) -> Computed:
        norm = of(at) if power == 1 else tc.sqrt(of(at))
        return 0 if norm == 0 else x[at] / norm

    return computed(x.shape, normalized)


@operator("Softmax")
@operator("LogSoftmax")
@operator("Hardmax")
def softmax_of_axis(call: Call) -> Tensor:
    """Of an axis; before opset 13, of it and all that follow as one."""
    (x,) = call.tensors(1)
    is_flattened = call.node.version < 13
    axis = call.axis(len(x.shape), 1 if is_flattened else -1)
    rows, elements, inner = size(x.shape[:axis]), x.shape[axis], size(x.shape[axis + 1 :])
    if is_flattened:
        elements, inner = elements * inner, 1
    if call.node.operator != "Hardmax":
        make = softmax if call.node.operator == "Softmax" else log_softmax
        return _by_rows(make, x, rows, elements, inner)
    shape, dtype = (rows, elements, inner), x.dtype
    place = kernel_of(argmax, shape, 1, dtype=dtype)(x.reshape(*shape))
    y = computed(shape, lambda i, j, k: (place[i, k] == j.to(i64)).to(dtype))
    return y.reshape(*x.shape)


def softmax_along(x: TensorHandle, axis: int) -> TensorHandle:
    return _by_rows(softmax, x, size(x.shape[:axis]), x.shape[axis], size(x.shape[axis + 1 :]))


def _by_rows(
    make: Template, x: TensorHandle, rows: Extent, elements: Extent, inner: Extent
) -> TensorHandle:
    last, options = ((), {}) if is_one(inner) else ((inner,), {"inner": inner})
    kernel = kernel_of(make, rows, elements, dtype=x.dtype, **options)
    return kernel(x.reshape(rows, elements, *last)).reshape(*x.shape)


@operator("LRN")
def normalized_locally(call: Call) -> Tensor:
    from taskc.kernels.windows import local_response_norm  # few models have it

    (x,) = call.tensors(1)
    if len(x.shape) < 2 or call.attribute("size") < 1:
        raise call.node.error(
            f"there are no {call.attribute('size')} neighbouring channels in {[*x.shape]}"
        )
    images, channels, *extents = x.shape
    pixels = size(extents)
    kernel = kernel_of(
        local_response_norm, images, channels, pixels, dtype=x.dtype,
        neighbours=call.attribute("size"), alpha=call.attribute("alpha", 1e-4),
        beta=call.attribute("beta", 0.75), bias=call.attribute("bias", 1.0),
    )  # fmt: skip
    return kernel(x.reshape(images, channels, pixels)).reshape(*x.shape)
