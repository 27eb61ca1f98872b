"""Block values that are the same in all blocks of a cluster: each block loads a part for all of them.

    grid (row, col) in (m, n) by (128, 256) cluster=(2, 1):
        ... move sb[slot, i, j] = b[p + i, col + j] for (i, j) in (64, 256) how=tma       in a producer's loop
->
    do tma.load.multicast(&sb[slot, block % 2 * 32, 0], &b[p + block % 2 * 32, col], &full[slot], 3, 32, 64) ...

A slot is then free when the consumers of all blocks have released it: they arrive at each block's mbarrier.
A load is common to all blocks of a cluster if its dependence on the tile doesn't involve the rank.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from taskc.analysis.coalescing import ATOM
from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.build import add, index, less, modulo, multiply
from taskc.ir.nodes import Expression, Statement, Variable
from taskc.ir.operations import RELEASE
from taskc.ir.rewrite import map_children, substitute, walk


def common_loads(body: Statement, size: int) -> set[int]:
    """The bulk loads (their ids) that are the same in all `size` blocks of a cluster."""
    grids = [node for node in walk(body) if isinstance(node, ir.Grid)]
    if size < 2 or len(grids) != 1:
        return set()
    numbers = _numbers(grids[0])
    lets: dict[Variable, Expression] = {}
    common_ids: set[int] = set()
    for node in walk(grids[0].body):
        if isinstance(node, ir.Let):
            lets[node.variable] = substitute(node.value, lets)
        if isinstance(node, ir.Move) and node.how == "tma" and node.tensor.scope == ir.SHARED:
            rows = node.shape[0]
            value = _of_clusters(substitute(node.value, lets), grids[0], numbers, size)
            if value and len(node.shape) == 2 and rows % (ATOM * size) == 0:
                common_ids.add(id(node))
    return common_ids


def _numbers(grid: ir.Grid) -> set[Variable]:
    """Variables that count blocks or tiles: consecutive numbers belong to one cluster."""
    loops = {
        node.variable
        for node in walk(grid.body)
        if isinstance(node, ir.For) and node.start in grid.variables
    }
    return {*grid.variables, *loops} if grid.by == (1,) else set()


def _of_clusters(value: Expression, grid: ir.Grid, numbers: set[Variable], size: int) -> bool:
    """Whether a value depends on blocks and tiles only through the cluster's number."""
    cluster = Variable("cluster")

    def visit(node: Expression) -> Expression:
        match node:
            case ir.Binary(operator="//", left=Variable() as number, right=ir.Constant(value=by)):
                if number in numbers and by == size:
                    return cluster
        return map_children(node, visit)

    used = {node for node in walk(visit(value)) if isinstance(node, Variable)}
    if numbers:
        return used.isdisjoint(numbers)
    differing = {v for v, by in zip(grid.variables, grid.cluster, strict=True) if by > 1}
    return prod(grid.cluster) == size and used.isdisjoint(differing)


def multicast(load: ir.Do, rank: Expression, size: int) -> ir.Do:
    """The part of a bulk load that the block of a rank does for all: some of the rows of its box."""
    shared, distant, full, *extents = load.operands
    assert isinstance(shared, ir.Address)
    assert isinstance(distant, ir.Address)
    *_, box_rows, columns = extents
    assert isinstance(box_rows, ir.Constant)
    rows = int(box_rows.value) // size
    first = multiply(rank, rows)
    *outer, row, column = shared.indices
    shared = replace(shared, indices=(*outer, add(row, first), column))
    *outer, row, column = distant.indices
    distant = replace(distant, indices=(*outer, add(row, first), column))
    everyone = index((1 << size) - 1)
    boxes = (*extents[:-2], index(rows), columns)
    return replace(
        load, operation="tma.load.multicast", operands=(shared, distant, full, everyone, *boxes)
    )


def arrivals(empty: ir.Address, number: Expression, size: int, group: int) -> Statement:
    """The arrival of a group of readers in each block of the cluster, by the worker with the rank's number."""
    loc = empty.loc
    peer = replace(empty.tensor, name=f"peer_{empty.tensor.name}", offset=None)
    worker = modulo(number, group)
    there = ir.Do(RELEASE, (replace(empty, tensor=peer), less(worker, size)), loc=loc)
    rank = modulo(worker, size)
    return ir.Sequence((ir.Peer(peer, empty.tensor, rank, loc=loc), there), loc=loc)


def together(loc: Location) -> list[Statement]:
    """A barrier of all workers of a cluster."""
    return [ir.Do(f"cluster.{what}", (), loc=loc) for what in ("arrive", "wait")]
