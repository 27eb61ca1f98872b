"""Attention to few queries, as in decoding: k and v are read once for all heads that share them.

The lanes lie along the features, and a score is a sum across them; then they lie along the keys, for the
powers, and along the features of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import taskc as tc
from taskc import repeat, spatial
from taskc.kernels.attention_problem import Problem, added_by

MOST = 4  # queries, over all heads that share one of k and v
_STEP = 256  # keys are scored, raised and multiplied at a time


def few_queries(problem: Problem, lanes: int) -> Callable[..., Any]:
    """A block is all queries of the heads that share one of k and v."""
    length, keys, share, wide = problem.length, problem.keys, problem.share, problem.wide
    features, results, ahead = problem.features, problem.results, problem.ahead
    count = share * length
    step = _STEP
    few = (16, 8, 4, 4)[count - 1]
    vectors = max(1, min(ceil(results / lanes), 16 // count))
    own = repeat(count, few, 1) * spatial(1, 1, lanes)
    strip = repeat(count, 1) * spatial(1, lanes)
    part = repeat(count, vectors) * spatial(1, lanes)
    across = ceil(features / lanes) * lanes
    deep = ceil(results / part.shape[1]) * part.shape[1]
    added = added_by(problem)

    @tc.function
    def few_queries(q, k, v, mask, y):
        for batch, group in tc.tiles((problem.batches, problem.groups), by=(1, 1)):
            first = group * share
            queries = tc.shared(wide[count, across])
            for d in range(0, across, lanes):
                for i, n in strip:
                    queries[i, d + n] = (
                        q[batch, first + i // length, i % length, d + n].to(wide) * problem.scale
                        if d + n < features
                        else 0
                    )
            scores = tc.shared(wide[count, step])
            sums = tc.shared(wide[count, deep])
            for e in range(0, deep, lanes):
                for i, n in strip:
                    sums[i, e + n] = 0
            peaks = tc.tile(wide, strip.project((0,)), -tc.inf)
            totals = tc.tile(wide, strip, 0)
            stop = min(keys, length + ahead) if ahead is not None else keys
            for p in range(0, stop, step):
                size = min(step, stop - p)
                for r in range(0, size, few):
                    acc = tc.tile(wide, own, 0)
                    for d in range(0, features, lanes):
                        for i, j, n in own:
                            if d + n < features:
                                key = k[batch, group, min(p + r + j, keys - 1), d + n].to(wide)
                                acc[i, j, n] += key * queries[i, d + n]
                    score = tc.reduce(acc, 2, "+")
                    for i, j in score.mapping:
                        scores[i, r + j] = score[i, j]
                best = tc.tile(wide, strip, -tc.inf)
                for c in range(0, size, lanes):
                    for i, n in strip:
                        if c + n < size:
                            value = scores[i, c + n]
                            if mask is not None:
                                value += added(
                                    mask, batch, first + i // length, i % length, p + c + n
                                )
                            if ahead is not None:
                                value = value if p + c + n <= i % length + ahead else -tc.inf
                            scores[i, c + n] = value
                            best[i, n] = value if value > best[i, n] else best[i, n]
                highest = tc.reduce(best, 1, "max")
                shrink = tc.tile(wide, highest.mapping)
                for i in highest.mapping:
                    peak = max(peaks[i], highest[i])
                    highest[i] = 0 if peak == -tc.inf else peak
                    shrink[i] = tc.exp(peaks[i] - highest[i])
                    peaks[i] = peak
                for i, n in strip:
                    totals[i, n] *= shrink[i]
                for c in range(0, size, lanes):
                    for i, n in strip:
                        if c + n < size:
                            power = tc.exp(scores[i, c + n] - highest[i])
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
                for i, n in strip:
                    if e + n < results:
                        y[batch, first + i // length, i % length, e + n] = (
                            sums[i, e + n] * total[i]
                        ).to(problem.dtype)

    return few_queries
