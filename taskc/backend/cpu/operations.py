"""Operations of the target: exchanges between lanes, dot products of packs, tile registers; and `tc.print`.

LLVM's intrinsics take the numbers of tile registers, so it neither allocates nor spills them.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from taskc.backend.cpu.instructions import SCALAR, Builder, LaneValue, constant
from taskc.backend.cpu.memory import Count, Private
from taskc.backend.cpu.values import LaneValues
from taskc.backend.operations import operands_of, printed
from taskc.ir import nodes as ir, operations
from taskc.ir.nodes import LOCAL, Tensor
from taskc.ir.operations import DOTS, PACK, TILED, TURN
from taskc.ir.target import TileInstruction
from taskc.ir.types import DTYPES, i64

_LINES, _LINE = 16, 64  # lines of a tile, and their bytes
_PALETTE, _FIRST_WIDTH, _FIRST_HEIGHT = 0, 16, 48  # offsets of the fields in the configuration


class AmxTiles:
    """All tiles are configured to their full size where a block begins, and released where it ends."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.is_set_up = False

    def _set_up(self, count: int) -> None:
        if self.is_set_up:
            return
        self.is_set_up = True
        content = bytearray(64)
        content[_PALETTE] = 1
        for tile in range(count):
            content[_FIRST_WIDTH + 2 * tile] = _LINE  # low byte of two
            content[_FIRST_HEIGHT + tile] = _LINES
        listed = ", ".join(f"i8 {byte}" for byte in content)
        place = self.builder.allocate("[64 x i8]", "tiles")
        self.builder.declare("void", "llvm.x86.ldtilecfg", "ptr")
        self.builder.allocations += [
            f"  store <64 x i8> <{listed}>, ptr {place}, align 64",
            f"  call void @llvm.x86.ldtilecfg(ptr {place})",
        ]

    def give_back(self) -> None:
        if self.is_set_up:
            self.builder.call_void("llvm.x86.tilerelease", types=())

    def multiply(self, row: TileInstruction, tiles: list[int]) -> None:
        self._set_up(row.tiles)
        listed = [f"i8 {tile}" for tile in tiles]
        self.builder.call_void(f"llvm.x86.{row.name}", *listed, types=("i8", "i8", "i8"))

    def move(self, row: TileInstruction, kind: str, tile: int, address: str, pitch: int) -> None:
        """Move a tile from or to memory; its lines are `pitch` bytes apart."""
        self._set_up(row.tiles)
        name = "tilestored64" if kind == operations.TILE_STORE else "tileloadd64"
        self.builder.call_void(
            f"llvm.x86.{name}", f"i8 {tile}", f"ptr {address}", f"i64 {pitch}",
            types=("i8", "ptr", "i64"),
        )  # fmt: skip


class OperationEmitter:
    """Writes the operations listed in `makers`.

    count  in quick code, writes a loop
    """

    def __init__(self, values: LaneValues, count: Count | None = None) -> None:
        self.values = values
        self.count = count
        self.dots = values.dots
        self.tiles = AmxTiles(values.builder)
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
        if self.count is not None:
            self._turn_in_memory(private, copy, first, self.count)
            return
        slots = [values.elementwise.binary("+", first, k) for k in range(lanes)]
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

    def _turn_in_memory(
        self, private: Private, copy: LaneValue, first: LaneValue, count: Count
    ) -> None:
        """Copy a square's lines, and gather its columns from the copy: without optimization, each of the shuffles takes
        LLVM 0.1 ms.
        """
        values, privates, lanes = self.values, self.values.privates, private.lanes
        square = Tensor("square", private.tensor.dtype, (lanes,), LOCAL)
        lines = privates.allocate(square, lanes, 1)
        elements = replace(lines, size=lanes * lanes, lanes=SCALAR)
        zero, stop = constant(0, i64), constant(lanes, i64)
        first = values.elementwise.convert(first, i64)

        def copy_line(line: LaneValue) -> None:
            slot = values.elementwise.binary("+", first, line)
            privates.store(lines, zero, line, privates.load(private, copy, slot), None)

        def gather_column(column: LaneValue) -> None:
            place = values.elementwise.offset(column, tuple(range(0, lanes * lanes, lanes)))
            turned = privates.load(elements, zero, place)
            slot = values.elementwise.binary("+", first, column)
            privates.store(private, copy, slot, turned, values.mask)

        count(zero, stop, 1, copy_line)
        count(zero, stop, 1, gather_column)

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


def writer(prints: Sequence[tuple[str, Sequence[str]]]) -> Callable[[int, int], None]:
    """The callback of compiled code: it takes the number of a print, and the address of its values, a word each."""

    def write(number: int, words: int) -> None:
        sys.stdout.write(f"{_line(*prints[number], words)}\n")

    return write


def _line(text: str, names: Sequence[str], words: int) -> str:
    values = []
    for place, name in enumerate(names):
        dtype = np.dtype(DTYPES[name].numpy)
        word = ctypes.string_at(words + 8 * place, dtype.itemsize)
        values.append(np.frombuffer(word, dtype)[0])
    return printed(text, values)
