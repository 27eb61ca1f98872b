"""Ensembles of decision trees, of ONNX's operators of classical machine learning.

All comparisons become one: whether a feature is at most a limit, which no node shares.

    x < v     x <= the number before v             x > v, x >= v    the opposite, with the children exchanged
    x == v    x <= v, and not x <= the number before v: two nodes   x in a set    one such pair for each element

A kernel finds each row's leaf in each tree. The leaves' weights are gathered and summed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from taskc import i64
from taskc.dataclass import dataclass
from taskc.kernels.indices import inside
from taskc.kernels.trees import tree_leaves
from taskc.operators.call import Call, Made, operator
from taskc.operators.linear_models import (
    ML,
    NEGATIVE,
    ONE_MINUS,
    classified,
    numbers,
    rows_of_features,
    transformed,
)
from taskc.operators.operands import kernel_of
from taskc.operators.reductions import folded
from taskc.operators.tensors import computed, handle_of
from taskc.programs.tracing import TensorHandle

_Array = np.ndarray[Any, Any]
_LEQ, _LT, _GTE, _GT, _EQ, _NEQ, _MEMBER, _LEAF = range(8)
_MODES = [
    "BRANCH_LEQ",
    "BRANCH_LT",
    "BRANCH_GTE",
    "BRANCH_GT",
    "BRANCH_EQ",
    "BRANCH_NEQ",
    "",
    "LEAF",
]


@dataclass(slots=True)
class _Forest:
    """Nodes as the model has them; a leaf's children are itself.

    sets     the sets of the nodes that compare with one, in their order
    weights  of each node for each result; those of leaves count
    """

    features: _Array
    modes: _Array
    limits: _Array
    yes: _Array
    no: _Array
    takes_nan: _Array
    roots: _Array
    weights: _Array
    sets: list[list[float]]


def _results(call: Call, forest: _Forest, fold: str = "sum") -> TensorHandle:
    """The fold of the leaves' weights for each row and each result."""
    x = rows_of_features(call)
    count = len(forest.modes)
    limits = _compared(forest, x.dtype.numpy)
    keys = 2 * forest.features + forest.takes_nan
    if forest.features.max(initial=0) >= call.number(x.shape[1], "the number of its features"):
        raise call.node.error(f"it asks for feature {forest.features.max()} of {x.shape[1]}")
    children = np.stack([forest.yes, forest.no], 1)
    depth, reached = 0, forest.roots
    while not (forest.yes[reached] == reached).all():
        reached = np.unique(children[reached])
        depth += 1
        if depth > len(keys):
            raise call.node.error("a path through its nodes has no end")
    kernel = kernel_of(
        tree_leaves, *x.shape, len(forest.roots), len(keys), depth, dtype=x.dtype
    )  # fmt: skip
    tables = [keys.astype(np.int32), limits, children.reshape(-1).astype(np.int32)]
    leaves = kernel(x, *map(handle_of, [*tables, forest.roots.astype(np.int32)]))
    weights = handle_of(forest.weights)
    shape = x.shape[0], forest.weights.shape[1], len(forest.roots)
    terms = computed(shape, lambda i, j, t: weights[inside(leaves[i, t].to(i64), count), j])
    return folded(fold, terms, (2,), False)


def _compared(forest: _Forest, dtype: np.dtype[Any]) -> _Array:
    """The limits, once all nodes ask whether a feature is at most its limit; nodes may be added."""
    chains = iter(forest.sets)
    for node in np.flatnonzero(forest.modes == _MEMBER).tolist():
        first, *more = next(chains)
        forest.limits[node] = first
        end, last = forest.no[node], node
        for element in more:
            new = _added(forest, node, element, forest.yes[node], end)
            forest.no[last], last = new, new
    is_equal = np.isin(forest.modes, (_EQ, _NEQ, _MEMBER))
    is_opposite = np.isin(forest.modes, (_GT, _GTE, _NEQ))
    forest.yes, forest.no = (
        np.where(is_opposite, forest.no, forest.yes),
        np.where(is_opposite, forest.yes, forest.no),
    )
    # NaN isn't equal to anything, so it goes on where a number isn't equal.
    forest.takes_nan = (forest.takes_nan ^ is_opposite) & (forest.modes != _NEQ)
    limits = forest.limits.astype(dtype)
    below = np.nextafter(limits, dtype.type(-np.inf))
    forest.limits = np.where(np.isin(forest.modes, (_LT, _GTE)), below, limits)
    for node in np.flatnonzero(is_equal).tolist():
        forest.yes[node] = _added(forest, node, below[node], forest.no[node], forest.yes[node])
        forest.takes_nan[-1] = False
    is_leaf = forest.modes == _LEAF
    itself = np.arange(len(is_leaf))
    forest.yes, forest.no = (
        np.where(is_leaf, itself, forest.yes),
        np.where(is_leaf, itself, forest.no),
    )
    return forest.limits.astype(dtype)


def _added(forest: _Forest, like: int, limit: float, yes: int, no: int) -> int:
    """A new node that compares the feature of another one."""
    number = len(forest.modes)
    for name, value in (
        ("features", forest.features[like]), ("modes", forest.modes[like]), ("limits", limit),
        ("yes", yes), ("no", no), ("takes_nan", forest.takes_nan[like]),
    ):  # fmt: skip
        setattr(forest, name, np.append(getattr(forest, name), value))
    return number


def _classic(call: Call, results: str, count: int) -> _Forest:
    """The forest of the operators that name nodes by a tree's number and a node's."""
    trees, nodes = call.attribute("nodes_treeids"), call.attribute("nodes_nodeids")
    place = {at: number for number, at in enumerate(zip(trees, nodes, strict=True))}
    modes = np.array([_MODES.index(mode) for mode in call.attribute("nodes_modes")])
    itself = np.arange(len(modes))

    def linked(name: str) -> _Array:
        given = zip(trees, call.attribute(name), itself, strict=True)
        is_leaf = modes == _LEAF
        return np.array([own if is_leaf[own] else place[tree, node] for tree, node, own in given])

    yes, no = linked("nodes_truenodeids"), linked("nodes_falsenodeids")
    weights = np.zeros((len(modes), count), np.float32)
    for tree, node, result, weight in zip(
        *(call.attribute(f"{results}_{part}") for part in ("treeids", "nodeids", "ids")),
        _floats(call, f"{results}_weights"), strict=True,
    ):  # fmt: skip
        weights[place[tree, node], result] += weight
    takes = call.attribute("nodes_missing_value_tracks_true") or [0] * len(modes)
    inner = modes != _LEAF
    roots = np.setdiff1d(itself, np.concatenate([yes[inner], no[inner]]))
    features = np.where(inner, np.array(call.attribute("nodes_featureids")), 0)
    return _Forest(
        features, modes, _floats(call, "nodes_values"), yes, no, np.array(takes, bool) | ~inner,
        roots, weights, [],
    )  # fmt: skip


def _floats(call: Call, name: str) -> _Array:
    """An attribute of numbers, which may be a tensor."""
    tensor = call.attribute(f"{name}_as_tensor")
    return numbers(call, name) if tensor is None else np.asarray(tensor).reshape(-1)


def _based(call: Call, scores: TensorHandle) -> TensorHandle:
    base = _floats(call, "base_values").astype(np.float32)
    if not base.size:
        return scores
    results = call.number(scores.shape[1], "the number of its results")
    offset = handle_of(np.broadcast_to(base, results).copy())
    return computed(scores.shape, lambda i, j: scores[i, j] + offset[j])


_FOLDS = {"SUM": "sum", "AVERAGE": "sum", "MIN": "min", "MAX": "max"}


def _folded(call: Call, forest: _Forest, how: str) -> TensorHandle:
    scores = _results(call, forest, _FOLDS[how])
    if how != "AVERAGE":
        return scores
    count = len(forest.roots)
    return computed(scores.shape, lambda i, j: scores[i, j] / scores.dtype(count))


@operator("TreeEnsembleRegressor", domain=ML)
def regress(call: Call) -> Made:
    forest = _classic(call, "target", call.count("n_targets"))
    scores = _folded(call, forest, call.attribute("aggregate_function", "SUM"))
    return transformed(call, _based(call, scores))


@operator("TreeEnsembleClassifier", domain=ML)
def classify(call: Call) -> Made:
    count = len(call.attribute("classlabels_int64s"))
    forest = _classic(call, "class", count)
    (only, *others) = {*call.attribute("class_ids")}
    if count != 2 or others:
        return classified(call, _based(call, _results(call, forest)), 0.0, NEGATIVE)
    # All weights are of one class: the score is the second's, a probability if no weight is negative.
    forest.weights = forest.weights[:, [only]]
    scores = _based(call, _results(call, forest))
    is_probability = (_floats(call, "class_weights") >= 0).all()
    is_plain = is_probability and call.attribute("post_transform", "NONE") == "NONE"
    return classified(call, scores, 0.5 * is_probability, ONE_MINUS if is_plain else NEGATIVE)


@operator("TreeEnsemble", domain=ML)
def ensemble(call: Call) -> Made:
    """The operator that has leaves apart from nodes, and compares with sets, too."""
    modes, limits = call.attribute("nodes_modes").astype(int), call.attribute("nodes_splits")
    inner, targets = len(modes), np.array(call.attribute("leaf_targetids"))
    leaves = len(targets)

    def linked(way: str) -> _Array:
        nodes = np.array(call.attribute(f"nodes_{way}nodeids"))
        return np.append(
            nodes + inner * np.array(call.attribute(f"nodes_{way}leafs")), inner + np.arange(leaves)
        )

    def padded(values: Any, otherwise: Any) -> _Array:
        return np.append(np.array(values), [otherwise] * leaves)

    given = call.attribute("leaf_weights")
    weights = np.zeros((inner + leaves, call.count("n_targets")), given.dtype)
    weights[inner + np.arange(leaves), targets] = given
    members = call.attribute("membership_values")
    lists: list[list[float]] = [[]]
    for element in [] if members is None else members.reshape(-1).tolist():
        if element != element:
            lists.append([])
        else:
            lists[-1].append(element)
    takes = call.attribute("nodes_missing_value_tracks_true") or [0] * inner
    forest = _Forest(
        padded(call.attribute("nodes_featureids"), 0), padded(modes, _LEAF), padded(limits, 0),
        linked("true"), linked("false"), padded(takes, 1).astype(bool),
        np.array(call.attribute("tree_roots")), weights, [one for one in lists if one],
    )  # fmt: skip
    how = ["AVERAGE", "SUM", "MIN", "MAX"][call.attribute("aggregate_function", 1)]
    if call.attribute("post_transform", 0):
        raise call.node.error("taskc doesn't transform its results")
    return _folded(call, forest, how)
