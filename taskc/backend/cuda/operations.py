"""Target operations in CUDA C++: calls of the prelude.

do cp.async(&sa[t2], &a[t5], 8, t6)      tc::cp_async<16>(&sa[t2], &a[t5], t6);
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from taskc.backend.cuda import matrices
from taskc.backend.cuda.compiled import TensorMap
from taskc.backend.cuda.expressions import SUM, ExpressionWriter
from taskc.backend.cuda.matrices import PackedRegisters, matrix_move
from taskc.backend.cuda.prelude import PreludeEntry, library
from taskc.backend.cuda.watchdog import WatchedWait, limit, numbered
from taskc.backend.operations import operands_of
from taskc.errors import CompileError, InternalError, Location
from taskc.ir import nodes as ir
from taskc.ir.extents import size_in_bytes
from taskc.ir.fragments import UNIT, placement
from taskc.ir.nodes import Expression, Tensor
from taskc.ir.operations import NAMED_BARRIERS, OPERATIONS
from taskc.ir.rewrite import walk
from taskc.ir.target import (
    MATRIX_MOVES,
    WARP_INSTRUCTIONS,
    WARPGROUP_INSTRUCTIONS,
    WarpgroupInstruction,
    registers_at_launch,
)
from taskc.ir.types import DType, boolean, i64

# --- Atomic updates in CUDA C++: by hardware instructions where they exist, else by compare and swap ---
# atomic y[0] max= x      tc::update(&y[0], [value = x](f32 old) -> f32 { return tc::maximum(old, value); });


_FUNCTIONS = {
    "+": "Add", "min": "Min", "max": "Max", "&": "And", "|": "Or", "^": "Xor", "exchange": "Exch",
}  # fmt: skip


def atomic_text(node: ir.Atomic, expressions: ExpressionWriter) -> str:
    dtype, operator = node.tensor.dtype, node.operator
    place = f"&{expressions.element(node.tensor, node.indices)}"
    if node.operator == "release":
        return f"{expressions.use('store_release')}({place}, {expressions(node.value)});"
    value = expressions(node.value)
    if operator == "acquire":
        text = f"{expressions.use('load_acquire')}({place})"
    elif not _is_in_hardware(operator, dtype):
        function = expressions.use("update")
        text = f"{function}({place}, {_combination(operator, dtype, value, expressions)})"
    elif dtype.kind == "int" and dtype.bits == 64 and operator not in ("min", "max"):
        # CUDA declares these for unsigned integers only; the bits are the same.
        text = f"({dtype})atomic{_FUNCTIONS[operator]}((u64*){place}, (u64)({value}))"
    else:
        text = f"atomic{_FUNCTIONS[operator]}({place}, {value})"
    if node.result is not None:
        text = f"const {node.result.dtype} {expressions.names[node.result]} = {text}"
    return f"{text};"


def _combination(operator: str, dtype: DType, value: str, expressions: ExpressionWriter) -> str:
    """A lambda from the old element to the new one."""
    if operator == "exchange":
        return f"[value = {value}]({dtype}) -> {dtype} {{ return value; }}"
    old, operand = ir.Variable("old", dtype), ir.Variable("value", dtype)
    expressions.names.of.update({old: "old", operand: "value"})
    combined = expressions(ir.Binary(operator, old, operand))
    return f"[value = {value}]({dtype} old) -> {dtype} {{ return {combined}; }}"


def _is_in_hardware(operator: str, dtype: DType) -> bool:
    """Whether CUDA has an atomic with exactly the language's meaning."""
    if dtype.bits < 32 or dtype is boolean:
        return False
    if dtype.is_float:
        return operator == "+" or (operator == "exchange" and dtype.bits == 32)
    return True


_MBARRIERS = [name for name in OPERATIONS if name.startswith("mbarrier.")]
_DIMENSIONS = 5  # most dimensions of a tensor map
_BOX = 256  # most elements of a box in a dimension


class OperationWriter:
    """`peers` maps other blocks' mbarriers to their tensor and the block's rank.

    `ordering` are mbarriers at which workers of other blocks arrive whose accesses the waiting worker must see.
    """

    def __init__(self, kernel: ir.Kernel, expressions: ExpressionWriter) -> None:
        self.kernel = kernel
        self.expressions = expressions
        self.maps: dict[TensorMap, str] = {}
        self.peers: dict[Tensor, tuple[Tensor, str]] = {}
        self.ordering = _ordering_mbarriers(kernel)
        self.packed = PackedRegisters(expressions)
        self.waits: list[WatchedWait] = []
        # For mbarriers that are set up more than once: a word of each thread, see `mbarrier_forget`.
        self.known = {
            tensor: expressions.names.fresh(f"{tensor.name}_known")
            for tensor in _set_up_again(kernel)
        }
        if limit():
            expressions.prelude.add(replace(library()["spins.watched"], name="spins"))
        self._has_bulk_copies = "tma" in expressions.target.transports
        # All other operations are calls of the function with their name.
        self.makers: dict[str, Callable[[ir.Do], Iterator[str]]] = {
            **dict.fromkeys(WARP_INSTRUCTIONS, self._synchronous),
            **dict.fromkeys(WARPGROUP_INSTRUCTIONS, self._asynchronous),
            **dict.fromkeys(MATRIX_MOVES, self._matrix_move),
            **dict.fromkeys(_MBARRIERS, self._mbarrier),
            **dict.fromkeys(("tma.load", "tma.load.multicast", "tma.store"), self._bulk_copy),
            "tma.load.pixels": self._copy_of_pixels,
            "cp.async": self._copy,
            "setmaxnreg": self._registers,
            **dict.fromkeys(NAMED_BARRIERS, self._named_barrier),
        }

    def statements(self, node: ir.Do) -> Iterator[str]:
        """The lines of code for an operation."""
        maker = self.makers.get(node.operation, self._call)
        yield from maker(node)

    def _call(self, node: ir.Do) -> Iterator[str]:
        """A call of the function with its name: constants are template arguments."""
        function = node.operation.replace(".", "_")
        if function not in library():
            raise InternalError(f"no CUDA code for {node.operation}")
        places, values, numbers = operands_of(node)
        template = f"<{', '.join(map(str, numbers))}>" if numbers else ""
        call = f"{self.expressions.use(function)}{template}({self._all([*places, *values])});"
        result = node.result
        if result is not None:
            call = f"const {result.dtype} {self.expressions.names[result]} = {call}"
        yield call

    def _named_barrier(self, node: ir.Do) -> Iterator[str]:
        number, count = node.operands
        function = self.expressions.use(node.operation.replace(".", "_"))
        if isinstance(number, ir.Constant):
            yield f"{function}<{self._all(node.operands)}>();"
        else:
            yield f"{function}<{self.operand(count)}>({self.operand(number)});"

    def _synchronous(self, node: ir.Do) -> Iterator[str]:
        entry = matrices.synchronous(WARP_INSTRUCTIONS[node.operation])
        yield f"{self._made(entry)}({self._all(node.operands)});"

    def _matrix_move(self, node: ir.Do) -> Iterator[str]:
        place = node.operands[0]
        entry = matrix_move(MATRIX_MOVES[node.operation], place.dtype)
        yield f"{self._made(entry)}({self._all(node.operands)});"

    def _copy(self, node: ir.Do) -> Iterator[str]:
        (to, source), (reads,), (count,) = operands_of(node)
        function = self.expressions.use("cp_async")
        yield f"{function}<{count * to.dtype.nbytes}>({self._all([to, source, reads])});"

    def _registers(self, node: ir.Do) -> Iterator[str]:
        """Raise or lower a warpgroup's registers from what it has at launch: a thread's share of the
        multiprocessor's.
        """
        (count,) = operands_of(node).numbers
        at_launch = registers_at_launch(self.kernel.workers + self.kernel.helpers)
        function = "give_up_registers" if count <= at_launch else "take_registers"
        yield f"{self.expressions.use(function)}<{count}>();"

    def _all(self, operands: Sequence[Expression]) -> str:
        return ", ".join([self.operand(operand) for operand in operands])

    def operand(self, node: Expression) -> str:
        if isinstance(node, ir.Address):
            return self.expressions.address(node)
        return self.expressions(node)

    def _made(self, entry: PreludeEntry) -> str:
        self.expressions.prelude.add(entry)
        return f"tc::{entry.name}"

    # mbarriers.

    def _mbarrier(self, node: ir.Do) -> Iterator[str]:
        name, (place, *rest) = node.operation, node.operands
        assert isinstance(place, ir.Address)
        call = name.replace(".", "_")
        parts = [self.expressions.address(place)]
        values = [
            self.expressions(value) if value.dtype is boolean else self._unsigned(value)
            for value in rest
        ]
        if place.tensor in self.peers:
            own, rank = self.peers[place.tensor]
            parts = [self.expressions.address(ir.Address(own, place.indices)), rank]
            function = self.expressions.use(f"{call}.peer")
        elif name == "mbarrier.wait" and place.tensor in self.ordering:
            function = self.expressions.use(f"{call}_for_cluster")
        elif name in ("mbarrier.wait", "mbarrier.init") and self._has_bulk_copies:
            function = self.expressions.use(f"{call}.bulk")
        else:
            function = self.expressions.use(call)
        if name == "mbarrier.init" and place.tensor in self.known:
            slot = self._unsigned(place.indices[-1]) if place.indices else "0u"
            forget = self.expressions.use("mbarrier_forget")
            yield f"{forget}({parts[0]}, {self.known[place.tensor]}, {slot});"
        if name == "mbarrier.wait":
            slot = self._unsigned(place.indices[-1]) if place.indices else "0u"
            values += self.watched(place.tensor.name, slot, node.loc)
        yield f"{function}({', '.join([*parts, *values])});"

    def watched(self, name: str, place: str, loc: Location) -> list[str]:
        """The watchdog's arguments of a wait; nothing without a watchdog."""
        if not limit():
            return []
        self.waits.append(WatchedWait(name, f"{loc.file}:{loc.line}"))
        return [numbered(len(self.waits) - 1, place)]

    def _unsigned(self, node: Expression) -> str:
        if isinstance(node, ir.Constant):
            return f"{int(node.value)}u"
        if isinstance(node, ir.Cast) and node.dtype is i64:
            node = node.operand
        return f"(u32){self.expressions(node, SUM + 3)}"

    # Bulk copies.

    def _bulk_copy(self, node: ir.Do) -> Iterator[str]:
        is_store = node.operation == "tma.store"
        places, ranks, numbers = operands_of(node)
        distant, shared = places if is_store else places[1::-1]
        box = tuple(numbers)
        offsets = self._panels(shared.tensor, distant, box, node)
        width = box[-1] // len(offsets)
        part = (*box[:-1], width)
        name = self._map(shared.tensor, distant, part, node)
        rank = len(box)
        function = self._made(_copy(rank, is_store=is_store, is_multicast=bool(ranks)))
        place = self._plain(shared)
        trailing = [self.operand(barrier) for barrier in places[2:]]
        trailing += [f"(u16){self.expressions(mask, SUM + 3)}" for mask in ranks]
        *outer, last = [self._coordinate(index) for index in distant.indices]
        for number, offset in enumerate(offsets):
            to = f"{place} + {offset}" if offset else place
            inner = f"{last} + {number * width}" if number else last
            coordinates = [inner, *reversed(outer)]  # the innermost comes first
            yield f"{function}({', '.join([to, f'&{name}', *coordinates, *trailing])});"

    def _copy_of_pixels(self, node: ir.Do) -> Iterator[str]:
        (shared, distant, barrier), offsets, numbers = operands_of(node)
        name = self._map(shared.tensor, distant, tuple(numbers[:2]), node, tuple(numbers[2:]))
        coordinates = [self._coordinate(index) for index in reversed(distant.indices)]
        taps = [f"(u16){self.expressions(offset, SUM + 3)}" for offset in reversed(offsets)]
        arguments = [self._plain(shared), f"&{name}", *coordinates, *taps, self.operand(barrier)]
        yield f"{self.expressions.use('tma_load_pixels')}({', '.join(arguments)});"

    def _coordinate(self, index: Expression) -> str:
        if index.dtype is i64:
            return f"(i32){self.expressions(index, SUM + 3)}"
        return self.expressions(index, SUM)

    def _panels(
        self, shared: Tensor, distant: ir.Address, box: tuple[int, ...], node: ir.Do
    ) -> list[int]:
        """Offsets of the parts of a box that are contiguous in shared memory, from the box's first element on."""
        if shared.layout is None:
            return [0]
        rank = shared.layout.rank
        extents = [extent for extent in box if extent != 1][-rank:]
        extents = [1] * (rank - len(extents)) + extents
        tasks = np.stack([axis.reshape(-1) for axis in np.indices(extents)], axis=-1)
        slots = np.asarray(shared.layout.find(0, tasks)).reshape(-1, extents[-1])
        slots = slots - slots[0, 0]
        width = extents[-1]
        for count in range(1, width + 1):
            if width % count:
                continue
            parts: Any = slots.reshape(len(slots), count, width // count).transpose(1, 0, 2)
            parts = parts.reshape(count, -1)
            together = np.arange(parts.shape[1])
            if np.array_equal(parts - parts[:, :1], np.broadcast_to(together, parts.shape)):
                return [int(start) for start in parts[:, 0]]
        raise CompileError(f"a bulk copy can't fill {shared.name} as it is laid out", node.loc)

    def _map(
        self,
        shared: Tensor,
        distant: ir.Address,
        box: tuple[int, ...],
        node: ir.Do,
        pixels: tuple[int, ...] = (),
    ) -> str:
        tensor = distant.tensor
        if tensor.layout is not None:
            raise CompileError(
                f"bulk copies are of row-major tensors, and {tensor.name} has a layout", node.loc
            )
        if len(box) > _DIMENSIONS or max(box) > _BOX:
            raise CompileError(
                f"a bulk copy has at most {_DIMENSIONS} dimensions of {_BOX} elements, and this {box}",
                node.loc,
            )
        size = tensor.dtype.nbytes
        swizzle = shared.swizzle
        width = 0 if swizzle is None else UNIT << swizzle.bits
        if width and box[-1] * size > width:
            raise CompileError(
                f"rows of a bulk copy into lines of {width} bytes that are swizzled are no longer, and"
                f" these have {box[-1] * size}",
                node.loc,
                hint=f"lay '{shared.name}' out in panels of {width // size} columns",
            )
        number = self.kernel.parameters.index(tensor)
        key = TensorMap(number, tensor.dtype.name, box, width, pixels)
        if key not in self.maps:
            self.expressions.use("tensor_map")
            self.maps[key] = self.expressions.names.fresh(f"{tensor.name}_map")
        return self.maps[key]

    # Asynchronous products.

    def _asynchronous(self, node: ir.Do) -> Iterator[str]:
        row = WARPGROUP_INSTRUCTIONS[node.operation]
        (accumulator, left, right), (accumulate,), flags = operands_of(node)
        along = "mn" if flags[0] else "k", "k" if flags[1] else "mn"
        in_registers = left.tensor.scope == ir.REGISTER
        of_left = self.packed(left) if in_registers else self._in_memory(left, along[0], row, True)
        entry = matrices.asynchronous(row, in_registers=in_registers, along=along)
        parts = [self.operand(accumulator), of_left, self._in_memory(right, along[1], row, False)]
        yield f"{self._made(entry)}({', '.join(parts)}, {self.expressions(accumulate)});"

    def _in_memory(
        self, place: ir.Address, along: str, row: WarpgroupInstruction, is_left: bool
    ) -> str:
        layout = placement(place.tensor, along, row, is_left=is_left)
        if layout is None:
            raise InternalError(f"{place.tensor.name} does not lie as {row.name} takes it")
        leading, stride, swizzle = matrices.descriptor(layout)
        function = self.expressions.use("wgmma_operand")
        return f"{function}({self._plain(place)}, {leading}, {stride}, {swizzle})"

    def _plain(self, place: ir.Address) -> str:
        """The address of an element for an instruction that swizzles addresses itself."""
        (index,) = place.indices
        return f"&{self.expressions.names[place.tensor]}[{self.expressions(index)}]"


def _ordering_mbarriers(kernel: ir.Kernel) -> set[Tensor]:
    """The mbarriers of `Operations.ordering`: all but those at which only readers of asynchronous products arrive."""
    peers = {node.tensor: node.of for node in walk(kernel.body) if isinstance(node, ir.Peer)}
    places = (
        node.operands[0]
        for node in walk(kernel.body)
        if isinstance(node, ir.Do) and node.operation in ("mbarrier.arrive", "mbarrier.expect")
    )
    return {
        peers[place.tensor]
        for place in places
        if isinstance(place, ir.Address) and place.tensor in peers
    }


def _set_up_again(kernel: ir.Kernel) -> Iterator[Tensor]:
    """The mbarriers that are set up more than once: in a loop, as a ring's in a loop are, or by several statements."""
    loops = [
        node
        for node in walk(kernel.body)
        if isinstance(node, ir.While) or (isinstance(node, ir.For) and node.kind == "serial")
    ]
    again = {place.tensor for loop in loops for place in _set_up(loop.body)}
    places: dict[Tensor, list[tuple[Expression, ...]]] = {}
    for place in _set_up(kernel.body):
        places.setdefault(place.tensor, []).append(place.indices)
    for tensor, indices in places.items():
        are_known = all(isinstance(index, ir.Constant) for index in chain(*indices))
        is_once = len(indices) == 1 or (are_known and len({*indices}) == len(indices))
        if (tensor in again or not is_once) and size_in_bytes(tensor) <= 8 * 32:
            yield tensor


def _set_up(body: ir.Statement) -> Iterator[ir.Address]:
    """The places of mbarriers that statements set up."""
    for node in walk(body):
        if isinstance(node, ir.Do) and node.operation == "mbarrier.init":
            place = node.operands[0]
            if isinstance(place, ir.Address):
                yield place


def _copy(rank: int, *, is_store: bool, is_multicast: bool) -> PreludeEntry:
    """The function that starts a copy of a box of so many dimensions."""
    numbers = range(rank)
    coordinates = ", ".join([f"i32 x{i}" for i in numbers])
    inputs = ", ".join([f'"r"(x{i})' for i in numbers])
    if is_store:
        places = ", ".join([f"%{2 + i}" for i in numbers])
        return PreludeEntry(
            f"tma_store_{rank}d",
            ("shared_address", "tensor_map"),
            f"__device__ __forceinline__ void tma_store_{rank}d(const void* from, const TensorMap* map,"
            f" {coordinates}) {{\n"
            f'    asm volatile("cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group [%1, {{{places}}}],'
            f' [%0];"\n'
            f'                 :: "r"(shared_address(from)), "l"((u64)map), {inputs} : "memory");\n'
            "}",
        )
    name = f"tma_load_multicast_{rank}d" if is_multicast else f"tma_load_{rank}d"
    places = ", ".join([f"%{3 + i}" for i in numbers])
    parameter, kind, operand, ranks = "", "", "", ""
    if is_multicast:
        parameter, kind = ", u16 ranks", ".multicast::cluster"
        operand, ranks = f", %{3 + rank}", ', "h"(ranks)'
    return PreludeEntry(
        name,
        ("shared_address", "tensor_map"),
        f"__device__ __forceinline__ void {name}(void* to, const TensorMap* map, {coordinates},"
        f" u64* barrier{parameter}) {{\n"
        f'    asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes'
        f'{kind}"\n'
        f'                 " [%0], [%1, {{{places}}}], [%2]{operand};"\n'
        f'                 :: "r"(shared_address(to)), "l"((u64)map), "r"(shared_address(barrier)), {inputs}{ranks}'
        ' : "memory");\n'
        "}",
    )
