"""Bulk copies by TMA, and proxy fences."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from taskc.backend.operands import operands_of
from taskc.backend.sim.binding import addresses_of
from taskc.backend.sim.clusters import destinations
from taskc.backend.sim.machine import Frame, active_columns
from taskc.backend.sim.mbarriers import Mbarrier, Mbarriers
from taskc.backend.sim.memory import Array, Memory
from taskc.backend.sim.operations import Operations
from taskc.backend.sim.recording import Races, memory_of
from taskc.backend.sim.shadow import SEVERAL, SITE_BITS, SITE_MASK, Lanes, latest_clocks, workers_of
from taskc.backend.sim.statements import Code
from taskc.backend.sim.statistics import elements_at, laid_out
from taskc.backend.sim.synchronization import ring_state, schedule_of
from taskc.errors import InternalError, Location
from taskc.ir import nodes as ir

# --- The order between ordinary accesses to SHARED memory and those of the asynchronous proxy ---


def check_fences(
    frame: Frame, memory: Memory, at: Array, workers: Array, node: ir.Statement, what: str
) -> None:
    """Check that the writers of the elements fenced after their ordinary stores, and that these workers know it.

    What an earlier bulk copy has written needs no fence, and leaves no trace here.
    """
    shadow, order = memory.shadow, frame.group.order
    assert shadow is not None
    order.spread()
    touched = (at[:, None] * memory.granules + np.arange(memory.granules)).reshape(-1)
    who = shadow.who[touched] & SEVERAL
    clocks = shadow.when[touched] >> SITE_BITS
    written = shadow.when[touched] != 0
    fences = frame.group.fences
    latest_of = latest_clocks(who[written], clocks[written], order)
    if latest_of is not None:  # all writers at once; one after another only to name a late one
        writers = np.flatnonzero(latest_of >= 0)
        after = [_fence_after(fences.get(w, []), latest_of[w]) for w in writers.tolist()]
        knows = order.known[0][np.ix_(workers, writers)] >= after
        if min(after, default=0) >= 0 and (knows | (workers[:, None] == writers)).all():
            return
    for writer in np.unique(who[written]).tolist():
        mine = written & (who == writer)
        latest = int(clocks[mine].max())
        for worker in np.arange(order.workers)[workers_of(writer, order)].tolist():
            later = [c for c in fences.get(worker, ()) if c > latest]
            others = workers[workers != worker]
            if later and (order.known[0, others, worker] >= min(later)).all():
                continue
            first = int(np.argmax(mine))
            site = int(shadow.when[touched[first]]) & SITE_MASK
            name = frame.name_element(memory, int(touched[first]))
            whom = frame.group.name_of(worker)
            rank, number = divmod(worker, frame.run.workers)
            block = int(frame.group.units[0]) * frame.run.cluster + rank
            frame.run.findings.add(
                "missing-fence",
                f"{name} is {what}; {whom}, who wrote it, has not executed"
                " fence.proxy.async in between",
                node.loc,
                count=int(np.count_nonzero(mine)),
                details=(("block", block), ("worker", number)),
                notes=((f"{whom} writes it here", frame.run.sites[site]),),
                where=node,
            )
            return


def _fence_after(fences: list[int], clock: int) -> int:
    """A worker's first fence, in ascending order, that is later than a clock; -1 if there is none."""
    place = bisect_right(fences, clock)
    return fences[place] if place < len(fences) else -1


# --- Bulk copies: many elements, issued by one worker -------------------------------------------


_LINE, _PIECE = 128, 16  # bytes


def task_indices(shape: tuple[int, ...]) -> list[Array]:
    """The coordinates of all tasks of a shape, row-major, each [1, tasks]."""
    grids = np.indices(shape).reshape(len(shape), -1)
    return [grid[None, :] for grid in grids]


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


_MOST_OFFSET = 255


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


def bulk_move(frame: Frame, inner: Frame, memory: Memory, at: Any, values: Any, site: int) -> None:
    """A bulk copy of a ring that still has its steps: one worker issues all of it."""
    ring = frame.run.ring_of[memory.tensor]
    counted = ring_state(frame, ring)
    shape = (1, inner.width)
    flat = np.broadcast_to(at, shape)[0]
    data = np.broadcast_to(values, shape)[0].copy()
    if inner.mask is not None:
        chosen = np.broadcast_to(inner.mask, shape)[0]
        flat, data = flat[chosen], data[chosen]
    rows = int(np.max(memory.rows))
    slot = int(flat[0] - rows) // int(np.prod(memory.shape[1:], dtype=np.int64))
    channel = counted.channel + slot
    clock = frame.group.order.tick(0, channel)
    counted.clock[slot] = clock
    counted.flying[slot] += 1
    launch(frame, memory, flat, 0, site, clock << SITE_BITS | (channel + 1))

    def arrive() -> None:
        memory.data[flat] = data
        memory.mark(flat)
        frame.run.changes += 1
        counted.flying[slot] -= 1

    schedule_of(frame).arrivals.append(arrive)


def launch(frame: Frame, memory: Memory, at: Array, column: int, site: int, state: int) -> None:
    shadow = memory.shadow
    assert shadow is not None
    for granule in range(memory.granules):
        lanes = issued(frame, at * memory.granules + granule, column, site)
        shadow.launch(lanes, state, Races(frame, memory, site))


def issued(frame: Frame, at: Array, column: int, site: int) -> Lanes:
    """An access of one worker to many elements."""
    columns = np.full(at.shape, column)
    return frame.lanes((1, frame.width), at, columns, site, False)


class BulkCopies:
    def __init__(self, operations: Operations, mbarriers: Mbarriers) -> None:
        self.mbarriers = mbarriers
        self.accesses = operations.accesses
        self.expressions = operations.expressions
        self.run = operations.run
        operations.makers.update(
            {
                "tma.load": self.load,
                "tma.load.multicast": self.load,
                "tma.load.pixels": self.load,
                "tma.store": self.store,
                "tma.commit": self.commit,
                "tma.wait": self.wait_for_stores,
                "fence.proxy.async": self.fence,
            }
        )

    def fence(self, node: ir.Do) -> Code:
        def run(frame: Frame) -> None:
            order = frame.group.order
            order.spread()
            order.clock[0, np.unique(order.agent_of[frame.worker_row])] += 1
            active = active_columns(frame)
            fences = frame.group.fences
            for worker in frame.worker_row[active].tolist():
                fences.setdefault(worker, []).append(int(order.clock[0, order.agent_of[worker]]))

        return Code(run)

    def _issuer(self, frame: Frame, node: ir.Do) -> int | None:
        """The column of the one worker that executes the statement."""
        active = active_columns(frame)
        columns = np.flatnonzero(active)
        if not columns.size:
            return None
        if columns.size > 1:
            message = f"{columns.size} workers start this; one is to"
            frame.fault("several-issuers", message, active[None], node)
        return int(columns[0])

    def _box(self, node: ir.Do, shared: ir.Address, distant: ir.Address, box: list[int]) -> Any:
        """A function that returns a box's elements: offsets in SHARED and GLOBAL memory, and the mask of those
        inside.
        """
        origins = [self.expressions.index(index) for index in distant.indices]
        shape = self.run.shapes[distant.tensor]
        if len(box) != len(shape):
            raise InternalError(f"a box of {len(box)} extents in {distant.tensor.name}")
        tasks = [index[0] for index in task_indices(tuple(box))]

        def places(frame: Frame, column: int) -> tuple[Array, Array]:
            first = [_of_column(origin(frame), column) for origin in origins]
            if len(first) != len(shape):  # one linear index
                first = [int(i) for i in np.unravel_index(first[0], shape)]
            return inside_of(shape, [o + index for o, index in zip(first, tasks, strict=True)])

        return self._elements(node, shared, distant.tensor, box, places)

    def _pixels(self, node: ir.Do, shared: ir.Address, distant: ir.Address) -> Any:
        """A function that returns the elements of a copy of pixels, counted as the hardware does."""
        _, offsets, (count, channels, *numbers) = operands_of(node)
        origins = [self.expressions.index(index) for index in (*distant.indices, *offsets)]
        shape = self.run.shapes[distant.tensor]

        def places(frame: Frame, column: int) -> tuple[Array, Array]:
            found = [_of_column(origin(frame), column) for origin in origins]
            at, problem = pixels_at(found, count, channels, numbers)
            if problem:
                issuer = np.arange(frame.width)[None, :] == column
                frame.fault("out-of-bounds", problem, issuer, node)
            return inside_of(shape, at)

        return self._elements(node, shared, distant.tensor, [count, channels], places)

    def _elements(
        self, node: ir.Do, shared: ir.Address, distant: ir.Tensor, box: list[int], places: Any
    ) -> Any:
        """A function that adds the offsets in SHARED memory to the result of `places`, for GLOBAL memory."""
        place = self.accesses.place(shared.tensor, shared.indices, node)
        shape = self.run.shapes[distant]
        shared_shape = self.run.shapes[shared.tensor]
        inside_out = None if self.run.is_flat else elements_at(shared.tensor, shared_shape)
        layout = shared.tensor.layout
        capacity = prod(shared_shape) if layout is None else layout.slots

        def elements(frame: Frame, column: int) -> tuple[Array, Array, Array]:
            start = _of_column(place(frame)[0], column)
            at = start
            if not self.run.is_flat:
                at = int(
                    laid_out(
                        shared.tensor, shared_shape, np.asarray(min(start, prod(shared_shape) - 1))
                    )
                )
            linear = at + np.arange(prod(box))
            problem = misaligned_box(shared.tensor, at, distant, shape, box)
            if problem:
                issuer = np.arange(frame.width)[None, :] == column
                frame.fault("misaligned", problem, issuer, node)
            beyond = linear >= capacity
            linear = np.where(beyond, 0, linear)
            if inside_out is not None:
                linear = inside_out[linear]
                beyond |= linear < 0
            if beyond.any():
                issuer = np.arange(frame.width)[None, :] == column
                message = (
                    f"a box of {prod(box)} elements exceeds {shared.tensor.name} at offset {{}}"
                )
                frame.fault("out-of-bounds", message, issuer, node, np.asarray(start))
                linear = np.where(beyond, 0, linear)
            return linear, *places(frame, column)

        return elements

    def load(self, node: ir.Do) -> Code:
        (shared, distant, _), values, box = operands_of(node)
        mask = None
        if node.operation == "tma.load.pixels":
            elements = self._pixels(node, shared, distant)
        else:
            elements = self._box(node, shared, distant, box)
            mask = self.expressions.index(values[0]) if values else None  # of a multicast
        barriers = self.mbarriers.named_by(node, 2)
        target, source = shared.tensor, distant.tensor
        site = self.run.site(node.loc)

        def run(frame: Frame) -> None:
            column = self._issuer(frame, node)
            if column is None:
                return
            at, flat, inside = elements(frame, column)
            memory, distant = memory_of(frame, target), memory_of(frame, source)
            data = self._global(distant)[flat]
            values = np.where(inside, data, data.dtype.type(0))
            if distant.shadow is not None and inside.any():
                lanes = issued(frame, flat[inside], column, site)
                distant.shadow.read(lanes, Races(frame, distant, site))
            named = barriers(frame)
            if not named:
                return
            own = named[0][0]
            place = at + int(np.max(memory.rows))
            if mask is None:
                self._send(frame, node, column, own, memory, place, values, site)
                return
            bits = _of_column(mask(frame), column)
            for group in destinations(frame, column, bits, node):
                barrier = self.mbarriers.counterpart(own, frame.group, group)
                there = place + (group.rank - frame.group.rank) * memory.stride
                self._send(frame, node, column, barrier, memory, there, values, site)
                if group is not frame.group:
                    frame.group.cluster.sent(group, barrier, target.name, node)

        return Code(run)

    def _send(
        self,
        frame: Frame,
        node: ir.Do,
        column: int,
        barrier: Mbarrier,
        memory: Memory,
        at: Array,
        values: Array,
        site: int,
    ) -> None:
        """Start a copy to these places, which reports its bytes to an mbarrier."""
        order = frame.group.order
        issuer = frame.worker_row[column : column + 1]
        if not self.mbarriers.is_set_up(frame, barrier, issuer, node):
            return
        clock = order.tick(0, barrier.channel)
        barrier.clock = clock
        barrier.flying.append(clock)
        check_fences(frame, memory, at, issuer, node, "overwritten by a bulk copy")
        launch(frame, memory, at, column, site, clock << SITE_BITS | (barrier.channel + 1))
        size = at.size * memory.tensor.dtype.nbytes

        def arrive() -> None:
            memory.data[at] = values
            memory.mark(at)
            frame.run.changes += 1
            barrier.flying.remove(clock)
            barrier.bytes -= size
            if barrier.bytes < 0 and barrier.is_out_of_range():
                message = f"{-barrier.bytes} more bytes have come to {barrier.name} than it expects"
                frame.run.findings.add("out-of-range", message, node.loc, where=node)
            barrier.advance(order.workers)

        schedule_of(frame).arrivals.append(arrive)

    def _global(self, memory: Memory) -> Array:
        """The elements in row-major order, whatever the tensor's layout."""
        tensor = memory.tensor
        if self.run.is_flat and tensor.layout is not None:
            return memory.data[addresses_of(tensor, memory.shape)]
        return memory.data

    def store(self, node: ir.Do) -> Code:
        (distant, shared), _, box = operands_of(node)
        elements = self._box(node, shared, distant, box)
        target, source = distant.tensor, shared.tensor
        site = self.run.site(node.loc)

        def run(frame: Frame) -> None:
            column = self._issuer(frame, node)
            if column is None:
                return
            at, flat, inside = elements(frame, column)
            memory, distant = memory_of(frame, source), memory_of(frame, target)
            at = at + int(np.max(memory.rows))
            shadow = memory.shadow
            assert shadow is not None
            lanes = issued(frame, at * memory.granules, column, site)
            wrong = shadow.in_flight(lanes)
            if wrong is not None and shadow.flight is not None:
                sites = shadow.flight.site[lanes.at[wrong]]
                Races(frame, memory, site).unwaited("copies", lanes, wrong, sites)
            missing = memory.lacks(at) if not memory.complete else np.zeros(at.shape, np.bool_)
            if missing.any():
                name = frame.name_element(memory, int(at[np.argmax(missing)]) * memory.granules)
                message = f"{name} is stored before it is written"
                frame.fault("uninitialized", message, np.ones((1, 1), np.bool_), node)
            shadow.read(lanes, Races(frame, memory, site))
            issuer = frame.worker_row[column : column + 1]
            check_fences(frame, memory, at, issuer, node, "copied asynchronously")
            if shadow.departing is None:
                shadow.departing = np.zeros(shadow.size, np.int64)
            for granule in range(memory.granules):
                shadow.departing[at * memory.granules + granule] = site + 1
            outgoing = frame.group.outgoing.setdefault(int(frame.worker_row[column]), Outgoing())
            outgoing.open.append((memory, at, site, node.loc))
            if target.role == "out":
                self.accesses.check_once(frame, distant, flat[inside], node)
            if self.run.is_flat and target.layout is not None:
                flat = laid_out(target, distant.shape, flat)
            distant.data[flat[inside]] = memory.data[at][inside]
            distant.mark(flat[inside])
            frame.run.changes += 1
            if distant.shadow is not None and inside.any():
                lanes = issued(frame, flat[inside], column, site)
                distant.shadow.write(lanes, Races(frame, distant, site))

        return Code(run)

    def commit(self, node: ir.Do) -> Code:
        def run(frame: Frame) -> None:
            for outgoing in self._of_active(frame):
                outgoing.closed.append(outgoing.open)
                outgoing.open = []

        return Code(run)

    def wait_for_stores(self, node: ir.Do) -> Code:
        (most,) = operands_of(node).numbers

        def run(frame: Frame) -> None:
            for outgoing in self._of_active(frame):
                done = len(outgoing.closed) - most
                for group in outgoing.closed[: max(done, 0)]:
                    for memory, at, site, _ in group:
                        shadow = memory.shadow
                        assert shadow is not None
                        assert shadow.departing is not None
                        column = int(np.flatnonzero(frame.worker_row == outgoing.worker)[0])
                        for granule in range(memory.granules):
                            elements = at * memory.granules + granule
                            shadow.departing[elements] = 0
                            shadow.note_read(issued(frame, elements, column, site))
                outgoing.closed = outgoing.closed[max(done, 0) :]

        return Code(run)

    def _of_active(self, frame: Frame) -> list[Outgoing]:
        active = active_columns(frame)
        result = []
        for worker in frame.worker_row[active].tolist():
            outgoing = frame.group.outgoing.setdefault(worker, Outgoing())
            outgoing.worker = worker
            result.append(outgoing)
        return result


class Outgoing:
    """The bulk stores of one worker, in groups."""

    def __init__(self) -> None:
        self.worker = 0
        self.open: list[tuple[Memory, Array, int, Location]] = []
        self.closed: list[list[tuple[Memory, Array, int, Location]]] = []

    def left(self) -> list[tuple[Memory, Array, int, Location]]:
        return [*self.open, *(store for group in self.closed for store in group)]


def _of_column(value: Any, column: int) -> int:
    if not isinstance(value, np.ndarray):
        return int(value)
    return int(value[0, column if value.shape[-1] > 1 else 0])
