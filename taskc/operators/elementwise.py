"""Operators that compute each element from the elements at the same place, broadcasting as NumPy does.

Operators that change the element type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

import taskc as tc
from taskc import DType, boolean, f8e4m3, f8e5m2, f32, f64, u8
from taskc.operators.call import Builder, Call, Made, operator
from taskc.operators.operands import element, narrowed, ones
from taskc.operators.tensors import (
    Blocked,
    Function,
    Images,
    Shape,
    Tensor,
    can_be_blocked,
    computed,
    elements_of,
    reshaped,
    rows_of,
)
from taskc.programs.rounding import NARROW
from taskc.programs.tracing import Computed, Element, TensorHandle


def elementwise(
    call: Call, expression: Function, inputs: Sequence[Images], dtype: DType | None = None
) -> Images:
    """Apply an expression to the elements of the inputs; `dtype` is for `Call.compute`.

    The result of blocked images is blocked. Narrow floats are computed with in f32, and rounded once.
    """
    shape = call.broadcast(*(x.shape for x in inputs))
    once = tuple([ones(x.shape) for x in inputs])
    blocks = _blocks_of(inputs, shape, dtype or call.dtype(0))
    by_blocks = blocks is not None
    read = tuple([elements_of(x) if by_blocks else rows_of(x) for x in inputs])
    value = tc.function(expression)
    narrow = result if (result := dtype or call.dtype(0)) in NARROW else None

    @tc.function
    def at_place(*at: Element) -> Computed:
        return value(*(element(x, axes, at) for x, axes in zip(read, once, strict=True)))

    @tc.function
    def wide(x: TensorHandle, axes: tuple[bool, ...], at: Computed) -> Computed:
        return element(x, axes, at).to(f32) if x.dtype is narrow else element(x, axes, at)

    @tc.function
    def rounded(*at: Element) -> Computed:
        return value(*(wide(x, axes, at) for x, axes in zip(read, once, strict=True))).to(narrow)

    function = rounded if narrow else at_place
    if blocks is None:
        return cast("Images", call.compute(shape, function, dtype))  # arrays are read like handles
    return blocks.computed(call.name, function)


def _blocks_of(inputs: Sequence[Images], shape: Shape, dtype: DType) -> Blocked | None:
    """Memory for a blocked result, if an input is blocked and all others can be read by whole blocks."""
    if not any(isinstance(x, Blocked) for x in inputs) or not dtype.is_float:
        return None
    others = [x.shape for x in inputs if not isinstance(x, Blocked)]
    is_whole = can_be_blocked(shape) and shape[1] % tc.machine().lanes == 0
    fit = all(is_whole or len(extents) < 3 or ones(extents)[-3] for extents in others)
    return Blocked.empty(shape, dtype) if can_be_blocked(shape) and fit else None


def _of_all(call: Call, expression: Function, dtype: DType | None = None) -> Images:
    inputs = [call.images(position) for position in range(len(call.inputs))]
    return elementwise(call, expression, inputs, dtype)


PLAIN: dict[str, Function] = {
    "Abs": lambda x: abs(x),
    "Acos": lambda x: tc.acos(x),
    "Acosh": lambda x: tc.acosh(x),
    "Add": lambda a, b: a + b,
    "Asin": lambda x: tc.asin(x),
    "Asinh": lambda x: tc.asinh(x),
    "Atan": lambda x: tc.atan(x),
    "Atanh": lambda x: tc.atanh(x),
    "BitwiseAnd": lambda a, b: a & b,
    "BitwiseNot": lambda x: ~x,
    "BitwiseOr": lambda a, b: a | b,
    "BitwiseXor": lambda a, b: a ^ b,
    "Ceil": lambda x: tc.ceil(x),
    "Cos": lambda x: tc.cos(x),
    "Cosh": lambda x: tc.cosh(x),
    "Erf": lambda x: tc.erf(x),
    "Exp": lambda x: tc.exp(x),
    "Floor": lambda x: tc.floor(x),
    "HardSwish": lambda x: x * max(0, min(1, x / 6 + 0.5)),
    "Log": lambda x: tc.log(x),
    "Mish": lambda x: tc.mish(x),
    "Mul": lambda a, b: a * b,
    "Neg": lambda x: -x,
    "PRelu": lambda x, slope: x if x >= 0 else x * slope,
    "Reciprocal": lambda x: 1 / x,
    "Relu": lambda x: max(x, 0),
    "Round": lambda x: round(x),
    "Sigmoid": lambda x: tc.sigmoid(x),
    "Sign": lambda x: tc.sign(x),
    "Sin": lambda x: tc.sin(x),
    "Sinh": lambda x: tc.sinh(x),
    "Softplus": lambda x: tc.softplus(x),
    "Softsign": lambda x: x / (1 + abs(x)),
    "Sqrt": lambda x: tc.sqrt(x),
    "Sub": lambda a, b: a - b,
    "Tan": lambda x: tc.tan(x),
    "Tanh": lambda x: tc.tanh(x),
}
# Expressions of the element and of attributes, which have these defaults.
WITH_ATTRIBUTES: dict[str, tuple[Function, dict[str, float]]] = {
    "Celu": (lambda x, alpha: max(x, 0) + min(0, alpha * tc.expm1(x / alpha)), {"alpha": 1.0}),
    "Clip": (lambda x, low, high: min(max(x, low), high), {"min": -tc.inf, "max": tc.inf}),
    "Elu": (lambda x, alpha: x if x > 0 else alpha * tc.expm1(x), {"alpha": 1.0}),
    "HardSigmoid": (lambda x, alpha, beta: max(0, min(1, alpha * x + beta)), {"alpha": 0.2, "beta": 0.5}),
    "LeakyRelu": (lambda x, alpha: x if x >= 0 else alpha * x, {"alpha": 0.01}),
    "Selu": (
        lambda x, alpha, gamma: gamma * x if x > 0 else gamma * alpha * tc.expm1(x),
        {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805},
    ),
    "Swish": (lambda x, alpha: x * tc.sigmoid(alpha * x), {"alpha": 1.0}),
    "ThresholdedRelu": (lambda x, alpha: x if x > alpha else 0, {"alpha": 1.0}),
}  # fmt: skip
_LOGICAL: dict[str, Function] = {
    "And": lambda a, b: a and b,
    "Equal": lambda a, b: a == b,
    "Greater": lambda a, b: a > b,
    "GreaterOrEqual": lambda a, b: a >= b,
    "IsNaN": lambda x: tc.isnan(x),
    "Less": lambda a, b: a < b,
    "LessOrEqual": lambda a, b: a <= b,
    "Not": lambda x: not x,
    "Or": lambda a, b: a or b,
    "Xor": lambda a, b: a != b,
}


def _builder(expression: Function, dtype: DType | None = None, **defaults: float) -> Builder:
    """A builder of an expression of the inputs' elements and then of attributes, each with its default."""
    if not defaults:
        return lambda call: _of_all(call, expression, dtype)
    of = tc.function(expression)

    def build(call: Call) -> Made:
        options = tuple([call.attribute(name, default) for name, default in defaults.items()])
        return _of_all(call, lambda *elements: of(*elements, *options), dtype)

    return build


for _name, _expression in PLAIN.items():
    operator(_name)(_builder(_expression))
for _name, _expression in _LOGICAL.items():
    operator(_name)(_builder(_expression, boolean))


for _name, (_expression, _defaults) in WITH_ATTRIBUTES.items():
    operator(_name, since=24 if _name == "Swish" else 1)(_builder(_expression, None, **_defaults))
_is_inf = _builder(
    lambda x, below, above: tc.isinf(x) and ((below != 0 and x < 0) or (above != 0 and x > 0)),
    boolean,
    detect_negative=1,
    detect_positive=1,
)
operator("IsInf")(_is_inf)


_GELU_SCALE = math.sqrt(2 / math.pi)


@tc.function
def gelu_by_tanh(x: Element) -> Computed:
    return 0.5 * x * (1 + tc.tanh(_GELU_SCALE * (x + 0.044715 * x * x * x)))


@operator("Gelu")
def gelu(call: Call) -> Made:
    if call.attribute("approximate", "none") == "none":
        return _of_all(call, lambda x: tc.gelu(x))
    return _of_all(call, lambda x: gelu_by_tanh(x))


# By type.


@operator("BitShift", since=11)
def bit_shift(call: Call) -> Made:
    call.require_kernel()
    direction = call.attribute("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise call.node.error(f"taskc doesn't know its direction '{direction}'")
    if direction == "LEFT":
        return _of_all(call, lambda a, b: a << b)
    return _of_all(call, lambda a, b: a >> b)


@operator("Div")
def div(call: Call) -> Made:
    if call.dtype(0).is_float:
        return _of_all(call, lambda a, b: a / b)
    _check_divisor(call)
    return _of_all(call, lambda a, b: tc.truncdiv(a, b))


def _check_divisor(call: Call) -> None:
    """Refuse an integer divisor known to be 0; one known only when the model runs makes 0."""
    divisor = call.inputs[1]
    if isinstance(divisor, np.ndarray) and divisor.dtype.kind in "iu" and not divisor.all():
        raise call.node.error("it divides integers by 0")


@operator("Mod", since=10)
def mod(call: Call) -> Made:
    _check_divisor(call)
    if call.attribute("fmod", 0):
        return _of_all(call, lambda a, b: tc.fmod(a, b))
    return _of_all(call, lambda a, b: a % b)


# Powers by a constant exponent. Each product rounds once: the fourth power of f32 has a relative error of at most
# 3 * 2**-24, and only its last product can overflow where the exact power doesn't.
_PRODUCTS: dict[float, Function] = {
    1: lambda x: x,
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    4: lambda x: x * x * (x * x),
}


@operator("Pow")
def power(call: Call) -> Made:
    base, exponent_type, exponent = call.dtype(0), call.dtype(1), call.inputs[1]
    if isinstance(exponent, np.ndarray) and exponent.dtype != object and exponent.size == 1:
        product, shape = (
            _PRODUCTS.get(exponent.item()),
            call.broadcast(call.shape(0), exponent.shape),
        )
        if product is not None:
            result = elementwise(call, product, (call.images(0),))
            return result if len(result.shape) == len(shape) else reshaped(rows_of(result), *shape)
    if base is exponent_type:
        return _of_all(call, lambda a, b: a**b)
    call.require_kernel()
    if base.is_float or exponent_type.is_integer:
        wide = f32 if base in NARROW else base
        return _of_all(call, lambda a, b: a ** b.to(wide))
    return _of_all(call, lambda a, b: (a.to(f64) ** b.to(f64)).to(base))


# Any number of inputs.


def _several(expression: Function) -> Callable[[Call], Images]:
    """A builder that folds an expression over its inputs, from the first one on."""

    def build(call: Call) -> Images:
        result = call.images(0)
        for position in range(1, len(call.inputs)):
            result = elementwise(call, expression, (result, call.images(position)))
        return result

    return build


operator("Max")(_several(lambda a, b: max(a, b)))
operator("Min")(_several(lambda a, b: min(a, b)))
_sum = _several(lambda a, b: a + b)
operator("Sum")(_sum)


@operator("Mean")
def mean(call: Call) -> Made:
    count = len(call.inputs)
    return elementwise(call, lambda x: x / count, (_sum(call),))


@operator("Clip", since=11)
def clip(call: Call) -> Made:
    result = call.images(0)
    if call.has(1):
        result = elementwise(call, lambda x, low: max(x, low), (result, call.tensor(1)))
    if call.has(2):
        result = elementwise(call, lambda x, high: min(x, high), (result, call.tensor(2)))
    return result


@operator("Where", since=9)
def where(call: Call) -> Made:
    return _of_all(call, lambda condition, a, b: a if condition else b, call.dtype(1))


_TOO_LARGE = {  # from here on a number rounds to more than the type's largest
    f8e4m3: math.nextafter(464.0, math.inf),
    f8e5m2: 61440.0,
}


def _converted(call: Call, dtype: DType) -> Tensor:
    """The first input in another element type."""
    source = call.given(0)
    if call.dtype(0) is dtype:
        return source
    if dtype.is_float:
        call.require_kernel()
    x = call.tensor(0)
    if dtype is boolean:
        return call.compute(x.shape, lambda *at: x[at] != 0, dtype)
    if call.by_python:
        return call.compute(x.shape, lambda *at: _wrapped(x[at], dtype), dtype)
    if x.dtype is boolean:
        return call.compute(x.shape, lambda *at: dtype(1) if x[at] else dtype(0))
    if dtype in (f8e4m3, f8e5m2) and not call.attribute("saturate", 1):
        return _unsaturated(call, x, dtype)
    if dtype in NARROW and x.dtype.is_float and x.dtype.bits > dtype.bits:
        rounded = narrowed(dtype)
        return call.compute(x.shape, lambda *at: rounded(x[at]))
    return call.compute(x.shape, lambda *at: x[at].to(dtype))


def _unsaturated(call: Call, x: TensorHandle, dtype: DType) -> Tensor:
    """An 8-bit float where a number beyond the largest becomes infinite, or NaN in a type without infinity."""
    exact = computed(x.shape, lambda *at: x[at].to(f32), call.name)
    most, nan = _TOO_LARGE[dtype], math.nan
    if dtype is f8e4m3:
        return call.compute(
            x.shape, lambda *at: exact[at].to(dtype) if abs(exact[at]) < most else dtype(nan)
        )

    @tc.function
    def value(*at: Element) -> Computed:
        infinity = u8(0x7C if exact[at] > 0 else 0xFC).bitcast(dtype)
        return infinity if abs(exact[at]) >= most else exact[at].to(dtype)

    return call.compute(x.shape, value)


def _wrapped(number: object, dtype: DType) -> object:
    """An integer reduced to the low bits that its type holds."""
    if not isinstance(number, int):
        return number
    return (number - int(dtype.minimum)) % (1 << dtype.bits) + int(dtype.minimum)


@operator("Cast")
def cast_to(call: Call) -> Made:
    return _converted(call, call.attribute_type("to", tc.f32))


@operator("BitCast", since=26)
def bit_cast(call: Call) -> Made:
    call.require_kernel()
    x, dtype = call.tensor(0), call.attribute_type("to", tc.f32)
    if x.dtype.bits != dtype.bits:
        raise call.node.error(f"{x.dtype} and {dtype} have other numbers of bits")
    if dtype is x.dtype:
        return x
    if dtype is boolean:
        raise call.node.error("not all bits of a number are those of a bool")
    if x.dtype is boolean:
        return call.compute(x.shape, lambda *at: u8(1 if x[at] else 0).bitcast(dtype))
    return call.compute(x.shape, lambda *at: x[at].bitcast(dtype))


@operator("CastLike", since=15)
def cast_like(call: Call) -> Made:
    return _converted(call, call.dtype(1))
