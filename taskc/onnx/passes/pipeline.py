"""The table of contents of the rewrites of graphs: which run, in which order, and why."""

from __future__ import annotations

from collections.abc import Callable

from taskc.onnx.graph import Graph
from taskc.onnx.passes.blocked_images import blocked_images
from taskc.onnx.passes.exact_sums import exact_sums

Pass = Callable[[Graph], Graph]

PASSES: tuple[Pass, ...] = (
    # It looks at who reads a convolution's results, and those are the readers that there are in the end.
    blocked_images,
)


def rewritten(graph: Graph, *, exact: bool = False) -> Graph:
    """The graph after all rewrites; it has the same inputs and outputs.

    exact  sums are added up as the operators' definitions say
    """
    for run in (*PASSES, *((exact_sums,) if exact else ())):
        graph = run(graph)
    return graph
