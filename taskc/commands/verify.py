"""taskc verify: compare a model with ONNX Runtime, and find the first node that departs.

Runs an ONNX model here and in ONNX Runtime, on the same inputs, and says how far each output
is off: by the largest difference over the output's standard deviation. Integers are to be equal.

  taskc verify model.onnx --dim batch=8
  taskc verify model.onnx --input tokens=tokens.npy --tolerance 1e-4

Where an output is off by more than the tolerance, both run again with the outputs of all nodes as
outputs of the model; the first node whose are off is named, and the exit code is 1. What is
computed then isn't fused as before, so that a mistake in fusing may hide.

  taskc verify model.onnx --precision bf16

says how far outputs are off by less precise products: from the model as it runs here in f32.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import asdict

import numpy as np

import taskc as tc
from taskc.arrays.arguments import Array
from taskc.commands.loading import add_model, add_precision, feeds_of
from taskc.commands.terminal import add_json, columns, write, write_json, write_text
from taskc.dataclass import dataclass
from taskc.onnx.partitions import RuntimeSession
from taskc.progress import Progress
from taskc.runtime.machine import machine

_TOLERANCES = {"f32": 1e-3, "bf16": 1e-1}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_precision(parser)
    parser.add_argument(
        "--target", choices=("cpu", "cuda"), default="cpu", help="where it runs (default cpu)"
    )
    parser.add_argument(
        "--tolerance", metavar="E", type=float,
        help="how far an output may be off (default 1e-3, and 0.1 of bf16)",
    )  # fmt: skip
    add_json(parser)


@dataclass(frozen=True, slots=True)
class Departure:
    """The first node with outputs that are off, and the worst of these outputs."""

    node: str
    output: str
    error: float


def run(options: argparse.Namespace) -> int:
    is_precise = options.precision == "f32"
    tolerance = _TOLERANCES[options.precision] if options.tolerance is None else options.tolerance
    with Progress() as progress:
        progress(f"running {options.model}")
        model = tc.compile(options.model, options.target, precision=options.precision)
        feeds = feeds_of(model, options)
        expected = _expected(options, feeds)
        made = model.run(None, feeds)
        errors = dict(
            zip([it.name for it in model.outputs], map(error_of, made, expected), strict=True)
        )
        agrees = all(_is_within(error, tolerance) for error in errors.values())
        departure = None
        if is_precise and not agrees:
            progress("comparing all nodes")
            departure = first_departure(options.model, feeds, tolerance, options.target)
    if options.json:
        shown = {
            name: error if np.isfinite(error) else str(error) for name, error in errors.items()
        }
        first = None if departure is None else asdict(departure)
        answer = {"model": options.model, "tolerance": tolerance, "errors": shown}
        answer["against"] = "onnxruntime" if is_precise else "f32"
        write_json(answer | {"agrees": agrees, "first_departure": first})
        return 0 if agrees else 1
    write_text(columns([(name, f"off by {error:.2e}") for name, error in errors.items()]))
    if agrees:
        write(("all within the tolerance", "bold green"), f" of {tolerance:g}")
        return 0
    write((f"beyond the tolerance of {tolerance:g}", "bold red"))
    if not is_precise:
        return 1
    if departure is None:
        write("each node alone is within it, where what is between them isn't fused")
    else:
        write(("the first node that departs: ", "bold"), departure.node, end="")
        write(f", whose output '{departure.output}' is off by {departure.error:.2e}")
    return 1


def _expected(options: argparse.Namespace, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs of ONNX Runtime; or of this model in f32, to measure the cost of lower precision."""
    if options.precision == "f32":
        return RuntimeSession(options.model, machine().threads).run(feeds)
    outputs: list[Array] = tc.compile(options.model, options.target).run(None, feeds)
    return outputs


def error_of(made: Array, expected: Array) -> float:
    """The largest difference over the standard deviation of the expected output; for integers, the difference."""
    if made.shape != expected.shape or made.dtype != expected.dtype:
        return float("inf")
    a, b = made.astype(np.float64), expected.astype(np.float64)
    differs = (a != b) & ~(np.isnan(a) & np.isnan(b))
    if not differs.any():
        return 0.0
    largest = np.abs(a[differs] - b[differs]).max()
    if made.dtype.kind in "biu":
        return float(largest)
    if not np.isfinite(largest):
        return float("inf")
    return float(largest / max(b[np.isfinite(b)].std(), 1e-6))


def _is_within(error: float, tolerance: float) -> bool:
    return error <= tolerance


def first_departure(
    path: str, feeds: Mapping[str, Array], tolerance: float, target: str
) -> Departure | None:
    """The first node, in execution order, where a model departs from ONNX Runtime."""
    titles = dict(_makers(path))
    part = tc.onnx.extract_model(path, outputs=[*titles])
    model = tc.compile(part, target)
    needed_feeds = {value.name: feeds[value.name] for value in model.inputs}
    expected = RuntimeSession(part.SerializeToString(), machine().threads).run(needed_feeds)
    worst: dict[str, Departure] = {}
    for name, mine, theirs in zip(titles, model.run(None, needed_feeds), expected, strict=True):
        error = error_of(mine, theirs)
        if not _is_within(error, tolerance):
            known = worst.get(titles[name])
            if known is None or error > known.error:
                worst[titles[name]] = Departure(titles[name], name, error)
    return next(iter(worst.values()), None)


def _makers(path: str) -> Iterator[tuple[str, str]]:
    """Each tensor that a node makes, with the node's title."""
    from taskc.onnx.reader import load
    from taskc.onnx.serialized import text

    for node in load(path)[0].graph.node:
        outputs = [text(name) for name in node.output if name]
        called = f"'{text(node.name)}'" if node.name else f"that makes '{outputs[0]}'"
        yield from ((name, f"{text(node.op_type)} node {called}") for name in outputs)
