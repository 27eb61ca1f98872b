"""ONNX models: read into a thin graph of operators, which is traced as a program.

`tc.onnx` has what users' programs need: `operator` registers an operator, `register_pass` a rewrite of graphs, and
`extract` cuts a part out of a model. `partition` runs a model of which taskc doesn't take all.

`reader.py` makes a graph of a model, `extraction.py` cuts a part out, `passes/` rewrites it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from taskc.onnx.passes.pipeline import register_pass
from taskc.operators.graph import Graph, Node, Value

__all__ = [
    "Call",
    "Graph",
    "Node",
    "Value",
    "extract",
    "extract_model",
    "operator",
    "partition",
    "register_pass",
]

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias, TypeVar

    Call: TypeAlias = Any  # what they are stands on the names of taskc
    extract: Callable[..., Any]
    extract_model: Callable[..., Any]
    partition: Callable[..., Any]

    _Builder = TypeVar("_Builder", bound=Callable[..., Any])

    def operator(
        name: str, since: int = 1, domain: str = "", *, ranks: Any = ()
    ) -> Callable[[_Builder], _Builder]:
        """Registers what builds an operator, from this version of its operator set on."""


# What stands on the package onnx, or on all of taskc.
_LATER = dict.fromkeys(("Call", "operator"), "taskc.operators.call")
_LATER |= dict.fromkeys(("extract", "extract_model"), "taskc.onnx.extraction")
_LATER["partition"] = "taskc.onnx.partitions"


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'taskc.onnx' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
