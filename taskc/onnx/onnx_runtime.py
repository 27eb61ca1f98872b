"""ONNX Runtime, where it is installed: what models are compared with, and what runs a part that taskc doesn't take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from taskc.errors import CompileError


class RuntimeSession:
    """A model in ONNX Runtime, with all optimizations, on so many threads."""

    def __init__(self, model: str | bytes, threads: int | None) -> None:
        try:
            runtime: Any = import_module("onnxruntime")
        except ImportError:
            hint = "pip install onnxruntime"
            raise CompileError("ONNX Runtime isn't installed", hint=hint) from None
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads or 0  # as many as there are
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 4
        try:
            self._session = runtime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its exceptions have no class in common
            raise CompileError(f"ONNX Runtime doesn't take the model: {error}") from None

    def run(self, feeds: Mapping[str, Any], outputs: Sequence[str] | None = None) -> list[Any]:
        """The outputs of these names, or all of the model's in order."""
        try:
            found: list[Any] = self._session.run(outputs, dict(feeds))
        except Exception as error:
            raise CompileError(f"ONNX Runtime doesn't run the model: {error}") from None
        return found
