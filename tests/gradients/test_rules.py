"""The rules of templates, over random problems in f64, against differences in random directions."""

from __future__ import annotations

import numpy as np
import pytest

import taskc as tc
from taskc import f64, op
from taskc.gradients import gradient
from taskc.gradients.rules import equivalent_of
from taskc.kernels.attention import ATTENTION
from taskc.kernels.losses import cross_entropy, logsumexp
from taskc.kernels.matmul import batch_matmul, matmul
from taskc.kernels.reductions import reduction
from taskc.kernels.rows import group_norm, layer_norm, log_softmax, rms_norm, softmax
from tests.each_value import few
from tests.gradients.by_numpy import check, run

SEEDS = few(range(12), 3)


def checked(kernel, *, seed, ignore=(), positive=False, tolerance=1e-6):
    """Check a template's gradients with respect to all its inputs of floats."""
    random = np.random.default_rng(seed)
    inputs = [item for item in kernel.ir.parameters if item.role != "out"]
    arrays = [random.standard_normal(item.argument_shape) for item in inputs]
    if positive:
        arrays = [np.abs(x) + 0.2 for x in arrays]
    types = {item.name: item.dtype[item.argument_shape] for item in inputs}

    def body(*handles):
        return {"y": kernel(**dict(zip(types, handles, strict=True)))}

    program = tc.trace("one", types, body)
    wrt = [item.name for item in inputs if item.dtype.is_float and item.name not in ignore]
    check(program, "y", wrt, arrays, seed=seed, tolerance=tolerance)


@pytest.mark.parametrize("seed", SEEDS)
def test_products(seed):
    random = np.random.default_rng(seed)
    m, n, k = random.integers(1, 7, 3).tolist()
    turned = [bool(x) for x in random.integers(0, 2, 2)]
    options = {
        name: bool(x)
        for name, x in zip(("bias", "residual"), random.integers(0, 2, 2), strict=True)
    }
    kernel = matmul(m, n, k, dtype=f64, transpose_a=turned[0], transpose_b=turned[1], **options)
    checked(kernel, seed=seed)


BATCHES = [
    ((3,), (3,)),
    ((2, 3), (1,)),
    ((2, 1), (2, 3)),
    ((1, 3), (2, 3)),
    ((4,), ()),
    ((2, 3), (2, 3)),
]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.each_value
def test_batches(batch, turned):
    kernel = batch_matmul(batch, 3, 4, 2, dtype=f64, transpose_a=turned[0], transpose_b=turned[1])
    checked(kernel, seed=1)


def test_a_product_with_an_epilogue():
    kernel = matmul(3, 5, 4, dtype=f64, bias=True, scale=True, residual=True, activation=tc.tanh)
    checked(kernel, seed=4)


@pytest.mark.parametrize("inner", [1, 3])
@pytest.mark.parametrize("function", [softmax, log_softmax, layer_norm, rms_norm])
def test_rows(function, inner):
    checked(function(4, 5, inner=inner, dtype=f64), seed=inner)


@pytest.mark.parametrize("scaled", [False, True])
def test_groups(scaled):
    checked(group_norm((2, 6, 3, 2), 3, dtype=f64, scaled=scaled, shifted=scaled), seed=3)


@pytest.mark.parametrize("operator", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (0, 1, 2), (1, 2)])
@pytest.mark.each_value
def test_reductions(operator, axes):
    checked(reduction(operator, (3, 4, 5), axes, dtype=f64), seed=len(axes))


def test_a_product_of_numbers_some_of_which_are_0():
    f = program(lambda x: op.ReduceProd(x, [1], keepdims=0), x=f64[4, 3])
    x = np.array([[1.0, 2, 3], [0, 2, 3], [0, 0, 3], [0, 0, 0]])
    found = run(gradient(f, "out", ["x"]), x, np.ones(4))
    assert found.tolist() == [[6, 3, 2], [6, 0, 0], [0, 0, 0], [0, 0, 0]]


def program(body, **types):
    return tc.trace("one", types, body)


def test_equal_numbers_share_a_maximum():
    f = program(lambda x: op.ReduceMax(x, [1], keepdims=0), x=f64[2, 4])
    x = np.array([[1.0, 5, 5, 0], [2, 2, 2, 2]])
    assert run(gradient(f, "out", ["x"]), x, np.ones(2)).tolist() == [[0, 0.5, 0.5, 0], [0.25] * 4]


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.each_value
def test_scans(exclusive, reverse):
    f = program(lambda x: op.CumSum(x, 1, exclusive=exclusive, reverse=reverse), x=f64[3, 7, 2])
    check(f, "out", ["x"], [np.random.default_rng(0).standard_normal((3, 7, 2))])


def test_sums_of_powers_and_cross_entropy():
    checked(logsumexp((4, 5), [1], dtype=f64), seed=1)
    entropy = cross_entropy(6, 5, dtype=f64)

    def body(x, labels):
        loss = entropy(x, labels)
        return {"loss": tc.compute(1, lambda i: loss[()])}

    f = program(body, x=f64[6, 5], labels=tc.i64[6])
    random = np.random.default_rng(0)
    labels = np.array([0, 4, -100, 2, 2, 1])
    check(f, "loss", ["x"], [random.standard_normal((6, 5)), labels])


# Images.

CONVOLUTIONS = [
    {"pads": [1, 1, 1, 1]},
    {"strides": [2, 1], "pads": [0, 1, 2, 0]},
    {"dilations": [2, 1], "pads": [2, 0, 1, 1]},
    {"group": 2, "pads": [1, 1, 0, 0]},
    {"group": 4, "strides": [2, 2]},
]


@pytest.mark.parametrize("options", CONVOLUTIONS)
@pytest.mark.each_value
def test_convolutions(options):
    group = options.get("group", 1)
    shapes = (2, 4, 7, 6), (4, 4 // group, 3, 2), (4,)
    f = program(lambda x, w, b: op.Conv(x, w, b, **options), **_types("xwb", shapes))
    check(f, "out", ["x", "w", "b"], _arrays(shapes))


@pytest.mark.parametrize(
    "options", [{}, {"strides": [2, 1], "pads": [1, 0, 0, 1]}, {"group": 2, "strides": [2, 2]}]
)
def test_transposed_convolutions(options):
    group = options.get("group", 1)
    shapes = (2, 4, 4, 3), (4, 6 // group, 3, 2)
    f = program(lambda x, w: op.ConvTranspose(x, w, **options), **_types("xw", shapes))
    check(f, "out", ["x", "w"], _arrays(shapes))


def test_convolutions_of_lines():
    shapes = (2, 3, 9), (4, 3, 3)
    f = program(lambda x, w: op.Conv(x, w, pads=[1, 1], strides=[2]), **_types("xw", shapes))
    check(f, "out", ["x", "w"], _arrays(shapes))


POOLINGS = [
    {"kernel_shape": [2, 2], "strides": [2, 2]},
    {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]},
    {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1},
]


@pytest.mark.parametrize("options", POOLINGS)
@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.each_value
def test_averages(options, include):
    shapes = ((2, 3, 7, 5),)
    f = program(
        lambda x: op.AveragePool(x, count_include_pad=include, **options), **_types("x", shapes)
    )
    check(f, "out", ["x"], _arrays(shapes))


def _types(names, shapes):
    return {name: f64[shape] for name, shape in zip(names, shapes, strict=True)}


def _arrays(shapes, seed=0):
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape) for shape in shapes]


# Attention, by its equivalent.

ATTENTIONS = [
    {},
    {"causal": True},
    {"kv_heads": 2},
    {"causal": True, "window": 2},
    {"cap": 2.0},
    {"causal": True, "offset": -1},
]


@pytest.mark.parametrize("options", ATTENTIONS)
@pytest.mark.each_value
def test_attention(options):
    """Its forward here is the equivalent itself: the rule is checked, and test_on_cpu compares with the kernel."""

    problem = ATTENTION.problem(
        batches=2,
        heads=4,
        length=5,
        keys=6,
        features=3,
        dtype=f64,
        value_features=2,
        **{"kv_heads": None, "causal": False, "offset": None, "mask": None, "scale": None}
        | options,
    )
    checked(equivalent_of(problem), seed=2)
