"""The simulator's entry: binds arguments, runs all blocks, reports.

Warps that run by themselves, in units: a unit is a block, or the blocks of a cluster.

Units run one after another. Where the program has barriers of the grid, each runs until all its warps have
come to one, and goes on when all units have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from taskc.backend.sim import analysis
from taskc.backend.sim.accesses import Accesses
from taskc.backend.sim.analysis import watched
from taskc.backend.sim.asynchronous import BulkCopies
from taskc.backend.sim.binding import (
    bind_arguments,
    known_shape,
    report,
    shared_end,
    store_results,
    typed,
)
from taskc.backend.sim.breakpoints import Breakpoints, Chosen, Stop
from taskc.backend.sim.clusters import Cluster, Clusters
from taskc.backend.sim.collective import Collectives
from taskc.backend.sim.expressions import Expressions
from taskc.backend.sim.loops import Loops
from taskc.backend.sim.machine import Frame, Group, Run
from taskc.backend.sim.mbarriers import Mbarriers
from taskc.backend.sim.memory import Arena, Array
from taskc.backend.sim.operations import Operations
from taskc.backend.sim.products import Products, registers_of_products, report_unfinished
from taskc.backend.sim.report import Enough, Findings, Report
from taskc.backend.sim.schedule import Schedule
from taskc.backend.sim.shadow import Order, Shadow, join_all
from taskc.backend.sim.statements import Code, Statements, constant_of, grid_tiles
from taskc.backend.sim.synchronization import RegisterPools, Rings, Synchronization
from taskc.errors import CompileError
from taskc.ir import nodes as ir
from taskc.ir.code_size import deeply
from taskc.ir.operations import OPERATIONS
from taskc.ir.rewrite import walk_statements
from taskc.ir.target import WARP, WARPGROUP, is_asynchronous


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


_LANES_AT_ONCE = 1 << 18
_CLOCKS_AT_ONCE = 1 << 23


@deeply
def run(
    kernel: ir.Kernel,
    arguments: Sequence[Any],
    *,
    dimensions: Mapping[ir.Variable, int] | None = None,
    seed: int | None = None,
    statistics: bool = False,
    stop_at: int = 20,
    until_error: bool = False,
    shared_limit: int | None = None,
    on_print: Callable[[str], None] | None = None,
    stop: Chosen = None,
    on_stop: Callable[[Stop], object] | None = None,
    on_blocks: Callable[[int, int], None] = lambda done, count: None,
) -> Report:
    """Execute a kernel of any stage on NumPy arrays, in place, and report its errors.

    arguments     one for each parameter: arrays of the storage type, and numbers
    dimensions    those that no argument's shape tells, and the kernel's processors, if not the target's number
    seed          of the schedule, where warps run by themselves; forces that form
    statistics    measure how each access meets the memory: `Report.accesses`, and warnings
    stop_at       how many findings are kept
    until_error   the run ends where it finds the first error, whatever is in the arrays then
    shared_limit  bytes of shared memory that a block may have
    on_print      is given each line that the kernel prints; the default drops them
    stop          whose breakpoints stop: (block, worker), "all", or by default, for each
                  breakpoint, the worker that comes to it first of those that it names
    on_stop       is given each stop, and may return where its worker stops again: "next" is before
                  the next line; without it, breakpoints are nothing
    on_blocks     is told how many blocks have run, of how many
    """
    findings = Findings(stop_at, until_error=until_error)
    with np.errstate(all="ignore"):
        simulation = Simulation(
            kernel, arguments, findings, on_print or (lambda line: None), seed, dimensions
        )
        simulation.state.statistics = statistics
        Breakpoints(simulation.statements, stop, on_stop)
        with suppress(Enough):
            simulation.execute(on_blocks)
            store_results(simulation.state, simulation.results)
        findings.until_error = False
        return report(simulation.state, simulation.allocated, shared_limit)


class Simulation:
    """A kernel with the compilers of its nodes."""

    def __init__(
        self,
        kernel: ir.Kernel,
        arguments: Sequence[Any],
        findings: Findings,
        on_print: Callable[[str], None],
        seed: int | None,
        dimensions: Mapping[ir.Variable, int] | None = None,
    ) -> None:
        self.kernel = kernel
        self.seed = seed
        shapes: dict[ir.Tensor, tuple[int, ...]] = {}
        self.state = Run(kernel, findings, shapes, on_print)
        self.bound, self.results = bind_arguments(self.state, arguments, dimensions or {})
        self.allocated: list[ir.Tensor] = []
        self._examine()
        self.state.remote = analysis.remote_tensors(self.nodes)
        if analysis.is_cluster_at_work(self.nodes):
            self.state.cluster = ir.cluster_of(kernel)
        self.state.waits_for_grid = analysis.waits_for_grid(self.nodes)
        self.state.counts_changes = any(isinstance(node, ir.While) for node in self.nodes)
        self.state.awaits_updates = watched(self.kernel, self.written)
        self.state.by_warps = self._runs_by_warps(seed)
        self.expressions = Expressions(self.state)
        self.accesses = Accesses(self.state, self.expressions)
        self.accesses.written = frozenset(
            tensor for tensor in self.written if tensor.scope == ir.GLOBAL
        )
        self.accesses.of_products = frozenset(registers_of_products(self.nodes))
        self.rings = Rings(self.state, self.expressions, self.accesses, self.nodes)
        self.statements = Statements(self.state, self.expressions, self.accesses)
        Loops(self.statements, self.written)
        operations = Operations(self.statements)
        products = None
        if self.state.by_warps:
            BulkCopies(operations, Mbarriers(operations))
            Clusters(operations)
            products = Products(operations)
            RegisterPools(operations)
        Collectives(self.statements, products)
        Synchronization(self.statements, self.rings)

    # The program.

    def _examine(self) -> None:
        self.nodes = list(walk_statements(self.kernel.body))
        self.written = frozenset(analysis.writes_among(self.nodes))
        for node in self.nodes:
            if isinstance(node, ir.Peer):
                self.state.peers[node.tensor] = node.of
                self.state.shapes[node.tensor] = self.state.shapes[node.of]
            if isinstance(node, ir.Allocate):
                tensor = node.tensor
                self.allocated.append(tensor)
                self.state.shapes[tensor] = known_shape(tensor, tensor.shape, self.bound)

    def _blocks(self) -> int:
        """The number of blocks that are launched."""
        frame = self._frame(np.zeros(1, np.int64), None)
        if self.kernel.blocks is not None:
            return int(self.expressions(self.kernel.blocks)(frame))
        if not any(isinstance(node, ir.Grid) for node in self.nodes):
            return 1
        statement = self.kernel.body
        pending = [statement]
        while pending:
            statement = pending.pop(0)
            if isinstance(statement, ir.Grid):
                shape = [int(self.expressions(constant_of(n))(frame)) for n in statement.shape]
                return prod(grid_tiles(shape, statement))
            if isinstance(statement, ir.Sequence):
                pending = [*statement.statements, *pending]
            elif isinstance(statement, ir.Let):
                frame.env[statement.variable] = self.expressions(statement.value)(frame)
        return 1

    def _frame(self, blocks: Array, arena: Arena | None) -> Frame:
        workers = self.state.workers
        frame = Frame(Group(self.state, blocks, arena), np.arange(workers), slice(0, workers))
        frame.env.update(self.bound)
        frame.env[self.kernel.worker] = typed(frame.worker_row[None, :], self.kernel.worker)
        frame.env[self.kernel.block] = typed(blocks[:, None], self.kernel.block)
        return frame

    def execute(self, on_blocks: Callable[[int, int], None]) -> None:
        for tensor, memory in self.state.globals.items():
            if tensor in self.written:
                memory.shadow = Shadow(memory.data.size, self._agents(), is_global=True)
        count = self._blocks()
        code = self.statements(self.kernel.body)
        if self.state.by_warps:
            execute(
                self.state,
                code,
                count,
                nodes=self.nodes,
                bound=self.bound,
                channels=self.channels,
                arena=self._arena,
                seed=self.seed,
                on_blocks=on_blocks,
            )
            return
        most = self._most_lanes()
        step = max(1, _LANES_AT_ONCE // most)
        if not self.state.by_phases:
            step = min(step, max(1, _CLOCKS_AT_ONCE // self.state.workers**2))
        if self.state.awaits_updates:
            step = 1  # a block may wait for earlier ones
        if self.state.waits_for_grid:
            step = max(1, count)
        for start in range(0, count, step):
            blocks = np.arange(start, min(start + step, count))
            code.run(self._frame(blocks, self._arena(len(blocks))))
            on_blocks(int(blocks[-1]) + 1, count)

    def _runs_by_warps(self, seed: int | None) -> bool:
        """Whether lockstep would not suffice: for mbarriers, bulk copies, roles, or an order by seed."""
        if self.state.by_phases:
            return False
        channels = 0
        needs_warps = seed is not None or self.state.cluster > 1 or self.state.awaits_updates
        for node in self.nodes:
            match node:
                case ir.Allocate(tensor=tensor) if tensor.scope == ir.BARRIER:
                    if tensor not in self.state.channels:
                        self.state.channels[tensor] = channels
                        channels += prod(self.state.shapes[tensor])
                    needs_warps = True
                case ir.RingStep(ring=ring) if ring.transport == "tma":
                    if ring not in self.state.channels:
                        self.state.channels[ring] = channels
                        channels += ring.stages
                    needs_warps = True
                case ir.Roles():
                    needs_warps = True
                case ir.Mma(how=how) if is_asynchronous(how):
                    needs_warps = True
                case ir.Do(operation=operation):
                    needs_warps = needs_warps or not OPERATIONS[operation].lockstep
                case _:
                    pass  # lockstep suffices
        self.state.product_channel = channels
        channels += -(-self.state.workers // WARPGROUP)
        self.channels = channels
        return needs_warps

    def _most_lanes(self) -> int:
        """The most values that a block has at a time."""
        most = self.state.workers
        for node in self.nodes:
            if isinstance(node, ir.Each):
                most = max(most, node.mapping.workers * node.mapping.slots)
            elif isinstance(node, ir.Move):
                most = max(most, prod(node.shape))
        return most

    def _agents(self) -> int:
        """An upper bound of the number of warps, including those that roles cut short."""
        if self.state.by_phases:
            return 1
        roles = sum(len(node.roles) for node in self.nodes if isinstance(node, ir.Roles))
        return (-(-self.state.workers // WARP) + 2 * roles) * self.state.cluster

    def _arena(self, blocks: int) -> Arena | None:
        placed = [t for t in self.allocated if t.scope == ir.SHARED and t.offset is not None]
        if not placed:
            return None
        granule = min(tensor.dtype.nbytes for tensor in placed)
        size = max(shared_end(tensor) for tensor in placed)
        arena = Arena(blocks, size, granule, None)
        arena.shadow = Shadow(len(arena.written), self._agents(), is_global=False)
        return arena
