"""A model of text at all lengths in random order: how often it is compiled, and what a call costs beyond its compute.

    python benchmarks/lengths.py MODEL.onnx [--quick] [--alone] [--json FILE]

A call's own compute is what it takes when it is made again at once. With --alone that is all that is measured,
beside a fourth call's excess, which is the noise of the machine. A model whose length is fixed gets an open one
(open_lengths.py), which ONNX Runtime runs at all lengths too: results are compared, and at each length the two are
timed by turns, each in a process of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import geometric_mean, median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from open_lengths import with_open_length
from report import Row, finish

LONGEST = 512
CLASSES = (16, 64, 128, 256, 512)  # the longest of each class
VOCABULARY = 30_000
MOST_COMPILED, MOST_BEYOND_MS = 8, 50.0
Feeds = dict[str, Any]


def feeds_of(names: list[str], length: int) -> Feeds:
    """Words, the last quarter of which aren't seen where there is a mask."""
    drawn = np.random.default_rng(length)
    feeds = {}
    for name in names:
        array = drawn.integers(0, VOCABULARY, (1, length))
        if "mask" in name:
            array = (np.arange(length) < length - length // 4)[None].astype(np.int64)
        elif "type" in name:
            array = np.zeros_like(array)
        feeds[name] = array
    return feeds


def serve(pipe: Connection, path: str, side: str, threads: int) -> None:
    """Answers feeds with what comes out, the seconds of the first call and of two more, and the number of programs."""
    run, compiled = _runtime(path, side, threads)
    while (feeds := pipe.recv()) is not None:
        start = time.perf_counter()
        made = run(feeds)
        first = time.perf_counter() - start
        times = []
        for _ in range(2):
            start = time.perf_counter()
            run(feeds)
            times.append(time.perf_counter() - start)
        pipe.send((made[0], first, times, compiled()))


def first_calls(path: str, names: list[str], lengths: list[int], threads: int) -> None:
    """Prints what first calls take beyond the better one of two more, and what a fourth one does."""
    run, compiled = _runtime(path, "taskc", threads)
    beyond: list[tuple[float, float, int]] = []
    count = 0
    for length in lengths:
        feeds, times = feeds_of(names, length), []
        for _ in range(4):
            start = time.perf_counter()
            run(feeds)
            times.append(time.perf_counter() - start)
        first, *own, last = times
        if compiled() == count:
            beyond.append((1e3 * (first - min(own)), 1e3 * (last - min(own)), length))
        count = compiled()
    print(
        f"{len(lengths)} lengths, {threads} thread(s): {count} programs; ms beyond a call's own compute:"
    )
    for name, column in (("first calls", 0), ("fourth calls", 1)):
        found = sorted(((row[column], row[2]) for row in beyond), reverse=True)
        over = sum(time > MOST_BEYOND_MS for time, _ in found)
        worst = ", ".join(f"{time:.0f} (length {length})" for time, length in found[:3])
        middle = median(time for time, _ in found)
        print(f"  {name:12} median {middle:.1f}; over {MOST_BEYOND_MS:.0f}: {over}; most: {worst}")


def _runtime(
    path: str, side: str, threads: int
) -> tuple[Callable[[Feeds], Any], Callable[[], int]]:
    if side == "onnxruntime":
        from taskc.onnx.partitions import RuntimeSession

        peer = RuntimeSession(path, threads)
        return peer.run, lambda: 0
    import taskc as tc

    model = tc.compile(path)
    return lambda feeds: model.run(None, feeds), lambda: len(model.programs)


class Side:
    """One of the two, in a process of its own."""

    def __init__(self, path: str, name: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, path, name, threads))
        self.process.start()
        other.close()

    def ask(self, feeds: Feeds) -> tuple[Any, float, list[float], int]:
        self.pipe.send(feeds)
        answer: tuple[Any, float, list[float], int] = self.pipe.recv()
        return answer

    def end(self) -> None:
        self.pipe.send(None)
        self.process.join()


def measured(path: str, names: list[str], lengths: list[int], threads: int) -> list[Row]:
    """A row for each class of lengths: the medians of its lengths' times, and the mean of their ratios."""
    ours, peer = Side(path, "taskc", threads), Side(path, "onnxruntime", threads)
    compiled, worst, off = 0, (0.0, 0), 0.0
    found: dict[int, list[tuple[float, float]]] = {}
    for length in lengths:
        feeds = feeds_of(names, length)
        made, first, times, count = ours.ask(feeds)
        expected, _, theirs, _ = peer.ask(feeds)
        _, _, again, _ = ours.ask(feeds)
        off = max(off, float(np.abs(made - expected).max() / max(expected.std(), 1e-6)))
        if count == compiled:
            worst = max(worst, (1e3 * (first - median(times)), length))
        else:
            print(f"length {length}: program {count}, in {first:.2f} s", flush=True)
        compiled = count
        bound = next(bound for bound in CLASSES if length <= bound)
        found.setdefault(bound, []).append((min(times + again), min(theirs)))
    ours.end()
    peer.end()
    print(
        f"{len(lengths)} lengths, {threads} thread(s): {compiled} programs; {worst[0]:.1f} ms beyond the call's own"
        f" compute at worst, at length {worst[1]}; off by {off:.1e}"
    )
    if compiled > MOST_COMPILED or worst[0] > MOST_BEYOND_MS:
        print("that is too much")
    return [
        Row(
            "lengths", f"up to {bound}", threads, 1e3 * median(own for own, _ in pairs), "onnxruntime",
            1e3 * median(other for _, other in pairs), geometric_mean(other / own for own, other in pairs),
        )
        for bound, pairs in sorted(found.items())
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--quick", action="store_true", help="32 lengths on one thread")
    parser.add_argument("--alone", action="store_true", help="first calls alone, without peers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    options = parser.parse_args()
    lengths = [*range(1, LONGEST + 1)]
    random.Random(0).shuffle(lengths)
    rows = []
    with TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        os.environ["TASKC_CACHE"] = os.path.join(folder, "cache")  # what isn't there is compiled
        model = with_open_length(onnx.load(options.model))
        names = [value.name for value in model.graph.input]
        onnx.save(model, path)
        del model
        for threads in (1,) if options.quick else (1, 2):
            os.environ["TASKC_THREADS"] = str(threads)
            chosen = lengths[: 32 if options.quick else None]
            if options.alone:
                process = multiprocessing.get_context("spawn").Process(
                    target=first_calls, args=(path, names, chosen, threads)
                )
                process.start()
                process.join()
            else:
                rows += measured(path, names, chosen, threads)
    if rows:
        finish(rows, options.json)


if __name__ == "__main__":
    sys.exit(main())
