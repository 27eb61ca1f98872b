"""Processor-specific operations: exchanges between lanes, dot products of packs, tile registers."""

from __future__ import annotations

from collections.abc import Callable

from taskc.backend.cpu.builder import constant
from taskc.backend.cpu.dots import Dots
from taskc.backend.cpu.tiles import TileRegisters
from taskc.backend.cpu.values import Values
from taskc.backend.operands import operands_of
from taskc.ir import nodes as ir
from taskc.ir.operations import DOTS, PACK, TILED, TURN
from taskc.ir.types import i64


class Operations:
    """Writes the operations listed in `makers`."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.dots = Dots(values.builder, values.elementwise, values.memory)
        self.tiles = TileRegisters(values.builder)
        self.makers: dict[str, Callable[[ir.Do], None]] = {
            "shuffle.xor": self._shuffle,
            "shuffle.bits": self._shuffle,
            "shuffle.up": self._shuffle,
            PACK: self._store_pack,
            TURN: self._turn,
            **dict.fromkeys(DOTS, self._dot),
            **dict.fromkeys(TILED, self._tile),
        }

    def _store_pack(self, node: ir.Do) -> None:
        (part,), packed, _ = operands_of(node)
        place = self.values.place(part.tensor, part.indices)
        self.dots.store(place, [self.values.spread(one) for one in packed], self.values.active())

    def _shuffle(self, node: ir.Do) -> None:
        value, *counts = node.operands
        assert node.result is not None
        numbers = [self.values.scalar(operand).number for operand in counts]
        n, *set_bits = [int(number) for number in numbers if number is not None]
        lanes = range(self.values.lanes)
        match node.operation:
            case "shuffle.xor":
                picks = [lane ^ n for lane in lanes]
            case "shuffle.up":
                picks = [lane - n if lane >= n else lane for lane in lanes]
            case _:
                picks = [lane & n | set_bits[0] for lane in lanes]
        spread = self.values.spread(value)
        self.values.bind(node.result, self.values.elementwise.shuffled(spread, picks))

    def _turn(self, node: ir.Do) -> None:
        """Transpose a square: exchange its halves across the diagonal, then the halves of its quarters, and so on."""
        (place,), _, (lanes,) = operands_of(node)
        values, privates = self.values, self.values.privates
        private, copy = values.stored[place.tensor], values.copy_of(place.tensor)
        first = values.private_index(place.indices)
        slots = [values.elementwise.binary("+", first, constant(k, i64)) for k in range(lanes)]
        lines = [privates.load(private, copy, slot) for slot in slots]
        bit = lanes // 2
        while bit:
            lower = [lane if not lane & bit else lanes + (lane ^ bit) for lane in range(lanes)]
            upper = [lane ^ bit if not lane & bit else lanes + lane for lane in range(lanes)]
            for low in range(lanes):
                if not low & bit:
                    pair = lines[low], lines[low + bit]
                    for line, picks in ((low, lower), (low + bit, upper)):
                        lines[line] = values.elementwise.shuffled(pair[0], picks, pair[1])
            bit //= 2
        for slot, turned in zip(slots, lines, strict=True):
            privates.store(private, copy, slot, turned, values.mask)

    def _dot(self, node: ir.Do) -> None:
        into, *places = operands_of(node).places
        values, privates = self.values, self.values.privates
        private, copy = values.stored[into.tensor], values.copy_of(into.tensor)
        index = values.private_index(into.indices)
        packs = [
            self.dots.load(values.place(part.tensor, part.indices), values.active())
            for part in places
        ]
        left = packs[0] if len(packs) > 1 else None
        total = privates.load(private, copy, index)
        total = self.dots.product(DOTS[node.operation], total, left, packs[-1])
        privates.store(private, copy, index, total, values.mask)

    def _tile(self, node: ir.Do) -> None:
        row, values = TILED[node.operation], self.values
        places, _, numbers = operands_of(node)
        if not places:
            self.tiles.multiply(row, numbers)
            return
        kind = node.operation.removeprefix(row.name)
        (part,) = places
        if part.tensor in values.stored:
            # Registers of neighbouring workers are adjacent, so a fragment in memory is already a tile.
            slot = values.scalar(part.indices[0])
            private = values.stored[part.tensor]
            address = values.privates.address(private, values.copy_of(part.tensor), slot)
            pitch = values.lanes * part.tensor.dtype.nbytes
        else:
            place = values.place(part.tensor, part.indices)
            address = values.memory.address(place)
            pitch = numbers[1] * part.tensor.dtype.nbytes
        self.tiles.move(row, kind, numbers[0], address, pitch)
