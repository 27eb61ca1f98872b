"""The walk over calls: accumulation, views, parts, data in indices, loops, errors; and random programs."""

from __future__ import annotations

import numpy as np
import pytest

import taskc as tc
from taskc import f32, f64, i64, op
from taskc.gradients import gradient, value_and_gradient
from tests.gradients.by_numpy import check, run

RANDOM = np.random.default_rng(0)


def normal(*shape):
    return RANDOM.standard_normal(shape)


def test_a_tensor_that_is_read_several_times():
    @tc.program
    def f(x: f64[5], loss: tc.out[f64[1]]):
        a = tc.compute(5, lambda i: tc.sin(x[i]) * x[i])
        b = tc.compute(5, lambda i: a[i] * a[4 - i] + x[i])
        c = op.ReduceSum(tc.compute(5, lambda i: b[i] * a[i]), [0], keepdims=1)
        tc.compute(1, lambda i: c[i] + x[2] * a[3], out=loss)

    check(f, "loss", ["x"], [normal(5)])


def test_views_and_parts():
    @tc.program
    def f(x: f64[4, 6], w: f64[3, 8], loss: tc.out[f64[1]]):
        y = x.reshape(3, 8)
        z = tc.compute((3, 8), lambda i, j: y[i, j] * w[i, j])
        whole = tc.empty(f64[4, 6])
        tc.compute((2, 6), lambda i, j: z[i, j] * x[i, j], out=whole[0:2])
        tc.compute((2, 6), lambda i, j: x[i + 1, j] * x[i, j], out=whole[2:4])
        row = whole[1]
        s = tc.compute((4, 6), lambda i, j: whole[i, j] * row[j])
        t = op.ReduceSum(s, [0, 1], keepdims=0)
        tc.compute(1, lambda i: t[()], out=loss)

    check(f, "loss", ["x", "w"], [normal(4, 6), normal(3, 8)])


def test_what_is_written_in_place():
    @tc.program
    def f(x: f64[4], loss: tc.out[f64[1]]):
        y = tc.compute(4, lambda i: x[i] * x[i])
        z = tc.compute(4, lambda i: tc.exp(y[i]))
        tc.compute(4, lambda i: y[i] * x[3 - i], out=y)
        tc.compute(4, lambda i: y[i] * z[i], out=y)
        tc.compute(2, lambda i: y[i] * y[i], out=y[1:3])
        t = op.ReduceSum(y, [0], keepdims=1)
        tc.compute(1, lambda i: t[i], out=loss)

    check(f, "loss", ["x"], [normal(4) * 0.5])


def test_a_loop_backwards():
    @tc.program
    def f(x: f64[3, 4], w: f64[4, 4], loss: tc.out[f64[1]]):
        h = tc.compute((1, 4), lambda i, j: f64(0))
        for t in tc.steps(3):
            xt = x[t : t + 1]
            p = op.MatMul(h, w)
            tc.compute((1, 4), lambda i, j: tc.tanh(p[i, j] + xt[i, j] * (t + 1)), out=h)
        s = op.ReduceSum(h, [0, 1], keepdims=0)
        tc.compute(1, lambda i: s[()], out=loss)

    check(f, "loss", ["x", "w"], [normal(3, 4), normal(4, 4)])


def test_elements_whose_index_is_data():
    @tc.program
    def f(table: f64[7, 3], ids: i64[5], loss: tc.out[f64[5, 3]]):
        tc.compute(
            (5, 3),
            lambda i, j: table[ids[i], j] * table[2, j] if 0 <= ids[i] < 7 else f64(0),
            out=loss,
        )

    table, ids = normal(7, 3), np.array([2, 6, -1, 2, 0])
    check(f, "loss", ["table"], [table, ids])
    found = run(
        gradient(f, "loss", ["table"]), table, np.array([9, 9, -1, 100, -7]), np.ones((5, 3))
    )
    assert not found.any()


@pytest.mark.parametrize(("shape", "axis"), [((4, 3), 1), ((6,), 0), ((3, 4, 2), 1)])
def test_gathers(shape, axis):
    ids = np.array([[0, 2], [1, 2]])
    f = tc.trace("f", {"x": f64[shape], "ids": i64[2, 2]}, lambda x, i: op.Gather(x, i, axis=axis))
    check(f, "out", ["x"], [normal(*shape), ids])


def test_one_element_of_each_row_is_chosen_without_a_scatter():
    f = tc.trace(
        "f",
        {"x": f64[5, 4], "at": i64[5]},
        lambda x, at: tc.compute(5, lambda i: x[i, at[i]] * x[i, 0]),
    )
    check(f, "out", ["x"], [normal(5, 4), np.array([3, 0, 1, 1, 2])])
    assert "scatter_slices" not in [kernel.name for kernel in gradient(f, "out", ["x"]).kernels]


def test_several_outputs_of_which_one_is_differentiated():
    @tc.program
    def f(x: f64[3], y: tc.out[f64[3]], loss: tc.out[f64[1]]):
        tc.compute(3, lambda i: x[i] * x[i], out=y)
        tc.compute(1, lambda i: y[0] * y[2], out=loss)

    check(f, "loss", ["x"], [normal(3)])
    check(f, "y", ["x"], [normal(3)])


def test_the_value_comes_first():
    @tc.program
    def f(x: f64[3], z: f64[2], loss: tc.out[f64[1]]):
        tc.compute(1, lambda i: x[0] * x[1], out=loss)

    made = value_and_gradient(f, wrt=["x", "z"])
    assert [item.name for item in made.ir.parameters] == ["x", "z", "loss", "grad_x", "grad_z"]
    loss, of_x, of_z = run(made, np.array([2.0, 3, 4]), np.ones(2))
    assert (loss.tolist(), of_x.tolist(), of_z.tolist()) == ([6], [3, 2, 0], [0, 0])


def test_a_step_that_no_gradient_goes_through():
    """A loop by a flag, on numbers that the loss doesn't depend on."""

    @tc.kernel(workers=1)
    def less(n: i64[1], flag: tc.out[tc.boolean[1]]):
        for i in tc.spatial(1):
            flag[i] = n[i] < 3

    @tc.program
    def f(x: f32[4], ids: i64[1], loss: tc.out[f32[1]]):
        n = tc.compute(1, lambda i: ids[i])
        goes_on = less(n)
        for _ in tc.steps_while(goes_on):
            tc.compute(1, lambda i: n[i] + 1, out=n)
            less(n, out=goes_on)
        tc.compute(1, lambda i: x[n[i]] * x[n[i]] if 0 <= n[i] < 4 else f32(0), out=loss)

    made = gradient(f, wrt=["x"])
    assert made(np.arange(4, dtype=np.float32), np.array([0])).tolist() == [0, 0, 0, 6]


# Kernels of users.


@tc.kernel(workers=8)
def cube(x: f32[8], y: tc.out[f32[8]]):
    for i in tc.spatial(8):
        y[i] = x[i] * x[i] * x[i]


@tc.kernel(workers=8)
def other(x: f32[8], y: tc.out[f32[8]]):
    for i in tc.spatial(8):
        y[i] = x[i] + 1


def test_calls_without_a_rule_are_listed_together():
    @tc.program
    def f(x: f32[8], z: f32[8], loss: tc.out[f32[8]]):
        a = cube(x)
        b = other(a)
        c = other(z)
        tc.compute(8, lambda i: b[i] * c[i], out=loss)

    with pytest.raises(tc.CompileError) as caught:
        gradient(f, wrt=["x"])
    text = str(caught.value)
    assert "no rule for the gradient of 2 calls of 'f'" in text
    assert "note: cube() has none" in text
    assert "a = cube(x)" in text
    assert "b = other(a)" in text
    assert "c = other(z)" not in text
    assert "kernel.gradient = program" in text


def test_a_kernel_is_given_a_gradient():
    @tc.kernel(workers=8)
    def squared(x: f32[8], y: tc.out[f32[8]]):
        for i in tc.spatial(8):
            y[i] = x[i] * x[i]

    @tc.program
    def back(x: f32[8], grad_y: f32[8], grad_x: tc.out[f32[8]]):
        tc.compute(8, lambda i: 2.0 * x[i] * grad_y[i], out=grad_x)

    squared.gradient = back

    @tc.program
    def f(x: f32[8], loss: tc.out[f32[8]]):
        a = squared(x)
        tc.compute(8, lambda i: a[i] * x[i], out=loss)

    x = np.arange(8, dtype=np.float32)
    found = run(_with_reference(gradient(f, wrt=["x"]), squared), x, np.ones(8))
    assert found.tolist() == (3 * x * x).tolist()
    squared.gradient = squared
    with pytest.raises(tc.CompileError, match="returns no 'y'"):
        gradient(f, wrt=["x"])


def _with_reference(made, kernel):
    kernel.reference = lambda x: x * x
    return made


ERRORS = [
    ({"of": "losses", "wrt": ["x"]}, "'f' has no output 'losses'"),
    ({"wrt": ["y"]}, "'f' has no input 'y'"),
    ({"wrt": ["ids"]}, "'ids' is i64[8], and has no gradient"),
    ({"wrt": "x"}, "wrt lists the names of inputs"),
    ({"wrt": []}, "wrt lists the names of inputs"),
]


@pytest.mark.parametrize(("options", "text"), ERRORS)
def test_errors(options, text):
    @tc.program
    def f(x: f32[8], ids: i64[8], loss: tc.out[f32[8]]):
        tc.compute(8, lambda i: x[i] * ids[i].to(f32), out=loss)

    with pytest.raises(tc.CompileError) as caught:
        gradient(f, **options)
    assert text in str(caught.value)


def test_second_derivatives():
    @tc.program
    def f(x: f64[4], loss: tc.out[f64[1]]):
        y = op.Softmax(x.reshape(1, 4), axis=-1)
        t = op.ReduceSum(
            tc.compute((1, 4), lambda i, j: y[i, j] * y[i, j] * y[i, j]), [0, 1], keepdims=0
        )
        tc.compute(1, lambda i: t[()], out=loss)

    first = gradient(f, wrt=["x"])
    check(first, "grad_x", ["x"], [normal(4)])
