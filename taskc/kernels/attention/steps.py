"""What a block does with a tile of queries: it goes through keys by steps, and its workers share each in turn.

    seen = repeat(rows, 1) * spatial(warps, 1) * repeat(1, columns) * fragment

says who has which scores: a warp has whole rows, in fragments of the matrix instruction that the machine has
for these types, or, where it has none, in squares of registers. So a row's largest score and its sum are
found by the few lanes that share it: the score in each step, the sum, of which each lane keeps its part, at
the end. The results are held alike; where the fragments allow it, the powers stay in the registers in which they
were computed, as the left operand of the second product.

Keys and values go through shared memory some steps ahead. Steps in which no query of the tile sees a key are
not made, and only those are masked in which some don't. What is left of them are sums of values, weighted by
powers of 2 less the largest so far, these powers' totals, and their largest exponents.

With a plan that is `specialize` a producer warpgroup loads them, and a step takes the values of the keys before
its own: their powers are multiplied by them while its own powers are found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import e, log2
from typing import Any

import taskc as tc
from taskc import CompileError, Machine, Mapping, repeat, spatial
from taskc.kernels.attention.plan import Plan, fragment_of, joined, padded
from taskc.kernels.attention.problem import Problem

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Tile:
    """A block's queries, of one head, or, where they are few, of all heads that share keys.

    heads   how many such groups of heads there are
    count   queries of a group
    height  those of a tile
    deep    results of a query, padded
    held    who has which of these sums; `rows`: the peaks and totals of which queries
    place   a function of group and number: the head of a query, and which one of that head's it is
    attend  a function of q, k, v, mask, batch, group and first query, of the first key and how many to go
            through (None: all): sums, totals and exponents
    """

    heads: int
    count: Any
    height: int
    deep: int
    held: Mapping
    rows: Mapping
    place: Callable[..., Any]
    attend: Callable[..., Any]

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
    def near_queries(q: Any, batch: Any, head: Any, row: Any) -> Any:
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

    Powers of 2 are cheaper than those of e. Where no mask comes between the products and their largest,
    and they keep their order, they are scaled together with what is taken off.
    """
    doublings = problem.scale * log2(e)
    is_plain = problem.mask is None and problem.scale > 0
    return (1.0, doublings) if is_plain else (doublings, 1.0)


def _hide(problem: Problem, plan: Plan, seen: Mapping) -> Function:
    """What the mask adds; and the scores of keys that a query doesn't see."""
    keys, offset, step = problem.keys, problem.offset, plan.keys
    count, place, added = (
        joined(problem) * problem.length,
        problem.place(joined(problem)),
        problem.added,
    )
    before, _ = _factors(problem)
    is_ragged = plan.specialize or not (isinstance(keys, int) and keys % step == 0)

    @tc.function
    def hide(
        mask: Any, scores: Any, batch: Any, head: Any, row: Any, first: Any, seen_by_all: Any
    ) -> Any:
        if mask is not None:
            for i, j in seen:
                value = scores[i, j] * before
                if row + i < count and first + j < keys:
                    own_head, query = place(head, row + i)
                    value += added(mask, batch, own_head, query, first + j) * log2(e)
                scores[i, j] = value
        elif before != 1.0:
            for i, j in seen:
                scores[i, j] *= before
        if (is_ragged or offset is not None) and first + step > seen_by_all:
            for i, j in seen:
                if first + j >= keys:
                    scores[i, j] = -tc.inf
                if offset is not None:
                    _, query = place(head, row + i)
                    if first + j > query + offset:
                        scores[i, j] = -tc.inf

    return hide


def _raised(problem: Problem, rows: Mapping, seen: Mapping, once: Mapping) -> Function:
    """Scores become powers; and by how much what was summed before shrinks, now that there are larger ones."""
    _, factor = _factors(problem)
    narrow = once.shape[1]

    @tc.function
    def raised(scores: Any, peaks: Any, parts: Any) -> Any:
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
    length, keys, wide, dtype = problem.length, problem.keys, problem.wide, problem.dtype
    offset, step, together = problem.offset, plan.keys, joined(problem)
    (height, deep), rows = held.shape, seen.project((0,))
    _, factor = _factors(problem)
    behind = step if plan.specialize else 0  # keys from a step's scores back to its values
    near_queries, hide = _near_queries(problem, height, across), _hide(problem, plan, seen)
    raised = _raised(problem, rows, seen, once)

    @tc.function
    def attend(
        q: Any, k: Any, v: Any, mask: Any, batch: Any, head: Any, row: Any, begin: Any, most: Any
    ) -> Any:
        group = head // (problem.share // together)
        queries = near_queries(q, batch, head, row)
        sums = tc.tile(wide, held, 0)
        peaks = tc.tile(wide, rows, -tc.inf)
        parts = tc.tile(wide, once, 0)
        first, last = (row, min(length, row + height)) if together == 1 else (0, length)
        end = keys if offset is None else max(0, min(keys, last + offset))
        stop = end if most is None else max(0, min(end - begin, most))
        seen_by_all = keys if offset is None else min(keys, first + offset + 1)
        powers = tc.tile(dtype, seen, 0)
        for p in tc.pipeline(
            stop + behind,
            by=step,
            stages=plan.stages,
            specialize=plan.specialize,
            turns="products" if plan.alternate else None,
        ):
            key = begin + p
            near_keys = tc.load(k[batch, group, key : key + step, 0:across])
            near_values = tc.load(v[batch, group, key - behind : key - behind + step, 0:deep])
            scores = tc.tile(wide, seen, 0)
            tc.mma(scores, queries, near_keys.T)
            if plan.specialize:  # what was found before is multiplied beside all that follows
                tc.mma(sums, powers, near_values)
            hide(mask, scores, batch, head, row, key, seen_by_all)
            shrink = raised(scores, peaks, parts)
            for i, j in held:
                sums[i, j] *= shrink[i]
            for i, j in seen:
                powers[i, j] = scores[i, j].to(dtype)
            if not plan.specialize:
                tc.mma(sums, powers, near_values)
        for i in rows:
            peaks[i] *= factor
        totals = tc.reduce(parts, 1, "+")
        return sums, totals, peaks

    return attend
