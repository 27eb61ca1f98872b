"""Moves of whole matrices: each lane names a line of shared memory, and holds registers from a slot on.

    move left[i, q] = sa[i, kk + q] for (i, q) in (32, 16) by spatial(2, 1) * left fragment how=ldmatrix.x4
->
    do ldmatrix.x4(&left[0], &sa[worker // 32 * 16 + worker // 8 % 2 * 8 + worker % 8, kk + worker // 16 % 2 * 8])
"""

from __future__ import annotations

from taskc.ir import nodes as ir
from taskc.ir.build import ZERO, index, multiply
from taskc.ir.mapping import repeat
from taskc.ir.matrix_moves import LINE_BYTES, axis_along, line_namers, memory_side
from taskc.ir.nodes import Expression, Statement, Tensor
from taskc.ir.rewrite import substitute
from taskc.ir.target import MatrixMove
from taskc.passes.register_slots import trip_number
from taskc.passes.tasks import composed_tasks


def matrix_move(move: ir.Move, row: MatrixMove, number: Expression, registers: Tensor) -> Statement:
    """The instruction of a move; `number` is the worker's, `registers` are those of the tile."""
    side = memory_side(move)
    assert side is not None
    assert move.by is not None
    tensor, indices = side
    axis = axis_along(indices, move.variables)
    assert axis is not None
    namers = line_namers(move.by, axis, row, tensor)
    assert namers is not None
    line = tuple(
        LINE_BYTES // tensor.dtype.nbytes if dimension == axis else 1 for dimension in (0, 1)
    )
    trips, tasks, _ = composed_tasks(namers / repeat(*line), number)
    at = {
        variable: multiply(task, extent)
        for variable, task, extent in zip(move.variables, tasks, line, strict=True)
    }
    slot = multiply(trip_number(trips), row.count * row.fragment(tensor.dtype).slots)
    memory = ir.Address(tensor, tuple(substitute(i, at) for i in indices), loc=move.loc)
    places = ir.Address(registers, (slot,), loc=move.loc), memory
    statement: Statement = ir.Do(row.name, places if row.is_load else places[::-1], loc=move.loc)
    for variable, trip in reversed(trips):
        statement = ir.For(variable, ZERO, index(len(trip)), 1, statement, "unroll", loc=move.loc)
    return statement
