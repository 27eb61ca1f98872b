"""ONNX's operators of classical machine learning that are formulas: linear models, and what is done to features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import taskc as tc
from taskc import f32, i64
from taskc.kernels.indices import place_of
from taskc.kernels.reductions import argmax
from taskc.operators.call import Builder, Call, Made, operator
from taskc.operators.norms import softmax_along
from taskc.operators.operands import kernel_of
from taskc.operators.products import rows_times
from taskc.operators.reductions import folded
from taskc.operators.tensors import Function, Tensor, computed, handle_of, reshaped
from taskc.programs.tracing import Computed, Element, TensorHandle

ML = "ai.onnx.ml"
NEGATIVE = tc.function(lambda score: -score)
ONE_MINUS = tc.function(lambda score: 1 - score)


def _operator(name: str) -> Callable[[Builder], Builder]:
    return operator(name, domain=ML)


def rows_of_features(call: Call) -> TensorHandle:
    """The input as rows of floats; a vector is one row."""
    (x,) = call.tensors(1)
    if len(x.shape) == 1:
        x = x.reshape(1, x.shape[0])
    return x if x.dtype.is_float else computed(x.shape, lambda *at: x[at].to(f32))


def numbers(call: Call, name: str) -> np.ndarray[Any, Any]:
    """An attribute with numbers as f32; empty where it is absent."""
    return np.array(call.attribute(name) or [], np.float32)


@_operator("Scaler")
def scale(call: Call) -> Made:
    x = rows_of_features(call)
    offset, factor = (_by_feature(call, name, x) for name in ("offset", "scale"))
    return computed(x.shape, lambda i, j: (x[i, j].to(f32) - offset[j]) * factor[j])


def _by_feature(call: Call, name: str, x: TensorHandle) -> TensorHandle:
    given = numbers(call, name)
    count = call.number(x.shape[1], "the number of its features")
    if len(given) not in (1, count):
        raise call.node.error(f"its {name} has {len(given)} numbers, for {count} features")
    return handle_of(np.broadcast_to(given, count).copy())


@_operator("Normalizer")
def normalize(call: Call) -> Made:
    """Divide each row by a norm of it, if that isn't 0."""
    x = rows_of_features(call)
    norm = call.attribute("norm", "MAX")
    if norm not in ("MAX", "L1", "L2"):
        raise call.node.error(f"taskc doesn't know its norm '{norm}'")

    @tc.function
    def term(i: Element, j: Element) -> Computed:
        value = x[i, j].to(f32)
        if norm == "MAX":
            return value
        else:
            return value * value if norm == "L2" else abs(value)

    total = folded("max" if norm == "MAX" else "sum", computed(x.shape, term), (1,), True)

    @tc.function
    def normalized(i: Element, j: Element) -> Computed:
        size = tc.sqrt(total[i, 0]) if norm == "L2" else total[i, 0]
        return x[i, j].to(f32) / (1 if size == 0 else size)

    return computed(x.shape, normalized)


@_operator("Binarizer")
def binarize(call: Call) -> Made:
    (x,) = call.tensors(1)
    threshold = call.attribute("threshold", 0.0)
    return computed(x.shape, lambda *at: (x[at] > x.dtype(threshold)).to(x.dtype))


@_operator("Imputer")
def impute(call: Call) -> Made:
    """Replace one number, or NaN."""
    kind = "int64" if call.attribute("imputed_value_int64s") else "float"
    x = call.tensors(1)[0]
    old = call.attribute(f"replaced_value_{kind}", 0)
    given = np.array(call.attribute(f"imputed_value_{kind}s"), x.dtype.numpy)
    count = call.number(x.shape[-1], "the number of its features")
    new = handle_of(np.broadcast_to(given, count).copy())
    if old != old:
        return computed(x.shape, lambda *at: new[at[-1]] if x[at] != x[at] else x[at])
    return computed(x.shape, lambda *at: new[at[-1]] if x[at] == x.dtype(old) else x[at])


@_operator("ArrayFeatureExtractor")
def extract(call: Call) -> Made:
    x, given = call.tensors(2)
    places = given.reshape(given.shape[-1])
    if len(x.shape) == 1:
        x = x.reshape(1, x.shape[0])

    def element(*at: Element) -> Computed:
        place = (*at[:-1], place_of(places[at[-1]].to(i64), x.shape[-1]))
        return x[place]

    return computed((*x.shape[:-1], *places.shape), tc.function(element))


@_operator("OneHotEncoder")
def one_hot(call: Call) -> Made:
    (x,) = call.tensors(1)
    categories = handle_of(np.array(call.attribute("cats_int64s") or [], np.int64))
    if not call.attribute("zeros", 1):
        raise call.node.error("taskc doesn't check that it knows each category")
    return computed(
        (*x.shape, *categories.shape),
        lambda *at: (x[at[:-1]].to(i64) == categories[at[-1]]).to(f32),
    )


@_operator("LinearRegressor")
def regress(call: Call) -> Made:
    return transformed(call, _linear(call, call.attribute("targets", 1)))


def _linear(call: Call, rows: int) -> TensorHandle:
    x, weights = rows_of_features(call), numbers(call, "coefficients")
    count = call.number(x.shape[1], "the number of its features")
    if len(weights) != rows * count:
        raise call.node.error(
            f"it has {len(weights)} coefficients, for {count} features and {rows} results"
        )
    offset = (
        numbers(call, "intercepts") if call.attribute("intercepts") else np.zeros(rows, np.float32)
    )
    values = x if x.dtype is f32 else computed(x.shape, lambda i, j: x[i, j].to(f32))
    return rows_times(values, np.ascontiguousarray(weights.reshape(rows, count).T), offset)


@_operator("LinearClassifier")
def classify(call: Call) -> Made:
    classes = len(numbers(call, "intercepts")) or len(call.attribute("classlabels_int64s"))
    scores = _linear(call, classes)
    return classified(call, scores, 0.0, NEGATIVE)


def transformed(call: Call, scores: TensorHandle) -> TensorHandle:
    """Scores after the node's transformation."""
    match call.attribute("post_transform", "NONE"):
        case "NONE":
            return scores
        case "LOGISTIC":
            return computed(scores.shape, lambda i, j: tc.sigmoid(scores[i, j]))
        case "SOFTMAX":
            return softmax_along(scores, 1)
        case other:
            raise call.node.error(f"taskc doesn't know its transformation '{other}'")


def classified(
    call: Call, scores: TensorHandle, threshold: float, complement: Function
) -> tuple[Tensor, Tensor]:
    """The label of the highest score in each row, and the scores.

    Of two classes there may be one score: that of the second. It is chosen above the threshold, and the score of the
    first is the complement.
    """
    labels = handle_of(np.array(call.attribute("classlabels_int64s"), np.int64))
    rows, classes = scores.shape
    if classes == 1 and labels.shape == (2,):
        chosen = computed((rows,), lambda i: labels[1 if scores[i, 0] > threshold else 0])
        both = computed(
            (rows, 2), lambda i, j: complement(scores[i, 0]) if j == 0 else scores[i, 0]
        )
        return chosen, transformed(call, both)
    if labels.shape != (classes,):
        raise call.node.error(f"it has {labels.shape[0]} labels, for {classes} scores")
    place = reshaped(kernel_of(argmax, scores.shape, 1, dtype=scores.dtype)(scores), rows)
    return computed((rows,), lambda i: labels[place_of(place[i], classes)]), transformed(
        call, scores
    )
