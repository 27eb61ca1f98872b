"""Measure facts of a processor for the cost model. `taskc tune --calibrate` stores them.

    cycles_per_second       from a chain of dependent multiply-adds
    fused_per_cycle         independent multiply-adds of vectors
    bytes_per_second        read from memory by all threads
    near_bytes_per_cycle    read by a core from its nearest cache (own_...: its own; shared_...: the shared one)

The names are those of `ProcessorFacts` in taskc.kernels.machine_facts, which prefers measured values.
"""

# mypy: disable-error-code="attr-defined, index, no-untyped-def, operator, valid-type"

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from taskc.arrays.packed import aligned
from taskc.ir.mapping import repeat, spatial
from taskc.ir.types import f32
from taskc.lang.definition import kernel
from taskc.lang.names import out, tile, tiles
from taskc.runtime.machine import machine
from taskc.tune.timing import last_cache_bytes, seconds

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


def _fused(count: int, trips: int = 100_000) -> float:
    """Multiply-adds of vectors in a second on one thread, with `count` independent sums."""
    lanes = machine().lanes
    own = repeat(count) * spatial(lanes)

    @kernel(workers=lanes)
    def chains(x: f32[lanes], y: out[f32[count * lanes]]):
        sums = tile(f32, own, 0)
        for _ in range(trips):
            for i in own:
                sums[i] = sums[i] * x[i % lanes] + x[i % lanes]
        for i in own:
            y[i] = sums[i]

    x, y = np.full(lanes, 0.5, np.float32), np.empty(count * lanes, np.float32)
    return count * trips / _least_seconds(lambda: chains(x, out=y))


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
