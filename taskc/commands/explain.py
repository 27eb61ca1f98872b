"""taskc explain: what a model becomes: its kernels, the nodes that each took in, and the bytes that it moves."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from math import prod

import taskc as tc
from taskc.commands.models import add_model, feeds_of
from taskc.commands.options import add_json
from taskc.commands.terminal import Progress, columns, many, write, write_text
from taskc.driver import scheduled
from taskc.ir.nodes import Tensor
from taskc.ir.program import Call, calls_of
from taskc.lang.program import ProgramDefinition
from taskc.packed import slots_of

SUMMARY = "show what a model becomes: kernels, the nodes in each, and bytes moved"
DESCRIPTION = """\
Shows an ONNX model before and after it is compiled, for inputs of the given extents: its operators;
then each call of a kernel with the nodes that it took in, and the bytes of what it reads and writes.

  taskc explain model.onnx --dim batch=8

Nodes that became no call were computed ahead, are shape arithmetic, or only name memory anew.
"""


@dataclass(frozen=True, slots=True)
class Step:
    """A call of a kernel: the titles of the nodes that it took in, and the bytes of its arguments."""

    kernel: str
    nodes: tuple[str, ...]
    moved: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of all calls' arguments, before calls became one and after; `least` is of inputs, weights and outputs."""

    before: int
    after: int
    least: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    with Progress() as progress:
        progress(f"tracing {options.model}")
        model = tc.compile(options.model)
        program = model.program(feeds_of(model, options)).program
        steps, traffic = steps_of(program), traffic_of(program)
    operators = Counter(node.operator for node in model.graph.nodes).most_common()
    if options.json:
        answer = {"model": options.model, "operators": dict(operators)}
        answer |= {"calls": [asdict(step) for step in steps], "bytes": asdict(traffic)}
        write_text(json.dumps(answer, indent=2))
        return 0
    write(("before: ", "bold"), many(len(model.graph.nodes), "node"), end="")
    write(f": {', '.join(f'{count} {name}' for name, count in operators)}")
    before = sum(1 for _ in calls_of(program.ir.calls))
    write(("after: ", "bold"), f"{many(len(steps), 'call')}, of {before} before they became one")
    if steps:
        rows = [(step.kernel, _size(step.moved), _shown(step.nodes)) for step in steps]
        write_text(columns(rows, margin="  ", right=(1,)))
    write(("moved: ", "bold"), f"{_size(traffic.after)}, of {_size(traffic.before)} before", end="")
    write(f"; inputs, weights and outputs alone are {_size(traffic.least)}")
    return 0


def steps_of(program: ProgramDefinition) -> list[Step]:
    """The calls of a program whose sizes are known, as they run."""
    made, _ = scheduled(program)
    return [
        Step(call.callee.name, _nodes_in(call), _moved([call])) for call in calls_of(made.calls)
    ]


def traffic_of(program: ProgramDefinition) -> Traffic:
    made, traced = scheduled(program)[0], program.ir
    kept = [item for item in made.parameters if isinstance(item, Tensor)]
    kept += [tensor for tensor, _ in made.constants]
    return Traffic(
        _moved(calls_of(traced.calls)), _moved(calls_of(made.calls)), sum(map(_bytes, kept))
    )


def _nodes_in(call: Call) -> tuple[str, ...]:
    """The titles of the nodes that a call took in. A call that became part of several others is in each."""
    return tuple([place.text for place in call.origins if not place.line and place.text])


def _moved(calls: Iterable[Call]) -> int:
    return sum(_bytes(tensor) for call in calls for tensor in _distinct(call))


def _distinct(call: Call) -> Iterator[Tensor]:
    yield from {item for item in call.arguments if isinstance(item, Tensor)}


def _bytes(tensor: Tensor) -> int:
    """All of a tensor, of which a call may read less."""
    shape = [extent for extent in tensor.argument_shape if isinstance(extent, int)]
    count = prod(shape) if tensor.layout is None else slots_of(tuple(shape), tensor.layout)
    return count * tensor.dtype.nbytes


def _shown(nodes: tuple[str, ...]) -> str:
    return "; ".join(nodes) or "(of no node: what the program needs between)"


def _size(count: int) -> str:
    return f"{count / 1024:.1f} KiB" if count < 1 << 20 else f"{count / (1 << 20):.1f} MiB"
