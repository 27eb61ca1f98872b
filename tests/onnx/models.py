"""Small models for tests, written with the package onnx's helpers."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

OPSET = 21
node = helper.make_node


def tensor(name: str, *shape: int | str | None, type: int = TensorProto.FLOAT) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, type, shape)


def model(
    nodes: list[NodeProto],
    inputs: list[ValueInfoProto],
    outputs: list[str | ValueInfoProto],
    *,
    opset: int = OPSET,
    domains: tuple[str, ...] = (),
    functions: tuple[Any, ...] = (),
    **of_graph: Any,
) -> ModelProto:
    """A model; outputs that are only named have no types. Operator sets of other domains have version 1."""
    ends = [ValueInfoProto(name=item) if isinstance(item, str) else item for item in outputs]
    graph = helper.make_graph(nodes, "main", inputs, ends, **of_graph)
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(domain, 1) for domain in domains]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)


def samples() -> list[ModelProto]:
    """Small models that have one of each: encodings, constants, graphs in attributes, functions, recurrences."""
    return [
        _convolutions(),
        _control_flow(),
        _functions(),
        _quantized(),
        _recurrent(),
        _defined_by_others(),
    ]


def _array(name: str, array: np.ndarray[Any, Any]) -> TensorProto:
    return numpy_helper.from_array(array, name)


def _convolutions() -> ModelProto:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
    return model(
        [
            node(
                "Conv", ["x", "w", "b"], ["c"], name="conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1]
            ),
            node("BatchNormalization", ["c", "b", "b", "b", "v"], ["n"], epsilon=1e-3),
            node("Relu", ["n"], ["r"]),
            node("MaxPool", ["r"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
            node("GlobalAveragePool", ["m"], ["g"]),
            node("Shape", ["g"], ["s"]),
            node("Constant", [], ["zero"], value_ints=[0]),
            node("Gather", ["s", "zero"], ["batch"], axis=0),
            node("Constant", [], ["rest"], value=_array("", np.array([-1], np.int64))),
            node("Concat", ["batch", "rest"], ["shape"], axis=0),
            node("Reshape", ["g", "shape"], ["f"]),
            node("Gemm", ["f", "d", "e"], ["y"], transB=1, alpha=0.5),
        ],
        [tensor("x", "batch", 3, 8, 8)],
        [tensor("y", "batch", 5)],
        initializer=[
            _array("w", weights),
            TensorProto(name="b", data_type=TensorProto.FLOAT, dims=[4], float_data=[1, 2, 3, 4]),
            _array("v", np.ones(4, np.float32)),
            _array("d", rng.standard_normal((5, 4)).astype(np.float32)),
            _array("e", np.zeros(5, np.float32)),
        ],
        value_info=[tensor("c", "batch", 4, 8, 8)],
    )


def _graph(
    name: str, inputs: list[ValueInfoProto], nodes: list[NodeProto], outputs: list[ValueInfoProto]
) -> Any:
    return helper.make_graph(nodes, name, inputs, outputs)


def _control_flow() -> ModelProto:
    flag, count = tensor("keep", type=TensorProto.BOOL), tensor("i", type=TensorProto.INT64)
    then = _graph("then", [], [node("Add", ["x", "x"], ["t"])], [tensor("t", "n")])
    other = _graph("other", [], [node("Neg", ["x"], ["u"])], [tensor("u", "n")])
    step = [
        node("Identity", ["keep"], ["go"]),
        node("Mul", ["s", "x"], ["next"]),
        node("Neg", ["next"], ["seen"]),
    ]
    loop = _graph(
        "loop",
        [count, flag, tensor("s", "n")],
        step,
        [tensor("go", type=TensorProto.BOOL), tensor("next", "n"), tensor("seen", "n")],
    )
    scan = _graph(
        "scan",
        [tensor("a"), tensor("e")],
        [node("Add", ["a", "e"], ["b"]), node("Identity", ["b"], ["seen"])],
        [tensor("b"), tensor("seen")],
    )
    return model(
        [
            node("ReduceSum", ["x"], ["total"], keepdims=0),
            node("Greater", ["total", "limit"], ["flag"]),
            node("If", ["flag"], ["z"], then_branch=then, else_branch=other),
            node("Loop", ["three", "", "z"], ["last", "all"], body=loop),
            node("Scan", ["total", "last"], ["sum", "sums"], body=scan, num_scan_inputs=1),
        ],
        [tensor("x", "n")],
        [tensor("all", 3, "n"), tensor("sum"), tensor("sums", "n")],
        initializer=[_array("limit", np.float32(0)), _array("three", np.int64(3))],
    )


def _functions() -> ModelProto:
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("own", 1)]
    scaled = node("Constant", [], ["a"])
    scaled.attribute.add(name="value_float", ref_attr_name="scale", type=AttributeProto.FLOAT)
    inner = helper.make_function(
        "own", "Scale", ["v"], ["r"], [scaled, node("Mul", ["v", "a"], ["r"])], opsets, ["scale"]
    )
    calls = [
        node("Scale", ["v"], ["t"], domain="own", scale=2.0),
        node("Scale", ["t"], ["r"], domain="own", scale=3.0),
    ]
    outer = helper.make_function("own", "Twice", ["v"], ["r", "t"], calls, opsets)
    nodes = [node("Twice", ["x"], ["a", "b"], domain="own"), node("Sub", ["a", "b"], ["y"])]
    return model(
        nodes, [tensor("x", 2, 3)], [tensor("y", 2, 3)], domains=("own",), functions=(inner, outer)
    )


def _quantized() -> ModelProto:
    four = TensorProto(
        name="q", data_type=TensorProto.INT4, dims=[3, 3], int32_data=[0x21, 0xF3, 0x70, 0x12, 1]
    )
    half = TensorProto(
        name="h", data_type=TensorProto.FLOAT16, dims=[3], int32_data=[15360, 0, 48128]
    )
    return model(
        [
            node("QuantizeLinear", ["x", "s", "z"], ["i"]),
            node("DequantizeLinear", ["i", "s", "z"], ["d"]),
            node("DequantizeLinear", ["q", "s"], ["w"]),
            node("MatMul", ["d", "w"], ["m"]),
            node("Cast", ["h"], ["c"], to=TensorProto.FLOAT),
            node("Add", ["m", "c"], ["y"]),
        ],
        [tensor("x", 2, 3)],
        [tensor("y", 2, 3)],
        initializer=[four, half, _array("s", np.float32(0.1)), _array("z", np.uint8(128))],
    )


def _recurrent() -> ModelProto:
    rng = np.random.default_rng(0)
    weights = [
        _array(name, rng.standard_normal(shape).astype(np.float32))
        for name, shape in (("w", (2, 12, 4)), ("r", (2, 12, 3)), ("b", (2, 24)))
    ]
    lstm = node(
        "LSTM",
        ["x", "w", "r", "b"],
        ["y", "", "c"],
        hidden_size=3,
        direction="bidirectional",
        activations=["Sigmoid", "Tanh", "Tanh"] * 2,
    )
    einsum = node("Einsum", ["y", "y"], ["e"], equation="sdbh,sdbh->sb")
    return model(
        [lstm, einsum],
        [tensor("x", "time", 1, 4)],
        [tensor("y", "time", 2, 1, 3), tensor("c", 2, 1, 3), tensor("e", "time", 1)],
        initializer=weights,
    )


def _defined_by_others() -> ModelProto:
    """Operators that ONNX defines by bodies, of which some depend on the node."""
    return model(
        [
            node("LayerNormalization", ["x", "w"], ["n"], axis=-1),
            node("Gelu", ["n"], ["g"], approximate="tanh"),
            node("CenterCropPad", ["g", "shape"], ["c"], axes=[0, 1]),
            node("LogSoftmax", ["c"], ["l"], axis=1),
            node(
                "NegativeLogLikelihoodLoss",
                ["l", "labels"],
                ["y"],
                reduction="mean",
                ignore_index=1,
            ),
            node("GroupNormalization", ["i", "u", "u"], ["m"], num_groups=2),
        ],
        [tensor("x", 2, 3), tensor("labels", 2, type=TensorProto.INT64), tensor("i", 1, 4, 2)],
        [tensor("y"), tensor("m", 1, 4, 2)],
        value_info=[tensor("l", 2, 3)],
        initializer=[
            _array("w", np.ones(3, np.float32)),
            _array("u", np.ones(4, np.float32)),
            _array("shape", np.array([2, 3], np.int64)),
        ],
    )
