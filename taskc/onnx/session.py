"""`tc.compile(model)`: compile a model for calls."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskc import CompileError, DType, bf16
from taskc.backend.limits import NO_LIMITS, Limits
from taskc.onnx.model import PROCESSOR, Model, Place, place_of
from taskc.onnx.model_cache import cached_model
from taskc.onnx.passes.pipeline import rewritten
from taskc.operators.graph import Graph
from taskc.runtime.machine import built_for

if TYPE_CHECKING:
    from onnx import ModelProto

    from taskc.onnx.stages import Traced

# The types to which operands of products with weights are rounded.
PRECISIONS: dict[str, DType | None] = {"f32": None, "bf16": bf16}


def compile(
    model: str | os.PathLike[str] | bytes | ModelProto | Graph,
    target: str = "cpu",
    *,
    exact: bool = False,
    precision: str = "f32",
    threads: int | None = None,
    memory: int | None = None,
) -> Model:
    """Compile an ONNX model: a file, its bytes, a ModelProto, or a graph from `tc.onnx`.

    target  "cpu", or "cuda": the first CUDA device. NumPy arrays are copied there, and outputs back. If an input lies
            on the device, outputs stay there
    exact  convolutions sum their products one by one. Otherwise 3 x 3 ones may use Winograd's algorithm where it is
           faster, with errors up to ten times as large: 5e-5 for results of about 1
    precision  "bf16" rounds both operands of f32 products with weights to bf16, and sums in f32: `taskc verify
               --precision bf16` measures the difference
    threads  the most threads of a call
    memory  the most bytes of weights and temporaries that each program takes; a call that needs more is an error
    """
    limits = Limits(threads, memory)
    if hasattr(model, "forward") or hasattr(model, "parameters"):
        raise CompileError(
            f"a model is a file, its bytes or a ModelProto, and this is the module {type(model).__name__}",
            hint="torch.onnx.export(module, inputs, path, dynamo=True) writes a file; docs/torch.md has kernels for"
            " PyTorch",
        )
    if precision not in PRECISIONS:
        raise CompileError(
            f"there is no precision {precision!r}",
            hint=f"there is {', '.join(map(repr, PRECISIONS))}",
        )
    place = place_of(target)
    if place is not PROCESSOR and limits != NO_LIMITS:
        raise CompileError("threads and memory are limits of the processor's programs")
    options = {"exact": exact, "operands": PRECISIONS[precision]}
    if isinstance(model, (str, os.PathLike)) and place is PROCESSOR:
        known = cached_model(Path(model), options, lambda: _traced(model, options, place), limits)
        if known is not None:
            return known
    traced = _traced(model, options, place)
    graph = traced.graph
    return Model(graph.name, graph.inputs, graph.returned, traced, limits=limits, place=place)


def _traced(
    model: str | os.PathLike[str] | bytes | ModelProto | Graph,
    options: dict[str, Any],
    place: Place,
) -> Traced:
    from taskc.onnx.importer import is_known  # slow: loads all operators
    from taskc.onnx.stages import Traced

    if not isinstance(model, Graph):
        from taskc.onnx.reader import read  # slow: loads the package onnx

        model = read(model, is_known)
    with built_for(place.machine):
        return Traced(rewritten(model, **options), place, model)
