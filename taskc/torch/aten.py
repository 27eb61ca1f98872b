"""ATen's operators as operators of the library: a table by name, a row each.

    "addmm.default": lambda op, c, a, b, beta=1, alpha=1: op.Gemm(a, b, c, alpha=alpha, beta=beta)

`op` is `tc.op`, or records the nodes of a graph under the same names (`taskc.torch.graph`). A tensor has `shape` and
`dtype`; the results of `op` inside a row need not have them. A list of sizes may hold symbolic ones. An element type is
one of taskc's. A row returns None in place of an output that it doesn't compute.

The tables differ in the conversions before a row sees its tensors:

OF_RESULT   all get the element type of the result
OF_COMMON   all get the element type to which PyTorch promotes them
OF_INPUTS   none is converted
CREATED     there are none; the row is told the result's element type
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, log, pi, prod
from typing import Any, NoReturn, TypeAlias

import numpy as np

from taskc.errors import CompileError
from taskc.ir.types import DType, boolean, f32, i64

Row: TypeAlias = "Callable[..., Any]"

_LAST = 2**63 - 1  # the end of a slice that goes to the end


def _known(numbers: Sequence[Any]) -> Any:
    """A list of integers as an input; symbolic sizes stay in the list."""
    return np.array(numbers, np.int64) if all(type(n) is int for n in numbers) else [*numbers]


def _axes(x: Any, axes: Any) -> list[int]:
    """Axes that an argument names, or all where it names none."""
    rank: int = len(x.shape)
    named: list[int] = [axes] if isinstance(axes, int) else [*(axes or ())]
    return [axis % rank for axis in named] or [*range(rank)]


def _repeated(numbers: Any, count: int) -> list[int]:
    """One number for each axis, where a single one stands for all."""
    listed: list[int] = [numbers] if isinstance(numbers, int) else [*numbers]
    return listed * count if len(listed) == 1 else listed


def _refuse(why: str) -> NoReturn:
    raise CompileError(why)


# --- Elementwise --------------------------------------------------------------------------------


def _scaled(op: Any, x: Any, factor: Any) -> Any:
    if isinstance(x, int | float):
        return x * factor
    return x if factor == 1 else op.Mul(x, factor)


def _truncated(op: Any, x: Any) -> Any:
    return op.Mul(op.Sign(x), op.Floor(op.Abs(x)))


def _divided(op: Any, a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return op.Div(a, b)
    if not a.dtype.is_float:
        # ONNX's quotient of integers is rounded towards zero, and its remainder has the divisor's sign.
        difference = 0 if rounding_mode == "trunc" else op.Mod(a, b)
        return op.Div(op.Sub(a, difference), b)
    return op.Floor(op.Div(a, b)) if rounding_mode == "floor" else _truncated(op, op.Div(a, b))


def _remainder(op: Any, a: Any, b: Any) -> Any:
    if not a.dtype.is_float:
        return op.Mod(a, b)
    return op.Sub(a, op.Mul(op.Floor(op.Div(a, b)), b))


def _power(op: Any, x: Any, exponent: Any) -> Any:
    match exponent:
        case 2:
            return op.Mul(x, x)
        case 3:
            return op.Mul(op.Mul(x, x), x)
        case 0.5:
            return op.Sqrt(x)
        case -0.5:
            return op.Reciprocal(op.Sqrt(x))
        case -1:
            return op.Reciprocal(x)
    return op.Pow(x, exponent)


def _clamped(op: Any, x: Any, low: Any = None, high: Any = None) -> Any:
    x = x if low is None else op.Max(x, low)
    return x if high is None else op.Min(x, high)


def _softplus(op: Any, x: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    steep = _scaled(op, x, beta)
    smooth = _scaled(op, op.Softplus(steep), 1 / beta)
    return op.Where(op.Greater(steep, float(threshold)), x, smooth)


def _elu(op: Any, x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    if input_scale != 1:
        _refuse("its input has a scale")
    return _scaled(op, op.Elu(x, alpha=float(alpha)), scale)


def _logical(name: str) -> Row:
    return lambda op, a, b: getattr(op, name)(_truth(op, a), _truth(op, b))


def _truth(op: Any, x: Any) -> Any:
    if isinstance(x, bool | int | float):
        return np.array(bool(x))
    return x if x.dtype is boolean else op.Cast(x, to=9)


def _bitwise(name: str) -> Row:
    """And of booleans, BitwiseAnd of integers."""

    def row(op: Any, a: Any, b: Any) -> Any:
        dtype = next(x.dtype for x in (a, b) if hasattr(x, "dtype"))
        return getattr(op, name if dtype is boolean else f"Bitwise{name}")(a, b)

    return row


OF_RESULT: dict[str, Row] = {
    "add.Tensor": lambda op, a, b, alpha=1: op.Add(a, _scaled(op, b, alpha)),
    "sub.Tensor": lambda op, a, b, alpha=1: op.Sub(a, _scaled(op, b, alpha)),
    "mul.Tensor": lambda op, a, b: op.Mul(a, b),
    "div.Tensor": lambda op, a, b: op.Div(a, b),
    "div.Tensor_mode": _divided,
    "floor_divide.default": lambda op, a, b: _divided(op, a, b, "floor"),
    "pow.Tensor_Tensor": lambda op, x, y: op.Pow(x, y),
    "pow.Tensor_Scalar": _power,
    "pow.Scalar": lambda op, x, y: op.Pow(x, y),
    "fmod.Tensor": lambda op, a, b: op.Mod(a, b, fmod=1),
    "remainder.Tensor": _remainder,
    "maximum.default": lambda op, a, b: op.Max(a, b),
    "minimum.default": lambda op, a, b: op.Min(a, b),
    "neg.default": lambda op, x: op.Neg(x),
    "abs.default": lambda op, x: op.Abs(x),
    "sign.default": lambda op, x: op.Sign(x),
    "ceil.default": lambda op, x: op.Ceil(x) if x.dtype.is_float else x,
    "floor.default": lambda op, x: op.Floor(x) if x.dtype.is_float else x,
    "round.default": lambda op, x: op.Round(x) if x.dtype.is_float else x,
    "trunc.default": lambda op, x: _truncated(op, x) if x.dtype.is_float else x,
    "exp.default": lambda op, x: op.Exp(x),
    "exp2.default": lambda op, x: op.Exp(op.Mul(x, log(2))),
    "log.default": lambda op, x: op.Log(x),
    "log2.default": lambda op, x: op.Mul(op.Log(x), 1 / log(2)),
    "log10.default": lambda op, x: op.Mul(op.Log(x), 1 / log(10)),
    "sqrt.default": lambda op, x: op.Sqrt(x),
    "rsqrt.default": lambda op, x: op.Reciprocal(op.Sqrt(x)),
    "reciprocal.default": lambda op, x: op.Reciprocal(x),
    "sin.default": lambda op, x: op.Sin(x),
    "cos.default": lambda op, x: op.Cos(x),
    "tan.default": lambda op, x: op.Tan(x),
    "asin.default": lambda op, x: op.Asin(x),
    "acos.default": lambda op, x: op.Acos(x),
    "atan.default": lambda op, x: op.Atan(x),
    "sinh.default": lambda op, x: op.Sinh(x),
    "cosh.default": lambda op, x: op.Cosh(x),
    "asinh.default": lambda op, x: op.Asinh(x),
    "acosh.default": lambda op, x: op.Acosh(x),
    "atanh.default": lambda op, x: op.Atanh(x),
    "tanh.default": lambda op, x: op.Tanh(x),
    "erf.default": lambda op, x: op.Erf(x),
    "sigmoid.default": lambda op, x: op.Sigmoid(x),
    "relu.default": lambda op, x: op.Relu(x),
    "gelu.default": lambda op, x, approximate="none": op.Gelu(x, approximate=approximate),
    "silu.default": lambda op, x: op.Swish(x),
    "mish.default": lambda op, x: op.Mish(x),
    "hardswish.default": lambda op, x: op.HardSwish(x),
    "hardsigmoid.default": lambda op, x: op.HardSigmoid(x, alpha=1 / 6),
    "hardtanh.default": lambda op, x, low=-1, high=1: _clamped(op, x, low, high),
    "leaky_relu.default": lambda op, x, slope=0.01: op.LeakyRelu(x, alpha=float(slope)),
    "elu.default": _elu,
    "softplus.default": _softplus,
    "clamp.default": _clamped,
    "clamp.Tensor": _clamped,
    "clamp_min.default": lambda op, x, low: op.Max(x, low),
    "clamp_max.default": lambda op, x, high: op.Min(x, high),
    "bitwise_not.default": lambda op, x: op.Not(x) if x.dtype is boolean else op.BitwiseNot(x),
    "bitwise_and.Tensor": _bitwise("And"),
    "bitwise_or.Tensor": _bitwise("Or"),
    "bitwise_xor.Tensor": _bitwise("Xor"),
    "_to_copy.default": lambda op, x: x,
    "convert_element_type.default": lambda op, x, _: x,
    "copy.default": lambda op, x, source, non_blocking=False: op.Expand(source, _known(x.shape)),
    "fill.Scalar": lambda op, x, value: op.Expand(np.array(value, x.dtype.numpy), _known(x.shape)),
    "full_like.default": lambda op, x, v: op.Expand(np.array(v, x.dtype.numpy), _known(x.shape)),
    "cat.default": lambda op, xs, dim=0: _joined(op, xs, dim),
    "sum.default": lambda op, x: op.ReduceSum(x, keepdims=0),
    "sum.dim_IntList": lambda op, x, dim=None, keepdim=False: _reduced(op.ReduceSum, x, dim, keepdim),
    "mean.default": lambda op, x: op.ReduceMean(x, keepdims=0),
    "mean.dim": lambda op, x, dim=None, keepdim=False: _reduced(op.ReduceMean, x, dim, keepdim),
    "prod.default": lambda op, x: op.ReduceProd(x, keepdims=0),
    "prod.dim_int": lambda op, x, dim, keepdim=False: _reduced(op.ReduceProd, x, dim, keepdim),
    "amax.default": lambda op, x, dim=(), keepdim=False: _reduced(op.ReduceMax, x, dim, keepdim),
    "amin.default": lambda op, x, dim=(), keepdim=False: _reduced(op.ReduceMin, x, dim, keepdim),
    "max.default": lambda op, x: op.ReduceMax(x, keepdims=0),
    "min.default": lambda op, x: op.ReduceMin(x, keepdims=0),
    "cumsum.default": lambda op, x, dim: op.CumSum(x, np.array(dim)),
    "cumprod.default": lambda op, x, dim: op.CumProd(x, np.array(dim)),
    "var.correction": lambda op, x, dim=None, correction=1, keepdim=False: (
        _variance(op, x, dim, correction, keepdim)[0]
    ),
    "_softmax.default": lambda op, x, dim, _: op.Softmax(x, axis=dim) if x.shape else op.Exp(op.Sub(x, x)),
    "_log_softmax.default": lambda op, x, dim, _: (
        op.LogSoftmax(x, axis=dim) if x.shape else op.Sub(x, x)
    ),
}  # fmt: skip
for _name in ("add", "sub", "mul", "div", "fmod", "remainder"):
    OF_RESULT[f"{_name}.Scalar"] = OF_RESULT[f"{_name}.Tensor"]
for _name in ("And", "Or", "Xor"):
    OF_RESULT[f"bitwise_{_name.lower()}.Scalar"] = _bitwise(_name)


def _compared(name: str) -> Row:
    return lambda op, a, b: getattr(op, name)(a, b)


OF_COMMON: dict[str, Row] = {
    "where.self": lambda op, condition, a, b: op.Where(condition, a, b),
    "atan2.default": lambda op, y, x: _angle(op, y, x),
}
for _name, _operator in (
    ("eq", "Equal"), ("lt", "Less"), ("le", "LessOrEqual"), ("gt", "Greater"), ("ge", "GreaterOrEqual"),
):  # fmt: skip
    for _overload in ("Tensor", "Scalar"):
        OF_COMMON[f"{_name}.{_overload}"] = _compared(_operator)
for _overload in ("Tensor", "Scalar"):
    OF_COMMON[f"ne.{_overload}"] = lambda op, a, b: op.Not(op.Equal(a, b))


def _angle(op: Any, y: Any, x: Any) -> Any:
    half = op.Where(op.Less(y, 0.0), -pi, np.array(pi, x.dtype.numpy))
    turned = op.Where(op.Less(x, 0.0), half, np.array(0, x.dtype.numpy))
    return op.Add(op.Atan(op.Div(y, x)), turned)


# --- Reductions ---------------------------------------------------------------------------------


def _reduced(reduce: Callable[..., Any], x: Any, dim: Any, keepdim: bool) -> Any:
    return reduce(x, _known(_axes(x, dim)), keepdims=int(keepdim)) if x.shape else x


def _variance(op: Any, x: Any, dim: Any, correction: Any, keepdim: bool) -> tuple[Any, Any]:
    """The variance and the mean."""
    axes = _axes(x, dim)
    count = prod([x.shape[axis] for axis in axes])
    if type(count) is not int or correction is None:
        _refuse("the number of elements is known only at a call")
    mean = op.ReduceMean(x, _known(axes))
    offset = op.Sub(x, mean)
    squares = op.ReduceSum(op.Mul(offset, offset), _known(axes), keepdims=int(keepdim))
    factor = 1 / (count - correction) if count > correction else inf
    return op.Mul(squares, factor), mean if keepdim else op.Squeeze(mean, _known(axes))


def _extreme(reduce: str, place: str) -> Row:
    def row(op: Any, x: Any, dim: int, keepdim: bool = False) -> Any:
        if not x.shape:
            return x, np.array(0)
        places = getattr(op, place)(x, axis=dim, keepdims=int(keepdim))
        return _reduced(getattr(op, reduce), x, dim, keepdim), places

    return row


def _place(name: str) -> Row:
    def row(op: Any, x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        if dim is not None:
            return getattr(op, name)(x, axis=dim, keepdims=int(keepdim))
        flat = getattr(op, name)(op.Reshape(x, _known([-1])), axis=0, keepdims=0)
        return op.Reshape(flat, _known([1] * len(x.shape) if keepdim else []))

    return row


def _any(name: str) -> Row:
    """Any and all are the largest and the smallest of truth values."""

    def row(op: Any, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if not x.shape:
            return _truth(op, x)
        bytes_ = op.Cast(_truth(op, x), to=2)
        axes = _known(_axes(x, dim))
        return op.Cast(getattr(op, name)(bytes_, axes, keepdims=int(keepdim)), to=9)

    return row


# --- Products, convolutions, pooling, norms -----------------------------------------------------


def _convolution(
    op: Any, x: Any, w: Any, b: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int,
) -> Any:  # fmt: skip
    rank = len(w.shape) - 2
    if len(x.shape) != len(w.shape):
        _refuse("its images have no batch")
    pads = _repeated(padding, rank)
    options: dict[str, Any] = {
        "strides": _repeated(stride, rank),
        "dilations": _repeated(dilation, rank),
        "pads": [*pads, *pads],
        "group": groups,
    }
    if not transposed:
        return op.Conv(x, w, b, **options)
    return op.ConvTranspose(x, w, b, output_padding=_repeated(output_padding, rank), **options)


def _windows(size: Any, stride: Any, padding: Any, rank: int, ceil_mode: bool) -> dict[str, Any]:
    kernel, pads = _repeated(size, rank), _repeated(padding, rank)
    return {
        "kernel_shape": kernel,
        "strides": _repeated(stride, rank) if stride else kernel,
        "pads": [*pads, *pads],
        "ceil_mode": int(ceil_mode),
    }


def _max_pool(rank: int) -> Row:
    def row(
        op: Any, x: Any, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:  # fmt: skip
        options = _windows(size, stride, padding, rank, ceil_mode)
        options["dilations"] = _repeated(dilation, rank)
        return _on_batch(op, x, rank, lambda batch: op.MaxPool(batch, **options)), None

    return row


def _average_pool(rank: int) -> Row:
    def row(
        op: Any, x: Any, size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Any:  # fmt: skip
        if divisor_override is not None:
            _refuse("its divisor is overridden")
        options = _windows(size, stride, padding, rank, ceil_mode)
        options["count_include_pad"] = int(count_include_pad)
        return _on_batch(op, x, rank, lambda batch: op.AveragePool(batch, **options))

    return row


def _on_batch(op: Any, x: Any, rank: int, pool: Callable[[Any], Any]) -> Any:
    """The result for images, which may have no batch axis."""
    if len(x.shape) == rank + 2:
        return pool(x)
    first = _known([0])
    return op.Squeeze(pool(op.Unsqueeze(x, first)), first)


def _adaptive_average(op: Any, x: Any, size: Any) -> Any:
    rank = len(size)
    extents = x.shape[-rank:]
    if [*size] == [1] * rank:
        return op.ReduceMean(x, _known([*range(len(x.shape) - rank, len(x.shape))]))
    if any(type(extent) is not int or extent % n for extent, n in zip(extents, size, strict=True)):
        _refuse("its windows differ in size")
    windows = [extent // n for extent, n in zip(extents, size, strict=True)]
    return _average_pool(rank)(op, x, windows)


def _features(op: Any, x: Any, values: Any) -> Any:
    """One value for each channel of x, as a tensor that broadcasts."""
    return op.Reshape(values, _known([-1] + [1] * (len(x.shape) - 2)))


def _batch_norm(
    op: Any, x: Any, w: Any, b: Any, mean: Any, variance: Any, momentum: float, epsilon: float
) -> Any:
    if w is not None and b is not None:
        return op.BatchNormalization(x, w, b, mean, variance, epsilon=epsilon), None, None
    scale = op.Reciprocal(op.Sqrt(op.Add(variance, epsilon)))
    y = op.Mul(op.Sub(x, _features(op, x, mean)), _features(op, x, scale))
    y = y if w is None else op.Mul(y, _features(op, x, w))
    return y if b is None else op.Add(y, _features(op, x, b)), None, None


def _native_batch_norm(
    op: Any, x: Any, w: Any, b: Any, mean: Any, variance: Any, training: bool, momentum: float,
    epsilon: float,
) -> Any:  # fmt: skip
    if not training:
        return _batch_norm(op, x, w, b, mean, variance, momentum, epsilon)
    if mean is not None:
        _refuse("it writes its running mean")
    axes = [axis for axis in range(len(x.shape)) if axis != 1]
    variance, mean = _variance(op, x, axes, 0, False)
    scale = op.Reciprocal(op.Sqrt(op.Add(variance, epsilon)))
    y = op.Mul(op.Sub(x, _features(op, x, mean)), _features(op, x, scale))
    y = y if w is None else op.Mul(y, _features(op, x, w))
    return y if b is None else op.Add(y, _features(op, x, b)), mean, scale


def _layer_norm(op: Any, x: Any, shape: Any, w: Any, b: Any, epsilon: float) -> Any:
    w = op.Expand(np.ones((), x.dtype.numpy), _known(shape)) if w is None else w
    y, mean, scale = op.LayerNormalization(x, w, b, axis=-len(shape), epsilon=epsilon, outputs=3)
    return y, mean, scale


def _group_norm(
    op: Any, x: Any, w: Any, b: Any, n: Any, c: Any, size: Any, groups: int, epsilon: float
) -> Any:
    w = np.ones(c, x.dtype.numpy) if w is None else w
    b = np.zeros(c, x.dtype.numpy) if b is None else b
    return op.GroupNormalization(x, w, b, num_groups=groups, epsilon=epsilon), None, None


def _attention(
    op: Any, q: Any, k: Any, v: Any, dropout: float = 0.0, is_causal: bool = False,
    attn_mask: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    if dropout:
        _refuse("it drops some of its weights")
    y = op.Attention(q, k, v, attn_mask, is_causal=int(is_causal), scale=scale)
    return y, None


def _linear(op: Any, x: Any, w: Any, b: Any = None) -> Any:
    """x @ w.T + b, for any number of leading axes."""
    y = op.MatMul(x, op.Transpose(w, perm=[1, 0]))
    return y if b is None else op.Add(y, b)


def _encoder_layer(
    op: Any, x: Any, width: int, heads: int, qkv: Any, qkv_bias: Any, projection: Any,
    projection_bias: Any, use_gelu: bool, norm_first: bool, epsilon: float, scale_1: Any, shift_1: Any,
    scale_2: Any, shift_2: Any, w1: Any, b1: Any, w2: Any, b2: Any, mask: Any = None, mask_type: Any = None,
) -> Any:  # fmt: skip
    """The one operator that nn.TransformerEncoderLayer is in inference."""
    if mask is not None:
        _refuse("it has a mask")

    def normed(x: Any, scale: Any, shift: Any) -> Any:
        return op.LayerNormalization(x, scale, shift, axis=-1, epsilon=epsilon)

    def attended(x: Any) -> Any:
        joined = _linear(op, x, qkv, qkv_bias)
        q, k, v = op.Split(joined, _known([width] * 3), axis=2, outputs=3)
        y = op.Attention(q, k, v, q_num_heads=heads, kv_num_heads=heads)
        return _linear(op, y, projection, projection_bias)

    def fed(x: Any) -> Any:
        hidden = _linear(op, x, w1, b1)
        return _linear(op, op.Gelu(hidden) if use_gelu else op.Relu(hidden), w2, b2)

    if norm_first:
        x = op.Add(x, attended(normed(x, scale_1, shift_1)))
        return op.Add(x, fed(normed(x, scale_2, shift_2)))
    x = normed(op.Add(x, attended(x)), scale_1, shift_1)
    return normed(op.Add(x, fed(x)), scale_2, shift_2)


_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}  # ONNX's order, of PyTorch's gates


def _recurrent(name: str, **options: Any) -> Row:
    """The layers of an LSTM, a GRU or an RNN, one operator each."""

    def row(
        op: Any, x: Any, states: Any, parameters: Any, has_biases: bool, layers: int, dropout: float,
        is_training: bool, is_bidirectional: bool, is_batch_first: bool,
    ) -> Any:  # fmt: skip
        states = states if isinstance(states, list) else [states]
        directions, each = 1 + is_bidirectional, 4 if has_biases else 2
        if is_training and dropout:
            _refuse("it drops some of its values")
        if len(parameters) != each * layers * directions:
            _refuse("it has projections")
        hidden = parameters[1].shape[1]

        def gates(x: Any) -> Any:
            parts = [_sliced(op, x, 0, n * hidden, (n + 1) * hidden) for n in _GATES[name]]
            return op.Concat(*parts, axis=0)

        x = op.Transpose(x, perm=[1, 0, 2]) if is_batch_first else x
        last: list[list[Any]] = [[] for _ in states]
        for first in range(0, layers * directions, directions):
            of_layer = parameters[first * each : (first + directions) * each]
            w, r, *biases = [
                op.Concat(*[op.Unsqueeze(gates(of_layer[n]), _known([0])) for n in places], axis=0)
                for places in (range(k, len(of_layer), each) for k in range(each))
            ]
            begin = [_sliced(op, state, 0, first, first + directions) for state in states]
            y, *ends = getattr(op, name)(
                x, w, r, op.Concat(*biases, axis=1) if biases else None, None, *begin,
                hidden_size=hidden, direction="bidirectional" if is_bidirectional else "forward",
                outputs=1 + len(states), **options,
            )  # fmt: skip
            x = op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), _known([0, 0, -1]))
            for ending, end in zip(last, ends, strict=True):
                ending.append(end)
        ended = [op.Concat(*one, axis=0) if layers > 1 else one[0] for one in last]
        return (op.Transpose(x, perm=[1, 0, 2]) if is_batch_first else x, *ended)

    return row


def _resized(mode: str) -> Row:
    def row(op: Any, x: Any, size: Any, *options: Any) -> Any:
        is_aligned, *scales = options if mode != "nearest" else (False, *options)
        if mode == "nearest":
            places: dict[str, Any] = {
                "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor",
            }  # fmt: skip
        else:
            places = {
                "coordinate_transformation_mode": "align_corners" if is_aligned else "half_pixel"
            }
        for scale, n, extent in zip(scales, size, x.shape[2:], strict=False):
            is_ratio = scale is None or is_aligned or abs(scale * extent - n) < 1e-6 * n
            if not is_ratio:
                _refuse("its scale isn't that of the sizes")
        return op.Resize(x, None, None, _known([*x.shape[:2], *size]), mode=mode, **places)

    return row


# --- Shapes and movement ------------------------------------------------------------------------


def _joined(op: Any, xs: Sequence[Any], dim: int) -> Any:
    # PyTorch allows, and ignores, tensors of one empty axis among others.
    rank = max(len(x.shape) for x in xs)
    whole = [x for x in xs if len(x.shape) == rank]
    return op.Concat(*whole, axis=dim) if len(whole) > 1 else whole[0]


def _expanded(op: Any, x: Any, sizes: Any, implicit: bool = False) -> Any:
    old = [1] * (len(sizes) - len(x.shape)) + [*x.shape]
    sizes = [before if _is(n, -1) else n for n, before in zip(sizes, old, strict=True)]
    return op.Expand(x, _known(sizes))


def _is(size: Any, number: int) -> bool:
    return type(size) is int and size == number


def _sliced(
    op: Any, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    end = _LAST if end is None else end
    inputs = ([0 if start is None else start], [end], [dim], [step])
    return op.Slice(x, *map(_known, inputs))


def _split(op: Any, x: Any, sizes: Any, dim: int = 0) -> Any:
    if isinstance(sizes, int):
        extent = x.shape[dim]
        if type(extent) is not int:
            _refuse("the number of its parts is known only at a call")
        sizes = [min(sizes, extent - at) for at in range(0, extent, sizes)] or [0]
    parts = op.Split(x, _known(sizes), axis=dim, outputs=len(sizes))
    return parts if len(sizes) > 1 else (parts,)


def _padded(mode: str) -> Row:
    def row(op: Any, x: Any, pads: Sequence[int], value: Any = 0) -> Any:
        # PyTorch lists the last axis first: (before, after) of each axis.
        rank, count = len(x.shape), len(pads) // 2
        before, after = [0] * rank, [0] * rank
        for place in range(count):
            before[rank - 1 - place], after[rank - 1 - place] = pads[2 * place : 2 * place + 2]
        if any(type(n) is not int for n in pads):
            _refuse("its padding is known only at a call")
        if min(pads, default=0) < 0 and mode != "constant":
            _refuse("its padding is negative")
        fill = np.array(value, x.dtype.numpy) if mode == "constant" else None
        return op.Pad(x, _known([*before, *after]), fill, mode=mode)

    return row


def _flipped(op: Any, x: Any, dims: Sequence[int]) -> Any:
    count = len(dims)
    ends = [[-1] * count, [-_LAST] * count, [*dims], [-1] * count]
    return op.Slice(x, *map(_known, ends)) if dims else x


def _repeats(op: Any, x: Any, repeats: Sequence[Any]) -> Any:
    rank = len(repeats)
    shape = [1] * (rank - len(x.shape)) + [*x.shape]
    whole = x if rank == len(x.shape) else op.Reshape(x, _known(shape))
    return op.Tile(whole, _known(repeats)) if rank else whole


def _indexed(op: Any, x: Any, indices: Sequence[Any]) -> Any:
    at = [place for place, index in enumerate(indices) if index is not None]
    tensors = [indices[place] for place in at]
    if any(index.dtype is boolean for index in tensors):
        _refuse("its number of results is known only at a call")
    if len(at) == 1:
        return op.Gather(x, tensors[0], axis=at[0])
    if at != [*range(at[0], at[-1] + 1)]:
        _refuse("its indices aren't of neighbouring axes")
    first, count = at[0], len(at)
    order = [*at, *[axis for axis in range(len(x.shape)) if axis not in at]]
    moved = x if first == 0 else op.Transpose(x, perm=order)
    y = op.GatherND(moved, _points(op, tensors))
    if first == 0:
        return y
    rank = max(len(index.shape) for index in tensors)
    back = [
        *range(rank, rank + first),
        *range(rank),
        *range(rank + first, len(x.shape) - count + rank),
    ]
    return op.Transpose(y, perm=back)


def _points(op: Any, tensors: Sequence[Any]) -> Any:
    """Tensors of indices that broadcast, one for each axis, as a tensor of points."""
    rank = max(len(index.shape) for index in tensors)
    whole = np.zeros([1] * rank, np.int64)
    wide = [index if index.dtype is i64 else op.Cast(index, to=7) for index in tensors]
    total: Any = whole
    for index in wide:
        total = op.Add(total, op.Mul(index, 0))
    last = _known([rank])
    return op.Concat(*[op.Unsqueeze(op.Add(total, index), last) for index in wide], axis=rank)


def _put(op: Any, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    tensors = [*indices]
    if any(index is None or index.dtype is boolean for index in tensors):
        _refuse("it has no indices of all first axes")
    ranks = [len(index.shape) for index in tensors]
    shapes = [index.shape for index in tensors]
    if len({(*shape,) for shape in shapes}) > 1 or not max(ranks):
        _refuse("its indices broadcast")
    shape = _known([*shapes[0], *x.shape[len(tensors) :]])
    whole = op.Expand(values, shape)
    return op.ScatterND(x, _points(op, tensors), whole, reduction="add" if accumulate else "none")


def _scattered(reduction: str) -> Row:
    def row(op: Any, x: Any, dim: int, index: Any, source: Any, reduce: str | None = None) -> Any:
        if isinstance(source, bool | int | float):
            source = op.Expand(np.array(source, x.dtype.numpy), _known(index.shape))
        elif [*source.shape] != [*index.shape]:
            _refuse("its source is larger than its indices")
        return op.ScatterElements(x, index, source, axis=dim, reduction=reduction)

    return row


def _slice_scattered(
    op: Any, x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    extent = x.shape[dim]
    if not all(n is None or type(n) is int for n in (extent, start, end)) or len(x.shape) < 1:
        _refuse("its places are known only at a call")
    places = np.arange(extent)[slice(start, end, step)]
    if not places.size:
        return x
    axis = dim % len(x.shape)
    shape = [1] * len(x.shape)
    shape[axis] = places.size
    index = op.Expand(places.reshape(shape), _known(source.shape))
    return op.ScatterElements(x, index, source, axis=axis)


def _selected(op: Any, x: Any, dim: int, index: Any) -> Any:
    return op.Squeeze(
        _sliced(op, x, dim, index, _LAST if _is(index, -1) else index + 1), _known([dim])
    )


def _largest(
    op: Any, x: Any, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Any:
    if not x.shape:
        return x, np.array(0)
    return op.TopK(x, _known([k]), axis=dim, largest=int(largest), sorted=int(sorted))


def _sorted(op: Any, x: Any, dim: int = -1, descending: bool = False, **options: Any) -> Any:
    return _largest(op, x, x.shape[dim] if x.shape else 1, dim, descending)


def _triangle(upper: int) -> Row:
    return lambda op, x, diagonal=0: op.Trilu(x, np.array(diagonal), upper=upper)


_same: Row = lambda op, x, *_: x  # noqa: E731
_reshaped: Row = lambda op, x, sizes: op.Reshape(x, _known(sizes))  # noqa: E731


OF_INPUTS: dict[str, Row] = {
    "addmm.default": lambda op, c, a, b, beta=1, alpha=1: op.Gemm(
        a, b, c, alpha=float(alpha), beta=float(beta)
    ),
    "mm.default": lambda op, a, b: op.MatMul(a, b),
    "bmm.default": lambda op, a, b: op.MatMul(a, b),
    "matmul.default": lambda op, a, b: op.MatMul(a, b),
    "linear.default": _linear,
    "lstm.input": _recurrent("LSTM"),
    "gru.input": _recurrent("GRU", linear_before_reset=1),
    "rnn_tanh.input": _recurrent("RNN"),
    "rnn_relu.input": _recurrent("RNN", activations=["Relu", "Relu"]),
    "convolution.default": _convolution,
    "max_pool2d_with_indices.default": _max_pool(2),
    "max_pool3d_with_indices.default": _max_pool(3),
    "avg_pool1d.default": _average_pool(1),
    "avg_pool2d.default": _average_pool(2),
    "avg_pool3d.default": _average_pool(3),
    "_adaptive_avg_pool2d.default": _adaptive_average,
    "_adaptive_avg_pool3d.default": _adaptive_average,
    "_native_batch_norm_legit_no_training.default": _batch_norm,
    "native_batch_norm.default": _native_batch_norm,
    "_native_batch_norm_legit.no_stats": lambda op, x, w, b, training, momentum, epsilon: (
        _native_batch_norm(op, x, w, b, None, None, training, momentum, epsilon)
    ),
    "native_layer_norm.default": _layer_norm,
    "native_group_norm.default": _group_norm,
    "_scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "_transformer_encoder_layer_fwd.default": _encoder_layer,
    "upsample_nearest1d.default": _resized("nearest"),
    "upsample_nearest2d.default": _resized("nearest"),
    "upsample_nearest3d.default": _resized("nearest"),
    "upsample_linear1d.default": _resized("linear"),
    "upsample_bilinear2d.default": _resized("linear"),
    "upsample_trilinear3d.default": _resized("linear"),
    "upsample_bicubic2d.default": _resized("cubic"),
    "logical_and.default": _logical("And"),
    "logical_or.default": _logical("Or"),
    "logical_xor.default": _logical("Xor"),
    "logical_not.default": lambda op, x: op.Not(_truth(op, x)),
    "isnan.default": lambda op, x: op.IsNaN(x),
    "isinf.default": lambda op, x: op.IsInf(x),
    "any.default": _any("ReduceMax"),
    "any.dim": _any("ReduceMax"),
    "any.dims": _any("ReduceMax"),
    "var_mean.correction": lambda op, x, dim=None, correction=1, keepdim=False: _variance(
        op, x, dim, correction, keepdim
    ),
    "max.dim": _extreme("ReduceMax", "ArgMax"),
    "min.dim": _extreme("ReduceMin", "ArgMin"),
    "argmax.default": _place("ArgMax"),
    "argmin.default": _place("ArgMin"),
    "topk.default": _largest,
    "sort.default": _sorted,
    "sort.stable": lambda op, x, stable=None, dim=-1, descending=False: _sorted(
        op, x, dim, descending
    ),
    "embedding.default": lambda op, w, index, *_: op.Gather(w, index),
    "index_select.default": lambda op, x, dim, index: op.Gather(x, index, axis=dim),
    "index.Tensor": _indexed,
    "gather.default": lambda op, x, dim, index, **_: op.GatherElements(x, index, axis=dim),
    "index_put.default": _put,
    "scatter.src": _scattered("none"),
    "scatter.value": _scattered("none"),
    "scatter_add.default": _scattered("add"),
    "slice_scatter.default": _slice_scattered,
    "select_scatter.default": lambda op, x, source, dim, index: _put_row(op, x, source, dim, index),
    "permute.default": lambda op, x, dims: op.Transpose(x, perm=[n % len(x.shape) for n in dims]),
    "transpose.int": lambda op, x, a, b: op.Transpose(x, perm=_exchanged(len(x.shape), a, b)),
    "t.default": lambda op, x: op.Transpose(x, perm=[*range(len(x.shape))][::-1]),
    "view.default": _reshaped,
    "reshape.default": _reshaped,
    "_unsafe_view.default": _reshaped,
    "unsqueeze.default": lambda op, x, dim: op.Unsqueeze(x, _known([dim])),
    "squeeze.dims": lambda op, x, dims: _squeezed(op, x, dims),
    "squeeze.dim": lambda op, x, dim: _squeezed(op, x, [dim]),
    "squeeze.default": lambda op, x: _squeezed(op, x, range(len(x.shape))),
    "expand.default": _expanded,
    "slice.Tensor": _sliced,
    "select.int": _selected,
    "split.Tensor": _split,
    "split_with_sizes.default": _split,
    "repeat.default": _repeats,
    "flip.default": _flipped,
    "constant_pad_nd.default": _padded("constant"),
    "reflection_pad1d.default": _padded("reflect"),
    "reflection_pad2d.default": _padded("reflect"),
    "replication_pad2d.default": _padded("edge"),
    "tril.default": _triangle(0),
    "triu.default": _triangle(1),
    "clone.default": _same,
    "alias.default": _same,
    "detach.default": _same,
    "lift_fresh_copy.default": _same,
    "pixel_shuffle.default": lambda op, x, factor: op.DepthToSpace(x, blocksize=factor, mode="CRD"),
}


def _exchanged(rank: int, a: int, b: int) -> list[int]:
    order = [*range(rank)]
    order[a], order[b] = order[b], order[a]
    return order


def _squeezed(op: Any, x: Any, dims: Sequence[int]) -> Any:
    axes = [dim for dim in dims if x.shape and _is(x.shape[dim], 1)]
    return op.Squeeze(x, _known(axes)) if axes else x


def _put_row(op: Any, x: Any, source: Any, dim: int, index: Any) -> Any:
    if type(index) is not int or type(x.shape[dim]) is not int:
        _refuse("its place is known only at a call")
    index %= x.shape[dim]
    axis = dim % len(x.shape)
    places = np.full([1] * len(x.shape), index)
    sizes = [1 if at == axis else n for at, n in enumerate(x.shape)]
    rows = op.Unsqueeze(source, _known([axis]))
    return op.ScatterElements(x, op.Expand(places, _known(sizes)), rows, axis=axis)


# --- Creation -----------------------------------------------------------------------------------


def _filled(op: Any, sizes: Any, value: Any, dtype: DType = f32) -> Any:
    return op.Expand(np.array(value, dtype.numpy), _known(sizes))


def _range(op: Any, start: Any, end: Any, step: Any = 1, dtype: DType = i64) -> Any:
    if all(isinstance(n, int | float) for n in (start, end, step)):
        return np.arange(start, end, step).astype(dtype.numpy)
    numbers = [[n] for n in (start, end, step)]
    scalars = [op.Squeeze(_whole(op, number), _known([0])) for number in numbers]
    places = op.Range(*scalars)
    return places if dtype is i64 else op.CastLike(places, np.zeros((), dtype.numpy))


def _whole(op: Any, numbers: list[Any]) -> Any:
    """A list of symbolic sizes as a tensor."""
    return op.Identity(_known(numbers))


CREATED: dict[str, Row] = {
    "full.default": _filled,
    "zeros.default": lambda op, sizes, dtype=f32: _filled(op, sizes, 0, dtype),
    "ones.default": lambda op, sizes, dtype=f32: _filled(op, sizes, 1, dtype),
    "empty.memory_format": lambda op, sizes, dtype=f32: _filled(op, sizes, 0, dtype),
    "scalar_tensor.default": lambda op, value, dtype=f32: np.array(value, dtype.numpy),
    "arange.start_step": _range,
    "arange.start": _range,
    "arange.default": lambda op, end, dtype=i64: _range(op, 0, end, 1, dtype),
    "iota.default": lambda op, length, start=0, step=1, dtype=i64, requires_grad=False: _range(
        op, start, start + length * step, step, dtype
    ),
}

TABLES: Mapping[str, dict[str, Row]] = {
    "result": OF_RESULT, "common": OF_COMMON, "inputs": OF_INPUTS, "created": CREATED,
}  # fmt: skip

# The conversions and the row of each operator, by name.
ROWS: dict[str, tuple[str, Row]] = {
    name: (kind, row) for kind, table in TABLES.items() for name, row in table.items()
}
