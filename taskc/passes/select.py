"""Chooses the target's instructions: who moves what, and what multiplies matrices.

    move sa[i, q] for (i, q) in (32, 8) = a[row + i, q]
    mma acc += sa @ sb
    t = reduce(x, axis 1, +)
->
    move sa[i, q] for (i, q) in (32, 8) by spatial(8, 2).repeat(1, 4) = a[row + i, q]
    for q in range(8):
        each (i, j) in own:
            acc[i, j] = fma(sa[i, q], sb[q, j], acc[i, j])
    ...                                                    (see taskc/passes/select_reductions.py)

A move from or to a tile is done by the tile's owners; any other by a coalesced cover of its shape, with
accesses as wide as its alignment allows. A tile that changes its mapping goes through shared memory. A
matrix product takes the first instruction whose fragments divide its accumulator's mapping; where none
fits it becomes fused multiply-adds, and a note says so.
"""

from __future__ import annotations

from dataclasses import replace

from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping, auto_map
from taskc.ir.nodes import SHARED, TILE, Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import map_children, map_statements, walk
from taskc.ir.target import TARGETS, Target
from taskc.passes.select_matrix import matrix_product
from taskc.passes.select_reductions import reduction, scan
from taskc.passes.widths import known_multiples, move_width


def select(kernel: ir.Kernel) -> ir.Kernel:
    selector = _Selector(kernel, TARGETS[kernel.target])
    body = selector.visit(kernel.body)
    # A kernel of the expert's room keeps its stage: all that is chosen for it is who moves what.
    stage = "selected" if kernel.stage == "parsed" else kernel.stage
    return replace(kernel, body=body, stage=stage, notes=(*kernel.notes, *selector.notes))


class _Selector:
    def __init__(self, kernel: ir.Kernel, target: Target) -> None:
        self.kernel = kernel
        self.target = target
        self.workers = kernel.workers
        self.known = known_multiples(kernel.body)
        self.notes: list[tuple[str, Location]] = []

    def visit(self, statement: Statement) -> Statement:
        match statement:
            case ir.Each():
                return statement
            case ir.Move():
                return self.move(statement)
            case ir.Mma():
                return matrix_product(statement, self.target, self.workers, self.notes)
            case ir.Reduce():
                return reduction(statement, self.target)
            case ir.Scan():
                return scan(statement, self.workers)
        return map_statements(statement, self.visit)

    def move(self, move: ir.Move) -> Statement:
        if move.by is not None and move.tensor.scope != TILE:
            return move
        source = _tile_read(move)
        into_tile = move.tensor.scope == TILE
        if into_tile:
            owners = move.tensor.owners
            assert owners is not None
            if source is not None and source.owners != owners:
                return self.through_shared(move, source)
            return replace(move, by=_limited(owners, move.shape))
        if source is not None:
            assert source.owners is not None
            return replace(move, by=_limited(source.owners, move.shape))
        width = move_width(move, self.target, self.known)
        return replace(move, by=auto_map(move.shape, workers=self.workers, vector=width))

    def through_shared(self, move: ir.Move, source: Tensor) -> Statement:
        """scratch = the source tile, by its owners; the target = scratch, by its own."""
        assert source.owners is not None
        assert move.tensor.owners is not None
        read = next(
            node for node in walk(move.value) if isinstance(node, ir.Read) and node.tensor is source
        )
        scratch = Tensor(f"{source.name}_scratch", source.dtype, source.shape, SHARED, loc=move.loc)
        variables = tuple(Variable(v.name) for v in move.variables)
        write = ir.Move(
            scratch, variables, variables, tuple(int(n) for n in source.shape),  # type: ignore[arg-type]
            ir.Read(source, variables), by=source.owners, loc=move.loc,
        )  # fmt: skip
        value = _replace_read(move.value, read, ir.Read(scratch, read.indices, loc=read.loc))
        back = replace(move, value=value, by=_limited(move.tensor.owners, move.shape))
        return ir.Sequence((ir.Allocate(scratch, loc=move.loc), write, back), loc=move.loc)


def _tile_read(move: ir.Move) -> Tensor | None:
    for node in walk(move.value):
        if isinstance(node, ir.Read) and node.tensor.scope == TILE:
            return node.tensor
    return None


def _replace_read(value: Expression, old: ir.Read, new: ir.Read) -> Expression:
    def visit(node: Expression) -> Expression:
        return new if node is old else map_children(node, visit)

    return visit(value)


def _limited(owners: Mapping, shape: tuple[int, ...]) -> Mapping:
    """The owners' part of a smaller shape."""
    return owners if shape == owners.iterated else owners.within(shape)
