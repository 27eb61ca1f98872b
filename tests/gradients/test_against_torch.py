"""Compiled gradients in f32 against PyTorch's in f64: operators, rules over random problems, attention.

Run with `pytest -m torch`.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import taskc as tc
from taskc import f32, i64, op
from taskc.backend.cpu.pool import pool
from taskc.gradients import gradient
from taskc.ir import nodes as ir
from taskc.kernels.attention import attention
from taskc.kernels.losses import cross_entropy
from tests.each_value import few
from tests.gradients import test_derivatives
from tests.gradients.random_gradients import Program

torch = pytest.importorskip("torch")
functional = torch.nn.functional
pytestmark = pytest.mark.torch


def compare(body, reference, arrays):
    """Check the gradients with respect to all floats; `body` and `reference` take the arrays, as handles and tensors.

    An error is relative to the largest element, and beyond 1e-5 only what PyTorch has in f32, times 4. The bits are the
    same on 1, 2 and 3 threads.
    """
    names = [f"x{n}" for n in range(len(arrays))]
    kinds = {
        np.dtype("float32"): f32,
        np.dtype("int64"): i64,
        np.dtype("int32"): tc.i32,
        np.dtype("bool"): tc.boolean,
    }
    types = {name: kinds[x.dtype][x.shape] for name, x in zip(names, arrays, strict=True)}
    program = tc.trace("one", types, lambda *handles: {"y": body(*handles)})
    wrt = [name for name, x in zip(names, arrays, strict=True) if x.dtype == np.float32]
    shape = program.ir.parameters[-1].shape
    weights = np.random.default_rng(9).standard_normal(shape).astype(np.float32)
    seed = [] if all(n == 1 for n in shape) else [weights]
    made = gradient(program, "y", wrt)
    results = []
    for threads in (1, 2, 3):
        pool().limit(threads)
        found = made(*arrays, *seed)
        results.append(found if isinstance(found, tuple) else (found,))
    pool().limit(2)
    for other in results[1:]:
        assert all(a.tobytes() == b.tobytes() for a, b in zip(results[0], other, strict=True))
    exact, narrow = (
        torch_gradients(reference, arrays, weights if seed else None, dtype) for dtype in (torch.float64, torch.float32)
    )  # fmt: skip
    for name, mine, right, theirs in zip(wrt, results[0], exact, narrow, strict=True):
        scale = np.abs(right).max(initial=0)
        noise = 4 * np.abs(theirs - right).max(initial=0)
        assert np.abs(mine - right).max(initial=0) <= 1e-5 * max(scale, 1e-3) + noise, name


def torch_gradients(reference, arrays, weights, dtype):
    tensors = [torch.tensor(x, dtype=dtype if x.dtype == np.float32 else None) for x in arrays]
    floats = [x.requires_grad_() for x in tensors if x.is_floating_point()]
    y = reference(*tensors)
    seed = (
        torch.ones_like(y)
        if weights is None
        else torch.tensor(weights, dtype=y.dtype).reshape(y.shape)
    )
    found = torch.autograd.grad(y, floats, seed, allow_unused=True, materialize_grads=True)
    return [x.double().numpy() for x in found]


def normal(*shapes, seed=0):
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


# Operators: 1,000 points, and all pairs of special numbers.

FUNCTIONS = {
    "-": torch.neg, "fast_exp2": torch.exp2, "gelu": functional.gelu, "+": torch.add, "*": torch.mul, "/": torch.div,
    "%": torch.remainder, "max": torch.maximum, "min": torch.minimum,
    "//": lambda a, b: torch.zeros_like(a) * (a + b),
}  # fmt: skip
POSITIVE = np.array([0, 1e-30, 0.5, 1, 2, 3, 100, 1e30, np.inf])
SPECIAL = np.concatenate([-POSITIVE, POSITIVE, [np.nan]])


def derivatives_of(kind, name, operands):
    """The derivatives by each operand, from taskc and PyTorch, in f32."""
    count = len(operands[0])
    program = test_derivatives.made(lambda *x: kind(name, *x), len(operands), count, f32)
    operands = [x.astype(np.float32) for x in operands]
    found = gradient(program, "y", ["x0", "y0"][: len(operands)])(
        *operands, np.ones(count, np.float32)
    )
    tensors = [torch.tensor(x, requires_grad=True) for x in operands]
    function = FUNCTIONS.get(name) or getattr(torch, {"-": "neg"}.get(name, name))
    if kind is ir.Binary and name == "-":
        function = torch.sub
    function(*tensors).sum().backward()
    return found if isinstance(found, tuple) else (found,), [x.grad.numpy() for x in tensors]


@pytest.mark.parametrize("name", [name for name in test_derivatives.FLOATS if name != "isnan"])
def test_unary_operators(name):
    low, high = test_derivatives.UNARY.get(name, (-3, 3))
    points = np.random.default_rng(0).uniform(low, high, 1000)
    for x, tolerance in ((points, 1e-5), (SPECIAL, 1e-4)):
        (mine,), (theirs,) = derivatives_of(ir.Unary, name, [x])
        # PyTorch's own derivative of gelu cancels far below 0.
        assert np.allclose(
            mine, theirs, rtol=tolerance, atol=1e-6 if name == "gelu" else 1e-7, equal_nan=True
        )


@pytest.mark.parametrize("name", [name for name in test_derivatives.PAIRS if name != "//"])
def test_binary_operators(name):
    random = np.random.default_rng(1)
    ranges = test_derivatives.BINARY.get(name, ((-3, 3), (-3, 3)))
    points = [random.uniform(*one, 1000) for one in ranges]
    special = [x.ravel() for x in np.meshgrid(SPECIAL, SPECIAL, indexing="ij")]
    if (
        name == "fmod"
    ):  # where it is NaN, its derivative by the divisor is, too; PyTorch's may be infinite
        x, y = special
        special = [one[np.isfinite(x) & (y != 0) & ~np.isnan(y)] for one in special]
    if name == "atan2":  # where the squares underflow
        distance = np.hypot(*special)
        special = [x[~((distance > 0) & (distance < 1e-15))] for x in special]
    for operands in (points, special):
        for mine, theirs in zip(*derivatives_of(ir.Binary, name, operands), strict=True):
            assert np.allclose(mine, theirs, rtol=1e-5, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("name", ["%", "fmod"])
def test_the_divisor_of_near_multiples(name):
    """The quotient as f32 has it may be the next integer. (PyTorch takes that one for fmod.)"""
    random = np.random.default_rng(5)
    b = random.uniform(0.1, 3, 5000).astype(np.float32)
    a = (random.integers(1, 60, 5000).astype(np.float32) * b).astype(np.float32)
    a, b = np.concatenate([np.nextafter(a, np.float32(0)), a, -a]), np.concatenate([b] * 3)
    (_, mine), _ = derivatives_of(ir.Binary, name, [a, b])
    quotient = a.astype(np.float64) / b.astype(np.float64)
    assert np.array_equal(mine, -(np.floor if name == "%" else np.trunc)(quotient))


# Rules over random problems. A case is a function of a generator: the body, PyTorch's, and the arrays.


def product(random):
    m, n, k = random.integers(1, 40, 3).tolist()
    batch = [(), (3,), (2, 3)][random.integers(3)]
    flip_a, flip_b = random.integers(0, 2, 2).tolist()
    a, b = normal(
        (*batch, *((k, m) if flip_a else (m, k))), (*batch[-1:], *((n, k) if flip_b else (k, n)))
    )

    def ours(x, y):
        x = op.Transpose(x, perm=[*range(len(batch)), len(batch) + 1, len(batch)]) if flip_a else x
        rank = len(batch[-1:])
        y = op.Transpose(y, perm=[*range(rank), rank + 1, rank]) if flip_b else y
        return op.MatMul(x, y)

    return ours, lambda x, y: (x.mT if flip_a else x) @ (y.mT if flip_b else y), [a, b]


def affine(random):
    m, n, k = random.integers(1, 40, 3).tolist()
    return (
        lambda x, w, b: op.Tanh(op.Gemm(x, w, b, transB=1)),
        lambda x, w, b: torch.tanh(functional.linear(x, w, b)),
        normal((m, k), (n, k), (n,)),
    )


def softmax(random):
    shape = random.integers(1, 20, 3).tolist()
    axis = int(random.integers(-3, 3))
    log = bool(random.integers(2))
    return (
        lambda x: op.LogSoftmax(x, axis=axis) if log else op.Softmax(x, axis=axis),
        lambda x: torch.log_softmax(x, axis) if log else torch.softmax(x, axis),
        normal(shape),
    )


def norm(random):
    m, n = random.integers(2, 50, 2).tolist()
    return (
        lambda x, w, b: op.LayerNormalization(x, w, b, axis=-1, epsilon=1e-5),
        lambda x, w, b: functional.layer_norm(x, (n,), w, b, 1e-5),
        normal((m, n), (n,), (n,)),
    )


def groups(random):
    count, own = random.integers(1, 5, 2).tolist()
    images, height, width = random.integers(1, 6, 3).tolist()
    channels, height = count * own, height + 1
    return (
        lambda x, w, b: op.GroupNormalization(x, w, b, num_groups=count, epsilon=1e-5),
        lambda x, w, b: functional.group_norm(x, count, w, b, 1e-5),
        normal((images, channels, height, width), (channels,), (channels,)),
    )


def reduction(random):
    shape = random.integers(1, 12, 3).tolist()
    axes = sorted(random.choice(3, random.integers(1, 4), replace=False).tolist())
    kind = ["Sum", "Mean", "Max", "Min"][random.integers(4)]
    theirs = {"Sum": torch.sum, "Mean": torch.mean, "Max": torch.amax, "Min": torch.amin}[kind]
    return (
        lambda x: getattr(op, f"Reduce{kind}")(x, axes, keepdims=1),
        lambda x: theirs(x, axes, keepdim=True),
        normal(shape),
    )


def multiplied(random):
    shape = random.integers(1, 9, 2).tolist()
    (x,) = normal(shape)
    x[random.random(shape) < 0.2] = 0
    return lambda x: op.ReduceProd(x, [1], keepdims=0), lambda x: x.prod(1), [x]


def running(random):
    shape = random.integers(1, 30, 3).tolist()
    axis = int(random.integers(3))
    return lambda x: op.CumSum(x, axis), lambda x: x.cumsum(axis), normal(shape)


def entropy(random):
    rows, classes = random.integers(2, 40, 2).tolist()
    labels = random.integers(0, classes, rows)
    labels[1:][random.random(rows - 1) < 0.2] = -100
    kernel = cross_entropy(rows, classes)

    def ours(x, labels):
        loss = kernel(x, labels)
        return tc.compute(1, lambda i: loss[()])

    return ours, functional.cross_entropy, [*normal((rows, classes)), labels]


def image(random):
    group = int(random.choice([1, 1, 2, 3]))
    own, others = random.integers(1, 5, 2).tolist()
    images, height, width = random.integers(1, 4), *random.integers(6, 12, 2)
    size, stride, dilation = (random.integers(1, n, 2).tolist() for n in (4, 3, 3))
    pad = random.integers(0, 3, 2).tolist()
    options = {"group": group, "strides": stride, "dilations": dilation, "pads": [*pad, *pad]}
    return (
        lambda x, w, b: op.Conv(x, w, b, **options),
        lambda x, w, b: functional.conv2d(x, w, b, stride, pad, dilation, group),
        normal(
            (images, group * own, height, width), (group * others, own, *size), (group * others,)
        ),
    )


def turned_image(random):
    group = int(random.choice([1, 1, 2]))
    own, others = random.integers(1, 5, 2).tolist()
    images, height, width = random.integers(1, 4), *random.integers(2, 7, 2)
    size, stride = (random.integers(1, n, 2).tolist() for n in (4, 3))
    pad = [int(random.integers(0, n)) for n in size]
    options = {"group": group, "strides": stride, "pads": [*pad, *pad]}
    return (
        lambda x, w: op.ConvTranspose(x, w, **options),
        lambda x, w: functional.conv_transpose2d(x, w, None, stride, pad, groups=group),
        normal((images, group * own, height + 1, width + 1), (group * own, others, *size)),
    )


def pooling(random):
    size, stride = (random.integers(1, n, 2).tolist() for n in (4, 3))
    pad = [int(random.integers(0, n // 2 + 1)) for n in size]
    shape = *random.integers(1, 4, 2), *random.integers(5, 10, 2)
    options = {"kernel_shape": size, "strides": stride, "pads": [*pad, *pad]}
    if random.integers(2):
        return (
            lambda x: op.MaxPool(x, **options),
            lambda x: functional.max_pool2d(x, size, stride, pad),
            normal(shape),
        )
    include = int(random.integers(2))
    return (
        lambda x: op.AveragePool(x, count_include_pad=include, **options),
        lambda x: functional.avg_pool2d(x, size, stride, pad, count_include_pad=bool(include)),
        normal(shape),
    )


def lookup(random):
    rows, width, count = random.integers(1, 50, 3).tolist()
    ids = random.integers(0, rows, count)
    return lambda x, i: op.Gather(x, i, axis=0), lambda x, i: x[i], [*normal((rows, width)), ids]


RULES = [
    product, affine, softmax, norm, groups, reduction, multiplied, running, entropy, image, turned_image, pooling,
    lookup,
]  # fmt: skip


@pytest.mark.parametrize("seed", few(range(10), 2))
@pytest.mark.parametrize("case", RULES)
def test_rules(case, seed):
    compare(*case(np.random.default_rng(seed)))


# Attention, with respect to queries, keys, values and the mask, for the gradient of its result.

ATTENTIONS = [
    {},
    {"causal": True},
    {"causal": True, "offset": 0},
    {"heads": 6, "kv_heads": 2},
    {"heads": 6, "kv_heads": 1, "causal": True},
    {"causal": True, "window": 5},
    {"cap": 3.0, "scale": 0.7},
    {"mask": "floats"},
    {"mask": "booleans"},
    {"mask": "floats", "once": True, "causal": True},
    {"lengths": True},
    {"lengths": True, "causal": True, "heads": 4, "kv_heads": 2},
    {"length": 1},
    {"length": 1, "keys": 1},
    {"length": 67, "keys": 131, "features": 40, "value_features": 24},
    {"causal": True, "offset": -2},
]


def plain_attention(
    q, k, v, *, mask=None, lengths=None, offset=None, window=None, cap=0.0, scale=None
):
    share = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = cap * torch.tanh(scores / cap) if cap else scores
    count, keys = q.shape[2], k.shape[2]
    counts = torch.full((q.shape[0],), keys) if lengths is None else lengths
    place, query = torch.arange(keys)[None, None, None], torch.arange(count)[None, None, :, None]
    limit = counts[:, None, None, None]
    sees = (place < limit).expand(scores.shape)
    if offset is not None:
        last = query + offset - (keys - limit)
        sees = sees & (place <= last)
        if window is not None:
            sees = sees & (place > last - window)
    if mask is not None and mask.dtype == torch.bool:
        sees = sees & mask
    elif mask is not None:
        scores = scores + mask
    shares = torch.softmax(scores.masked_fill(~sees, -math.inf), -1)
    return torch.where(sees.any(-1, keepdim=True), shares, 0.0).nan_to_num(0.0) @ v


@pytest.mark.parametrize("options", ATTENTIONS, ids=str)
def test_attention(options):
    options = {"heads": 2, "length": 9, "keys": 13, "features": 8} | options
    heads, length, keys = options["heads"], options["length"], options["keys"]
    features, batches = options.pop("features"), 2
    results = options.get("value_features", features)
    own = options.get("kv_heads", heads)
    arrays = normal(
        (batches, heads, length, features),
        (batches, own, keys, features),
        (batches, own, keys, results),
    )
    random = np.random.default_rng(3)
    kind, once = options.pop("mask", None), options.pop("once", False)
    further = {}
    shape = (1, 1, length, keys) if once else (batches, heads, length, keys)
    if kind == "floats":
        arrays.append(random.standard_normal(shape).astype(np.float32))
        options["mask"] = f32[shape]
    elif kind == "booleans":
        mask = random.random(shape) < 0.7
        mask[:, :, 0] = False  # a query that sees nothing
        arrays.append(mask)
        options["mask"] = tc.boolean[shape]
    if options.get("lengths"):
        arrays.append(np.array([keys, keys - 4], np.int32))
    offset = options.get("offset", keys - length) if options.get("causal") else None
    further = {name: options[name] for name in ("window", "cap", "scale") if name in options}
    call = options | {"batches": batches, "features": features}
    kernel = attention(**call)

    def reference(q, k, v, *others):
        others = [*others]
        mask = others.pop(0) if kind else None
        lengths = others.pop(0) if others else None
        return plain_attention(q, k, v, mask=mask, lengths=lengths, offset=offset, **further)

    compare(lambda *given: kernel(*given), reference, arrays)


@pytest.mark.parametrize("seed", few(range(300), 6))
def test_random_programs(seed):
    one = Program(seed)
    compare(lambda *given: one.body(*given)["y"], one.reference, [*one.arrays, one.ids])
