"""Operators of tensors whose extents are known only at a call: one program serves them all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import taskc as tc
from taskc import f32
from taskc.onnx.importer import import_graph, is_known
from taskc.onnx.reader import read

from .models import model, tensor

N, M, H, W = (tc.dim(name) for name in "nmhw")
RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


Case = tuple[str, dict[str, Any], list[tuple[Any, ...]], list[tuple[int, ...]], list[Any]]

# An operator, its attributes, the shapes of its inputs, extents for the dimensions n, m, h, w, and its constants.
CASES: list[Case] = [
    ("MatMul", {}, [(N, M, 8)], [(2, 3, 1, 1), (1, 5, 1, 1)], [normal(8, 7)]),
    ("MatMul", {}, [(N, 4, M, 8), (N, 4, 8, M)], [(2, 3, 1, 1)], []),
    ("Softmax", {"axis": 1}, [(N, 4, M)], [(2, 3, 1, 1)], []),
    ("LayerNormalization", {}, [(N, M, 8)], [(2, 3, 1, 1)], [normal(8), normal(8)]),
    ("ReduceMax", {}, [(N, M, W)], [(2, 3, 1, 5)], [np.array([1, 2])]),
    ("ArgMax", {"axis": -1}, [(N, M)], [(2, 9, 1, 1)], []),
    ("Conv", {"pads": [1] * 4, "strides": [2, 2]}, [(N, 3, H, W)], [(2, 1, 9, 10)], [normal(8, 3, 3, 3)]),
    ("Conv", {"strides": [160]}, [(1, 1, N)], [(600, 1, 1, 1), (777, 1, 1, 1)], [normal(17, 1, 512)]),
    ("GlobalAveragePool", {}, [(N, 3, H, W)], [(2, 1, 9, 10)], []),
    ("InstanceNormalization", {}, [(N, 3, H, W)], [(2, 1, 4, 5)], [normal(3), normal(3)]),
    ("Attention", {}, [(N, 4, M, 8), (N, 4, W, 8), (N, 4, W, 8)], [(2, 3, 1, 5)], []),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_one_program_serves_all_extents(case: Case) -> None:
    operator, attributes, shapes, calls, constants = case
    names = [f"x{n}" for n in range(len(shapes))]
    known = {f"c{n}": array for n, array in enumerate(constants)}
    made = model(
        [helper.make_node(operator, [*names, *known], ["y"], **attributes)],
        [tensor(name, *[None] * len(shape)) for name, shape in zip(names, shapes, strict=True)],
        ["y"],
        opset=24,
        initializer=[numpy_helper.from_array(array, name) for name, array in known.items()],
    )
    kinds = {name: f32[shape] for name, shape in zip(names, shapes, strict=True)}
    program = import_graph(read(made, is_known), kinds).program
    for extents in calls:
        sizes = dict(zip((N, M, H, W), extents, strict=True))
        feeds = {
            name: normal(*(sizes.get(n, n) for n in shape))
            for name, shape in zip(names, shapes, strict=True)
        }
        (expected,) = ReferenceEvaluator(made).run(None, feeds)
        found = program(*feeds.values())
        assert found.shape == expected.shape
        assert np.allclose(found, expected, rtol=1e-4, atol=1e-5)
