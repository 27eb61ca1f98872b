"""Interleaved samples of several calls, with a probe of the clock between them, so that comparisons are fair.

`measured_facts` measures a processor for the cost model, and `taskc tune --calibrate` stores the result:

    cycles_per_second       from a chain of dependent multiply-adds
    fused_per_cycle         independent multiply-adds of vectors
    bytes_per_second        read from memory by all threads
    near_bytes_per_cycle    read by a core from its nearest cache (own_...: its own; shared_...: the shared one)

The names are those of `ProcessorFacts` in taskc.kernels.machine_facts, which prefers measured values.
"""

# mypy: disable-error-code="attr-defined, index, no-untyped-def, operator, valid-type"

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from taskc.arrays.packed import aligned
from taskc.dataclass import dataclass
from taskc.ir.mapping import repeat, spatial
from taskc.ir.types import f32
from taskc.lang.definition import Definition, kernel
from taskc.lang.names import out, tile, tiles
from taskc.runtime.machine import machine
from taskc.tune.operands import Operands

# --- Copies of operands that calls use in turn, so that operands aren't in the caches, as at a first use


_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 10, "M": 20, "G": 30}
_UNKNOWN = 1 << 25  # bytes
_MOST_BYTES = 1 << 31  # of all copies
_MOST_COPIES = 1 << 12


def rotated(operands: Operands) -> tuple[Operands, ...]:
    """Enough copies that uses of the others flush one from the caches, if memory allows."""
    nbytes = max(operands.nbytes, 1)
    wanted = 1 + -(-last_cache_bytes() // nbytes)
    room = max(1, min(_MOST_BYTES, _available() // 4) // nbytes)
    count = min(wanted, room, _MOST_COPIES)
    return (operands, *[operands.copy() for _ in range(count - 1)])


def in_turn(definition: Definition, copies: tuple[Operands, ...]) -> Callable[[], object]:
    """A function that calls with the next copy each time."""
    calls = [operands.call_of(definition) for operands in copies]
    if len(calls) == 1:
        return calls[0]
    following = cycle(calls).__next__
    return lambda: following()()


def last_cache_bytes(folder: Path = _CACHES) -> int:
    """The size of the largest cache that the system lists."""
    sizes = []
    for file in folder.glob("index*/size"):
        try:
            text = file.read_text(encoding="ascii").strip()
            sizes.append(int(text[:-1]) << _UNITS[text[-1]])
        except (OSError, ValueError, KeyError):
            continue
    return max(sizes, default=_UNKNOWN)


def _available() -> int:
    """Free memory in bytes."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return _MOST_BYTES


# --- Disturbances of measurements: other processes, a CPU quota that runs out, a changing clock


_BUSY = 0.25  # of a processor
_LEAST = 0.2  # seconds: shorter times have too few of the system's ticks
_QUOTAS = ("", "cpu/", "cpu,cpuacct/")  # folders of control groups, versions 2 and 1


@dataclass(frozen=True, slots=True)
class Disturbances:
    """Disturbances during a measurement; numbers that the system doesn't provide are None.

    others     the mean number of processors that other processes kept busy
    throttled  the number of times the quota ran out
    discarded  the share of samples during which the clock was off by more than 5%
    slower     the probe's slowdown against its fastest run
    """

    others: float | None = None
    throttled: int | None = None
    discarded: float = 0.0
    slower: float = 0.0

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each disturbance that makes times doubtful."""
        sentences = []
        if self.others is not None and self.others > _BUSY:
            sentences.append(f"the machine is busy: others used {self.others:.1f} processors")
        if self.throttled:
            sentences.append(f"the quota of processor time ran out {self.throttled} times")
        if self.discarded > 0.25:
            sentences.append(
                f"the clock is restless: {self.discarded:.0%} of the samples were off by more than"
                f" {DRIFT:.0%}"
            )
        if self.slower > DRIFT:
            sentences.append(f"the clock is slow: it has been {self.slower:.0%} faster")
        return tuple(sentences)


class Watch:
    """Records the system's counters when it is made, for the difference later."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.busy = _busy()
        self.own = time.process_time()
        self.throttled = _throttled()

    def disturbances(self, discarded: float = 0.0, slower: float = 0.0) -> Disturbances:
        elapsed = time.perf_counter() - self.start
        others = throttled = None
        now = _busy()
        if now is not None and self.busy is not None and elapsed >= _LEAST:
            own = time.process_time() - self.own
            others = max(0.0, (now - self.busy - own) / elapsed)
        times = _throttled()
        if times is not None and self.throttled is not None:
            throttled = times - self.throttled
        return Disturbances(others, throttled, discarded, slower)


def _busy(file: Path = Path("/proc/stat")) -> float | None:
    """The seconds for which processors have worked, all together."""
    try:
        first = file.read_text().partition("\n")[0]
        user, nice, system, _, _, irq, softirq, *_ = map(int, first.split()[1:])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _throttled(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """The number of times that a quota has paused this process group."""
    for place in _QUOTAS:
        try:
            text = (folder / place / "cpu.stat").read_text()
        except OSError:
            continue
        for line in text.splitlines():
            if line.startswith("nr_throttled "):
                return int(line.split()[1])
    return None


Call: TypeAlias = Callable[[], object]
DRIFT = 0.05  # relative change of the clock beyond which a sample doesn't count
_MAX_ROUNDS = 200


def seconds(call: Call, times: int = 1, of_processor: bool = False) -> float:
    now = time.process_time if of_processor else time.perf_counter
    start = now()
    for _ in range(times):
        call()
    return (now() - start) / times


class Probe:
    """A loop of fused multiply-adds, whose speed depends on nothing but the processor's clock.

    vectors  independent sums of a thread
    trips    of the loop

    Each lane has a number of its own: with a single one, the compiler could use scalars.
    """

    def __init__(self, threads: int, vectors: int = 12, trips: int = 20_000) -> None:
        lanes = machine().lanes
        own = repeat(vectors) * spatial(lanes)

        @kernel(workers=lanes)
        def fma_loop(x: f32[lanes], y: out[f32[threads, vectors * lanes]]):
            for (row,) in tiles((threads,), by=(1,)):
                acc = tile(f32, own, 0)
                for _ in range(trips):
                    for i in own:
                        acc[i] = acc[i] * x[i % lanes] + x[i % lanes]
                for i in own:
                    y[row, i] = acc[i]

        self.x = np.full(lanes, 0.5, np.float32)
        self.y = np.empty((threads, vectors * lanes), np.float32)
        self.kernel = fma_loop
        self.operations = 2 * vectors * lanes * trips * threads
        self()

    def __call__(self) -> object:
        return self.kernel(self.x, out=self.y)

    def gflops(self) -> float:
        # After sleeping for a while, other threads take milliseconds to start.
        return self.operations / min(seconds(self) for _ in range(300)) / 1e9


@dataclass(frozen=True, slots=True)
class Round:
    """A sample of each call in seconds. `clock` is the probe's time, the longer of those before and after."""

    clock: float
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Rounds:
    """Rounds of samples; `times` is, for each call, the number of calls in a sample."""

    rounds: tuple[Round, ...]
    times: tuple[int, ...]

    def calm(self, least: int) -> tuple[Round, ...]:
        """Rounds at the usual clock speed; if there are fewer than `least`, the most stable ones."""
        clocks = sorted(round.clock for round in self.rounds)
        calm_rounds = [
            round for round in self.rounds if round.clock <= clocks[len(clocks) // 4] * (1 + DRIFT)
        ]
        if len(calm_rounds) < least:
            calm_rounds = sorted(self.rounds, key=lambda round: round.clock)[:least]
        return tuple(calm_rounds)


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
    """At least `least` rounds, and more as long as the budget of seconds lasts.

    each  the least seconds of a sample, so that the state of the caches before it matters little
    calm  seconds to sleep before each sample, which then begins with an untimed call that wakes its threads. None if
          all calls and the probe run on the same threads, which stay awake
    of_processor  measure this process's CPU time, without other processes: for one thread
    """
    for call in calls:
        call()
    times = tuple(
        [max(1, int(each / max(1e-7, seconds(call, of_processor=of_processor)))) for call in calls]
    )
    rounds: list[Round] = []
    end = time.perf_counter() + budget
    while len(rounds) < least or (time.perf_counter() < end and len(rounds) < _MAX_ROUNDS):
        clock = seconds(probe, of_processor=of_processor)
        samples = [0.0] * len(calls)
        for position in range(len(calls)):
            number = (position + len(rounds)) % len(calls)
            if calm is not None:
                time.sleep(calm)
                seconds(calls[number])
            samples[number] = seconds(calls[number], times[number], of_processor)
        rounds.append(Round(max(clock, seconds(probe, of_processor=of_processor)), tuple(samples)))
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
    """A call that measures a part of its own time, and returns these times after the last call."""

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
    """At least `least` pairs, and more as long as the budget of seconds lasts.

    `calm` seconds before each side let the other side's threads go to sleep: those of OpenBLAS spin for
    25 ms, and keep a core busy. A profiled call is profiled from its first call on, and its own times count.
    """
    rounds = interleaved(
        (ours, theirs), probe, least=least, budget=budget, calm=calm, of_processor=of_processor
    )
    for side, call in enumerate((ours, theirs)):
        if isinstance(call, Profiled):
            rounds = _as_profiled(rounds, side, call.seconds())
    calm_rounds = rounds.calm(least)
    ratios = [round.seconds[1] / round.seconds[0] for round in calm_rounds]
    low, _, high = quantiles(ratios, n=4)
    return Pairs(
        1e3 * median(round.seconds[0] for round in calm_rounds),
        1e3 * median(round.seconds[1] for round in calm_rounds),
        median(ratios),
        (low, high),
        len(calm_rounds),
        len(rounds.rounds) - len(calm_rounds),
    )


def _as_profiled(found: Rounds, side: int, own: list[float]) -> Rounds:
    """The rounds with one side's own times, without the first call of each sample, which wakes threads."""
    step = 1 + found.times[side]
    own = own[-len(found.rounds) * step :]
    means = [fmean(own[i + 1 : i + step]) for i in range(0, len(own), step)]
    rounds = []
    for round, mean in zip(found.rounds, means, strict=True):
        seconds = [*round.seconds]
        seconds[side] = mean
        rounds.append(Round(round.clock, tuple(seconds)))
    return Rounds(tuple(rounds), found.times)


# --- facts of the processor --------------------------------------------------------------------

_LATENCY = 4  # cycles of a multiply-add, on all recent processors
_SUMS = 8  # vectors that are added to in turn, so that no load waits for a sum
_NEAR_BYTES = 1 << 14  # fits any nearest cache
_LEAST_BYTES = 1 << 27  # read by a sample, so that it takes milliseconds


def measured_facts(tell: Callable[[str], object] = lambda text: None) -> dict[str, float]:
    """All facts by name; measuring takes a few seconds."""
    here = machine()
    tell("the clock")
    cycles = _LATENCY * _fused(1)
    tell("multiply-adds")
    fused = _fused(12) / cycles
    facts = {"cycles_per_second": cycles, "fused_per_cycle": fused}
    shared = max(min(last_cache_bytes() // 2, 4 * here.fast_memory), here.fast_memory)
    levels = {"near": _NEAR_BYTES, "own": here.fast_memory // 2, "shared": shared}
    for name, nbytes in levels.items():
        tell(f"the {name} cache")
        facts[f"{name}_bytes_per_cycle"] = _read(nbytes, 1) / cycles
    tell("memory")
    facts["bytes_per_second"] = _read(2 * max(last_cache_bytes(), 1 << 27), here.threads)
    return facts


def _fused(vectors: int) -> float:
    """Multiply-adds of vectors in a second on one thread, with so many independent sums."""
    trips = 100_000
    return vectors * trips / _least_seconds(Probe(1, vectors, trips))


def _read(nbytes: int, threads: int) -> float:
    """Bytes read in a second by all threads together, from the same `nbytes` bytes again and again."""
    lanes = machine().lanes
    own = repeat(_SUMS) * spatial(lanes)
    step = _SUMS * lanes
    steps = max(1, nbytes // threads // (4 * step))
    count, trips = steps * step, -(-_LEAST_BYTES // nbytes)

    @kernel(workers=lanes)
    def read(x: f32[threads, count], y: out[f32[threads, step]]):
        for (row,) in tiles((threads,), by=(1,)):
            sums = tile(f32, own, 0)
            for _ in range(trips):
                for p in range(steps):
                    for i in own:
                        sums[i] += x[row, p * step + i]
            for i in own:
                y[row, i] = sums[i]

    x = aligned(np.zeros, threads * count, np.dtype(np.float32)).reshape(threads, count)
    x.fill(1)
    y = np.empty((threads, step), np.float32)
    return x.nbytes * trips / _least_seconds(lambda: read(x, out=y))


def _least_seconds(call: Callable[[], object]) -> float:
    call()
    return min(seconds(call) for _ in range(9))
