from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import taskc as tc
from taskc import CompileError
from taskc.onnx import extract, extract_model
from taskc.onnx.reader import read

from .models import model, tensor

node = helper.make_node


def chain() -> ModelProto:
    """x -> Add(w) -> a -> Relu -> b -> If, whose branches use b and other -> y; Split(x) -> left, right."""
    branches = {
        name: helper.make_graph(
            [node(operator, ["b", "other"], ["made"])], name, [], [tensor("made", 4)]
        )
        for name, operator in (("then_branch", "Sub"), ("else_branch", "Mul"))
    }
    weights = TensorProto(
        name="w", data_type=1, dims=[4], raw_data=np.ones(4, np.float32).tobytes()
    )
    return model(
        [
            node("Add", ["x", "w"], ["a"]),
            node("Relu", ["a"], ["b"]),
            node("If", ["flag"], ["y"], name="choice", **branches),
            node("Split", ["x"], ["left", "right"], num_outputs=2),
            node("Concat", ["right", "left"], ["turned"], axis=0),
        ],
        [tensor("x", 4), tensor("other", 4), tensor("flag", type=TensorProto.BOOL)],
        ["y", "turned"],
        initializer=[weights],
        value_info=[tensor("a", 4)],
    )


def test_the_part_between_tensors() -> None:
    assert str(extract(chain(), ["a"], ["b"])) == "main(a: f32[4]) -> b\n  b = Relu(a)"


def test_weights_come_along_and_may_be_inputs() -> None:
    part = extract(chain(), ["x"], ["a"])
    assert part.constants.keys() == {"w"}
    assert str(extract(chain(), ["x", "w"], ["a"])) == (
        "main(x: f32[4], w: f32[4]) -> a\n  a = Add(x, w)"
    )


def test_what_a_branch_uses_is_needed() -> None:
    part = extract(chain(), ["b", "flag", "other"], ["y"])
    assert [item.operator for item in part.nodes] == ["If"]
    with pytest.raises(CompileError) as error:
        extract(chain(), ["b"], ["y"])
    assert error.value.message == ("the outputs need what isn't among the inputs: 'other', 'flag'")
    assert error.value.hint == "add it, or tensors that are made from it"


def test_a_node_of_which_one_output_is_cut_off() -> None:
    part = extract(chain(), ["x", "left"], ["turned"])
    assert [item.outputs for item in part.nodes] == [("left/unused", "right"), ("turned",)]


def test_without_names_the_ends_are_the_model_s() -> None:
    assert extract(chain(), outputs=["turned"]).outputs == ("turned",)
    assert [value.name for value in extract(chain(), outputs=["b"]).inputs] == ["x"]
    assert extract(chain(), ["b", "x", "flag", "other"]).outputs == ("y", "turned")


def test_an_output_may_be_an_input_or_a_constant() -> None:
    part = extract(chain(), ["a"], ["a", "w"])
    assert part.outputs == ("a", "w")
    assert not part.nodes


@pytest.mark.parametrize("ends", [(["aa"], ["b"]), (["x"], ["aa"])])
def test_a_name_that_is_not_there(ends: tuple[list[str], list[str]]) -> None:
    with pytest.raises(CompileError) as error:
        extract(chain(), *ends)
    assert (error.value.message, error.value.hint) == (
        "the model has no tensor 'aa'",
        "did you mean 'a'?",
    )


def test_weights_that_are_inputs_too_are_not_asked_for() -> None:
    """As in the oldest models."""
    whole = chain()
    whole.graph.input.append(tensor("w", 4))
    for inputs in (None, ["x"]):
        part = extract(whole, inputs, ["a"])
        assert [value.name for value in part.inputs] == ["x"]
        assert part.constants.keys() == {"w"}


def test_functions_come_along() -> None:
    twice = helper.make_function(
        "own",
        "Twice",
        ["v"],
        ["r"],
        [node("Add", ["v", "v"], ["r"])],
        [helper.make_opsetid("", 21)],
    )
    whole = model(
        [node("Relu", ["x"], ["a"]), node("Twice", ["a"], ["b"], domain="own")],
        [tensor("x", 4)],
        ["b"],
        domains=("own",),
        functions=(twice,),
    )
    assert str(extract(whole, ["a"], ["b"])) == "main(a: ?) -> b\n  b = Add(a, a)"


def test_a_part_is_saved_with_what_lies_in_other_files(tmp_path: Path) -> None:
    whole = chain()
    (weights,) = whole.graph.initializer
    (tmp_path / "weights").write_bytes(weights.raw_data)
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="weights")
    (tmp_path / "model.onnx").write_bytes(whole.SerializeToString())
    part = extract_model(tmp_path / "model.onnx", ["x"], ["b"])
    assert read(part.SerializeToString()).constants["w"].tolist() == [1, 1, 1, 1]


def test_what_is_cut_out_is_compiled_with_operators_of_users_and_bodies_of_onnx() -> None:
    @tc.onnx.operator("Doubled", domain="own.extract")
    def doubled(call: tc.onnx.Call) -> Any:
        (x,) = call.inputs
        return tc.compute(x.shape, lambda i: x[i] * 2)

    proto = model(
        [
            node("Neg", ["x"], ["a"]),
            node("Doubled", ["a"], ["b"], domain="own.extract"),
            node("CenterCropPad", ["b", "shape"], ["c"], axes=[0]),
        ],
        [tensor("x", 4)],
        ["c"],
        domains=("own.extract",),
        initializer=[numpy_helper.from_array(np.array([2]), "shape")],
    )
    found = tc.compile(extract(proto, ["a"], ["c"]))
    assert found(np.arange(4, dtype=np.float32)).tolist() == [2, 4]
