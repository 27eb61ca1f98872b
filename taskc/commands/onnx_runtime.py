"""ONNX Runtime, where it is installed: what models are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from taskc.arguments import Array
from taskc.commands.terminal import UsageError
from taskc.errors import CompileError


class Peer:
    """A model in ONNX Runtime, with all optimizations."""

    def __init__(self, model: str | bytes, threads: int) -> None:
        try:
            runtime: Any = import_module("onnxruntime")
        except ImportError:
            raise UsageError(
                "this compares with ONNX Runtime, which isn't installed: pip install onnxruntime"
            ) from None
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 4
        try:
            self._session = runtime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its exceptions have no class in common
            raise CompileError(f"ONNX Runtime doesn't take the model: {error}") from None

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """The model's outputs, in order."""
        try:
            outputs: list[Array] = self._session.run(None, dict(feeds))
        except Exception as error:
            raise CompileError(f"ONNX Runtime doesn't run the model: {error}") from None
        return outputs
