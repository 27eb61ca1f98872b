"""taskc profile: what each call of a program or a model takes and moves, and where its memory goes.

Runs a program, a kernel or an ONNX model on example inputs, call by call, and shows for each call

  time       the median of so many rounds, measured in compiled code, and its share of all calls
  predicted  the least that the processor takes: for the bytes, or the operations if that is longer
  roofline   how much of the time that is: at 100% nothing is to be gained
  bytes      of its arguments, each part once: the least that has to be moved
  moved      how many times as much it loads and stores, of memory or of a cache
  from       the lines or the nodes of a model that it does: several where they were fused

then the sums, the time of the whole by one call, and the memory: weights, the arena of what is
between calls, and what kernels have for themselves. Calls of equal kernels are one row where there
are more than 30. Loads and operations are counted in what the kernels say.

  taskc profile block.py:encoder --html encoder.html
  taskc profile model.onnx --dim batch=8
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import taskc as tc
from taskc.commands.loading import add_feeds, example_of, feeds_of, is_model, load_kernel
from taskc.commands.terminal import (
    UsageError,
    add_json,
    add_kernel,
    columns,
    page_at,
    positive,
    write,
    write_json,
    write_text,
)
from taskc.format import bytes_text, many, share_text, time_text
from taskc.kernels.machine_facts import PROCESSOR, ProcessorFacts
from taskc.output_file import write_whole
from taskc.profiling.page import page_of
from taskc.profiling.profile import COLUMNS, Memory, Profile, ProfiledCall, Work, profile
from taskc.progress import Progress

_MOST_CALLS = 30  # rows of a table; with more calls, equal kernels share a row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kernel(parser, or_model=True)
    parser.add_argument(
        "--repeat", metavar="N", type=positive, default=20, help="rounds to time (default 20)"
    )
    parser.add_argument("--calls", action="store_true", help="a row for each call, however many")
    parser.add_argument("--html", metavar="PAGE.html", help="write it as a page, with pictures")
    add_feeds(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    page = None if options.html is None else page_at(options.html)
    with Progress() as progress:
        progress(f"profiling {options.kernel}")
        profiled = _profiled(options)
    notes = () if ProcessorFacts() != PROCESSOR else (_UNCALIBRATED,)
    if page is not None:
        write_whole(page, page_of(profiled, options.kernel, notes))
    if options.json:
        write_json(_answer(options.kernel, profiled))
        return 0
    _write_table(profiled, options.calls)
    _write_sums(profiled)
    for note in notes:
        write(("note: ", "bold cyan"), note)
    if page is not None:
        write(f"the page is {page}")
    return 0


_UNCALIBRATED = (
    "what is predicted counts with a usual processor: taskc tune --calibrate measures this one"
)


def _profiled(options: argparse.Namespace) -> Profile:
    if is_model(options.kernel):
        model = tc.compile(options.kernel)
        feeds = feeds_of(model, options)
        imported = model.program(feeds)
        arrays = [feeds[name] for name in imported.inputs]
        return profile(imported.program, arrays, options.repeat)
    if options.dim or options.input:
        raise UsageError("--dim and --input are of models: a kernel has its own example inputs")
    definition = load_kernel(options.kernel)
    return profile(definition, example_of(definition), options.repeat)


def _answer(named: str, found: Profile) -> dict[str, Any]:
    return {
        "program": named,
        "target": "cpu",
        "threads": found.threads,
        "rounds": found.rounds,
        "seconds": found.seconds,
        "sum": _numbers(found.total),
        "memory": asdict(found.memory),
        "calls": [
            {"kernel": call.kernel, "origins": call.origins, "times": call.times}
            | _numbers(call.work)
            for call in found.calls
        ],
    }


def _numbers(work: Work) -> dict[str, Any]:
    return asdict(work) | {"roofline": work.share}


_HEADINGS = (*COLUMNS, "kernel", "calls", "from")


def _write_table(found: Profile, has_all: bool) -> None:
    rows: list[tuple[str, ...]] = [_HEADINGS]
    total = found.total.seconds
    if has_all or len(found.calls) <= _MOST_CALLS:
        groups = [(call.kernel, [call]) for call in found.calls]
    else:
        groups = found.by_kernel()
    rows += [_row(kernel, calls, total) for kernel, calls in groups]
    if not found.calls:
        write("it makes no calls: all that it gives is known without one")
        return
    write_text(columns(rows, right=(0, 1, 2, 3, 4, 5, 7)))


def _row(kernel: str, calls: Sequence[ProfiledCall], total: float) -> tuple[str, ...]:
    work = Work.sum(call.work for call in calls)
    times = sum(call.times for call in calls)
    numbers = [(value(work, total), text) for value, text in COLUMNS.values()]
    cells = ["" if number is None else text(number) for number, text in numbers]
    return (*cells, kernel, str(times), _from(calls))


def _from(calls: Sequence[ProfiledCall], most: int = 3) -> str:
    """The origins of calls, the first few."""
    places = [*dict.fromkeys([place for call in calls for place in call.origins])]
    left = len(places) - most
    return ", ".join(places[:most]) + (f" and {left} more" if left > 0 else "")


def _write_sums(found: Profile) -> None:
    total, times = found.total, sum(call.times for call in found.calls)
    write()
    write(
        (found.name, "bold"), f": {many(times, 'call')}, {many(found.threads, 'thread')}, ", end=""
    )
    write(f"medians of {many(found.rounds, 'round')}")
    write((time_text(found.seconds), "bold"), " by one call; ", end="")
    write(
        f"{time_text(total.seconds)} call by call, predicted {time_text(total.predicted)}", end=""
    )
    write(f", {share_text(total.share)} of the roofline")
    write(
        f"{bytes_text(total.bytes)} at least, {bytes_text(total.moved)} loaded and stored; ", end=""
    )
    write(f"{total.operations:,} operations")
    rows = [(name, f"{count:,}", "bytes", about) for name, count, about in _memory(found.memory)]
    write_text(columns(rows, right=(1,)))


def _memory(memory: Memory) -> list[tuple[str, int, str]]:
    return [
        ("weights", memory.weights, "constants"),
        ("activations", memory.activations, f"the arena; {memory.alive:,} are needed at once"),
        ("workspace", memory.workspace, "of kernels, on all threads"),
        ("inputs", memory.inputs, ""),
        ("outputs", memory.outputs, ""),
    ]
