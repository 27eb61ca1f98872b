"""Calls at random moments of other calls: from handlers of signals, finalizers, trace functions and threads.

    python -m tests.moments signal finalize settrace threading --count 2500

Each round makes a kernel, a program and a model anew, so that a moment may be anywhere in what a first call does, or a
call with new sizes. The modules have been imported before: whoever interrupts an import finds half a module, in any
package. What is called is one of the three that are being called, or another one that is new. All results are checked,
and who waits for half a minute is shown, and ends the process.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import random
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
from onnx import TensorProto, helper

import taskc as tc
from taskc import f32, spatial

STUCK = 30.0  # seconds
X = np.arange(1 << 16, dtype=np.float32) % 251
n = tc.dim("n")


def new_kernel(scale: float) -> Callable[[Any], Any]:
    @tc.kernel(workers=16)
    def scaled(x: f32[n], y: tc.out[f32[n]]) -> None:
        for b in tc.tiles(n, by=16):
            for i in spatial(16):
                if b + i < n:
                    y[b + i] = x[b + i] * scale

    return scaled


def new_program(scale: float) -> Callable[[Any], Any]:
    inner = new_kernel(scale)

    @tc.program
    def moved(x: f32[n], y: tc.out[f32[n]]) -> None:
        h = inner(x)
        tc.compute((n,), lambda i: h[n - 1 - i] + 1.0, out=y)

    return moved


def new_model(scale: float) -> Callable[[Any], Any]:
    kind = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    nodes = [
        helper.make_node("Add", ["x", "x"], ["h"]),
        helper.make_node("Mul", ["h", "scale"], ["y"]),
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    constant = helper.make_tensor("scale", TensorProto.FLOAT, [], [scale])
    graph = helper.make_graph(nodes, "model", [kind], [result], [constant])
    opset = helper.make_opsetid("", 20)
    model: Callable[[Any], Any] = tc.compile(
        helper.make_model(graph, opset_imports=[opset], ir_version=10)
    )
    return model


KINDS: dict[Callable[[float], Callable[[Any], Any]], Callable[[Any, float], Any]] = {
    new_kernel: lambda x, scale: x * np.float32(scale),
    new_program: lambda x, scale: x[::-1] * np.float32(scale) + 1,
    new_model: lambda x, scale: (x + x) * np.float32(scale),
}


class Calls:
    """Three that are new, and calls of them; `moments` counts those that came at a random moment."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.moments = 0
        self._inside = threading.local()
        self.renew()

    def renew(self) -> None:
        scale = self.random.choice([2.0, 3.0])
        self.some = [(make(scale), expected, scale) for make, expected in KINDS.items()]

    def call(self, choice: random.Random) -> None:
        made, expected, scale = choice.choice(self.some)
        if choice.random() < 0.02:
            make, expected = choice.choice([*KINDS.items()])
            made = make(scale)
        x = X[: choice.choice([1, 17, 400, 5000, 1 + choice.randrange(3000)])]
        result = made(x)
        if not np.array_equal(result, expected(x, scale)):
            raise SystemExit(f"a wrong result: {result} of {made}")

    def at_this_moment(self) -> None:
        """A call that interrupts another one, but for none that interrupts one itself."""
        if getattr(self._inside, "now", False):
            return
        self._inside.now = True
        try:
            self.moments += 1
            self.call(random.Random(self.random.random()))
        finally:
            self._inside.now = False

    def round(self) -> None:
        """First calls, and others."""
        self.renew()
        for _ in range(4):
            self.call(self.random)


@contextmanager
def by_signals(calls: Calls) -> Iterator[None]:
    def handler(number: int, frame: FrameType | None) -> None:
        calls.at_this_moment()
        signal.setitimer(signal.ITIMER_REAL, calls.random.uniform(1e-5, 5e-4))

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 1e-3)
    try:
        yield
    finally:
        # First, since a handler that is due sets the timer again.
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def by_finalizers(calls: Calls) -> Iterator[None]:
    """Each collection finds a cycle whose end is a call; there is always one more."""

    class Cycle:
        own: Cycle

    is_on = True

    def again() -> None:
        if is_on:
            leave()
            calls.at_this_moment()

    def leave() -> None:
        cycle = Cycle()
        cycle.own = cycle
        weakref.finalize(cycle, again)

    before = gc.get_threshold()
    gc.set_threshold(60, 1000, 1000)
    leave()
    try:
        yield
    finally:
        is_on = False
        gc.set_threshold(*before)


@contextmanager
def by_tracing(calls: Calls) -> Iterator[None]:
    """At lines of taskc's own, some of which are rare: at the first of each, and at some of the others."""
    left = 50
    seen: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if "taskc" not in frame.f_code.co_filename:
            return None
        if event == "line":
            place = frame.f_code.co_filename, frame.f_lineno
            left -= 1
            if left <= 0 or (place not in seen and calls.random.random() < 0.1):
                left = calls.random.randrange(1, 3000)
                calls.at_this_moment()
            seen.add(place)
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


@contextmanager
def by_threads(calls: Calls) -> Iterator[None]:
    """Three others call all the time."""
    is_on = True
    errors: list[BaseException] = []

    def run() -> None:
        while is_on:
            try:
                calls.at_this_moment()
            except BaseException as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_on = False
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


WAYS = {
    "signal": by_signals,
    "finalize": by_finalizers,
    "settrace": by_tracing,
    "threading": by_threads,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("ways", nargs="+", choices=WAYS)
    parser.add_argument("--count", type=int, default=250)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    calls = Calls(options.seed)
    calls.round()
    for way in options.ways:
        calls.moments, rounds = 0, 0
        while calls.moments < options.count:
            faulthandler.dump_traceback_later(STUCK, exit=True)
            with WAYS[way](calls):
                calls.round()
            rounds += 1
        sys.stdout.write(f"{way}: {calls.moments} calls in {rounds} rounds\n")
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
