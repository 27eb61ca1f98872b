"""Attention to long rows of keys by few queries: parts of the keys are attended to by blocks of their own.

A block leaves the sums of values, weighted by powers of 2 less its part's largest, these powers' totals, and
their largest exponents. A second kernel scales the parts to the largest of all and adds them up in order, the
first one first, whichever was ready first: the same bits each time.
"""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import Machine
from taskc.kernels.attention.plan import Plan
from taskc.kernels.attention.problem import Extent, Problem
from taskc.kernels.attention.steps import tile_of
from taskc.kernels.owners import owners_of_boxes, width


def in_parts(problem: Problem, plan: Plan, machine: Machine) -> tc.ProgramDefinition:
    """A program of q, k, v, a mask if there is one, and y."""
    queries, keys, values, result = problem.types
    masks, parts = problem.masks, tc.cdiv(problem.keys, plan.part)
    partial, merged = _partial(problem, plan, parts, machine), _merged(problem, parts, machine)

    @tc.program
    def attention(
        q: tc.typed[queries],
        k: tc.typed[keys],
        v: tc.typed[values],
        mask: tc.typed[masks],
        y: tc.out[result],
    ) -> None:
        merged(*partial(q, k, v, *mask), out=y)

    return attention


def _partial(problem: Problem, plan: Plan, parts: Extent, machine: Machine) -> tc.KernelDefinition:
    """Each part's sums, totals and exponents."""
    queries, keys, values, _ = problem.types
    masks, wide, results = problem.masks, problem.wide, problem.results
    of_each = parts, problem.batches, problem.heads, problem.length
    of_sums = (*of_each, results)
    all_sums, once_each = wide[of_sums], wide[of_each]
    tile = tile_of(problem, plan, machine)

    @tc.function
    def blocks(q: Any, k: Any, v: Any, mask: Any, sums: Any, totals: Any, peaks: Any) -> Any:
        for part, batch, head, row in tc.tiles(
            (parts, problem.batches, tile.heads, tile.count), by=(1, 1, 1, tile.height)
        ):
            begin = part * plan.part
            of_part = tile.attend(q, k, v, mask, batch, head, row, begin, plan.part)
            for i, j in tile.held:
                if row + i < tile.count and j < results:
                    own_head, query = tile.place(head, row + i)
                    sums[part, batch, own_head, query, j] = of_part[0][i, j]
            for i in tile.rows:
                if row + i < tile.count:
                    own_head, query = tile.place(head, row + i)
                    totals[part, batch, own_head, query] = of_part[1][i]
                    peaks[part, batch, own_head, query] = of_part[2][i]

    @tc.kernel(workers=tile.workers)
    def partial(
        q: tc.typed[queries], k: tc.typed[keys], v: tc.typed[values], mask: tc.typed[masks],
        sums: tc.out[all_sums], totals: tc.out[once_each], peaks: tc.out[once_each],
    ) -> None:  # fmt: skip
        blocks(q, k, v, mask[0] if len(mask) else None, sums, totals, peaks)

    return partial


def _merged(problem: Problem, parts: Extent, machine: Machine) -> tc.KernelDefinition:
    """The parts, each scaled by 2 to its exponent less the largest one, over their totals."""
    _, _, _, result = problem.types
    wide, dtype, results = problem.wide, problem.dtype, problem.results
    if not isinstance(parts, int):
        parts = tc.dim("parts")  # a kernel doesn't know of what it is computed
    of_each = parts, problem.batches, problem.heads, problem.length
    of_sums = (*of_each, results)
    count = problem.batches * problem.heads * problem.length
    lines = owners_of_boxes((count, results), width(results, wide, dtype), machine, accesses=1)
    rows = lines.project((0,))

    @tc.kernel(workers=lines.workers)
    def merged(
        sums: tc.typed[wide[of_sums].reshape(parts, count, results)],
        totals: tc.typed[wide[of_each].reshape(parts, count)],
        peaks: tc.typed[wide[of_each].reshape(parts, count)],
        y: tc.out[result.reshape(count, results)],
    ) -> None:
        for row, col in tc.tiles((count, results), by=lines.shape):
            base = tc.tile(wide, rows, -tc.inf)
            for part in range(parts):
                for i in rows:
                    if row + i < count:
                        base[i] = max(base[i], peaks[part, row + i])
            for i in rows:
                base[i] = 0 if base[i] == -tc.inf else base[i]
            total = tc.tile(wide, rows, 0)
            value = tc.tile(wide, lines, 0)
            for part in range(parts):
                weight = tc.tile(wide, rows, 0)
                for i in rows:
                    if row + i < count:
                        weight[i] = tc.exp2(peaks[part, row + i] - base[i])
                        total[i] += totals[part, row + i] * weight[i]
                for i, j in lines:
                    if row + i < count and col + j < results:
                        value[i, j] += sums[part, row + i, col + j] * weight[i]
            for i in rows:
                total[i] = 1 / total[i] if total[i] > 0 else 0
            for i, j in lines:
                if row + i < count and col + j < results:
                    y[row + i, col + j] = (value[i, j] * total[i]).to(dtype)

    return merged
