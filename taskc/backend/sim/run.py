"""The simulator's entry: binds arguments, runs all blocks, reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np

from taskc.backend.sim import analysis, units
from taskc.backend.sim.accesses import Accesses
from taskc.backend.sim.asynchronous import BulkCopies
from taskc.backend.sim.binding import bind_arguments, known_shape, shared_end, typed
from taskc.backend.sim.breakpoints import Breakpoints, Chosen, Stop
from taskc.backend.sim.clusters import Clusters
from taskc.backend.sim.collective import Collectives
from taskc.backend.sim.expressions import Expressions
from taskc.backend.sim.loops import Loops
from taskc.backend.sim.machine import Frame, Group, Run
from taskc.backend.sim.mbarriers import Mbarriers
from taskc.backend.sim.memory import Arena, Array
from taskc.backend.sim.operations import Operations
from taskc.backend.sim.products import Products, registers_of_products
from taskc.backend.sim.register_pools import RegisterPools
from taskc.backend.sim.report import Enough, Findings, Report
from taskc.backend.sim.results import report, store_results
from taskc.backend.sim.shadow import Shadow
from taskc.backend.sim.statements import Statements, constant_of, grid_tiles
from taskc.backend.sim.synchronization import Rings, Synchronization
from taskc.backend.sim.waiting import watched
from taskc.ir import nodes as ir
from taskc.ir.depth import deeply
from taskc.ir.operations import OPERATIONS
from taskc.ir.rewrite import walk_statements
from taskc.ir.target import WARP, WARPGROUP, is_asynchronous

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
            units.execute(
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
