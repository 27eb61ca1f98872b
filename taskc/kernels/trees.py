"""Decision trees: the leaf that each row reaches in each tree, level by level, with lanes for trees."""

from __future__ import annotations

import taskc as tc
from taskc import DType, KernelDefinition, Machine, i32, i64, spatial
from taskc.kernels.indices import inside
from taskc.kernels.signatures import Extent

_WIDTH = 16  # trees of a block


def tree_leaves(
    rows: Extent, features: Extent, trees: int, nodes: int, depth: int,
    *, dtype: DType, machine: Machine,
) -> KernelDefinition:  # fmt: skip
    """The node that each row reaches after `depth` levels. A node asks whether a feature is at most its limit.

    keys      2 * feature, and 1 more where NaN counts as at most the limit
    children  the next node of node n where it is: at 2 * n; where it isn't: at 2 * n + 1. A leaf leads to itself
    """

    @tc.kernel(workers=_WIDTH)
    def tree_leaves(
        x: tc.typed[dtype[rows, features]],
        keys: i32[nodes],
        limits: tc.typed[dtype[nodes]],
        children: i32[2 * nodes],
        roots: i32[trees],
        leaves: tc.out[i32[rows, trees]],
    ) -> None:
        for row, first in tc.tiles((rows, trees), by=(1, _WIDTH)):
            for t in spatial(_WIDTH):
                if first + t < trees:
                    node = inside(roots[first + t].to(i64), nodes)
                    for _ in range(depth):
                        key = keys[node]
                        value = x[row, inside((key // 2).to(i64), features)]
                        is_within = value <= limits[node] or (value != value and key % 2 == 1)
                        node = inside(children[2 * node + (0 if is_within else 1)].to(i64), nodes)
                    leaves[row, first + t] = node.to(i32)

    return tree_leaves
