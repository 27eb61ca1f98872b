"""Attention to few queries, as in decoding: k and v are read once for all heads that share them.

The lanes lie along the features, and a score is a sum across them; then they lie along the keys, for the
softmax, and along the features of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import taskc as tc
from taskc import Machine, repeat, spatial
from taskc.kernels.attention_problem import Problem, added_by

MOST = (
    10  # queries, over all heads that share one of k and v; more of them fill the lanes of a tile
)
_STEP = 512  # keys are scored, raised and multiplied at a time


def few_queries(problem: Problem, lanes: int, machine: Machine) -> Callable[..., Any]:
    """What a block does, with all queries of some heads: a function of q, k, v, mask and y, the batch,
    the first of the heads, and theirs of k and v.
    """
    length, keys, share, wide = problem.length, problem.keys, problem.share, problem.wide
    features, results, ahead = problem.features, problem.results, problem.ahead
    count = share * length
    held = machine.registers // 2
    together = max(2, held >> (count - 1).bit_length())  # keys
    vectors = max(1, min(ceil(results / lanes), held // count))
    own = repeat(count, together, 1) * spatial(1, 1, lanes)
    part = repeat(count, vectors) * spatial(1, lanes)
    line = repeat(count, 1) * spatial(1, lanes)
    across, deep = (
        ceil(n / size) * size for n, size in ((features, lanes), (results, part.shape[1]))
    )
    added = added_by(problem)

    @tc.function
    def place(first, i):
        """The head of a query, and which one of that head's it is."""
        return first + i // length, i % length

    @tc.function
    def scale_queries(q, queries, batch, first):
        for d in range(0, across, lanes):
            for i, n in line:
                head, query = place(first, i)
                queries[i, d + n] = (
                    q[batch, head, query, d + n].to(wide) * problem.scale if d + n < features else 0
                )

    @tc.function
    def score(k, queries, scores, batch, group, start, size):
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

    @tc.function
    def mask_scores(mask, scores, batch, first, start, size):
        """The largest score of each query, as far as it sees them."""
        best = tc.tile(wide, line, -tc.inf)
        for c in range(0, size, lanes):
            for i, n in line:
                if c + n < size:
                    head, query = place(first, i)
                    value = scores[i, c + n]
                    if mask is not None:
                        value += added(mask, batch, head, query, start + c + n)
                    if ahead is not None:
                        value = value if start + c + n <= query + ahead else -tc.inf
                    scores[i, c + n] = value
                    best[i, n] = value if value > best[i, n] else best[i, n]
        return tc.reduce(best, 1, "max")

    @tc.function
    def block(q, k, v, mask, y, batch, first, group):
        queries = tc.shared(wide[count, across])
        scores = tc.shared(wide[count, _STEP])
        sums = tc.shared(wide[count, deep])
        scale_queries(q, queries, batch, first)
        for e in range(0, deep, lanes):
            for i, n in line:
                sums[i, e + n] = 0
        peaks = tc.tile(wide, line.project((0,)), -tc.inf)
        totals = tc.tile(wide, line, 0)
        stop = keys if ahead is None else min(keys, length + ahead)
        for p in range(0, stop, _STEP):
            size = min(_STEP, stop - p)
            score(k, queries, scores, batch, group, p, size)
            base = mask_scores(mask, scores, batch, first, p, size)
            shrink = tc.tile(wide, base.mapping)
            for i in base.mapping:
                peak = max(peaks[i], base[i])
                base[i] = 0 if peak == -tc.inf else peak
                shrink[i] = tc.exp(peaks[i] - base[i])
                peaks[i] = peak
            for i, n in line:
                totals[i, n] *= shrink[i]
            for c in range(0, size, lanes):
                for i, n in line:
                    if c + n < size:
                        power = tc.exp(scores[i, c + n] - base[i])
                        totals[i, n] += power
                        scores[i, c + n] = power
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
        total = tc.reduce(totals, 1, "+")
        for i in total.mapping:
            total[i] = 1 / total[i] if total[i] > 0 else 0
        for e in range(0, deep, lanes):
            for i, n in line:
                if e + n < results:
                    head, query = place(first, i)
                    y[batch, head, query, e + n] = (sums[i, e + n] * total[i]).to(problem.dtype)

    return block
