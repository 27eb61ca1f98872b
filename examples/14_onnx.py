"""An ONNX model with an operator of one's own, which is a kernel.

`repeat(2) * spatial(8)` says: a worker has an element of the first eight and one of the second eight, and neighbouring
workers have neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

import taskc as tc
from taskc import f32, repeat, spatial

OWN = repeat(2) * spatial(8)
SIZE = 40


@tc.kernel(workers=8)
def snake(x: f32[SIZE], y: tc.out[f32[SIZE]]) -> None:
    for start in tc.tiles(SIZE, by=16):
        for i in OWN:
            if start + i < SIZE:
                y[start + i] = x[start + i] + tc.sin(x[start + i]) * tc.sin(x[start + i])


@tc.onnx.operator("Snake", since=1, domain="my.own")
def build_snake(call: tc.onnx.Call) -> Any:
    (x,) = call.inputs
    return snake(x)


def model(weights: np.ndarray) -> ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Snake", ["h"], ["s"], domain="my.own"),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [SIZE])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [SIZE])]
    graph = helper.make_graph(
        nodes, "net", inputs, outputs, [numpy_helper.from_array(weights, "w")]
    )
    sets = [helper.make_opsetid("", 20), helper.make_opsetid("my.own", 1)]
    return helper.make_model(graph, opset_imports=sets)


def main() -> None:
    random = np.random.default_rng(0)
    weights = random.standard_normal((SIZE, SIZE)).astype(np.float32)
    x = random.standard_normal(SIZE).astype(np.float32)
    h = x.astype(np.float64) @ weights
    made = tc.compile(model(weights))(x)
    print(f"onnx: largest error {np.abs(made - np.maximum(h + np.sin(h) ** 2, 0)).max():.1e}")


if __name__ == "__main__":
    main()
