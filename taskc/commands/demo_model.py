"""The model made by `taskc demo`: a graph of ONNX operators, which needs no file and no onnx package."""

from __future__ import annotations

import numpy as np

from taskc import f32
from taskc.onnx import Graph, Node, Value
from taskc.operators.graph import Array


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
