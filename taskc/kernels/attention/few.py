"""Attention to few queries, as in decoding: k and v are read once for all heads that share them.

The lanes lie along the features, and a score is a sum across them; then they lie along the keys, for the
softmax, and along the features of the result.
"""

from __future__ import annotations

from math import ceil, log
from typing import Any

import taskc as tc
from taskc import KernelDefinition, Machine, Mapping, ProgramDefinition, repeat, spatial
from taskc.kernels.attention.parts import merging
from taskc.kernels.attention.plan import FewQueries
from taskc.kernels.attention.problem import Problem
from taskc.kernels.signatures import Function, Value, Values
from taskc.kernels.weights import weight_of


def few_queries_kernel(
    problem: Problem, plan: FewQueries, machine: Machine
) -> KernelDefinition | ProgramDefinition:
    """A block has the queries of all heads that share one of k and v, and all keys or a part of them."""
    share = problem.share
    if plan.parts == 1:
        block = few_queries(problem, plan)

        @tc.function
        def blocks(q: Value, k: Value, v: Value, extra: Value, y: Value) -> None:
            for batch, group in tc.tiles((problem.batches, problem.groups), by=(1, 1)):
                block(q, k, v, extra, y, batch, group * share, group)

        return problem.kernel(plan.lanes, blocks)
    attend, store = _attend(problem, plan), _store_part(problem, plan)

    @tc.function
    def parts(
        q: Value, k: Value, v: Value, extra: Value, all_sums: Value, all_totals: Value, all_peaks: Value
    ) -> None:  # fmt: skip
        for part, batch, group in tc.tiles(
            (plan.parts, problem.batches, problem.groups), by=(1, 1, 1)
        ):
            sums, totals, peaks = attend(q, k, v, extra, batch, group * share, group, part)
            store(all_sums, all_totals, all_peaks, sums, totals, peaks, part, batch, group * share)

    return merging(problem, plan.parts, plan.lanes, parts, machine)


def few_queries(problem: Problem, plan: FewQueries) -> Function:
    """The body of a block, with all queries of some heads: a function of q, k, v, extra and y, the batch,
    the first of the heads, and theirs of k and v.
    """
    attend, store = _attend(problem, plan), _store(problem, plan)

    @tc.function
    def block(
        q: Value, k: Value, v: Value, extra: Value, y: Value, batch: Value, first: Value, group: Value,
    ) -> None:  # fmt: skip
        sums, totals, _ = attend(q, k, v, extra, batch, first, group, 0)
        store(y, sums, totals, batch, first)

    return block


def _deep(problem: Problem, plan: FewQueries) -> int:
    """The results of a query, padded."""
    return ceil(problem.results / (plan.vectors * plan.lanes)) * plan.vectors * plan.lanes


def _attend(problem: Problem, plan: FewQueries) -> Function:
    """The sums of a part of the keys, with the totals, to add up over lanes, and the peaks of their powers."""
    length, wide, limits, span = problem.length, problem.wide, problem.limits, problem.span
    count, lanes, step, parts = problem.share * length, plan.lanes, plan.step, plan.parts
    own, line = repeat(count, plan.vectors) * spatial(1, lanes), _line(problem, plan)
    across, deep = ceil(problem.features / lanes) * lanes, _deep(problem, plan)
    scale_queries, score = _scale_queries(problem, plan, across), _score(problem, plan)
    begin_with_sinks = _begin_with_sinks(problem, plan)
    mask_scores, raised = _mask_scores(problem, plan), _raised(problem, plan)
    add_values = _add_values(problem, own, deep)

    @tc.function
    def of_part(begin: Any, stop: Any, part: Any) -> Any:
        if parts == 1:
            return begin, stop
        else:
            each = tc.cdiv(max(0, stop - begin), parts)
            first = max(0, begin + part * each)
            return first, min(stop, first + each)

    @tc.function
    def attend(
        q: Value, k: Value, v: Value, extra: Value, batch: Value, first: Value, group: Value, part: Value,
    ) -> Values:  # fmt: skip
        count_of_keys, offset = limits(extra, batch)
        begin, stop = of_part(*span(count_of_keys, offset, 0, length - 1), part)
        queries = tc.shared(wide[count, across])
        scores = tc.shared(wide[count, step])
        sums = tc.shared(wide[count, deep])
        scale_queries(q, queries, batch, first)
        for e in range(0, deep, lanes):
            for i, n in line:
                sums[i, e + n] = 0
        peaks = tc.tile(wide, line.project((0,)), -tc.inf)
        totals = tc.tile(wide, line, 0)
        begin_with_sinks(extra, peaks, totals, first, part)
        for p in range(begin, stop, step):
            size = min(step, stop - p)
            score(k, queries, scores, batch, group, p, size)
            base = mask_scores(extra, scores, batch, first, offset, p, size)
            shrink = raised(scores, base, peaks, totals, size)
            add_values(v, scores, sums, shrink, batch, group, p, size)
        return sums, totals, peaks

    return attend


def _line(problem: Problem, plan: FewQueries) -> Mapping:
    """All queries, and lanes along features or keys."""
    return repeat(problem.share * problem.length, 1) * spatial(1, plan.lanes)


def _place(problem: Problem) -> Function:
    """The head of a query, and which one of that head's it is."""
    length = problem.length

    return tc.function(lambda first, i: (first + i // length, i % length))


def _scale_queries(problem: Problem, plan: FewQueries, across: int) -> Function:
    wide, features, lanes, scale = problem.wide, problem.features, plan.lanes, problem.factor
    line, place = _line(problem, plan), _place(problem)

    @tc.function
    def scale_queries(q: Value, queries: Value, batch: Value, first: Value) -> None:
        for d in range(0, across, lanes):
            for i, n in line:
                head, query = place(first, i)
                queries[i, d + n] = (
                    q[batch, head, query, d + n].to(wide) * scale if d + n < features else 0
                )

    return scale_queries


def _begin_with_sinks(problem: Problem, plan: FewQueries) -> Function:
    """A sink is the first key of every query; it adds nothing to the sums."""
    wide, line, place = problem.wide, _line(problem, plan), _place(problem)

    @tc.function
    def begin_with_sinks(
        extra: Value, peaks: Value, totals: Value, first: Value, part: Value
    ) -> None:
        if extra[2] is not None:
            for i in peaks.mapping:
                head, _ = place(first, i)
                peaks[i] = extra[2][head].to(wide)
            for i, n in line:
                totals[i, n] = 1 if n == 0 and part == 0 else 0

    return begin_with_sinks


def _score(problem: Problem, plan: FewQueries) -> Function:
    wide, features, keys, together = problem.wide, problem.features, problem.keys, plan.together
    lanes, count = plan.lanes, problem.share * problem.length
    own = repeat(count, together, 1) * spatial(1, 1, lanes)

    @tc.function
    def score(
        k: Value, queries: Value, scores: Value, batch: Value, group: Value, start: Value, size: Value,
    ) -> None:  # fmt: skip
        for r in range(0, size, together):
            acc = tc.tile(wide, own, 0)
            for d in range(0, features, lanes):
                for i, j, n in own:
                    if d + n < features:
                        key = k[batch, group, min(start + r + j, keys - 1), d + n].to(wide)
                        acc[i, j, n] += key * queries[i, d + n]
            dots = tc.reduce(acc, 2, "+")
            for i, j in dots.mapping:
                scores[i, r + j] = dots[i, j]

    return score


def _mask_scores(problem: Problem, plan: FewQueries) -> Function:
    """The largest score of each query, as far as it sees them."""
    wide, added, lanes, cap = problem.wide, problem.added, plan.lanes, problem.cap
    line, place, is_seen = _line(problem, plan), _place(problem), problem.is_seen
    # One query sees all keys that are gone through.
    is_causal = problem.offset is not None and problem.length != 1

    @tc.function
    def mask_scores(
        extra: Value,
        scores: Any,
        batch: Value,
        first: Value,
        offset: Value,
        start: Value,
        size: Value,
    ) -> Any:
        best = tc.tile(wide, line, -tc.inf)
        for c in range(0, size, lanes):
            for i, n in line:
                if c + n < size:
                    head, query = place(first, i)
                    value = scores[i, c + n]
                    if cap:
                        value = cap * tc.tanh(value)
                    if extra[0] is not None:
                        value += added(extra[0], batch, head, query, start + c + n)
                    if is_causal:
                        value = value if is_seen(start + c + n, query + offset) else -tc.inf
                    scores[i, c + n] = value
                    best[i, n] = value if value > best[i, n] else best[i, n]
        return tc.reduce(best, 1, "max")

    return mask_scores


def _raised(problem: Problem, plan: FewQueries) -> Function:
    """Scores become powers; and by how much what was summed before shrinks, now that there are larger ones."""
    wide, lanes, line = problem.wide, plan.lanes, _line(problem, plan)
    weight = weight_of(wide)

    @tc.function
    def raised(scores: Value, base: Value, peaks: Value, totals: Value, size: Value) -> Any:
        shrink = tc.tile(wide, base.mapping)
        for i in base.mapping:
            peak = max(peaks[i], base[i])
            base[i] = 0 if peak == -tc.inf else peak
            shrink[i] = weight(peaks[i] - base[i])
            peaks[i] = peak
        for i, n in line:
            totals[i, n] *= shrink[i]
        for c in range(0, size, lanes):
            for i, n in line:
                if c + n < size:
                    power = weight(scores[i, c + n] - base[i])
                    totals[i, n] += power
                    scores[i, c + n] = power
        return shrink

    return raised


def _add_values(problem: Problem, part: Mapping, deep: int) -> Function:
    wide, results = problem.wide, problem.results

    @tc.function
    def add_values(
        v: Value, scores: Value, sums: Value, shrink: Value, batch: Value, group: Value, p: Value, size: Value,
    ) -> None:  # fmt: skip
        for e in range(0, deep, part.shape[1]):
            acc = tc.tile(wide, part)
            for i, n in part:
                acc[i, n] = sums[i, e + n] * shrink[i]
            for r in range(size):
                for i, n in part:
                    if e + n < results:
                        acc[i, n] += scores[i, r] * v[batch, group, p + r, e + n].to(wide)
            for i, n in part:
                sums[i, e + n] = acc[i, n]

    return add_values


def _store(problem: Problem, plan: FewQueries) -> Function:
    """The result, over the totals."""
    results, lanes, deep = problem.results, plan.lanes, _deep(problem, plan)
    line, place = _line(problem, plan), _place(problem)

    @tc.function
    def store(y: Value, sums: Value, totals: Value, batch: Value, first: Value) -> None:
        total = tc.reduce(totals, 1, "+")
        for i in total.mapping:
            total[i] = 1 / total[i] if total[i] > 0 else 0
        for e in range(0, deep, lanes):
            for i, n in line:
                if e + n < results:
                    head, query = place(first, i)
                    y[batch, head, query, e + n] = (sums[i, e + n] * total[i]).to(problem.dtype)

    return store


def _store_part(problem: Problem, plan: FewQueries) -> Function:
    results, lanes, deep = problem.results, plan.lanes, _deep(problem, plan)
    line, place, doublings = _line(problem, plan), _place(problem), 1 / log(2)

    @tc.function
    def store_part(
        all_sums: Value, all_totals: Value, all_peaks: Value, sums: Value, totals: Value, peaks: Value,
        part: Value, batch: Value, first: Value,
    ) -> None:  # fmt: skip
        total = tc.reduce(totals, 1, "+")
        for i in total.mapping:
            head, query = place(first, i)
            all_totals[part, batch, head, query] = total[i]
            all_peaks[part, batch, head, query] = peaks[i] * doublings
        for c in range(0, deep, lanes):
            for i, n in line:
                if c + n < results:
                    head, query = place(first, i)
                    all_sums[part, batch, head, query, c + n] = sums[i, c + n]

    return store_part
