"""ONNX models: read into a graph of operators, which is traced as a program.

`tc.onnx` is for users' programs: `operator` registers an operator, `register_pass` a rewrite of graphs, and `extract`
cuts a part out of a model. `partition` runs a model of which taskc supports only a part.

`reader.py` makes a graph of a model, `passes/` rewrites it, `partitions.py` cuts parts out.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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

    from taskc.onnx.passes.pipeline import register_pass

    Call: TypeAlias = Any  # the real types would import all of taskc
    extract: Callable[..., Any]
    extract_model: Callable[..., Any]
    partition: Callable[..., Any]

    _Builder = TypeVar("_Builder", bound=Callable[..., Any])

    def operator(
        name: str, since: int = 1, domain: str = "", *, ranks: Any = (), replace: bool = False
    ) -> Callable[[_Builder], _Builder]:
        """Register the builder of an operator, from this version of its operator set on."""


# Names whose modules import the package onnx, or all of taskc.
_LATER = dict.fromkeys(("Call", "operator"), "taskc.operators.call")
_LATER["register_pass"] = "taskc.onnx.passes.pipeline"
_LATER |= dict.fromkeys(("extract", "extract_model"), "taskc.onnx.extraction")
_LATER["partition"] = "taskc.onnx.partitions"


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'taskc.onnx' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
