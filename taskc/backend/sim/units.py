"""Warps that run by themselves, in units: a unit is a block, or the blocks of a cluster.

Units run one after another. Where the program has barriers of the grid, each runs until all its warps have
come to one, and goes on when all units have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from taskc.backend.sim.binding import typed
from taskc.backend.sim.clusters import Cluster
from taskc.backend.sim.machine import Frame, Group, Run
from taskc.backend.sim.memory import Arena, Array
from taskc.backend.sim.products import report_unfinished
from taskc.backend.sim.schedule import Schedule
from taskc.backend.sim.shadow import Order, join_all
from taskc.backend.sim.statements import Code
from taskc.errors import CompileError
from taskc.ir import nodes as ir
from taskc.ir.target import WARP


class Unit:
    """Blocks that share one order and one schedule."""

    def __init__(
        self,
        run: Run,
        number: int,
        order: Order,
        arena: Arena | None,
        seed: int | None,
    ) -> None:
        size = run.cluster
        self.order = order
        self.cluster = Cluster(run, order, arena) if size > 1 else None
        self.groups = [
            Group(run, np.array([number * size + rank]), arena, order, rank, self.cluster)
            for rank in range(size)
        ]
        if self.cluster is not None:
            self.cluster.admit(self.groups)
        self.schedule = Schedule(
            self.groups[0], None if seed is None else seed * 1_000_003 + number
        )
        for group in self.groups:
            group.schedule = self.schedule

    def begin(
        self, bound: dict[ir.Variable, Any], warps: Sequence[Array], code: Code, kernel: ir.Kernel
    ) -> None:
        frames: list[Frame] = []
        for group in self.groups:
            everyone = slice(group.base, group.base + group.run.workers)
            for workers in warps:
                frame = Frame(group, group.base + workers, everyone, len(frames))
                frame.env.update(bound)
                frame.env[kernel.worker] = typed(workers[None, :], kernel.worker)
                frame.env[kernel.block] = typed(group.blocks[:, None], kernel.block)
                frames.append(frame)
        self.schedule.begin(frames, code.steps)

    def go_on(self) -> bool:
        """Run until it ends, or waits for other units; False in a deadlock."""
        is_able = self.schedule.go_on()
        if is_able and self.schedule.threads:
            return True
        if self.cluster is not None:
            self.cluster.end(is_able)
        if is_able:
            for group in self.groups:
                report_unfinished(group)
                _check_outgoing(group)
        return is_able


def execute(
    run: Run,
    code: Code,
    count: int,
    *,
    nodes: Sequence[object],
    bound: dict[ir.Variable, Any],
    channels: int,
    arena: Callable[[int], Arena | None],
    seed: int | None,
    on_blocks: Callable[[int, int], None],
) -> None:
    """Run all blocks.

    nodes     of the program
    channels  those of one block
    arena     the shared memory of so many blocks
    """
    size = run.cluster
    if count % size:
        raise CompileError(f"{count} blocks aren't a multiple of a cluster's {size}")
    warps = _warps(run, nodes)
    agent_of = np.repeat(np.arange(len(warps) * size), [len(warp) for warp in warps] * size)

    def units() -> Iterator[Unit]:
        for number in range(count // size):
            order = Order(1, size * run.workers, False, agent_of, channels * size, size)
            unit = Unit(run, number, order, arena(size), seed)
            unit.begin(bound, warps, code, run.kernel)
            yield unit

    if not run.waits_for_grid:
        for number, unit in enumerate(units(), start=1):
            if not unit.go_on():
                run.aborted = True
                return
            on_blocks(number * size, count)
        return
    together = list(units())
    while together:
        if not _all_go_on(run, together):
            run.aborted = True
            return
        waiting = [unit for unit in together if unit.schedule.threads]
        if waiting and _diverges(waiting, len(together)):
            run.aborted = True
            return
        join_all([unit.order for unit in waiting])
        run.grid_barriers += 1
        together = waiting


def _all_go_on(run: Run, together: list[Unit]) -> bool:
    """Run each unit until it ends or reaches a barrier of the grid; units that wait for updates take turns."""
    pending = together
    while pending:
        before = run.changes
        if not all(unit.go_on() for unit in pending):
            return False
        pending = [unit for unit in pending if unit.schedule.spins]
        if pending and run.changes == before:
            pending[0].schedule.report_stuck()
            return False
    return True


def _diverges(waiting: list[Unit], count: int) -> bool:
    """Report that only some units have reached a barrier of the grid, or that they reached different ones."""
    first = waiting[0]
    others = [
        unit for unit in waiting if unit.schedule.grid_barrier is not first.schedule.grid_barrier
    ]
    if len(waiting) == count and not others:
        return False
    site = first.schedule.grid_barrier
    assert site is not None
    why = "others come to another one" if others else "others have ended"
    notes = tuple(
        ("the other barrier is here", unit.schedule.grid_barrier.loc)
        for unit in others[:1]
        if unit.schedule.grid_barrier is not None
    )
    message = f"some blocks come to this barrier of the grid, but {why}"
    first.groups[0].report("barrier-divergence", message, site.loc, site, notes)
    return True


def _warps(run: Run, nodes: Sequence[object]) -> list[Array]:
    """The workers of each warp of a block; roles cut warps short."""
    cuts = {0, run.workers}
    for node in nodes:
        if isinstance(node, ir.Roles):
            for role in node.roles:
                cuts |= {role.first, role.first + role.workers}
    return [
        np.arange(first, min(first + WARP, stop))
        for start, stop in pairwise(sorted(cuts))
        for first in range(start, stop, WARP)
    ]


def _check_outgoing(group: Group) -> None:
    for outgoing in group.outgoing.values():
        for memory, _, _, loc in outgoing.left():
            message = f"the block ends while a bulk store still reads {memory.tensor.name}"
            group.report("unwaited-copy", message, loc, memory)
