"""A scan along the innermost axis whose workers go over a line together.

Each step scans as much of a line as the block's workers have, and takes in the sum of all before it (of `cumprod`
their product, here and below). Backwards the line is read from its end on; exclusively each place takes the element
before it.
"""

from __future__ import annotations

import taskc as tc
from taskc import KernelDefinition, Mapping, TensorType, spatial
from taskc.kernels.scans.problem import Problem


def lines(
    problem: Problem, own: Mapping, size: int | None = None, between: TensorType | None = None
) -> KernelDefinition:
    """`size` elements of a line are a block's, which is given sums of as many chunks of each range before; or all."""
    given, wide, behind = problem.given, problem.wide, problem.behind
    outer, along, _ = given.shape
    rows, step = own.shape
    symbol, folded = problem.symbol, problem.folded
    ranges = 1 if size is None else tc.cdiv(along, size)
    before = () if between is None else (between,)

    @tc.kernel(workers=own.workers)
    def scan(x: tc.typed[given], sums: tc.typed[before], y: tc.out[given]) -> None:
        for a, r in tc.tiles((outer, ranges), by=(rows, 1)):
            start = 0 if size is None else r * size
            first = wide(problem.start)
            if sums:
                for c in range(sums[0].shape[1] // (ranges - 1) * r):
                    first = folded(first, sums[0][a, c])
            last = tc.shared(wide[rows])
            for w in spatial(own.workers):
                if w < rows:
                    last[w] = first
            for at in range(0, along if size is None else size, step):
                t = tc.tile(wide, own, problem.start)
                for i, j in own:
                    p = start + at + j
                    if a + i < outer and p >= behind and p < along + behind:
                        t[i, j] = x[a + i, problem.element(p), 0].to(wide)
                prefixes = tc.scan(t, 1, symbol)
                for i, j in own:
                    prefixes[i, j] = folded(prefixes[i, j], last[i])
                    p = start + at + j
                    if a + i < outer and p < along:
                        y[a + i, problem.place(p), 0] = prefixes[i, j].to(given.dtype)
                for i, j in own:
                    if j == step - 1:
                        last[i] = prefixes[i, j]

    return scan


def chunk_sums(problem: Problem, own: Mapping, chunk: int, between: TensorType) -> KernelDefinition:
    """The sums of the first chunks of each line, as it is scanned."""
    given, wide, behind = problem.given, problem.wide, problem.behind
    _, step = own.shape
    symbol, folded = problem.symbol, problem.folded

    @tc.kernel(workers=own.workers)
    def chunk_sums(x: tc.typed[given], sums: tc.out[between]) -> None:
        for a, c in tc.tiles(between.shape, by=(1, 1)):
            totals = tc.tile(wide, own, problem.start)
            for at in range(0, chunk, step):
                for i, j in own:
                    p = c * chunk + at + j
                    if p >= behind:
                        totals[i, j] = folded(totals[i, j], x[a, problem.element(p), 0].to(wide))
            total = tc.reduce(totals, 1, symbol)
            tc.store(sums[a : a + 1, c], total)

    return chunk_sums
