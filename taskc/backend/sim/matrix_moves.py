"""Moves of whole matrices between shared memory and registers: lanes name lines, and hold parts of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from taskc.backend.operands import operands_of
from taskc.backend.sim.machine import Frame
from taskc.backend.sim.memory import Array
from taskc.backend.sim.register_slots import RegisterSlots, check_warps
from taskc.backend.sim.statements import Code, Statements
from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.ir.matrix_moves import LINE_BYTES, LINES
from taskc.ir.target import MATRIX_MOVES, WARP, MatrixMove


class MatrixMoves:
    """Compiles matrix moves.

    Eight lanes that name lines are served at a time: what a lane names is to the checks one access of
    16 bytes, by that lane.
    """

    def __init__(self, statements: Statements) -> None:
        self.accesses = statements.accesses

    def __call__(self, node: ir.Do) -> Code:
        row = MATRIX_MOVES[node.operation]
        target, source = operands_of(node).places
        if row.is_load:
            return self._load(node, row, target, source)
        return self._store(node, row, target, source)

    def _load(self, node: ir.Do, row: MatrixMove, target: ir.Address, source: ir.Address) -> Code:
        registers = _Registers(self, node, row, target)
        reads = [
            self.accesses.read(ir.Read(source.tensor, indices, loc=node.loc))
            for indices in _line(source)
        ]

        def run(frame: Frame) -> None:
            outer = _named_only(frame, row, node)
            lines = []
            for element, read in enumerate(reads):
                frame.vector = 0 if element else len(reads)
                lines.append(np.broadcast_to(read(frame), frame.full))
            frame.mask, frame.vector = outer, 1
            registers.write(frame, np.stack(lines, axis=-1))

        return Code(run)

    def _store(self, node: ir.Do, row: MatrixMove, target: ir.Address, source: ir.Address) -> Code:
        registers = _Registers(self, node, row, source)
        stores = [self.accesses.store(target.tensor, indices, node) for indices in _line(target)]

        def run(frame: Frame) -> None:
            lines = registers.read(frame)
            outer = _named_only(frame, row, node)
            for element, store in enumerate(stores):
                frame.vector = 0 if element else len(stores)
                store(frame, lines[..., element])
            frame.mask, frame.vector = outer, 1

        return Code(run)


class _Registers:
    """The registers of a move: a lane holds 4 bytes of each matrix, from a slot on."""

    def __init__(self, moves: MatrixMoves, node: ir.Do, row: MatrixMove, at: ir.Address) -> None:
        dtype = at.tensor.dtype
        if not row.fits(dtype):
            raise InternalError(f"{row.name} takes {dtype} apart")
        fragment = row.fragment(dtype)
        self.row = row
        self.lines, self.elements = fragment.tasks[..., 0], fragment.tasks[..., 1]
        self.slots = fragment.slots
        self.line = LINE_BYTES // dtype.nbytes
        self.held = RegisterSlots(moves.accesses, node, at, fragment.slots * row.count)

    def write(self, frame: Frame, lines: Array) -> None:
        """Distribute the lines [block, lane, element] that the lanes name to the lanes' registers."""
        warps = lines.reshape(frame.count, -1, WARP, self.line)[:, :, : LINES * self.row.count]
        matrices = warps.reshape(frame.count, -1, self.row.count, LINES, self.line)
        got = np.moveaxis(matrices[..., self.lines, self.elements], 2, 3)
        self.held.write(frame, got.reshape(frame.count, frame.width, -1))

    def read(self, frame: Frame) -> Array:
        """The lines [block, lane, element] that the lanes name, gathered from the lanes' registers."""
        held = self.held.read(frame)
        parts = held.reshape(frame.count, -1, WARP, self.row.count, self.slots)
        shape = (*parts.shape[:2], self.row.count, LINES, self.line)
        matrices = np.zeros(shape, held.dtype)
        matrices[..., self.lines, self.elements] = np.moveaxis(parts, 3, 2)
        lines = np.zeros((*parts.shape[:2], WARP, self.line), held.dtype)
        lines[:, :, : LINES * self.row.count] = matrices.reshape(*parts.shape[:2], -1, self.line)
        return lines.reshape(frame.count, frame.width, self.line)


def _line(address: ir.Address) -> list[tuple[ir.Expression, ...]]:
    """The indices of the elements of the line that begins at an address."""
    *outer, first = address.indices
    count = LINE_BYTES // address.tensor.dtype.nbytes
    further = [ir.Binary("+", first, ir.Constant(n, first.dtype)) for n in range(1, count)]
    return [address.indices, *((*outer, last) for last in further)]


def _named_only(frame: Frame, row: MatrixMove, node: ir.Do) -> Any:
    """Deactivate the lanes whose lines don't count; returns the former mask."""
    check_warps(frame, row.name, node)
    outer = frame.mask
    if row.count * LINES < WARP:
        names = np.arange(frame.width) % WARP < row.count * LINES
        frame.mask = np.broadcast_to(names, frame.full) if outer is None else outer & names
    return outer
