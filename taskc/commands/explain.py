"""taskc explain: show what a model becomes: kernels, the nodes in each, and bytes moved.

Shows an ONNX model before and after it is compiled, for inputs of the given extents: its operators;
then each call of a kernel with the nodes that it took in, and the bytes of what it reads and writes.

  taskc explain model.onnx --dim batch=8
  taskc explain model.onnx --html model.html

  taskc explain SCRIPT

Runs a script of Python if its name ends in `.py`, and shows the segments that its arrays noted: why
each one ended, and where.

Between them are the rewrites of its graph that found something. Nodes that became no call were
computed ahead, are shape arithmetic, or only name memory anew. A page has both graphs drawn.
"""

from __future__ import annotations

import argparse
import runpy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from math import prod
from pathlib import Path

import taskc as tc
from taskc.arrays.packed import slots_of
from taskc.commands.loading import add_model, feeds_of
from taskc.commands.terminal import (
    UsageError,
    add_json,
    columns,
    write,
    write_json,
    write_text,
)
from taskc.dataclass import dataclass
from taskc.format import bytes_text, many
from taskc.ir.nodes import Tensor
from taskc.markup import Markup, cell, facts_list, joined, number, page, section, table, tag
from taskc.onnx.passes.pipeline import steps as rewriting_steps
from taskc.operators.graph import Graph
from taskc.output_file import write_whole
from taskc.programs.definition import ProgramDefinition
from taskc.programs.ir import Call, Program, calls_of
from taskc.progress import Progress
from taskc.runtime.driver import scheduled

# --- Drawings of graphs ------------------------------------------------------------------------

_WIDTH, _HEIGHT = 210, 40  # of a box
_BESIDE, _BELOW = 26, 30  # between boxes
_LONGEST = 28  # letters of a line in a box


@dataclass(frozen=True, slots=True)
class Box:
    """A vertex of a graph.

    title, line  its text
    note         its tooltip
    behind       the numbers of the boxes that it reads, each less than its own
    """

    title: str
    line: str
    note: str
    behind: tuple[int, ...]


def drawn(boxes: Sequence[Box]) -> Markup:
    places = _places(boxes)
    width = max((x for x, _ in places), default=0) + _WIDTH + _BESIDE
    height = max((y for _, y in places), default=0) + _HEIGHT + _BELOW
    lines = [
        _line(places[one], place)
        for place, box in zip(places, boxes, strict=True)
        for one in dict.fromkeys(box.behind)
    ]
    shown = [_box(box, *place) for box, place in zip(boxes, places, strict=True)]
    # Full size: the page scrolls.
    return tag(
        "svg", joined(lines), joined(shown), xmlns="http://www.w3.org/2000/svg", width=width,
        height=height, viewBox=f"0 0 {width} {height}", role="img",
    )  # fmt: skip


def _places(boxes: Sequence[Box]) -> list[tuple[int, int]]:
    """The upper left corners; the boxes of a layer are ordered by the mean position of the boxes that they read."""
    layers: list[list[int]] = []
    layer_of: list[int] = []
    for place, box in enumerate(boxes):
        layer = 1 + max((layer_of[one] for one in box.behind), default=-1)
        layer_of.append(layer)
        layers += [[] for _ in range(layer + 1 - len(layers))]
        layers[layer].append(place)
    across = [0.0] * len(boxes)
    for layer_boxes in layers:
        layer_boxes.sort(key=lambda one: _mean(across[other] for other in boxes[one].behind))
        for place, box_number in enumerate(layer_boxes):
            across[box_number] = place - (len(layer_boxes) - 1) / 2
    first = min(across, default=0.0)
    return [
        (
            int((x - first) * (_WIDTH + _BESIDE)) + _BESIDE // 2,
            layer * (_HEIGHT + _BELOW) + _BELOW // 2,
        )
        for x, layer in zip(across, layer_of, strict=True)
    ]


def _mean(numbers: Iterable[float]) -> float:
    listed = [*numbers]
    return sum(listed) / len(listed) if listed else 0.0


def _line(start: tuple[int, int], end: tuple[int, int]) -> Markup:
    x, y = start[0] + _WIDTH // 2, start[1] + _HEIGHT
    u, v = end[0] + _WIDTH // 2, end[1]
    # A line across several layers bends around their boxes.
    aside = 0 if v - y <= _BELOW else _WIDTH
    path = f"M{x} {y}C{x + aside} {y + _BELOW} {u + aside} {v - _BELOW} {u} {v}"
    return tag("path", d=path, style="fill:none;stroke:var(--soft);stroke-opacity:.6")


def _box(box: Box, x: int, y: int) -> Markup:
    frame = tag(
        "rect", x=x, y=y, width=_WIDTH, height=_HEIGHT, rx=5,
        style="fill:var(--card);stroke:var(--line)",
    )  # fmt: skip
    style = "font:12px system-ui,sans-serif;fill:var(--ink)"
    title = tag("text", _cut(box.title), x=x + 8, y=y + 16, style=f"{style};font-weight:600")
    line = tag("text", _cut(box.line), x=x + 8, y=y + 32, style=style)
    return tag("g", tag("title", box.note), frame, title, line)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


# --- The page of `taskc explain --html`: rewrites, each kernel, and drawings of both graphs


def page_of(
    graph: Graph,
    running: Program,
    calls: Sequence[Step],
    rewrites: Sequence[Rewrite],
    total: Traffic,
) -> str:
    """A self-contained page."""
    facts = {
        "nodes": str(len(graph.nodes)),
        "calls of kernels": str(len(calls)),
        "moved": bytes_text(total.after),
        "moved before fusing": bytes_text(total.before),
        "inputs, weights, outputs": bytes_text(total.least),
    }
    rewritten = [(cell(rewrite.name), cell(str(rewrite))) for rewrite in rewrites]
    rows = [(cell(call.kernel), cell(call.title), number(call.moved, bytes_text)) for call in calls]
    return page(
        graph.name or "model",
        facts_list(facts.items()),
        section("Rewrites", table(("pass", "what it made"), rewritten))
        if rewritten
        else Markup(""),
        section("Calls, as they run", table(("kernel", "nodes", "moved"), rows, sorts=True)),
        section("The graph of calls", tag("div", drawn(_of_calls(running, calls)), class_="wide")),
        section("The graph of the model", tag("div", drawn(_of_nodes(graph)), class_="wide")),
    )


def _of_calls(running: Program, steps: Sequence[Step]) -> list[Box]:
    """A box for each call, with the calls whose results it reads, also through views."""
    whole = {view.tensor: view.of for view in running.views}
    writers: dict[Tensor, int] = {}
    boxes: list[Box] = []
    for place, (call, step) in enumerate(zip(calls_of(running.calls), steps, strict=True)):
        tensors = [_whole(whole, item) for item in call.arguments if isinstance(item, Tensor)]
        behind = tuple([writers[tensor] for tensor in tensors if tensor in writers])
        size = bytes_text(step.moved)
        boxes.append(Box(step.kernel, size, f"{step.kernel}\n{step.title}", behind))
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


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel call: the titles of the nodes fused into it, and the bytes of its arguments."""

    kernel: str
    nodes: tuple[str, ...]
    moved: int

    @property
    def title(self) -> str:
        return "; ".join(self.nodes) or "(of no node: what the program needs between)"


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
    for name, rewritten in rewriting_steps(graph):
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


def _explain_script(options: argparse.Namespace) -> int:
    """Run a script, and show the segments of its arrays."""
    try:
        runpy.run_path(options.model, run_name="__main__")
    except FileNotFoundError as error:
        raise UsageError(f"{options.model} can't be read: {error}") from None
    if options.json:
        write_json({"script": options.model, "segments": tc.numpy.segments()})
    else:
        write_text(tc.numpy.explain())
    return 0


def run(options: argparse.Namespace) -> int:
    if options.model.endswith(".py"):
        return _explain_script(options)
    with Progress() as progress:
        progress(f"tracing {options.model}")
        model = tc.compile(options.model)
        program = model.program(feeds_of(model, options)).program
        calls, traffic = steps_of(program), traffic_of(program)
        rewrites = rewrites_of(model.graph)
    if options.html is not None:
        text = page_of(model.graph, scheduled(program)[0], calls, rewrites, traffic)
        try:
            write_whole(options.html, text)
        except OSError as error:
            raise UsageError(f"{options.html} can't be written: {error}") from None
    operators = Counter(node.operator for node in model.graph.nodes).most_common()
    if options.json:
        answer = {"model": options.model, "operators": dict(operators)}
        answer |= {"rewrites": [asdict(rewrite) for rewrite in rewrites]}
        answer |= {"calls": [asdict(step) for step in calls], "bytes": asdict(traffic)}
        write_json(answer)
        return 0
    write(("before: ", "bold"), many(len(model.graph.nodes), "node"), end="")
    write(f": {', '.join(f'{count} {name}' for name, count in operators)}")
    for rewrite in rewrites:
        write((f"{rewrite.name}: ", "bold"), str(rewrite))
    before = sum(1 for _ in calls_of(program.ir.calls))
    write(("after: ", "bold"), f"{many(len(calls), 'call')}, of {before} before they became one")
    if calls:
        lines = [(step.kernel, bytes_text(step.moved), step.title) for step in calls]
        write_text(columns(lines, margin="  ", right=(1,)))
    write(
        ("moved: ", "bold"),
        f"{bytes_text(traffic.after)}, of {bytes_text(traffic.before)} before",
        end="",
    )
    write(f"; inputs, weights and outputs alone are {bytes_text(traffic.least)}")
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
