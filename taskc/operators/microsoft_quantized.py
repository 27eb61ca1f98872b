"""Operators of com.microsoft on quantized numbers.

Those of single elements make floats, compute, and quantize again; the program fuses the three. Products sum bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

import taskc as tc
from taskc import DType, f32, i32
from taskc.operators.call import Call, Made, at_least, operator
from taskc.operators.elementwise import elementwise
from taskc.operators.files import MICROSOFT
from taskc.operators.graph import Array
from taskc.operators.microsoft import built_as
from taskc.operators.movement import joined, transposed
from taskc.operators.op import op
from taskc.operators.operands import repeated
from taskc.operators.products import integer_sums
from taskc.operators.quantization import clamped
from taskc.operators.tensors import Function, Held, Tensor, computed, elements_of, handle_of
from taskc.programs.tracing import Computed, Element, TensorHandle

# Single elements.


def _floats(call: Call, place: int) -> TensorHandle:
    """A quantized input as floats; its scale and its zero point, if it has one, are the next two inputs."""
    x, scale = call.tensor(place), repeated(call.tensor(place + 1))
    zero = _zero(call, place + 2, x.dtype)
    return computed(x.shape, lambda *at: (x[at].to(f32) - zero(at)) * scale(at))


def _zero(call: Call, place: int, dtype: DType) -> Function:
    """A zero point as a float: an input, or 0."""
    if not call.has(place):
        return tc.function(lambda at: f32(0))
    zero = repeated(call.tensor(place))
    return tc.function(lambda at: zero(at).to(f32))


def _quantized(call: Call, y: TensorHandle, place: int, dtype: DType) -> TensorHandle:
    """Floats quantized by a scale, which is an input, and the next one as their zero point."""
    scale, zero = repeated(call.tensor(place)), _zero(call, place + 1, dtype)
    return computed(y.shape, lambda *at: clamped(round(y[at] / scale(at)) + zero(at), dtype))


def _by_floats(
    call: Call, places: tuple[int, ...], result: int, function: Callable[..., Any]
) -> TensorHandle:
    """A function of the floats of quantized inputs, quantized."""
    call.require_kernel()
    floats = [_floats(call, place) for place in places]
    return _quantized(call, function(*floats), result, call.dtype(places[0]))


@operator("QuantizeLinear", domain=MICROSOFT)
@operator("DequantizeLinear", domain=MICROSOFT)
def same_as_onnx(call: Call) -> Made:
    """ONNX's operators, which had no numbers of 16 bits when ONNX Runtime had them."""
    return built_as(call, call.node.operator)


@operator("QLinearAdd", domain=MICROSOFT)
@operator("QLinearMul", domain=MICROSOFT)
def of_two(call: Call) -> Tensor:
    expression: Function = lambda a, b: a + b  # noqa: E731
    if call.node.operator == "QLinearMul":
        expression = lambda a, b: a * b  # noqa: E731
    return _by_floats(call, (0, 3), 6, lambda *floats: elementwise(call, expression, floats, f32))


@operator("QLinearSigmoid", domain=MICROSOFT)
def sigmoid(call: Call) -> Tensor:
    return _by_floats(call, (0,), 3, lambda x: computed(x.shape, lambda *at: tc.sigmoid(x[at])))


@operator("QLinearLeakyRelu", domain=MICROSOFT)
def leaky_relu(call: Call) -> Tensor:
    alpha = call.attribute("alpha", 0.01)
    return _by_floats(
        call, (0,), 3,
        lambda x: computed(x.shape, lambda *at: x[at] if x[at] >= 0 else alpha * x[at]),
    )  # fmt: skip


@operator("QLinearSoftmax", domain=MICROSOFT)
def softmax(call: Call) -> Tensor:
    """The operator set says whether the softmax is of one axis, or of all from it on."""
    version = 13 if call.attribute("opset") >= 13 else 1
    return _by_floats(
        call,
        (0,),
        3,
        lambda x: handle_of(cast("Tensor", built_as(call, "Softmax", (x,), version=version))),
    )


@operator("QLinearAveragePool", domain=MICROSOFT)
@operator("QLinearGlobalAveragePool", domain=MICROSOFT)
def average(call: Call) -> Tensor:
    name = call.node.operator.removeprefix("QLinear")
    return _by_floats(call, (0,), 3, lambda x: _of_images(call, x, name))


def _of_images(call: Call, x: TensorHandle, name: str) -> TensorHandle:
    """ONNX's operator of images, whose channels may be last."""
    last = len(x.shape) - 1
    if not call.attribute("channels_last", 0):
        return elements_of(cast("TensorHandle", built_as(call, name, (x,))))
    images = transposed(x, (0, last, *range(1, last)))
    y = elements_of(cast("TensorHandle", built_as(call, name, (images,))))
    return transposed(y, (0, *range(2, last + 1), 1))


@operator("NhwcMaxPool", domain=MICROSOFT, ranks=(at_least(3),))
def largest(call: Call) -> Tensor:
    (x,) = call.tensors(1)
    last = len(x.shape) - 1
    images = transposed(x, (0, last, *range(1, last)))
    y = elements_of(cast("TensorHandle", built_as(call, "MaxPool", (images,))))
    return transposed(y, (0, *range(2, last + 1), 1))


@operator("QLinearConcat", domain=MICROSOFT)
def concat(call: Call) -> Tensor:
    call.require_kernel()
    places = range(2, len(call.inputs), 3)
    if len(call.inputs) % 3 != 2 or not places:
        raise call.node.error(
            f"it has {len(call.inputs)} inputs, which aren't tensors with scale and zero point"
        )
    parts = [_floats(call, place) for place in places]
    axis = call.axis(len(parts[0].shape), 0)
    return _quantized(call, joined(parts, axis, computed), 0, call.dtype(1))


@operator("QLinearWhere", domain=MICROSOFT)
def where(call: Call) -> Tensor:
    call.require_kernel()
    floats = call.tensor(0), _floats(call, 1), _floats(call, 4)
    y = elementwise(call, lambda condition, a, b: a if condition else b, floats, f32)
    return _quantized(call, elements_of(y), 7, call.dtype(1))


# Products.


@operator("QGemm", domain=MICROSOFT, ranks=(2, None, None, 2))
def gemm(call: Call) -> Tensor:
    """alpha * (a @ b) + c, where c is quantized as the sums are."""
    call.require_kernel()
    a, b = _turned(call.given(0), call, "transA"), _turned(call.given(3), call, "transB")
    sums = integer_sums(a, b, call.optional(2), call.optional(5))
    alpha, of_a, of_b = (
        call.attribute("alpha", 1.0),
        *map(repeated, (call.tensor(1), call.tensor(4))),
    )
    of_c = repeated(call.tensor(6)) if call.has(6) else tc.function(lambda at: i32(0))

    @tc.function
    def value(*at: Element) -> Computed:
        return (sums[at] + of_c(at)).to(f32) * (alpha * of_a(at) * of_b(at))

    y = computed(sums.shape, value)
    if not call.has(7):
        return y
    return _quantized(call, y, 7, call.dtype(8) if call.has(8) else call.dtype(0))


def _turned(x: Tensor, call: Call, attribute: str) -> Tensor:
    if not call.attribute(attribute, 0):
        return x
    return x.T if isinstance(x, np.ndarray) else transposed(x, (1, 0))


@operator("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_product(call: Call) -> Tensor:
    call.require_kernel()
    bytes_of_a, scale, zero = op.DynamicQuantizeLinear(call.tensor(0))
    sums = integer_sums(bytes_of_a, call.given(1), zero, call.optional(3))
    return _scaled(call, sums, scale, call.tensor(2), 4)


@operator("MatMulIntegerToFloat", domain=MICROSOFT)
def product_to_float(call: Call) -> Tensor:
    call.require_kernel()
    sums = integer_sums(call.given(0), call.given(1), call.optional(4), call.optional(5))
    return _scaled(call, sums, call.tensor(2), call.tensor(3), 6)


def _scaled(
    call: Call, sums: TensorHandle, of_a: TensorHandle, of_b: TensorHandle, bias: int
) -> TensorHandle:
    """Sums of bytes as floats, plus the bias, which is an input at a position."""
    left, right, dtype = repeated(of_a), repeated(of_b), of_b.dtype
    if not call.has(bias):
        return computed(
            sums.shape, lambda *at: (sums[at].to(f32) * (left(at) * right(at))).to(dtype)
        )
    offset = call.tensor(bias)
    return computed(
        sums.shape,
        lambda *at: (sums[at].to(f32) * (left(at) * right(at)) + offset[at[-1]]).to(dtype),
    )


@operator("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_lstm(call: Call) -> Made:
    """An LSTM with the floats of its quantized weights; inputs and states stay floats, more exact than bytes."""
    w, r = _weights(call, 1, 8), _weights(call, 2, 10)
    return built_as(call, "LSTM", (call.inputs[0], w, r, *call.inputs[3:8]))


def _weights(call: Call, place: int, scale: int) -> Held:
    """Weights [directions, inputs, gates] as floats [directions, gates, inputs]; a zero point follows the scale."""
    w, of, zero = call.given(place), call.given(scale), call.given(scale + 1)
    if all(isinstance(x, np.ndarray) for x in (w, of, zero)):
        whole, factor, origin = (np.asarray(x).astype(np.float32) for x in (w, of, zero))
        shape = len(whole), 1, -1
        made: Array = (whole - origin.reshape(shape)) * factor.reshape(shape)
        return np.ascontiguousarray(made.swapaxes(1, 2))
    x, step, origin_of = (handle_of(one) for one in (w, of, zero))
    is_one = len(step.shape) == 1
    directions, inputs, gates = x.shape

    @tc.function
    def value(d: Element, j: Element, i: Element) -> Computed:
        own = (d,) if is_one else (d, j)
        return (x[d, i, j].to(f32) - origin_of[own].to(f32)) * step[own]

    return computed((directions, gates, inputs), value)
