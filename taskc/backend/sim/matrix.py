"""The computation of a matrix instruction, on the fragments that the workers of a group hold.

Moves of whole matrices between shared memory and registers: lanes name lines, and hold parts of them.

Matrix products on tile registers: groups of 16 workers load, multiply and store.

Fragments in registers: the parts of a matrix that the lanes of whole warps hold, from a slot on.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from taskc.backend.operands import operands_of
from taskc.backend.sim.accesses import Accesses
from taskc.backend.sim.expressions import Evaluate
from taskc.backend.sim.machine import Frame
from taskc.backend.sim.memory import Array
from taskc.backend.sim.recording import memory_of
from taskc.backend.sim.statements import Code, Statements
from taskc.errors import InternalError
from taskc.ir import nodes as ir, operations
from taskc.ir.arithmetic import convert, fma
from taskc.ir.fragments import LINE_BYTES, LINES
from taskc.ir.mapping import Mapping
from taskc.ir.operations import TILED
from taskc.ir.target import MATRIX_MOVES, WARP, MatrixInstruction, MatrixMove, WarpInstruction


class RegisterSlots:
    """A range of registers of each lane, from an address on."""

    def __init__(self, accesses: Accesses, node: ir.Do, at: ir.Address, count: int) -> None:
        self.node, self.tensor, self.count = node, at.tensor, count
        self.place = accesses.place(at.tensor, at.indices, node)

    def _part(self, frame: Frame) -> slice:
        start = int(np.max(self.place(frame)[0]))
        return slice(start, start + self.count)

    def read(self, frame: Frame) -> Array:
        """The registers' values, [block, lane, slot]."""
        memory, part = memory_of(frame, self.tensor), self._part(frame)
        missing = (memory.written[part] == 0).any(axis=0)
        message = f"{self.tensor.name} is read before it is written"
        frame.fault_if("uninitialized", message, missing, self.node)
        return np.moveaxis(memory.data[part], 0, -1)

    def write(self, frame: Frame, values: Array) -> None:
        """Store values [block, lane, slot] for the active lanes."""
        memory, part = memory_of(frame, self.tensor), self._part(frame)
        lanes: Any = True if frame.mask is None else frame.mask
        np.copyto(memory.data[part], np.moveaxis(values, -1, 0), where=lanes)
        np.copyto(memory.written[part], 1, where=lanes)


def check_warps(frame: Frame, name: str, node: ir.Do) -> None:
    """Report a warp-wide operation in which only some lanes of the warp take part."""
    if frame.width % WARP or frame.axes:
        raise InternalError(f"{name} needs whole warps")
    if frame.mask is None:
        return
    mask = np.broadcast_to(frame.mask, frame.full).reshape(frame.count, -1, WARP)
    partly = mask.any(axis=-1) != mask.all(axis=-1)
    if np.count_nonzero(partly):
        where = np.repeat(partly, WARP, axis=-1)
        frame.fault("inactive-lane", "only some lanes of the warp take part", where, node)


Values = NDArray[Any]


def matrix_product(
    row: WarpInstruction, accumulator: Values, left: Values, right: Values
) -> Values:
    """The accumulator's registers after the product: arrays [..., worker of the group, register].

    Ascending k, one fused multiply-add a step, as `Mma` means it.
    """
    whole = gathered(accumulator, row.accumulator_fragment)
    lefts, rights = gathered(left, row.left_fragment), gathered(right, row.right_fragment)
    return scattered(folded(row, whole, lefts, rights), row.accumulator_fragment)


def folded(row: MatrixInstruction, total: Values, left: Values, right: Values) -> Values:
    """total + left @ right on whole matrices [..., row, column]."""
    lefts = convert(left, row.operand, row.accumulator)
    rights = convert(right, row.types[1], row.accumulator)
    for q in range(row.shape[2]):
        total = fma(lefts[..., :, q, None], rights[..., q, None, :], total, row.accumulator)
    return total


def scattered(matrix: Values, fragment: Mapping) -> Values:
    """The registers [..., worker of the group, register] that hold a matrix."""
    tasks = fragment.tasks
    held: Values = matrix[..., tasks[..., 0], tasks[..., 1]]
    return held


def gathered(registers: Values, fragment: Mapping) -> Values:
    """The matrix [..., row, column] that the registers are parts of."""
    matrix = np.empty((*registers.shape[:-2], *fragment.shape), registers.dtype)
    tasks = fragment.tasks
    matrix[..., tasks[..., 0], tasks[..., 1]] = registers
    return matrix


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
