"""The operator, the model and the mistake that `taskc demo` shows.

The model is a graph of ONNX operators, which needs no file and no onnx package. The mistake is an element that is read
in the phase in which its neighbour writes it.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

import taskc as tc
from taskc import f32, repeat, spatial
from taskc.onnx import Graph, Node, Value
from taskc.operators.graph import Array

OWN = spatial(4, 8) * repeat(2, 2)


def linear(m, n, k, own):
    """relu(x @ w + bias), a block of `own` at a time."""
    rows, columns = own.shape

    @tc.kernel(workers=own.workers)
    def linear(x: f32[m, k], w: f32[k, n], bias: f32[n], y: tc.out[f32[m, n]]):
        for row, col in tc.tiles((m, n), by=(rows, columns)):  # one block each
            acc = tc.tile(f32, own, 0)  # in registers
            for p in tc.pipeline(k, by=8, stages=2):  # the next loads overlap
                sx = tc.load(x[row : row + rows, p : p + 8])  # to shared memory
                sw = tc.load(w[p : p + 8, col : col + columns])
                for q in range(8):
                    for i, j in own:  # this worker's tasks
                        acc[i, j] += sx[i, q] * sw[q, j]
            for i, j in own:
                if row + i < m and col + j < n:
                    y[row + i, col + j] = max(acc[i, j] + bias[col + j], 0.0)

    return linear


def weights() -> dict[str, Array]:
    random = np.random.default_rng(0)
    shapes = {"w1": (32, 64), "b1": (64,), "w2": (64, 10), "b2": (10,)}
    return {
        name: random.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[0]))
        for name, shape in shapes.items()
    }


def classifier() -> Graph:
    """softmax(relu(x @ w1 + b1) @ w2 + b2)"""
    x = Value("x", f32, ("rows", 32))
    y = Value("y", f32, ("rows", 10))
    nodes = (
        Node("MatMul", ("x", "w1"), ("product1",), version=20),
        Node("Add", ("product1", "b1"), ("sum1",), version=20),
        Node("Relu", ("sum1",), ("hidden",), version=20),
        Node("MatMul", ("hidden", "w2"), ("product2",), version=20),
        Node("Add", ("product2", "b2"), ("sum2",), version=20),
        Node("Softmax", ("sum2",), ("y",), {"axis": -1}, version=20),
    )
    return Graph("classifier", (x,), ("y",), nodes, weights(), {"x": x, "y": y})


@tc.kernel(workers=128)
def differences(x: f32[1024], y: tc.out[f32[1024]]):
    for start in tc.tiles(1024, by=128):
        s = tc.shared(f32[128])
        for i in spatial(128):
            s[i] = x[start + i]
            y[start + i] = s[i] - s[max(i - 1, 0)]
