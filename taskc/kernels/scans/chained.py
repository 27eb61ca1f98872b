"""A scan of few long lines, whose chunks are blocks: each hands on to the next one the sum of all up to its own end.

A block adds up its chunk first, and then scans it, from a core's own cache: so memory is read once. It waits for
the block before it in between, and that one hands on its sum before it scans.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import taskc as tc
from taskc import DType, ProgramDefinition, i32, i64, spatial
from taskc.kernels.scans.plan import Chained
from taskc.kernels.scans.problem import Problem

_WORD = (1 << 32) - 1


def chained(problem: Problem, plan: Chained) -> ProgramDefinition:
    given, wide, own, chunk = problem.given, problem.wide, plan.own, plan.chunk
    whole = given.as_given
    outer, along, _ = given.shape
    _, step = own.shape
    chunks = tc.cdiv(along, chunk)
    behind = 1 if problem.exclusive else 0  # how far the element lies behind its place
    hand_on, handed_on = _words(wide)
    handed = i64[outer, chunks, _count(wide)]

    @tc.kernel(workers=own.workers)
    def chained(x: tc.typed[given], sums: tc.inout[handed], y: tc.out[given]) -> None:
        for a, c in tc.tiles((outer, chunks), by=(1, 1)):
            totals = tc.tile(wide, own, problem.start)
            for at in range(0, chunk, step):
                for i, j in own:
                    p = c * chunk + at + j - behind
                    if p >= 0 and p < along:
                        place = along - 1 - p if problem.reverse else p
                        totals[i, j] += x[a, place, 0].to(wide)
            total = tc.reduce(totals, 1, "+")
            before = tc.shared(wide[1])
            for w in spatial(own.workers):
                if w == 0:
                    first = wide(problem.start)
                    if c > 0:
                        first = handed_on(sums, a, c - 1)
                    hand_on(sums, a, c, first + total[0])
                    before[0] = first
            for at in range(0, chunk, step):
                t = tc.tile(wide, own, problem.start)
                for i, j in own:
                    p = c * chunk + at + j - behind
                    if p >= 0 and p < along:
                        place = along - 1 - p if problem.reverse else p
                        t[i, j] = x[a, place, 0].to(wide)
                prefixes = tc.scan(t, 1, "+")
                for i, j in own:
                    prefixes[i, j] += before[0]
                    p = c * chunk + at + j
                    if p < along:
                        place = along - 1 - p if problem.reverse else p
                        y[a, place, 0] = prefixes[i, j].to(given.dtype)
                for i, j in own:
                    if j == step - 1:
                        before[0] = prefixes[i, j]

    @tc.program
    def cumsum(x: tc.typed[whole], y: tc.out[whole]) -> None:
        sums = tc.compute(handed.shape, lambda a, c, k: i64(0))
        chained(x, sums, out=y)

    return cumsum


def _count(wide: DType) -> int:
    """Words that a sum is handed on in."""
    return 2 if wide.bits == 64 else 1


def _words(wide: DType) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """How a sum is handed on, and waited for.

    A word has 32 bits of it, and in its lowest bit that they are there: what is seen of one word says nothing of another.
    """
    count = _count(wide)

    @tc.function
    def hand_on(sums: Any, a: Any, c: Any, value: Any) -> None:
        if wide.bits == 64:
            bits = value.bitcast(i64)
        elif wide.bits == 32:
            bits = value.bitcast(i32).to(i64)
        else:
            bits = value.to(i64)
        for k in tc.static(range(count)):
            tc.atomic_exchange(sums[a, c, k], (bits >> 32 * k & _WORD) * 2 + 1)

    @tc.function
    def handed_on(sums: Any, a: Any, c: Any) -> Any:
        bits = i64(0)
        for k in tc.static(range(count)):
            word = i64(0)
            while word == 0:
                seen = tc.atomic_add(sums[a, c, k], 0)
                word = seen
            bits += (word >> 1) << 32 * k
        if wide.bits == 64:
            value = bits.bitcast(wide)
        elif wide.bits == 32:
            value = bits.to(i32).bitcast(wide)
        else:
            value = bits.to(wide)
        return value

    return hand_on, handed_on
