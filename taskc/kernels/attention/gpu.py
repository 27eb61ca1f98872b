"""Attention on GPUs: the steps of a tile of queries, `products` of tiles with all keys, `in_parts` for few queries."""

from __future__ import annotations

from math import e, log2
from typing import Any

import taskc as tc
from taskc import CompileError, Machine, Mapping, auto_map, repeat, spatial
from taskc.dataclass import dataclass
from taskc.kernels.attention.parts import merging
from taskc.kernels.attention.plan import Plan, fragment_of, joined, order_of, padded
from taskc.kernels.attention.problem import Problem
from taskc.kernels.signatures import Function, Value, Values

# --- What a block does with a tile of queries: it goes through keys by steps, and its workers share each in turn
#     seen = repeat(rows, 1) * spatial(warps, 1) * repeat(1, columns) * fragment
#
# says who has which scores: a warp has whole rows, in fragments of the matrix instruction that the machine has
# for these types, or, where it has none, in squares of registers. So a row's largest score and its sum are
# found by the few lanes that share it: the score in each step, the sum, of which each lane keeps its part, at
# the end. The results are held alike; where the fragments allow it, the powers stay in the registers in which they
# were computed, as the left operand of the second product.
#
# Keys and values go through shared memory some steps ahead. Steps in which no query of the tile sees a key are
# not made, and only those are masked in which some don't. What is left of them are sums of values, weighted by
# powers of 2 less the largest so far, these powers' totals, and their largest exponents.
#
# With a plan that is `specialize` a producer warpgroup loads them, and a step takes the values of the keys before
# its own: their powers are multiplied by them while its own powers are found.


@dataclass(frozen=True, slots=True)
class Tile:
    """A block's queries, of one head, or, where they are few, of all heads that share keys.

    heads   how many such groups of heads there are
    count   queries of a group
    height  those of a tile
    deep    results of a query, padded
    held    who has which of these sums; `rows`: the peaks and totals of which queries
    place   a function of group and number: the head of a query, and which one of that head's it is
    attend  a function of q, k, v, extra, batch, group and first query, of the first key and how many to go
            through (None: all): sums, totals and exponents
    """

    heads: int
    count: Any
    height: int
    deep: int
    held: Mapping
    rows: Mapping
    place: Function
    attend: Function

    @property
    def workers(self) -> int:
        return self.held.workers


def tile_of(problem: Problem, plan: Plan, machine: Machine) -> Tile:
    if plan.part % plan.keys or (plan.part and plan.specialize):
        raise CompileError("a part is some whole steps, whose keys no producer loads")
    fragment = fragment_of(problem, machine)
    tall, narrow = fragment.shape
    across, deep = padded(problem, narrow)
    together = joined(problem)

    def own(columns: int) -> Mapping:
        return (
            repeat(plan.rows, 1) * spatial(plan.warps, 1) * repeat(1, columns // narrow) * fragment
        )

    seen, held, once = own(plan.keys), own(deep), own(narrow)
    return Tile(
        problem.heads // together,
        together * problem.length,
        plan.warps * plan.rows * tall,
        deep,
        held,
        seen.project((0,)),
        problem.place(joined(problem)),
        _attend(problem, plan, across, seen, held, once),
    )


def _near_queries(problem: Problem, height: int, across: int) -> Function:
    together, length = joined(problem), problem.length

    @tc.function
    def near_queries(q: Value, batch: Value, head: Value, row: Value) -> Value:
        if together == 1:
            return tc.load(q[batch, head, row : row + height, 0:across])
        else:
            return tc.load(
                (height, across),
                lambda i, d: q[batch, head * together + (row + i) // length, (row + i) % length, d],
                fill=0,
            )

    return near_queries


def _factors(problem: Problem) -> tuple[float, float]:
    """By what scores are multiplied before a mask is added, and after it.

    Powers of 2 are cheaper than those of e. Where no mask and no cap comes between the products and their
    largest, and they keep their order, they are scaled together with what is taken off.
    """
    doublings = problem.scale * log2(e)
    is_plain = problem.mask is None and problem.scale > 0 and not problem.cap
    return (1.0, doublings) if is_plain else (doublings, 1.0)


def _hide(problem: Problem, plan: Plan, seen: Mapping) -> Function:
    """Add the mask to scores, and hide the keys that a query doesn't see."""
    keys, step, cap, is_seen = problem.keys, plan.keys, problem.cap, problem.is_seen
    is_causal, has_lengths = problem.offset is not None, problem.lengths
    together, added = joined(problem), problem.added
    count, place = together * problem.length, problem.place(together)
    before, _ = _factors(problem)
    is_ragged = plan.specialize or has_lengths or not (isinstance(keys, int) and keys % step == 0)

    @tc.function
    def hide(
        extra: Value, scores: Value, batch: Value, head: Value, row: Value, first: Value, shared: Value,
        count_of_keys: Value, offset: Value,
    ) -> None:  # fmt: skip
        if cap:
            for i, j in seen:
                scores[i, j] = tc.tanh(scores[i, j] * problem.factor) * (cap * log2(e))
        if extra[0] is not None:
            for i, j in seen:
                value = scores[i, j] if cap else scores[i, j] * before
                if row + i < count and first + j < keys:
                    own_head, query = place(head, row + i)
                    value += added(extra[0], batch, own_head, query, first + j) * log2(e)
                scores[i, j] = value
        elif before != 1.0 and not cap:
            for i, j in seen:
                scores[i, j] *= before
        if (is_ragged or is_causal) and (first < shared[0] or first + step > shared[1]):
            for i, j in seen:
                if first + j >= count_of_keys:
                    scores[i, j] = -tc.inf
                if is_causal:
                    _, query = place(head, row + i)
                    if not is_seen(first + j, query + offset):
                        scores[i, j] = -tc.inf

    return hide


def _raised(problem: Problem, rows: Mapping, seen: Mapping, once: Mapping) -> Function:
    """Scores become powers; and by how much what was summed before shrinks, now that there are larger ones."""
    _, factor = _factors(problem)
    narrow = once.shape[1]

    @tc.function
    def raised(scores: Value, peaks: Value, parts: Value) -> Any:
        highest = tc.reduce(scores, 1, "max")
        shrink = tc.tile(problem.wide, rows)
        for i in rows:
            peak = max(peaks[i], highest[i])
            base = 0 if peak == -tc.inf else peak
            shrink[i] = tc.fast_exp2((peaks[i] - base) * factor)
            peaks[i] = peak
            highest[i] = -base * factor
        for i, j in seen:
            scores[i, j] = tc.fast_exp2(scores[i, j] * factor + highest[i])
        for i, j in once:
            parts[i, j] *= shrink[i]
        for i, j in seen:
            parts[i, j % narrow] += scores[i, j]
        return shrink

    return raised


def _attend(
    problem: Problem, plan: Plan, across: int, seen: Mapping, held: Mapping, once: Mapping
) -> Function:
    length, wide, dtype, window = problem.length, problem.wide, problem.dtype, problem.window
    limits, span, is_causal = problem.limits, problem.span, problem.offset is not None
    step, together = plan.keys, joined(problem)
    place, heads = problem.place(together), problem.heads
    (height, deep), rows = held.shape, seen.project((0,))
    _, factor = _factors(problem)
    behind = step if plan.specialize else 0  # keys from a step's scores back to its values
    near_queries, hide = _near_queries(problem, height, across), _hide(problem, plan, seen)
    raised = _raised(problem, rows, seen, once)

    @tc.function
    def attend(
        q: Value,
        k: Value,
        v: Value,
        extra: Value,
        batch: Value,
        head: Value,
        row: Value,
        begin: Value,
        most: int | None,
    ) -> Values:
        group = head // (problem.share // together)
        queries = near_queries(q, batch, head, row)
        sums = tc.tile(wide, held, 0)
        peaks = tc.tile(wide, rows, -tc.inf)
        parts = tc.tile(wide, once, 0)
        if extra[2] is not None:
            for i in rows:
                own_head, _ = place(head, row + i)
                peaks[i] = extra[2][min(own_head, heads - 1)].to(wide) * (log2(e) / factor)
            for i, j in once:
                if j == 0 and begin == 0:
                    parts[i, j] = 1
        first, last = (row, min(length, row + height)) if together == 1 else (0, length)
        count, offset = limits(extra, batch)
        low, end = span(count, offset, first, last - 1)
        # Of a window, whole steps of keys are left out.
        start = begin if window is None else max(begin, low // step * step)
        stop = max(0, end - start if most is None else min(end - start, begin + most - start))
        # Keys that all of these queries see need no mask.
        shared = (
            0 if window is None else last + offset - window,
            min(count, first + offset + 1) if is_causal else count,
        )
        powers = tc.tile(dtype, seen, 0)
        for p in tc.pipeline(
            stop + behind,
            by=step,
            stages=plan.stages,
            specialize=plan.specialize,
            turns="products" if plan.alternate else None,
        ):
            key = start + p
            near_keys = tc.load(k[batch, group, key : key + step, 0:across])
            near_values = tc.load(v[batch, group, key - behind : key - behind + step, 0:deep])
            scores = tc.tile(wide, seen, 0)
            tc.mma(scores, queries, near_keys.T)
            if plan.specialize:  # what was found before is multiplied beside all that follows
                tc.mma(sums, powers, near_values)
            hide(extra, scores, batch, head, row, key, shared, count, offset)
            shrink = raised(scores, peaks, parts)
            for i, j in held:
                sums[i, j] *= shrink[i]
            for i, j in seen:
                powers[i, j] = scores[i, j].to(dtype)
            if not plan.specialize:
                tc.mma(sums, powers, near_values)
        totals = tc.reduce(parts, 1, "+")
        return sums, totals, peaks

    return attend


# --- Attention by matrix products: each block is a tile of queries, with all the keys that these see


def products(problem: Problem, plan: Plan, machine: Machine) -> tc.KernelDefinition:
    dtype, results = problem.dtype, problem.results
    tile = tile_of(problem, plan, machine)
    heads, height, deep, place = tile.heads, tile.height, tile.deep, tile.place
    order = order_of(problem, machine)
    if order is not None and plan.turns:
        order = (order[0], plan.turns)
    # The producer of persistent blocks loads the next tile's first keys during this one's last steps.
    is_persistent = plan.specialize and (problem.offset is None or plan.turns > 0)
    lines = auto_map((height, deep), workers=tile.workers, vector=8 // dtype.nbytes)

    @tc.function
    def block(
        q: Value, k: Value, v: Value, extra: Value, y: Value, batch: Value, head: Value, row: Value
    ) -> None:
        sums, totals, _ = tile.attend(q, k, v, extra, batch, head, row, 0, None)
        for i in tile.rows:
            totals[i] = 1 / totals[i] if totals[i] > 0 else 0
        made = tc.tile(dtype, tile.held) if plan.specialize else tc.shared(dtype[height, deep])
        for i, j in tile.held:
            made[i, j] = (sums[i, j] * totals[i]).to(dtype)
        if heads == problem.heads:
            tc.store(y[batch, head, row : row + height, 0:deep], made)
        else:
            for i, j in lines:
                if row + i < tile.count and j < results:
                    own_head, query = place(head, row + i)
                    y[batch, own_head, query, j] = made[i, j]

    @tc.function
    def blocks(q: Value, k: Value, v: Value, extra: Value, y: Value) -> None:
        if order is None:
            for batch, head, row in tc.tiles(
                (problem.batches, heads, tile.count), by=(1, 1, height), persistent=is_persistent
            ):
                block(q, k, v, extra, y, batch, head, row)
        else:
            for pair, row in tc.tiles(
                (problem.batches * heads, tile.count),
                by=(1, height),
                order=order,
                persistent=is_persistent,
            ):
                block(q, k, v, extra, y, pair // heads, pair % heads, row)

    return problem.kernel(tile.workers, blocks)


# --- Attention to long rows of keys by few queries: parts of the keys are attended to by blocks of their own


def in_parts(problem: Problem, plan: Plan, machine: Machine) -> tc.ProgramDefinition:
    parts, results = tc.cdiv(problem.keys, plan.part), problem.results
    tile = tile_of(problem, plan, machine)
    _, factor = _factors(problem)

    @tc.function
    def blocks(
        q: Value, k: Value, v: Value, extra: Value, sums: Value, totals: Value, peaks: Value
    ) -> None:
        for part, batch, head, row in tc.tiles(
            (parts, problem.batches, tile.heads, tile.count), by=(1, 1, 1, tile.height)
        ):
            begin = part * plan.part
            of_part = tile.attend(q, k, v, extra, batch, head, row, begin, plan.part)
            for i, j in tile.held:
                if row + i < tile.count and j < results:
                    own_head, query = tile.place(head, row + i)
                    sums[part, batch, own_head, query, j] = of_part[0][i, j]
            for i in tile.rows:
                if row + i < tile.count:
                    own_head, query = tile.place(head, row + i)
                    totals[part, batch, own_head, query] = of_part[1][i]
                    peaks[part, batch, own_head, query] = of_part[2][i] * factor

    return merging(problem, parts, tile.workers, blocks, machine)
