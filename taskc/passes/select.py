"""Instruction selection: who moves which elements, and the instructions of matrix products.

    move sa[i, q] = a[row + i, q] for (i, q) in (32, 8)                        64 workers
    mma acc += sa[0, 0].as(32, 8) @ sb[0, 0].as(8, 32)
    reduce t = + over x axis=1
->
    move sa[i, q] = a[row + i, q] for (i, q) in (32, 8) by spatial(32, 2).repeat(1, 4)
    for q in range(8):
        each (i, j) in own:
            acc[i, j] = fma(sa[i, q], sb[q, j], acc[i, j])
    ...                                                    (see taskc/passes/select_reductions.py)

A move from or to a tile is done by the tile's owners; any other by a coalesced cover of its shape, with
accesses as wide as its alignment allows. A tile that changes its mapping goes through shared memory, or, if
a processor's lanes exchange rows for columns, through shuffles (taskc/passes/select_moves.py). A
matrix product takes the first instruction whose fragments divide its accumulator's mapping; if none
fits it becomes fused multiply-adds, and a note says so.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from taskc.analysis.coalescing import facts_of_names, move_width, unit_stride
from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping, auto_map, repeat, spatial
from taskc.ir.mapping_forms import rounded_quotient
from taskc.ir.nodes import SHARED, TILE, Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import map_statements, walk
from taskc.ir.target import TARGETS, Target
from taskc.passes.lower_instructions import in_packs
from taskc.passes.select_moves import BulkStores, turned, turns, with_matrix_moves
from taskc.passes.select_products import matrix_product, with_asynchronous_products, with_packs
from taskc.passes.select_reductions import reduction
from taskc.passes.select_scans import scan
from taskc.passes.transports import plain_read

_SECTOR_BYTES = 32  # that memory reads at least


def select(kernel: ir.Kernel) -> ir.Kernel:
    target = TARGETS[kernel.target]
    notes: list[tuple[str, Location]] = []
    kernel = with_asynchronous_products(with_packs(kernel, target), target, notes)
    selector = _Selector(kernel, target)
    body = with_matrix_moves(selector.visit(kernel.body), target)
    # A SIMT kernel keeps its stage: only the mappings of its moves are selected.
    stage = "selected" if kernel.stage == "parsed" else kernel.stage
    return replace(kernel, body=body, stage=stage, notes=(*kernel.notes, *notes, *selector.notes))


class _Selector:
    def __init__(self, kernel: ir.Kernel, target: Target) -> None:
        self.kernel = kernel
        self.target = target
        self.workers = kernel.workers
        self.known = facts_of_names(kernel)
        self.notes: list[tuple[str, Location]] = []
        self.bulk_stores = BulkStores(kernel, target)

    def visit(self, statement: Statement) -> Statement:
        match statement:
            case ir.Each():
                return statement
            case ir.Move():
                return self.move(statement)
            case ir.Mma():
                return matrix_product(statement, self.target, self.known, self.notes)
            case ir.Reduce():
                return reduction(statement, self.target)
            case ir.Scan():
                return scan(statement, self.target, self.workers)
        return map_statements(statement, self.visit)

    def move(self, move: ir.Move) -> Statement:
        if move.by is not None:
            return replace(move, by=_limited(move.by, move.shape))
        if _changes_owners(move):
            return self.to_other_owners(move)
        owners = _tile_owners(move)
        if owners is not None:
            stored = self.bulk_stores.store(move, owners, self.known, self.notes)
            return stored or replace(move, by=_limited(owners, move.shape))
        if self.target.is_processor:
            packed = in_packs(move, self.workers)
            if packed is not None:
                return packed
        if self.is_turned(move):
            return replace(move, by=_by_sectors(move, self.workers))
        width = move_width(move, self.target, self.known)
        return replace(move, by=auto_map(move.shape, workers=self.workers, vector=width))

    def is_turned(self, move: ir.Move) -> bool:
        """Whether rows of a matrix in global memory become columns of one in shared memory: neighbours read a row."""
        found = (
            plain_read(move) if (move.tensor.scope, len(move.variables)) == (SHARED, 2) else None
        )
        if found is None:
            return False
        down, along = move.variables
        is_column = unit_stride(found[0].indices[-1], down, self.known)
        return is_column and unit_stride(move.indices[-1], along, self.known)

    def to_other_owners(self, move: ir.Move) -> Statement:
        """A copy by shuffles; or through shared memory: scratch = the source tile, by its owners, and the target =
        scratch, by its own.
        """
        read = move.value
        assert isinstance(read, ir.Read)
        source = read.tensor
        assert source.owners is not None
        assert move.tensor.owners is not None
        if turns(source.owners, move.tensor.owners, self.target, self.workers):
            return turned(move, self.workers)
        scratch = Tensor(f"{source.name}_scratch", source.dtype, source.shape, SHARED, loc=move.loc)
        variables = tuple(Variable(v.name) for v in move.variables)
        write = ir.Move(
            scratch, variables, variables, tuple(int(n) for n in source.shape),  # type: ignore[arg-type]
            ir.Read(source, variables), by=source.owners, loc=move.loc,
        )  # fmt: skip
        value = ir.Read(scratch, read.indices, loc=read.loc)
        back = replace(move, value=value, by=_limited(move.tensor.owners, move.shape))
        return ir.Sequence((ir.Allocate(scratch, loc=move.loc), write, back), loc=move.loc)


def _by_sectors(move: ir.Move, workers: int) -> Mapping:
    """Neighbours have a sector of memory, down the first axis; the next ones that of the next column."""
    down = gcd(_SECTOR_BYTES // move.tensor.dtype.nbytes, move.shape[0], workers)
    tile = spatial(down, workers // down, order=(1, 0))
    return (repeat(*rounded_quotient(move.shape, tile.shape)) * tile).within(move.shape)


def _changes_owners(move: ir.Move) -> bool:
    """Whether a move is a plain copy from a tile to one of another mapping."""
    value = move.value
    return (
        move.tensor.scope == TILE
        and isinstance(value, ir.Read)
        and value.tensor.scope == TILE
        and value.tensor.owners != move.tensor.owners
        and _is_whole(move.indices, move)
        and _is_whole(value.indices, move)
    )


def _tile_owners(move: ir.Move) -> Mapping | None:
    """The owners of the first tile that the move accesses element by element, its target first."""
    if move.tensor.scope == TILE and _is_whole(move.indices, move):
        return move.tensor.owners
    for node in walk(move):
        if not isinstance(node, ir.Read) or node.tensor.scope != TILE:
            continue
        if _is_whole(node.indices, move):
            return node.tensor.owners
    return None


def _is_whole(indices: tuple[Expression, ...], move: ir.Move) -> bool:
    """Whether the indices are the move's own variables."""
    return len(indices) == len(move.variables) and all(
        index is variable for index, variable in zip(indices, move.variables, strict=True)
    )


def _limited(owners: Mapping, shape: tuple[int, ...]) -> Mapping:
    """The part of a mapping inside a smaller shape."""
    return owners if shape == owners.iterated else owners.within(shape)
