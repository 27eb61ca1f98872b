"""Target operations without waiting: shuffles, votes, and products of packs and of registers.

A matrix instruction computes on the fragments that the workers of a group hold: the parts of a matrix that the
lanes of whole warps have in registers, from a slot on. Moves of whole matrices between shared memory and
registers: lanes name lines, and hold parts of them. Tile registers: groups of 16 workers load, multiply and store.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from taskc.backend.operations import operands_of
from taskc.backend.sim.expressions import Evaluate
from taskc.backend.sim.machine import Frame, both
from taskc.backend.sim.memory import Array
from taskc.backend.sim.recording import memory_of
from taskc.backend.sim.statements import NOTHING, Code, Makers, StatementCompiler
from taskc.errors import InternalError
from taskc.ir import nodes as ir, operations
from taskc.ir.arithmetic import convert, fma
from taskc.ir.fragments import LINE_BYTES, LINES
from taskc.ir.mapping import Mapping
from taskc.ir.operations import DOTS, PACK, TILED, TURN
from taskc.ir.target import (
    MATRIX_MOVES,
    WARP,
    WARP_INSTRUCTIONS,
    MatrixInstruction,
    MatrixMove,
    WarpInstruction,
)

# Operations without an effect where phases take effect one after another, or warps run in lockstep.
_NOTHING = (
    *("setmaxnreg", "schedule.hold", "schedule.branch", "schedule.take_turn", "schedule.give_turn"),
    *("fence.proxy.async", "wgmma.fence"),
    *("wgmma.commit", "wgmma.wait", "tma.wait", "fence.block", "fence.gpu"),
)


# --- Exchanges between the lanes of a warp -------------------------------------------------------


def _shuffle(compiler: StatementCompiler, node: ir.Do) -> Code:
    value, distance, *others = map(compiler.expressions, node.operands)
    kind = node.operation.removeprefix("shuffle.")
    result = node.result
    assert result is not None

    def run(frame: Frame) -> None:
        lane = np.arange(frame.width) % WARP
        start = np.arange(frame.width) - lane
        n = np.asarray(distance(frame)).astype(np.int64)
        match kind:
            case "xor":
                other = lane ^ n
            case "index":
                other = n % WARP
            case "bits":
                other = lane & n | np.asarray(others[0](frame)).astype(np.int64)
            case "up":
                other = np.where(lane - n < 0, lane, lane - n)
            case _:
                other = np.where(lane + n >= WARP, lane, lane + n)
        other = np.where((other < 0) | (other >= WARP), lane, other)
        source = start + other
        source = np.where(source >= frame.width, np.arange(frame.width), source)
        full = np.broadcast_shapes(frame.full, source.shape)
        source = np.broadcast_to(source, full)
        values = np.broadcast_to(value(frame), full)
        if frame.mask is not None:
            mask = np.broadcast_to(frame.mask, full)
            asleep = mask & ~np.take_along_axis(mask, source, axis=-1)
            if asleep.any():
                message = "the value comes from a lane that does not take part"
                frame.fault("inactive-lane", message, asleep, node)
        frame.env[result] = np.take_along_axis(values, source, axis=-1)

    return Code(run)


def _turn(compiler: StatementCompiler, node: ir.Do) -> Code:
    (place,), _, (lanes,) = operands_of(node)
    places = [_later(compiler, place, -1, k) for k in range(lanes)]
    reads = [compiler.accesses.read(ir.Read(place.tensor, at, loc=node.loc)) for at in places]
    stores = [compiler.accesses.store(place.tensor, at, node) for at in places]

    def run(frame: Frame) -> None:
        lines = np.stack([np.broadcast_to(read(frame), frame.full) for read in reads])
        squares = lines.reshape(lanes, *frame.full[:-1], -1, lanes)
        turned = np.moveaxis(squares, (0, -1), (-1, 0)).reshape(lines.shape)
        for store, line in zip(stores, turned, strict=True):
            store(frame, line)

    return Code(run)


def _vote(compiler: StatementCompiler, node: ir.Do) -> Code:
    predicate = compiler.expressions(node.operands[0])
    kind, result = node.operation, node.result
    assert result is not None

    def run(frame: Frame) -> None:
        full = frame.full
        predicates = np.broadcast_to(predicate(frame), full)
        mask = np.broadcast_to(True if frame.mask is None else frame.mask, full)
        parts = []
        for first in range(0, frame.width, WARP):
            part = slice(first, min(first + WARP, frame.width))
            votes, here = predicates[..., part], mask[..., part]
            if kind == "vote.any":
                answer = (votes & here).any(axis=-1, keepdims=True)
            elif kind == "vote.all":
                answer = (votes | ~here).all(axis=-1, keepdims=True)
            else:
                weights = np.uint32(1) << np.arange(votes.shape[-1], dtype=np.uint32)
                answer = ((votes & here) * weights).sum(axis=-1, keepdims=True, dtype=np.uint32)
            parts.append(np.broadcast_to(answer, votes.shape))
            if (here.any(axis=-1) != here.all(axis=-1)).any():
                where = np.zeros(full, np.bool_)
                where[..., part] = here & ~here.all(axis=-1, keepdims=True)
                message = "only some lanes of the warp take part"
                frame.fault("inactive-lane", message, where, node)
        frame.env[result] = np.concatenate(parts, axis=-1)

    return Code(run)


# --- Products of each worker's packs -------------------------------------------------------------


def _dot(compiler: StatementCompiler, node: ir.Do) -> Code:
    row = DOTS[node.operation]
    (accumulator, *places), _, flags = operands_of(node)
    sides = (True, False)[-len(places) :]
    packs = [
        _pack(compiler, place, -2 if bool(transposed) == is_left else -1, row.pack)
        for place, transposed, is_left in zip(places, flags, sides, strict=True)
    ]
    right, dtype = packs[-1], row.accumulator
    read = compiler.accesses.read(ir.Read(accumulator.tensor, accumulator.indices, loc=node.loc))
    store = compiler.accesses.store(accumulator.tensor, accumulator.indices, node)

    offset = dtype.numpy.type(row.offset)

    def run(frame: Frame) -> None:
        total = read(frame)
        for q in reversed(range(row.pack)):
            factor = offset
            if len(packs) > 1:
                factor = convert(packs[0][q](frame), row.operand, dtype) + offset
            total = fma(factor, convert(right[q](frame), row.types[1], dtype), total, dtype)
        store(frame, total)

    return Code(run)


def _pack(compiler: StatementCompiler, place: ir.Address, depth: int, pack: int) -> list[Evaluate]:
    """Reads of the elements of a pack, in order."""
    indices = [_later(compiler, place, depth, q) for q in range(pack)]
    return [compiler.accesses.read(ir.Read(place.tensor, at, loc=place.loc)) for at in indices]


def _later(
    compiler: StatementCompiler, place: ir.Address, depth: int, count: int
) -> tuple[ir.Expression, ...]:
    """The indices of an element of a pack; a flat access has only one, the linear offset."""
    indices = list(place.indices)
    depth = -1 if compiler.run.is_flat else depth
    if count:
        number = ir.Constant(count, indices[depth].dtype)
        indices[depth] = ir.Binary("+", indices[depth], number)
    return tuple(indices)


def _store_pack(compiler: StatementCompiler, node: ir.Do) -> Code:
    (place,), values, (dimension,) = operands_of(node)
    parts = []
    for q, value in enumerate(values):
        at = _later(compiler, place, dimension - 2, q)
        store = compiler.accesses.store(place.tensor, at, node)
        parts.append((store, compiler.expressions(value)))

    def run(frame: Frame) -> None:
        for store, value in parts:
            store(frame, value(frame))

    return Code(run)


# --- Matrix products of a warp's registers -------------------------------------------------------


class RegisterSlots:
    """A range of registers of each lane, from an address on."""

    def __init__(
        self, compiler: StatementCompiler, node: ir.Do, at: ir.Address, count: int
    ) -> None:
        self.node, self.tensor, self.count = node, at.tensor, count
        self.place = compiler.accesses.place(at.tensor, at.indices, node)

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


def _matrix(compiler: StatementCompiler, node: ir.Do) -> Code:
    row = WARP_INSTRUCTIONS[node.operation]
    fragments = (row.accumulator_fragment, row.left_fragment, row.right_fragment)
    held = [
        RegisterSlots(compiler, node, place, fragment.slots)
        for place, fragment in zip(operands_of(node).places, fragments, strict=True)
    ]

    def run(frame: Frame) -> None:
        check_warps(frame, row.name, node)
        warps = (frame.count, frame.width // WARP, WARP, -1)
        product = matrix_product(row, *[slots.read(frame).reshape(warps) for slots in held])
        held[0].write(frame, product.reshape(frame.count, frame.width, -1))

    return Code(run)


# --- Moves of matrices ---------------------------------------------------------------------------
# Eight lanes that name lines are served at a time: what a lane names is to the checks one access of 16 bytes,
# by that lane.


def _load_matrices(compiler: StatementCompiler, node: ir.Do) -> Code:
    row = MATRIX_MOVES[node.operation]
    target, source = operands_of(node).places
    registers = _MatrixRegisters(compiler, node, row, target)
    reads = [
        compiler.accesses.read(ir.Read(source.tensor, indices, loc=node.loc))
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


def _store_matrices(compiler: StatementCompiler, node: ir.Do) -> Code:
    row = MATRIX_MOVES[node.operation]
    target, source = operands_of(node).places
    registers = _MatrixRegisters(compiler, node, row, source)
    stores = [compiler.accesses.store(target.tensor, indices, node) for indices in _line(target)]

    def run(frame: Frame) -> None:
        lines = registers.read(frame)
        outer = _named_only(frame, row, node)
        for element, store in enumerate(stores):
            frame.vector = 0 if element else len(stores)
            store(frame, lines[..., element])
        frame.mask, frame.vector = outer, 1

    return Code(run)


class _MatrixRegisters:
    """The registers of a move: a lane holds 4 bytes of each matrix, from a slot on."""

    def __init__(
        self, compiler: StatementCompiler, node: ir.Do, row: MatrixMove, at: ir.Address
    ) -> None:
        dtype = at.tensor.dtype
        if not row.fits(dtype):
            raise InternalError(f"{row.name} takes {dtype} apart")
        fragment = row.fragment(dtype)
        self.row = row
        self.lines, self.elements = fragment.tasks[..., 0], fragment.tasks[..., 1]
        self.slots = fragment.slots
        self.line = LINE_BYTES // dtype.nbytes
        self.held = RegisterSlots(compiler, node, at, fragment.slots * row.count)

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
        frame.mask = both(outer, np.broadcast_to(names, frame.full))
    return outer


# --- Tile registers ------------------------------------------------------------------------------


TileMatrices: TypeAlias = dict[int, Array]
"""The matrices [block, group, row, column] in the registers of a number."""


def _multiply_tiles(compiler: StatementCompiler, node: ir.Do) -> Code:
    row = TILED[node.operation]
    total, left, right = operands_of(node).numbers

    def run(frame: Frame) -> None:
        tiles = tiles_of(frame)
        product = folded(row, tiles[total], tiles[left], tiles[right])
        _put(frame, total, product)

    return Code(run)


def _load_tile(compiler: StatementCompiler, node: ir.Do) -> Code:
    row = TILED[node.operation]
    (number,), places = operands_of(node).numbers, _slots(node)
    reads = [compiler.accesses.read(ir.Read(*place, loc=node.loc)) for place in places]

    def run(frame: Frame) -> None:
        lines = np.stack(_all(reads, frame), axis=-1)  # [block, worker, row]
        _put(frame, number, np.swapaxes(_by_group(lines, row.group), -1, -2))

    return Code(run)


def _store_tile(compiler: StatementCompiler, node: ir.Do) -> Code:
    (number,), places = operands_of(node).numbers, _slots(node)
    stores = [compiler.accesses.store(*place, node) for place in places]

    def run(frame: Frame) -> None:
        tile = tiles_of(frame)[number]
        for line, store in enumerate(stores):
            store(frame, tile[..., line, :].reshape(frame.count, frame.width))

    return Code(run)


def _slots(node: ir.Do) -> list[tuple[ir.Tensor, tuple[ir.Expression, ...]]]:
    """The registers of a fragment."""
    (place,) = operands_of(node).places
    count = TILED[node.operation].accumulator_fragment.slots
    return [(place.tensor, (_further(place.indices[0], n),)) for n in range(count)]


def _load_operand(compiler: StatementCompiler, node: ir.Do) -> Code:
    """Each worker of a group reads a line of the left operand, or a column of the right one."""
    row = TILED[node.operation]
    is_left = node.operation.endswith(operations.TILE_LEFT)
    (place,), _, (number, pitch, transposed) = operands_of(node)
    worker, k = compiler.run.kernel.worker, row.shape[2]
    lane = ir.Binary("%", worker, ir.Constant(row.group, worker.dtype))
    reads = []
    for q in range(k):
        if compiler.run.is_flat:
            lines, at = (pitch, q) if is_left else (row.pack, q // row.pack * pitch + q % row.pack)
            indices = [_further(_shifted(place.indices[0], lane, lines), at)]
        else:
            depth = -2 if bool(transposed) == is_left else -1
            indices = list(place.indices)
            indices[depth] = _further(indices[depth], q)
            indices[-3 - depth] = _shifted(indices[-3 - depth], lane, 1)
        reads.append(compiler.accesses.read(ir.Read(place.tensor, tuple(indices), loc=node.loc)))

    def run(frame: Frame) -> None:
        lines = _by_group(np.stack(_all(reads, frame), axis=-1), row.group)
        _put(frame, number, lines if is_left else np.swapaxes(lines, -1, -2))

    return Code(run)


def tiles_of(frame: Frame) -> TileMatrices:
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


_TILES = {
    operations.TILE_LOAD: _load_tile,
    operations.TILE_STORE: _store_tile,
    operations.TILE_LEFT: _load_operand,
    operations.TILE_RIGHT: _load_operand,
}

IN_LOCKSTEP: Makers = {
    **dict.fromkeys(_NOTHING, lambda compiler, node: NOTHING),
    **{f"shuffle.{kind}": _shuffle for kind in ("xor", "index", "bits", "up", "down")},
    **dict.fromkeys(("vote.any", "vote.all", "vote.ballot"), _vote),
    PACK: _store_pack,
    TURN: _turn,
    **dict.fromkeys(DOTS, _dot),
    **{
        name: _TILES.get(name.removeprefix(row.name), _multiply_tiles)
        for name, row in TILED.items()
    },
    **{
        name: _load_matrices if row.is_load else _store_matrices
        for name, row in MATRIX_MOVES.items()
    },
    **dict.fromkeys(WARP_INSTRUCTIONS, _matrix),
}
