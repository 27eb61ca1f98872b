"""taskc verify: compare a model with ONNX Runtime, and find the first node that departs.

Runs an ONNX model here and in ONNX Runtime, on the same inputs, and says how far each output
is off: by the largest difference over the output's standard deviation (or a thousandth of the
largest element, if that is more). Integers are to be equal.

  taskc verify model.onnx --dim batch=8
  taskc verify model.onnx --input tokens=tokens.npy --tolerance 1e-4

Where an output is off by more than the tolerance, both run again with the outputs of all nodes as
outputs of the model. A node whose outputs are off is computed once more in float64, from the inputs
that it had in either run. It departs if taskc is further from float64 than ONNX Runtime, and than
rounding the node's inputs and outputs explains. The first such node is named, and the exit code is
1. What is computed then isn't fused as before, so that a mistake in fusing may hide.

  taskc verify model.onnx --precision bf16

says how far outputs are off by less precise products: from the model as it runs here in f32.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

import taskc as tc
from taskc.arrays.arguments import Array
from taskc.commands.loading import add_model, add_precision, feeds_of
from taskc.commands.terminal import add_json, columns, write, write_json, write_text
from taskc.dataclass import dataclass
from taskc.errors import NOWHERE
from taskc.onnx.partitions import RuntimeSession, cut, reads_of
from taskc.onnx.serialized import ModelProto, NodeProto, text
from taskc.progress import Progress
from taskc.runtime.machine import machine

_TOLERANCES = {"f32": 1e-3, "bf16": 1e-1}
_ROUNDINGS = 4  # by so many a node's inputs and outputs may be off
_EVALUATED = 21  # the version that nodes are converted to where the evaluator lacks theirs


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
        agrees = all(error <= tolerance for error in errors.values())
        departure, by_nodes = None, None
        if is_precise and not agrees:
            progress("comparing all nodes")
            runs = RunsByNodes.of(options.model, feeds, options.target)
            departure = runs.first_departure(tolerance)
            by_nodes = [runs.ours[value.name] for value in model.outputs]
            agrees = departure is None and all(
                error_of(fused, alone) <= tolerance
                for fused, alone in zip(made, by_nodes, strict=True)
            )
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
    if agrees and by_nodes:
        write((f"beyond the tolerance of {tolerance:g}, and no node departs", "bold green"), end="")
        write(": each is as near to float64 as ONNX Runtime, or as rounding allows")
        return 0
    if agrees:
        write(("all within the tolerance", "bold green"), f" of {tolerance:g}")
        return 0
    write((f"beyond the tolerance of {tolerance:g}", "bold red"))
    if not is_precise:
        return 1
    if departure is None:
        write("no node departs, where what is between them isn't fused")
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
    """The largest difference over the spread of the expected output; for integers, the difference."""
    if made.dtype != expected.dtype:
        return float("inf")
    largest = _difference(made, expected)
    if made.dtype.kind in "biu" or largest in (0, np.inf):
        return largest
    finite = expected[np.isfinite(expected)].astype(np.float64)
    spread = max(finite.std(), np.abs(finite).max() / 1000)
    return largest / float(spread) if spread else np.inf


def _difference(a: Array, b: Array) -> float:
    """The largest difference between two arrays; infinite for other shapes, or elements that aren't finite."""
    if a.shape != b.shape:
        return np.inf
    a, b = a.astype(np.float64), b.astype(np.float64)
    differs = (a != b) & ~(np.isnan(a) & np.isnan(b))
    largest = np.abs(a[differs] - b[differs]).max(initial=0.0)
    return float(largest) if np.isfinite(largest) else np.inf


def _evaluator(model: ModelProto) -> Any:
    """The package onnx's evaluator, which lacks the older versions of some operators."""
    from onnx.reference import ReferenceEvaluator
    from onnx.version_converter import convert_version

    try:
        return ReferenceEvaluator(model)
    except RuntimeError:
        return ReferenceEvaluator(convert_version(model, _EVALUATED))


@dataclass(frozen=True, slots=True)
class RunsByNodes:
    """A model's tensors by name, weights and inputs included, of a run here and of one in ONNX Runtime."""

    proto: ModelProto
    ours: dict[str, Array]
    theirs: dict[str, Array]

    @staticmethod
    def of(path: str, feeds: Mapping[str, Array], target: str) -> RunsByNodes:
        from onnx import numpy_helper

        nodes = tc.onnx.extract_model(path).graph.node
        names = [text(name) for node in nodes for name in node.output if name]
        part = tc.onnx.extract_model(path, outputs=names)
        model = tc.compile(part, target)
        given = {value.name: feeds[value.name] for value in model.inputs}
        ours = model.run(None, given)
        theirs = RuntimeSession(part.SerializeToString(), machine().threads).run(given)
        weights = {text(one.name): numpy_helper.to_array(one) for one in part.graph.initializer}
        return RunsByNodes(
            part,
            weights | given | dict(zip(names, ours, strict=True)),
            weights | given | dict(zip(names, theirs, strict=True)),
        )

    def first_departure(self, tolerance: float) -> Departure | None:
        """The first node, in execution order, whose outputs are off, and not by rounding."""
        for node in self.proto.graph.node:
            outputs = [text(name) for name in node.output if name]
            errors = {name: error_of(self.ours[name], self.theirs[name]) for name in outputs}
            beyond = [name for name in outputs if errors[name] > tolerance]
            if beyond and not self._is_explained(node, beyond):
                worst = max(beyond, key=errors.__getitem__)
                called = f"'{text(node.name)}'" if node.name else f"that makes '{outputs[0]}'"
                return Departure(f"{text(node.op_type)} node {called}", worst, errors[worst])
        return None

    def _is_explained(self, node: NodeProto, outputs: Sequence[str]) -> bool:
        """Whether these outputs are as near to float64 here as in ONNX Runtime, or as rounding allows."""
        inputs = sorted(reads_of(node))
        random = np.random.default_rng(0)

        def in_float64(arrays: Mapping[str, Array], rounding: float = 0.0) -> list[Array]:
            """The outputs for these inputs, each with an error of so many roundings to its type."""
            feeds = {name: arrays[name] for name in inputs}
            for name, array in feeds.items():
                if array.dtype.kind == "f":
                    error = (
                        rounding * np.finfo(array.dtype).eps * random.uniform(-1, 1, array.shape)
                    )
                    feeds[name] = array.astype(np.float64) * (1 + error)
            results: list[Array] = evaluator.run(None, feeds)
            return results

        try:
            evaluator = _evaluator(cut(self.proto, NOWHERE, inputs, outputs))
            exact, exact_theirs = in_float64(self.ours), in_float64(self.theirs)
            nearby = [in_float64(self.ours, _ROUNDINGS) for _ in range(2)]
        except Exception:
            # Of an operator that the package doesn't compute; its errors have no class in common.
            return False
        for position, name in enumerate(outputs):
            ours, value = self.ours[name], exact[position]
            allowed = max(_difference(one[position], value) for one in nearby)
            if ours.dtype.kind == "f":
                finite = np.abs(value[np.isfinite(value)]).max(initial=0.0)
                allowed += _ROUNDINGS * float(np.finfo(ours.dtype).eps * finite)
            theirs = _difference(self.theirs[name], exact_theirs[position])
            if _difference(ours, value) > max(theirs, allowed):
                return False
        return True
