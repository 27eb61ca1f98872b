"""The table of contents of the rewrites of graphs: which run, in which order, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from taskc.errors import CompileError
from taskc.ir.types import DType
from taskc.onnx.passes.blocked_images import blocked_images
from taskc.onnx.passes.exact_sums import exact_sums
from taskc.onnx.passes.fold_batch_norm import fold_batch_norm
from taskc.onnx.passes.low_precision import low_precision
from taskc.onnx.passes.quantized_products import quantized_products
from taskc.onnx.passes.recognize_attention import recognize_attention
from taskc.onnx.passes.recognize_gelu import recognize_gelu
from taskc.onnx.passes.recognize_norms import recognize_norms
from taskc.operators.graph import Graph

Pass = Callable[[Graph], Graph]

PASSES: tuple[Pass, ...] = (
    # Before others look at products: those of bytes are other operators.
    quantized_products,
    # It looks at who reads a convolution's results, and those are the readers that there are in the end.
    blocked_images,
)

# What sums are written as isn't the order that they are added up in, or they are rounded at other places.
INEXACT: tuple[Pass, ...] = (
    fold_batch_norm,
    recognize_norms,
    recognize_gelu,
    recognize_attention,
)
EXACT: tuple[Pass, ...] = (exact_sums,)


_registered: list[Pass] = []


def register_pass(rewrite: Pass) -> Pass:
    """Has a rewrite of one's own run on all models that are compiled from then on; also as a decorator."""
    _registered.append(rewrite)
    return rewrite


def registered() -> tuple[Pass, ...]:
    """Users' rewrites."""
    return tuple(_registered)


def rewritten(graph: Graph, *, exact: bool = False, operands: DType | None = None) -> Graph:
    """The graph after all rewrites; it has the same inputs and outputs.

    Users' are first: they see the model's own operators, and what they make is rewritten as others are.

    exact     sums are added up as the operators' definitions say
    operands  what those of products with weights are rounded to
    """
    for _, made in steps(graph, exact=exact, operands=operands):
        graph = made
    return graph


def steps(
    graph: Graph, *, exact: bool = False, operands: DType | None = None
) -> Iterator[tuple[str, Graph]]:
    """The name of each rewrite in turn, and the graph behind it."""
    last = () if operands is None else (low_precision(operands),)
    for run in (*_registered, *(EXACT if exact else INEXACT), *PASSES, *last):
        made, name = run(graph), getattr(run, "__name__", "rewrite")
        ends = [(it.inputs, it.outputs) for it in (graph, made)]
        if ends[0] != ends[1]:
            raise CompileError(f"the pass '{name}' changes what '{graph.name}' takes or makes")
        graph = made
        yield name, graph
