"""Operators of com.microsoft that ONNX Runtime fuses from ONNX's: norms of sums, activations with a bias, products.

The others are in `microsoft_attention.py`, `microsoft_weights.py` (weights of few bits) and `microsoft_quantized.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

import taskc as tc
from taskc import i32
from taskc.kernels.determinants import eliminated
from taskc.kernels.rows import layer_norm, rms_norm
from taskc.kernels.signatures import wide
from taskc.operators.call import Call, Made, at_least, builder_of, operator
from taskc.operators.elementwise import PLAIN, WITH_ATTRIBUTES, elementwise, gelu_by_tanh
from taskc.operators.files import MICROSOFT
from taskc.operators.movement import transposed
from taskc.operators.norms import scaled_rows
from taskc.operators.op import op
from taskc.operators.operands import are_equal, kernel_of, repeated, size
from taskc.operators.products import multiplied
from taskc.operators.reductions import folded
from taskc.operators.tensors import Function, Held, Images, Tensor, computed, handle_of, reshaped
from taskc.programs.tracing import Computed, Element, TensorHandle

_SET = 22  # the operator set of ONNX's operators that nodes are built by


def built_as(
    call: Call, name: str, inputs: Sequence[Held | None] | None = None, *, version: int = _SET,
    **attributes: object,
) -> Made:  # fmt: skip
    """The outputs of ONNX's operator of this name, for the node's inputs and attributes or for others."""
    builder = builder_of(name, version)
    assert builder is not None
    node = replace(
        call.node, operator=name, domain="", version=version, called=call.node.title,
        attributes={**call.node.attributes, **attributes},
    )  # fmt: skip
    return builder(
        replace(call, node=node, inputs=call.inputs if inputs is None else tuple(inputs))
    )


def require_absent(call: Call, *places: int) -> None:
    """Refuse a node that reads any of these outputs."""
    for place in places:
        if call.wants(place):
            raise call.node.error(
                f"taskc doesn't compute its output {place}, '{call.node.outputs[place]}'"
            )


def require_default(call: Call, **defaults: object) -> None:
    """Refuse a node whose attributes are others than these."""
    for name, default in defaults.items():
        value = call.attribute(name, default)
        if value != default:
            raise call.node.error(f"taskc doesn't have its attribute '{name}' of {value!r}")


def require_no_inputs(call: Call, **places: int) -> None:
    """Refuse a node that has any of these inputs."""
    for name, place in places.items():
        if call.has(place):
            raise call.node.error(f"taskc doesn't take its input {place}, {name}")


# Norms.


@operator("SimplifiedLayerNormalization")
@operator("SimplifiedLayerNormalization", domain=MICROSOFT)
def simplified_norm(call: Call) -> Made:
    require_absent(call, 1)
    x, scale = call.tensors(2)
    axis = call.axis(len(x.shape), -1)
    return scaled_rows(rms_norm, x, axis, scale, None, call.attribute("epsilon", 1e-5))


@operator("SkipLayerNormalization", domain=MICROSOFT)
@operator("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_norm(call: Call) -> Made:
    """The norm of input + skip + bias, and the sum itself."""
    require_absent(call, 1, 2)
    is_simplified = call.node.operator == "SkipSimplifiedLayerNormalization"
    x, skip, scale = call.tensors(3)
    shift = call.tensor(3) if call.has(3) and not is_simplified else None
    bias_place = 3 if is_simplified else 4
    of_skip = repeated(skip)
    if call.has(bias_place):
        bias = call.tensor(bias_place)
        total = computed(x.shape, lambda *at: x[at] + of_skip(at) + bias[at[-1]])
    else:
        total = computed(x.shape, lambda *at: x[at] + of_skip(at))
    norm = rms_norm if is_simplified else layer_norm
    axis = len(x.shape) - 1
    y = scaled_rows(norm, total, axis, scale, shift, call.attribute("epsilon", 1e-12))
    return y, None, None, total


@operator("EmbedLayerNormalization", domain=MICROSOFT, ranks=(2, 2, 2, 2, 2, 1, 1, 2, 2))
def embed_norm(call: Call) -> Made:
    words, segments = call.given(0), call.optional(1)
    places, kinds = call.given(3), call.optional(4)
    total = op.Gather(call.given(2), words)
    batches, length, _ = total.shape
    if call.has(8):
        total = op.Add(total, op.Gather(places, call.given(8)))
    else:
        sums, of_place = handle_of(total), handle_of(places)
        total = computed(sums.shape, lambda b, i, c: sums[b, i, c] + of_place[i, c])
    if segments is not None and kinds is not None:
        total = op.Add(total, op.Gather(kinds, segments))
    total = handle_of(total)
    gamma, beta = call.tensor(5), call.tensor(6)
    y = scaled_rows(layer_norm, total, 2, gamma, beta, call.attribute("epsilon", 1e-12))
    if call.has(7):
        mask = call.tensor(7)
        seen = computed((batches, length), lambda b, i: i32(1) if mask[b, i] == 1 else i32(0))
        counts = folded("sum", seen, (1,), keepdims=False)
    else:
        counts = computed((batches,), lambda b: i32(0))
    return y, counts, total


# Activations.


@tc.function
def _gelu(x: Element) -> Computed:
    return tc.gelu(x)


@operator("BiasGelu", domain=MICROSOFT)
@operator("Gelu", domain=MICROSOFT)
def gelu_of_sum(call: Call) -> Made:
    return _of_sum(call, _gelu)


@operator("FastGelu", domain=MICROSOFT)
def fast_gelu(call: Call) -> Made:
    return _of_sum(call, gelu_by_tanh)


@operator("QuickGelu", domain=MICROSOFT)
def quick_gelu(call: Call) -> Made:
    alpha = call.attribute("alpha", 1.702)
    return _of_sum(call, tc.function(lambda x: x * tc.sigmoid(alpha * x)))


def _of_sum(call: Call, function: Function) -> Images:
    """A function of the input, plus the bias if there is one."""
    if not call.has(1):
        return elementwise(call, lambda x: function(x), (call.images(0),))
    return elementwise(call, lambda x, bias: function(x + bias), (call.images(0), call.tensor(1)))


# Products and convolutions.


@operator("FusedMatMul", domain=MICROSOFT)
@operator("TransposeMatMul", domain=MICROSOFT)
def fused_product(call: Call) -> Tensor:
    call.require_kernel()
    product = multiplied(_turned(call, 0, "A"), _turned(call, 1, "B"))
    alpha = call.attribute("alpha", 1.0)
    return product if alpha == 1 else computed(product.shape, lambda *at: product[at] * alpha)


def _turned(call: Call, place: int, letter: str) -> Tensor:
    """A factor with its axes in the order in which they are multiplied."""
    x = call.given(place)
    order = [*range(len(x.shape))]
    if call.attribute(f"transBatch{letter}", 0):
        if len(order) < 3:
            raise call.node.error(
                f"its attribute 'transBatch{letter}' needs 3 dimensions, and its input has {len(order)}"
            )
        order = [*order[1:-1], 0, order[-1]]
    if call.attribute(f"trans{letter}", 0) and len(order) > 1:
        order[-2:] = order[:-3:-1]
    if order == sorted(order):
        return x
    return transposed(x, order) if isinstance(x, TensorHandle) else x.transpose(order)


@operator("FusedConv", domain=MICROSOFT)
def fused_conv(call: Call) -> Made:
    y = cast("Images", built_as(call, "Conv", call.inputs[:3]))
    operands = (y, call.images(3)) if call.has(3) else (y,)
    name, options = call.attribute("activation"), call.attribute("activation_params") or ()
    function = _activation(call, name, tuple(options))
    if len(operands) == 2:
        return elementwise(call, lambda x, z: function(x + z), operands)
    return elementwise(call, lambda x: function(x), operands) if name else y


@operator("FusedGemm", domain=MICROSOFT)
def fused_gemm(call: Call) -> Made:
    y = cast("TensorHandle", built_as(call, "Gemm"))
    name, options = call.attribute("activation", ""), ("alpha", "beta", "gamma")
    named: dict[str, Any] = {one: call.attribute(f"activation_{one}") for one in options}
    _, defaults = WITH_ATTRIBUTES.get(name, (None, {}))
    own = [
        default if named[one] is None else named[one]
        for one, default in defaults.items()
        if one in named
    ]
    function = _activation(call, name, tuple(own))
    return computed(y.shape, lambda *at: function(y[at]))


_UNARY = "HardSwish Mish Relu Sigmoid Softplus Softsign Tanh".split()


def _activation(call: Call, name: str | None, options: tuple[float, ...]) -> Function:
    """The function that an attribute names, with its parameters in their order; without a name, the identity."""
    if not name:
        return tc.function(lambda x: x)
    if name in _UNARY:
        return tc.function(PLAIN[name])
    if name not in WITH_ATTRIBUTES:
        raise call.node.error(f"taskc doesn't have its attribute 'activation' of '{name}'")
    function, defaults = WITH_ATTRIBUTES[name]
    own = (*options, *[*defaults.values()][len(options) :])[: len(defaults)]
    of = tc.function(function)
    return tc.function(lambda x: of(x, *own))


# Shapes, and norms of groups.


@operator("Range", domain=MICROSOFT)
@operator("Trilu", domain=MICROSOFT)
def same_as_onnx(call: Call) -> Made:
    inputs = call.inputs
    if call.node.operator == "Range" and not call.has(2):
        inputs = (*inputs[:2], np.ones((), call.dtype(0).numpy))
    return built_as(call, call.node.operator, inputs)


@operator("Pad", domain=MICROSOFT)
def pad(call: Call) -> Made:
    amounts = call.known(1)
    return built_as(
        call, "Pad", (call.inputs[0], reshaped(amounts, amounts.size), *call.inputs[2:])
    )


@operator("ExpandDims", domain=MICROSOFT)
def expand_dims(call: Call) -> Made:
    x, shape = call.given(0), call.shape(0)
    axis = call.axis_of(call.single(1), len(shape) + 1)
    return reshaped(x, *shape[:axis], 1, *shape[axis:])


@operator("Inverse", domain=MICROSOFT, ranks=(at_least(2),))
def inverse(call: Call) -> Tensor:
    (x,) = call.tensors(1)
    *batch, n, columns = x.shape
    if not are_equal(n, columns):
        raise call.node.error(f"its input {list(x.shape)} is no square matrix")
    count, total = size(batch), wide(x.dtype)
    matrices = reshaped(x, count, n, n)

    @tc.function
    def beside_identity(b: Element, i: Element, j: Element) -> Computed:
        one = total(1) if j - n == i else total(0)
        return matrices[b, i, min(j, n - 1)].to(total) if j < n else one

    pairs = computed((count, n, 2 * n), beside_identity)
    kernel_of(eliminated, count, n, dtype=total)(pairs)
    dtype = x.dtype
    return computed((count, n, n), lambda b, i, j: pairs[b, i, n + j].to(dtype)).reshape(*x.shape)


@operator("GroupNorm", domain=MICROSOFT, ranks=(4, 1, 1))
def group_norm(call: Call) -> Tensor:
    (x,) = call.tensors(1)
    return _of_groups(call, x)


@operator("SkipGroupNorm", domain=MICROSOFT, ranks=(4, 1, 1, range(2, 5), 1))
def skip_group_norm(call: Call) -> Made:
    x, _, _, skip, bias = call.tensors(5)
    if len(skip.shape) == 2:
        batches, channels = skip.shape
        skip = reshaped(skip, batches, 1, 1, channels)
    of_skip = repeated(skip)
    if bias is None:
        total = computed(x.shape, lambda *at: x[at] + of_skip(at))
    else:
        total = computed(x.shape, lambda *at: x[at] + of_skip(at) + bias[at[-1]])
    return _of_groups(call, total), total


def _of_groups(call: Call, x: TensorHandle) -> Tensor:
    """The norm of groups of channels, which are last unless the node says otherwise, and perhaps SiLU of it."""
    activation = call.attribute("activation", 0)
    if activation not in (0, 1):
        raise call.node.error(f"taskc doesn't have its attribute 'activation' of {activation}")
    is_last = bool(call.attribute("channels_last", 1))
    images = transposed(x, (0, 3, 1, 2)) if is_last else x
    groups = call.count("groups")
    made = built_as(call, "GroupNormalization", (images, *call.inputs[1:3]), num_groups=groups)
    y = cast("TensorHandle", made)
    rows = transposed(y, (0, 2, 3, 1)) if is_last else y
    if not activation:
        return rows
    return computed(rows.shape, lambda *at: rows[at] * tc.sigmoid(rows[at]))


@operator("BiasAdd", domain=MICROSOFT, ranks=(3, 1, 3))
def bias_add(call: Call) -> Made:
    return elementwise(call, lambda x, bias, skip: x + bias + skip, call.tensors(3))


@operator("BiasSplitGelu", domain=MICROSOFT, ranks=(3, 1))
def bias_split_gelu(call: Call) -> Tensor:
    """The left half of the features, times Gelu of the right half."""
    x, bias = call.tensors(2)
    batches, length, width = x.shape
    half = width // 2
    return computed(
        (batches, length, half),
        lambda b, i, c: (x[b, i, c] + bias[c]) * tc.gelu(x[b, i, half + c] + bias[half + c]),
    )
