"""Loads and stores: one scalar, one vector, a window and a shuffle, or a gather.

The form of the index decides (taskc/backend/lanes.py). Private memory is an array of vectors on the stack; where its
indices are constants LLVM keeps it in registers. Atomics run lane by lane. Shared memory belongs to one core, so its
atomics are plain reads and writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from taskc.backend.cpu.instructions import (
    SCALAR,
    Builder,
    LaneValue,
    constant,
    constants,
    stored_type,
    suffix_of,
    type_of,
    vector_of,
)
from taskc.backend.cpu.native import Elementwise
from taskc.dataclass import dataclass
from taskc.ir import nodes as ir
from taskc.ir.extents import size_in_bytes, size_in_elements
from taskc.ir.nodes import GLOBAL, SHARED, Kernel, Tensor
from taskc.ir.rewrite import all_below
from taskc.ir.types import DType, boolean, f32, i64, tf32, u8

WINDOW = 4  # vectors that may be loaded to pick one vector's elements from
LINE = 64  # bytes
STACK = 256 << 10  # bytes of the stack that a block may take: some threads have a stack of 512 KiB


@dataclass(frozen=True, slots=True)
class LaneAddress:
    """The address of an element on each lane: base[index + offsets[lane]], or base[index[lane]].

    index    lane 0's index if `offsets` are known, else a vector of indices
    """

    tensor: Tensor
    base: str
    index: LaneValue
    offsets: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A vector, and the element of it that each lane takes, if any."""

    value: LaneValue
    picks: list[int | None]


class LaneMemory:
    def __init__(self, builder: Builder, elementwise: Elementwise, lanes: int) -> None:
        self.builder = builder
        self.elementwise = elementwise
        self.lanes = lanes

    # Elements of one scalar type.

    def load(
        self, place: LaneAddress, guard: LaneValue | None, mask: LaneValue | None
    ) -> LaneValue:
        """Load an element for each lane, or a scalar if the address is uniform. Masked lanes read nothing."""
        if place.offsets is not None and not any(place.offsets):
            return self._load_scalar(place, guard if mask is None else self._reached(guard, mask))
        return self.from_storage(self._load_vector(place, guard, mask), place.tensor, self.lanes)

    def _reached(self, guard: LaneValue | None, mask: LaneValue) -> LaneValue:
        some = self.elementwise.any(mask)
        return some if guard is None else self.elementwise.binary("and", guard, some)

    def _load_scalar(self, place: LaneAddress, guard: LaneValue | None) -> LaneValue:
        address = self.guarded(self.address(place), guard)
        kind = stored_type(place.tensor.dtype)
        size = place.tensor.dtype.nbytes
        text = self.builder.impure(f"load {kind}, ptr {address}, align {size}")
        return self.from_storage(text, place.tensor, SCALAR)

    def _load_vector(
        self, place: LaneAddress, guard: LaneValue | None, mask: LaneValue | None
    ) -> str:
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
            if is_given and (loaded := self.builder.known(whole)) is not None:
                return loaded
            function = f"llvm.masked.load.v{lanes}{_memory_suffix(dtype)}.p0"
            return self.builder.call(
                kind, function, f"ptr align {size} {address}",
                self._all(guard, mask).typed, f"{kind} zeroinitializer",
                types=("ptr", f"<{lanes} x i1>", kind),
            )  # fmt: skip
        if offsets is not None and mask is None and max(offsets) - min(offsets) < WINDOW * lanes:
            return self._from_window(place, guard)
        pointers = self.pointers(place)
        if mask is not None:
            return self.gather(dtype, size, pointers, self._all(guard, mask))
        # An unmasked gather has no branches on targets that scalarize it.
        return self.gather(dtype, size, self.guarded(pointers, guard, lanes), self._all(None, None))

    def gather(self, dtype: DType, align: int, pointers: str, mask: LaneValue) -> str:
        """Read an element for each lane of a mask."""
        kind, vector = stored_type(dtype, self.lanes), f"<{self.lanes} x ptr>"
        function = f"llvm.masked.gather.v{self.lanes}{_memory_suffix(dtype)}.v{self.lanes}p0"
        return self.builder.call(
            kind, function, f"{vector} align {align} {pointers}", mask.typed,
            f"{kind} zeroinitializer", types=(vector, mask.type, kind),
        )  # fmt: skip

    def scatter(self, stored: LaneValue, align: int, pointers: str, mask: LaneValue) -> None:
        """Write an element for each lane of a mask."""
        vector = f"<{self.lanes} x ptr>"
        function = (
            f"llvm.masked.scatter.v{self.lanes}{_memory_suffix(stored.dtype)}.v{self.lanes}p0"
        )
        self.builder.call_void(
            function, stored.typed, f"{vector} align {align} {pointers}", mask.typed,
            types=(stored.type, vector, mask.type),
        )  # fmt: skip

    def _from_window(self, place: LaneAddress, guard: LaneValue | None) -> str:
        """Load everything between the lowest and the highest offset; it exists, as some lane reads either end.

        Whole vectors are loaded and joined two by two: LLVM would scalarize a wider load.
        """
        assert place.offsets is not None
        dtype = place.tensor.dtype
        low, high = min(place.offsets), max(place.offsets)
        low, length = self._aligned(place, low, high - low + 1)
        width = min(self.lanes, length)
        window = vector_of(stored_type(dtype), width)
        parts: list[_Loaded] = []
        for start in range(0, length, width):
            first = low + min(start, length - width)
            inside = range(low + start, low + start + width)
            picks = [offset - first if offset in inside else None for offset in place.offsets]
            if any(pick is not None for pick in picks):
                address = self.guarded(self.address(place, first), guard)
                text = self.builder.impure(f"load {window}, ptr {address}, align {dtype.nbytes}")
                parts.append(_Loaded(LaneValue(text, _held(dtype), width), picks))
        joined = [self._joined(parts[k : k + 2]) for k in range(0, len(parts), 2)]
        while len(joined) > 1:
            joined = [self._joined(joined[k : k + 2]) for k in range(0, len(joined), 2)]
        return joined[0].value.text

    def _aligned(self, place: LaneAddress, low: int, length: int) -> tuple[int, int]:
        """A window of shared memory, extended to whole vectors, so that neighbouring windows share their loads."""
        tensor, number = place.tensor, place.index.number
        if tensor.scope != SHARED or number is None:
            return low, length
        start = (int(number) + low) // self.lanes * self.lanes
        stop = -(-(int(number) + low + length) // self.lanes) * self.lanes
        size = size_in_elements(tensor)
        return (start - int(number), stop - start) if stop <= size else (low, length)

    def _joined(self, parts: list[_Loaded]) -> _Loaded:
        """Move the elements that lanes pick from one or two vectors to their lanes."""
        first, second = parts[0], parts[-1]
        width = first.value.lanes
        picks = [
            a if a is not None else width + b if len(parts) > 1 and b is not None else None
            for a, b in zip(first.picks, second.picks, strict=True)
        ]
        following = second.value if len(parts) > 1 else None
        own_lanes = [None if pick is None else lane for lane, pick in enumerate(picks)]
        return _Loaded(self.elementwise.shuffled(first.value, picks, following), own_lanes)

    def store(self, place: LaneAddress, value: LaneValue, mask: LaneValue | None) -> None:
        """Masked lanes write nothing. If all lanes write one address, they write one value."""
        dtype, lanes = place.tensor.dtype, self.lanes
        size = dtype.nbytes
        stored = self.to_storage(value)
        offsets = place.offsets
        if not value.lanes:
            assert mask is None
            self.builder.emit(f"store {stored.typed}, ptr {self.address(place)}, align {size}")
            return
        if offsets == tuple(range(lanes)):
            address = self.address(place)
            if mask is None:
                self.builder.emit(f"store {stored.typed}, ptr {address}, align {size}")
                return
            function = f"llvm.masked.store.v{lanes}{_memory_suffix(dtype)}.p0"
            self.builder.call_void(
                function, self._narrow(stored).typed, f"ptr align {size} {address}", mask.typed,
                types=(stored.type, "ptr", mask.type),
            )  # fmt: skip
            return
        if offsets is not None and mask is None and _is_permutation(offsets):
            low = min(offsets)
            source = [offsets.index(low + k) for k in range(lanes)]
            moved = self.elementwise.shuffled(stored, source).typed
            self.builder.emit(f"store {moved}, ptr {self.address(place, low)}, align {size}")
            return
        self.scatter(stored, size, self.pointers(place), self._all(None, mask))

    def _narrow(self, stored: LaneValue) -> LaneValue:
        """Hide from LLVM that the vector was narrowed from wider elements.

        LLVM would join the narrowing and the masked store to one truncating store. For a mask of one lane it would make
        that a scalar store of the wide element: tests/backend/cpu/llvm.
        """
        if stored.dtype.nbytes == 8 or stored.dtype in (f32, tf32) or "%" not in stored.text:
            return stored  # nothing was narrowed
        return self.elementwise.unknown(stored)

    # Addresses.

    def guarded(self, address: str, guard: LaneValue | None, lanes: int = SCALAR) -> str:
        """The address, or each lane's; where the guard doesn't hold, an address that is always readable."""
        if guard is None:
            return address
        kind, nowhere = vector_of("ptr", lanes), "splat (ptr @nowhere)" if lanes else "@nowhere"
        return self.builder.pure(f"select {guard.typed}, {kind} {address}, {kind} {nowhere}")

    def address(self, place: LaneAddress, more: int = 0) -> str:
        """The address of lane 0, or of the element `more` further."""
        index = self.elementwise.convert(place.index, i64)
        if more:
            index = self.elementwise.binary("+", index, more)
        if index.number == 0:
            return place.base
        kind = stored_type(place.tensor.dtype)
        return self.builder.pure(f"getelementptr {kind}, ptr {place.base}, i64 {index.text}")

    def pointers(self, place: LaneAddress) -> str:
        index = self.elementwise.convert(place.index, i64)
        if place.offsets is not None:
            index = self.elementwise.offset(index, place.offsets)
        kind = stored_type(place.tensor.dtype)
        return self.builder.pure(f"getelementptr {kind}, ptr {place.base}, {index.typed}")

    def _all(self, guard: LaneValue | None, mask: LaneValue | None) -> LaneValue:
        """The mask of lanes where both hold."""
        every = constant(True, boolean, self.lanes)
        if guard is None:
            return every if mask is None else mask
        spread = self.elementwise.splat(guard, self.lanes)
        return spread if mask is None else self.elementwise.binary("and", spread, mask)

    # A bool takes a byte.

    def from_storage(self, text: str, tensor: Tensor, lanes: int) -> LaneValue:
        if tensor.dtype is boolean:
            text = self.builder.pure(
                f"trunc {vector_of('i8', lanes)} {text} to {type_of(boolean, lanes)}"
            )
        return LaneValue(text, tensor.dtype, lanes)

    def to_storage(self, value: LaneValue) -> LaneValue:
        if value.dtype is not boolean:
            return value
        kind = vector_of("i8", value.lanes)
        return LaneValue(self.builder.pure(f"zext {value.typed} to {kind}"), u8, value.lanes)


def shared_bytes(kernel: Kernel) -> int:
    """Bytes of shared memory, rounded up to a cache line."""
    end = 0
    for node in all_below(kernel.body, ir.Allocate):
        if node.tensor.scope == SHARED:
            end = max(end, (node.tensor.offset or 0) + size_in_bytes(node.tensor))
    return -(-end // LINE) * LINE


@dataclass(frozen=True, slots=True)
class Private:
    """Private memory: `size` values for each vector of workers, or `size` vectors of them."""

    tensor: Tensor
    base: str
    size: int
    lanes: int


class PrivateMemory:
    """Tiles' registers and local arrays: on the stack up to STACK bytes, then in the block's scratch.

    scratch  bytes of it that are taken, by shared memory before all
    """

    def __init__(self, memory: LaneMemory, scratch: int) -> None:
        self.memory = memory
        self.builder = memory.builder
        self.elementwise = memory.elementwise
        self.scratch = scratch
        self._left = STACK

    def allocate(self, tensor: Tensor, lanes: int, copies: int) -> Private:
        size = size_in_elements(tensor)
        kind = stored_type(tensor.dtype, lanes)
        taken = -(-copies * size * tensor.dtype.nbytes * (lanes or 1) // LINE) * LINE
        if taken <= self._left:
            self._left -= taken
            base = self.builder.allocate(f"[{copies * size} x {kind}]", tensor.name)
        else:
            base = self.builder.within("%scratch", self.scratch, tensor.name)
            self.scratch += taken
        return Private(tensor, base, size, lanes)

    def load(self, private: Private, vector: LaneValue, index: LaneValue) -> LaneValue:
        if index.lanes:
            return self.memory.load(self._scattered(private, vector, index), None, None)
        kind = stored_type(private.tensor.dtype, private.lanes)
        text = self.builder.impure(f"load {kind}, ptr {self.address(private, vector, index)}")
        return self.memory.from_storage(text, private.tensor, private.lanes)

    def store(
        self,
        private: Private,
        vector: LaneValue,
        index: LaneValue,
        value: LaneValue,
        mask: LaneValue | None,
    ) -> None:
        if index.lanes:
            self.memory.store(self._scattered(private, vector, index), value, mask)
            return
        if mask is not None:
            value = self.elementwise.select(mask, value, self.load(private, vector, index))
        stored = self.memory.to_storage(value)
        self.builder.emit(f"store {stored.typed}, ptr {self.address(private, vector, index)}")

    def address(self, private: Private, vector: LaneValue, index: LaneValue) -> str:
        elementwise = self.elementwise
        first = elementwise.binary("*", vector, private.size)
        place = elementwise.binary("+", first, elementwise.convert(index, i64))
        if place.number == 0:
            return private.base
        kind = stored_type(private.tensor.dtype, private.lanes)
        return self.builder.pure(f"getelementptr {kind}, ptr {private.base}, i64 {place.text}")

    def _scattered(self, private: Private, vector: LaneValue, index: LaneValue) -> LaneAddress:
        """The address of each lane's element, in an array of vectors or of scalars that all lanes share."""
        elementwise, lanes = self.elementwise, self.memory.lanes
        first = elementwise.binary("*", vector, private.size)
        place = elementwise.binary(
            "+", elementwise.splat(first, lanes), elementwise.convert(index, i64)
        )
        if private.lanes:
            place = elementwise.binary("*", place, lanes)
            place = elementwise.binary("+", place, constants(range(lanes)))
        return LaneAddress(private.tensor, private.base, place, None)


def _held(dtype: DType) -> DType:
    """The type of an element in memory."""
    return u8 if dtype is boolean else dtype


def _is_permutation(offsets: tuple[int, ...]) -> bool:
    low = min(offsets)
    return sorted(offset - low for offset in offsets) == list(range(len(offsets)))


def _memory_suffix(dtype: DType) -> str:
    return suffix_of(_held(dtype), SCALAR)


Count = Callable[[LaneValue, LaneValue, int, Callable[[LaneValue], None]], None]

_INTEGER = {"+": "add", "&": "and", "|": "or", "^": "xor", "exchange": "xchg"}


class Atomics:
    def __init__(self, memory: LaneMemory, count: Count) -> None:
        self.memory = memory
        self.builder = memory.builder
        self.elementwise = memory.elementwise
        self.count = count

    def run(
        self, node: ir.Atomic, place: LaneAddress, value: LaneValue, mask: LaneValue | None
    ) -> LaneValue:
        """Run the atomic on each active lane; returns the old values."""
        lanes, dtype = self.memory.lanes, node.tensor.dtype
        if not lanes:
            return self._one(node, self.memory.address(place), value)
        kind = stored_type(dtype, lanes)
        olds = self.builder.allocate(kind, "old")
        values = self.builder.allocate(kind, "value")
        pointers = self.builder.allocate(f"[{lanes} x ptr]", "pointer")
        flags = self.builder.allocate(f"[{lanes} x i8]", "active")
        self.builder.emit(f"store {self.memory.to_storage(value).typed}, ptr {values}")
        self.builder.emit(f"store <{lanes} x ptr> {self.memory.pointers(place)}, ptr {pointers}")
        active = mask if mask is not None else constant(True, boolean, lanes)
        self.builder.emit(f"store {self.memory.to_storage(active).typed}, ptr {flags}")
        element = stored_type(dtype)

        def body(lane: LaneValue) -> None:
            def item(kind: str, array: str) -> str:
                return self.builder.impure(f"getelementptr {kind}, ptr {array}, i64 {lane.text}")

            flag = self.builder.impure(f"load i8, ptr {item('i8', flags)}")
            test = self.builder.impure(f"trunc i8 {flag} to i1")
            then, end = self.builder.label("then"), self.builder.label("end")
            self.builder.emit(f"br i1 {test}, label %{then}, label %{end}")
            self.builder.start(then)
            pointer = self.builder.impure(f"load ptr, ptr {item('ptr', pointers)}")
            raw = self.builder.impure(f"load {element}, ptr {item(element, values)}")
            operand = self.memory.from_storage(raw, node.tensor, SCALAR)
            old = self._one(node, pointer, operand)
            self.builder.emit(
                f"store {self.memory.to_storage(old).typed}, ptr {item(element, olds)}"
            )
            self.builder.jump(end)
            self.builder.start(end)

        self.count(constant(0, i64), constant(lanes, i64), 1, body)
        return self.memory.from_storage(
            self.builder.impure(f"load {kind}, ptr {olds}"), node.tensor, lanes
        )

    def _one(self, node: ir.Atomic, pointer: str, value: LaneValue) -> LaneValue:
        dtype = node.tensor.dtype
        kind = stored_type(dtype)
        if node.tensor.scope != GLOBAL:
            old = self.memory.from_storage(
                self.builder.impure(f"load {kind}, ptr {pointer}"), node.tensor, SCALAR
            )
            new = self._combined(node.operator, old, value)
            self.builder.emit(f"store {self.memory.to_storage(new).typed}, ptr {pointer}")
            return old
        if dtype.is_integer:
            name = _INTEGER.get(node.operator)
            if name is None:
                name = ("" if dtype.kind == "int" else "u") + node.operator
            text = self.builder.impure(f"atomicrmw {name} ptr {pointer}, {value.typed} monotonic")
            return replace(value, text=text, number=None)
        return self._exchanged(node, pointer, value)

    def _exchanged(self, node: ir.Atomic, pointer: str, value: LaneValue) -> LaneValue:
        """A compare-and-exchange loop, until no other thread came in between."""
        builder, dtype = self.builder, node.tensor.dtype
        bits = f"i{dtype.bits}"
        head, end = builder.label("again"), builder.label("done")
        builder.jump(head)
        builder.start(head)
        seen = builder.impure(f"load atomic {bits}, ptr {pointer} monotonic, align {dtype.nbytes}")
        kind = stored_type(dtype)
        raw = seen if kind == bits else builder.impure(f"bitcast {bits} {seen} to {kind}")
        with builder.nested():
            old = self.memory.from_storage(raw, node.tensor, SCALAR)
            stored = self.memory.to_storage(self._combined(node.operator, old, value))
            new = stored.text
            if kind != bits:
                new = builder.impure(f"bitcast {stored.typed} to {bits}")
            pair = builder.impure(
                f"cmpxchg weak ptr {pointer}, {bits} {seen}, {bits} {new} monotonic monotonic"
            )
            swapped = builder.impure(f"extractvalue {{ {bits}, i1 }} {pair}, 1")
            builder.emit(f"br i1 {swapped}, label %{end}, label %{head}")
        builder.start(end)
        return self.memory.from_storage(raw, node.tensor, SCALAR)

    def _combined(self, operator: str, old: LaneValue, value: LaneValue) -> LaneValue:
        if operator == "exchange":
            return value
        if operator in "&|^" and old.dtype is boolean:
            name = {"&": "and", "|": "or"}.get(operator)
            return (
                self.elementwise.binary(name, old, value)
                if name
                else self.elementwise.binary("!=", old, value)
            )
        return self.elementwise.binary(operator, old, value)
