"""Random problems for the templates of the library, with what NumPy says of them.

    problem(number, machine)

is a kernel or a program for a machine, what it is called with and what has to come out: exactly, where sums of
small whole numbers are, else within a bound for each element. Extents are awkward more often than not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

import taskc as tc
from taskc import DType, Machine, bf16, f8e4m3, f16, f32, f64, i8, i32, tf32, u8
from taskc.kernels.attention import attention
from taskc.kernels.convolution import convolution
from taskc.kernels.images import ORDERS
from taskc.kernels.matmul import matmul
from taskc.kernels.pooling import average_pool, max_pool, sum_pool
from taskc.kernels.reductions import argmax, argmin, reduction
from taskc.kernels.rows import layer_norm, log_softmax, rms_norm, softmax
from taskc.kernels.scans import cumsum
from taskc.kernels.signatures import types_of_products
from taskc.kernels.transpose import transpose
from taskc.lang.definition import Definition
from tests.kernels import convolved

Array = np.ndarray[Any, Any]

EXTENTS = (
    1,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    9,
    15,
    16,
    17,
    24,
    31,
    32,
    33,
    40,
    63,
    64,
    65,
    96,
    100,
    127,
    128,
    129,
)
FEW = tuple(n for n in EXTENTS if n <= 17)

# Of one unit in the last place of what is stored.
_EPSILON = {f32: 2.0**-23, f16: 2.0**-10, bf16: 2.0**-7, f64: 2.0**-52}


@dataclass(frozen=True)
class Problem:
    text: str
    definition: Definition
    arguments: list[Any]
    expected: Array
    bound: Any = 0


@tc.function
def relu(x):  # type: ignore[no-untyped-def]
    return max(x, 0)


@tc.function
def quarter(x):  # type: ignore[no-untyped-def]
    return x * 0.25 + 1


ACTIVATIONS: dict[Any, Callable[[Array], Array]] = {
    None: lambda x: x,
    relu: lambda x: np.maximum(x, 0),
    quarter: lambda x: x * 0.25 + 1,
}


def problem(number: int, machine: Machine) -> Problem:
    random = Random(number)
    make = random.choice(
        (
            _product, _product, _rows, _reduction, _transpose, _images, _pooling,
            _attention,
        )
    )  # fmt: skip
    return make(random, np.random.default_rng(number), machine)


def _called(
    make: Callable[..., Any], sizes: list[Any], options: dict[str, Any], machine: Machine
) -> tuple[str, Any]:
    parts = [str(size) for size in sizes]
    parts += [f"{name}={getattr(value, '__name__', value)}" for name, value in options.items()]
    return f"{make.__name__}({', '.join(parts)})", make(*sizes, **options, machine=machine)


def _whole(numbers: np.random.Generator, shape: Any, dtype: DType) -> Array:
    """Numbers whose sums and products are exact, in any order."""
    low = 0 if not dtype.is_signed and dtype.is_integer else -2
    return numbers.integers(low, 3, shape).astype(dtype.numpy)


def _stored(value: Array, dtype: DType) -> Array:
    return value.astype(dtype.numpy).astype(np.float64)


_PRODUCTS = (
    (f32, f32), (f32, f32), (f64, f64), (f16, f32), (f16, f16), (bf16, f32), (tf32, f32),
    (i8, i32), (u8, i32), (f8e4m3, f32),
)  # fmt: skip


def _types(random: Random, machine: Machine) -> tuple[DType, DType]:
    """Of operands and sums, that the machine's matmul takes."""
    while True:
        dtype, total = random.choice(_PRODUCTS)
        if not machine.is_processor or dtype not in (tf32, f8e4m3, u8):
            return dtype, total


def _product(random: Random, numbers: np.random.Generator, machine: Machine) -> Problem:
    dtype, total = _types(random, machine)
    sizes = [random.choice(EXTENTS) for _ in range(3)]
    if random.random() < 0.15:
        sizes[2] = random.choice((300, 513, 1024))  # long sums
    options: dict[str, Any] = {"dtype": dtype, "total": total}
    for name in ("transpose_a", "transpose_b", "bias"):
        if random.random() < 0.4:
            options[name] = True
    if total.is_float and random.random() < 0.5:
        options["activation"] = random.choice((relu, quarter))
    if total is f32 and dtype in (f16, bf16) and random.random() < 0.5:
        options["result"] = dtype
    if random.random() < 0.3:  # the types that a call doesn't say
        del options["total"]
        total, options["result"] = types_of_products(dtype, None, options.get("result"))
    m, n, k = sizes
    a = _whole(numbers, (k, m) if options.get("transpose_a") else (m, k), dtype)
    b = _whole(numbers, (n, k) if options.get("transpose_b") else (k, n), dtype)
    arguments = [a, b]
    left, right = (x.astype(np.float64) for x in arguments)
    exact = (left.T if options.get("transpose_a") else left) @ (
        right.T if options.get("transpose_b") else right
    )
    if options.get("bias"):
        arguments.append(_whole(numbers, (n,), total))
        exact = exact + arguments[2].astype(np.float64)
    exact = ACTIVATIONS[options.get("activation")](exact)
    text, made = _called(matmul, sizes, options, machine)
    return Problem(text, made, arguments, _stored(exact, options.get("result", total)))


@np.errstate(divide="ignore", invalid="ignore")
def _rows(random: Random, numbers: np.random.Generator, machine: Machine) -> Problem:
    dtype = random.choice((f32, f16, bf16, f64))
    m, n = random.choice(FEW), random.choice((*EXTENTS, 257, 700, 1000, 1025))
    inner = random.choice(((), (), (random.choice(EXTENTS),)))
    m, n = (min(m, 5), random.choice(FEW)) if inner else (m, n)
    inner = inner if inner != (1,) else ()  # rows as without it: [m, n]
    x = numbers.standard_normal((m, n, *inner)).astype(dtype.numpy)
    wide = x.astype(np.float64)
    largest = wide.max(1, keepdims=True, initial=-np.inf)  # of nothing as well
    powers = np.exp(wide - largest)
    total = powers.sum(1, keepdims=True)
    make, options, arguments = (
        random.choice((softmax, log_softmax, layer_norm, rms_norm)),
        {"dtype": dtype, **({"inner": inner[0]} if inner else {})},
        [x],
    )
    if make is softmax:
        exact = powers / total
    elif make is log_softmax:
        exact = wide - largest - np.log(total)
    else:
        count = max(n, 1)
        centred = wide - wide.sum(1, keepdims=True) / count if make is layer_norm else wide
        exact = centred / np.sqrt((centred**2).sum(1, keepdims=True) / count + 1e-5)
        factor, offset = (numbers.standard_normal(n).astype(dtype.numpy) for _ in range(2))
        for name, value in (("scaled", factor), ("shifted", offset))[
            : 2 if make is layer_norm else 1
        ]:
            options[name] = random.random() < 0.5  # type: ignore[assignment]
            if options[name]:
                arguments.append(value)
                other = value.astype(np.float64).reshape(n, *(1 for _ in inner))
                exact = exact * other if name == "scaled" else exact + other
    text, made = _called(make, [m, n], options, machine)
    epsilon = max(_EPSILON[dtype], 2.0**-48)
    return Problem(
        text,
        made,
        arguments,
        exact,
        epsilon * (np.abs(exact) + np.abs(exact).max(initial=0) + 2) * 8,
    )


def _shape(random: Random, most: int) -> tuple[int, ...]:
    while True:
        shape = tuple([random.choice(EXTENTS) for _ in range(random.randint(1, 4))])
        if np.prod(shape) <= most:
            return shape


def _reduction(random: Random, numbers: np.random.Generator, machine: Machine) -> Problem:
    if random.random() < 0.4:
        return _along(random, numbers, machine)
    dtype = random.choice((f32, f16, bf16, i32, f64))
    operator = random.choice(
        ("sum", "max", "min") if dtype is i32 else ("sum", "mean", "max", "min")
    )
    shape = _shape(random, 40_000)
    axes = tuple(sorted(random.sample(range(len(shape)), random.randint(1, len(shape)))))
    options = {"dtype": dtype, "keepdims": random.random() < 0.5}
    if 0 in shape:
        operator = "sum"  # the others have no value of nothing
    x = _whole(numbers, shape, dtype)
    exact = getattr(np, operator)(x.astype(np.float64), axis=axes, keepdims=options["keepdims"])
    text, made = _called(reduction, [operator, shape, axes], options, machine)
    bound = np.abs(exact) * _EPSILON[dtype] if operator == "mean" else 0
    return Problem(text, made, [x], _stored(np.asarray(exact), dtype), bound)


def _along(random: Random, numbers: np.random.Generator, machine: Machine) -> Problem:
    dtype = random.choice((f32, f16, bf16, i32, f64))
    shape = _shape(random, 20_000)
    axis = random.randrange(len(shape))
    make = cumsum if 0 in shape else random.choice((argmax, argmin, cumsum))
    flags = ("exclusive", "reverse") if make is cumsum else ("keepdims", "last")
    options: dict[str, Any] = {name: random.random() < 0.5 for name in flags}
    x = _whole(numbers, shape, dtype)
    behind = options.get("reverse") or options.get("last")
    wide = np.flip(x, axis).astype(np.float64) if behind else x.astype(np.float64)
    if make is cumsum:
        exact = np.cumsum(wide, axis) - (wide if options["exclusive"] else 0)
        exact = np.flip(exact, axis) if behind else exact
    else:
        exact = (np.argmax if make is argmax else np.argmin)(
            wide, axis, keepdims=options["keepdims"]
        )
        exact = shape[axis] - 1 - exact if behind else exact
    text, made = _called(make, [shape, axis], {"dtype": dtype, **options}, machine)
    result = dtype if make is cumsum else f64
    return Problem(text, made, [x], _stored(np.asarray(exact), result))


def _transpose(random: Random, numbers: np.random.Generator, machine: Machine) -> Problem:
    dtype = random.choice((f32, f16, i8, f64, tc.boolean))
    shape = _shape(random, 40_000)
    order = random.sample(range(len(shape)), len(shape))
    x = numbers.integers(0, 2 if dtype is tc.boolean else 100, shape).astype(dtype.numpy)
    text, made = _called(transpose, [shape, order], {"dtype": dtype}, machine)
    return Problem(text, made, [x], x.transpose(order).astype(np.float64))


def some_images(random: Random, machine: Machine) -> tuple[list[int], dict[str, Any]]:
    """What `convolution` is called with."""
    dtype = random.choice((f16, bf16, f32, i8, f64 if machine.is_processor else tf32))
    images, height, width = random.choice((1, 1, 2, 3)), random.choice(FEW), random.choice(FEW)
    groups = random.choice((1, 1, 1, 2, 4))
    channels = groups * random.choice((1, 2, 3, 8, 16, 24, 32, 64))
    features = groups * random.choice((1, 2, 5, 8, 16, 40))
    if random.random() < 0.15:
        groups = channels  # depthwise
        features = channels * random.choice((1, 1, 2))
    size = random.choice((1, 1, 2, 3, 3, 3, 5, (1, 3), (3, 2)))
    stride, dilation = random.choice((1, 1, 1, 2, 3, (2, 1))), random.choice((1, 1, 1, 2))
    padding = random.choice((0, 1, 1, 2, (1, 0), (0, 1, 2, 3)))
    options: dict[str, Any] = {
        "dtype": dtype, "groups": groups, "size": size, "stride": stride, "dilation": dilation,
        "padding": padding, "order": random.choice(("NHWC", "NCHW")),
        "filters": random.choice(("OHWI", "OIHW")), "bias": random.random() < 0.4,
    }  # fmt: skip
    if machine.is_processor:
        options["order"] = random.choice(ORDERS)
        options["results"] = random.choice((options["order"], *ORDERS))
        options["packed"] = random.random() < 0.4
    if dtype.is_float and random.random() < 0.4:
        options["activation"] = random.choice((relu, quarter))
    sizes = [images, height, width, channels, features]
    try:
        convolved.problem(sizes, options, machine)
    except tc.CompileError as error:
        if "does not fit" not in str(error):
            raise
        return some_images(random, machine)
    return sizes, options


def _images(random: Random, numbers: np.random.Generator, machine: Machine) -> Problem:
    sizes, options = some_images(random, machine)
    text, made = _called(convolution, sizes, options, machine)
    of = convolved.problem(sizes, options, machine)
    x = _whole(numbers, (of.images, *of.extents, of.channels), of.dtype)
    w = _whole(numbers, (of.features, *of.size, of.group_channels), of.dtype)
    wide = x.astype(np.float64), w.astype(np.float64)
    expected = convolved.exact(*wide, of.stride, of.padding, of.dilation, of.groups)
    arguments = [
        convolved.given(x, of.order, of.types[0]),
        convolved.given_filters(w, of, made),
    ]
    if of.bias:
        arguments.append(_whole(numbers, (of.features,), of.total))
        expected = expected + arguments[2].astype(np.float64)
    expected = ACTIVATIONS[of.activation](expected)
    if of.results != "NHWC":
        more = of.types[-1].shape[1] - of.features
        expected = np.pad(expected.transpose(0, 3, 1, 2), ((0, 0), (0, more), (0, 0), (0, 0)))
    return Problem(text, made, arguments, _stored(expected, of.result))


def _pooling(random: Random, numbers: np.random.Generator, machine: Machine) -> Problem:
    make = random.choice((max_pool, sum_pool, average_pool))
    dtype = random.choice((f32, f16, bf16, f64, *(() if make is average_pool else (i8, u8))))
    images, channels = random.choice((1, 1, 2, 3)), random.choice((*FEW, 24, 33, 64, 70))
    extents = [random.choice(FEW), random.choice((*FEW, 31, 40))]
    size, stride = (
        random.choice((1, 2, 3, 3, 5, (1, 3), (4, 2))),
        random.choice((1, 1, 2, 3, (2, 1))),
    )
    padding, apart = random.choice((0, 1, 1, 2, (1, 0), (0, 1, 2, 3))), random.choice((1, 1, 1, 2))
    order = random.choice(("NHWC", "NCHW"))
    options = {"size": size, "stride": stride, "padding": padding, "dilation": apart}
    options |= {"order": order, "dtype": dtype}
    above, left, below, right = _sides(padding)
    padded = np.add(extents, (above + below, left + right))
    covered = (np.array(_pair(size)) - 1) * apart + 1
    if (padded < covered).any():
        return _pooling(random, numbers, machine)
    x = _whole(numbers, (images, channels, *extents), dtype)
    sides = ((0, 0), (0, 0), (above, below), (left, right))
    outside = -np.inf if make is max_pool else 0
    wide = np.pad(x.astype(np.float64), sides, constant_values=outside)
    steps = (slice(None), slice(None), *[slice(None, None, step) for step in _pair(stride)])
    taps = (..., slice(None, None, apart), slice(None, None, apart))
    shape = tuple(covered.tolist())
    seen = np.lib.stride_tricks.sliding_window_view(wide, shape, (2, 3))[steps][taps]
    exact, bound = (seen.sum if make is sum_pool else seen.max)((4, 5)), 0
    if make is max_pool and dtype.is_integer:
        exact = np.maximum(exact, dtype.minimum)  # of padding alone
    if make is average_pool:
        options["count_include_pad"] = random.random() < 0.5
        there = np.pad(np.ones_like(x, np.float64), sides, constant_values=0)
        inside = np.lib.stride_tricks.sliding_window_view(there, shape, (2, 3))[steps][taps]
        counted = np.prod(_pair(size)) if options["count_include_pad"] else inside.sum((4, 5))
        if not np.all(counted):
            return _pooling(random, numbers, machine)
        exact = seen.sum((4, 5)) / counted
        bound = np.abs(exact) * _EPSILON[dtype]
    arguments = [x if order == "NCHW" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))]
    expected = exact if order == "NCHW" else exact.transpose(0, 2, 3, 1)
    if make is average_pool and order == "NHWC":
        bound = bound.transpose(0, 2, 3, 1)
    text, made = _called(make, [images, *extents, channels], options, machine)
    return Problem(text, made, arguments, _stored(expected, dtype), bound)


def _pair(value: Any) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def _sides(padding: Any) -> tuple[int, int, int, int]:
    if isinstance(padding, tuple) and len(padding) == 4:
        return padding
    down, beside = _pair(padding)
    return down, beside, down, beside


def _attention(random: Random, numbers: np.random.Generator, machine: Machine) -> Problem:
    dtype = random.choice((f32, f16, bf16))
    batches, groups, share = (
        random.choice((1, 2)),
        random.choice((1, 2)),
        random.choice((1, 1, 2, 3)),
    )
    length, keys = (
        random.choice((1, 1, 2, 5, 16, 17, 33, 64, 70)),
        random.choice((1, 3, 16, 31, 64, 65, 130, 200)),
    )
    features = random.choice((8, 16, 20, 32, 64))
    heads = groups * share
    options: dict[str, Any] = {"dtype": dtype, "kv_heads": groups, "causal": random.random() < 0.5}
    q = numbers.standard_normal((batches, heads, length, features)).astype(dtype.numpy)
    k, v = (
        numbers.standard_normal((batches, groups, keys, features)).astype(dtype.numpy)
        for _ in range(2)
    )
    arguments = [q, k, v]
    wide = [np.repeat(x.astype(np.float64), share if n else 1, 1) for n, x in enumerate(arguments)]
    scores = wide[0] @ wide[1].swapaxes(2, 3) * features**-0.5
    if options["causal"]:
        scores[..., np.arange(keys) > np.arange(length)[:, None] + keys - length] = -np.inf
    if random.random() < 0.3:
        shape = (random.choice((1, batches)), random.choice((1, heads)), length, keys)
        seen = numbers.random(shape) < 0.8
        options["mask"] = tc.boolean[shape]
        arguments.append(seen)
        scores = np.where(seen, scores, -np.inf)
    peak = scores.max(3, keepdims=True)
    powers = np.exp(scores - np.where(np.isfinite(peak), peak, 0))
    total = powers.sum(3, keepdims=True)
    exact = np.divide(powers, total, out=np.zeros_like(powers), where=total > 0) @ wide[2]
    text, made = _called(attention, [batches, heads, length, keys, features], options, machine)
    # Powers and values are rounded to 16 bits before they are multiplied.
    return Problem(text, made, arguments, exact, max(_EPSILON[dtype], 2.0**-20) * 8)
