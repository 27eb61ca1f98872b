"""Tile registers. LLVM's intrinsics take their numbers, so it neither allocates nor spills them."""

from __future__ import annotations

from taskc.backend.cpu.builder import Builder
from taskc.ir import operations
from taskc.ir.target import TileInstruction

_LINES, _LINE = 16, 64  # lines of a tile, and their bytes
_PALETTE, _FIRST_WIDTH, _FIRST_HEIGHT = 0, 16, 48  # offsets of the fields in the configuration


class TileRegisters:
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
