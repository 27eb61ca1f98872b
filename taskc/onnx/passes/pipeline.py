"""The table of contents of the rewrites of graphs: which run, in which order, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from taskc.errors import CompileError
from taskc.ir.types import DType
from taskc.onnx.passes.byte_tables import byte_tables
from taskc.onnx.passes.convolutions import blocked_images, exact_sums, fold_batch_norm
from taskc.onnx.passes.move_bytes import move_bytes
from taskc.onnx.passes.products import low_precision, quantized_products
from taskc.onnx.passes.quantization_scales import quantization_scales
from taskc.onnx.passes.recognize_attention import recognize_attention
from taskc.onnx.passes.recognize_formulas import recognize_gelu, recognize_norms
from taskc.onnx.passes.separate_fused import separate_fused
from taskc.onnx.passes.separate_labels import separate_labels
from taskc.onnx.passes.unsigned_bytes import unsigned_bytes
from taskc.operators.graph import Graph

Pass = Callable[[Graph], Graph]

# Before all others, which know ONNX's operators.
FIRST: tuple[Pass, ...] = (separate_fused, separate_labels)

PASSES: tuple[Pass, ...] = (
    # Before byte_tables, which take bytes out of pairs of QuantizeLinear and DequantizeLinear.
    unsigned_bytes,
    # Before tables, which end at a Reshape.
    move_bytes,
    # Before products of bytes lose their nodes: what is between bytes and bytes is a table.
    byte_tables,
    # Before other passes look at products: those of bytes become other operators.
    quantized_products,
    # After it, which makes scaled sums of products.
    quantization_scales,
    # Last, as it looks at the final readers of a convolution's results.
    blocked_images,
)

# These change the order of sums, or the places at which they are rounded.
INEXACT: tuple[Pass, ...] = (
    fold_batch_norm,
    recognize_norms,
    recognize_gelu,
    recognize_attention,
)
EXACT: tuple[Pass, ...] = (exact_sums,)


_registered: list[Pass] = []


def register_pass(rewrite: Pass) -> Pass:
    """Run a user's rewrite on all models compiled from now on; also usable as a decorator."""
    _registered.append(rewrite)
    return rewrite


def registered() -> tuple[Pass, ...]:
    """The users' rewrites."""
    return tuple(_registered)


def rewritten(graph: Graph, *, exact: bool = False, operands: DType | None = None) -> Graph:
    """The graph after all rewrites; it has the same inputs and outputs.

    Users' rewrites are first: they see the model's own operators, and their results are rewritten like others.

    exact     sums are added up in the order of the operators' definitions
    operands  the type to which operands of products with weights are rounded
    """
    for _, changed in steps(graph, exact=exact, operands=operands):
        graph = changed
    return graph


def steps(
    graph: Graph, *, exact: bool = False, operands: DType | None = None
) -> Iterator[tuple[str, Graph]]:
    """The name of each rewrite in turn, with the graph after it."""
    last = () if operands is None else (low_precision(operands),)
    for run in (*_registered, *FIRST, *(EXACT if exact else INEXACT), *PASSES, *last):
        changed, name = run(graph), getattr(run, "__name__", "rewrite")
        ends = [(one.inputs, one.outputs) for one in (graph, changed)]
        if ends[0] != ends[1]:
            raise CompileError(f"the pass '{name}' changes what '{graph.name}' takes or makes")
        graph = changed
        yield name, graph
