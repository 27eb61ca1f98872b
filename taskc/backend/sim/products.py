"""Asynchronous matrix products of warpgroups: their results, and the checks while they are in flight.

A product is computed when the last of its four warps issues it; whatever would make that differ from
hardware, which computes it some time before the wait, is reported: ordinary code that touches its
registers (see registers.py), and writes to what it reads in shared memory that don't come after a
wait. For these each warpgroup has a channel, as an mbarrier has for the copies that it counts.

The operands of matrix products in shared memory: their placement, and whether they have arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from taskc.backend.operands import operands_of
from taskc.backend.sim.asynchronous import check_fences
from taskc.backend.sim.machine import Frame, Group, active_columns
from taskc.backend.sim.matrix import folded, gathered, scattered
from taskc.backend.sim.memory import Array, Memory
from taskc.backend.sim.operations import Operations
from taskc.backend.sim.recording import Races, memory_of
from taskc.backend.sim.schedule import Thread
from taskc.backend.sim.shadow import (
    SEVERAL,
    SITE_BITS,
    SITE_MASK,
    WORKER_BITS,
    latest_clocks,
    workers_of,
)
from taskc.backend.sim.statements import Code
from taskc.backend.sim.synchronization import schedule_of
from taskc.backend.sim.tiles import cube_of
from taskc.errors import InternalError, Location
from taskc.ir import nodes as ir
from taskc.ir.extents import size_in_elements
from taskc.ir.fragments import placement, quotient_of, runs_along
from taskc.ir.target import (
    WARP,
    WARPGROUP,
    WARPGROUP_INSTRUCTIONS,
    WarpgroupInstruction,
    is_asynchronous,
)


@dataclass(frozen=True, slots=True)
class Window:
    """The elements [mn, k] of one fragment in a memory."""

    memory: Memory
    at: Array

    def values(self) -> Array:
        return np.asarray(self.memory.data[self.at])


Find: TypeAlias = Callable[[list[Frame], int, int], "Window | None"]
"""The fragment that lies so many elements further along mn and k; None where that is reported."""


class SharedOperands:
    def __init__(self, operations: Operations) -> None:
        self.run = operations.run
        self.accesses = operations.accesses

    def find(
        self,
        tensor: ir.Tensor,
        origin: tuple[ir.Expression, ...],
        along: str,
        row: WarpgroupInstruction,
        is_left: bool,
        node: ir.Mma | ir.Do,
    ) -> Find:
        operand_placement = placement(tensor, along, row, is_left=is_left)
        if operand_placement is None:
            raise InternalError(f"{tensor.name} does not lie as {row.name} takes it")
        place = self.accesses.place(tensor, origin, node)
        mn, k = row.shape[0 if is_left else 1], row.shape[2]
        extents = (mn, k) if along == "k" else (k, mn)
        offsets = operand_placement.offsets(mn, k)
        size = size_in_elements(tensor)

        def window(frames: list[Frame], further_mn: int, further_k: int) -> Window | None:
            starts = np.concatenate(
                [np.broadcast_to(place(frame)[0], (1, frame.width)) for frame in frames], axis=1
            )
            start = int(starts[0, 0])
            if (starts != start).any():
                message = f"the workers of a warpgroup don't agree on where {tensor.name} begins"
                wrong = np.ones((1, frames[0].width), np.bool_)
                frames[0].fault("divergence", message, wrong, node)
            everyone = np.ones((1, frames[0].width), np.bool_)
            memory = memory_of(frames[0], tensor)
            if self.run.is_flat:
                at = where = start + offsets
                fits = int(at.max()) < size
            else:
                further = (further_mn, further_k) if along == "k" else (further_k, further_mn)
                at, where, fits = self._elements(tensor, start, further, extents)
                at, where = (at, where) if along == "k" else (at.T, where.T)
            if not fits:
                message = f"a fragment of {mn} by {k} reaches over the end of {tensor.name}"
                frames[0].fault("out-of-bounds", message, everyone, node)
                return None
            start = int(where[0, 0])
            lies = np.array_equal(where - start, offsets)
            begins = start + (tensor.offset or 0) // tensor.dtype.nbytes
            if not lies or not operand_placement.is_aligned(begins):
                message = (
                    f"a fragment of {tensor.name} does not begin with an atom of eight lines, at a"
                    " multiple of 16 bytes"
                )
                frames[0].fault("misaligned", message, everyone, node)
            return Window(memory, at + int(np.max(memory.rows)))

        return window

    def _elements(
        self, tensor: ir.Tensor, start: int, further: tuple[int, int], extents: tuple[int, int]
    ) -> tuple[Array, Array, bool]:
        """A fragment's elements: their offsets, their offsets in the layout, and whether all of them exist."""
        shape = self.run.shapes[tensor]
        *outer, first, second = (int(i) for i in np.unravel_index(start, shape))
        first, second = first + further[0], second + further[1]
        fits = first + extents[0] <= shape[-2] and second + extents[1] <= shape[-1]
        rows, columns = np.indices(extents)
        indices = (first + rows, second + columns) if fits else (rows, columns)
        at = np.ravel_multi_index((*outer, *indices), shape)
        if tensor.layout is None:
            return at, at, fits
        tasks = np.stack(np.unravel_index(at, shape), axis=-1)
        return at, tensor.layout.find(0, tasks[..., -tensor.layout.rank :]), fits

    def check(self, frame: Frame, window: Window, node: ir.Mma | ir.Do, site: int) -> None:
        """Check that elements read by a warp have arrived, and are visible to it and to the asynchronous proxy."""
        memory = window.memory
        shadow, order = memory.shadow, frame.group.order
        assert shadow is not None
        at = window.at.reshape(-1)
        missing = memory.lacks(at) if not memory.complete else np.zeros(at.shape, np.bool_)
        touched = (at[:, None] * memory.granules + np.arange(memory.granules)).reshape(-1)
        known = order.known[0, frame.worker_row]
        late = np.zeros(touched.shape, np.bool_)
        if shadow.flight is not None:
            state = shadow.flight.state[touched]
            for one in np.unique(state[state != 0]).tolist():
                channel = order.workers + (one & SITE_MASK) - 1
                if one < 0 or (known[:, channel] <= one >> SITE_BITS).any():
                    late |= state == one
        if np.count_nonzero(late):
            lanes = frame.lanes(
                (1, frame.width), touched, np.zeros(touched.shape, np.int64), site, False
            )
            sites = shadow.flight.site[touched[late]] if shadow.flight is not None else touched
            Races(frame, memory, site).unwaited("reads", lanes, late, sites)
        elif np.count_nonzero(missing):
            name = frame.name_element(memory, int(at[np.argmax(missing)]) * memory.granules)
            everyone = np.ones((1, frame.width), np.bool_)
            message = f"{name} is read before it is written"
            frame.fault("uninitialized", message, everyone, node)
        self._check_writes(frame, memory, touched, site)
        check_fences(frame, memory, at, frame.worker_row, node, "read by a matrix product")

    def _check_writes(self, frame: Frame, memory: Memory, touched: Array, site: int) -> None:
        """Check that all workers of the warp come after all ordinary writes."""
        shadow, order = memory.shadow, frame.group.order
        assert shadow is not None
        stamps, who = shadow.when[touched], shadow.who[touched]
        known = order.known[0, frame.worker_row, : order.workers]
        is_written = stamps != 0
        clocks = latest_clocks(who[is_written] & SEVERAL, stamps[is_written] >> SITE_BITS, order)
        if clocks is not None:  # all writers at once; one after another only to name a late one
            others = frame.worker_row[:, None] != np.arange(order.workers)
            if not np.count_nonzero((known <= clocks) & others):
                return
        for writer in np.unique(who[stamps != 0]).tolist():
            mine = (who == writer) & (stamps != 0)
            latest = int(stamps[mine].max()) >> SITE_BITS
            worker = writer & SEVERAL
            late = (known[:, workers_of(worker, order)] <= latest).any(axis=1)
            late &= frame.worker_row != worker
            if np.count_nonzero(late):
                first = int(np.flatnonzero(mine)[np.argmax(stamps[mine])])
                reader = int(frame.group.units[0]) << WORKER_BITS | int(
                    frame.worker_row[np.argmax(late)]
                )
                conflict = (
                    int(touched[first]),
                    reader,
                    int(who[first]),
                    int(stamps[first]) & SITE_MASK,
                    int(mine.sum()),
                )
                Races(frame, memory, site).race("reads", "writes", conflict)
                return

    def mark(self, window: Window, channel: int, stamp: int) -> None:
        """Mark the elements as being read until the channel's clock is known."""
        memory = window.memory
        shadow: Any = memory.shadow
        if channel not in shadow.products:
            shadow.products[channel] = np.zeros(shadow.size, np.int64)
        for granule in range(memory.granules):
            shadow.products[channel][window.at * memory.granules + granule] = stamp


# --- Matrix products in flight: those that each warp has issued, by group, and not waited for ---


@dataclass(frozen=True, slots=True)
class Part:
    """Registers of one warp: some slots of a tensor."""

    memory: Memory
    slots: slice


@dataclass(frozen=True, slots=True)
class Issued:
    """One product, as issued by one warp.

    `number` counts from 1 in the block; `clock` is that of the warpgroup's channel.
    """

    number: int
    row: WarpgroupInstruction
    channel: int
    clock: int
    accumulator: Part
    left: Part | None
    loc: Location


@dataclass(slots=True)
class Progress:
    """The products that one warp has issued and not waited for, by group."""

    has_fenced: bool = False
    open: list[Issued] = field(default_factory=list)
    closed: list[list[Issued]] = field(default_factory=list)


@dataclass(slots=True)
class InFlight:
    """The products of a block: all issued ones, each warp's progress, and the warps that wait for others."""

    issued: list[Issued] = field(default_factory=list)
    warps: dict[int, Progress] = field(default_factory=dict)
    parties: dict[object, list[Frame]] = field(default_factory=dict)


def products_of(group: Group) -> InFlight:
    if group.products is None:
        group.products = InFlight()
    products: InFlight = group.products
    return products


def progress_of(frame: Frame) -> Progress:
    return products_of(frame.group).warps.setdefault(frame.warp, Progress())


def registers_of_products(nodes: Iterable[ir.Statement]) -> Iterator[ir.Tensor]:
    """The tensors whose registers are operands of asynchronous products."""
    for node in nodes:
        match node:
            case ir.Mma(how=how) if is_asynchronous(how):
                yield from (node.accumulator, node.left.tensor)
            case ir.Do(operation=operation) if is_asynchronous(operation):
                yield from (x.tensor for x in node.operands[:2] if isinstance(x, ir.Address))
            case _:
                pass  # synchronous: complete after the statement


def report_unfinished(group: Group) -> None:
    """Report products that are still in flight when the block ends."""
    if group.products is None:
        return
    for progress in group.products.warps.values():
        for product in (*progress.open, *(p for closed in progress.closed for p in closed)):
            why = ", in no group: nothing commits it" if product in progress.open else ""
            message = f"the block ends while a matrix product is in flight{why}"
            group.report("unwaited-product", message, product.loc, product.loc)


@dataclass(frozen=True, slots=True)
class Fragment:
    """The work of one instruction: the first slots of its registers, and the windows of its operands.

    `step` of k is that of a product that takes several instructions.
    """

    accumulator: int
    left: int | Window | None
    right: Window | None
    step: int = 0


FragmentOrder: TypeAlias = Callable[[list[Frame]], Iterator[Fragment]]


class Products:
    def __init__(self, operations: Operations) -> None:
        self.run = operations.run
        self.accesses = operations.accesses
        self.expressions = operations.expressions
        self.operands = SharedOperands(operations)
        operations.makers.update(
            {"wgmma.fence": self.fence, "wgmma.commit": self.commit, "wgmma.wait": self.wait}
        )
        operations.makers.update(dict.fromkeys(WARPGROUP_INSTRUCTIONS, self.instruction))

    # Statements of a single warp.

    def fence(self, node: ir.Do) -> Code:
        def run(frame: Frame) -> None:
            if not _is_whole(frame, node):
                return
            progress_of(frame).has_fenced = True
            for memory in frame.memories.values():
                if memory.registers is not None:
                    cube_of(memory.registers.touched, frame, memory)[...] = False

        return Code(run)

    def commit(self, node: ir.Do) -> Code:
        def run(frame: Frame) -> None:
            if _is_whole(frame, node):
                progress = progress_of(frame)
                progress.closed.append(progress.open)
                progress.open = []

        return Code(run)

    def wait(self, node: ir.Do) -> Code:
        (most,) = operands_of(node).numbers

        def run(frame: Frame) -> None:
            if not _is_whole(frame, node):
                return
            progress, order = progress_of(frame), frame.group.order
            done = max(len(progress.closed) - most, 0)
            for product in (p for group in progress.closed[:done] for p in group):
                for part in (product.accumulator, product.left):
                    if part is not None:
                        held = cube_of(part.memory.registers.held, frame, part.memory)[part.slots]
                        held[held == product.number] = 0
                known = order.known[0, frame.worker_row, order.workers + product.channel]
                order.known[0, frame.worker_row, order.workers + product.channel] = np.maximum(
                    known, product.clock + 1
                )
            progress.closed = progress.closed[done:]

        return Code(run)

    # Products.

    def mma(self, node: ir.Mma) -> Code:
        """A whole product: the fragments of a warpgroup, for each step of k."""
        row = WARPGROUP_INSTRUCTIONS[str(node.how)]
        assert node.accumulator.owners is not None
        quotient = quotient_of(node.accumulator.owners, row)
        assert quotient is not None
        m, n, k = row.shape
        steps = node.left.shape[1] // k
        in_registers = node.left.tensor.scope == ir.TILE
        left = None if in_registers else self._operand(node, node.left, row)
        right = self._operand(node, node.right, row)

        def plan(frames: list[Frame]) -> Iterator[Fragment]:
            group = (int(frames[0].worker_row[0]) - frames[0].first) // WARPGROUP
            tasks = quotient(group)
            lines = {line: i for i, line in enumerate(dict.fromkeys(i for i, _ in tasks))}
            for step in range(steps):
                for slot, (i, j) in enumerate(tasks):
                    source: int | Window | None
                    if left is None:
                        source = (lines[i] * steps + step) * row.left_fragment.slots
                    else:
                        source = left(frames, i * m, step * k)
                    first = slot * row.accumulator_fragment.slots
                    yield Fragment(first, source, right(frames, j * n, step * k), step)

        tensors = node.accumulator, node.left.tensor if in_registers else None
        return self._issue(node, row, tensors, node.accumulate, plan)

    def _operand(self, node: ir.Mma, operand: ir.Operand, row: WarpgroupInstruction) -> Find:
        is_left = operand is node.left
        along = runs_along(operand, is_left=is_left)
        return self.operands.find(operand.tensor, operand.origin, along, row, is_left, node)

    def instruction(self, node: ir.Do) -> Code:
        row = WARPGROUP_INSTRUCTIONS[node.operation]
        (accumulator, left, right), (accumulate,), is_transposed = operands_of(node)
        in_registers = left.tensor.scope == ir.REGISTER
        first = self._slot(accumulator, node)
        left_slot = self._slot(left, node) if in_registers else None
        along = "mn" if is_transposed[0] else "k"
        left_window = (
            None
            if in_registers
            else self.operands.find(left.tensor, left.indices, along, row, True, node)
        )
        along = "k" if is_transposed[1] else "mn"
        right_window = self.operands.find(right.tensor, right.indices, along, row, False, node)

        def plan(frames: list[Frame]) -> Iterator[Fragment]:
            source: int | Window | None = None
            if left_slot is not None:
                source = left_slot(frames[0])
            elif left_window is not None:
                source = left_window(frames, 0, 0)
            yield Fragment(first(frames[0]), source, right_window(frames, 0, 0))

        tensors = accumulator.tensor, left.tensor if in_registers else None
        return self._issue(node, row, tensors, accumulate, plan)

    def _slot(self, address: ir.Address, node: ir.Do) -> Callable[[Frame], int]:
        place = self.accesses.place(address.tensor, address.indices, node)
        return lambda frame: int(np.max(place(frame)[0]))

    def _issue(
        self,
        node: ir.Mma | ir.Do,
        row: WarpgroupInstruction,
        tensors: tuple[ir.Tensor, ir.Tensor | None],
        accumulate: ir.Expression | None,
        plan: FragmentOrder,
    ) -> Code:
        condition = None if accumulate is None else self.expressions(accumulate)
        site = self.run.site(node.loc)

        def act(frames: list[Frame]) -> None:
            adds = np.concatenate(
                [
                    np.broadcast_to(True if condition is None else condition(f), (1, WARP))
                    for f in frames
                ],
                axis=1,
            )
            if adds.any() != adds.all():
                message = "the workers of a warpgroup don't agree on whether a product accumulates"
                everyone = np.ones((1, WARP), np.bool_)
                frames[0].fault("divergence", message, everyone, node)
            for fragment in plan(frames):
                if fragment.left is None or fragment.right is None:
                    continue
                self._compute(
                    frames,
                    node,
                    row,
                    tensors,
                    fragment,
                    bool(adds.all()) or fragment.step > 0,
                    site,
                )

        def steps(frame: Frame) -> Thread:
            if frame.axes or frame.width != WARP:
                raise InternalError(f"{row.name} is a statement of whole warps")
            if not _is_whole(frame, node):
                return
            key = id(node), self._channel(frame)
            party = products_of(frame.group).parties.setdefault(key, [])
            party.append(frame)

            def together() -> None:
                frames = sorted(party, key=lambda f: int(f.worker_row[0]))
                party.clear()
                act(frames)

            yield from schedule_of(frame).gather(key, frame, node.loc, together, WARPGROUP)

        return Code(steps, waits=True)

    def _channel(self, frame: Frame) -> int:
        """The channel of the warpgroup's products."""
        number = int(frame.numbers[0]) // WARPGROUP
        return frame.group.first_channel + self.run.product_channel + number

    def _compute(
        self,
        frames: list[Frame],
        node: ir.Mma | ir.Do,
        row: WarpgroupInstruction,
        tensors: tuple[ir.Tensor, ir.Tensor | None],
        fragment: Fragment,
        adds: bool,
        site: int,
    ) -> None:
        group = frames[0].group
        channel = self._channel(frames[0])
        clock = group.order.tick(0, channel)
        slots = slice(fragment.accumulator, fragment.accumulator + row.accumulator_fragment.slots)
        totals, lefts = [], []
        for frame in frames:
            accumulator = Part(memory_of(frame, tensors[0]), slots)
            left: Part | None = None
            if tensors[1] is not None:
                assert isinstance(fragment.left, int)
                end = fragment.left + row.left_fragment.slots
                left = Part(memory_of(frame, tensors[1]), slice(fragment.left, end))
            totals.append(self._registers(frame, node, row, accumulator, adds, is_left=False))
            if left is not None:
                lefts.append(self._registers(frame, node, row, left, True, is_left=True))
            issued = products_of(group).issued
            product = Issued(len(issued) + 1, row, channel, clock, accumulator, left, node.loc)
            issued.append(product)
            progress_of(frame).open.append(product)
            for part in (accumulator, left):
                if part is not None:
                    cube_of(part.memory.registers.held, frame, part.memory)[part.slots] = (
                        product.number
                    )
            for window in (fragment.left, fragment.right):
                if isinstance(window, Window):
                    self.operands.check(frame, window, node, site)
        for window in (fragment.left, fragment.right):
            if isinstance(window, Window):
                self.operands.mark(window, channel, clock << SITE_BITS | site)
        whole = gathered(np.concatenate(totals), row.accumulator_fragment)
        if not adds:
            whole = np.zeros_like(whole)
        if isinstance(fragment.left, Window):
            a = fragment.left.values()
        else:
            a = gathered(np.concatenate(lefts), row.left_fragment)
        assert fragment.right is not None
        result = scattered(
            folded(row, whole, a, fragment.right.values().T), row.accumulator_fragment
        )
        for position, frame in enumerate(frames):
            memory = memory_of(frame, tensors[0])
            mine = result[position * WARP : (position + 1) * WARP]
            cube_of(memory.data, frame, memory)[slots] = mine.T[:, None, :]
            cube_of(memory.written, frame, memory)[slots] = 1
            memory.tried = False

    def _registers(
        self,
        frame: Frame,
        node: ir.Mma | ir.Do,
        row: WarpgroupInstruction,
        part: Part,
        is_read: bool,
        *,
        is_left: bool,
    ) -> Array:
        """A warp's registers, [worker, slot], after checking that the product may use them."""
        memory, slots = part.memory, part.slots
        registers = memory.registers
        everyone = np.ones((1, WARP), np.bool_)
        name = memory.tensor.name
        if cube_of(registers.touched, frame, memory)[slots].any():
            message = f"registers of {name} were touched after the last wgmma.fence"
            frame.fault("missing-fence", message, everyone, node)
        elif not progress_of(frame).has_fenced:
            message = "there is no wgmma.fence before the first matrix product"
            frame.fault("missing-fence", message, everyone, node)
        issued = products_of(frame.group).issued
        for held in np.unique(cube_of(registers.held, frame, memory)[slots]).tolist():
            if not held:
                continue
            other = issued[held - 1]
            theirs = other.left if is_left else other.accumulator
            alike = is_left or other.row.shape == row.shape
            if theirs is None or (theirs.memory, theirs.slots) != (memory, slots) or not alike:
                message = f"registers of {name} are taken while a matrix product of another shape has them"
                notes = (("the product is issued here", other.loc),)
                frame.group.report("unwaited-product", message, node.loc, node, notes)
        missing = cube_of(memory.written, frame, memory)[slots] == 0
        if is_read and missing.any():
            message = f"{name} is read before it is written"
            frame.fault("uninitialized", message, missing.any(axis=0), node)
        values: Array = cube_of(memory.data, frame, memory)[slots][:, 0, :].T
        return values


def _is_whole(frame: Frame, node: ir.Mma | ir.Do) -> bool:
    """Whether the warp is active; reports a warp of which only some lanes are."""
    active = active_columns(frame)
    if active.any() and not active.all():
        message = "only some lanes of the warp take part"
        frame.fault("inactive-lane", message, active[None], node)
    return bool(active.any())
