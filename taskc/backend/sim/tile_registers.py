"""Matrix products on tile registers: groups of 16 workers load, multiply and store."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from taskc.backend.operands import operands_of
from taskc.backend.sim.accesses import Accesses
from taskc.backend.sim.expressions import Evaluate
from taskc.backend.sim.machine import Frame
from taskc.backend.sim.matrix import folded
from taskc.backend.sim.memory import Array
from taskc.backend.sim.statements import Code
from taskc.errors import InternalError
from taskc.ir import nodes as ir, operations
from taskc.ir.operations import TILED

Tiles: TypeAlias = dict[int, Array]
"""The matrices [block, group, row, column] in the registers of a number."""


class TileRegisters:
    def __init__(self, accesses: Accesses, kernel: ir.Kernel, is_flat: bool) -> None:
        self.accesses = accesses
        self.kernel = kernel
        self.is_flat = is_flat

    def __call__(self, node: ir.Do) -> Code:
        row = TILED[node.operation]
        match node.operation.removeprefix(row.name):
            case operations.TILE_LOAD:
                return self._load(node)
            case operations.TILE_STORE:
                return self._store(node)
            case operations.TILE_LEFT:
                return self._operand(node, is_left=True)
            case operations.TILE_RIGHT:
                return self._operand(node, is_left=False)
        return self._multiply(node)

    def _multiply(self, node: ir.Do) -> Code:
        row = TILED[node.operation]
        total, left, right = operands_of(node).numbers

        def run(frame: Frame) -> None:
            tiles = tiles_of(frame)
            product = folded(row, tiles[total], tiles[left], tiles[right])
            _put(frame, total, product)

        return Code(run)

    def _load(self, node: ir.Do) -> Code:
        row = TILED[node.operation]
        (number,), places = operands_of(node).numbers, self._slots(node)
        reads = [self.accesses.read(ir.Read(*place, loc=node.loc)) for place in places]

        def run(frame: Frame) -> None:
            lines = np.stack(_all(reads, frame), axis=-1)  # [block, worker, row]
            _put(frame, number, np.swapaxes(_by_group(lines, row.group), -1, -2))

        return Code(run)

    def _store(self, node: ir.Do) -> Code:
        (number,), places = operands_of(node).numbers, self._slots(node)
        stores = [self.accesses.store(*place, node) for place in places]

        def run(frame: Frame) -> None:
            tile = tiles_of(frame)[number]
            for line, store in enumerate(stores):
                store(frame, tile[..., line, :].reshape(frame.count, frame.width))

        return Code(run)

    def _slots(self, node: ir.Do) -> list[tuple[ir.Tensor, tuple[ir.Expression, ...]]]:
        """The registers of a fragment."""
        (place,) = operands_of(node).places
        count = TILED[node.operation].accumulator_fragment.slots
        return [(place.tensor, (_further(place.indices[0], n),)) for n in range(count)]

    def _operand(self, node: ir.Do, *, is_left: bool) -> Code:
        """Each worker of a group reads a line of the left operand, or a column of the right one."""
        row = TILED[node.operation]
        (place,), _, (number, pitch, transposed) = operands_of(node)
        worker, k = self.kernel.worker, row.shape[2]
        lane = ir.Binary("%", worker, ir.Constant(row.group, worker.dtype))
        reads = []
        for q in range(k):
            if self.is_flat:
                lines, at = (
                    (pitch, q) if is_left else (row.pack, q // row.pack * pitch + q % row.pack)
                )
                indices = [_further(_shifted(place.indices[0], lane, lines), at)]
            else:
                depth = -2 if bool(transposed) == is_left else -1
                indices = list(place.indices)
                indices[depth] = _further(indices[depth], q)
                indices[-3 - depth] = _shifted(indices[-3 - depth], lane, 1)
            reads.append(self.accesses.read(ir.Read(place.tensor, tuple(indices), loc=node.loc)))

        def run(frame: Frame) -> None:
            lines = _by_group(np.stack(_all(reads, frame), axis=-1), row.group)
            _put(frame, number, lines if is_left else np.swapaxes(lines, -1, -2))

        return Code(run)


def tiles_of(frame: Frame) -> Tiles:
    if frame.axes:
        raise InternalError("tile registers belong to whole groups of workers")
    return frame.group.tile_registers


def _put(frame: Frame, number: int, tile: Array) -> None:
    """Set a tile register; blocks that don't take part keep their contents."""
    tiles = tiles_of(frame)
    if frame.mask is not None and number in tiles:
        active: Array = np.all(np.broadcast_to(frame.mask, frame.full), axis=-1)
        tile = np.where(active[:, None, None, None], tile, tiles[number])
    tiles[number] = tile


def _all(reads: list[Evaluate], frame: Frame) -> list[Array]:
    return [np.broadcast_to(read(frame), frame.full) for read in reads]


def _by_group(values: Array, group: int) -> Array:
    """Reshape [block, worker, item] to [block, group, worker, item]."""
    blocks, workers, items = values.shape
    return values.reshape(blocks, workers // group, group, items)


def _further(place: ir.Expression, count: int) -> ir.Expression:
    return ir.Binary("+", place, ir.Constant(count, place.dtype)) if count else place


def _shifted(place: ir.Expression, lane: ir.Expression, step: int) -> ir.Expression:
    """An index that is `step` elements further for each lane."""
    number = lane if lane.dtype is place.dtype else ir.Cast(lane, place.dtype)
    return ir.Binary("+", place, ir.Binary("*", number, ir.Constant(step, place.dtype)))
