"""Strings go in, through Python's functions, and out; numbers made of them go on into programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import taskc as tc
from taskc import CompileError

from .models import model, node, tensor

STRINGS = tensor("t", None, type=TensorProto.STRING)
ML = "ai.onnx.ml"


def ran(nodes: list[Any], outputs: list[str], *given: Any, inputs: Any = None, **more: Any) -> Any:
    proto = model(nodes, inputs or [STRINGS], outputs, domains=(ML,), **more)
    proto.opset_import[-1].version = 4
    return tc.compile(proto)(*given)


def test_words_become_scores() -> None:
    """Normalize, look up, embed: the embedding is a program."""
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    compiled = [
        node("StringNormalizer", ["t"], ["low"], case_change_action="LOWER", stopwords=["the"]),
        node("LabelEncoder", ["low"], ["ids"], domain=ML, keys_strings=["cat", "sat"],
             values_int64s=[1, 2], default_int64=3),
        node("Gather", ["rows", "ids"], ["e"]),
        node("ReduceSum", ["e"], ["y"], keepdims=0),
    ]  # fmt: skip
    y, low = ran(
        compiled, ["y", "low"], np.array(["The", "CAT", "sat", "down"]),
        initializer=[helper.make_tensor("rows", TensorProto.FLOAT, [4, 2], rows.reshape(-1))],
    )  # fmt: skip
    assert y == rows[[1, 2, 3]].sum()
    assert low.tolist() == ["cat", "sat", "down"]


def test_elements_of_strings_are_moved_by_programs() -> None:
    texts = np.array([["a", "b", "c"], ["d", "e", "f"]])
    nodes = [
        node("Transpose", ["t"], ["u"], perm=[1, 0]),
        node("Gather", ["u", "places"], ["v"], axis=0),
        node("Constant", [], ["mark"], value_string="!"),
        node("StringConcat", ["v", "mark"], ["w"]),
        node("Shape", ["w"], ["shape"]),
        node("Concat", ["w", "w"], ["both"], axis=1),
    ]
    inputs = [STRINGS, tensor("places", None, type=TensorProto.INT64)]
    w, shape, both = ran(nodes, ["w", "shape", "both"], texts, np.array([2, 0]), inputs=inputs)
    assert w.tolist() == [["c!", "f!"], ["a!", "d!"]]
    assert w.dtype == object
    assert shape.tolist() == [2, 2]
    assert both.shape == (2, 4)


def test_strings_and_numbers() -> None:
    nodes = [
        node("Cast", ["t"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["f", "f"], ["g"]),
        node("Cast", ["g"], ["u"], to=TensorProto.STRING),
        node("Cast", ["i"], ["v"], to=TensorProto.STRING),
        node("Cast", ["v"], ["j"], to=TensorProto.INT64),
    ]
    inputs = [STRINGS, tensor("i", None, type=TensorProto.INT64)]
    numbers = np.array([2**62 + 1, -3])
    u, v, j = ran(nodes, ["u", "v", "j"], np.array(["1.5", "-2", "1e-3"]), numbers, inputs=inputs)
    assert u.tolist() == ["2.25", "4", "1.0000001e-06"]  # as ONNX Runtime prints floats
    assert v.tolist() == [str(2**62 + 1), "-3"]
    assert j.tolist() == numbers.tolist()
    with pytest.raises(CompileError, match="Cast node that makes 'f': Python can't compute it"):
        ran(nodes, ["u"], np.array(["one"]), numbers, inputs=inputs)


def test_parts_of_strings_and_patterns() -> None:
    nodes = [
        node("StringSplit", ["t"], ["parts", "counts"], delimiter=",", maxsplit=1),
        node("RegexFullMatch", ["t"], ["is_word"], pattern=r"\w+"),
        node("Not", ["is_word"], ["has_more"]),
    ]
    parts, counts, more = ran(
        nodes, ["parts", "counts", "has_more"], np.array(["a,b,c", "d", ""]), opset=20
    )
    assert parts.tolist() == [["a", "b,c"], ["d", ""], ["", ""]]
    assert counts.tolist() == [2, 1, 0]
    assert more.tolist() == [True, False, True]
    with pytest.raises(CompileError, match="its pattern can't be read"):
        ran([node("RegexFullMatch", ["t"], ["y"], pattern="(")], ["y"], np.array(["a"]))


@pytest.mark.parametrize(
    ("mode", "row"), [("TF", [2, 1, 1]), ("IDF", [2, 3, 5]), ("TFIDF", [4, 3, 5])]
)
def test_counts_of_n_grams(mode: str, row: list[float]) -> None:
    made = node(
        "TfIdfVectorizer", ["t"], ["y"], mode=mode, min_gram_length=1, max_gram_length=2,
        max_skip_count=1, ngram_counts=[0, 1], ngram_indexes=[0, 1, 2],
        pool_strings=["a", "a", "b", "a", "a"], weights=[2.0, 3.0, 5.0],
    )  # fmt: skip
    y = ran([made], ["y"], np.array(["a", "c", "a", "b"]))
    assert y.tolist() == row


def test_labels_of_every_type() -> None:
    back = node("LabelEncoder", ["k"], ["y"], domain=ML, keys_floats=[1.0, float("nan")],
                values_strings=["one", "none"], default_string="?")  # fmt: skip
    y = ran([back], ["y"], np.float32([[1, 2, np.nan]]), inputs=[tensor("k", None, None)])
    assert y.tolist() == [["one", "?", "none"]]
    table = node(
        "CategoryMapper", ["t"], ["y"], domain=ML, cats_strings=["a", "b"], cats_int64s=[4, 7]
    )
    assert ran([table], ["y"], np.array(["b", "c"])).tolist() == [7, -1]


def test_dictionaries() -> None:
    zipped = node("ZipMap", ["x"], ["z"], domain=ML, classlabels_strings=["no", "yes"])
    made = ran([node("Softmax", ["k"], ["x"]), zipped], ["z"], np.zeros((2, 2), np.float32),
               inputs=[tensor("k", None, 2)])  # fmt: skip
    assert made == [{"no": 0.5, "yes": 0.5}] * 2
