"""taskc run: run a kernel, a program, a model (FILE.onnx) or a bundle (FILE.taskc) on example inputs.

Runs a kernel, a program, an ONNX model or a bundle on example inputs, and prints the outputs' shapes,
a digest of their bits, and the median time of a call, whose first ones don't count.

  taskc run examples/01_vector_add.py:vector_add
  taskc run model.onnx --dim batch=8
  taskc run model.taskc
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from taskc.arrays.arguments import Array
from taskc.commands.loading import (
    add_feeds,
    add_precision,
    arguments_of,
    example_of,
    feeds_of,
    is_bundle,
    is_model,
    load_kernel,
    loaded,
)
from taskc.commands.terminal import (
    UsageError,
    add_json,
    add_kernel,
    positive,
    write,
    write_json,
)
from taskc.format import many, time_text
from taskc.ir import nodes as ir
from taskc.ir.signature import inputs_of, named_type, outputs_of
from taskc.ir.types import DType, from_numpy
from taskc.lang.definition import Definition
from taskc.progress import Progress
from taskc.runtime.bundle import BundledProgram
from taskc.runtime.checking import comparison_across_targets
from taskc.runtime.driver import call
from taskc.runtime.machine import machine
from taskc.runtime.settings import target_name
from taskc.runtime.targets import default_target, finish_compiling
from taskc.tune.timing import seconds

_WARM = 3  # untimed calls
_CLOSE = {16: 1e-2, 32: 1e-4, 64: 1e-9}  # tolerances by the bits of a float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kernel(parser, or_model=True)
    parser.add_argument(
        "--repeat", metavar="N", type=positive, default=20, help="calls to time (default 20)"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="compare with the simulator: bit for bit, closely where there are mathematical functions\n"
        "or sums of floats by atomics; exits with 1 where it differs",
    )
    parser.add_argument(
        "--target",
        choices=("cpu", "sim", "cuda"),
        metavar="T",
        help="where it runs: cpu, sim or cuda",
    )
    parser.add_argument(
        "--tier",
        choices=("quick", "full"),
        metavar="T",
        help="quick: time the code that is made first; full: make only full code, as TASKC_TIER does",
    )
    add_feeds(parser)
    add_precision(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    if options.tier:
        os.environ["TASKC_TIER"] = options.tier
    if is_model(options.kernel) or is_bundle(options.kernel):
        return _run_model(options)
    if options.dim or options.input or options.precision != "f32":
        raise UsageError("--dim, --input and --precision are of models: a kernel has its own")
    definition = load_kernel(options.kernel)
    arguments = example_of(definition)
    target = options.target or target_name(_default_target(definition))
    outputs, _ = _outcome(definition, arguments, options.target)
    times = _times(definition, arguments, options)
    answer: dict[str, Any] = {
        "kernel": options.kernel,
        **_described(outputs, times, target),
    }
    comparison, different = "", ""
    if options.check:
        expected, _ = _outcome(definition, arguments, "sim")
        comparison = comparison_across_targets(definition)
        different = _first_deviation(outputs, expected, comparison)
        answer |= {"comparison": comparison, "difference": different}
    if options.json:
        write_json(answer)
        return 1 if different else 0
    types = {item.name: item.dtype for item in definition.ir.parameters}
    _write_outcome(outputs, types, answer)
    if different:
        write(("not what the simulator gives: ", "bold red"), different)
    elif options.check:
        write((_AGREES[comparison], "bold green"))
    return 1 if different else 0


def _run_model(options: argparse.Namespace) -> int:
    if options.check or options.target == "sim":
        raise UsageError("models don't run in the simulator; taskc verify compares them")
    target = options.target or "cpu"
    start = time.perf_counter()
    with Progress() as progress:
        progress(f"compiling {options.kernel}")
        names, once = _prepared(options)
        outputs = once()
    first = time.perf_counter() - start
    finish_compiling()
    for _ in range(_WARM):
        once()
    times = [seconds(once) for _ in range(options.repeat)]
    outputs_by_name = dict(zip(names, outputs, strict=True))
    answer = {"model": options.kernel, **_described(outputs_by_name, times, target)}
    answer["compile_s"] = first - statistics.median(times)
    if options.json:
        write_json(answer)
        return 0
    _write_outcome(
        outputs_by_name,
        {name: from_numpy(array.dtype) for name, array in outputs_by_name.items()},
        answer,
    )
    did = "loaded" if is_bundle(options.kernel) else "read and compiled"
    write(f"{did} in {time_text(answer['compile_s'], 's', '.3g')}")
    return 0


def _prepared(options: argparse.Namespace) -> tuple[list[str], Callable[[], list[Any]]]:
    """The names of the outputs of a model or a bundle, and a function that calls it."""
    found = loaded(options.kernel, options.precision, options.target or "cpu")
    if not isinstance(found, BundledProgram):
        feeds = feeds_of(found, options)
        return [output.name for output in found.outputs], lambda: found.run(None, feeds)
    arguments = arguments_of(found, options)
    names = [output.name for output in outputs_of(found.ir.parameters)]

    def once() -> list[Any]:
        returned = found(*arguments)
        return [*returned] if isinstance(returned, tuple) else [returned][: len(names)]

    return names, once


def _described(made: Mapping[str, Array], times: Sequence[float], target: str) -> dict[str, Any]:
    return {
        "target": target,
        "threads": machine().threads if target == "cpu" else 1,
        "outputs": [
            {"name": name, "type": str(array.dtype), "shape": array.shape, "digest": _digest(array)}
            for name, array in made.items()
        ],
        "calls": len(times),
        "median_ms": statistics.median(times) * 1e3,
    }


def _write_outcome(
    made: Mapping[str, Array], types: Mapping[str, DType], answer: dict[str, Any]
) -> None:
    for name, array in made.items():
        write((name, "bold"), f": {named_type(types[name], array.shape)}, digest {_digest(array)}")
    on = f"{answer['target']}, {many(answer['threads'], 'thread')}"
    write(
        f"{time_text(answer['median_ms'] / 1e3, 'ms', '.3g')}, the median of {many(answer['calls'], 'call')} ({on})"
    )


_AGREES = {
    "exact": "the same bits as in the simulator",
    "close": "close to what the simulator gives: mathematical functions, and sums by atomics, round "
    "their own way",
    "none": "not compared with the simulator: it takes old values from atomics, in any order",
}


def _default_target(definition: Definition) -> str:
    targets = {default_target(kernel.ir) for kernel in definition.kernels}
    return targets.pop() if len(targets) == 1 else "sim"


def _outcome(
    definition: Definition, arguments: tuple[Any, ...], target: str | None
) -> tuple[dict[str, Array], float]:
    """The written arrays of a call on fresh copies, by name, and its seconds."""
    inputs = inputs_of(definition.ir.parameters)
    passed = _copies(inputs, arguments)
    start = time.perf_counter()
    if target is None:
        returned = definition(*passed)
    else:
        returned = call(definition, tuple(passed), {}, target)
    seconds = time.perf_counter() - start
    written = {
        item.name: value
        for item, value in zip(inputs, passed, strict=True)
        if isinstance(item, ir.Tensor) and item.role == "inout"
    }
    outputs = [p for p in definition.ir.parameters if isinstance(p, ir.Tensor) and p.role == "out"]
    if returned is not None:
        values = returned if isinstance(returned, tuple) else (returned,)
        written |= {item.name: value for item, value in zip(outputs, values, strict=True)}
    return written, seconds


def _copies(inputs: Sequence[ir.Tensor | ir.Variable], arguments: Sequence[Any]) -> list[Any]:
    """The arguments, with copies of the arrays that a call modifies."""
    return [
        value.copy() if isinstance(item, ir.Tensor) and item.role == "inout" else value
        for item, value in zip(inputs, arguments, strict=True)
    ]


def _times(
    definition: Definition, arguments: tuple[Any, ...], options: argparse.Namespace
) -> list[float]:
    def timed() -> float:
        return _outcome(definition, arguments, options.target)[1]

    for _ in range(min(_WARM, options.repeat)):
        timed()
    finish_compiling()
    return [timed() for _ in range(options.repeat)]


def _digest(array: Array) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()[:12]


def _first_deviation(made: dict[str, Array], expected: dict[str, Array], comparison: str) -> str:
    """The first element that differs by more than the tolerance, in words; empty if there is none."""
    for name, mine in made.items():
        theirs = expected[name]
        if comparison == "none" or mine.tobytes() == theirs.tobytes():
            continue
        a, b = np.atleast_1d(mine.astype(np.float64)), np.atleast_1d(theirs.astype(np.float64))
        bits = np.dtype(f"u{mine.itemsize}")
        wrong = np.atleast_1d(mine.view(bits) != theirs.view(bits)) & ~(np.isnan(a) & np.isnan(b))
        if comparison == "close":
            bound = _CLOSE.get(mine.itemsize * 8, 1e-1) if mine.dtype.kind not in "iub" else 0
            wrong &= ~np.isclose(a, b, bound, bound, equal_nan=True)
        if wrong.any():
            at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
            element = f"{name}[{', '.join(str(int(i)) for i in at)}]"
            return f"{element} is {a[at]!r} and not {b[at]!r}"
    return ""
