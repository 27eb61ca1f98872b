from __future__ import annotations

import pytest
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
)

from taskc import CompileError
from taskc.onnx.reader import read

from .models import OPSET, model, tensor

node = helper.make_node


def test_a_model_is_read_in_the_order_in_which_it_runs() -> None:
    found = read(
        model(
            [
                node("Gemm", ["c", "w"], ["y"], name="last"),
                node("Relu", ["x"], ["c"]),
                node("Constant", [], ["w"], value_floats=[1.0, 2.0]),
            ],
            [tensor("x", "n", -1, None, 3)],
            ["y"],
        )
    )
    assert str(found) == (
        "main(x: f32[n, ?, ?, 3]) -> y\n"
        "  w = float32 [1.0, 2.0]\n"
        "  c = Relu(x)\n"
        "  y = Gemm(c, w, alpha=1.0, beta=1.0, transA=0, transB=0)"
    )


def test_a_known_operator_stays_and_another_is_expanded() -> None:
    mish = model([node("Mish", ["x"], ["y"])], [tensor("x", 3)], ["y"])
    assert [item.operator for item in read(mish).nodes] == ["Mish"]
    expanded = read(mish, lambda operator, domain, version: operator != "Mish")
    assert [item.operator for item in expanded.nodes] == ["Softplus", "Tanh", "Mul"]
    assert expanded.nodes[-1].outputs == ("y",)


def function(
    name: str,
    inputs: list[str],
    outputs: list[str],
    nodes: list[NodeProto],
    *,
    attributes: tuple[str, ...] = (),
    defaults: tuple[AttributeProto, ...] = (),
    opset: int = OPSET,
) -> FunctionProto:
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_function(
        "own", name, inputs, outputs, nodes, opsets, [*attributes], [*defaults]
    )


def refers(item: NodeProto, attribute: str, to: str, type: int) -> NodeProto:
    """The node with an attribute that the call of its function has."""
    item.attribute.add(name=attribute, ref_attr_name=to, type=type)
    return item


def of_functions(nodes: list[NodeProto], *functions: FunctionProto) -> str:
    """The text of a graph from x to y, of nodes that call functions."""
    inputs = [tensor("x", 4)]
    found = read(model(nodes, inputs, ["y"], domains=("own",), functions=functions))
    return "\n".join(str(found).splitlines()[1:])


def test_functions_are_inlined_with_names_of_their_own() -> None:
    inner = function("Inner", ["v"], ["r"], [node("Neg", ["v"], ["t"]), node("Abs", ["t"], ["r"])])
    calls = [node("Inner", ["v"], ["t"], domain="own"), node("Inner", ["t"], ["r"], domain="own")]
    outer = function("Outer", ["v"], ["r"], calls)
    nodes = [
        node("Outer", ["x"], ["t"], domain="own"),
        node("Outer", ["t"], ["y"], domain="own", name="b"),
    ]
    assert of_functions(nodes, inner, outer) == (
        "  t/t/t = Neg(x)\n"
        "  t/t = Abs(t/t/t)\n"
        "  t/t_2 = Neg(t/t)\n"
        "  t = Abs(t/t_2)\n"
        "  b/t/t = Neg(t)\n"
        "  b/t = Abs(b/t/t)\n"
        "  y/t = Neg(b/t)\n"
        "  y = Abs(y/t)"
    )


def test_attributes_of_a_call_reach_the_body() -> None:
    elu = refers(node("Elu", ["v"], ["e"]), "alpha", "scale", AttributeProto.FLOAT)
    softmax = refers(node("Softmax", ["e"], ["r"]), "axis", "axis", AttributeProto.INT)
    body = function(
        "F",
        ["v"],
        ["r"],
        [elu, softmax],
        attributes=("axis",),
        defaults=(helper.make_attribute("scale", 0.5),),
    )
    assert of_functions([node("F", ["x"], ["y"], domain="own", axis=0)], body) == (
        "  y/e = Elu(x, alpha=0.5)\n  y = Softmax(y/e, axis=0)"
    )
    # What the call leaves out, the body's node leaves out: it has the operator's own default.
    assert of_functions([node("F", ["x"], ["y"], domain="own", scale=2.0)], body) == (
        "  y/e = Elu(x, alpha=2.0)\n  y = Softmax(y/e, axis=-1)"
    )


def test_nodes_of_a_function_are_named_by_its_call() -> None:
    inner = function(
        "F", ["v"], ["r"], [node("Neg", ["v"], ["t"], name="n"), node("Abs", ["t"], ["r"])]
    )
    nodes = [node("F", ["x"], ["y"], domain="own", name="call")]
    found = read(model(nodes, [tensor("x", 4)], ["y"], domains=("own",), functions=(inner,)))
    assert [item.name for item in found.nodes] == ["call/n", ""]
    assert [item.title for item in found.nodes] == ["Neg node 'call/n'", "Abs node that makes 'y'"]


def test_inputs_and_outputs_that_a_call_leaves_out() -> None:
    body = function(
        "F",
        ["v", "low", "high"],
        ["r", "s"],
        [node("Clip", ["v", "low", "high"], ["r"]), node("Neg", ["r"], ["s"])],
    )
    nodes = [node("F", ["x", "", "x"], ["", "y"], domain="own")]
    assert of_functions(nodes, body) == "  y/r = Clip(x, -, x)\n  y = Neg(y/r)"


def test_outputs_of_a_function_that_are_its_inputs_or_the_same() -> None:
    body = function("F", ["v"], ["v", "r", "r"], [node("Neg", ["v"], ["r"])])
    nodes = [node("F", ["x"], ["a", "b", "c"], domain="own"), node("Sum", ["a", "b", "c"], ["y"])]
    assert of_functions(nodes, body) == (
        "  b = Neg(x)\n  a = Identity(x)\n  c = Identity(b)\n  y = Sum(a, b, c)"
    )


def test_overloads_and_operator_sets_of_functions() -> None:
    old = function("F", ["v"], ["r"], [node("Neg", ["v"], ["r"])], opset=13)
    new = function("F", ["v"], ["r"], [node("Abs", ["v"], ["r"])])
    new.overload = "other"
    nodes = [
        node("F", ["x"], ["t"], domain="own"),
        node("F", ["t"], ["y"], domain="own", overload="other"),
    ]
    found = read(model(nodes, [tensor("x", 4)], ["y"], domains=("own",), functions=(old, new)))
    assert [(item.operator, item.version) for item in found.nodes] == [("Neg", 13), ("Abs", OPSET)]


def test_constants_of_functions() -> None:
    constant = refers(node("Constant", [], ["c"]), "value_int", "n", AttributeProto.INT)
    body = function(
        "F", ["v"], ["r"], [constant, node("Pow", ["v", "c"], ["r"])], attributes=("n",)
    )
    nodes = [node("F", ["x"], ["t"], domain="own", n=2), node("F", ["t"], ["y"], domain="own", n=3)]
    assert of_functions(nodes, body) == (
        "  t/c = int64 2\n  y/c = int64 3\n  t = Pow(x, t/c)\n  y = Pow(t, y/c)"
    )


def test_bodies_that_depend_on_their_node() -> None:
    """NegativeLogLikelihoodLoss has one for each reduction, with and without weights."""

    def operators(reduction: str) -> set[str]:
        loss = node("NegativeLogLikelihoodLoss", ["x", "t"], ["y"], reduction=reduction)
        inputs = [tensor("x", 3, 5), tensor("t", 3, type=TensorProto.INT64)]
        found = read(model([loss], inputs, ["y"]), lambda name, domain, version: "Loss" not in name)
        return {item.operator for item in found.nodes}

    assert "ReduceMean" in operators("mean")
    assert "ReduceMean" not in operators("none")


def test_element_types_that_follow_from_others_are_known_where_a_body_depends_on_them() -> None:
    """The body of SoftmaxCrossEntropyLoss has a NegativeLogLikelihoodLoss of what its own nodes make."""
    loss = node("SoftmaxCrossEntropyLoss", ["x", "labels"], ["y"])
    inputs = [tensor("x", 2, 3), tensor("labels", 2, type=TensorProto.INT64)]
    found = read(
        model([loss], inputs, ["y"]), lambda operator, domain, version: "Loss" not in operator
    )
    assert "LogSoftmax" in {item.operator for item in found.nodes}
    assert found.nodes[-1].outputs == ("y",)


def test_a_body_that_would_leave_out_a_graph_is_not_used() -> None:
    """ONNX writes the body of FlexAttention with the graph inside of it, but is only told of plain attributes."""
    scores = body("scores", ["s"], [node("Neg", ["s"], ["r"])], ["r"])
    attention = node(
        "FlexAttention", ["x", "x", "x"], ["y"], domain="ai.onnx.preview", score_mod=scores
    )
    flex = model(
        [attention], [tensor("x", 1, 2, 3, 4)], ["y"], domains=("ai.onnx.preview",), opset=26
    )
    with pytest.raises(CompileError, match=r"doesn't know:\n  FlexAttention \(of ai.onnx.preview"):
        read(flex, lambda operator, domain, version: not domain)


def test_what_one_branch_says_of_its_tensors_is_not_said_of_another_s() -> None:
    loss = node("NegativeLogLikelihoodLoss", ["t", "labels"], ["r"])
    cast = node("Cast", ["x"], ["t"], to=TensorProto.FLOAT)
    said = body("said", [], [cast, loss], ["r"])
    said.value_info.append(tensor("t", 2, 3))
    unsaid = body("unsaid", [], [cast, loss], ["r"])
    choice = node(
        "If", ["flag"], ["y"], then_branch=unsaid, else_branch=said
    )  # which come by their names
    inputs = [tensor("x", 2, 3), tensor("labels", 2, type=TensorProto.INT64)]
    inputs.append(tensor("flag", type=TensorProto.BOOL))
    with pytest.raises(CompileError, match="depends on the types of its inputs"):
        read(
            model([choice], inputs, ["y"]), lambda operator, domain, version: "Loss" not in operator
        )


def body(name: str, inputs: list[str], nodes: list[NodeProto], outputs: list[str]) -> GraphProto:
    values = [ValueInfoProto(name=item) for item in inputs]
    return helper.make_graph(nodes, name, values, [ValueInfoProto(name=item) for item in outputs])


def test_graphs_in_attributes_close_over_names_around_them() -> None:
    then = body("then", [], [node("Neg", ["late"], ["made"])], ["made"])
    inner = body("inner", [], [node("Add", ["x", "made"], ["sum"])], ["sum"])
    other = body(
        "other",
        [],
        [
            node("Abs", ["x"], ["made"]),
            node("If", ["flag"], ["deep"], then_branch=inner, else_branch=inner),
        ],
        ["deep"],
    )
    choice = node("If", ["flag"], ["y"], then_branch=then, else_branch=other)
    inputs = [tensor("x", 4), tensor("flag", type=TensorProto.BOOL)]
    found = read(model([choice, node("Relu", ["x"], ["late"])], inputs, ["y"]))
    assert [item.operator for item in found.nodes] == ["Relu", "If"]
    assert {*found.nodes[1].reads} == {"flag", "late", "x"}
    assert str(found.nodes[1].attributes["else_branch"]) == (
        "other() -> deep\n"
        "  made = Abs(x)\n"
        "  deep = If(flag, else_branch=inner, then_branch=inner)\n"
        "    inner() -> sum\n"
        "      sum = Add(x, made)\n"
        "    inner() -> sum\n"
        "      sum = Add(x, made)"
    )


def test_an_input_of_a_graph_that_hides_a_name_gets_another() -> None:
    loop = body("loop", ["i", "keep", "x"], [node("Neg", ["x"], ["next"])], ["keep", "next"])
    call = node("Loop", ["n", "", "x"], ["y"], body=loop)
    found = read(model([call], [tensor("x", 4), tensor("n", type=TensorProto.INT64)], ["y"]))
    assert str(found.nodes[0].attributes["body"]) == (
        "loop(i: ?, keep: ?, x_2: ?) -> keep, next\n  next = Neg(x_2)"
    )


def test_graphs_in_functions() -> None:
    """A body's graph sees the body's names, and one that the call gives sees the names around the call."""
    own = body("own", [], [node("Neg", ["t"], ["u"])], ["u"])
    choice = node("If", ["v"], ["r"], then_branch=own)
    refers(choice, "else_branch", "other", AttributeProto.GRAPH)
    made = function("F", ["v"], ["r"], [node("Not", ["v"], ["t"]), choice], attributes=("other",))
    given = body("given", [], [node("Abs", ["t"], ["u"])], ["u"])
    nodes = [node("Exp", ["x"], ["t"]), node("F", ["x"], ["y"], domain="own", other=given)]
    assert of_functions(nodes, made) == (
        "  t = Exp(x)\n"
        "  y/t = Not(x)\n"
        "  y = If(x, else_branch=given, then_branch=own)\n"
        "    given() -> u\n"
        "      u = Abs(t)\n"
        "    own() -> y/u\n"
        "      y/u = Neg(y/t)"
    )


def test_names_in_a_function_s_graphs_hide_none_around_the_call() -> None:
    """The loop's x is its own, and its v is the x of the call."""
    loop = body("loop", ["i", "go", "x"], [node("Add", ["x", "v"], ["next"])], ["go", "next"])
    made = function("F", ["v", "n"], ["r"], [node("Loop", ["n", "", "v"], ["r"], body=loop)])
    inputs = [tensor("x", 4), tensor("n", type=TensorProto.INT64)]
    call = node("F", ["x", "n"], ["y"], domain="own")
    (found,) = read(model([call], inputs, ["y"], domains=("own",), functions=(made,))).nodes
    assert str(found.attributes["body"]) == (
        "loop(y/i: ?, y/go: ?, y/x: ?) -> y/go, y/next\n  y/next = Add(y/x, x)"
    )


def test_attributes_of_a_call_reach_the_graphs_of_the_body() -> None:
    branch = body(
        "b", [], [refers(node("Elu", ["v"], ["e"]), "alpha", "a", AttributeProto.FLOAT)], ["e"]
    )
    choice = node("If", ["v"], ["r"], then_branch=branch, else_branch=branch)
    made = function("F", ["v"], ["r"], [choice], attributes=("a",))
    text = of_functions([node("F", ["x"], ["y"], domain="own", a=0.25)], made)
    assert text.count("Elu(x, alpha=0.25)") == 2


def test_nodes_keep_their_order_where_they_can() -> None:
    """Only the first has to wait, for the fourth."""
    nodes = [node("Neg", ["d"], ["a"]), *(node("Abs", ["x"], [name]) for name in "bcdef")]
    found = read(model([*nodes, node("Sum", [*"abcdef"], ["y"])], [tensor("x", 4)], ["y"]))
    assert [item.outputs[0] for item in found.nodes] == [*"bcdaef", "y"]


def test_a_branch_may_give_what_is_around_it() -> None:
    branch = body("branch", [], [], ["t"])
    choice = node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch)
    inputs = [tensor("x", 4), tensor("flag", type=TensorProto.BOOL)]
    found = read(model([choice, node("Abs", ["x"], ["t"])], inputs, ["y"]))
    assert [item.operator for item in found.nodes] == ["Abs", "If"]
    assert {*found.nodes[1].reads} == {"flag", "t"}


def test_types_around_a_graph_are_known_in_it() -> None:
    loss = body("loss", [], [node("NegativeLogLikelihoodLoss", ["x", "labels"], ["r"])], ["r"])
    choice = node("If", ["flag"], ["y"], then_branch=loss, else_branch=loss)
    inputs = [tensor("x", 2, 3), tensor("labels", 2, type=TensorProto.INT64)]
    inputs.append(tensor("flag", type=TensorProto.BOOL))
    (found,) = read(
        model([choice], inputs, ["y"]), lambda operator, domain, version: "Loss" not in operator
    ).nodes
    assert all(len(graph.nodes) > 1 for graph in found.graphs)


def test_bodies_are_of_the_model_s_operator_set_if_they_can_be() -> None:
    """MeanVarianceNormalization has bodies by opset 13 and 18; that of FlexAttention doesn't say an opset."""

    def versions(operator: str, count: int, domain: str, opset: int) -> set[int]:
        inputs = ["x"] * count
        proto = model(
            [node(operator, inputs, ["y"], domain=domain)],
            [tensor("x", 1, 2, 3, 4)],
            ["y"],
            domains=("ai.onnx.preview",),
            opset=opset,
        )
        found = read(proto, lambda name, domain, version: name != operator)
        return {item.version for item in found.nodes}

    assert versions("MeanVarianceNormalization", 1, "", 13) == {13}
    assert versions("MeanVarianceNormalization", 1, "", 21) == {18}
    assert versions("FlexAttention", 3, "ai.onnx.preview", 25) == {25}


def test_inputs_that_have_initializers_are_constants() -> None:
    weights = TensorProto(name="w", data_type=1, dims=[1], float_data=[2.0])
    proto = model(
        [node("Add", ["x", "w"], ["y"])],
        [tensor("x", 4), tensor("w", 1)],
        ["y"],
        initializer=[weights],
    )
    for version in (3, 10):
        proto.ir_version = version
        found = read(proto)
        assert [value.name for value in found.inputs] == ["x"]
        assert found.constants["w"].tolist() == [2.0]


def test_constants_of_each_kind() -> None:
    nodes = [
        node("Constant", [], ["a"], value_float=0.1),
        node("Constant", [], ["b"], value_floats=[0.5, 2.0]),
        node("Constant", [], ["c"], value_int=-3),
        node("Constant", [], ["d"], value_ints=[2**40]),
    ]
    found = read(model(nodes, [], ["a", "b", "c", "d"]))
    assert str(found) == (
        "main() -> a, b, c, d\n"
        "  a = float32 0.10000000149011612\n"
        "  b = float32 [0.5, 2.0]\n"
        "  c = int64 -3\n"
        "  d = int64 [1099511627776]"
    )
    assert not any(array.flags.writeable for array in found.constants.values())


def test_what_the_model_says_of_its_tensors() -> None:
    said = [tensor("t", "n", None), helper.make_tensor_sequence_value_info("other", 1, None)]
    proto = model(
        [node("Relu", ["x"], ["t"]), node("Relu", ["t"], ["y"])],
        [tensor("x", "n", 0, -1)],
        ["y"],
        value_info=said,
    )
    values = read(proto).values
    assert [str(value) for value in values.values()] == ["t: f32[n, ?]", "y: ?", "x: f32[n, 0, ?]"]


def test_operator_sets_that_no_node_is_of() -> None:
    proto = model(
        [node("Relu", ["x"], ["y"], domain="ai.onnx")],
        [tensor("x", 4)],
        ["y"],
        domains=("Paddle", "ai.onnx.ml"),
    )
    (found,) = read(proto).nodes
    assert (found.domain, found.version) == ("", OPSET)


def test_operators_of_older_sets_that_are_still_the_same() -> None:
    proto = model(
        [node("Not", ["x"], ["t"]), node("Not", ["t"], ["y"])], [tensor("x", 4)], ["y"], opset=1
    )
    assert [item.version for item in read(proto).nodes] == [7, 7]


def test_custom_operators_stay_as_they_are() -> None:
    proto = model(
        [node("Mine", ["x"], ["y", ""], domain="own", a=b"\xff", b="text")],
        [tensor("x", 4)],
        ["y"],
        domains=("own",),
    )
    (found,) = read(
        proto, lambda operator, domain, version: (operator, domain) == ("Mine", "own")
    ).nodes
    assert (found.operator, found.version, found.outputs) == ("Mine", 1, ("y", ""))
    assert found.attributes == {"a": b"\xff", "b": "text"}


def test_notes_of_who_wrote_the_model_are_no_attributes_of_an_operator() -> None:
    found = read(model([node("Relu", ["x"], ["y"], __note="a")], [tensor("x", 4)], ["y"]))
    assert found.nodes[0].operator == "Relu"


def test_attributes_without_a_type_and_with_nothing_written() -> None:
    """The oldest models give no types, and some writers leave out zeros."""
    proto = model([node("Softmax", ["x"], ["y"])], [tensor("x", 4)], ["y"], opset=11)
    attribute = proto.graph.node[0].attribute.add(name="axis", i=2)
    assert read(proto).nodes[0].attributes == {"axis": 2}
    attribute.ClearField("i")
    attribute.type = AttributeProto.INT
    assert read(proto).nodes[0].attributes == {"axis": 0}
