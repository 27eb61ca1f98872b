"""Interleaved measurements: ours and each peer's calls alternate, with a probe of the peak between."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median, quantiles
from typing import Protocol, runtime_checkable

import numpy as np

import taskc as tc
from taskc import f32, repeat, spatial

Call = Callable[[], object]
_DRIFT = 0.05


@dataclass(frozen=True)
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


def seconds(call: Call, times: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


class Probe:
    """A loop of fused multiply-adds that nothing but the processor's clock can slow down.

    Each lane has its own number: with one for all, a product of scalars would do.
    """

    def __init__(self, threads: int) -> None:
        lanes = tc.machine().lanes
        own = repeat(12) * spatial(lanes)
        trips = 20_000

        @tc.kernel(workers=lanes)
        def fma_loop(x: f32[lanes], y: tc.out[f32[threads, 12 * lanes]]):
            for (row,) in tc.tiles((threads,), by=(1,)):
                acc = tc.tile(f32, own, 0)
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
        return self.operations / min(seconds(self) for _ in range(20)) / 1e9


def pairs(
    ours: Call, theirs: Call, probe: Probe, *, budget: float, least: int = 15, calm: float = 0.0
) -> Pairs:
    """At least so many pairs, and more as long as the budget of seconds lasts.

    `calm` seconds before each side let the other one's threads stop waiting for work: those of OpenBLAS
    do so for 25 ms, and keep a core busy. The times of what is profiled are its own.
    """
    for call in (ours, theirs):
        call()
    once = max(1e-7, seconds(ours), seconds(theirs))
    times = max(1, int(1e-3 / once))
    samples: list[tuple[float, float, float]] = []
    end = time.perf_counter() + budget
    while len(samples) < least or (time.perf_counter() < end and len(samples) < 200):
        clock = seconds(probe)
        first, second = (ours, theirs) if len(samples) % 2 else (theirs, ours)
        time.sleep(calm)
        seconds(first)  # wakes its threads
        a = seconds(first, times)
        time.sleep(calm)
        seconds(second)
        b = seconds(second, times)
        if first is theirs:
            a, b = b, a
        samples.append((max(clock, seconds(probe)), a, b))
    if isinstance(theirs, Profiled):
        # The first call of each sample was there to wake threads.
        own = theirs.seconds()[-len(samples) * (1 + times) :]
        runs = [own[i + 1 : i + 1 + times] for i in range(0, len(own), 1 + times)]
        samples = [(c, a, fmean(run)) for (c, a, _), run in zip(samples, runs, strict=True)]
    best = sorted(clock for clock, _, _ in samples)[len(samples) // 4]
    kept = [s for s in samples if s[0] <= best * (1 + _DRIFT)]
    if len(kept) < least:  # a restless machine: the calmest samples
        kept = sorted(samples)[:least]
    ratios = [b / a for _, a, b in kept]
    low, _, high = quantiles(ratios, n=4)
    return Pairs(
        1e3 * median(a for _, a, _ in kept),
        1e3 * median(b for _, _, b in kept),
        median(ratios),
        (low, high),
        len(kept),
        len(samples) - len(kept),
    )
