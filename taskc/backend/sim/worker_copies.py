"""cp.async: copies that each worker issues for itself, in groups that it closes and waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskc.backend.operands import operands_of
from taskc.backend.sim.accesses import Accesses, check_vector
from taskc.backend.sim.expressions import Expressions
from taskc.backend.sim.machine import Frame, Run
from taskc.backend.sim.memory import Array, Memory
from taskc.backend.sim.recording import Races, memory_of, picked, selection
from taskc.backend.sim.statements import Code
from taskc.errors import InternalError
from taskc.ir import nodes as ir


class Copies:
    """The asynchronous copies of a frame's workers, in groups."""

    def __init__(self, frame: Frame) -> None:
        self.closed = np.zeros((frame.count, frame.width), np.int64)  # groups, for each worker
        self.pending: list[Copy] = []


@dataclass(slots=True, eq=False)
class Copy:
    """Elements under way: their addresses and values, the issuing workers, and the groups of these.

    `tag` is the ring and the step that the group belongs to, once it is closed.
    """

    memory: Memory
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


class WorkerCopies:
    def __init__(self, accesses: Accesses, expressions: Expressions, run: Run) -> None:
        self.accesses = accesses
        self.expressions = expressions
        self.run = run

    def copy(self, node: ir.Do) -> Code:
        (target, source), (predicate,), (count,) = operands_of(node)
        loc, site = node.loc, self.run.site(node.loc)
        places, reads = [], []
        for element in range(count):
            places.append(self.accesses.place(target.tensor, _advanced(target, element), node))
            read = ir.Read(source.tensor, _advanced(source, element), loc=loc)
            reads.append(self.accesses.read(read, "copy"))
        allowed = self.expressions(predicate)
        width = count * target.tensor.dtype.nbytes
        if width not in (4, 8, 16):
            raise InternalError(f"cp.async copies 4, 8 or 16 bytes, not {width}")

        def run(frame: Frame) -> None:
            memory = memory_of(frame, target.tensor)
            chosen = allowed(frame)
            outer = frame.mask
            inner: Any = None
            if isinstance(chosen, np.ndarray):
                inner = chosen if outer is None else chosen & outer
            some = np.count_nonzero(inner) if inner is not None else bool(chosen)
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
                    check_vector(frame, memory, at + memory.rows, outer, node, True)
                    frame.vector = 1
                issue(frame, memory, at + memory.rows, values, illegal, site)

        return Code(run)

    def commit(self, node: ir.Do) -> Code:
        return Code(lambda frame: close_group(frame, None))

    def wait(self, node: ir.Do) -> Code:
        (most,) = operands_of(node).numbers

        def run(frame: Frame) -> None:
            last = copies_of(frame).closed - most
            wait_for(frame, lambda copy: copy.group < last[copy.block, copy.column])

        return Code(run)


def issue(frame: Frame, memory: Memory, at: Any, values: Any, illegal: Any, site: int) -> None:
    shape, columns = frame.full, np.arange(frame.width)
    chosen, flat, data, block, column = picked(
        shape, selection(frame, illegal), at, values, frame.block_row, columns
    )
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


def _advanced(address: ir.Address, element: int) -> tuple[ir.Expression, ...]:
    """The indices of the element so many places later."""
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
    """Close the active workers' open groups."""
    copies = copies_of(frame)
    for copy in copies.pending:
        if copy.tag is None:
            copy.tag = tag
    if frame.mask is None:
        copies.closed += 1
    else:
        copies.closed += np.broadcast_to(frame.mask, copies.closed.shape)


def wait_for(frame: Frame, arrived: Callable[[Copy], Any]) -> None:
    """Complete the copies of the active workers for which `arrived` holds."""
    copies = copies_of(frame)
    active = np.ones((frame.count, frame.width), np.bool_)
    if frame.mask is not None:
        active = np.broadcast_to(frame.mask, active.shape)
    for copy in copies.pending:
        _land(frame, copy, arrived(copy) & active[copy.block, copy.column])
    copies.pending = [copy for copy in copies.pending if copy.at.size]


def _land(frame: Frame, copy: Copy, arrived: Array) -> None:
    """Write elements that have arrived, for the workers that issued their copies."""
    if not np.count_nonzero(arrived):
        return
    memory = copy.memory
    at, column = copy.at[arrived], copy.column[arrived]
    memory.data[at] = copy.values[arrived]
    memory.mark(at)
    frame.run.changes += 1
    shadow = memory.shadow
    assert shadow is not None
    shape = (frame.count, frame.width)
    lane = copy.block[arrived] * frame.width + column
    for granule in range(memory.granules):
        shadow.note_write(
            frame.lanes(shape, at * memory.granules + granule, lane, copy.site, False)
        )
    pending = ~arrived
    copy.at, copy.values, copy.block, copy.column, copy.group = (
        x[pending] for x in (copy.at, copy.values, copy.block, copy.column, copy.group)
    )
