"""Attention to many queries: a block is a tile of them, and each lane has queries of its own.

    own = repeat(rows, vectors) * spatial(1, lanes)

holds the scores of `rows` keys, or as many features of the result, for `vectors` * lanes queries. A step
along the features is `vectors` loads of the queries, which lie turned in scratch, `rows` scalars of k, and
`rows * vectors` fused multiply-adds. So is a step along the keys, with powers in the place of queries, and
v in that of k. What a softmax needs of a query, its largest score and its sum, never leaves a lane.

All heads that share one of k and v have their queries in the same tiles, one head after the other.
"""

from __future__ import annotations

from math import ceil, lcm
from typing import Any

import taskc as tc
from taskc import KernelDefinition, i64
from taskc.kernels.attention.few import few_queries
from taskc.kernels.attention.plan import Schedule, of_one_query
from taskc.kernels.attention.problem import Problem
from taskc.kernels.signatures import Function, Value
from taskc.kernels.weights import weight_of
from taskc.programs.schedule import columns, lines, quarters


def tiles(problem: Problem, plan: Schedule) -> KernelDefinition:
    length, joined, share = problem.length, _joined(problem), problem.share
    block, single, few = _block(problem, plan), None, of_one_query(problem)
    if plan.few is not None:
        single = few_queries(few, plan.few)

    @tc.function
    def blocks(q: Value, k: Value, v: Value, extra: Value, y: Value) -> None:
        for batch, group, row in tc.tiles(
            (problem.batches, problem.groups, joined * length), by=(1, 1, plan.wide)
        ):
            if single is not None and length == 1:
                for part in range(share // few.share):
                    single(q, k, v, extra, y, batch, group * share + part * few.share, group)
            else:
                for part in range(share // joined):
                    block(q, k, v, extra, y, batch, group * (share // joined) + part, row)

    return problem.kernel(plan.lanes, blocks)


def _joined(problem: Problem) -> int:
    """Heads whose queries are in the same tiles."""
    return problem.share if isinstance(problem.length, int) else 1


def _whole(problem: Problem, plan: Schedule, features: int) -> int:
    """The features of keys or results that fill both tiles and lanes."""
    whole = lcm(plan.rows, plan.lanes)
    return ceil(features / whole) * whole


def _block(problem: Problem, plan: Schedule) -> Function:
    """A tile of queries, with all keys that these see."""
    length, wide, step = problem.length, problem.wide, plan.step
    is_causal = problem.offset is not None
    joined, each, limits, span = _joined(problem), plan.each, problem.limits, problem.span
    place = problem.place(joined)
    deep = _whole(problem, plan, problem.results)
    transposed_queries = _transposed_queries(problem, plan)
    store_transposed = _store_transposed(problem, plan)
    score, add_mask = _score(problem, plan), _add_mask(problem, plan)
    raised, add_values = _raised(problem, plan), _add_values(problem, plan)

    @tc.function
    def block(
        q: Value, k: Value, v: Value, extra: Value, y: Value, batch: Value, head: Value, row: Value
    ) -> None:
        group = head // (problem.share // joined)
        queries = transposed_queries(q, batch, head, row)
        powers = tc.shared(wide[step, plan.wide])
        sums = tc.shared(wide[deep, plan.wide])
        for e in range(deep):
            for i in each:
                sums[e, i] = 0
        peaks = tc.tile(wide, each, -tc.inf)
        totals = tc.tile(wide, each, 0)
        count, offset = limits(extra, batch)
        _, first = place(head, row)
        end = min(length, first + plan.wide)
        # A tile with queries of several heads begins again at the first one.
        begin, stop = span(count, offset, 0 if joined > 1 and end == length else first, end - 1)
        last = tc.tile(i64, each)  # the last key that a query sees
        for i in each:
            own_head, query = place(head, row + i)
            if is_causal:
                last[i] = query + offset
            if extra[2] is not None:
                peaks[i] = extra[2][min(own_head, problem.heads - 1)].to(wide)
                totals[i] = 1
        for p in range(begin, stop, step):
            size = min(step, stop - p)
            score(k, queries, powers, batch, group, p, size)
            if extra[0] is not None:
                add_mask(extra[0], powers, batch, head, row, p, size)
            shrink = raised(powers, last, peaks, totals, p, size)
            add_values(v, powers, sums, shrink, batch, group, p, size)
        store_transposed(y, sums, totals, batch, head, row)

    return block


def _transposed_queries(problem: Problem, plan: Schedule) -> Function:
    """The queries of a tile, times the scale, one in each column."""
    wide, features, lanes, scale = problem.wide, problem.features, plan.lanes, problem.factor
    across, count = ceil(features / lanes) * lanes, _joined(problem) * problem.length
    place = problem.place(_joined(problem))

    @tc.function
    def transposed_queries(q: Value, batch: Value, head: Value, row: Value) -> Any:
        queries = tc.shared(wide[across, plan.wide])
        for r in range(0, plan.wide, lanes):
            for c in range(0, across, lanes):
                square = tc.shared(wide[lanes, lanes])
                for i, d in lines(lanes):
                    own_head, query = place(head, row + r + i)
                    square[i, d] = (
                        q[batch, own_head, query, c + d].to(wide) * scale
                        if row + r + i < count and c + d < features
                        else 0
                    )
                part = quarters(square)
                for d1, d0, i1, i0 in columns(lanes):
                    queries[c + 4 * d1 + d0, r + 4 * i1 + i0] = part[d0, i1, d1, i0]
        return queries

    return transposed_queries


def _store_transposed(problem: Problem, plan: Schedule) -> Function:
    """The rows of the result, each divided by its total."""
    wide, results, lanes, each = problem.wide, problem.results, plan.lanes, plan.each
    deep, count = _whole(problem, plan, results), _joined(problem) * problem.length
    place = problem.place(_joined(problem))

    @tc.function
    def store_transposed(
        y: Value, sums: Value, totals: Value, batch: Value, head: Value, row: Value
    ) -> None:
        for i in each:
            totals[i] = 1 / totals[i] if totals[i] > 0 else 0
        for r in range(0, plan.wide, lanes):
            for c in range(0, deep, lanes):
                square = tc.shared(wide[lanes, lanes])
                for e, i in lines(lanes):
                    square[e, i] = sums[c + e, r + i] * totals[r + i]
                part = quarters(square)
                for i1, i0, e1, e0 in columns(lanes):
                    if row + r + 4 * i1 + i0 < count and c + 4 * e1 + e0 < results:
                        own_head, query = place(head, row + r + 4 * i1 + i0)
                        value = part[i0, e1, i1, e0].to(problem.dtype)
                        y[batch, own_head, query, c + 4 * e1 + e0] = value

    return store_transposed


def _staged(problem: Problem, plan: Schedule) -> tuple[Function, Function]:
    """Some keys or values, where they lie, or, if they have to be converted, in scratch; and an element of these."""
    wide, keys = problem.wide, problem.keys

    @tc.function
    def staged(x: Value, batch: Value, group: Value, first: Value) -> Any:
        if problem.dtype is wide:
            return x
        else:
            return tc.load(
                (plan.step, _whole(problem, plan, x.shape[3])),
                lambda j, d: x[batch, group, first + j, d].to(wide),
                fill=0,
            )

    @tc.function
    def element(x: Value, batch: Value, group: Value, first: Value, j: Value, d: Value) -> Value:
        """Behind the last key it is the last one."""
        if problem.dtype is wide:
            return x[batch, group, min(first + j, keys - 1), min(d, x.shape[3] - 1)]
        else:
            return x[j, d]

    return staged, element


def _score(problem: Problem, plan: Schedule) -> Function:
    """The scores of some keys."""
    staged, element = _staged(problem, plan)
    own, cap = plan.own, problem.cap

    @tc.function
    def score(
        k: Value, queries: Value, powers: Value, batch: Value, group: Value, p: Value, size: Value
    ) -> None:
        near_keys = staged(k, batch, group, p)
        for r in range(0, size, plan.rows):
            acc = tc.tile(problem.wide, own, 0)
            for d in range(problem.features):
                for j, i in own:
                    acc[j, i] += element(near_keys, batch, group, p, r + j, d) * queries[d, i]
            for j, i in own:
                powers[r + j, i] = cap * tc.tanh(acc[j, i]) if cap else acc[j, i]

    return score


def _add_mask(problem: Problem, plan: Schedule) -> Function:
    wide, keys, lanes, each = problem.wide, problem.keys, plan.lanes, plan.each
    joined, added = _joined(problem), problem.added
    count, place = joined * problem.length, problem.place(_joined(problem))
    adds_alike = problem.once[2] and (problem.once[1] or joined == 1)

    @tc.function
    def add_mask(
        mask: Value, scores: Value, batch: Value, head: Value, row: Value, first: Value, size: Value
    ) -> None:
        if adds_alike:
            for j in range(size):
                for i in each:
                    scores[j, i] += added(mask, batch, head, 0, first + j)
        else:
            for r in range(0, plan.wide, lanes):
                for c in range(0, size, lanes):
                    square = tc.shared(wide[lanes, lanes])
                    for i, j in lines(lanes):
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

    return add_mask


def _raised(problem: Problem, plan: Schedule) -> Function:
    """Scores become powers; and by how much what was summed before shrinks, now that there are larger ones."""
    wide, each, is_seen = problem.wide, plan.each, problem.is_seen
    is_causal, weight = problem.offset is not None, weight_of(wide)

    @tc.function
    def raised(powers: Any, last: Value, peaks: Value, totals: Value, p: Value, size: Value) -> Any:
        highest = tc.tile(wide, each, -tc.inf)
        for j in range(size):
            for i in each:
                score = powers[j, i]
                if is_causal:
                    score = score if is_seen(p + j, last[i]) else -tc.inf
                    powers[j, i] = score
                highest[i] = score if score > highest[i] else highest[i]
        shrink = tc.tile(wide, each)
        for i in each:
            peak = highest[i] if highest[i] > peaks[i] else peaks[i]
            highest[i] = 0 if peak == -tc.inf else peak
            shrink[i] = weight(peaks[i] - highest[i])
            peaks[i] = peak
            totals[i] *= shrink[i]
        for j in range(size):
            for i in each:
                power = weight(powers[j, i] - highest[i])
                totals[i] += power
                powers[j, i] = power
        return shrink

    return raised


def _add_values(problem: Problem, plan: Schedule) -> Function:
    """The values of some keys, times their powers."""
    staged, element = _staged(problem, plan)
    own = plan.own

    @tc.function
    def add_values(
        v: Value, powers: Value, sums: Value, shrink: Value, batch: Value, group: Value, p: Value, size: Value,
    ) -> None:  # fmt: skip
        near_values = staged(v, batch, group, p)
        for e in range(0, problem.results, plan.rows):
            acc = tc.tile(problem.wide, own)
            for j, i in own:
                acc[j, i] = sums[e + j, i] * shrink[i]
            for r in range(size):
                for j, i in own:
                    acc[j, i] += element(near_values, batch, group, p, r, e + j) * powers[r, i]
            for j, i in own:
                sums[e + j, i] = acc[j, i]

    return add_values
