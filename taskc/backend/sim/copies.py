"""Asynchronous copies: cp.async, by each worker, and bulk copies by TMA."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from taskc.backend.operations import operands_of
from taskc.backend.sim.accesses import check_vector
from taskc.backend.sim.asynchronous import (
    Mbarrier,
    check_fences,
    counterpart,
    is_set_up,
    issued,
    mbarriers_of,
)
from taskc.backend.sim.clusters import destinations
from taskc.backend.sim.machine import Frame, IssuedGroups, both
from taskc.backend.sim.memory import Array, Storage, elements_at, laid_out
from taskc.backend.sim.recording import memory_of, picked, selection
from taskc.backend.sim.statements import Code, Makers, StatementCompiler
from taskc.dataclass import dataclass
from taskc.errors import InternalError, Location
from taskc.ir import nodes as ir

# --- cp.async: copies that each worker issues for itself, in groups that it closes and waits for -


class WorkerCopies:
    """The asynchronous copies of a frame's workers, in groups."""

    def __init__(self, frame: Frame) -> None:
        self.closed = np.zeros((frame.count, frame.width), np.int64)  # groups, for each worker
        self.pending: list[WorkerCopy] = []


@dataclass(slots=True, eq=False)
class WorkerCopy:
    """Elements under way: their addresses and values, the issuing workers, and the groups of these.

    `tag` is the ring and the step that the group belongs to, once it is closed.
    """

    memory: Storage
    at: Array
    values: Array
    block: Array
    column: Array
    group: Array
    site: int
    tag: tuple[ir.Ring, int] | None = None

    def is_of(self, ring: ir.Ring, step: int) -> bool:
        """Whether its group belongs to a ring, and to a step up to this one."""
        return self.tag is not None and self.tag[0] is ring and self.tag[1] <= step

    def land(self, frame: Frame, arrived: Array) -> None:
        """Write elements that have arrived, for the workers that issued their copies."""
        if not np.count_nonzero(arrived):
            return
        memory, at = self.memory, self.at[arrived]
        memory.put(at, self.values[arrived])
        frame.run.changes += 1
        lane = self.block[arrived] * frame.width + self.column[arrived]
        for lanes in frame.lanes(memory, (frame.count, frame.width), at, lane, self.site):
            memory.required_shadow.note_write(lanes)
        pending = ~arrived
        self.at, self.values, self.block, self.column, self.group = (
            x[pending] for x in (self.at, self.values, self.block, self.column, self.group)
        )


def copies_of(frame: Frame) -> WorkerCopies:
    if frame.copies is None:
        frame.copies = WorkerCopies(frame)
    copies: WorkerCopies = frame.copies
    return copies


def issue(frame: Frame, memory: Storage, at: Any, values: Any, illegal: Any, site: int) -> None:
    """Start a copy of an element by each active worker."""
    shape, columns = frame.full, np.arange(frame.width)
    chosen, flat, data, block, column = picked(
        shape, selection(frame, illegal), at, values, frame.block_row, columns
    )
    if not flat.size:
        return
    copies = copies_of(frame)
    group = copies.closed[block, column]
    copies.pending.append(WorkerCopy(memory, flat, data, block, column, group, site))
    for lanes in frame.lanes(memory, shape, flat, chosen, site):
        memory.required_shadow.launch(lanes, -1)


def close_group(frame: Frame, tag: tuple[ir.Ring, int] | None = None) -> None:
    """Close the active workers' open groups."""
    copies = copies_of(frame)
    for copy in copies.pending:
        if copy.tag is None:
            copy.tag = tag
    copies.closed += frame.active


def wait_for(frame: Frame, arrived: Callable[[WorkerCopy], Any]) -> None:
    """Complete the copies of the active workers for which `arrived` holds."""
    copies, active = copies_of(frame), frame.active
    for copy in copies.pending:
        copy.land(frame, arrived(copy) & active[copy.block, copy.column])
    copies.pending = [copy for copy in copies.pending if copy.at.size]


def _copy_element(compiler: StatementCompiler, node: ir.Do) -> Code:
    (target, source), (predicate,), (count,) = operands_of(node)
    accesses, site = compiler.accesses, compiler.run.site(node.loc)
    places, reads = [], []
    for element in range(count):
        places.append(accesses.place(target.tensor, _advanced(target, element), node))
        read = ir.Read(source.tensor, _advanced(source, element), loc=node.loc)
        reads.append(accesses.read(read, "copy"))
    allowed = compiler.expressions(predicate)
    width = count * target.tensor.dtype.nbytes
    if width not in (4, 8, 16):
        raise InternalError(f"cp.async copies 4, 8 or 16 bytes, not {width}")

    def run(frame: Frame) -> None:
        memory = memory_of(frame, target.tensor)
        zero: Any = memory.data.dtype.type(0)
        chosen = allowed(frame)
        outer = frame.mask
        inner: Any = both(outer, chosen) if isinstance(chosen, np.ndarray) else None
        some = np.count_nonzero(inner) if inner is not None else bool(chosen)
        for element, (place, read) in enumerate(zip(places, reads, strict=True)):
            values = zero
            if some:
                frame.mask = outer if inner is None else inner
                frame.vector = 0 if element else count
                values = read(frame)
                frame.mask, frame.vector = outer, 1
                if inner is not None:
                    values = np.where(chosen, values, zero)
            at, illegal = place(frame)
            if not element and count > 1:
                frame.vector = count
                check_vector(frame, memory, at + memory.rows, outer, node, True)
                frame.vector = 1
            issue(frame, memory, at + memory.rows, values, illegal, site)

    return Code(run)


def _advanced(address: ir.Address, element: int) -> tuple[ir.Expression, ...]:
    """The indices of the element so many places later."""
    *outer, last = address.indices
    if element == 0:
        return address.indices
    return (*outer, ir.Binary("+", last, ir.Constant(element, last.dtype)))


def _commit_copies(compiler: StatementCompiler, node: ir.Do) -> Code:
    return Code(close_group)


def _wait_for_copies(compiler: StatementCompiler, node: ir.Do) -> Code:
    (most,) = operands_of(node).numbers

    def run(frame: Frame) -> None:
        last = copies_of(frame).closed - most
        wait_for(frame, lambda copy: copy.group < last[copy.block, copy.column])

    return Code(run)


WORKER_COPIES: Makers = {
    "cp.async": _copy_element,
    "cp.async.commit": _commit_copies,
    "cp.async.wait": _wait_for_copies,
}


# --- Bulk copies by TMA: boxes of many elements, issued by one worker ---------------------------


_LINE, _PIECE = 128, 16  # bytes
_MOST_OFFSET = 255

Boxed: TypeAlias = Callable[[Frame, int], "tuple[Array, Array, Array]"]
"""The elements of a copy that a column issues: offsets in SHARED and GLOBAL memory, and the mask of those inside."""

Placed: TypeAlias = Callable[[Frame, int], "tuple[Array, Array]"]
"""The offsets in GLOBAL memory, and that mask."""


class BulkStore(NamedTuple):
    """Elements of SHARED memory that a bulk store may still read."""

    memory: Storage
    at: Array
    site: int
    loc: Location


def task_indices(shape: tuple[int, ...]) -> list[Array]:
    """The coordinates of all tasks of a shape, row-major, each [1, tasks]."""
    grids = np.indices(shape).reshape(len(shape), -1)
    return [grid[None, :] for grid in grids]


# --- The elements of a copy ----------------------------------------------------------------------


def misaligned_box(
    shared: ir.Tensor,
    first: int,
    distant: ir.Tensor,
    shape: tuple[int, ...],
    box: Sequence[int],
) -> str:
    """The hardware's complaint about a box: rows are copied in pieces of 16 bytes, to whole lines of 128.

    first  where the box begins in shared memory, in elements
    """
    at = first * shared.dtype.nbytes + (shared.offset or 0)
    size = distant.dtype.nbytes
    row = box[-1] * size
    pitches = [prod(shape[dimension:]) * size for dimension in range(1, len(shape))]
    if at % _LINE:
        return f"a bulk copy is at a multiple of {_LINE} bytes of shared memory, and this at {at}"
    if row % _PIECE:
        return f"the rows of a bulk copy are multiples of {_PIECE} bytes, and these {row}"
    if distant.layout is None and any(pitch % _PIECE for pitch in pitches):
        return f"rows of {distant.name} are {pitches[-1]} bytes long, which isn't a multiple of {_PIECE}"
    return ""


def inside_of(shape: tuple[int, ...], at: Sequence[Array]) -> tuple[Array, Array]:
    """Row-major numbers of elements, 0 for those outside of a shape; and the mask of those inside."""
    inside = np.ones(at[0].shape, np.bool_)
    flat = np.zeros(at[0].shape, np.int64)
    for position, extent in zip(at, shape, strict=True):
        inside &= (position >= 0) & (position < extent)
        flat = flat * extent + position
    return np.where(inside, flat, 0), inside


def pixels_at(
    found: Sequence[int], count: int, channels: int, numbers: Sequence[int]
) -> tuple[list[Array], str]:
    """The indices of the pixels that the hardware counts for a copy, and a message if it can't.

    found    where the first filter begins, and the tap's offsets in it
    numbers  the numbers of tma.load.pixels after `count` and `channels`
    """
    image, row, column, channel, *offsets = found
    rows, columns, row_stride, column_stride, above, left = numbers
    i, far = divmod(row + above, row_stride)
    j, wide = divmod(column + left, column_stride)
    problem = ""
    if far or wide or not (0 <= i < rows and 0 <= j < columns):
        problem = f"no filter begins in row {row} and column {column}"
    elif not all(0 <= offset <= _MOST_OFFSET for offset in offsets):
        problem = (
            f"a tap is up to {_MOST_OFFSET} rows and columns from its filter's first: {offsets}"
        )
    pixel, q = (index[0] for index in task_indices((count, channels)))
    number = pixel + ((image * rows + i) * columns + j)
    at = [
        number // (rows * columns),
        number // columns % rows * row_stride - above + offsets[0],
        number % columns * column_stride - left + offsets[1],
        channel + q,
    ]
    return at, problem


def _box(
    compiler: StatementCompiler,
    node: ir.Do,
    shared: ir.Address,
    distant: ir.Address,
    box: list[int],
) -> Boxed:
    origins = [compiler.expressions.index(index) for index in distant.indices]
    shape = compiler.run.shapes[distant.tensor]
    if len(box) != len(shape):
        raise InternalError(f"a box of {len(box)} extents in {distant.tensor.name}")
    tasks = [index[0] for index in task_indices(tuple(box))]

    def places(frame: Frame, column: int) -> tuple[Array, Array]:
        first = [_of_column(origin(frame), column) for origin in origins]
        if len(first) != len(shape):  # one linear index
            first = [int(i) for i in np.unravel_index(first[0], shape)]
        return inside_of(shape, [o + index for o, index in zip(first, tasks, strict=True)])

    return _elements(compiler, node, shared, distant.tensor, box, places)


def _pixels(
    compiler: StatementCompiler, node: ir.Do, shared: ir.Address, distant: ir.Address
) -> Boxed:
    """The elements of a copy of pixels, counted as the hardware does."""
    _, offsets, (count, channels, *numbers) = operands_of(node)
    origins = [compiler.expressions.index(index) for index in (*distant.indices, *offsets)]
    shape = compiler.run.shapes[distant.tensor]

    def places(frame: Frame, column: int) -> tuple[Array, Array]:
        found = [_of_column(origin(frame), column) for origin in origins]
        at, problem = pixels_at(found, count, channels, numbers)
        if problem:
            frame.fault("out-of-bounds", problem, frame.only(frame.worker_row[column]), node)
        return inside_of(shape, at)

    return _elements(compiler, node, shared, distant.tensor, [count, channels], places)


def _elements(
    compiler: StatementCompiler,
    node: ir.Do,
    shared: ir.Address,
    distant: ir.Tensor,
    box: list[int],
    places: Placed,
) -> Boxed:
    """Add the offsets in SHARED memory to those in GLOBAL memory."""
    run, tensor = compiler.run, shared.tensor
    place = compiler.accesses.place(tensor, shared.indices, node)
    shape, shared_shape = run.shapes[distant], run.shapes[tensor]
    inside_out = None if run.is_flat else elements_at(tensor, shared_shape)
    capacity = prod(shared_shape) if tensor.layout is None else tensor.layout.slots

    def elements(frame: Frame, column: int) -> tuple[Array, Array, Array]:
        at = start = _of_column(place(frame)[0], column)
        if not run.is_flat:
            first = np.asarray(min(start, prod(shared_shape) - 1))
            at = int(laid_out(tensor, shared_shape, first))
        linear = at + np.arange(prod(box))
        problem = misaligned_box(tensor, at, distant, shape, box)
        if problem:
            frame.fault("misaligned", problem, frame.only(frame.worker_row[column]), node)
        beyond = linear >= capacity
        linear = np.where(beyond, 0, linear)
        if inside_out is not None:
            linear = inside_out[linear]
            beyond |= linear < 0
        if beyond.any():
            message = f"a box of {prod(box)} elements exceeds {tensor.name} at offset {{}}"
            issuer = frame.only(frame.worker_row[column])
            frame.fault("out-of-bounds", message, issuer, node, np.asarray(start))
            linear = np.where(beyond, 0, linear)
        return linear, *places(frame, column)

    return elements


def _of_column(value: Any, column: int) -> int:
    if not isinstance(value, np.ndarray):
        return int(value)
    return int(value[0, column if value.shape[-1] > 1 else 0])


def _issuer(frame: Frame, node: ir.Do) -> int | None:
    """The column of the one worker that executes the statement."""
    columns = np.flatnonzero(frame.active[0])
    if not columns.size:
        return None
    if columns.size > 1:
        message = f"{columns.size} workers start this; one is to"
        frame.fault("several-issuers", message, frame.active, node)
    return int(columns[0])


# --- The operations ------------------------------------------------------------------------------


def _load(compiler: StatementCompiler, node: ir.Do) -> Code:
    (shared, distant, _), values, box = operands_of(node)
    mask = None
    if node.operation == "tma.load.pixels":
        elements = _pixels(compiler, node, shared, distant)
    else:
        elements = _box(compiler, node, shared, distant, box)
        mask = compiler.expressions.index(values[0]) if values else None  # of a multicast
    barriers = mbarriers_of(compiler, node, 2)
    target, source = shared.tensor, distant.tensor
    site = compiler.run.site(node.loc)

    def run(frame: Frame) -> None:
        column = _issuer(frame, node)
        if column is None:
            return
        at, flat, inside = elements(frame, column)
        memory, distant = memory_of(frame, target), memory_of(frame, source)
        data = distant.data[frame.run.places(source, distant.shape)][flat]
        values = np.where(inside, data, data.dtype.type(0))
        if distant.shadow is not None and inside.any():
            for lanes in issued(frame, distant, flat[inside], column, site):
                distant.shadow.read(lanes)
        named = barriers(frame)
        if not named:
            return
        barrier = named[0][0]
        place = at + int(np.max(memory.rows))
        if mask is None:
            _send(frame, node, column, barrier, memory, place, values, site)
            return
        bits = _of_column(mask(frame), column)
        for group in destinations(frame, column, bits, node):
            other = counterpart(barrier, frame.group, group)
            there = place + (group.rank - frame.group.rank) * memory.stride
            _send(frame, node, column, other, memory, there, values, site)
            if group is not frame.group:
                frame.group.cluster.sent(group, other, target.name, node)

    return Code(run)


def _send(
    frame: Frame,
    node: ir.Do,
    column: int,
    barrier: Mbarrier,
    memory: Storage,
    at: Array,
    values: Array,
    site: int,
) -> None:
    """Start a copy to these places, which reports its bytes to an mbarrier."""
    issuer = frame.worker_row[column : column + 1]
    if not is_set_up(frame, barrier, issuer, node):
        return
    check_fences(frame, memory, at, issuer, node, "overwritten by a bulk copy")

    def arrived() -> None:
        barrier.bytes -= at.size * memory.tensor.dtype.nbytes
        if barrier.bytes < 0 and barrier.is_out_of_range:
            message = f"{-barrier.bytes} more bytes have come to {barrier.name} than it expects"
            frame.run.findings.add("out-of-range", message, node.loc, where=node)
        barrier.advance(frame.group.order.workers)

    barrier.channel.send(frame, memory, at, values, column, site, arrived)


def _store(compiler: StatementCompiler, node: ir.Do) -> Code:
    (distant, shared), _, box = operands_of(node)
    elements = _box(compiler, node, shared, distant, box)
    target, source = distant.tensor, shared.tensor
    site = compiler.run.site(node.loc)

    def run(frame: Frame) -> None:
        column = _issuer(frame, node)
        if column is None:
            return
        at, flat, inside = elements(frame, column)
        memory, distant = memory_of(frame, source), memory_of(frame, target)
        at = at + int(np.max(memory.rows))
        _read(frame, node, memory, at, column, site)
        worker = int(frame.worker_row[column])
        frame.group.outgoing[worker].open.append(BulkStore(memory, at, site, node.loc))
        if target.role == "out":
            compiler.accesses.check_once(frame, distant, flat[inside], node)
        if frame.run.is_flat and target.layout is not None:
            flat = laid_out(target, distant.shape, flat)
        distant.put(flat[inside], memory.data[at][inside])
        frame.run.changes += 1
        if distant.shadow is not None and inside.any():
            for lanes in issued(frame, distant, flat[inside], column, site):
                distant.shadow.write(lanes)

    return Code(run)


def _read(frame: Frame, node: ir.Do, memory: Storage, at: Array, column: int, site: int) -> None:
    """Check that a bulk store may read elements, and mark them until it has."""
    shadow = memory.required_shadow
    lanes = next(issued(frame, memory, at, column, site))
    if shadow.flight is not None:
        shadow.flight.check(lanes, "copies")
    missing = memory.lacks(at) if not memory.complete else np.zeros(at.shape, np.bool_)
    if missing.any():
        name = frame.name_element(memory, int(at[np.argmax(missing)]) * memory.granules)
        frame.fault("uninitialized", f"{name} is stored before it is written", None, node)
    shadow.read(lanes)
    issuer = frame.worker_row[column : column + 1]
    check_fences(frame, memory, at, issuer, node, "copied asynchronously")
    for lanes in issued(frame, memory, at, column, site):
        shadow.depart(lanes)


def _commit_stores(compiler: StatementCompiler, node: ir.Do) -> Code:
    def run(frame: Frame) -> None:
        for _, stores in _of_active(frame):
            stores.commit()

    return Code(run)


def _wait_for_stores(compiler: StatementCompiler, node: ir.Do) -> Code:
    (most,) = operands_of(node).numbers

    def run(frame: Frame) -> None:
        for column, stores in _of_active(frame):
            for memory, at, site, _ in stores.complete(most):
                shadow = memory.required_shadow
                assert shadow.departing is not None
                for lanes in issued(frame, memory, at, column, site):
                    shadow.departing.state[lanes.at] = 0
                    shadow.note_read(lanes)

    return Code(run)


def _of_active(frame: Frame) -> Iterator[tuple[int, IssuedGroups]]:
    """The columns of the active workers, and their bulk stores."""
    for column in np.flatnonzero(frame.active[0]).tolist():
        yield column, frame.group.outgoing[int(frame.worker_row[column])]


def _fence(compiler: StatementCompiler, node: ir.Do) -> Code:
    def run(frame: Frame) -> None:
        order = frame.group.order
        order.spread()
        order.clock[0, np.unique(order.agent_of[frame.worker_row])] += 1
        for worker in frame.worker_row[frame.active[0]].tolist():
            clock = int(order.clock[0, order.agent_of[worker]])
            frame.group.fences.setdefault(worker, []).append(clock)

    return Code(run)


BULK_COPIES: Makers = {
    "tma.load": _load,
    "tma.load.multicast": _load,
    "tma.load.pixels": _load,
    "tma.store": _store,
    "tma.commit": _commit_stores,
    "tma.wait": _wait_for_stores,
    "fence.proxy.async": _fence,
}
