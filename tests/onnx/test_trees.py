"""Trees and linear models of `ai.onnx.ml`, against Python that walks each tree, and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import taskc as tc
from taskc import CompileError

from .forests import MODES, Forest
from .models import model, node, tensor

ML = "ai.onnx.ml"
X = np.array([[1, -2, 0], [0.5, 0, 4], [0, 0, 0], [-1, 3, -3]], np.float32)


def ran(operator: str, x: Any, outputs: int = 1, version: int = 3, **attributes: Any) -> Any:
    names = ["y", "scores"][:outputs]
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    proto = model(
        [node(operator, ["x"], names, domain=ML, **attributes)],
        [tensor("x", *[None] * x.ndim, type=kind)],
        names,
        domains=(ML,),
    )
    proto.opset_import[-1].version = version
    return tc.compile(proto)(x)


def forest(seed: int, *modes: str, trees: int = 5) -> Forest:
    return Forest(seed, trees=trees, features=4, depth=4, modes=modes or MODES)


@pytest.mark.parametrize("mode", [*MODES, "all"])
def test_every_comparison_sends_numbers_and_nan_the_right_way(mode: str) -> None:
    trees = forest(1, *(MODES if mode == "all" else (mode,)))
    for dtype in (np.float32, np.float64):
        x = trees.rows(50).astype(dtype)
        y = ran(
            "TreeEnsembleRegressor", x, n_targets=2, base_values=[1.0, -1.0], **trees.attributes(),
            **trees.weighted("target", 2),
        )  # fmt: skip
        np.testing.assert_allclose(y, trees.sums(x, 2) + np.array([1, -1]), atol=1e-6)


@pytest.mark.parametrize("fold", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_weights_of_trees_are_folded(fold: str) -> None:
    trees = forest(2, trees=19)
    x = trees.rows(7)
    weights = trees.weighted("target", 1)
    y = ran(
        "TreeEnsembleRegressor",
        x,
        n_targets=1,
        aggregate_function=fold,
        **trees.attributes(),
        **weights,
    )
    each = np.array([[leaf["weight"] for leaf in row] for row in trees.leaves(x)])
    folds = {"SUM": np.sum, "AVERAGE": np.mean, "MIN": np.min, "MAX": np.max}
    np.testing.assert_allclose(y[:, 0], folds[fold](each, axis=1), rtol=1e-6)


def test_integers_and_a_single_row() -> None:
    trees = forest(3)
    x = np.array([[1, -2, 3, 0]])
    y = ran(
        "TreeEnsembleRegressor", x, n_targets=1, **trees.attributes(), **trees.weighted("target", 1)
    )
    np.testing.assert_allclose(y, trees.sums(x, 1), rtol=1e-6)


def test_a_classifier_of_three_names_them() -> None:
    trees = forest(4)
    x = trees.rows(40)
    weights = trees.weighted("class", 3, sign=-1)
    scores = trees.sums(x, 3)
    for transform in ("NONE", "LOGISTIC", "SOFTMAX"):
        label, made = ran(
            "TreeEnsembleClassifier", x, 2, classlabels_strings=["a", "b", "c"],
            post_transform=transform, **trees.attributes(), **weights,
        )  # fmt: skip
        powers = np.exp(scores)
        wanted = {
            "NONE": scores, "LOGISTIC": 1 / (1 + 1 / powers),
            "SOFTMAX": powers / powers.sum(1, keepdims=True),
        }  # fmt: skip
        np.testing.assert_allclose(made, wanted[transform], atol=1e-6)
        assert label.tolist() == ["abc"[one] for one in scores.argmax(1)]


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_score_for_two_classes(sign: float, transform: str) -> None:
    """As ONNX Runtime takes it: a probability where no weight is negative."""
    trees = forest(5, trees=2)
    x = trees.rows(40)
    weights = trees.weighted("class", 1, sign=sign)
    label, made = ran(
        "TreeEnsembleClassifier", x, 2, classlabels_int64s=[3, 7], post_transform=transform,
        **trees.attributes(), **weights,
    )  # fmt: skip
    (score,) = trees.sums(x, 1).T
    assert label.tolist() == np.where(score > (0.5 if sign > 0 else 0), 7, 3).tolist()
    first = 1 - score if sign > 0 and transform == "NONE" else -score
    wanted = np.stack([first, score], 1)
    if transform == "LOGISTIC":
        wanted = 1 / (1 + np.exp(-wanted))
    np.testing.assert_allclose(made, wanted, atol=1e-6)


def test_linear_models() -> None:
    weights, offset = np.arange(6, dtype=np.float32).reshape(2, 3) - 2, np.float32([0.5, -1])
    given = {"coefficients": weights.reshape(-1).tolist(), "intercepts": offset.tolist()}
    scores = X @ weights.T + offset
    y = ran("LinearRegressor", X, targets=2, **given, version=1)
    np.testing.assert_allclose(y, scores, rtol=1e-6)
    label, made = ran(
        "LinearClassifier", X, 2, classlabels_strings=["no", "yes"], version=1, **given
    )
    np.testing.assert_allclose(made, scores, rtol=1e-6)
    assert label.tolist() == [["no", "yes"][one] for one in scores.argmax(1)]
    with pytest.raises(CompileError, match="it has 6 coefficients, for 3 features and 3 results"):
        ran("LinearRegressor", X, targets=3, **given, version=1)


def test_what_is_done_to_features() -> None:
    np.testing.assert_allclose(
        ran("Scaler", X, offset=[1.0, 2.0, 3.0], scale=[0.5], version=1), (X - [1, 2, 3]) * 0.5
    )
    for norm, size in (
        ("MAX", X.max(1)), ("L1", abs(X).sum(1)), ("L2", np.sqrt((X**2).sum(1))),
    ):  # fmt: skip
        wanted = X / np.where(size == 0, 1, size)[:, None]
        np.testing.assert_allclose(ran("Normalizer", X, norm=norm, version=1), wanted, rtol=1e-6)
    assert ran("Binarizer", X, threshold=0.5, version=1).tolist() == (X > 0.5).tolist()
    holes = np.where(X == 0, np.nan, X)
    filled = ran(
        "Imputer", holes, imputed_value_floats=[7.0, 8.0, 9.0], version=1,
        replaced_value_float=float("nan"),
    )  # fmt: skip
    np.testing.assert_array_equal(filled, np.where(X == 0, np.float32([7, 8, 9]), X))
    hot = ran("OneHotEncoder", np.array([5, 1, 2]), cats_int64s=[1, 5], version=1)
    assert hot.tolist() == [[0, 1], [1, 0], [0, 0]]
    hot = ran("OneHotEncoder", np.array(["b", "c"]), cats_strings=["a", "b"], version=1)
    assert hot.tolist() == [[0, 1], [0, 0]]


def test_a_forest_that_asks_for_more_features_than_there_are() -> None:
    trees = forest(6)
    with pytest.raises(CompileError, match="it asks for feature 3 of 2"):
        ran(
            "TreeEnsembleRegressor", trees.rows(3)[:, :2].copy(), n_targets=1,
            **trees.attributes(), **trees.weighted("target", 1),
        )  # fmt: skip


def test_a_path_without_an_end_is_refused() -> None:
    nodes = {
        "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
        "nodes_modes": ["BRANCH_LEQ"] * 3, "nodes_values": [0.0, 0.0, 0.0],
        "nodes_truenodeids": [1, 2, 1], "nodes_falsenodeids": [1, 2, 1],
    }  # fmt: skip
    weights = {
        "target_treeids": [0],
        "target_nodeids": [1],
        "target_ids": [0],
        "target_weights": [1.0],
    }
    with pytest.raises(CompileError, match="a path through its nodes has no end"):
        ran("TreeEnsembleRegressor", X, n_targets=1, **nodes, **weights)


def test_a_model_of_text_and_trees_in_one() -> None:
    """Labels go through the host, and scores of the classifier into a program."""
    trees = forest(7)
    x = trees.rows(6)
    proto = model(
        [
            node("TreeEnsembleClassifier", ["x"], ["label", "s"], domain=ML,
                 classlabels_strings=["a", "b", "c"], **trees.attributes(), **trees.weighted("class", 3)),
            node("StringConcat", ["label", "mark"], ["named"]),
            node("ReduceMax", ["s"], ["best"], keepdims=0),
        ],
        [tensor("x", None, 4)], ["named", "best"], domains=(ML,),
        initializer=[helper.make_tensor("mark", TensorProto.STRING, [], [b"!"])],
    )  # fmt: skip
    proto.opset_import[-1].version = 3
    named, best = tc.compile(proto)(x)
    scores = trees.sums(x, 3)
    assert named.tolist() == ["abc"[one] + "!" for one in scores.argmax(1)]
    np.testing.assert_allclose(best, scores.max(), rtol=1e-6)
