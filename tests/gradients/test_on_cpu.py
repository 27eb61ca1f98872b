"""Gradients as they are compiled: precision, the same bits on any number of threads, dimensions, PyTorch's numbers."""

from __future__ import annotations

import numpy as np
import pytest

import taskc as tc
from taskc import f32, f64, i64, op
from taskc.backend.cpu.pool import pool
from taskc.gradients import gradient, value_and_gradient
from taskc.kernels.attention import attention
from tests.gradients.by_numpy import run

n = tc.dim("n")


def layer(dtype):
    """Products, attention of 2 heads, norms, Gelu and a look-up."""

    def body(table, ids, w, v, scale, shift):
        x = op.Gather(table, ids, axis=0)
        y = op.LayerNormalization(x, scale, shift, axis=-1)
        scores = op.MatMul(y, op.Transpose(y, perm=[1, 0]))
        mixed = op.MatMul(op.Softmax(scores, axis=-1), y)
        hidden = op.Gelu(op.MatMul(mixed, w))
        made = tc.compute(x.shape, lambda i, j: x[i, j])
        out = op.MatMul(hidden, v)
        total = op.ReduceSum(
            tc.compute(x.shape, lambda i, j: (out[i, j] + made[i, j]) * out[i, j]),
            [0, 1],
            keepdims=0,
        )
        return {"loss": tc.compute(1, lambda i: total[()])}

    shapes = {"table": (40, 16), "w": (16, 32), "v": (32, 16), "scale": (16,), "shift": (16,)}
    types = {name: dtype[shape] for name, shape in shapes.items()}
    names = ("table", "ids", "w", "v", "scale", "shift")
    return tc.trace("layer", {name: types.get(name, i64[24]) for name in names}, body)


WRT = ["table", "w", "v", "scale", "shift"]


def arrays(seed=0):
    random = np.random.default_rng(seed)
    shapes = (40, 16), None, (16, 32), (32, 16), (16,), (16,)
    return [
        random.integers(0, 40, 24)
        if shape is None
        else random.standard_normal(shape).astype(np.float32) * 0.3
        for shape in shapes
    ]


@pytest.mark.sweep
def test_a_layer_is_precise_and_has_the_same_bits_on_any_number_of_threads():
    given = arrays()
    made = value_and_gradient(layer(f32), wrt=WRT)
    results = []
    for threads in (1, 2, 3):
        pool().limit(threads)
        results += [made(*given), made(*given)]
    pool().limit(2)
    for other in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0], other, strict=True))
    wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in given]
    exact = run(value_and_gradient(layer(f64), wrt=WRT), *wide)
    for mine, right in zip(results[0], exact, strict=True):
        assert np.abs(mine - right).max() < 1e-5 * np.abs(right).max()


@pytest.mark.sweep
def test_dimensions():
    @tc.program
    def f(x: f32[n, 8], w: f32[8, 4], loss: tc.out[f32[1]]):
        y = op.Softmax(op.MatMul(x, w), axis=-1)
        z = tc.compute((n, 4), lambda i, j: y[n - 1 - i, j] * y[i, 0])
        total = op.ReduceMean(z, [0, 1], keepdims=0)
        tc.compute(1, lambda i: total[()], out=loss)

    made = gradient(f, wrt=["x", "w"])
    for rows in (1, 5, 33):
        random = np.random.default_rng(rows)
        x, w = (random.standard_normal(shape).astype(np.float32) for shape in ((rows, 8), (8, 4)))
        of_x, of_w = made(x, w)
        y = np.exp(x.astype(float) @ w)
        y /= y.sum(1, keepdims=True)
        g = np.repeat(y[::-1][:, :1], 4, 1)
        g[:, 0] += y[::-1].sum(1)
        g /= rows * 4
        g = (g - (g * y).sum(1, keepdims=True)) * y
        np.testing.assert_allclose(of_x, g @ w.T, atol=1e-6)
        np.testing.assert_allclose(of_w, x.T.astype(float) @ g, atol=1e-6)


@pytest.mark.sweep
def test_attention_has_the_gradient_of_its_kernel():
    kernel = attention(1, 2, 5, 7, 4, causal=True)
    types = {"q": f32[1, 2, 5, 4], "k": f32[1, 2, 7, 4], "v": f32[1, 2, 7, 4]}
    f = tc.trace("f", types, lambda q, k, v: kernel(q, k, v))
    random = np.random.default_rng(0)
    given = [random.standard_normal(kind.shape).astype(np.float32) for kind in types.values()]
    weights = random.standard_normal((1, 2, 5, 4)).astype(np.float32)
    gradients = gradient(f, "out", ["q", "k", "v"])(*given, weights)
    for place, mine in enumerate(gradients):
        direction = random.standard_normal(mine.shape).astype(np.float32)
        moved = [
            [x + s * direction * 1e-2 if at == place else x for at, x in enumerate(given)]
            for s in (1, -1)
        ]
        there, back = (f(*one).astype(float) for one in moved)
        theirs = ((there - back) * weights).sum() / 2e-2
        assert abs((mine * direction).sum() - theirs) < 2e-3 * np.abs(mine * direction).sum()


@pytest.mark.torch
def test_pytorch_has_the_same_gradients():
    torch = pytest.importorskip("torch")
    given = arrays()
    mine = gradient(layer(f32), wrt=WRT)(*given)
    tensors = [torch.tensor(x, requires_grad=x.dtype == np.float32) for x in given]
    table, ids, w, v, scale, shift = tensors
    x = table[ids]
    y = torch.nn.functional.layer_norm(x, (16,), scale, shift, 1e-5)
    out = torch.nn.functional.gelu((torch.softmax(y @ y.T, -1) @ y) @ w) @ v
    ((out + x) * out).sum().backward()
    theirs = [one.grad.numpy() for one in (table, w, v, scale, shift)]
    for a, b in zip(mine, theirs, strict=True):
        assert np.abs(a - b).max() < 1e-5 * np.abs(b).max()
