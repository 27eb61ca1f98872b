"""Attention with an online softmax: softmax(q @ k.T * scale + mask) @ v for each head.

Where there are many queries, a block is a tile of them, and each lane has queries of its own:

    own = repeat(rows, vectors) * spatial(1, lanes)

holds the scores of `rows` keys, or as many features of the result, for `vectors` * lanes queries. A step
along the features is `vectors` loads of the queries, which lie turned in scratch, `rows` scalars of k
where it lies, and `rows * vectors` fused multiply-adds. So is a step along the keys, with powers in the
place of queries, and v in that of k. What a softmax needs of a query, its largest score and its sum, never
leaves a lane.

Where there are few, as in decoding, k and v are read once for all heads that share them: the lanes lie
along the features, and scores are sums across them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

import taskc as tc
from taskc import (
    CompileError,
    DType,
    KernelDefinition,
    Machine,
    TensorType,
    boolean,
    f32,
    f64,
    repeat,
    spatial,
)
from taskc.kernels.squares import columns, quarters

Extent = Any  # an int, or a tc.dim
_FEW = 4  # queries that are scored one by one
_MOST_STEPS = 256


@dataclass(frozen=True, slots=True)
class Schedule:
    """Tiles of `rows` x `vectors` * lanes; `step` keys are scored, raised and multiplied at a time.

    step is a multiple of rows and of lanes; lanes of 4.
    """

    rows: int
    vectors: int
    step: int
    lanes: int

    @property
    def wide(self) -> int:
        return self.vectors * self.lanes


def choose(length: Extent, keys: Extent, dtype: DType, machine: Machine) -> Schedule:
    """The tile that wastes least."""
    lanes = max(4, machine.lanes // (2 if dtype is f64 else 1))
    tiles = ((4, 4), (8, 2), (16, 1)) if machine.registers == 32 else ((4, 2), (4, 2), (8, 1))
    count = length if isinstance(length, int) else 1 << 20

    def padded(tile: tuple[int, int]) -> int:
        wide = tile[1] * lanes
        return ceil(count / wide) * wide

    rows, vectors = min(tiles, key=padded)
    most = ceil(keys / 16) * 16 if isinstance(keys, int) else 128
    return Schedule(rows, vectors, max(16, min(128, most)), lanes)


@dataclass(frozen=True, slots=True)
class _Problem:
    """What is computed. `ahead`: the query i sees keys up to i + ahead, if it doesn't see all."""

    batches: Extent
    heads: int
    length: Extent
    keys: Extent
    features: int
    groups: int
    results: int
    ahead: Extent | None
    mask: TensorType | None
    scale: float
    dtype: DType

    @property
    def wide(self) -> DType:
        """What is computed in."""
        return f64 if self.dtype is f64 else f32

    @property
    def share(self) -> int:
        """How many heads have a head of k and v in common."""
        return self.heads // self.groups


def attention(
    batches: Extent,
    heads: int,
    length: Extent,
    keys: Extent,
    features: int,
    *,
    kv_heads: int | None = None,
    value_features: int | None = None,
    causal: bool = False,
    offset: Extent | None = None,
    mask: TensorType | None = None,
    scale: float | None = None,
    dtype: DType = f32,
    schedule: Schedule | None = None,
) -> KernelDefinition:
    """A kernel: y = softmax(q @ k.T * scale + mask) @ v, for each batch and head.

        q[batches, heads, length, features]         k[batches, kv_heads, keys, features]
        y[batches, heads, length, value_features]   v[batches, kv_heads, keys, value_features]

    kv_heads  a divisor of heads: so many neighbours share a head of k and v. As many as heads if not said
    causal    the query i sees the keys 0 to i + offset. The offset is keys - length if not said: the last
              query sees all keys, as with a cache of keys that came before. It is 0 for PyTorch's is_causal
    mask      a fourth operand, of a type that broadcasts to [batches, heads, length, keys]: floats are added
              to the scores, and of tc.boolean, True means that the key is seen
    scale     1 / sqrt(features) if not said

    A query that sees no key gets zeros, as in PyTorch and in ONNX. Numbers of 16 bits are converted as they
    are read, and the result is rounded once.
    """
    groups = heads if kv_heads is None else kv_heads
    if groups < 1 or heads % groups:
        raise CompileError(f"{heads} heads can't share {groups} heads of k and v evenly")
    if offset is not None and not causal:
        raise CompileError("an offset says what a causal attention sees: causal=True is missing")
    if mask is not None:
        _check_mask(mask, (batches, heads, length, keys))
    problem = _Problem(
        batches,
        heads,
        length,
        keys,
        features,
        groups,
        features if value_features is None else value_features,
        None if not causal else keys - length if offset is None else offset,
        mask,
        features**-0.5 if scale is None else scale,
        dtype,
    )
    plan = schedule or choose(length, keys, dtype, tc.machine())
    is_few = isinstance(length, int) and length * problem.share <= _FEW
    blocks = _few_queries(problem, plan.lanes) if is_few and not schedule else _tiles(problem, plan)
    return _kernel(problem, plan.lanes, blocks)


def _check_mask(mask: TensorType, whole: tuple[Extent, ...]) -> None:
    if not (mask.dtype.is_float or mask.dtype is boolean):
        raise CompileError(f"a mask is of floats, which are added, or of bools, not of {mask.dtype}")
    fits = 1 <= mask.rank <= 4 and all(
        extent == 1 or extent is full or extent == full
        for extent, full in zip(mask.shape[::-1], whole[::-1], strict=False)
    )
    if not fits:
        raise CompileError(
            f"a mask of the shape {mask.shape} can't be broadcast to {whole}",
            hint="its axes are batches, heads, queries and keys, or the last of these",
        )


def _kernel(problem: _Problem, lanes: int, blocks: Callable[..., Any]) -> KernelDefinition:
    dtype, mask_type = problem.dtype, problem.mask
    batches, heads, groups = problem.batches, problem.heads, problem.groups
    queries = dtype[batches, heads, problem.length, problem.features]
    known = dtype[batches, groups, problem.keys, problem.features]
    values = dtype[batches, groups, problem.keys, problem.results]
    result = dtype[batches, heads, problem.length, problem.results]
    if mask_type is None:

        @tc.kernel(workers=lanes)
        def attention(q: queries, k: known, v: values, y: tc.out[result]):
            blocks(q, k, v, None, y)

    else:

        @tc.kernel(workers=lanes)
        def attention(q: queries, k: known, v: values, mask: mask_type, y: tc.out[result]):
            blocks(q, k, v, mask, y)

    return attention


def _added(problem: _Problem) -> tuple[Callable[..., Any], bool]:
    """A function that says what a mask adds to a score, and whether it is the same for all queries."""
    assert problem.mask is not None
    shape, wide = problem.mask.shape, problem.wide
    is_flag = problem.mask.dtype is boolean
    once = [True] * (4 - len(shape)) + [isinstance(extent, int) and extent == 1 for extent in shape]

    @tc.function
    def place(batch, head, query, key):
        return (
            0 if once[0] else batch,
            0 if once[1] else head,
            0 if once[2] else query,
            0 if once[3] else key,
        )[-len(shape) :]

    @tc.function
    def added(mask, batch, head, query, key):
        return (
            (wide(0) if mask[place(batch, head, query, key)] else wide(-tc.inf))
            if is_flag
            else mask[place(batch, head, query, key)].to(wide)
        )

    return added, once[2]


def _tiles(problem: _Problem, plan: Schedule) -> Callable[..., Any]:
    """A block is a tile of the queries of a head."""
    length, keys, wide = problem.length, problem.keys, problem.wide
    rows, step, lanes = plan.rows, plan.step, plan.lanes
    results, ahead, is_causal = problem.results, problem.ahead, problem.ahead is not None
    own = repeat(rows, plan.vectors) * spatial(1, lanes)
    each = repeat(plan.vectors) * spatial(lanes)
    line = repeat(lanes, 1) * spatial(1, lanes)
    across, deep = (ceil(n / lanes) * lanes for n in (problem.features, results))
    added, is_uniform = _added(problem) if problem.mask else (None, True)

    @tc.function
    def turned_queries(q, batch, head, row):
        """The queries of a tile, times the scale, one in each column."""
        queries = tc.shared(wide[across, plan.wide])
        for r in range(0, plan.wide, lanes):
            for c in range(0, across, lanes):
                square = tc.shared(wide[lanes, lanes])
                for i, d in line:
                    square[i, d] = (
                        q[batch, head, row + r + i, c + d].to(wide) * problem.scale
                        if row + r + i < length and c + d < problem.features
                        else 0
                    )
                part = quarters(square)
                for d1, d0, i1, i0 in columns(lanes):
                    queries[c + 4 * d1 + d0, r + 4 * i1 + i0] = part[d0, i1, d1, i0]
        return queries

    @tc.function
    def score(k, queries, scores, batch, group, first, count):
        for r in range(0, count, rows):
            acc = tc.tile(wide, own, 0)
            for d in range(problem.features):
                for j, i in own:
                    key = k[batch, group, min(first + r + j, keys - 1), d].to(wide)
                    acc[j, i] += key * queries[d, i]
            for j, i in own:
                scores[r + j, i] = acc[j, i]

    @tc.function
    def add_mask(mask, scores, batch, head, row, first, count):
        if is_uniform:
            for r in range(count):
                for i in each:
                    scores[r, i] += added(mask, batch, head, 0, first + r)
        else:
            for r in range(0, plan.wide, lanes):
                for c in range(0, count, lanes):
                    square = tc.shared(wide[lanes, lanes])
                    for i, j in line:
                        square[i, j] = (
                            added(mask, batch, head, row + r + i, first + c + j)
                            if row + r + i < length and first + c + j < keys
                            else 0
                        )
                    part = quarters(square)
                    for j1, j0, i1, i0 in columns(lanes):
                        if c + 4 * j1 + j0 < count:
                            scores[c + 4 * j1 + j0, r + 4 * i1 + i0] += part[j0, i1, j1, i0]

    @tc.function
    def store_turned(y, sums, totals, batch, head, row):
        """The rows of the result, each divided by its total."""
        for i in each:
            totals[i] = 1 / totals[i] if totals[i] > 0 else 0
        for e in range(results):
            for i in each:
                sums[e, i] *= totals[i]
        for r in range(0, plan.wide, lanes):
            for c in range(0, deep, lanes):
                square = tc.shared(wide[lanes, lanes])
                for e, i in line:
                    square[e, i] = sums[c + e, r + i]
                part = quarters(square)
                for i1, i0, e1, e0 in columns(lanes):
                    if row + r + 4 * i1 + i0 < length and c + 4 * e1 + e0 < results:
                        value = part[i0, e1, i1, e0].to(problem.dtype)
                        y[batch, head, row + r + 4 * i1 + i0, c + 4 * e1 + e0] = value

    @tc.function
    def tiles(q, k, v, mask, y):
        for batch, head, row in tc.tiles(
            (problem.batches, problem.heads, length), by=(1, 1, plan.wide)
        ):
            group = head // problem.share
            queries = turned_queries(q, batch, head, row)
            powers = tc.shared(wide[step, plan.wide])
            sums = tc.shared(wide[deep, plan.wide])
            for e in range(deep):
                for i in each:
                    sums[e, i] = 0
            peaks = tc.tile(wide, each, -tc.inf)
            totals = tc.tile(wide, each, 0)
            stop = min(keys, row + plan.wide + ahead) if is_causal else keys
            for p in range(0, stop, step):
                count = min(step, stop - p)
                score(k, queries, powers, batch, group, p, count)
                if mask is not None:
                    add_mask(mask, powers, batch, head, row, p, count)
                highest = tc.tile(wide, each, -tc.inf)
                for r in range(count):
                    for i in each:
                        score_ = powers[r, i]
                        if is_causal:
                            score_ = score_ if p + r <= row + i + ahead else -tc.inf
                            powers[r, i] = score_
                        highest[i] = score_ if score_ > highest[i] else highest[i]
                shrink = tc.tile(wide, each)
                for i in each:
                    peak = highest[i] if highest[i] > peaks[i] else peaks[i]
                    base = 0 if peak == -tc.inf else peak
                    shrink[i] = tc.exp(peaks[i] - base)
                    peaks[i] = peak
                    highest[i] = base
                    totals[i] *= shrink[i]
                for r in range(count):
                    for i in each:
                        power = tc.exp(powers[r, i] - highest[i])
                        totals[i] += power
                        powers[r, i] = power
                for e in range(0, results, rows):
                    acc = tc.tile(wide, own)
                    for j, i in own:
                        acc[j, i] = sums[e + j, i] * shrink[i]
                    for r in range(count):
                        for j, i in own:
                            value = v[batch, group, p + r, min(e + j, results - 1)].to(wide)
                            acc[j, i] += value * powers[r, i]
                    for j, i in own:
                        sums[e + j, i] = acc[j, i]
            store_turned(y, sums, totals, batch, head, row)

    return tiles


def _few_queries(problem: _Problem, lanes: int) -> Callable[..., Any]:
    """A block is all queries of the heads that share one of k and v."""
    length, keys, share, wide = problem.length, problem.keys, problem.share, problem.wide
    features, results, ahead = problem.features, problem.results, problem.ahead
    count = share * length
    step = 256
    few = (16, 8, 4, 4)[count - 1]
    vectors = max(1, min(ceil(results / lanes), 16 // count))
    own = repeat(count, few, 1) * spatial(1, 1, lanes)
    strip = repeat(count, 1) * spatial(1, lanes)
    part = repeat(count, vectors) * spatial(1, lanes)
    across = ceil(features / lanes) * lanes
    deep = ceil(results / part.shape[1]) * part.shape[1]
    added, _ = _added(problem) if problem.mask else (None, True)

    @tc.function
    def few_queries(q, k, v, mask, y):
        for batch, group in tc.tiles((problem.batches, problem.groups), by=(1, 1)):
            first = group * share
            queries = tc.shared(wide[count, across])
            for d in range(0, across, lanes):
                for i, l in strip:
                    queries[i, d + l] = (
                        q[batch, first + i // length, i % length, d + l].to(wide) * problem.scale
                        if d + l < features
                        else 0
                    )
            scores = tc.shared(wide[count, step])
            sums = tc.shared(wide[count, deep])
            for e in range(0, deep, lanes):
                for i, l in strip:
                    sums[i, e + l] = 0
            peaks = tc.tile(wide, strip.project((0,)), -tc.inf)
            totals = tc.tile(wide, strip, 0)
            stop = min(keys, length + ahead) if ahead is not None else keys
            for p in range(0, stop, step):
                size = min(step, stop - p)
                for r in range(0, size, few):
                    acc = tc.tile(wide, own, 0)
                    for d in range(0, features, lanes):
                        for i, j, l in own:
                            if d + l < features:
                                key = k[batch, group, min(p + r + j, keys - 1), d + l].to(wide)
                                acc[i, j, l] += key * queries[i, d + l]
                    score = tc.reduce(acc, 2, "+")
                    for i, j in score.mapping:
                        scores[i, r + j] = score[i, j]
                best = tc.tile(wide, strip, -tc.inf)
                for c in range(0, size, lanes):
                    for i, l in strip:
                        if c + l < size:
                            value = scores[i, c + l]
                            if mask is not None:
                                value += added(mask, batch, first + i // length, i % length, p + c + l)
                            if ahead is not None:
                                value = value if p + c + l <= i % length + ahead else -tc.inf
                            scores[i, c + l] = value
                            best[i, l] = value if value > best[i, l] else best[i, l]
                highest = tc.reduce(best, 1, "max")
                shrink = tc.tile(wide, highest.mapping)
                for i in highest.mapping:
                    peak = max(peaks[i], highest[i])
                    highest[i] = 0 if peak == -tc.inf else peak
                    shrink[i] = tc.exp(peaks[i] - highest[i])
                    peaks[i] = peak
                for i, l in strip:
                    totals[i, l] *= shrink[i]
                for c in range(0, size, lanes):
                    for i, l in strip:
                        if c + l < size:
                            power = tc.exp(scores[i, c + l] - highest[i])
                            totals[i, l] += power
                            scores[i, c + l] = power
                for e in range(0, deep, part.shape[1]):
                    acc = tc.tile(wide, part)
                    for i, l in part:
                        acc[i, l] = sums[i, e + l] * shrink[i]
                    for r in range(size):
                        for i, l in part:
                            if e + l < results:
                                acc[i, l] += scores[i, r] * v[batch, group, p + r, e + l].to(wide)
                    for i, l in part:
                        sums[i, e + l] = acc[i, l]
            total = tc.reduce(totals, 1, "+")
            for i in total.mapping:
                total[i] = 1 / total[i] if total[i] > 0 else 0
            for e in range(0, deep, lanes):
                for i, l in strip:
                    if e + l < results:
                        y[batch, first + i // length, i % length, e + l] = (
                            sums[i, e + l] * total[i]
                        ).to(problem.dtype)

    return few_queries
