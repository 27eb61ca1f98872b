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
"""

from __future__ import annotations

from dataclasses import replace

from taskc.analysis.facts import Facts
from taskc.analysis.widths import facts_of_names, move_width
from taskc.ir import nodes as ir
from taskc.ir.matrix_moves import LINE_BYTES, axis_along, line_namers, memory_side
from taskc.ir.nodes import SHARED, TILE, Statement, Tensor
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
