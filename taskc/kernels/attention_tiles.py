"""Attention to many queries: a block is a tile of them, and each lane has queries of its own.

    own = repeat(rows, vectors) * spatial(1, lanes)

holds the scores of `rows` keys, or as many features of the result, for `vectors` * lanes queries. A step
along the features is `vectors` loads of the queries, which lie turned in scratch, `rows` scalars of k, and
`rows * vectors` fused multiply-adds. So is a step along the keys, with powers in the place of queries, and
v in that of k. What a softmax needs of a query, its largest score and its sum, never leaves a lane.

All heads that share one of k and v have their queries in the same tiles, one head after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, lcm
from typing import Any

import taskc as tc
from taskc import Machine, f64, i64, repeat, spatial
from taskc.kernels.attention_problem import Problem, added_by
from taskc.kernels.squares import columns, quarters

_MOST_KEYS = 128  # at a time: their powers stay in the nearest caches


@dataclass(frozen=True, slots=True)
class Schedule:
    """Tiles of `rows` x `vectors` * lanes; `step` keys are scored, raised and multiplied at a time.

    step is a multiple of rows, and lanes one of 4.
    """

    rows: int
    vectors: int
    step: int
    lanes: int

    @property
    def wide(self) -> int:
        return self.vectors * self.lanes


def choose(problem: Problem, machine: Machine) -> Schedule:
    """The tile that wastes least, of those that leave registers for a row of queries and an element."""
    lanes = max(4, machine.lanes // (2 if problem.wide is f64 else 1))
    fitting = ((4, 4), (8, 2), (16, 1)) if machine.registers == 32 else ((4, 2), (8, 1))
    is_known = isinstance(problem.length, int)
    count = problem.share * problem.length if is_known else 1 << 20
    rows, vectors = min(fitting, key=lambda tile: ceil(count / (tile[1] * lanes)) * tile[1])
    keys = problem.keys if isinstance(problem.keys, int) else _MOST_KEYS
    return Schedule(rows, vectors, max(1, ceil(min(keys, _MOST_KEYS) / rows)) * rows, lanes)


def tiles(
    problem: Problem, plan: Schedule, single: Callable[..., Any] | None
) -> Callable[..., Any]:
    """The blocks of a kernel: a function of q, k, v, mask and y. `single` is the block of a length of 1,
    where that is known only at the call.
    """
    length, keys, wide, step = problem.length, problem.keys, problem.wide, plan.step
    features, results, ahead = problem.features, problem.results, problem.ahead
    rows, lanes = plan.rows, plan.lanes
    own = repeat(rows, plan.vectors) * spatial(1, lanes)
    each = repeat(plan.vectors) * spatial(lanes)
    line = repeat(lanes, 1) * spatial(1, lanes)
    across = ceil(features / lanes) * lanes
    deep = ceil(results / lcm(rows, lanes)) * lcm(rows, lanes)
    joined = problem.share if isinstance(length, int) else 1
    count = joined * length
    added = added_by(problem)
    adds_alike = problem.once[2] and (problem.once[1] or joined == 1)

    @tc.function
    def place(head, row):
        """The head of a query, and which one of that head's it is."""
        return (head, row) if joined == 1 else (head * joined + row // length, row % length)

    @tc.function
    def turned_queries(q, batch, head, row):
        """The queries of a tile, times the scale, one in each column."""
        queries = tc.shared(wide[across, plan.wide])
        for r in range(0, plan.wide, lanes):
            for c in range(0, across, lanes):
                square = tc.shared(wide[lanes, lanes])
                for i, d in line:
                    own_head, query = place(head, row + r + i)
                    square[i, d] = (
                        q[batch, own_head, query, c + d].to(wide) * problem.scale
                        if row + r + i < count and c + d < features
                        else 0
                    )
                part = quarters(square)
                for d1, d0, i1, i0 in columns(lanes):
                    queries[c + 4 * d1 + d0, r + 4 * i1 + i0] = part[d0, i1, d1, i0]
        return queries

    @tc.function
    def store_turned(y, sums, totals, batch, head, row):
        """The rows of the result, each divided by its total."""
        for i in each:
            totals[i] = 1 / totals[i] if totals[i] > 0 else 0
        for r in range(0, plan.wide, lanes):
            for c in range(0, deep, lanes):
                square = tc.shared(wide[lanes, lanes])
                for e, i in line:
                    square[e, i] = sums[c + e, r + i] * totals[r + i]
                part = quarters(square)
                for i1, i0, e1, e0 in columns(lanes):
                    if row + r + 4 * i1 + i0 < count and c + 4 * e1 + e0 < results:
                        own_head, query = place(head, row + r + 4 * i1 + i0)
                        value = part[i0, e1, i1, e0].to(problem.dtype)
                        y[batch, own_head, query, c + 4 * e1 + e0] = value

    @tc.function
    def near(x, batch, group, first):
        """Some keys or values: where they lie, or, if they have to be converted, in scratch."""
        if problem.dtype is wide:
            return x
        else:
            return tc.load(
                (step, ceil(x.shape[3] / lanes) * lanes),
                lambda j, d: x[batch, group, first + j, d].to(wide),
                fill=0,
            )

    @tc.function
    def element(x, batch, group, first, j, d):
        """Of what `near` gives; behind the last key the last one."""
        if problem.dtype is wide:
            return x[batch, group, min(first + j, keys - 1), min(d, x.shape[3] - 1)]
        else:
            return x[j, d]

    @tc.function
    def add_mask(mask, scores, batch, head, row, first, size):
        if adds_alike:
            for j in range(size):
                for i in each:
                    scores[j, i] += added(mask, batch, head, 0, first + j)
        else:
            for r in range(0, plan.wide, lanes):
                for c in range(0, size, lanes):
                    square = tc.shared(wide[lanes, lanes])
                    for i, j in line:
                        own_head, query = place(head, row + r + i)
                        square[i, j] = (
                            added(mask, batch, own_head, query, first + c + j)
                            if row + r + i < count and first + c + j < keys
                            else 0
                        )
                    part = quarters(square)
                    for j1, j0, i1, i0 in columns(lanes):
                        if c + 4 * j1 + j0 < size:
                            scores[c + 4 * j1 + j0, r + 4 * i1 + i0] += part[j0, i1, j1, i0]

    @tc.function
    def block(q, k, v, mask, y, batch, head, row):
        group = head // (problem.share // joined)
        queries = turned_queries(q, batch, head, row)
        powers = tc.shared(wide[step, plan.wide])
        sums = tc.shared(wide[deep, plan.wide])
        for e in range(deep):
            for i in each:
                sums[e, i] = 0
        peaks = tc.tile(wide, each, -tc.inf)
        totals = tc.tile(wide, each, 0)
        _, first = place(head, row)
        stop = keys if ahead is None else min(keys, min(length, first + plan.wide) + ahead)
        last = tc.tile(i64, each)  # the last key that a query sees
        if ahead is not None:
            for i in each:
                _, query = place(head, row + i)
                last[i] = query + ahead
        for p in range(0, stop, step):
            size = min(step, stop - p)
            near_keys = near(k, batch, group, p)
            for r in range(0, size, rows):
                acc = tc.tile(wide, own, 0)
                for d in range(features):
                    for j, i in own:
                        acc[j, i] += element(near_keys, batch, group, p, r + j, d) * queries[d, i]
                for j, i in own:
                    powers[r + j, i] = acc[j, i]
            if mask is not None:
                add_mask(mask, powers, batch, head, row, p, size)
            highest = tc.tile(wide, each, -tc.inf)
            for j in range(size):
                for i in each:
                    score = powers[j, i]
                    if ahead is not None:
                        score = score if p + j <= last[i] else -tc.inf
                        powers[j, i] = score
                    highest[i] = score if score > highest[i] else highest[i]
            shrink = tc.tile(wide, each)
            for i in each:
                peak = highest[i] if highest[i] > peaks[i] else peaks[i]
                highest[i] = 0 if peak == -tc.inf else peak
                shrink[i] = tc.exp(peaks[i] - highest[i])
                peaks[i] = peak
                totals[i] *= shrink[i]
            for j in range(size):
                for i in each:
                    power = tc.exp(powers[j, i] - highest[i])
                    totals[i] += power
                    powers[j, i] = power
            near_values = near(v, batch, group, p)
            for e in range(0, results, rows):
                acc = tc.tile(wide, own)
                for j, i in own:
                    acc[j, i] = sums[e + j, i] * shrink[i]
                for r in range(size):
                    for j, i in own:
                        acc[j, i] += element(near_values, batch, group, p, r, e + j) * powers[r, i]
                for j, i in own:
                    sums[e + j, i] = acc[j, i]
        store_turned(y, sums, totals, batch, head, row)

    @tc.function
    def blocks(q, k, v, mask, y):
        for batch, head, row in tc.tiles(
            (problem.batches, problem.heads // joined, count), by=(1, 1, plan.wide)
        ):
            if single is not None and length == 1:
                single(q, k, v, mask, y, batch, head, head // problem.share)
            else:
                block(q, k, v, mask, y, batch, head, row)

    return blocks
