from __future__ import annotations

from onnx import helper

from taskc.onnx.reader import read

from .models import model, tensor

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
