"""The page of `taskc explain --html`: what rewrites found, each kernel, and both graphs, drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from taskc.commands.graph_drawing import Box, drawn
from taskc.ir.nodes import Tensor
from taskc.ir.program import Program, calls_of
from taskc.markup import Markup, cell, page, section, table, tag
from taskc.operators.graph import Graph


@dataclass(frozen=True, slots=True)
class Row:
    """A call as the page has it: its kernel, the nodes in it, and the bytes that it moves, as a number and as text."""

    kernel: str
    nodes: str
    moved: int
    size: str


def page_of(
    graph: Graph,
    made: Program,
    calls: Sequence[Row],
    rewrites: Iterable[tuple[str, str]],
    facts: Mapping[str, str],
) -> str:
    """One file that asks for nothing else."""
    found = [(cell(name), cell(text)) for name, text in rewrites]
    rows = [
        (
            cell(row.kernel),
            cell(row.nodes),
            tag("td", row.size, class_="number", data_key=row.moved),
        )
        for row in calls
    ]
    headings = ("pass", "what it made")
    return page(
        graph.name or "model",
        tag("dl", *(tag("div", tag("dt", name), tag("dd", it)) for name, it in facts.items())),
        section("Rewrites", table(headings, found)) if found else Markup(""),
        section("Calls, as they run", table(("kernel", "nodes", "moved"), rows, sorts=True)),
        section("The graph of calls", tag("div", drawn(_of_calls(made, calls)), class_="wide")),
        section("The graph of the model", tag("div", drawn(_of_nodes(graph)), class_="wide")),
    )


def _of_calls(made: Program, rows: Sequence[Row]) -> list[Box]:
    """Each call reads what calls before have written, also by views of it."""
    whole = {view.tensor: view.of for view in made.views}
    writers: dict[Tensor, int] = {}
    boxes: list[Box] = []
    for place, (call, row) in enumerate(zip(calls_of(made.calls), rows, strict=True)):
        tensors = [_whole(whole, item) for item in call.arguments if isinstance(item, Tensor)]
        behind = tuple([writers[tensor] for tensor in tensors if tensor in writers])
        boxes.append(Box(row.kernel, row.size, f"{row.kernel}\n{row.nodes}", behind))
        for given, parameter in zip(call.arguments, call.callee.parameters, strict=True):
            is_written = isinstance(parameter, Tensor) and parameter.role in ("out", "inout")
            if isinstance(given, Tensor) and is_written:
                writers[_whole(whole, given)] = place
    return boxes


def _whole(views: dict[Tensor, Tensor], tensor: Tensor) -> Tensor:
    while tensor in views:
        tensor = views[tensor]
    return tensor


def _of_nodes(graph: Graph) -> list[Box]:
    makers = {name: place for place, node in enumerate(graph.nodes) for name in node.outputs}
    return [
        Box(
            node.operator,
            node.name or next(filter(None, node.outputs), ""),
            str(node),
            tuple([makers[name] for name in node.reads if name in makers]),
        )
        for node in graph.nodes
    ]
