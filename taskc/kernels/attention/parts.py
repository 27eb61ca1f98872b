"""Attention to long rows of keys by few queries: parts of the keys are attended to by blocks of their own.

A block leaves the sums of values, weighted by powers of 2 less its part's largest, these powers' totals, and their
largest exponents. A second kernel scales the parts to the largest of all and adds them up in order, the first one
first, whichever was ready first: the same bits each time.
"""

from __future__ import annotations

import taskc as tc
from taskc import Machine
from taskc.kernels.attention.problem import Problem, present
from taskc.kernels.owners import owners_of_boxes, width
from taskc.kernels.signatures import Extent, Function, Value


def merging(
    problem: Problem, parts: Extent, workers: int, blocks: Function, machine: Machine
) -> tc.ProgramDefinition:
    """A program of the problem's operands.

    blocks(q, k, v, extra, sums, totals, peaks) is the kernel of all parts
    """
    queries, keys, values, _ = problem.types
    (masks, counts, scores), wide = problem.extra, problem.wide
    of_each = parts, problem.batches, problem.heads, problem.length
    all_sums, once_each = wide[(*of_each, problem.results)], wide[of_each]

    @tc.kernel(workers=workers)
    def partial(
        q: tc.typed[queries], k: tc.typed[keys], v: tc.typed[values],
        mask: tc.typed[masks], lengths: tc.typed[counts], sinks: tc.typed[scores],
        sums: tc.out[all_sums], totals: tc.out[once_each], peaks: tc.out[once_each],
    ) -> None:  # fmt: skip
        blocks(q, k, v, present(mask, lengths, sinks), sums, totals, peaks)

    merged = _merged(problem, parts, machine)

    def steps(q: Value, k: Value, v: Value, extra: Value, y: Value) -> None:
        merged(*partial(q, k, v, *[x for x in extra if x is not None]), out=y)

    return problem.program(steps)


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
