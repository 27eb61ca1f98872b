"""Recurrent networks by NumPy, one sequence and one step at a time, as ONNX's documents define them."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


FUNCTIONS = {
    "Sigmoid": sigmoid,
    "Tanh": np.tanh,
    "Relu": lambda x: np.maximum(x, 0),
    "HardSigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "Softsign": lambda x: x / (1 + np.abs(x)),
}


def lstm(x: Array, h: Array, c: Array, own: dict[str, Any]) -> tuple[Array, Array]:
    """One step of one sequence; gates are those of input, output, forgetting and the cell."""
    f, g, k = own["functions"]
    i, o, forget, cell = np.split(own["w"] @ x + own["r"] @ h + own["wb"] + own["rb"], 4)
    of_i, of_o, of_f = np.split(own["p"], 3)
    entering = f(clipped(i + of_i * c, own))
    staying = 1 - entering if own["coupled"] else f(clipped(forget + of_f * c, own))
    new = staying * c + entering * g(clipped(cell, own))
    return f(clipped(o + of_o * new, own)) * k(clipped(new, own)), new


def gru(x: Array, h: Array, c: Array, own: dict[str, Any]) -> tuple[Array, Array]:
    """Gates are those of updating and resetting, and the new state's."""
    f, g = own["functions"]
    wz, wr, wh = np.split(own["w"] @ x + own["wb"], 3)
    rz, rr, rh = np.split(own["r"], 3)
    bz, br, bh = np.split(own["rb"], 3)
    z, r = f(clipped(wz + rz @ h + bz, own)), f(clipped(wr + rr @ h + br, own))
    other = r * (rh @ h + bh) if own["linear"] else rh @ (r * h) + bh
    return (1 - z) * g(clipped(wh + other, own)) + z * h, c


def rnn(x: Array, h: Array, c: Array, own: dict[str, Any]) -> tuple[Array, Array]:
    (f,) = own["functions"]
    return f(clipped(own["w"] @ x + own["r"] @ h + own["wb"] + own["rb"], own)), c


def clipped(x: Array, own: dict[str, Any]) -> Array:
    return np.clip(x, -own["clip"], own["clip"]) if own["clip"] else x


CELLS = {"LSTM": lstm, "GRU": gru, "RNN": rnn}


def run(
    operator: str, x: Array, lengths: Array, h: Array, c: Array, directions: list[dict[str, Any]],
    order: str,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """x[steps, batch, inputs] through all directions: all states, the last ones, and the last cells."""
    steps, batch, _ = x.shape
    y = np.zeros((steps, len(directions), batch, h.shape[-1]))
    h, c = h.copy(), c.copy()
    for d, own in enumerate(directions):
        for b in range(batch):
            places = range(lengths[b])
            for t in places[::-1] if order == "reverse" or d == 1 else places:
                h[d, b], c[d, b] = CELLS[operator](x[t, b], h[d, b], c[d, b], own)
                y[t, d, b] = h[d, b]
    return y, h, c
