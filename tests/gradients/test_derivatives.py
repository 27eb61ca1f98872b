"""Derivatives of expressions: each operator at 1,000 points, kinks, and conditions that stand outermost."""

from __future__ import annotations

import numpy as np
import pytest

import taskc as tc
from taskc import f32, f64
from taskc.errors import NOWHERE
from taskc.gradients import derivatives, gradient
from taskc.gradients.computations import computation
from taskc.ir import arithmetic, nodes as ir
from taskc.programs.tracing import current_trace
from tests.gradients.by_numpy import run

POINTS = 1000
# Intervals that operands are taken from, where it isn't [-3, 3].
UNARY = {
    "sqrt": (0.1, 4), "rsqrt": (0.1, 4), "log": (0.1, 4), "log2": (0.1, 4), "log1p": (-0.9, 4), "tan": (-1.4, 1.4),
    "asin": (-0.98, 0.98), "acos": (-0.98, 0.98), "acosh": (1.02, 4), "atanh": (-0.98, 0.98), "gelu": (-8, 8),
}  # fmt: skip
BINARY = {
    "pow": ((0.1, 3), (-3, 3)),
    "%": ((-9, 9), (0.5, 2)),
    "fmod": ((-9, 9), (0.5, 2)),
    "/": ((-3, 3), (0.2, 3)),
}
FLOATS = [name for name, one in arithmetic.UNARY_OPERATORS.items() if "float" in one.kinds]
PAIRS = [
    name
    for name, one in arithmetic.BINARY_OPERATORS.items()
    if "float" in one.kinds and name not in arithmetic.COMPARISONS
]


def test_each_operator_has_a_line():
    assert {*derivatives.UNARY} == {*arithmetic.UNARY_OPERATORS}
    assert {*derivatives.BINARY} == {*arithmetic.BINARY_OPERATORS}


def made(value, count, n=POINTS, dtype=f64):
    """A program of an expression of `count` vectors."""

    def body(*handles):
        i = ir.Variable("i")
        reads = [ir.Read(handle.tensor, (i,)) for handle in handles]
        arguments = {handle.tensor: handle for handle in handles}
        y = computation(current_trace(), (n,), (i,), value(*reads), arguments, "f", NOWHERE)
        return {"y": y}

    return tc.trace("f", {"xy"[k] + "0": dtype[n] for k in range(count)}, body)


def compare(program, arrays):
    """Each derivative against differences."""
    names = ["x0", "y0"][: len(arrays)]
    gradients = run(gradient(program, "y", names), *arrays, np.ones(POINTS))
    gradients = gradients if isinstance(gradients, tuple) else (gradients,)
    for place, (mine, x) in enumerate(zip(gradients, arrays, strict=True)):
        step = 1e-6 * np.maximum(1, np.abs(x))
        ends = []
        for sign in (1, -1):
            moved = [*arrays]
            moved[place] = x + sign * step
            ends.append(run(program, *moved))
        theirs = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(mine, theirs, rtol=2e-7, atol=2e-8)


@pytest.mark.parametrize("name", FLOATS)
def test_unary_operators(name):
    if name == "isnan":
        return  # a bool
    low, high = UNARY.get(name, (-3, 3))
    x = np.random.default_rng(0).uniform(low, high, POINTS)
    compare(made(lambda x: ir.Unary(name, x), 1), [x])


@pytest.mark.parametrize("name", PAIRS)
def test_binary_operators(name):
    random = np.random.default_rng(1)
    ranges = BINARY.get(name, ((-3, 3), (-3, 3)))
    compare(
        made(lambda x, y: ir.Binary(name, x, y), 2),
        [random.uniform(*one, POINTS) for one in ranges],
    )


def test_fused_select_and_cast():
    random = np.random.default_rng(2)
    x, y = random.uniform(-2, 2, (2, POINTS))

    def value(x, y):
        both = ir.Fused(x, y, ir.Unary("sin", x))
        wide = ir.Cast(ir.Cast(both, tc.i64), f64)
        return ir.Select(ir.Binary("<", x, y), ir.Binary("*", both, both), ir.Binary("+", wide, y))

    compare(made(value, 2), [x, y])


# operator, operands, gradients: as PyTorch 2 gives them.
KINKS = [
    ("abs", [0.0], [0.0]),
    ("max", [1.0, 1.0], [0.5, 0.5]),
    ("min", [2.0, 2.0], [0.5, 0.5]),
    ("pow", [0.0, 2.0], [0.0, 0.0]),
    ("pow", [0.0, 0.0], [0.0, 0.0]),
    ("pow", [3.0, 0.0], [0.0, np.log(3)]),
    ("sqrt", [0.0], [np.inf]),
]


@pytest.mark.parametrize(("name", "operands", "expected"), KINKS)
def test_kinks(name, operands, expected):
    kind = ir.Unary if len(operands) == 1 else ir.Binary
    program = made(lambda *x: kind(name, *x), len(operands), 1)
    found = run(
        gradient(program, "y", ["x0", "y0"][: len(operands)]), *[np.array([x]) for x in operands]
    )
    assert np.ravel(found).tolist() == pytest.approx(expected)


def test_relu_and_a_clamp_have_no_gradient_at_their_bounds():
    @tc.program
    def f(x: f32[5], y: tc.out[f32[5]]):
        tc.compute(5, lambda i: min(max(x[i], 0.0), 6.0), out=y)

    x = np.array([-1, 0, 1, 6, 7], np.float32)
    assert run(gradient(f, "y", ["x"]), x, np.ones(5)).tolist() == [0, 0, 1, 0, 0]


def test_conditions_stand_outermost():
    """Behind the guard there is nothing to read, and 0 times an infinite factor is NaN."""

    @tc.program
    def f(x: f64[4], w: f64[4], y: tc.out[f64[4]]):
        tc.compute(
            4,
            lambda i: (
                w[i + 1] * x[i + 1] if i + 1 < 4 else (1 / x[i] if x[i] != 0.0 else tc.f64(0))
            ),
            out=y,
        )

    x, w, g = np.array([1.0, 2, 3, 0]), np.arange(4.0), np.ones(4)
    of_x, of_w = run(gradient(f, "y", ["x", "w"]), x, w, g)
    assert of_x.tolist() == [0, 1, 2, 3]
    assert of_w.tolist() == [0, 2, 3, 0]


def test_gelu_far_below_zero_is_precise():
    """1 + erf(x) would cancel: the derivative is within 1e-5 in f32."""

    @tc.program
    def f(x: f32[200], y: tc.out[f32[200]]):
        tc.compute(200, lambda i: tc.gelu(x[i]), out=y)

    @tc.program
    def wide(x: f64[200], y: tc.out[f64[200]]):
        tc.compute(200, lambda i: tc.gelu(x[i]), out=y)

    x = np.linspace(-6, 6, 200).astype(np.float32)
    mine = run(gradient(f, "y", ["x"]), x, np.ones(200, np.float32))
    exact = run(gradient(wide, "y", ["x"]), x.astype(np.float64), np.ones(200))
    far = np.abs(exact) > 1e-30
    assert (np.abs(mine - exact)[far] / np.maximum(np.abs(exact)[far], 1e-4)).max() < 1e-5


def test_bits_have_no_derivative():
    program = made(lambda x: ir.Bitcast(ir.Bitcast(x, tc.i64), f64), 1, 1)
    with pytest.raises(tc.CompileError, match="no derivative of bits"):
        gradient(program, "y", ["x0"])
