"""What tests of passes that recognize operators share: graphs before and after, and results by ONNX's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

from taskc.onnx.importer import is_known
from taskc.onnx.passes.pipeline import Pass, rewritten
from taskc.onnx.reader import read
from taskc.onnx.session import compile

Feeds = dict[str, np.ndarray[Any, Any]]


def operators(made: ModelProto) -> list[str]:
    """Those that a model's outputs are computed by after all passes, in order."""
    graph = rewritten(read(made, is_known))
    return [f"{node.domain}.{node.operator}".lstrip(".") for node in graph.needed]


def is_left_alone(made: ModelProto, run: Pass) -> bool:
    """Whether a pass leaves each of a model's nodes as it is."""
    graph = read(made, is_known)
    return all(a is b for a, b in zip(graph.nodes, run(graph).nodes, strict=True))


def check(made: ModelProto, feeds: Feeds, tolerance: float = 2e-6, *, exact: bool = False) -> None:
    """Outputs are the reference's."""
    with np.errstate(invalid="ignore"):
        expected = ReferenceEvaluator(made).run(None, feeds)
    for found, wanted in zip(compile(made, exact=exact).run(None, feeds), expected, strict=True):
        assert found.shape == wanted.shape
        assert found.dtype == wanted.dtype
        assert np.abs(found - wanted).max() <= tolerance * max(1, np.abs(wanted).max())
