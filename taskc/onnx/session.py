"""`tc.compile(model)`: compile a model for calls, or find it in the cache (model_cache.py)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from taskc import CompileError, DType, bf16
from taskc.backend.limits import NO_LIMITS, Limits
from taskc.dataclass import dataclass
from taskc.ir.spans import span
from taskc.onnx.bundled import ends_of, states_in
from taskc.onnx.model import PROCESSOR, Model, Place, place_of
from taskc.onnx.model_cache import from_cache
from taskc.onnx.sequences import Sequence
from taskc.onnx.weights import read_ahead
from taskc.operators.graph import Graph
from taskc.progress import line, report
from taskc.runtime.driver import Once
from taskc.runtime.machine import built_for

if TYPE_CHECKING:
    from onnx import ModelProto

    from taskc.onnx.model_cache import CachedModel
    from taskc.onnx.stages import Traced

    ModelSource: TypeAlias = str | os.PathLike[str] | bytes | ModelProto | Graph | "Changed"

# The types to which operands of products with weights are rounded.
PRECISIONS: dict[str, DType | None] = {"f32": None, "bf16": bf16}


@dataclass(frozen=True, slots=True)
class Changed:
    """A file's model, whose graph is changed when it is read; in the cache, `name` stands for the function."""

    path: Path
    name: str
    function: Callable[[Graph], Graph]


@line()
def compile(
    model: ModelSource,
    target: str = "cpu",
    *,
    exact: bool = False,
    precision: str = "f32",
    threads: int | None = None,
    memory: int | None = None,
    wait: bool = False,
    states: Mapping[str, str] | None = None,
    capacity: int | None = None,
    first: ModelSource | None = None,
) -> Any:
    """Compile an ONNX model: a file, its bytes, a ModelProto, or a graph of `tc.onnx`; with states a `Sequence`.

    target  "cpu", or "cuda": the first CUDA device. NumPy arrays are copied there, and outputs back. If an input lies
            on the device, outputs stay there
    exact  convolutions sum their products one by one. Otherwise 3 x 3 ones may use Winograd's algorithm where it is
           faster, with errors up to ten times as large: 5e-5 for results of about 1
    precision  "bf16" rounds both operands of f32 products with weights to bf16, and sums in f32: `taskc verify
               --precision bf16` measures the difference
    threads  the most threads of a call
    memory  the most bytes of weights and temporaries that each program takes; a call that needs more is an error
    wait    the first call for new shapes returns once everything has its full code (`tc.finish_compiling`)
    states  outputs that the session keeps for inputs of its next call, by patterns of names:
            {"present.*": "past_key_values.*"}. The model appends to each along one axis, up to `capacity` places
    first   the model of each sequence's first call, if it's another one: it returns the states and takes none
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
    if states is None and first is not None:
        raise CompileError(
            "the model of a first call computes states",
            hint="tc.compile(model, first=..., states=...)",
        )
    if states is not None:
        if place is not PROCESSOR:
            raise CompileError("states are kept by sessions on the processor")
        return _sequence(model, options, states, capacity, first, limits, wait)
    if place is PROCESSOR:
        cached = _from_cache(model, options, lambda: _traced(model, options, place))
        if cached is not None:
            return Model(*ends_of(cached.head), cached, limits=limits, wait=wait)
    traced = _traced(model, options, place)
    return Model(*traced.ends, traced, limits=limits, place=place, wait=wait)


def _sequence(
    model: ModelSource,
    options: dict[str, Any],
    patterns: Mapping[str, str],
    capacity: int | None,
    first: ModelSource | None,
    limits: Limits,
    wait: bool,
) -> Sequence:
    """The first sequence of a model whose states patterns name; `first` is the model of its first call."""
    read: Once[Traced] = Once()

    def traced() -> Traced:
        return read.get(lambda: _traced(model, options, PROCESSOR))

    def with_states() -> Traced:
        from taskc.onnx.states import branches_of, states_of  # few models have states

        whole = traced()
        if branches_of(whole.graph) is not None:
            return whole  # without states: models of two graphs aren't cached
        return whole.with_states(states_of(whole.rewritten, patterns, capacity))

    context = {**options, "states": [*patterns.items()], "capacity": capacity}
    cached = None if first is not None else _from_cache(model, context, with_states)
    states = None if cached is None else states_in(cached.head)
    if cached is not None and states is not None:
        return Sequence(Model(*ends_of(cached.head), cached, limits=limits, wait=wait), states)
    from taskc.onnx.states import branches_of, states_of

    later = traced()
    begins = None if first is None else _traced(first, options, PROCESSOR)
    branches = branches_of(later.graph) if first is None else None
    if branches is not None:
        begins, later = (_traced(branch, options, PROCESSOR) for branch in branches)
    of_first = None if begins is None else begins.rewritten
    states = states_of(later.rewritten, patterns, capacity, of_first)
    later = later.with_states(states)
    own = Model(*later.ends, later, limits=limits, wait=wait)
    if begins is None:
        return Sequence(own, states)
    return Sequence(own, states, Model(*begins.ends, begins, limits=limits, wait=wait))


def _from_cache(
    model: ModelSource, options: Mapping[str, Any], trace: Callable[[], Traced]
) -> CachedModel | None:
    """The programs of a file's model, from the cache or to be added to it; None for models that aren't cached."""
    if isinstance(model, Changed):
        return from_cache(model.path, {**options, "changed": model.name}, trace)
    if isinstance(model, (str, os.PathLike)):
        return from_cache(Path(model), options, trace)
    return None


def _traced(
    model: ModelSource,
    options: dict[str, Any],
    place: Place,
) -> Traced:
    change = model.function if isinstance(model, Changed) else None
    if isinstance(model, Changed):
        model = model.path
    if isinstance(model, (str, os.PathLike)):
        report(f"reading {model}")
    with read_ahead(model) as parts:
        with span("import"):
            from taskc.onnx.passes.pipeline import rewritten
            from taskc.onnx.stages import Traced  # slow: loads what all operators need

        if not isinstance(model, Graph):
            with span("import"):
                from taskc.onnx.importer import is_known
                from taskc.onnx.reader import read  # slow: loads the package onnx
            with span("read the model"):
                model = read(model, is_known, parts)
    graph = model if change is None else change(model)
    with built_for(place.machine), span("rewrite the model"):
        return Traced(rewritten(graph, **options), place, graph)
