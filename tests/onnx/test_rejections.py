"""Models that are refused: each with the sentence that says why, and which node it is about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    ValueInfoProto,
    helper,
)

from taskc import CompileError
from taskc.onnx import resolve
from taskc.onnx.reader import read
from taskc.onnx.resolve import in_onnx

from .models import OPSET, model, tensor

node = helper.make_node


def from_x(*nodes: NodeProto, outputs: tuple[str, ...] = ("y",), **options: Any) -> ModelProto:
    return model([*nodes], [tensor("x", 4)], [*outputs], **options)


def attributed(
    operator: str, *attributes: AttributeProto, inputs: tuple[str, ...] = ("x",)
) -> ModelProto:
    item = node(operator, [*inputs], ["y"], name="n")
    item.attribute.extend(attributes)
    return from_x(item)


def called(
    inputs: list[str], outputs: list[str], body: list[NodeProto], formals: tuple[str, ...] = ("v",)
) -> ModelProto:
    """A call of a function that makes r."""
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "F", [*formals], ["r"], body, opsets)
    call = node("F", inputs, outputs, domain="own", name="call")
    return from_x(call, outputs=tuple(outputs), domains=("own",), functions=(function,))


def graph(
    *nodes: NodeProto, inputs: tuple[str, ...] = (), outputs: tuple[str, ...] = ("r",)
) -> GraphProto:
    values = [ValueInfoProto(name=name) for name in inputs]
    return helper.make_graph(
        [*nodes], "branch", values, [ValueInfoProto(name=name) for name in outputs]
    )


def choice(branch: GraphProto) -> ModelProto:
    return from_x(node("If", ["x"], ["y"], name="n", then_branch=branch, else_branch=branch))


def sparse() -> ModelProto:
    proto = from_x(node("Relu", ["x"], ["y"]))
    proto.graph.sparse_initializer.add()
    return proto


def imported(domain: str, version: int) -> ModelProto:
    proto = from_x(node("Relu", ["x"], ["y"]))
    proto.opset_import.append(helper.make_opsetid(domain, version))
    return proto


def without_an_operator_set() -> ModelProto:
    proto = from_x(node("Relu", ["x"], ["y"], name="n"))
    del proto.opset_import[:]
    return proto


def of_a_newer_format() -> ModelProto:
    proto = from_x(node("Relu", ["x"], ["y"]))
    proto.ir_version = 99
    return proto


def defined_twice() -> ModelProto:
    proto = called(["x"], ["y"], [node("Neg", ["v"], ["r"])])
    proto.functions.append(proto.functions[0])
    return proto


WEIGHTS = TensorProto(name="w", data_type=1, dims=[1], float_data=[1.0])
COMPLEX = helper.make_tensor_value_info("x", TensorProto.COMPLEX64, [1])
SPARSE = helper.make_sparse_tensor_value_info("x", TensorProto.FLOAT, [1])
HUGE = tensor("x", 2**40, 2**40)

CASES: dict[str, tuple[Callable[[], ModelProto | bytes], str, str | None]] = {
    "no graph": (lambda: b"", "this is no ONNX model: it has no graph", None),
    "no protobuf": (
        lambda: b"not a model",
        "this is no ONNX model, or one that is damaged: its bytes are no ModelProto",
        None,
    ),
    "cut off": (
        lambda: from_x(node("Relu", ["x"], ["y"])).SerializeToString()[:-10],
        "this is no ONNX model, or one that is damaged: its bytes are no ModelProto",
        None,
    ),
    "newer format": (
        of_a_newer_format,
        "the model is written in version 99 of ONNX's format",
        "taskc reads versions up to 14",
    ),
    "opset too old": (
        lambda: from_x(node("Add", ["x", "x"], ["y"], name="n"), opset=6),
        "Add node 'n': the model is of opset 6, and this operator isn't the same since",
        "taskc reads opsets 7 to 28",
    ),
    "opset too new": (
        lambda: from_x(node("Relu", ["x"], ["y"]), opset=29),
        "the model uses opset 29 of ONNX",
        "taskc reads opsets 7 to 28",
    ),
    "opset of a domain": (
        lambda: imported("own", 2**40),
        "the model uses version 1099511627776 of the operator set 'own'",
        "versions count from 1",
    ),
    "opset twice": (
        lambda: imported("ai.onnx", OPSET - 1),
        "two versions of the operator set '' are imported",
        None,
    ),
    "no opset": (
        without_an_operator_set,
        "Relu node 'n': the model doesn't say which version of the operator set of ONNX it uses",
        None,
    ),
    "no opset of a domain": (
        lambda: from_x(node("Mine", ["x"], ["y"], domain="own")),
        "Mine node that makes 'y': the model doesn't say which version of the operator set 'own' it uses",
        None,
    ),
    "sparse": (sparse, "the model has sparse initializers, which taskc doesn't read", None),
    "complex": (
        lambda: model([], [COMPLEX], ["x"]),
        "the input 'x' has elements of type COMPLEX64",
        "taskc computes with f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64, bool, f8e4m3, f8e5m2",
    ),
    "sparse input": (
        lambda: model([], [SPARSE], ["x"]),
        "the input 'x' is of type sparse tensor, which taskc doesn't have",
        None,
    ),
    "huge input": (
        lambda: model([], [HUGE], ["x"]),
        "the input 'x' has the shape [1099511627776, 1099511627776], which no memory holds",
        None,
    ),
    "input without a name": (
        lambda: model([], [tensor("", 1)], []),
        "the graph 'main' has an input or initializer without a name",
        None,
    ),
    "two inputs of a name": (
        lambda: model([], [tensor("x", 1), tensor("x", 1)], ["x"]),
        "the graph 'main' has two inputs 'x'",
        None,
    ),
    "two initializers of a name": (
        lambda: model([], [], ["w"], initializer=[WEIGHTS, WEIGHTS]),
        "there are two initializers named 'w'",
        None,
    ),
    "made twice": (
        lambda: from_x(node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"], name="n")),
        "Neg node 'n': something else makes its output 'y', too",
        None,
    ),
    "made again in a branch": (
        lambda: choice(graph(node("Neg", ["x"], ["x"]), outputs=("x",))),
        "Neg node that makes 'x': something else makes its output 'x', too",
        None,
    ),
    "nobody makes an input": (
        lambda: from_x(node("Relu", ["xx"], ["y"], name="n")),
        "Relu node 'n': nothing makes its input 'xx'",
        "did you mean 'x'?",
    ),
    "nobody makes an input of a branch": (
        lambda: choice(graph(node("Relu", ["missing"], ["r"]))),
        "Relu node that makes 'r': nothing makes its input 'missing'",
        None,
    ),
    "nobody makes an output": (
        lambda: from_x(node("Relu", ["x"], ["why"]), outputs=("whyy",)),
        "nothing makes the output 'whyy' of the graph 'main'",
        "did you mean 'why'?",
    ),
    "circle": (
        lambda: from_x(
            node("Add", ["x", "c"], ["a"], name="first"),
            node("Relu", ["a"], ["b"], name="second"),
            node("Neg", ["b"], ["c"]),
            node("Exp", ["c"], ["y"]),
        ),
        "Add node 'first': it needs what it makes itself, by way of the Neg node that makes 'c', Relu node 'second'",
        None,
    ),
    "circle by a branch": (
        lambda: choice(graph(node("Relu", ["y"], ["r"]))),
        "If node 'n': it needs what it makes itself",
        None,
    ),
    "unknown operators": (
        lambda: from_x(
            node("Mine", ["x"], ["a"], domain="own"),
            node("Reluu", ["a"], ["b"], name="typo"),
            node("Mine", ["b"], ["c"], domain="own"),
            node("Upsample", ["c", "c"], ["y"], name="old"),
            domains=("own",),
        ),
        "the model has operators that taskc doesn't know:\n"
        "  Mine (of own, opset 1): 2 nodes, the first is the Mine node that makes 'a'\n"
        "  Reluu (of ONNX, opset 21): the Reluu node 'typo'\n"
        "  Upsample (of ONNX, opset 21): the Upsample node 'old'",
        "tc.onnx.partition leaves these to ONNX Runtime",
    ),
    "too few inputs": (
        lambda: attributed("Conv"),
        "Conv node 'n': it has 1 inputs, but takes 2 to 3",
        None,
    ),
    "too many outputs": (
        lambda: from_x(node("Relu", ["x"], ["y", "z"], name="n")),
        "Relu node 'n': it has 2 outputs, but makes 1",
        None,
    ),
    "too few of any number": (
        lambda: from_x(node("Concat", [], ["y"], name="n", axis=0)),
        "Concat node 'n': it has 0 inputs, but takes at least 1",
        None,
    ),
    "input left out": (
        lambda: attributed("Conv", inputs=("x", "", "x")),
        "Conv node 'n': its input 1, W, is missing",
        None,
    ),
    "no such attribute": (
        lambda: attributed("Elu", helper.make_attribute("beta", 1.0)),
        f"Elu node 'n': it has no attribute 'beta' in opset {OPSET}",
        "it has alpha",
    ),
    "attribute of another type": (
        lambda: attributed("Elu", helper.make_attribute("alpha", 1)),
        "Elu node 'n': its attribute 'alpha' is of type int, not float",
        None,
    ),
    "attribute that is no text": (
        lambda: attributed("Einsum", helper.make_attribute("equation", b"i\xff,i->")),
        "Einsum node 'n': its attribute 'equation' isn't text in UTF-8",
        None,
    ),
    "attribute missing": (
        lambda: attributed("Concat"),
        "Concat node 'n': its attribute 'axis' is missing",
        None,
    ),
    "attribute twice": (
        lambda: attributed("Softmax", *[helper.make_attribute("axis", 1)] * 2),
        "Softmax node 'n': it has two attributes 'axis'",
        None,
    ),
    "attribute of two types": (
        lambda: attributed("Softmax", AttributeProto(name="axis", type=AttributeProto.INT, f=1.0)),
        "Softmax node 'n': its attribute 'axis' is of type int, but has f",
        None,
    ),
    "attribute of no type": (
        lambda: attributed("Softmax", AttributeProto(name="axis")),
        "Softmax node 'n': its attribute 'axis' is of type undefined, which taskc doesn't read",
        None,
    ),
    "attribute without its tensor": (
        lambda: attributed(
            "ConstantOfShape", AttributeProto(name="value", type=AttributeProto.TENSOR)
        ),
        "ConstantOfShape node 'n': its attribute 'value' is of type tensor, but has none",
        None,
    ),
    "attribute with a bad tensor": (
        lambda: attributed(
            "ConstantOfShape", helper.make_attribute("value", TensorProto(data_type=1, dims=[9]))
        ),
        "ConstantOfShape node 'n': its attribute 'value' has 0 elements, but its shape asks for 9",
        None,
    ),
    "sparse attribute": (
        lambda: attributed("Constant", helper.make_attribute("sparse_value", SparseTensorProto())),
        "Constant node 'n': its attribute 'sparse_value' is of type sparse tensor, which taskc doesn't read",
        None,
    ),
    "constant without a value": (
        lambda: from_x(node("Constant", [], ["y"], name="n")),
        "Constant node 'n': it needs one attribute that says its value, and has none",
        None,
    ),
    "constant with two values": (
        lambda: from_x(node("Constant", [], ["y"], name="n", value_int=1, value_float=1.0)),
        "Constant node 'n': it needs one attribute that says its value, and has value_float, value_int",
        None,
    ),
    "body by types that nobody knows": (
        lambda: from_x(
            node("Cast", ["x"], ["t"], to=1),
            node("NegativeLogLikelihoodLoss", ["t", "t"], ["y"], name="n"),
        ),
        "NegativeLogLikelihoodLoss node 'n': what defines it depends on the types of its inputs, which the model"
        " doesn't say",
        "run ONNX's shape inference on the model",
    ),
    "attribute of a function outside of one": (
        lambda: attributed(
            "Elu", AttributeProto(name="alpha", ref_attr_name="a", type=AttributeProto.FLOAT)
        ),
        "Elu node 'n': its attribute 'alpha' is a function's, and it is in none",
        None,
    ),
    "constant without a name": (
        lambda: from_x(node("Constant", [], [""], name="n", value_int=1)),
        "Constant node 'n': its output has no name",
        None,
    ),
    "function with two inputs of a name": (
        lambda: called(["x"], ["y"], [node("Neg", ["v"], ["r"])], formals=("v", "v")),
        "the function F needs a name of its own for each input",
        None,
    ),
    "function twice": (defined_twice, "the model defines the function F twice", None),
    "function that calls itself": (
        lambda: called(["x"], ["y"], [node("F", ["v"], ["r"], domain="own")]),
        "F node that makes 'y': its function F lies 40 deep in graphs and functions",
        "a function may not call itself",
    ),
    "function with too many inputs": (
        lambda: called(["x", "x"], ["y"], [node("Neg", ["v"], ["r"])]),
        "F node 'call': it has 2 inputs, but its function 1",
        None,
    ),
    "function with too many outputs": (
        lambda: called(["x"], ["y", "z"], [node("Neg", ["v"], ["r"])]),
        "F node 'call': it has 2 outputs, but its function 1",
        None,
    ),
    "function without its output": (
        lambda: called(["x"], ["y"], [node("Neg", ["v"], ["s"])]),
        "F node 'call': the function F doesn't make its output 'r'",
        None,
    ),
    "function that uses names around its call": (
        lambda: called(["x"], ["y"], [node("Neg", ["x"], ["r"], name="n")]),
        "Neg node 'n': nothing makes its input 'x'",
        None,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_refused(case: str) -> None:
    make, message, hint = CASES[case]
    with pytest.raises(CompileError) as error:
        read(
            make(),
            lambda operator, domain, version: (
                in_onnx(operator, domain, version) and "Loss" not in operator
            ),
        )
    assert (error.value.message, error.value.hint) == (message, hint)


def test_graphs_within_graphs_without_end() -> None:
    """What is parsed lies at most 33 deep, but a ModelProto may be made deeper."""
    proto = from_x(node("Relu", ["x"], ["y"]))
    inner = proto.graph
    for _ in range(60):
        inner.node.append(node("If", ["x"], ["r"]))
        inner = inner.node[-1].attribute.add(name="then_branch", type=AttributeProto.GRAPH).g
    with pytest.raises(CompileError, match="graphs lie more than 40 deep within each other"):
        read(proto)
    with pytest.raises(CompileError, match="its bytes are no ModelProto"):
        read(proto.SerializeToString())


def test_functions_that_call_themselves_within_graphs() -> None:
    inner = graph(node("F", ["v"], ["r12"], domain="own"), outputs=("r12",))
    for at in range(12, 0, -1):
        made = f"r{at - 1}"
        branches = {"then_branch": inner, "else_branch": graph(outputs=("v",))}
        inner = graph(node("If", ["v"], [made], **branches), outputs=(made,))
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("own", 1)]
    nodes = [node("If", ["v"], ["r"], then_branch=inner, else_branch=inner)]
    function = helper.make_function("own", "F", ["v"], ["r"], nodes, opsets)
    call = node("F", ["x"], ["y"], domain="own")
    with pytest.raises(CompileError, match="its function F lies 40 deep in graphs and functions"):
        read(from_x(call, domains=("own",), functions=(function,)))


def test_an_operator_of_onnx_s_own_set_that_is_not_in_it_is_unknown_whoever_knows_it() -> None:
    proto = from_x(node("Upsample", ["x", "x"], ["y"], name="n"))
    with pytest.raises(
        CompileError, match=r"Upsample \(of ONNX, opset 21\): the Upsample node 'n'"
    ):
        read(proto, lambda operator, domain, version: True)


def test_functions_that_grow_without_end_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 30 functions calls the next one twice: a billion nodes in a few hundred bytes."""
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("own", 1)]
    functions = []
    for at in range(30):
        operator, domain = ("Neg", "") if at == 29 else (f"F{at + 1}", "own")
        nodes = [
            node(operator, ["v"], ["t"], domain=domain),
            node(operator, ["t"], ["r"], domain=domain),
        ]
        functions.append(helper.make_function("own", f"F{at}", ["v"], ["r"], nodes, opsets))
    proto = from_x(
        node("F0", ["x"], ["y"], domain="own"), domains=("own",), functions=tuple(functions)
    )
    monkeypatch.setattr(resolve, "MOST_NODES", 1000)
    with pytest.raises(CompileError, match="more than 1000 nodes when its functions are inlined"):
        read(proto)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CompileError) as error:
        read(tmp_path / "nowhere.onnx")
    assert str(error.value) == (
        f"{tmp_path / 'nowhere.onnx'}: error: the model can't be read: No such file or directory"
    )


def test_the_model_s_file_is_where_an_error_of_a_node_is(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(from_x(node("Relu", ["x", "x"], ["y"], name="n")).SerializeToString())
    with pytest.raises(CompileError) as error:
        read(path)
    assert str(error.value) == f"{path}: error: Relu node 'n': it has 2 inputs, but takes 1"
