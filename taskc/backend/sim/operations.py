"""Target operations that need no waiting: shuffles, votes, each worker's copies, matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from taskc.backend.sim.expressions import Evaluate
from taskc.backend.sim.machine import Frame
from taskc.backend.sim.matrix import matrix_product
from taskc.backend.sim.matrix_moves import MatrixMoves
from taskc.backend.sim.memory import Array, Memory
from taskc.backend.sim.order import WARP
from taskc.backend.sim.races import Races
from taskc.backend.sim.recording import memory_of
from taskc.backend.sim.statements import Code, Statements
from taskc.backend.sim.tile_registers import TileRegisters
from taskc.backend.sim.vectors import check_vector
from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.ir.arithmetic import convert, fma
from taskc.ir.operations import DOTS, OPERATIONS, PACK, TILED
from taskc.ir.target import MATRIX_INSTRUCTIONS, MATRIX_MOVES, MatrixInstruction


class Copies:
    """The asynchronous copies of a frame's workers, in groups."""

    def __init__(self, frame: Frame) -> None:
        self.closed = np.zeros((frame.count, frame.width), np.int64)  # groups, for each worker
        self.pending: list[Copy] = []


class Copy:
    """Elements under way: what is to be written where, by whom, in which of his groups.

    `tag` is the ring and the step that the group belongs to, once it is closed.
    """

    __slots__ = ("at", "block", "column", "group", "memory", "site", "tag", "values")

    def __init__(
        self,
        memory: Memory,
        at: Array,
        values: Array,
        block: Array,
        column: Array,
        group: Array,
        site: int,
    ) -> None:
        self.memory = memory
        self.at = at
        self.values = values
        self.block = block
        self.column = column
        self.group = group
        self.site = site
        self.tag: tuple[ir.Ring, int] | None = None


class Operations:
    def __init__(self, statements: Statements) -> None:
        self.statements = statements
        self.run = statements.state
        self.expressions = statements.expressions
        self.accesses = statements.accesses
        self.makers: dict[str, Callable[[ir.Do], Code]] = {
            "cp.async": self.copy,
            "cp.async.commit": self.commit,
            "cp.async.wait": self.wait,
            "vote.any": self.vote,
            "vote.all": self.vote,
            "vote.ballot": self.vote,
            "setmaxnreg": lambda node: Code(lambda frame: None),
            "fence.proxy.async": self.fence,
            "wgmma.fence": self.fence,
            "wgmma.commit": self.fence,
            "wgmma.wait": self.fence,
            "tma.wait": self.fence,
        }
        for name in ("xor", "index", "up", "down"):
            self.makers[f"shuffle.{name}"] = self.shuffle
        self.makers.update({PACK: self.store_pack, **dict.fromkeys(DOTS, self.dot)})
        tiles = TileRegisters(self.accesses, self.run.kernel, self.run.is_flat)
        self.makers.update(dict.fromkeys(TILED, tiles))
        self.makers.update(dict.fromkeys(MATRIX_MOVES, MatrixMoves(statements)))
        statements.makers[ir.Do] = self

    def __call__(self, node: ir.Do) -> Code:
        row = MATRIX_INSTRUCTIONS.get(node.operation)
        if row is not None and not (row.asynchronous or row.pack):
            return self.matrix(node, row)
        maker = self.makers.get(node.operation)
        if maker is None:
            known = "" if node.operation in OPERATIONS else " (it is not a known operation)"
            raise InternalError(f"the simulator can't execute {node.operation}{known}")
        return maker(node)

    # Between the lanes of a warp.

    def shuffle(self, node: ir.Do) -> Code:
        value = self.expressions(node.operands[0])
        distance = self.expressions(node.operands[1])
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
                case "up":
                    other = np.where(lane - n < 0, lane, lane - n)
                case _:
                    other = np.where(lane + n >= WARP, lane, lane + n)
            other = np.where((other < 0) | (other >= WARP), lane, other)
            source = start + other
            source = np.where(source >= frame.width, np.arange(frame.width), source)
            full = np.broadcast_shapes(frame.full, source.shape)
            source = np.broadcast_to(source, full)
            given = np.broadcast_to(value(frame), full)
            if frame.mask is not None:
                mask = np.broadcast_to(frame.mask, full)
                asleep = mask & ~np.take_along_axis(mask, source, axis=-1)
                if asleep.any():
                    message = "the value comes from a lane that does not take part"
                    frame.fault("inactive-lane", message, asleep, node.loc, node)
            frame.env[result] = np.take_along_axis(given, source, axis=-1)

        return Code(run)

    def vote(self, node: ir.Do) -> Code:
        predicate = self.expressions(node.operands[0])
        kind, result = node.operation, node.result
        assert result is not None

        def run(frame: Frame) -> None:
            full = frame.full
            given = np.broadcast_to(predicate(frame), full)
            mask = np.broadcast_to(True if frame.mask is None else frame.mask, full)
            parts = []
            for first in range(0, frame.width, WARP):
                part = slice(first, min(first + WARP, frame.width))
                votes, here = given[..., part], mask[..., part]
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
                    frame.fault("inactive-lane", message, where, node.loc, node)
            frame.env[result] = np.concatenate(parts, axis=-1)

        return Code(run)

    # Copies by each worker.

    def copy(self, node: ir.Do) -> Code:
        target, source, count, predicate = node.operands
        assert isinstance(target, ir.Address)
        assert isinstance(source, ir.Address)
        assert isinstance(count, ir.Constant)
        loc, site = node.loc, self.run.site(node.loc)
        places, reads = [], []
        for element in range(int(count.value)):
            places.append(self.accesses.place(target.tensor, _advanced(target, element), node, loc))
            read = ir.Read(source.tensor, _advanced(source, element), loc=loc)
            reads.append(self.accesses.read(read))
        allowed = self.expressions(predicate)
        width = int(count.value) * target.tensor.dtype.nbytes
        if width not in (4, 8, 16):
            raise InternalError(f"cp.async copies 4, 8 or 16 bytes, not {width}")

        def run(frame: Frame) -> None:
            memory = memory_of(frame, target.tensor)
            chosen = allowed(frame)
            outer = frame.mask
            inner: Any = None
            if isinstance(chosen, np.ndarray):
                inner = chosen if outer is None else chosen & outer
            some = inner.any() if inner is not None else bool(chosen)
            for place, read in zip(places, reads, strict=True):
                values: Any = memory.data.dtype.type(0)
                if some:
                    frame.mask = outer if inner is None else inner
                    frame.vector = len(places) if place is places[0] else 0
                    values = read(frame)
                    frame.mask, frame.vector = outer, 1
                    if inner is not None:
                        values = np.where(chosen, values, memory.data.dtype.type(0))
                at, illegal = place(frame)
                if place is places[0] and len(places) > 1:
                    frame.vector = len(places)
                    check_vector(frame, memory, at + memory.rows, outer, loc, node, True)
                    frame.vector = 1
                self.issue(frame, memory, at + memory.rows, values, illegal, site)

        return Code(run)

    def issue(
        self, frame: Frame, memory: Memory, at: Any, values: Any, illegal: Any, site: int
    ) -> None:
        shape = frame.full
        flat = np.broadcast_to(at, shape).reshape(-1)
        data = np.broadcast_to(values, shape).reshape(-1)
        block = np.broadcast_to(frame.block_row, shape).reshape(-1)
        column = np.broadcast_to(np.arange(frame.width), shape).reshape(-1)
        where = frame.mask
        if frame.owners_only is not None:
            where = frame.owners_only if where is None else where & frame.owners_only
        if illegal is not None:
            where = ~illegal if where is None else where & ~illegal
        chosen = None
        if where is not None:
            chosen = np.broadcast_to(where, shape).reshape(-1)
            flat, data, block, column = (x[chosen] for x in (flat, data, block, column))
        if not flat.size:
            return
        copies = copies_of(frame)
        group = copies.closed[block, column]
        copies.pending.append(Copy(memory, flat, data, block, column, group, site))
        shadow = memory.shadow
        assert shadow is not None
        for granule in range(memory.granules):
            at_granule = flat * memory.granules + granule
            lanes = frame.lanes(shape, at_granule, chosen, site, False)
            shadow.launch(lanes, -1, Races(frame, memory, site))

    def commit(self, node: ir.Do) -> Code:
        def run(frame: Frame) -> None:
            close_group(frame, None)

        return Code(run)

    def wait(self, node: ir.Do) -> Code:
        (count,) = node.operands
        assert isinstance(count, ir.Constant)
        most = int(count.value)

        def run(frame: Frame) -> None:
            copies = copies_of(frame)
            active = np.ones((frame.count, frame.width), np.bool_)
            if frame.mask is not None:
                active = np.broadcast_to(frame.mask, active.shape)
            last = copies.closed - most
            for copy in copies.pending:
                arrived = copy.group < last[copy.block, copy.column]
                land(frame, copy, arrived & active[copy.block, copy.column])
            copies.pending = [copy for copy in copies.pending if copy.at.size]

        return Code(run)

    def fence(self, node: ir.Do) -> Code:
        """Where phases take effect one after another there is nothing to order."""
        return Code(lambda frame: None)

    # Products of each worker's packs.

    def dot(self, node: ir.Do) -> Code:
        row = DOTS[node.operation]
        accumulator, *places = (o for o in node.operands if isinstance(o, ir.Address))
        flags = [bool(o.value) for o in node.operands if isinstance(o, ir.Constant)]
        sides = (True, False)[-len(places) :]
        packs = [
            self._pack(place, -2 if transposed == is_left else -1, row.pack)
            for place, transposed, is_left in zip(places, flags, sides, strict=True)
        ]
        right, dtype = packs[-1], row.accumulator
        read = self.accesses.read(ir.Read(accumulator.tensor, accumulator.indices, loc=node.loc))
        store = self.accesses.store(accumulator.tensor, accumulator.indices, node, node.loc)

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
        """Reads of the elements of a pack, one after the other."""
        indices = [self._further(place, depth, q) for q in range(pack)]
        return [self.accesses.read(ir.Read(place.tensor, at, loc=place.loc)) for at in indices]

    def _further(self, place: ir.Address, depth: int, count: int) -> tuple[ir.Expression, ...]:
        """The indices of an element of a pack: of a linear offset there is but one."""
        indices = list(place.indices)
        depth = -1 if self.run.is_flat else depth
        if count:
            number = ir.Constant(count, indices[depth].dtype)
            indices[depth] = ir.Binary("+", indices[depth], number)
        return tuple(indices)

    def store_pack(self, node: ir.Do) -> Code:
        place, dimension, *values = node.operands
        assert isinstance(place, ir.Address)
        assert isinstance(dimension, ir.Constant)
        parts = []
        for q, value in enumerate(values):
            at = self._further(place, int(dimension.value) - 2, q)
            store = self.accesses.store(place.tensor, at, node, node.loc)
            parts.append((store, self.expressions(value)))

        def run(frame: Frame) -> None:
            for store, value in parts:
                store(frame, value(frame))

        return Code(run)

    # Matrix products of a warp's registers.

    def matrix(self, node: ir.Do, row: MatrixInstruction) -> Code:
        places = []
        for operand in node.operands:
            assert isinstance(operand, ir.Address)
            place = self.accesses.place(operand.tensor, operand.indices, node, node.loc)
            places.append((operand.tensor, place))
        assert row.right_fragment is not None
        fragments = (row.accumulator_fragment, row.left_fragment, row.right_fragment)

        def run(frame: Frame) -> None:
            if frame.width % row.group or frame.axes:
                raise InternalError(f"{row.name} needs whole groups of {row.group} workers")
            if frame.mask is not None:
                mask = np.broadcast_to(frame.mask, frame.full).reshape(frame.count, -1, row.group)
                partly = mask.any(axis=-1) != mask.all(axis=-1)
                if partly.any():
                    where = np.repeat(partly, row.group, axis=-1)
                    message = "only some lanes of the group take part"
                    frame.fault("inactive-lane", message, where, node.loc, node)
            groups = (frame.count, frame.width // row.group, row.group)
            registers, parts = [], []
            for (tensor, place), fragment in zip(places, fragments, strict=True):
                memory = memory_of(frame, tensor)
                start = int(np.max(place(frame)[0]))
                part = slice(start, start + fragment.slots)
                where = (memory.written[part] == 0).any(axis=0)
                if frame.mask is not None:
                    where = where & frame.mask
                if where.any():
                    message = f"{tensor.name} is read before it is written"
                    frame.fault("uninitialized", message, where, node.loc, node)
                parts.append((memory, part))
                registers.append(np.moveaxis(memory.data[part], 0, -1).reshape(*groups, -1))
            product = matrix_product(row, *registers).reshape(frame.count, frame.width, -1)
            memory, part = parts[0]
            lanes = True if frame.mask is None else frame.mask
            np.copyto(memory.data[part], np.moveaxis(product, -1, 0), where=lanes)

        return Code(run)


def _advanced(address: ir.Address, element: int) -> tuple[ir.Expression, ...]:
    """The indices of the element that comes so much later."""
    *outer, last = address.indices
    if element == 0:
        return address.indices
    return (*outer, ir.Binary("+", last, ir.Constant(element, last.dtype)))


def copies_of(frame: Frame) -> Copies:
    if frame.copies is None:
        frame.copies = Copies(frame)
    copies: Copies = frame.copies
    return copies


def close_group(frame: Frame, tag: tuple[ir.Ring, int] | None) -> None:
    """The active workers' open groups are closed."""
    copies = copies_of(frame)
    for copy in copies.pending:
        if copy.tag is None:
            copy.tag = tag
    if frame.mask is None:
        copies.closed += 1
    else:
        copies.closed += np.broadcast_to(frame.mask, copies.closed.shape)


def land(frame: Frame, copy: Copy, arrived: Array) -> None:
    """These elements have arrived, for the workers that issued their copies."""
    if not arrived.any():
        return
    memory = copy.memory
    at, column = copy.at[arrived], copy.column[arrived]
    memory.data[at] = copy.values[arrived]
    memory.mark(at)
    shadow = memory.shadow
    assert shadow is not None
    shape = (frame.count, frame.width)
    lane = copy.block[arrived] * frame.width + column
    for granule in range(memory.granules):
        shadow.note_write(
            frame.lanes(shape, at * memory.granules + granule, lane, copy.site, False)
        )
    rest = ~arrived
    copy.at, copy.values, copy.block, copy.column, copy.group = (
        x[rest] for x in (copy.at, copy.values, copy.block, copy.column, copy.group)
    )
