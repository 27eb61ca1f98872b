"""Conv, ConvTranspose and poolings with random attributes, against the package onnx's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from taskc.onnx.session import compile

from .models import model, tensor

Attributes = dict[str, Any]


def windows(random: np.random.Generator, rank: int) -> Attributes:
    """Strides, dilations and padding of some kind."""
    attributes: Attributes = {}
    if random.integers(2):
        attributes["strides"] = random.integers(1, 4, rank).tolist()
    if random.integers(2):
        attributes["dilations"] = random.integers(1, 3, rank).tolist()
    if random.integers(2):
        attributes["pads"] = random.integers(0, 2, 2 * rank).tolist()
    elif random.integers(2):
        attributes["auto_pad"] = str(random.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    return attributes


def conv(random: np.random.Generator) -> tuple[Any, dict[str, Any]]:
    rank = int(random.integers(1, 4))
    size = random.integers(1, 4, rank).tolist()
    groups, deep, features = (
        int(random.choice(some)) for some in ([1, 1, 2, 5], [1, 3, 8], [1, 4])
    )
    batch, extents = int(random.integers(1, 3)), random.integers(5, 10, rank).tolist()
    x = random.standard_normal((batch, groups * deep, *extents))
    w = random.standard_normal((groups * features, deep, *size))
    given = {"x": x, "w": w}
    if random.integers(2):
        given["b"] = random.standard_normal(groups * features)
    return helper.make_node("Conv", [*given], ["y"], group=groups, **windows(random, rank)), given


def transposed(random: np.random.Generator) -> tuple[Any, dict[str, Any]]:
    rank = int(random.integers(1, 4))
    size, stride = random.integers(2, 4, rank).tolist(), random.integers(1, 3, rank).tolist()
    groups, deep, features = (int(random.choice(some)) for some in ([1, 2], [1, 3], [1, 4]))
    x = random.standard_normal((2, groups * deep, *random.integers(3, 6, rank).tolist()))
    w = random.standard_normal((groups * deep, features, *size))
    given, attributes = {"x": x, "w": w}, {"strides": stride}
    if random.integers(2):
        given["b"] = random.standard_normal(groups * features)
    if random.integers(2):
        attributes["pads"] = random.integers(0, 2, 2 * rank).tolist()
    if random.integers(2):
        attributes["output_padding"] = [int(random.integers(0, step)) for step in stride]
    return helper.make_node("ConvTranspose", [*given], ["y"], group=groups, **attributes), given


def pool(random: np.random.Generator) -> tuple[Any, dict[str, Any]]:
    rank = int(random.integers(1, 4))
    size = random.integers(2, 4, rank).tolist()
    operator = str(random.choice(["MaxPool", "AveragePool"]))
    attributes = windows(random, rank)
    if "auto_pad" not in attributes:
        attributes["ceil_mode"] = int(random.integers(2))
    if operator == "AveragePool":
        attributes["count_include_pad"] = int(random.integers(2))
    x = random.standard_normal((2, 3, *random.integers(7, 12, rank).tolist()))
    return helper.make_node(operator, ["x"], ["y"], kernel_shape=size, **attributes), {"x": x}


MAKERS = {"Conv": conv, "ConvTranspose": transposed, "pool": pool}


def check(kind: str, seed: int) -> None:
    """A model of one node has the reference's result; filters are constants, or not."""
    random = np.random.default_rng(seed)
    node, arrays = MAKERS[kind](random)
    given = {name: array.astype(np.float32) for name, array in arrays.items()}
    constants = {name: given[name] for name in ("w", "b") if name in given and seed % 2}
    feeds = {name: array for name, array in given.items() if name not in constants}
    made = model(
        [node],
        [tensor(name, *array.shape) for name, array in feeds.items()],
        ["y"],
        initializer=[numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    (expected,) = ReferenceEvaluator(made).run(None, feeds)
    (found,) = compile(made).run(None, feeds)
    assert found.shape == expected.shape, (seed, node)
    assert np.abs(found - expected).max() < 1e-5 * max(1, np.abs(expected).max()), (seed, node)


@pytest.mark.parametrize("kind", [*MAKERS])
def test_windows_are_those_of_the_attributes(kind: str) -> None:
    for seed in range(6):
        check(kind, seed)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", [*MAKERS])
def test_many_windows(kind: str) -> None:
    for seed in range(6, 200):
        check(kind, seed)
