"""Operators whose result has as many elements as data says, and what follows them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import taskc as tc

from .models import model, node, tensor

Array = np.ndarray[Any, Any]


def constant(name: str, value: Any) -> TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)


@pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.int8])
def test_places_of_all_that_is_not_zero(dtype: Any) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    found = tc.compile(
        model([node("NonZero", ["x"], ["y"])], [tensor("x", None, None, type=kind)], ["y"])
    )
    random = np.random.default_rng(0)
    for shape in ((30, 41), (1, 1), (0, 3), (5, 67)):
        for share in (0.0, 0.3, 1.0):
            x = (random.random(shape) < share).astype(dtype)
            made = found(x)
            assert made.dtype == np.int64
            np.testing.assert_array_equal(made, np.array(np.nonzero(x)))


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_elements_that_are_flagged(axis: int | None) -> None:
    attributes = {} if axis is None else {"axis": axis}
    flags = tensor("c", None, type=TensorProto.BOOL)
    found = tc.compile(
        model(
            [node("Compress", ["x", "c"], ["y"], **attributes)],
            [tensor("x", None, None), flags],
            ["y"],
        )
    )
    random = np.random.default_rng(1)
    x = random.standard_normal((20, 30)).astype(np.float32)
    extent = x.size if axis is None else x.shape[axis]
    for count in (extent, extent // 2, 0):
        c = random.random(count) < 0.4
        np.testing.assert_array_equal(found(x, c), np.compress(c, x, axis))


def suppressed(
    boxes: Array, scores: Array, most: int, limit: float, least: float
) -> list[list[int]]:
    """By the definition: one box after another, best first."""
    low, high = (
        np.minimum(boxes[..., :2], boxes[..., 2:]),
        np.maximum(boxes[..., :2], boxes[..., 2:]),
    )
    made = []
    for image, kind in np.ndindex(scores.shape[:2]):
        taken: list[int] = []
        for n in np.argsort(-scores[image, kind], kind="stable"):
            if scores[image, kind, n] > least and len(taken) < most:
                sides = np.minimum(high[image, n], high[image, taken]) - np.maximum(
                    low[image, n], low[image, taken]
                )
                common = np.prod(np.maximum(sides, 0), axis=-1)
                own, others = (np.prod(high[image, k] - low[image, k], axis=-1) for k in (n, taken))
                if not (common / (own + others - common) > limit).any():
                    taken.append(int(n))
        made += [[image, kind, n] for n in taken]
    return made


@pytest.mark.parametrize("is_centered", [0, 1])
def test_boxes_that_overlap_better_ones_go(is_centered: int) -> None:
    random, bounds = np.random.default_rng(2), ["most", "limit", "least"]
    found = tc.compile(
        model(
            [node("NonMaxSuppression", ["boxes", "scores", *bounds], ["y"], center_point_box=is_centered)],
            [
                tensor("boxes", None, None, 4),
                tensor("scores", None, None, None),
                tensor("most", None, type=TensorProto.INT64),
                tensor("limit", None),
                tensor("least", None),
            ],
            ["y"],
        )
    )  # fmt: skip
    for images, kinds, count, most in (
        (2, 3, 40, 5),
        (2, 3, 40, 2**60),
        (1, 1, 1, 1),
        (2, 3, 40, 0),
    ):
        corners = random.random((images, count, 4)).astype(np.float32)
        scores = np.round(random.random((images, kinds, count)), 1).astype(
            np.float32
        )  # many are equal
        low, high = (
            np.minimum(corners[..., :2], corners[..., 2:]),
            np.maximum(corners[..., :2], corners[..., 2:]),
        )
        boxes = np.concatenate([(low + high) / 2, high - low], -1) if is_centered else corners
        for limit, least in ((0.3, 0.25), (0.0, 0.0), (1.0, 0.95)):
            thresholds = np.float32([limit]), np.float32([least])
            made = found(boxes, scores, np.array([most]), *thresholds)
            wanted = suppressed(corners, scores, most, limit, least)
            np.testing.assert_array_equal(made, np.array(wanted, np.int64).reshape(-1, 3))


def test_all_boxes_are_taken_into_account_where_nothing_bounds_them() -> None:
    inputs = [tensor("boxes", 1, 2, 4), tensor("scores", 1, 1, 2)]
    many = constant("most", [9])
    nodes = [node("NonMaxSuppression", ["boxes", "scores", "most"], ["y"])]
    found = tc.compile(model(nodes, inputs, ["y"], initializer=[many]))
    boxes = np.float32([[[0, 0, 1, 1], [2, 2, 3, 3]]])
    assert found(boxes, np.float32([[[-1, -0.5]]])).tolist() == [[0, 0, 1], [0, 0, 0]]
    nodes = [node("NonMaxSuppression", ["boxes", "scores"], ["y"])]
    assert tc.compile(model(nodes, inputs, ["y"]))(boxes, np.float32([[[1, 2]]])).shape == (0, 3)


def test_what_is_selected_is_computed_with() -> None:
    """The graph is cut behind what says how many there are; what both parts need is computed once."""
    found = tc.compile(
        model(
            [
                node("Relu", ["x"], ["r"]),
                node("NonZero", ["r"], ["n"]),
                node("Transpose", ["n"], ["t"]),
                node("GatherND", ["r", "t"], ["g"]),
                node("Compress", ["g", "c"], ["k"]),
                node("Mul", ["k", "k"], ["m"]),
            ],
            [tensor("x", None, None), tensor("c", None, type=TensorProto.BOOL)],
            ["m", "r", "n", "x"],
        )
    )
    random = np.random.default_rng(3)
    for rows in (40, 7, 0):
        x = random.standard_normal((rows, 30)).astype(np.float32)
        c = random.random((x > 0).sum()) < 0.5
        m, r, n, same = found(x, c)
        np.testing.assert_array_equal(r, np.maximum(x, 0))
        np.testing.assert_array_equal(n, np.array(np.nonzero(r)))
        np.testing.assert_array_equal(m, x[x > 0][c] ** 2)
        np.testing.assert_array_equal(same, x)


def test_elements_that_were_computed_may_say_what_is_compiled() -> None:
    found = tc.compile(
        model(
            [
                node("ReduceMax", ["x"], ["peak"], keepdims=0),
                node("Cast", ["peak"], ["count"], to=TensorProto.INT64),
                node("Reshape", ["count", "one"], ["shape"]),
                node("Expand", ["peak", "shape"], ["y"]),
                node("Range", ["zero", "count", "step"], ["z"]),
            ],
            [tensor("x", None)],
            ["y", "z"],
            initializer=[constant("one", [1]), constant("zero", 0), constant("step", 1)],
        )
    )
    for count in (3, 5, 3):
        y, z = found(np.linspace(0, count, 1000, dtype=np.float32))
        assert y.tolist() == [count] * count
        assert z.tolist() == [*range(count)]


def test_selections_of_constants_are_constants() -> None:
    boxes, scores = np.float32([[[0, 0, 1, 1], [0, 0, 1, 0.9]]]), np.float32([[[0.5, 0.6]]])
    found = tc.compile(
        model(
            [node("NonMaxSuppression", ["b", "s", "most"], ["y"]), node("Add", ["y", "x"], ["z"])],
            [tensor("x", 3, type=TensorProto.INT64)],
            ["z"],
            initializer=[constant("b", boxes), constant("s", scores), constant("most", [2])],
        )
    )
    assert found(np.array([1, 1, 1])).tolist() == [[1, 1, 2]]


def test_what_a_loop_selects_is_known_at_each_turn() -> None:
    flag, number = tensor("keep", type=TensorProto.BOOL), tensor("i", type=TensorProto.INT64)
    body = helper.make_graph(
        [
            node("Identity", ["keep"], ["go"]),
            node("NonZero", ["s"], ["n"]),
            node("Shape", ["n"], ["h"]),
            node("ConstantOfShape", ["h"], ["next"], name="late"),
        ],
        "body", [number, flag, tensor("s", None, None)],
        [tensor("go", type=TensorProto.BOOL), tensor("next", None, None)],
    )  # fmt: skip
    nodes = [node("Loop", ["times", "", "x"], ["y"], body=body)]
    found = tc.compile(
        model(nodes, [tensor("x", None, None)], ["y"], initializer=[constant("times", 2)])
    )
    assert found(np.eye(30, dtype=np.float32)).shape == (2, 0)


def test_branches_compute_with_what_is_selected() -> None:
    def branch(operator: str) -> Any:
        return helper.make_graph(
            [node(operator, ["n"], ["b"])], "branch", [], [tensor("b", None, None)]
        )

    found = tc.compile(
        model(
            [
                node("NonZero", ["x"], ["n"]),
                node("If", ["flag"], ["y"], then_branch=branch("Neg"), else_branch=branch("Abs")),
            ],
            [tensor("x", None, None), tensor("flag", type=TensorProto.BOOL)],
            ["y"],
        )
    )
    x = np.random.default_rng(4).integers(0, 2, (20, 30)).astype(np.float32)
    for flag in (True, False):
        wanted = np.array(np.nonzero(x))
        np.testing.assert_array_equal(found(x, np.array(flag)), -wanted if flag else wanted)
