"""Operators on strings, and on the labels and counts that are made of them, run by Python: see hosted.py."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from taskc.onnx.hosted import hosted
from taskc.operators.graph import Array, Node

_ML = "ai.onnx.ml"


def _objects(values: Sequence[Any], shape: Sequence[int]) -> Any:
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(tuple(shape))


@hosted("StringConcat")
def concat(node: Node, x: Array, y: Array) -> Any:
    return np.asarray(x + y, object)


@hosted("StringNormalizer")
def normalize(node: Node, x: Array) -> Any:
    """Leave out stop words, and change the case."""
    is_sensitive = node.attributes.get("is_case_sensitive", 0)
    action = node.attributes.get("case_change_action", "NONE")
    change = {"LOWER": str.lower, "UPPER": str.upper}.get(str(action), str)
    compared = str if is_sensitive else str.lower
    stop = {compared(word) for word in node.attributes.get("stopwords") or ()}  # type: ignore[attr-defined]
    words = [change(word) for word in x.flat if compared(word) not in stop] or [""]
    return _objects(words, (*x.shape[:-1], len(words)))


@hosted("StringSplit")
def split(node: Node, x: Array) -> tuple[Array, Array]:
    """Parts between delimiters, filled up with empty strings, and how many each string has."""
    delimiter = node.attributes.get("delimiter") or None
    most = node.attributes.get("maxsplit")
    parts = [text.split(delimiter, -1 if most is None else most) if text else [] for text in x.flat]
    longest = max(map(len, parts), default=0)
    padded = [part for one in parts for part in (*one, *[""] * (longest - len(one)))]
    counts = np.array([*map(len, parts)], np.int64).reshape(x.shape)
    return _objects(padded, (*x.shape, longest)), counts


@hosted("RegexFullMatch")
def matches(node: Node, x: Array) -> Any:
    try:
        pattern = re.compile(str(node.attributes["pattern"]))
    except re.error as error:
        raise node.error(f"its pattern can't be read: {error}") from None
    return np.array([pattern.fullmatch(text) is not None for text in x.flat], bool).reshape(x.shape)


@hosted("TfIdfVectorizer")
def count_grams(node: Node, x: Array) -> Any:
    """Counts of known n-grams (runs of n elements, with up to so many skipped between each two) in each row."""
    given = node.attributes
    shortest, longest, skips = (
        int(given[name])  # type: ignore[call-overload]
        for name in ("min_gram_length", "max_gram_length", "max_skip_count")
    )
    columns: Any = given["ngram_indexes"]
    grams = {
        gram: (column, place)
        for place, (gram, column) in enumerate(zip(_pool(node), columns, strict=True))
    }
    counts = np.zeros((*x.shape[:-1], max(columns) + 1), np.float32)
    for row, made in zip(
        x.reshape(-1, x.shape[-1]), counts.reshape(-1, counts.shape[-1]), strict=True
    ):
        for size in range(shortest, longest + 1):
            for skip in range(skips + 1 if size > 1 else 1):
                step = skip + 1
                for first in range(len(row) - (size - 1) * step):
                    known = grams.get(
                        tuple(row[first : first + (size - 1) * step + 1 : step].tolist())
                    )
                    if known is not None:
                        made[known[0]] += 1
    weights: Any = given.get("weights")
    factors = np.ones(counts.shape[-1], np.float32)
    for column, place in grams.values():
        if weights:
            factors[column] = weights[place]
    match given["mode"]:
        case "TF":
            return counts
        case "IDF":
            return (counts > 0) * factors
    return counts * factors


def _pool(node: Node) -> Iterator[tuple[Any, ...]]:
    """The known n-grams: first those of one element, then those of two, and so on."""
    pool: Any = node.attributes.get("pool_strings") or node.attributes["pool_int64s"]
    starts: Any = node.attributes["ngram_counts"]
    for size, (start, end) in enumerate(pairwise([*starts, len(pool)]), 1):
        for first in range(start, end, size):
            yield tuple(pool[first : first + size])


# --- Labels -------------------------------------------------------------------------------------


_TYPES = {"strings": object, "int64s": np.int64, "floats": np.float32}
_MISSING = {"strings": "_Unused", "int64s": -1, "floats": -0.0}


@hosted("LabelEncoder", _ML)
def encode(node: Node, x: Array) -> Any:
    """The value of each key."""
    given = node.attributes
    if "classes_strings" in given:  # the first version: strings to their numbers, or back
        classes: Any = given["classes_strings"]
        if x.dtype == object:
            return _mapped(
                x, classes, range(len(classes)), given.get("default_int64", -1), np.int64
            )
        return _mapped(
            x, range(len(classes)), classes, given.get("default_string", "_Unused"), object
        )
    keys, _ = _listed(node, "keys")
    values, kind = _listed(node, "values")
    default = given.get("default_tensor")
    if isinstance(default, np.ndarray):
        default = default.reshape(-1)[0]
    elif kind in _MISSING:
        default = given.get(f"default_{kind.removesuffix('s')}", _MISSING[kind])
    else:
        default = "_Unused" if values.dtype == object else -1 if values.dtype.kind == "i" else -0.0
    return _mapped(x, keys.tolist(), values.tolist(), default, values.dtype)


def _listed(node: Node, what: str) -> tuple[Array, str]:
    """The keys or values, and the name of their type if they are in an attribute of that type."""
    for kind, dtype in _TYPES.items():
        if node.attributes.get(f"{what}_{kind}"):
            return np.array(node.attributes[f"{what}_{kind}"], dtype), kind
    tensor = node.attributes.get(f"{what}_tensor")
    if not isinstance(tensor, np.ndarray):
        raise node.error(f"it has no {what}")
    return tensor.reshape(-1), ""


def _mapped(x: Array, keys: Sequence[Any], values: Sequence[Any], default: Any, dtype: Any) -> Any:
    table = {_key(key): value for key, value in zip(keys, values, strict=True)}
    found = [table.get(_key(one), default) for one in x.reshape(-1).tolist()]
    return np.array(found, dtype).reshape(x.shape)


def _key(value: Any) -> Any:
    """A key; NaN, which isn't equal to itself, is None."""
    return None if value != value else value


@hosted("CategoryMapper", _ML)
def categories(node: Node, x: Array) -> Any:
    given: dict[str, Any] = node.attributes
    texts, numbers = given["cats_strings"], given["cats_int64s"]
    if x.dtype == object:
        return _mapped(x, texts, numbers, given.get("default_int64", -1), np.int64)
    return _mapped(x, numbers, texts, given.get("default_string", "_Unused"), object)


@hosted("DictVectorizer", _ML)
def vectorize(node: Node, x: dict[Any, Any]) -> Any:
    words: Any = node.attributes.get("string_vocabulary") or node.attributes["int64_vocabulary"]
    values = [x.get(word, 0) for word in words]
    dtype = np.int64 if all(isinstance(value, int | np.integer) for value in values) else np.float32
    return np.array([values], dtype)


@hosted("ZipMap", _ML)
def zip_map(node: Node, x: Array) -> list[dict[Any, float]]:
    """A dictionary for each row, from labels to the row's elements."""
    labels: Any = (
        node.attributes.get("classlabels_strings") or node.attributes["classlabels_int64s"]
    )
    return [dict(zip(labels, row, strict=True)) for row in x.reshape(-1, len(labels)).tolist()]
