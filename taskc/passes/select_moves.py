"""Moves between shared memory and fragments by the instructions that move whole matrices.

    move left[i, q] = sa[i, kk + q] for (i, q) in (32, 16) by spatial(2, 1) * left fragment
    move right[q, j] = sb[kk + q, j] for (q, j) in (16, 32) by ... * right fragment
->
    move left[i, q] = sa[i, kk + q] for (i, q) in (32, 16) by ... how=ldmatrix.x4
    move right[q, j] = sb[kk + q, j] for (q, j) in (16, 32) by ... how=ldmatrix.x4.trans

    move s[i, j] = t[i, 16 * n + j] for (i, j) in (16, 16) by fragment
->
    tile s_lines: f16[16, 16] by fragment
    move s_lines[i, j] = t[i, 16 * n + j] for (i, j) in (16, 16) by fragment
    move s[i, j] = s_lines[i, j] for (i, j) in (16, 16) by fragment how=stmatrix.x4

The owners of the elements decide, by enumeration, and every line of 16 bytes has to be aligned. If no
instruction fits, each worker moves its own elements. A stored part of a tile is first copied to registers of its
own: the assembler sees that they are the same registers.

A copy between tiles of a vector of workers, from rows along its lanes to columns along them, by shuffles.

    move turned[p, o] = made[p, o] for (p, o) in (14, 16)
            made by repeat(14, 1).spatial(1, 16), turned by repeat(1, 16).spatial(16, 1).within(14, 16)
->
    square[p] = made[p, o]                                 by the owners of made
    turn(&square[0], 16)
    turned[p, o] = square[o]                               by the owners of turned

So 16 registers take 64 shuffles of two vectors; larger tiles are such squares. By way of memory it would be an access
for each number.
"""

from __future__ import annotations

from dataclasses import replace

from taskc.analysis.coalescing import facts_of_names, move_width
from taskc.analysis.facts import Facts
from taskc.ir import nodes as ir
from taskc.ir.build import ZERO, add, index
from taskc.ir.fragments import LINE_BYTES, axis_along, line_namers, memory_side
from taskc.ir.mapping import Mapping, repeat, spatial
from taskc.ir.nodes import LOCAL, SHARED, TILE, Statement, Tensor, Variable
from taskc.ir.operations import TURN
from taskc.ir.rewrite import copy, map_statements, walk
from taskc.ir.target import Target


def with_matrix_moves(body: Statement, target: Target) -> Statement:
    """The body, with matrix-move instructions where they fit."""
    if not target.moves:
        return body
    known = facts_of_names(body)

    def visit(statement: Statement) -> Statement:
        if isinstance(statement, ir.Move):
            chosen = _chosen(statement, target, known)
            return _through_registers(statement, target, known) if chosen is statement else chosen
        return map_statements(statement, visit)

    return visit(body)


def _through_registers(move: ir.Move, target: Target, known: Facts) -> Statement:
    """A store of a part of a tile, or of values computed from one, as a store of a whole tile, if that has lines."""
    tiles = (n for n in walk(move.value) if isinstance(n, ir.Read) and n.tensor.scope == TILE)
    if move.tensor.scope != SHARED or move.by is None or next(tiles, None) is None:
        return move
    loc = move.loc
    name, dtype = f"{move.tensor.name}_lines", move.tensor.dtype
    lines = Tensor(name, dtype, move.shape, TILE, owners=move.by, loc=loc)
    stored = replace(move, value=ir.Read(lines, move.variables, loc=loc))
    chosen = _chosen(stored, target, known)
    if chosen is stored:
        return move
    fill = replace(move, tensor=lines, indices=move.variables)
    return ir.Sequence((ir.Allocate(lines, loc=loc), fill, copy(chosen)), loc=loc)


def _chosen(move: ir.Move, target: Target, known: Facts) -> ir.Move:
    side = memory_side(move) if move.how is None else None
    if side is None:
        return move
    tensor, indices = side
    axis = axis_along(indices, move.variables)
    if axis is None or _width_along(move, axis, target, known) * tensor.dtype.nbytes < LINE_BYTES:
        return move
    assert move.by is not None
    for row in target.moves:
        is_load = move.tensor.scope != SHARED
        if row.is_load == is_load and line_namers(move.by, axis, row, tensor) is not None:
            return replace(move, how=row.name)
    return move


def _width_along(move: ir.Move, axis: int, target: Target, known: Facts) -> int:
    """The number of elements from a line's beginning on that are aligned together."""
    variables, shape = move.variables, move.shape
    if axis == 0:  # `move_width` looks at the last variable
        variables, shape = variables[::-1], shape[::-1]
    return move_width(replace(move, variables=variables, shape=shape), target, known)


def turns(source: Mapping, made: Mapping, target: Target, workers: int) -> bool:
    """Whether a copy between tiles with these mappings can be done so."""
    lanes = target.warp
    if not (target.is_processor and target.shuffles and workers == lanes and source.rank == 2):
        return False
    rows, columns = source.iterated
    return (
        columns % lanes == 0
        and source == repeat(rows, columns // lanes) * spatial(1, lanes)
        and made == _limited(repeat(-(-rows // lanes), columns) * spatial(lanes, 1), rows, columns)
    )


def turned(move: ir.Move, lanes: int) -> Statement:
    read = move.value
    assert isinstance(read, ir.Read)
    rows, columns = (int(extent) for extent in move.shape)
    squares: list[Statement] = []
    for row in range(0, rows, lanes):
        for column in range(0, columns, lanes):
            squares += _square(move.tensor, read.tensor, row, column, min(lanes, rows - row), lanes)
    return ir.Sequence(tuple(squares), loc=move.loc)


def _square(
    made: Tensor, source: Tensor, row: int, column: int, rows: int, lanes: int
) -> list[Statement]:
    """A square of so many rows, the last of which may be missing."""
    square = Tensor(f"{source.name}_square", source.dtype, (lanes,), LOCAL)
    p, o = Variable("p"), Variable("o")
    fill_square = ir.Store(square, (p,), ir.Read(source, (add(p, row), add(o, column))))
    before = repeat(rows, 1) * spatial(1, lanes)
    after = _limited(repeat(1, lanes) * spatial(lanes, 1), rows, lanes)
    first, second = Variable("p"), Variable("o")
    store_turned = ir.Store(
        made, (add(first, row), add(second, column)), ir.Read(square, (second,))
    )
    lane = Variable("lane")
    turn = ir.Do(TURN, (ir.Address(square, (ZERO,)), index(lanes)))
    return [
        ir.Allocate(square, ir.Constant(0, source.dtype)),
        ir.Each((p, o), before, None, fill_square),
        ir.Each((lane,), spatial(lanes), None, turn),
        ir.Each((first, second), after, None, store_turned),
    ]


def _limited(owners: Mapping, rows: int, columns: int) -> Mapping:
    return owners if owners.shape == (rows, columns) else owners.within((rows, columns))
