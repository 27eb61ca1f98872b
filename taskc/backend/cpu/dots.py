"""Dot products of packs: 4 bytes, whose parts one instruction multiplies and adds.

In memory, a pack that all workers share is broadcast, contiguous packs of neighbouring workers are one load, and all
others are gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taskc.backend.cpu.instructions import SCALAR, Builder, LaneValue, constant, type_of, vector_of
from taskc.backend.cpu.memory import LaneAddress, LaneMemory
from taskc.backend.cpu.native import Elementwise
from taskc.dataclass import dataclass
from taskc.ir.target import DotInstruction
from taskc.ir.types import boolean, i32, u32

_EACH_BYTE = 0x01010101
_NARROWEST = 4  # lanes of the smallest vector that an instruction takes


@dataclass(frozen=True, slots=True)
class _Function:
    """An intrinsic of LLVM, without the vector's width that ends its name, and the element type of its operands."""

    name: str
    element: str


_FUNCTIONS = {
    "vpdpbusd.u8": _Function("llvm.x86.avx512.vpdpbusd", "i8"),
    "vpdpbusd.i8": _Function("llvm.x86.avx512.vpdpbusd", "i8"),
    "vdpbf16ps": _Function("llvm.x86.avx512bf16.dpbf16ps", "bfloat"),
    # `_PAIRS` has it by lanes; it adds to no total.
    "vpmaddwd": _Function("llvm.x86.avx2.pmadd.wd", "i16"),
}


# By lanes, what adds the products of two bytes, and of two of their sums.
_PAIRS = {
    8: ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"),
    16: ("llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"),
}
AVX_LANES = min(_PAIRS)  # of f32 in a register; other processors have fewer


class Dots:
    def __init__(
        self, builder: Builder, elementwise: Elementwise, memory: LaneMemory, *, has_avx: bool
    ) -> None:
        self.has_avx = has_avx
        self.builder = builder
        self.elementwise = elementwise
        self.memory = memory
        self._constants: dict[tuple[int, int], LaneValue] = {}

    def product(
        self, row: DotInstruction, total: LaneValue, left: LaneValue | None, right: LaneValue
    ) -> LaneValue:
        """total + left * right. Without a left operand, the contribution of the offset alone."""
        if _FUNCTIONS[row.name].element == "i16":
            assert left is not None
            return self._sum_of_pairs(total, left, right)
        lanes, is_offset = total.lanes, left is None
        wide = max(lanes, _NARROWEST)
        if left is None:
            left = constant(row.offset * _EACH_BYTE, u32, lanes)
        left, right = (self.elementwise.splat(value, lanes) for value in (left, right))
        if row.offset and not is_offset:
            # Flipping the highest bit adds half of a type's range.
            left = self.elementwise.binary("^", left, self._unknown(row.offset * _EACH_BYTE, lanes))
        function = _FUNCTIONS[row.name]
        packs = vector_of(function.element, wide * row.pack)
        parts = [self._resized(value, wide) for value in (total, left, right)]
        operands = [
            f"{packs} {self.builder.pure(f'bitcast {part.typed} to {packs}')}" for part in parts[1:]
        ]
        kind = parts[0].type
        text = self.builder.call(
            kind, f"{function.name}.{32 * wide}", parts[0].typed, *operands,
            types=(kind, packs, packs),
        )  # fmt: skip
        return self._resized(replace(parts[0], text=text), lanes)

    def _sum_of_pairs(self, total: LaneValue, left: LaneValue, right: LaneValue) -> LaneValue:
        """total + left * right, of pairs of 16-bit numbers."""
        lanes = total.lanes
        wide = next((width for width in _PAIRS if width >= lanes), lanes)
        left, right = (
            self._resized(self.elementwise.splat(value, lanes), wide) for value in (left, right)
        )
        product = self._products_of_words(left, right)
        return self.elementwise.binary("+", total, self._resized(product, lanes))

    def _products_of_words(self, left: LaneValue, right: LaneValue | None) -> LaneValue:
        """The sums of two products of 16-bit numbers, or without a right operand of two numbers."""
        lanes = left.lanes
        kinds = vector_of("i16", 2 * lanes), vector_of("i32", lanes)
        words = [
            f"{kinds[0]} {self.builder.pure(f'bitcast {value.typed} to {kinds[0]}')}"
            for value in (left, right)
            if value is not None
        ]
        operands = (*words, f"{kinds[0]} splat (i16 1)")[:2]
        text = self.builder.call(kinds[1], _PAIRS[lanes][1], *operands, types=(kinds[0], kinds[0]))
        return LaneValue(text, i32, lanes)

    def has_pairs(self, value: LaneValue) -> bool:
        """Whether the processor multiplies pairs of the bytes of such a vector."""
        return self.has_avx and value.lanes in _PAIRS

    def product_of_pairs(self, unsigned: LaneValue, signed: LaneValue) -> LaneValue:
        """The dot products of bytes whose sums of two products fit 16 bits."""
        lanes = unsigned.lanes
        kinds = vector_of("i8", 4 * lanes), vector_of("i16", 2 * lanes)
        packs = [
            f"{kinds[0]} {self.builder.pure(f'bitcast {value.typed} to {kinds[0]}')}"
            for value in (unsigned, signed)
        ]
        text = self.builder.call(kinds[1], _PAIRS[lanes][0], *packs, types=(kinds[0], kinds[0]))
        cast = self.builder.pure(f"bitcast {kinds[1]} {text} to {vector_of('i32', lanes)}")
        return self._products_of_words(LaneValue(cast, i32, lanes), None)

    def _unknown(self, number: int, lanes: int) -> LaneValue:
        """A constant on all lanes that LLVM doesn't recognize as one.

        A known constant would be broadcast from a general register; a load that broadcasts costs nothing.
        """
        value = self._constants.get((number, lanes))
        if value is None:
            known = constant(number, u32, lanes)
            if lanes < _NARROWEST:  # no vector register is so narrow
                return known
            name = self.builder.name("bits")
            wall = self.builder.unknown(known.type, known.text)
            self.builder.allocations.append(f"  {name} = {wall}")
            value = self._constants[number, lanes] = LaneValue(name, u32, lanes)
        return value

    def _resized(self, value: LaneValue, lanes: int) -> LaneValue:
        """A vector cut or extended, by repeating itself, to so many lanes."""
        if value.lanes == lanes:
            return value
        if not value.lanes:
            return self.elementwise.splat(value, lanes)
        if not lanes:
            return self.elementwise.first(value)
        return self.elementwise.shuffled(value, [k % value.lanes for k in range(lanes)])

    def load(self, place: LaneAddress, mask: LaneValue | None) -> LaneValue:
        """The pack of each lane as a u32, or one scalar if all lanes share it. Masked lanes read nothing."""
        builder, lanes = self.builder, self.memory.lanes
        step = 4 // place.tensor.dtype.nbytes
        is_one = place.offsets is not None and not any(place.offsets)
        if is_one or (mask is None and place.offsets == tuple(range(0, step * lanes, step))):
            reached = None if mask is None else self.elementwise.any(mask)
            address = self.memory.guarded(self.memory.address(place), reached)
            lanes = SCALAR if is_one else lanes
            text = builder.impure(f"load {type_of(u32, lanes)}, ptr {address}, align 1")
            return LaneValue(text, u32, lanes)
        every = constant(True, boolean, lanes)
        text = self.memory.gather(u32, 1, self.memory.pointers(place), mask or every)
        return LaneValue(text, u32, lanes)

    def store(
        self, place: LaneAddress, values: Sequence[LaneValue], mask: LaneValue | None
    ) -> None:
        """Store a pack for each lane."""
        builder, lanes = self.builder, self.memory.lanes
        size = place.tensor.dtype.nbytes
        kind = type_of(u32, lanes)
        whole: LaneValue | None = None
        for number, value in enumerate(values):
            bits = vector_of(f"i{8 * size}", lanes)
            part = builder.pure(f"bitcast {value.typed} to {bits}")
            wide = LaneValue(builder.pure(f"zext {bits} {part} to {kind}"), u32, lanes)
            shift = constant(8 * size * number, u32, lanes)
            moved = self.elementwise.binary("<<", wide, shift) if number else wide
            whole = moved if whole is None else self.elementwise.binary("|", whole, moved)
        assert whole is not None
        step = 4 // size
        if mask is None and place.offsets == tuple(range(0, step * max(lanes, 1), step)):
            builder.emit(f"store {whole.typed}, ptr {self.memory.address(place)}, align 1")
            return
        every = constant(True, boolean, lanes)
        self.memory.scatter(whole, 1, self.memory.pointers(place), mask or every)
