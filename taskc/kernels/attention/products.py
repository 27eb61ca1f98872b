"""Attention by matrix products: each block is a tile of queries, with all the keys that these see."""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import Machine, auto_map
from taskc.kernels.attention.plan import Plan, order_of
from taskc.kernels.attention.problem import Problem
from taskc.kernels.attention.steps import tile_of


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
    def block(q: Any, k: Any, v: Any, mask: Any, y: Any, batch: Any, head: Any, row: Any) -> Any:
        sums, totals, _ = tile.attend(q, k, v, mask, batch, head, row, 0, None)
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
    def blocks(q: Any, k: Any, v: Any, mask: Any, y: Any) -> Any:
        if order is None:
            for batch, head, row in tc.tiles(
                (problem.batches, heads, tile.count), by=(1, 1, height), persistent=is_persistent
            ):
                block(q, k, v, mask, y, batch, head, row)
        else:
            for pair, row in tc.tiles(
                (problem.batches * heads, tile.count),
                by=(1, height),
                order=order,
                persistent=is_persistent,
            ):
                block(q, k, v, mask, y, pair // heads, pair % heads, row)

    return problem.kernel(tile.workers, blocks)
