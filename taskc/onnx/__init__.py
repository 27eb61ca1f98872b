"""ONNX models: read into a graph of operators, which is traced as a program.

`tc.onnx` is for users' programs: `operator` registers an operator, `register_pass` a rewrite of graphs, and `extract`
cuts a part out of a model. `partition` runs a model of which taskc supports only a part. `generate` and `TextModel`
write text. `InferenceSession` and the names beside it are ONNX Runtime's, for code that was written for that: `import
taskc.onnx as onnxruntime`.

`reader.py` makes a graph of a model, `passes/` rewrites it, `partitions.py` cuts parts out.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from taskc.operators.graph import Graph, Node, Value

# Of inference_session.py: the names of the package onnxruntime.
_SESSIONS = (
    "ExecutionMode",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
)

__all__ = [
    *_SESSIONS,
    "Call",
    "Graph",
    "Node",
    "TextModel",
    "Value",
    "extract",
    "extract_model",
    "generate",
    "operator",
    "partition",
    "register_pass",
]

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias, TypeVar

    from taskc.onnx.passes.pipeline import register_pass

    Call: TypeAlias = Any  # the real types would import all of taskc
    TextModel: Any
    extract: Callable[..., Any]
    extract_model: Callable[..., Any]
    generate: Callable[..., Any]
    partition: Callable[..., Any]
    ExecutionMode: Any
    GraphOptimizationLevel: Any
    IOBinding: Any
    InferenceSession: Any
    ModelMetadata: Any
    NodeArg: Any
    OrtValue: Any
    RunOptions: Any
    SessionOptions: Any
    get_available_providers: Callable[[], list[str]]
    get_device: Callable[[], str]

    _Builder = TypeVar("_Builder", bound=Callable[..., Any])

    def operator(
        name: str, since: int = 1, domain: str = "", *, ranks: Any = (), replace: bool = False
    ) -> Callable[[_Builder], _Builder]:
        """Register the builder of an operator, from this version of its operator set on."""


# Names whose modules import the package onnx, or all of taskc.
_LATER = dict.fromkeys(("Call", "operator"), "taskc.operators.call")
_LATER["register_pass"] = "taskc.onnx.passes.pipeline"
_LATER |= dict.fromkeys(("extract", "extract_model"), "taskc.onnx.extraction")
_LATER |= dict.fromkeys(("TextModel", "generate"), "taskc.onnx.text")
_LATER["partition"] = "taskc.onnx.partitions"
_LATER |= dict.fromkeys(_SESSIONS, "taskc.onnx.inference_session")


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'taskc.onnx' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
