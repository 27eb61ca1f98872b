"""Target operations without waiting: shuffles, votes, products of packs and of registers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from taskc.backend.operands import operands_of
from taskc.backend.sim.expressions import Evaluate
from taskc.backend.sim.machine import Frame
from taskc.backend.sim.matrix import (
    MatrixMoves,
    RegisterSlots,
    TileRegisters,
    check_warps,
    matrix_product,
)
from taskc.backend.sim.statements import Code, Statements
from taskc.backend.sim.worker_copies import WorkerCopies
from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.ir.arithmetic import convert, fma
from taskc.ir.operations import DOTS, OPERATIONS, PACK, TILED, TURN
from taskc.ir.target import MATRIX_MOVES, WARP, WARP_INSTRUCTIONS

# Operations without an effect where phases take effect one after another, or warps run in lockstep.
_NOTHING = (
    *("setmaxnreg", "schedule.hold", "schedule.branch", "schedule.take_turn", "schedule.give_turn"),
    *("fence.proxy.async", "wgmma.fence"),
    *("wgmma.commit", "wgmma.wait", "tma.wait", "fence.block", "fence.gpu"),
)


class Operations:
    def __init__(self, statements: Statements) -> None:
        self.statements = statements
        self.run = statements.state
        self.expressions = statements.expressions
        self.accesses = statements.accesses
        copies = WorkerCopies(self.accesses, self.expressions, self.run)
        self.makers: dict[str, Callable[[ir.Do], Code]] = {
            "cp.async": copies.copy,
            "cp.async.commit": copies.commit,
            "cp.async.wait": copies.wait,
            **dict.fromkeys(("vote.any", "vote.all", "vote.ballot"), self.vote),
            **dict.fromkeys(_NOTHING, lambda node: Code(lambda frame: None)),
        }
        for name in ("xor", "index", "bits", "up", "down"):
            self.makers[f"shuffle.{name}"] = self.shuffle
        self.makers.update(
            {PACK: self.store_pack, TURN: self.turn, **dict.fromkeys(DOTS, self.dot)}
        )
        tiles = TileRegisters(self.accesses, self.run.kernel, self.run.is_flat)
        self.makers.update(dict.fromkeys(TILED, tiles))
        self.makers.update(dict.fromkeys(MATRIX_MOVES, MatrixMoves(statements)))
        self.makers.update(dict.fromkeys(WARP_INSTRUCTIONS, self.matrix))
        statements.makers[ir.Do] = self

    def __call__(self, node: ir.Do) -> Code:
        maker = self.makers.get(node.operation)
        if maker is None:
            known = "" if node.operation in OPERATIONS else " (it is not a known operation)"
            raise InternalError(f"the simulator can't execute {node.operation}{known}")
        return maker(node)

    # Exchanges between the lanes of a warp.

    def shuffle(self, node: ir.Do) -> Code:
        value, distance, *others = map(self.expressions, node.operands)
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

    def turn(self, node: ir.Do) -> Code:
        (place,), _, (lanes,) = operands_of(node)
        places = [self._further(place, -1, k) for k in range(lanes)]
        reads = [self.accesses.read(ir.Read(place.tensor, at, loc=node.loc)) for at in places]
        stores = [self.accesses.store(place.tensor, at, node) for at in places]

        def run(frame: Frame) -> None:
            lines = np.stack([np.broadcast_to(read(frame), frame.full) for read in reads])
            squares = lines.reshape(lanes, *frame.full[:-1], -1, lanes)
            turned = np.moveaxis(squares, (0, -1), (-1, 0)).reshape(lines.shape)
            for store, line in zip(stores, turned, strict=True):
                store(frame, line)

        return Code(run)

    def vote(self, node: ir.Do) -> Code:
        predicate = self.expressions(node.operands[0])
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

    # Products of each worker's packs.

    def dot(self, node: ir.Do) -> Code:
        row = DOTS[node.operation]
        (accumulator, *places), _, flags = operands_of(node)
        sides = (True, False)[-len(places) :]
        packs = [
            self._pack(place, -2 if bool(transposed) == is_left else -1, row.pack)
            for place, transposed, is_left in zip(places, flags, sides, strict=True)
        ]
        right, dtype = packs[-1], row.accumulator
        read = self.accesses.read(ir.Read(accumulator.tensor, accumulator.indices, loc=node.loc))
        store = self.accesses.store(accumulator.tensor, accumulator.indices, node)

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

    def _pack(self, place: ir.Address, depth: int, pack: int) -> list[Evaluate]:
        """Reads of the elements of a pack, in order."""
        indices = [self._further(place, depth, q) for q in range(pack)]
        return [self.accesses.read(ir.Read(place.tensor, at, loc=place.loc)) for at in indices]

    def _further(self, place: ir.Address, depth: int, count: int) -> tuple[ir.Expression, ...]:
        """The indices of an element of a pack; a flat access has only one, the linear offset."""
        indices = list(place.indices)
        depth = -1 if self.run.is_flat else depth
        if count:
            number = ir.Constant(count, indices[depth].dtype)
            indices[depth] = ir.Binary("+", indices[depth], number)
        return tuple(indices)

    def store_pack(self, node: ir.Do) -> Code:
        (place,), values, (dimension,) = operands_of(node)
        parts = []
        for q, value in enumerate(values):
            at = self._further(place, dimension - 2, q)
            store = self.accesses.store(place.tensor, at, node)
            parts.append((store, self.expressions(value)))

        def run(frame: Frame) -> None:
            for store, value in parts:
                store(frame, value(frame))

        return Code(run)

    # Matrix products of a warp's registers.

    def matrix(self, node: ir.Do) -> Code:
        row = WARP_INSTRUCTIONS[node.operation]
        fragments = (row.accumulator_fragment, row.left_fragment, row.right_fragment)
        held = [
            RegisterSlots(self.accesses, node, place, fragment.slots)
            for place, fragment in zip(operands_of(node).places, fragments, strict=True)
        ]

        def run(frame: Frame) -> None:
            check_warps(frame, row.name, node)
            warps = (frame.count, frame.width // WARP, WARP, -1)
            product = matrix_product(row, *[slots.read(frame).reshape(warps) for slots in held])
            held[0].write(frame, product.reshape(frame.count, frame.width, -1))

        return Code(run)
