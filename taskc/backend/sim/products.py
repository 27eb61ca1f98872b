"""Asynchronous matrix products of warpgroups: their results, and the checks while they are in flight.

A product is computed when the last of its four warps issues it; whatever would make that differ from
hardware, which computes it some time before the wait, is reported: ordinary code that touches its
registers (see tiles.py), and writes to what it reads in shared memory that don't come after a
wait. For these each warpgroup has a channel, as an mbarrier has for the copies that it counts.

The operands of matrix products in shared memory: their placement, and whether they have arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import numpy as np

from taskc.backend.operations import operands_of
from taskc.backend.sim.asynchronous import check_fences
from taskc.backend.sim.machine import Frame
from taskc.backend.sim.memory import Array, Storage
from taskc.backend.sim.operations import folded, gathered, scattered
from taskc.backend.sim.recording import memory_of
from taskc.backend.sim.schedule import Thread
from taskc.backend.sim.shadow import SEVERAL, SITE_BITS, SITE_MASK, WORKER_BITS, Lanes, workers_of
from taskc.backend.sim.statements import Code, Makers, StatementCompiler
from taskc.backend.sim.tiles import cube_of
from taskc.dataclass import dataclass
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

# --- The operands in shared memory ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FragmentWindow:
    """The elements [mn, k] of one fragment in a memory."""

    memory: Storage
    at: Array

    def values(self) -> Array:
        return np.asarray(self.memory.data[self.at])


Find: TypeAlias = Callable[[list[Frame], int, int], "FragmentWindow | None"]
"""The fragment that lies so many elements further along mn and k; None where that is reported."""


def _window(
    compiler: StatementCompiler,
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
    place = compiler.accesses.place(tensor, origin, node)
    mn, k = row.shape[0 if is_left else 1], row.shape[2]
    extents = (mn, k) if along == "k" else (k, mn)
    offsets = operand_placement.offsets(mn, k)
    size = size_in_elements(tensor)

    def window(frames: list[Frame], further_mn: int, further_k: int) -> FragmentWindow | None:
        frame = frames[0]
        starts = np.concatenate(
            [np.broadcast_to(place(frame)[0], (1, frame.width)) for frame in frames], axis=1
        )
        start = int(starts[0, 0])
        if (starts != start).any():
            message = f"the workers of a warpgroup don't agree on where {tensor.name} begins"
            frame.fault("divergence", message, frame.active, node)
        memory = memory_of(frame, tensor)
        if compiler.run.is_flat:
            at = where = start + offsets
            fits = int(at.max()) < size
        else:
            further = (further_mn, further_k) if along == "k" else (further_k, further_mn)
            shape = compiler.run.shapes[tensor]
            at, where, fits = _elements(tensor, shape, start, further, extents)
            at, where = (at, where) if along == "k" else (at.T, where.T)
        if not fits:
            message = f"a fragment of {mn} by {k} reaches over the end of {tensor.name}"
            frame.fault("out-of-bounds", message, frame.active, node)
            return None
        start = int(where[0, 0])
        lies = np.array_equal(where - start, offsets)
        begins = start + (tensor.offset or 0) // tensor.dtype.nbytes
        if not lies or not operand_placement.is_aligned(begins):
            message = (
                f"a fragment of {tensor.name} does not begin with an atom of eight lines, at a"
                " multiple of 16 bytes"
            )
            frame.fault("misaligned", message, frame.active, node)
        return FragmentWindow(memory, at + int(np.max(memory.rows)))

    return window


def _elements(
    tensor: ir.Tensor,
    shape: tuple[int, ...],
    start: int,
    further: tuple[int, int],
    extents: tuple[int, int],
) -> tuple[Array, Array, bool]:
    """A fragment's elements: their offsets, their offsets in the layout, and whether all of them exist."""
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


def _check_window(frame: Frame, window: FragmentWindow, node: ir.Mma | ir.Do, site: int) -> None:
    """Check that elements read by a warp have arrived, and are visible to it and to the asynchronous proxy."""
    memory = window.memory
    shadow, order = memory.required_shadow, frame.group.order
    at = window.at.reshape(-1)
    missing = memory.lacks(at) if not memory.complete else np.zeros(at.shape, np.bool_)
    entries = memory.all_entries(at)
    lanes = frame.access(memory, (1, frame.width), entries, np.zeros(entries.shape, np.int64), site)
    known = order.known[0, frame.worker_row]
    late = np.zeros(entries.shape, np.bool_)
    if shadow.flight is not None:
        state = shadow.flight.state[entries]
        for one in np.unique(state[state != 0]).tolist():
            channel = order.workers + (one & SITE_MASK) - 1
            if one < 0 or (known[:, channel] <= one >> SITE_BITS).any():
                late |= state == one
    if shadow.flight is not None and np.count_nonzero(late):
        lanes.unwaited("reads", late, shadow.flight.site[entries[late]], "copy")
    elif np.count_nonzero(missing):
        name = frame.name_element(memory, int(at[np.argmax(missing)]) * memory.granules)
        message = f"{name} is read before it is written"
        frame.fault("uninitialized", message, frame.active, node)
    _check_writes(lanes, known[:, : order.workers])
    check_fences(frame, memory, at, frame.worker_row, node, "read by a matrix product")


def _check_writes(lanes: Lanes, known: Array) -> None:
    """Check that all workers of the warp come after all ordinary writes."""
    frame, shadow, order = lanes.frame, lanes.memory.required_shadow, lanes.order
    clocks = shadow.latest_clocks(lanes.at, order)
    if clocks is not None:  # all writers at once; one after another only to name a late one
        others = frame.worker_row[:, None] != np.arange(order.workers)
        if not np.count_nonzero((known <= clocks) & others):
            return
    stamps = shadow.when[lanes.at]
    for writer, mine, latest in shadow.writers(lanes.at):
        worker = writer & SEVERAL
        late = (known[:, workers_of(worker, order)] <= latest).any(axis=1)
        late &= frame.worker_row != worker
        if np.count_nonzero(late):
            first = int(np.flatnonzero(mine)[np.argmax(stamps[mine])])
            reader = int(frame.worker_row[np.argmax(late)])
            reader |= int(frame.group.units[0]) << WORKER_BITS
            site = int(stamps[first]) & SITE_MASK
            found = (int(lanes.at[first]), reader, writer, site, int(mine.sum()))
            lanes.race("reads", "writes", found)
            return


# --- Matrix products in flight: those that each warp has issued, by group, and not waited for ---


@dataclass(frozen=True, slots=True)
class WarpRegisters:
    """Registers of one warp: some slots of a tensor."""

    memory: Storage
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
    accumulator: WarpRegisters
    left: WarpRegisters | None
    loc: Location


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


@dataclass(frozen=True, slots=True)
class Fragment:
    """The work of one instruction: the first slots of its registers, and the windows of its operands.

    `step` of k is that of a product that takes several instructions.
    """

    accumulator: int
    left: int | FragmentWindow | None
    right: FragmentWindow | None
    step: int = 0


FragmentOrder: TypeAlias = Callable[[list[Frame]], Iterator[Fragment]]


def _is_whole(frame: Frame, node: ir.Mma | ir.Do) -> bool:
    """Whether the warp is active; reports a warp of which only some lanes are."""
    active = frame.active
    if active.any() and not active.all():
        message = "only some lanes of the warp take part"
        frame.fault("inactive-lane", message, active, node)
    return bool(active.any())


# Statements of a single warp.


def _fence(compiler: StatementCompiler, node: ir.Do) -> Code:
    def run(frame: Frame) -> None:
        if not _is_whole(frame, node):
            return
        frame.group.fenced.add(frame.warp)
        for memory in frame.memories.values():
            if memory.registers is not None:
                cube_of(memory.registers.touched, frame, memory)[...] = False

    return Code(run)


def _commit(compiler: StatementCompiler, node: ir.Do) -> Code:
    def run(frame: Frame) -> None:
        if _is_whole(frame, node):
            frame.group.products[frame.warp].commit()

    return Code(run)


def _wait(compiler: StatementCompiler, node: ir.Do) -> Code:
    (most,) = operands_of(node).numbers

    def run(frame: Frame) -> None:
        if not _is_whole(frame, node):
            return
        order = frame.group.order
        for product in frame.group.products[frame.warp].complete(most):
            for part in (product.accumulator, product.left):
                if part is not None:
                    held = cube_of(part.memory.registers.held, frame, part.memory)[part.slots]
                    held[held == product.number] = 0
            place = 0, frame.worker_row, order.workers + product.channel
            order.known[place] = np.maximum(order.known[place], product.clock + 1)

    return Code(run)


# Products.


def mma(compiler: StatementCompiler, node: ir.Mma) -> Code:
    """A whole product: the fragments of a warpgroup, for each step of k."""
    row = WARPGROUP_INSTRUCTIONS[str(node.how)]
    assert node.accumulator.owners is not None
    quotient = quotient_of(node.accumulator.owners, row)
    assert quotient is not None
    m, n, k = row.shape
    steps = node.left.shape[1] // k
    in_registers = node.left.tensor.scope == ir.TILE

    def operand(side: ir.Operand, is_left: bool) -> Find:
        along = runs_along(side, is_left=is_left)
        return _window(compiler, side.tensor, side.origin, along, row, is_left, node)

    left = None if in_registers else operand(node.left, True)
    right = operand(node.right, False)

    def plan(frames: list[Frame]) -> Iterator[Fragment]:
        group = (int(frames[0].worker_row[0]) - frames[0].first) // WARPGROUP
        tasks = quotient(group)
        lines = {line: i for i, line in enumerate(dict.fromkeys(i for i, _ in tasks))}
        for step in range(steps):
            for slot, (i, j) in enumerate(tasks):
                source: int | FragmentWindow | None
                if left is None:
                    source = (lines[i] * steps + step) * row.left_fragment.slots
                else:
                    source = left(frames, i * m, step * k)
                first = slot * row.accumulator_fragment.slots
                yield Fragment(first, source, right(frames, j * n, step * k), step)

    tensors = node.accumulator, node.left.tensor if in_registers else None
    return _issue(compiler, node, row, tensors, node.accumulate, plan)


def _instruction(compiler: StatementCompiler, node: ir.Do) -> Code:
    row = WARPGROUP_INSTRUCTIONS[node.operation]
    (accumulator, left, right), (accumulate,), (left_turned, right_turned) = operands_of(node)
    in_registers = left.tensor.scope == ir.REGISTER

    def slot(address: ir.Address) -> Callable[[Frame], int]:
        place = compiler.accesses.place(address.tensor, address.indices, node)
        return lambda frame: int(np.max(place(frame)[0]))

    def window(address: ir.Address, along: str, is_left: bool) -> Find:
        return _window(compiler, address.tensor, address.indices, along, row, is_left, node)

    first = slot(accumulator)
    left_slot = slot(left) if in_registers else None
    left_window = None if in_registers else window(left, "mn" if left_turned else "k", True)
    right_window = window(right, "k" if right_turned else "mn", False)

    def plan(frames: list[Frame]) -> Iterator[Fragment]:
        source: int | FragmentWindow | None = None
        if left_slot is not None:
            source = left_slot(frames[0])
        elif left_window is not None:
            source = left_window(frames, 0, 0)
        yield Fragment(first(frames[0]), source, right_window(frames, 0, 0))

    tensors = accumulator.tensor, left.tensor if in_registers else None
    return _issue(compiler, node, row, tensors, accumulate, plan)


def _issue(
    compiler: StatementCompiler,
    node: ir.Mma | ir.Do,
    row: WarpgroupInstruction,
    tensors: tuple[ir.Tensor, ir.Tensor | None],
    accumulate: ir.Expression | None,
    plan: FragmentOrder,
) -> Code:
    condition = None if accumulate is None else compiler.expressions(accumulate)
    site = compiler.run.site(node.loc)

    def act(frames: list[Frame]) -> None:
        frames = sorted(frames, key=lambda frame: int(frame.worker_row[0]))
        first = frames[0]
        answers = [True if condition is None else condition(frame) for frame in frames]
        adds = np.concatenate([np.broadcast_to(one, (1, WARP)) for one in answers], axis=1)
        if adds.any() != adds.all():
            message = "the workers of a warpgroup don't agree on whether a product accumulates"
            first.fault("divergence", message, first.active, node)
        for fragment in plan(frames):
            if fragment.left is not None and fragment.right is not None:
                onto = bool(adds.all()) or fragment.step > 0
                _multiply(frames, node, row, tensors, fragment, onto, site)

    def steps(frame: Frame) -> Thread:
        if frame.axes or frame.width != WARP:
            raise InternalError(f"{row.name} is a statement of whole warps")
        if _is_whole(frame, node):
            key = id(node), _channel(frame)
            yield from frame.group.schedule.gather(key, frame, node.loc, act, WARPGROUP)

    return Code(steps, waits=True)


def _channel(frame: Frame) -> int:
    """The channel of the warpgroup's products."""
    number = int(frame.numbers[0]) // WARPGROUP
    return frame.group.first_channel + frame.run.product_channel + number


def _multiply(
    frames: list[Frame],
    node: ir.Mma | ir.Do,
    row: WarpgroupInstruction,
    tensors: tuple[ir.Tensor, ir.Tensor | None],
    fragment: Fragment,
    adds: bool,
    site: int,
) -> None:
    group = frames[0].group
    channel = _channel(frames[0])
    clock = group.order.tick(0, channel)
    slots = slice(fragment.accumulator, fragment.accumulator + row.accumulator_fragment.slots)
    windows = [w for w in (fragment.left, fragment.right) if isinstance(w, FragmentWindow)]
    totals, lefts = [], []
    for frame in frames:
        accumulator = WarpRegisters(memory_of(frame, tensors[0]), slots)
        left: WarpRegisters | None = None
        if tensors[1] is not None:
            assert isinstance(fragment.left, int)
            end = fragment.left + row.left_fragment.slots
            left = WarpRegisters(memory_of(frame, tensors[1]), slice(fragment.left, end))
        totals.append(_registers(frame, node, row, accumulator, adds, is_left=False))
        if left is not None:
            lefts.append(_registers(frame, node, row, left, True, is_left=True))
        number = len(group.multiplied) + 1
        product = Issued(number, row, channel, clock, accumulator, left, node.loc)
        group.multiplied.append(product)
        group.products[frame.warp].open.append(product)
        for part in (accumulator, left):
            if part is not None:
                cube_of(part.memory.registers.held, frame, part.memory)[part.slots] = number
        for window in windows:
            _check_window(frame, window, node, site)
    for window in windows:
        for entries in window.memory.entries(window.at):
            window.memory.required_shadow.multiply(entries, channel, clock, site)
    whole = gathered(np.concatenate(totals), row.accumulator_fragment)
    if not adds:
        whole = np.zeros_like(whole)
    if isinstance(fragment.left, FragmentWindow):
        a = fragment.left.values()
    else:
        a = gathered(np.concatenate(lefts), row.left_fragment)
    assert fragment.right is not None
    total = folded(row, whole, a, fragment.right.values().T)
    result = scattered(total, row.accumulator_fragment)
    for position, frame in enumerate(frames):
        memory = memory_of(frame, tensors[0])
        mine = result[position * WARP : (position + 1) * WARP]
        cube_of(memory.data, frame, memory)[slots] = mine.T[:, None, :]
        cube_of(memory.written, frame, memory)[slots] = 1
        memory.tried = False


def _registers(
    frame: Frame,
    node: ir.Mma | ir.Do,
    row: WarpgroupInstruction,
    part: WarpRegisters,
    is_read: bool,
    *,
    is_left: bool,
) -> Array:
    """A warp's registers, [worker, slot], after checking that the product may use them."""
    memory, slots = part.memory, part.slots
    registers = memory.registers
    name = memory.tensor.name
    if cube_of(registers.touched, frame, memory)[slots].any():
        message = f"registers of {name} were touched after the last wgmma.fence"
        frame.fault("missing-fence", message, frame.active, node)
    elif frame.warp not in frame.group.fenced:
        message = "there is no wgmma.fence before the first matrix product"
        frame.fault("missing-fence", message, frame.active, node)
    for held in np.unique(cube_of(registers.held, frame, memory)[slots]).tolist():
        if not held:
            continue
        other = frame.group.multiplied[held - 1]
        theirs = other.left if is_left else other.accumulator
        alike = is_left or other.row.shape == row.shape
        if theirs is None or (theirs.memory, theirs.slots) != (memory, slots) or not alike:
            message = (
                f"registers of {name} are taken while a matrix product of another shape has them"
            )
            notes = (("the product is issued here", other.loc),)
            frame.group.report("unwaited-product", message, node.loc, node, notes)
    missing = cube_of(memory.written, frame, memory)[slots] == 0
    if is_read and missing.any():
        message = f"{name} is read before it is written"
        frame.fault("uninitialized", message, missing.any(axis=0), node)
    values: Array = cube_of(memory.data, frame, memory)[slots][:, 0, :].T
    return values


PRODUCTS: Makers = {
    "wgmma.fence": _fence,
    "wgmma.commit": _commit,
    "wgmma.wait": _wait,
    **dict.fromkeys(WARPGROUP_INSTRUCTIONS, _instruction),
}
