"""Steps of training: each optimizer against its formulas in f64, in place, with clipping; and PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

import taskc as tc
from taskc import f32, i64, op

WEIGHTS = {"w": (20, 32), "b": (32,), "v": (32, 3)}


def network():
    def body(x, y, w, b, v):
        guess = op.MatMul(op.Tanh(op.Gemm(x, w, b)), v)
        squares = tc.compute(
            (16, 3), lambda i, j: (guess[i, j] - y[i, j]) * (guess[i, j] - y[i, j])
        )
        total = op.ReduceSum(squares, [0, 1], keepdims=0)
        return {"loss": tc.compute(1, lambda i: total[()] / 16)}

    types = {"x": f32[16, 20], "y": f32[16, 3]}
    return tc.trace("network", types | {name: f32[shape] for name, shape in WEIGHTS.items()}, body)


def start():
    random = np.random.default_rng(0)
    x, y = (random.standard_normal(shape).astype(np.float32) for shape in ((16, 20), (16, 3)))
    weights = {
        name: random.standard_normal(shape).astype(np.float32) * 0.4
        for name, shape in WEIGHTS.items()
    }
    return x, y, weights


def exact_gradients(x, y, w, b, v):
    hidden = np.tanh(x @ w + b)
    error = hidden @ v - y
    back = (2 / 16) * error @ v.T * (1 - hidden * hidden)
    return {"w": x.T @ back, "b": back.sum(0), "v": (2 / 16) * hidden.T @ error}


def moved(optimizer, p, g, state, rate, count):
    """The weight after a step, by the formulas of the papers; `state` is written."""
    if isinstance(optimizer, tc.SGD):
        g = g + optimizer.weight_decay * p
        state["m"] = optimizer.momentum * state.get("m", 0) + g
        return p - rate * (
            g + optimizer.momentum * state["m"] if optimizer.nesterov else state["m"]
        )
    decay = optimizer.weight_decay
    g = g + decay * p if isinstance(optimizer, tc.Adam) else g
    first, second = optimizer.betas
    state["m"] = first * state.get("m", 0) + (1 - first) * g
    state["v"] = second * state.get("v", 0) + (1 - second) * g * g
    root = np.sqrt(state["v"] / (1 - second**count))
    r = state["m"] / (1 - first**count) / (root + optimizer.epsilon)
    if isinstance(optimizer, tc.Adam):
        return p - rate * r
    r = r + decay * p
    if isinstance(optimizer, tc.LAMB):
        r = r * np.linalg.norm(p) / np.linalg.norm(r)
    return p - rate * r


OPTIMIZERS = [
    tc.SGD(),
    tc.SGD(momentum=0.9, weight_decay=0.02),
    tc.SGD(momentum=0.9, nesterov=True),
    tc.Adam(weight_decay=0.1),
    tc.AdamW(betas=(0.8, 0.95)),
    tc.LAMB(weight_decay=0.1),
]


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
@pytest.mark.each_value
def test_steps(optimizer, clip):
    x, y, weights = start()
    exact = {name: array.astype(float) for name, array in weights.items()}
    step = tc.training_step(network(), wrt=[*WEIGHTS], optimizer=optimizer, clip=clip)
    kept = tc.optimizer_state(optimizer, **weights)
    states = {name: {} for name in WEIGHTS}
    for count in range(1, 8):
        rate = 0.02 / count
        loss = step(x=x, y=y, rate=rate, **weights, **kept)
        hidden = np.tanh(x @ exact["w"] + exact["b"])
        assert loss[0] == pytest.approx(((hidden @ exact["v"] - y) ** 2).sum() / 16, rel=1e-5)
        gradients = exact_gradients(x, y, **exact)
        length = np.sqrt(sum((g * g).sum() for g in gradients.values()))
        share = 1 if clip is None else min(1, clip / length)
        for name, g in gradients.items():
            exact[name] = moved(optimizer, exact[name], g * share, states[name], rate, count)
        assert kept["steps"].tolist() == [count]
    for name, right in exact.items():
        np.testing.assert_allclose(weights[name], right, rtol=2e-4, atol=2e-6)
        np.testing.assert_allclose(kept[f"m_{name}"], states[name]["m"], rtol=2e-4, atol=2e-6)


ERRORS = [
    ({"loss": f32[1], "w": i64[1]}, "'w' is i64[1], and has no gradient"),
    ({"loss": f32[2], "w": f32[1]}, "'loss' is f32[2], and a loss is one number"),
    ({"loss": tc.f16[1], "w": tc.f16[1]}, "the weight 'w' is f16: a step would be too small"),
]


@pytest.mark.parametrize(("types", "text"), ERRORS)
def test_errors(types, text):
    shape, kind = types["loss"].shape, types["loss"].dtype

    def body(w):
        return {"loss": tc.compute(shape, lambda i: w[0].to(kind) * w[0].to(kind))}

    program = tc.trace("f", {"w": types["w"]}, body)
    with pytest.raises(tc.CompileError) as caught:
        tc.training_step(program, wrt=["w"], optimizer=tc.SGD())
    assert text in str(caught.value)
