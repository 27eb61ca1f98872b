"""taskc compile: compile a model or a program ahead, into a file or the cache, or cut a part out of a model.

Compiles an ONNX model for inputs of the given extents, and keeps the machine code in the cache,
where the first call finds it. With -o FILE.taskc it writes a bundle: one file of machine code and
weights, which 'taskc run', 'taskc bench' and tc.load_bundle take, and which loads in milliseconds
on processors that have what this one has. It has a program for each set of shapes:

  taskc compile model.onnx --dim batch=8
  taskc compile model.onnx -o model.taskc --shape tokens=1,128 --shape tokens=1,256
  taskc compile programs.py:layer -o layer.taskc
  taskc compile model.onnx --inputs tokens --outputs pooled -o part.onnx

With --profile it shows the CPU time of each part of the compile, how many times it ran, and its share.

With --inputs and --outputs it is the part of the model between these tensors; -o FILE.onnx saves
that as a model of its own, with its weights inside.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import taskc as tc
from taskc.commands.loading import (
    add_model,
    add_precision,
    feeds_of,
    is_bundle,
    is_model,
    load_kernel,
    shape_of,
    shaped_feeds,
)
from taskc.commands.terminal import (
    UsageError,
    add_json,
    columns,
    write,
    write_json,
    write_text,
)
from taskc.dataclass import dataclass
from taskc.format import bytes_text, many, share_text, time_text
from taskc.ir.signature import bind_dimensions, inputs_of
from taskc.ir.spans import Total, grouped, recorded
from taskc.output_file import write_whole
from taskc.programs.arena import blocks_of
from taskc.programs.definition import ProgramDefinition
from taskc.programs.ir import calls_of, kernels_of
from taskc.programs.planning import plan
from taskc.progress import Progress
from taskc.runtime.driver import scheduled, whole_program


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "FILE.onnx|FILE:PROGRAM", "the model, or the program of a file of Python")
    parser.add_argument(
        "--shape", metavar="NAME=N,M", type=shape_of, action="append", default=[],
        help="the shape of an input; several of one input are as many sets of shapes",
    )  # fmt: skip
    add_precision(parser)
    for ends in ("inputs", "outputs"):
        parser.add_argument(
            f"--{ends}",
            metavar="A,B",
            type=_names,
            help=f"the part's {ends} (default: the model's)",
        )
    parser.add_argument(
        "-o", dest="to", metavar="FILE", help="write a bundle, FILE.taskc, or the part, FILE.onnx"
    )
    parser.add_argument(
        "--profile", action="store_true", help="show which parts of the compile take how long"
    )
    add_json(parser)


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a compiled program: calls, kernels, and the bytes that it needs besides inputs and outputs."""

    calls: int
    kernels: int
    weights: int
    arena: int


def run(options: argparse.Namespace) -> int:
    to = options.to
    if to is not None and not is_model(to) and not is_bundle(to):
        raise UsageError(f"-o names a bundle, FILE.taskc, or an ONNX model, and not {to!r}")
    if not is_model(options.model):
        return _bundle_program(options)
    start, start_cpu = time.perf_counter(), time.process_time()
    with Progress() as progress, recorded() as spans:
        progress(f"reading {options.model}")
        part: Any = options.model
        if options.inputs or options.outputs or (to is not None and is_model(to)):
            part = tc.onnx.extract_model(options.model, options.inputs, options.outputs)
            if to is not None and is_model(to):
                write_whole(to, part.SerializeToString())
        model = tc.compile(part, precision=options.precision)
        progress(f"compiling {options.model}")
        is_saved = to is not None and is_bundle(to)
        # A bundle needs all shapes.
        feeds = (
            shaped_feeds(model, options)
            if is_saved or options.shape
            else [feeds_of(model, options)]
        )
        sizes = []
        for one in feeds:
            model.prepare(one)
            traced = model.program(one)
            sizes.append(size_of(traced.program, [one[name].shape for name in traced.inputs]))
        if is_saved:
            tc.save_bundle(model, to, *feeds)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    if options.json:
        answer = {"model": options.model, "saved": to, "seconds": seconds}
        if options.profile:
            answer["profile"] = {name: asdict(total) for name, total in spans.items()}
        write_json(answer | asdict(sizes[0]) | {"programs": len(sizes)})
        return 0
    if options.profile:
        write_text(f"{profile_table(grouped(spans, cpu_seconds))}\n")
    write((str(model.name or options.model), "bold"), end="")
    write(f": {', '.join(map(str, model.inputs))} -> {', '.join(map(str, model.outputs))}")
    for size in sizes:
        write(_described(size), end="; " if size is sizes[-1] else "\n")
    write(time_text(seconds, "s", ".2f"))
    if to is not None:
        write(f"saved as {to}")
    return 0


def _bundle_program(options: argparse.Namespace) -> int:
    """Save a program of a Python file as a bundle."""
    if options.to is None or not is_bundle(options.to):
        raise UsageError(f"{options.model} is no ONNX model: of a program there is -o FILE.taskc")
    if options.inputs or options.outputs or options.dim or options.input or options.shape:
        raise UsageError("a program is compiled as a whole, for all sizes that it takes")
    if options.precision != "f32":
        raise UsageError("--precision is of models: a program says its own types")
    if options.profile:
        raise UsageError("--profile is of models")
    start = time.perf_counter()
    program = load_kernel(options.model)
    if not isinstance(program, ProgramDefinition):
        raise UsageError(f"{options.model} is a kernel: a bundle has programs, which call kernels")
    with Progress() as progress:
        progress(f"compiling {options.model}")
        tc.save_bundle(program, options.to)
    seconds = time.perf_counter() - start
    if options.json:
        answer = {"program": options.model, "saved": options.to, "seconds": seconds}
        write_json(answer)
        return 0
    write((str(program.signature), "bold"))
    write(f"saved as {options.to}; {time_text(seconds, 's', '.2f')}")
    return 0


def profile_table(profile: Sequence[tuple[str, Total]]) -> str:
    """The CPU seconds of the parts of a compile, as columns of text."""
    seconds = sum(total.seconds for name, total in profile if not name.startswith(" ")) or 1.0
    rows = [("part", "CPU", "share", "times")]
    rows += [
        (
            name,
            time_text(total.seconds, "ms", ".0f"),
            share_text(total.seconds / seconds),
            str(total.count),
        )
        for name, total in profile
    ]
    return columns(rows, right=(1, 2, 3))


def _described(size: Size) -> str:
    calls = f"{many(size.calls, 'call')} of {many(size.kernels, 'kernel')}"
    weights, arena = (bytes_text(count, "MiB", ".3g") for count in (size.weights, size.arena))
    return f"{calls}, weights {weights}, arena {arena}"


def size_of(program: ProgramDefinition, shapes: Sequence[tuple[int, ...]]) -> Size:
    """Memory and call counts of a program at the given input shapes."""
    lowered, _ = scheduled(program)
    runner = whole_program(program)
    sizes = bind_dimensions(inputs_of(lowered.parameters), shapes)
    planned = (
        plan(lowered, blocks_of(lowered), sizes) if runner is None else runner.code.plan(sizes)
    )
    return Size(
        sum(1 for _ in calls_of(lowered.calls)),
        len(kernels_of(lowered)),
        sum(memory.nbytes for _, memory in lowered.constants),
        planned.arena,
    )


def _names(text: str) -> list[str]:
    return text.split(",")
