"""taskc explain: a model's kernels, the nodes fused into each, and the bytes moved."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path

import taskc as tc
from taskc.arrays.packed import slots_of
from taskc.commands.graph_drawing import Box, drawn
from taskc.commands.loading import add_model, feeds_of
from taskc.commands.terminal import Progress, UsageError, add_json, columns, many, write, write_text
from taskc.ir.nodes import Tensor
from taskc.markup import Markup, cell, page, section, table, tag
from taskc.onnx.passes.pipeline import steps
from taskc.operators.graph import Graph
from taskc.output_file import write_whole
from taskc.programs.definition import ProgramDefinition
from taskc.programs.ir import Call, Program, calls_of
from taskc.runtime.driver import scheduled

# --- The page of `taskc explain --html`: rewrites, each kernel, and drawings of both graphs


@dataclass(frozen=True, slots=True)
class Row:
    """A call on the page: its kernel, its nodes, and the bytes that it moves, as a number and as text."""

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
    """A self-contained page."""
    rewrite_cells = [(cell(name), cell(text)) for name, text in rewrites]
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
        tag("dl", *(tag("div", tag("dt", name), tag("dd", text)) for name, text in facts.items())),
        section("Rewrites", table(headings, rewrite_cells)) if rewrite_cells else Markup(""),
        section("Calls, as they run", table(("kernel", "nodes", "moved"), rows, sorts=True)),
        section("The graph of calls", tag("div", drawn(_of_calls(made, calls)), class_="wide")),
        section("The graph of the model", tag("div", drawn(_of_nodes(graph)), class_="wide")),
    )


def _of_calls(made: Program, rows: Sequence[Row]) -> list[Box]:
    """A box for each call, with the calls whose results it reads, also through views."""
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


SUMMARY = "show what a model becomes: kernels, the nodes in each, and bytes moved"
DESCRIPTION = """\
Shows an ONNX model before and after it is compiled, for inputs of the given extents: its operators;
then each call of a kernel with the nodes that it took in, and the bytes of what it reads and writes.

  taskc explain model.onnx --dim batch=8
  taskc explain model.onnx --html model.html

Between them are the rewrites of its graph that found something. Nodes that became no call were
computed ahead, are shape arithmetic, or only name memory anew. A page has both graphs drawn.
"""


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel call: the titles of the nodes fused into it, and the bytes of its arguments."""

    kernel: str
    nodes: tuple[str, ...]
    moved: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """The bytes of all calls' arguments before and after fusion; `least` counts inputs, weights and outputs."""

    before: int
    after: int
    least: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with both graphs")
    add_json(parser)


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A pass that changed the graph: the number of nodes of each operator that it removed and added."""

    name: str
    taken: dict[str, int]
    made: dict[str, int]

    def __str__(self) -> str:
        return f"{_counted(self.made)} for {_counted(self.taken)}"


def rewrites_of(graph: Graph) -> list[Rewrite]:
    rewrites, before = [], _operators(graph)
    for name, rewritten in steps(graph):
        operators = _operators(rewritten)
        if operators != before:
            rewrites.append(Rewrite(name, {**(before - operators)}, {**(operators - before)}))
        before = operators
    return rewrites


def _operators(graph: Graph) -> Counter[str]:
    return Counter(f"{node.domain}.{node.operator}".lstrip(".") for node in graph.needed)


def _counted(operators: Mapping[str, int]) -> str:
    """Operators with their numbers, the most frequent first."""
    ordered = sorted(operators.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {name}" for name, count in ordered) or "nothing"


def run(options: argparse.Namespace) -> int:
    with Progress() as progress:
        progress(f"tracing {options.model}")
        model = tc.compile(options.model)
        program = model.program(feeds_of(model, options)).program
        calls, traffic = steps_of(program), traffic_of(program)
        rewrites = rewrites_of(model.graph)
    if options.html is not None:
        facts = {
            "nodes": str(len(model.graph.nodes)),
            "calls of kernels": str(len(calls)),
            "moved": _size(traffic.after),
            "moved before fusing": _size(traffic.before),
            "inputs, weights, outputs": _size(traffic.least),
        }
        rows = [
            Row(step.kernel, _shown(step.nodes), step.moved, _size(step.moved)) for step in calls
        ]
        named = [(rewrite.name, str(rewrite)) for rewrite in rewrites]
        text = page_of(model.graph, scheduled(program)[0], rows, named, facts)
        try:
            write_whole(options.html, text)
        except OSError as error:
            raise UsageError(f"{options.html} can't be written: {error}") from None
    operators = Counter(node.operator for node in model.graph.nodes).most_common()
    if options.json:
        answer = {"model": options.model, "operators": dict(operators)}
        answer |= {"rewrites": [asdict(rewrite) for rewrite in rewrites]}
        answer |= {"calls": [asdict(step) for step in calls], "bytes": asdict(traffic)}
        write_text(json.dumps(answer, indent=2))
        return 0
    write(("before: ", "bold"), many(len(model.graph.nodes), "node"), end="")
    write(f": {', '.join(f'{count} {name}' for name, count in operators)}")
    for rewrite in rewrites:
        write((f"{rewrite.name}: ", "bold"), str(rewrite))
    before = sum(1 for _ in calls_of(program.ir.calls))
    write(("after: ", "bold"), f"{many(len(calls), 'call')}, of {before} before they became one")
    if calls:
        lines = [(step.kernel, _size(step.moved), _shown(step.nodes)) for step in calls]
        write_text(columns(lines, margin="  ", right=(1,)))
    write(
        ("moved: ", "bold"),
        f"{_size(traffic.after)}, of {_size(traffic.before)} before",
        end="",
    )
    write(f"; inputs, weights and outputs alone are {_size(traffic.least)}")
    return 0


def steps_of(program: ProgramDefinition) -> list[Step]:
    """The calls of a program with known sizes, as they run."""
    lowered, _ = scheduled(program)
    return [
        Step(call.callee.name, _nodes_in(call), _moved([call])) for call in calls_of(lowered.calls)
    ]


def traffic_of(program: ProgramDefinition) -> Traffic:
    lowered, traced = scheduled(program)[0], program.ir
    fixed = [item for item in lowered.parameters if isinstance(item, Tensor)]
    fixed += [tensor for tensor, _ in lowered.constants]
    return Traffic(
        _moved(calls_of(traced.calls)), _moved(calls_of(lowered.calls)), sum(map(_bytes, fixed))
    )


def _nodes_in(call: Call) -> tuple[str, ...]:
    """The titles of the nodes fused into a call; a node fused into several calls is in each."""
    return tuple([place.text for place in call.origins if not place.line and place.text])


def _moved(calls: Iterable[Call]) -> int:
    return sum(_bytes(tensor) for call in calls for tensor in _distinct(call))


def _distinct(call: Call) -> Iterator[Tensor]:
    yield from {item for item in call.arguments if isinstance(item, Tensor)}


def _bytes(tensor: Tensor) -> int:
    """The bytes of a whole tensor, of which a call may read less."""
    shape = [extent for extent in tensor.argument_shape if isinstance(extent, int)]
    count = prod(shape) if tensor.layout is None else slots_of(tuple(shape), tensor.layout)
    return tensor.dtype.bytes_of(count)


def _shown(nodes: tuple[str, ...]) -> str:
    return "; ".join(nodes) or "(of no node: what the program needs between)"


def _size(count: int) -> str:
    return f"{count / 1024:.1f} KiB" if count < 1 << 20 else f"{count / (1 << 20):.1f} MiB"
