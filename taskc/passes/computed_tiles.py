"""Loops over a tile's registers that compute math functions stay loops: they read the tile from memory.

    register acc: f32[28]                                  local acc_cells: f32[28]
    for s in range(0, 28) unroll:                          for n in range(0, 28) unroll:
        y[s * 16 + lane] = gelu(acc[s] + bias[lane])   ->      acc_cells[n] = acc[n]
                                                           for s in range(0, 28):
                                                               y[s * 16 + lane] = gelu(acc_cells[s] + bias[lane])

A register has no address, so that a loop over registers is unrolled. A math function needs registers for its
coefficients, and loads them again for each element while the tile holds the others. A store and a load of an element
cost less. Only processors have private memory that is as near as that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taskc.ir import nodes as ir
from taskc.ir.arithmetic import MATH_FUNCTIONS
from taskc.ir.build import index
from taskc.ir.nodes import LOCAL, REGISTER, Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import rewritten, walk

_LEAST = 8  # registers


def in_memory(body: Statement, slots: Sequence[Variable]) -> tuple[list[Statement], Statement]:
    """Statements that copy the registers that a loop's body picks by slots, and the body that reads the copies; none
    if its registers are few, or change, or if it computes no math function."""
    nodes = [*walk(body)]
    has_math = any(
        isinstance(node, ir.Unary | ir.Binary) and node.operator in MATH_FUNCTIONS for node in nodes
    )
    changes = any(isinstance(node, ir.Store) and node.tensor.scope == REGISTER for node in nodes)
    if not has_math or changes:
        return [], body
    cells = {
        node.tensor: replace(node.tensor, name=f"{node.tensor.name}_cells", scope=LOCAL)
        for node in nodes
        if isinstance(node, ir.Read) and node.tensor.scope == REGISTER and _picks(node, slots)
    }
    if max([_length(tensor) for tensor in cells], default=0) < _LEAST:
        return [], body
    copies: list[Statement] = []
    for registers, memory in cells.items():
        number = Variable("n")
        copy = ir.Store(memory, (number,), ir.Read(registers, (number,)), loc=body.loc)
        copies += [
            ir.Allocate(memory, loc=body.loc),
            ir.For(number, index(0), index(_length(registers)), 1, copy, "unroll", loc=body.loc),
        ]

    def read(node: Expression) -> Expression:
        if isinstance(node, ir.Read) and node.tensor in cells:
            return replace(node, tensor=cells[node.tensor])
        return node

    return copies, rewritten(body, read)


def is_of_cells(loop: ir.For) -> bool:
    """Whether a loop reads such copies, and isn't to be unrolled, however short it is."""
    return any(
        isinstance(node, ir.Read) and node.tensor.scope == LOCAL and _picks(node, [loop.variable])
        for node in walk(loop.body)
    )


def _picks(read: ir.Read, slots: Sequence[Variable]) -> bool:
    return any(part in slots for place in read.indices for part in walk(place))


def _length(tensor: Tensor) -> int:
    (length,) = tensor.shape
    assert isinstance(length, int)
    return length
