"""Random Ifs whose branches give tensors of different ranks or extents, sequences, or optional values of them: at the
top, in Loops, in Ifs, with random readers."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from .models import node

F, B = TensorProto.FLOAT, TensorProto.BOOL
_READERS = (
    *("Where", "Where", "Add", "Add", "Small", "If", "Reshape", "Reshape 0", "Expand", "Squeeze", "Unsqueeze"),
    *("Concat", "Shape", "Size", "ReduceSum", "MatMul", "Clip", "Nothing", "Sequence", "Optional", "PRelu"),
)  # fmt: skip


def constant(name: str, value: Any) -> Any:
    return node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value)))


def graph(name: str, nodes: list[Any], inputs: list[Any], outputs: list[tuple[str, int]]) -> Any:
    made = [helper.make_tensor_value_info(output, kind, None) for output, kind in outputs]
    return helper.make_graph(nodes, name, inputs, made)


def branches_of(random: Random) -> ModelProto:
    """A model of `x`, f32[2, 4] or f32[20, 40], with the output `z`."""
    size = random.choice(((2, 4), (2, 4), (20, 40)))  # one that may decide what is compiled, or not
    lows = ((), size[1:], size)
    low = random.choice(((), *lows))
    is_unlike = random.random() < 0.2
    kind = random.choice((F, F, B))
    reader = random.choice(_READERS)
    if reader in ("If", "Where"):
        kind = B
    if reader == "If":
        low = ()

    def branch(name: str) -> Any:
        own = random.choice(lows) if is_unlike and reader != "If" else low
        axes = [*range(2 - len(own))]
        shape = (1,) * random.randrange(3) + own
        last = "Greater" if kind == B else "Sub"
        nodes = [
            constant(f"{name}_axes", np.array(axes, np.int64)),
            node(
                "ReduceSum",
                ["v", f"{name}_axes"],
                [f"{name}_s"],
                keepdims=0,
                noop_with_empty_axes=1,
            ),
            constant(f"{name}_shape", np.array(shape, np.int64)),
            node("Reshape", [f"{name}_s", f"{name}_shape"], [f"{name}_r"]),
            constant(f"{name}_c", np.float32(random.choice((-1, 0, 1)))),
            node(last, [f"{name}_r", f"{name}_c"], [f"{name}_o"]),
        ]
        made = [(f"{name}_o", kind)]
        if reader == "Sequence":
            parts = [f"{name}_o"] * random.randrange(1, 3)
            nodes.append(node("SequenceConstruct", parts, [f"{name}_q"]))
            output = helper.make_tensor_sequence_value_info(f"{name}_q", kind, None)
            return helper.make_graph(nodes, name, [], [output])
        if reader == "Optional":
            kind_of = helper.make_tensor_type_proto(kind, None)
            inner = helper.make_optional_type_proto(kind_of)
            empty = {"type": kind_of} if random.random() < 0.3 else {}
            nodes.append(node("Optional", [] if empty else [f"{name}_o"], [f"{name}_q"], **empty))
            return helper.make_graph(nodes, name, [], [helper.make_value_info(f"{name}_q", inner)])
        return graph(name, nodes, [], made)

    nodes = [
        node("ReduceSum", ["v"], ["total"], keepdims=0),
        constant("limit", np.float32(random.choice((-8, 0, 8)))),
        node("Greater", ["total", "limit"], ["which"]),
        node("If", ["which"], ["d0"], then_branch=branch("t"), else_branch=branch("e")),
    ]
    last = "d0"
    for number in range(random.randrange(3)):
        after = f"d{number + 1}"
        unary = random.choice(("Not", "Identity") if kind == B else ("Neg", "Abs", "Identity"))
        if reader not in ("Sequence", "Optional"):
            nodes.append(node(unary, [last], [after]))
            last = after
    nodes += read(reader, last, kind, random)
    place = random.choice(("top", "top", "Loop", "Loop", "If"))
    x = helper.make_tensor_value_info("x", F, size)
    if place == "top":
        whole = [node("Identity", ["x"], ["v"]), *nodes, node("Identity", ["y"], ["z"])]
    elif place == "If":
        inner = [node("Identity", ["x"], ["v"]), *nodes]
        otherwise = [
            node("Neg", ["x"], ["n"]),
            node("Abs", ["n"], ["m"]),
            node("Cast", ["m"], ["o"], to=F),
        ]
        whole = [
            node("ReduceMax", ["x"], ["top"], keepdims=0), constant("half", np.float32(0.5)),
            node("Greater", ["top", "half"], ["outer"]),
            node("If", ["outer"], ["z"], then_branch=graph("i", inner, [], [("y_i", F)]),
                 else_branch=graph("o", otherwise, [], [("o", F)])),
        ]  # fmt: skip
        inner[-1].output[0] = "y_i"
    else:
        body = [
            *nodes, node("ReduceSum", ["y"], ["sum"], keepdims=0), node("Add", ["v", "sum"], ["w"]),
            constant("most", np.float32(1e3)), node("Less", ["sum", "most"], ["go"]),
        ]  # fmt: skip
        inputs = [
            helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("g", B, []),
            helper.make_tensor_value_info("v", F, size),
        ]  # fmt: skip
        loop = helper.make_graph(
            body, "body", inputs,
            [helper.make_tensor_value_info("go", B, None), helper.make_tensor_value_info("w", F, size)],
        )  # fmt: skip
        if kind == B and low == () and not is_unlike and random.random() < 0.5:
            body.append(node("Identity", [last], ["k"]))
            loop.node.append(body[-1])
            loop.output[0].name = "k"
        carried = ["z"]
        if random.random() < 0.3:
            loop.output.append(helper.make_tensor_value_info("y", F, None))
            carried = ["last", "z"]
        whole = [constant("turns", np.int64(2)), constant("yes", np.array(True)),
                 node("Loop", ["turns", "yes", "x"], carried, body=loop)]  # fmt: skip
    made = graph("branches", whole, [x], [("z", F)])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def read(reader: str, d: str, kind: int, random: Random) -> list[Any]:
    """Nodes that make y, of floats, of d."""
    as_float = [node("Cast", [d], ["f"], to=F)]
    match reader:
        case "Where":
            return [node("Where", [d, "v", "total"], ["y"])]
        case "Add":
            return [
                *as_float,
                node(random.choice(("Add", "Mul")), random.sample(["f", "v"], 2), ["y"]),
            ]
        case "Small":
            return [*as_float, node("Add", ["f", "total"], ["y"])]
        case "If":
            then = graph("a", [node("Identity", ["v"], ["a_o"])], [], [("a_o", F)])
            otherwise = graph("b", [node("Neg", ["v"], ["b_o"])], [], [("b_o", F)])
            return [node("If", [d], ["y"], then_branch=then, else_branch=otherwise)]
        case "Reshape" | "Reshape 0" | "Expand":
            shape = [-1] if reader == "Reshape" else [0, -1] if reader == "Reshape 0" else [3, 1, 1]
            made = [*as_float, constant("shape", np.array(shape, np.int64))]
            return [*made, node(reader.split()[0], ["f", "shape"], ["y"])]
        case "Unsqueeze":
            return [
                *as_float,
                constant("axes", np.array([0], np.int64)),
                node(reader, ["f", "axes"], ["y"]),
            ]
        case "Concat":
            return [*as_float, node("Concat", ["f", "f"], ["y"], axis=0)]
        case "Shape" | "Size":
            return [node(reader, [d], ["n"]), node("Cast", ["n"], ["y"], to=F)]
        case "MatMul":
            return [*as_float, node("MatMul", ["v", "f"], ["y"])]
        case "Clip":
            return [*as_float, node("Clip", ["f", "total"], ["y"])]
        case "PRelu":
            return [*as_float, node("PRelu", random.sample(["f", "v"], 2), ["y"])]
        case "Sequence":
            at = [constant("zero", np.int64(0)), node("SequenceAt", [d, "zero"], ["at"])]
            return [*at, node("Cast", ["at"], ["y"], to=F)]
        case "Optional" if random.random() < 0.5:
            return [node("OptionalHasElement", [d], ["has"]), node("Cast", ["has"], ["y"], to=F)]
        case "Optional":
            return [node("OptionalGetElement", [d], ["at"]), node("Cast", ["at"], ["y"], to=F)]
        case "Nothing":
            return [node("Cast", [d], ["y"], to=F)]
    return [*as_float, node(reader, ["f"], ["y"])]
