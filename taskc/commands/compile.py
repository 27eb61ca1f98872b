"""taskc compile: a model, or a part of one, ahead of its first call, into the cache."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import taskc as tc
from taskc.commands.models import add_model, add_precision, feeds_of, is_model
from taskc.commands.options import add_json
from taskc.commands.terminal import Progress, UsageError, many, write, write_text
from taskc.driver import scheduled, whole_program
from taskc.ir.program import calls_of, kernels_of
from taskc.lang.program import ProgramDefinition
from taskc.passes.programs.lifetimes import blocks_of
from taskc.planning import plan

SUMMARY = "compile a model ahead, or cut a part out of one"
DESCRIPTION = """\
Compiles an ONNX model for inputs of the given extents, and keeps the machine code in the cache,
where the first call finds it.

  taskc compile model.onnx --dim batch=8
  taskc compile model.onnx --inputs tokens --outputs pooled -o part.onnx

With --inputs and --outputs it is the part of the model between these tensors; -o saves that as a
model of its own, with its weights inside.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_precision(parser)
    for ends in ("inputs", "outputs"):
        parser.add_argument(
            f"--{ends}",
            metavar="A,B",
            type=_names,
            help=f"the part's {ends} (default: the model's)",
        )
    parser.add_argument("-o", dest="to", metavar="PART.onnx", help="save the part as a model")
    add_json(parser)


@dataclass(frozen=True, slots=True)
class Size:
    """What a compiled program is made of, and the bytes that it needs beside its inputs and outputs."""

    calls: int
    kernels: int
    weights: int
    arena: int


def run(options: argparse.Namespace) -> int:
    if options.to is not None and not is_model(options.to):
        raise UsageError(f"-o names an ONNX model, and not {options.to!r}")
    start = time.perf_counter()
    with Progress() as progress:
        progress(f"reading {options.model}")
        part: Any = options.model
        if options.inputs or options.outputs or options.to:
            part = tc.onnx.extract_model(options.model, options.inputs, options.outputs)
            if options.to is not None:
                Path(options.to).write_bytes(part.SerializeToString())
        model = tc.compile(part, precision=options.precision)
        progress(f"compiling {options.model}")
        program = model.program(feeds_of(model, options)).program
        whole_program(program)
    seconds = time.perf_counter() - start
    size = size_of(program)
    if options.json:
        answer = {"model": options.model, "saved": options.to, "seconds": seconds}
        write_text(json.dumps(answer | asdict(size), indent=2))
        return 0
    write((str(model.graph.name or options.model), "bold"), end="")
    write(f": {', '.join(map(str, model.inputs))} -> {', '.join(map(str, model.outputs))}")
    write(f"{many(size.calls, 'call')} of {many(size.kernels, 'kernel')}, ", end="")
    write(f"weights {_mib(size.weights)}, arena {_mib(size.arena)}; {seconds:.2f} s")
    if options.to is not None:
        write(f"saved as {options.to}")
    return 0


def size_of(program: ProgramDefinition) -> Size:
    """Of a program whose sizes are all known."""
    made, _ = scheduled(program)
    runner = whole_program(program)
    planned = plan(made, blocks_of(made), {}) if runner is None else runner.code.plan({})
    return Size(
        sum(1 for _ in calls_of(made.calls)),
        len(kernels_of(made)),
        sum(memory.nbytes for _, memory in made.constants),
        planned.arena,
    )


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.3g} MiB"


def _names(text: str) -> list[str]:
    return text.split(",")
