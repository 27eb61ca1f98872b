"""The table of contents of the rewrites of graphs: which run, in which order, and why."""

from __future__ import annotations

from collections.abc import Callable

from taskc.onnx.graph import Graph
from taskc.onnx.passes.blocked_images import blocked_images

Pass = Callable[[Graph], Graph]

PASSES: tuple[Pass, ...] = (
    # It looks at who reads a convolution's results, and those are the readers that there are in the end.
    blocked_images,
)


def rewritten(graph: Graph) -> Graph:
    """The graph after all rewrites; it has the same inputs and outputs."""
    for run in PASSES:
        graph = run(graph)
    return graph
