"""Loads and stores: one scalar, one vector, a window and a shuffle, or a gather.

The form of the index decides (taskc/backend/lanes.py). Private memory is an array of vectors on the
stack; where its indices are constants LLVM keeps it in registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from taskc.backend.cpu.builder import (
    SCALAR,
    Builder,
    Value,
    constant,
    constants,
    stored_type,
    type_of,
    vector_of,
)
from taskc.backend.cpu.elementwise import Elementwise
from taskc.backend.cpu.instructions import suffix_of
from taskc.ir.extents import size_in_bytes
from taskc.ir.nodes import GLOBAL, SHARED, Allocate, Kernel, Tensor
from taskc.ir.rewrite import walk
from taskc.ir.types import DType, boolean, f32, i64, tf32, u8

WINDOW = 4  # vectors that may be loaded to pick one from
LINE = 64  # bytes
STACK = 256 << 10  # bytes of it that a block may take: some threads have one of 512 KiB


@dataclass(frozen=True, slots=True)
class Place:
    """An element's address on each lane: base[index + offsets[lane]], or base[lane's own index].

    index    of lane 0 if `offsets` are known, else a vector
    """

    tensor: Tensor
    base: str
    index: Value
    offsets: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class _Part:
    """A vector of `width` elements, and which of them each lane takes, if it takes one."""

    kind: str
    width: int
    text: str
    picks: list[int | None]


class Memory:
    def __init__(self, builder: Builder, elementwise: Elementwise, lanes: int) -> None:
        self.builder = builder
        self.elementwise = elementwise
        self.lanes = lanes

    # Elements of one scalar type.

    def load(self, place: Place, guard: Value | None, mask: Value | None) -> Value:
        """What is there, a scalar where the address is uniform. Masked lanes read nothing."""
        if place.offsets is not None and not any(place.offsets):
            return self._load_scalar(place, guard if mask is None else self._reached(guard, mask))
        return self.from_storage(self._load_vector(place, guard, mask), place.tensor, self.lanes)

    def _reached(self, guard: Value | None, mask: Value) -> Value:
        some = self.elementwise.any(mask)
        return some if guard is None else self.elementwise.binary("and", guard, some)

    def _load_scalar(self, place: Place, guard: Value | None) -> Value:
        address = self.guarded(self.address(place), guard)
        kind = stored_type(place.tensor.dtype)
        size = place.tensor.dtype.nbytes
        text = self.builder.impure(f"load {kind}, ptr {address}, align {size}")
        return self.from_storage(text, place.tensor, SCALAR)

    def _load_vector(self, place: Place, guard: Value | None, mask: Value | None) -> str:
        dtype, lanes = place.tensor.dtype, self.lanes
        kind, size = stored_type(dtype, lanes), dtype.nbytes
        offsets = place.offsets
        if offsets == tuple(range(lanes)):
            address = self.address(place)
            if mask is None:
                address = self.guarded(address, guard)
            whole = f"load {kind}, ptr {address}, align {size}"
            is_given = place.tensor.scope == GLOBAL and place.tensor.role == "in"
            if mask is None:
                return self.builder.pure(whole) if is_given else self.builder.impure(whole)
            if is_given and (found := self.builder.known(whole)) is not None:
                return found
            function = f"llvm.masked.load.v{lanes}{_memory_suffix(dtype)}.p0"
            return self.builder.call(
                kind, function, f"ptr align {size} {address}",
                self._all(guard, mask).typed, f"{kind} zeroinitializer",
                types=("ptr", f"<{lanes} x i1>", kind),
            )  # fmt: skip
        if offsets is not None and mask is None and max(offsets) - min(offsets) < WINDOW * lanes:
            return self._from_window(place, guard)
        pointers, chosen = self.pointers(place), self._all(guard, mask)
        if (
            mask is None
        ):  # without a mask it takes no branches, where the target takes elements one by one
            pointers, chosen = self.guarded(pointers, guard, lanes), self._all(None, None)
        function = f"llvm.masked.gather.v{lanes}{_memory_suffix(dtype)}.v{lanes}p0"
        vector = f"<{lanes} x ptr>"
        return self.builder.call(
            kind, function, f"{vector} align {size} {pointers}", chosen.typed,
            f"{kind} zeroinitializer", types=(vector, chosen.type, kind),
        )  # fmt: skip

    def _from_window(self, place: Place, guard: Value | None) -> str:
        """Both ends are read by some lane, so what lies between is there, too.

        It is loaded in whole vectors, which are joined two by two: a wider load is one that LLVM would
        take apart into scalars.
        """
        assert place.offsets is not None
        dtype = place.tensor.dtype
        low, high = min(place.offsets), max(place.offsets)
        low, length = self._aligned(place, low, high - low + 1)
        width = min(self.lanes, length)
        window = vector_of(stored_type(dtype), width)
        parts: list[_Part] = []
        for start in range(0, length, width):
            first = low + min(start, length - width)
            inside = range(low + start, low + start + width)
            picks = [offset - first if offset in inside else None for offset in place.offsets]
            if any(pick is not None for pick in picks):
                address = self.guarded(self.address(place, first), guard)
                text = self.builder.impure(f"load {window}, ptr {address}, align {dtype.nbytes}")
                parts.append(_Part(window, width, text, picks))
        kind = stored_type(dtype, self.lanes)
        joined = [self._joined(kind, parts[k : k + 2]) for k in range(0, len(parts), 2)]
        while len(joined) > 1:
            joined = [self._joined(kind, joined[k : k + 2]) for k in range(0, len(joined), 2)]
        return joined[0].text

    def _aligned(self, place: Place, low: int, length: int) -> tuple[int, int]:
        """Whole vectors of shared memory around a window, so that neighbouring windows load the same."""
        tensor, number = place.tensor, place.index.number
        if tensor.scope != SHARED or number is None:
            return low, length
        start = (int(number) + low) // self.lanes * self.lanes
        stop = -(-(int(number) + low + length) // self.lanes) * self.lanes
        size = prod(int(extent) for extent in tensor.shape)  # type: ignore[misc, arg-type]
        return (start - int(number), stop - start) if stop <= size else (low, length)

    def _joined(self, kind: str, parts: list[_Part]) -> _Part:
        """What the lanes pick from one or two vectors of a kind, each in its lane."""
        first, second = parts[0], parts[-1]
        width = first.width
        picks = [
            a if a is not None else width + b if len(parts) > 1 and b is not None else None
            for a, b in zip(first.picks, second.picks, strict=True)
        ]
        listed = ", ".join("i32 poison" if pick is None else f"i32 {pick}" for pick in picks)
        other = second.text if len(parts) > 1 else "poison"
        text = self.builder.pure(
            f"shufflevector {first.kind} {first.text}, {first.kind} {other},"
            f" <{self.lanes} x i32> <{listed}>"
        )
        own = [None if pick is None else lane for lane, pick in enumerate(picks)]
        return _Part(kind, self.lanes, text, own)

    def store(self, place: Place, value: Value, mask: Value | None) -> None:
        """Masked lanes write nothing. Where all lanes write one place they write one value."""
        dtype, lanes = place.tensor.dtype, self.lanes
        size = dtype.nbytes
        stored = self.to_storage(value)
        offsets = place.offsets
        if not value.lanes:
            assert mask is None
            self.builder.emit(f"store {stored}, ptr {self.address(place)}, align {size}")
            return
        kind = stored_type(dtype, lanes)
        if offsets == tuple(range(lanes)):
            address = self.address(place)
            if mask is None:
                self.builder.emit(f"store {stored}, ptr {address}, align {size}")
                return
            function = f"llvm.masked.store.v{lanes}{_memory_suffix(dtype)}.p0"
            self.builder.call_void(
                function, self._narrow(stored, dtype), f"ptr align {size} {address}", mask.typed,
                types=(kind, "ptr", mask.type),
            )  # fmt: skip
            return
        if offsets is not None and mask is None and _is_permutation(offsets):
            low = min(offsets)
            source = [offsets.index(low + k) for k in range(lanes)]
            picks = ", ".join(f"i32 {lane}" for lane in source)
            moved = self.builder.pure(
                f"shufflevector {stored}, {kind} poison, <{lanes} x i32> <{picks}>"
            )
            self.builder.emit(f"store {kind} {moved}, ptr {self.address(place, low)}, align {size}")
            return
        pointers = self.pointers(place)
        chosen = self._all(None, mask)
        function = f"llvm.masked.scatter.v{lanes}{_memory_suffix(dtype)}.v{lanes}p0"
        vector = f"<{lanes} x ptr>"
        self.builder.call_void(
            function, stored, f"{vector} align {size} {pointers}", chosen.typed,
            types=(kind, vector, chosen.type),
        )  # fmt: skip

    def _narrow(self, stored: str, dtype: DType) -> str:
        """A vector as it is, but of which LLVM doesn't know that it was made of wider elements.

        It would join what makes it narrow and a masked store to one store that narrows, and of that, where the
        mask turns out to be of one lane, make a scalar store of the wide element: tests/backend/cpu/llvm.
        """
        if dtype.nbytes == 8 or dtype in (f32, tf32) or "%" not in stored:
            return stored  # it was made of nothing wider
        kind = stored_type(dtype, self.lanes)
        value = Value(
            stored.removeprefix(f"{kind} "), u8 if dtype is boolean else dtype, self.lanes
        )
        return self.elementwise.unknown(value).typed

    # Addresses.

    def guarded(self, address: str, guard: Value | None, lanes: int = SCALAR) -> str:
        """The address, or those of lanes; where the guard doesn't hold, that of memory which is always there."""
        if guard is None:
            return address
        kind, nowhere = vector_of("ptr", lanes), "splat (ptr @nowhere)" if lanes else "@nowhere"
        return self.builder.pure(f"select {guard.typed}, {kind} {address}, {kind} {nowhere}")

    def address(self, place: Place, more: int = 0) -> str:
        """Of lane 0, or `more` elements further."""
        index = self.elementwise.convert(place.index, i64)
        if more:
            index = self.elementwise.binary("+", index, constant(more, i64))
        if index.number == 0:
            return place.base
        kind = stored_type(place.tensor.dtype)
        return self.builder.pure(f"getelementptr {kind}, ptr {place.base}, i64 {index.text}")

    def pointers(self, place: Place) -> str:
        index = self.elementwise.convert(place.index, i64)
        if place.offsets is not None:
            index = self.elementwise.offset(index, place.offsets)
        kind = stored_type(place.tensor.dtype)
        return self.builder.pure(f"getelementptr {kind}, ptr {place.base}, {index.typed}")

    def _all(self, guard: Value | None, mask: Value | None) -> Value:
        """Both, as a mask."""
        every = constant(True, boolean, self.lanes)
        if guard is None:
            return every if mask is None else mask
        spread = self.elementwise.splat(guard, self.lanes)
        return spread if mask is None else self.elementwise.binary("and", spread, mask)

    # A bool takes a byte.

    def from_storage(self, text: str, tensor: Tensor, lanes: int) -> Value:
        if tensor.dtype is boolean:
            text = self.builder.pure(
                f"trunc {vector_of('i8', lanes)} {text} to {type_of(boolean, lanes)}"
            )
        return Value(text, tensor.dtype, lanes)

    def to_storage(self, value: Value) -> str:
        if value.dtype is not boolean:
            return value.typed
        kind = vector_of("i8", value.lanes)
        return f"{kind} {self.builder.pure(f'zext {value.typed} to {kind}')}"


def shared_bytes(kernel: Kernel) -> int:
    """Bytes of shared memory, rounded up to a cache line."""
    end = 0
    for node in walk(kernel.body):
        if isinstance(node, Allocate) and node.tensor.scope == SHARED:
            tensor = node.tensor
            end = max(end, (tensor.offset or 0) + size_in_bytes(tensor))
    return -(-end // LINE) * LINE


@dataclass(frozen=True, slots=True)
class Private:
    """Private memory: for each vector of workers, `size` values, or vectors of them."""

    tensor: Tensor
    base: str
    size: int
    lanes: int


class PrivateMemory:
    """Tiles' registers and local arrays: on the stack while there is little of them, then in the block's scratch.

    scratch  bytes of it that are taken, by shared memory before all
    """

    def __init__(self, memory: Memory, scratch: int) -> None:
        self.memory = memory
        self.builder = memory.builder
        self.elementwise = memory.elementwise
        self.scratch = scratch
        self._left = STACK

    def allocate(self, tensor: Tensor, lanes: int, copies: int) -> Private:
        size = prod(int(extent) for extent in tensor.shape)  # type: ignore[misc, arg-type]
        kind = stored_type(tensor.dtype, lanes)
        taken = -(-copies * size * tensor.dtype.nbytes * (lanes or 1) // LINE) * LINE
        if taken <= self._left:
            self._left -= taken
            base = self.builder.allocate(f"[{copies * size} x {kind}]", tensor.name)
        else:
            base = self.builder.within("%scratch", self.scratch, tensor.name)
            self.scratch += taken
        return Private(tensor, base, size, lanes)

    def load(self, private: Private, vector: Value, index: Value) -> Value:
        if index.lanes:
            return self.memory.load(self._scattered(private, vector, index), None, None)
        kind = stored_type(private.tensor.dtype, private.lanes)
        text = self.builder.impure(f"load {kind}, ptr {self.address(private, vector, index)}")
        return self.memory.from_storage(text, private.tensor, private.lanes)

    def store(
        self, private: Private, vector: Value, index: Value, value: Value, mask: Value | None
    ) -> None:
        if index.lanes:
            self.memory.store(self._scattered(private, vector, index), value, mask)
            return
        if mask is not None:
            value = self.elementwise.select(mask, value, self.load(private, vector, index))
        stored = self.memory.to_storage(value)
        self.builder.emit(f"store {stored}, ptr {self.address(private, vector, index)}")

    def address(self, private: Private, vector: Value, index: Value) -> str:
        elementwise = self.elementwise
        first = elementwise.binary("*", vector, constant(private.size, i64))
        place = elementwise.binary("+", first, elementwise.convert(index, i64))
        if place.number == 0:
            return private.base
        kind = stored_type(private.tensor.dtype, private.lanes)
        return self.builder.pure(f"getelementptr {kind}, ptr {private.base}, i64 {place.text}")

    def _scattered(self, private: Private, vector: Value, index: Value) -> Place:
        """Each lane's own element, in an array of vectors or of values that all lanes share."""
        elementwise, lanes = self.elementwise, self.memory.lanes
        first = elementwise.binary("*", vector, constant(private.size, i64))
        place = elementwise.binary(
            "+", elementwise.splat(first, lanes), elementwise.convert(index, i64)
        )
        if private.lanes:
            place = elementwise.binary("*", place, constant(lanes, i64, lanes))
            place = elementwise.binary("+", place, constants(range(lanes)))
        return Place(private.tensor, private.base, place, None)


def _is_permutation(offsets: tuple[int, ...]) -> bool:
    low = min(offsets)
    return sorted(offset - low for offset in offsets) == list(range(len(offsets)))


def _memory_suffix(dtype: DType) -> str:
    return "i8" if dtype is boolean else suffix_of(dtype, SCALAR)
