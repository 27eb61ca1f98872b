"""Indices that are data: one that is outside of its extent is an error that names the node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

import taskc as tc
from taskc.errors import CompileError

from .models import model, node, tensor

X = np.arange(12, dtype=np.float32).reshape(3, 4)
ONES = np.ones((1, 2), np.float32)

# An operator, its attributes, indices that are inside and reach all ends, some that aren't, and what follows them.
CASES: dict[str, tuple[str, dict[str, Any], Any, list[Any], list[Any]]] = {
    "rows": ("Gather", {}, [0, 2, -3], [[0, 3, 0], [0, 1, -4], [2**40, 0, 0]], []),
    "columns": ("Gather", {"axis": 1}, [[0, -4], [3, -1]], [[[0, 0], [0, 4]]], []),
    "elements": (
        "GatherElements", {"axis": 0}, [[2, -3, 0, 1]], [[[0, 3, 0, 0]], [[0, 0, 0, -4]]], [],
    ),
    "places": ("GatherND", {}, [[2, -4], [-3, 3]], [[[0, 0], [3, 0]], [[0, -5], [0, 0]]], []),
    "rows by ND": ("GatherND", {"batch_dims": 0}, [[2], [-3]], [[[0], [3]]], []),
    "scattered": ("ScatterElements", {}, [[2, -3]], [[[0, 3]], [[-4, 0]]], [ONES]),
    "added": (
        "ScatterND",
        {"reduction": "add"},
        [[2, -4], [0, 3]],
        [[[0, 0], [3, 0]], [[0, 0], [0, -5]]],
        [ONES[0]],
    ),
}  # fmt: skip


def _model(case: str, indices: Any, known: bool) -> Any:
    operator, attributes, _, _, others = CASES[case]
    names = ["x", "i", *["u"] * len(others)]
    array = np.array(indices, np.int64)
    inputs = [tensor("x", 3, 4)]
    if not known:
        inputs.append(tensor("i", *array.shape, type=TensorProto.INT64))
    inputs += [tensor("u", *other.shape) for other in others]
    constants = [numpy_helper.from_array(array, "i")] if known else []
    nodes = [node(operator, names, ["y"], name="chooser", **attributes)]
    return model(nodes, inputs, ["y"], initializer=constants)


def _feeds(case: str, indices: Any, known: bool) -> dict[str, Any]:
    given = {"x": X} if known else {"x": X, "i": np.array(indices, np.int64)}
    return {**given, **dict.fromkeys(["u"] if CASES[case][4] else [], (*CASES[case][4], None)[0])}


@pytest.mark.parametrize("case", CASES)
def test_an_index_outside_is_an_error_that_names_the_node(case: str) -> None:
    _, _, inside, outside, _ = CASES[case]
    proto = _model(case, inside, False)
    found = tc.compile(proto)
    feeds = _feeds(case, inside, False)
    (wanted,) = ReferenceEvaluator(proto).run(None, feeds)
    np.testing.assert_array_equal(found(feeds), wanted)
    for indices in outside:
        with pytest.raises(tc.CheckError, match=f"{CASES[case][0]} node 'chooser': "):
            found(_feeds(case, indices, False))
    np.testing.assert_array_equal(found(feeds), wanted)


@pytest.mark.parametrize("case", ["columns", "elements", "places"])
def test_known_indices_are_checked_before_anything_runs(case: str) -> None:
    operator, _, inside, outside, _ = CASES[case]
    proto = _model(case, inside, True)
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": X})
    np.testing.assert_array_equal(tc.compile(proto)(X), wanted)
    with pytest.raises(CompileError, match=f"{operator} node 'chooser': there is no element"):
        tc.compile(_model(case, outside[0], True))(X)


def test_a_sequence_is_not_longer_than_its_axis() -> None:
    lengths = tensor("n", 4, type=TensorProto.INT64)
    nodes = [node("ReverseSequence", ["x", "n"], ["y"], name="turned", time_axis=0, batch_axis=1)]
    found = tc.compile(model(nodes, [tensor("x", 3, 4), lengths], ["y"]))
    turned = found(X, np.array([3, 2, 1, 0]))
    assert turned[:, 0].tolist() == [8, 4, 0]
    assert turned[:, 1].tolist() == [5, 1, 9]
    with pytest.raises(tc.CheckError, match="ReverseSequence node 'turned'"):
        found(X, np.array([3, 4, 1, 0]))


# An operator, its attributes, the shapes of its inputs, and what is wrong with them.
MISFITS: list[tuple[str, dict[str, Any], list[tuple[int, ...]], str]] = [
    ("DepthToSpace", {"blocksize": 2}, [(1, 6, 2, 2)], "6 channels aren't blocks of 2 by 2"),
    ("SpaceToDepth", {"blocksize": 2}, [(1, 2, 3, 2)], "3 by 2 elements aren't blocks of 2 by 2"),
    ("Einsum", {"equation": "ij->k"}, [(2, 3)], r"its result has \['k'\], and no operand has"),
    ("Split", {"num_outputs": 4}, [(5,)], r"the parts \[2, 2, 2, -1\] aren't the 5 elements"),
    ("Pad", {"pads": [-2, 0], "mode": "edge"}, [(1,)], "leave less than nothing"),
    ("Pad", {"pads": [1, 0], "mode": "edge"}, [(0,)], "nothing that its mode 'edge' could repeat"),
    ("GatherND", {}, [(2, 3), (1, 3)], "its indices are of 3 axes behind the first 0, and x has 2"),
    ("GatherElements", {}, [(2, 3), (2, 4)], r"indices \[2, 4\] have other lines along axis 0"),
    ("ScatterElements", {}, [(2, 3), (1, 4), (1, 4)], r"indices \[1, 4\] have other lines"),
    ("Div", {}, [(2,), (2,)], "it divides integers by 0"),
]  # fmt: skip


@pytest.mark.parametrize("case", MISFITS, ids=lambda case: case[3])
def test_what_does_not_fit_is_refused(case: Any) -> None:
    operator, attributes, shapes, message = case
    names = ["x", "i", "u"][: len(shapes)]
    attributes = dict(attributes)
    pads = numpy_helper.from_array(np.array(attributes.pop("pads", [0, 0])), "pads")
    zeros = [numpy_helper.from_array(np.zeros(shape, np.int64), "i") for shape in shapes[1:2]]
    kind = TensorProto.INT64 if operator == "Div" else TensorProto.FLOAT
    proto = model(
        [node(operator, [*names, *["pads"] * (operator == "Pad")], ["y"], name="n", **attributes)],
        [tensor(name, *shape, type=kind) for name, shape in zip(names, shapes, strict=True) if name != "i"],
        ["y"],
        initializer=[pads, *zeros],
    )  # fmt: skip
    feeds = [
        np.zeros(shape, np.int64 if operator == "Div" else np.float32)
        for shape in shapes[:1] + shapes[2:]
    ]
    with pytest.raises(CompileError, match=f"{operator} node 'n': .*{message}"):
        tc.compile(proto)(*feeds)


def test_a_slice_backwards_begins_within_the_axis() -> None:
    """At the first element, where it would begin before that: ONNX says so, and Python and the reference don't."""
    known = {
        "starts": [[-100, 2], [100, -100]],
        "ends": [-(2**63)] * 2,
        "axes": [0, 1],
        "steps": [-1, -1],
    }
    for starts, wanted in zip(known.pop("starts"), (X[:1, 2::-1], X[::-1, :1]), strict=True):
        arrays = {"starts": starts, **known}
        found = tc.compile(
            model(
                [node("Slice", ["x", *arrays], ["y"])],
                [tensor("x", 3, 4)],
                ["y"],
                initializer=[
                    numpy_helper.from_array(np.array(n), name) for name, n in arrays.items()
                ],
            )
        )
        np.testing.assert_array_equal(found(X), wanted)


@pytest.mark.parametrize(
    ("mode", "pads", "wanted"),
    [
        ("wrap", [-1, 2], [2, 3, 2, 3]),
        ("reflect", [2, -1], [1, 2, 1, 2]),
        ("edge", [-2, 1], [3, 3]),
        ("constant", [-1, 1], [2, 3, 0]),
    ],
)
def test_what_negative_pads_cut_off_is_not_repeated(
    mode: str, pads: list[int], wanted: list[int]
) -> None:
    known = [numpy_helper.from_array(np.array(pads), "pads")]
    nodes = [node("Pad", ["x", "pads"], ["y"], mode=mode)]
    found = tc.compile(model(nodes, [tensor("x", 3)], ["y"], initializer=known))
    assert found(np.float32([1, 2, 3])).tolist() == wanted
