"""Interleaved samples of several calls, with a probe of the clock between: what is compared ran side by side."""

# mypy: disable-error-code="attr-defined, index, no-untyped-def, operator, valid-type"

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from taskc.ir.mapping import repeat, spatial
from taskc.ir.types import f32
from taskc.lang.definition import kernel
from taskc.lang.names import out, tile, tiles
from taskc.runtime.machine import machine

Call: TypeAlias = Callable[[], object]
DRIFT = 0.05  # of the clock, beyond which a sample doesn't count
_MOST = 200  # rounds


def seconds(call: Call, times: int = 1, of_processor: bool = False) -> float:
    now = time.process_time if of_processor else time.perf_counter
    start = now()
    for _ in range(times):
        call()
    return (now() - start) / times


class Probe:
    """A loop of fused multiply-adds that nothing but the processor's clock can slow down.

    Each lane has its own number: with one for all, a product of scalars would do.
    """

    def __init__(self, threads: int) -> None:
        lanes = machine().lanes
        own = repeat(12) * spatial(lanes)
        trips = 20_000

        @kernel(workers=lanes)
        def fma_loop(x: f32[lanes], y: out[f32[threads, 12 * lanes]]):
            for (row,) in tiles((threads,), by=(1,)):
                acc = tile(f32, own, 0)
                for _ in range(trips):
                    for i in own:
                        acc[i] = acc[i] * x[i % lanes] + x[i % lanes]
                for i in own:
                    y[row, i] = acc[i]

        self.x = np.full(lanes, 0.5, np.float32)
        self.y = np.empty((threads, 12 * lanes), np.float32)
        self.kernel = fma_loop
        self.operations = 2 * 12 * lanes * trips * threads
        self()

    def __call__(self) -> object:
        return self.kernel(self.x, out=self.y)

    def gflops(self) -> float:
        # After a while asleep, other threads were seen to come only after milliseconds.
        return self.operations / min(seconds(self) for _ in range(300)) / 1e9


@dataclass(frozen=True, slots=True)
class Round:
    """A sample of each call: seconds of one. `clock` is what the probe took, before or behind, whichever is longer."""

    clock: float
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Rounds:
    """times is, for each of the calls, of how many a sample is the mean."""

    rounds: tuple[Round, ...]
    times: tuple[int, ...]

    def calm(self, least: int) -> tuple[Round, ...]:
        """Those during which the clock was what it mostly is; on a restless machine so many of the calmest."""
        clocks = sorted(round.clock for round in self.rounds)
        kept = [
            round for round in self.rounds if round.clock <= clocks[len(clocks) // 4] * (1 + DRIFT)
        ]
        if len(kept) < least:
            kept = sorted(self.rounds, key=lambda round: round.clock)[:least]
        return tuple(kept)


def interleaved(
    calls: Sequence[Call],
    probe: Call,
    *,
    least: int = 15,
    budget: float = 0.0,
    each: float = 1e-3,
    calm: float | None = None,
    of_processor: bool = False,
) -> Rounds:
    """At least so many rounds, and more as long as the budget of seconds lasts.

    each  seconds that a sample takes at least: what others leave in the caches is a small part of it
    calm  seconds before each sample, and then a call that wakes its threads. None where all calls and the probe run
          on the same threads, which are awake
    of_processor  the times are this process's own, without those of others on the machine: for one thread
    """
    for call in calls:
        call()
    times = tuple(
        [max(1, int(each / max(1e-7, seconds(call, of_processor=of_processor)))) for call in calls]
    )
    rounds: list[Round] = []
    end = time.perf_counter() + budget
    while len(rounds) < least or (time.perf_counter() < end and len(rounds) < _MOST):
        clock = seconds(probe, of_processor=of_processor)
        found = [0.0] * len(calls)
        for position in range(len(calls)):
            number = (position + len(rounds)) % len(calls)
            if calm is not None:
                time.sleep(calm)
                seconds(calls[number])
            found[number] = seconds(calls[number], times[number], of_processor)
        rounds.append(Round(max(clock, seconds(probe, of_processor=of_processor)), tuple(found)))
    return Rounds(tuple(rounds), times)


# --- pairs -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pairs:
    """ours and theirs are medians in ms; ratio is the median of theirs / ours, with its quartiles."""

    ours: float
    theirs: float
    ratio: float
    quartiles: tuple[float, float]
    kept: int
    discarded: int


@runtime_checkable
class Profiled(Protocol):
    """What takes a part of each call's time, and says how much once there are no more calls."""

    def __call__(self) -> object: ...

    def seconds(self) -> list[float]: ...


def pairs(
    ours: Call,
    theirs: Call,
    probe: Call,
    *,
    budget: float,
    least: int = 15,
    calm: float = 0.0,
    of_processor: bool = False,
) -> Pairs:
    """At least so many pairs, and more as long as the budget of seconds lasts.

    `calm` seconds before each side let the other one's threads stop waiting for work: those of OpenBLAS
    do so for 25 ms, and keep a core busy. What is profiled is profiled from its first call on, and its times are its
    own.
    """
    found = interleaved(
        (ours, theirs), probe, least=least, budget=budget, calm=calm, of_processor=of_processor
    )
    for side, call in enumerate((ours, theirs)):
        if isinstance(call, Profiled):
            found = _as_profiled(found, side, call.seconds())
    kept = found.calm(least)
    ratios = [round.seconds[1] / round.seconds[0] for round in kept]
    low, _, high = quantiles(ratios, n=4)
    return Pairs(
        1e3 * median(round.seconds[0] for round in kept),
        1e3 * median(round.seconds[1] for round in kept),
        median(ratios),
        (low, high),
        len(kept),
        len(found.rounds) - len(kept),
    )


def _as_profiled(found: Rounds, side: int, own: list[float]) -> Rounds:
    """The rounds with one side's own times: the first call of each sample was there to wake threads."""
    step = 1 + found.times[side]
    own = own[-len(found.rounds) * step :]
    means = [fmean(own[i + 1 : i + step]) for i in range(0, len(own), step)]
    rounds = []
    for round, mean in zip(found.rounds, means, strict=True):
        seconds = [*round.seconds]
        seconds[side] = mean
        rounds.append(Round(round.clock, tuple(seconds)))
    return Rounds(tuple(rounds), found.times)
