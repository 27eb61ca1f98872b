"""The simulator's entry: binds arguments, runs all blocks, stores the results, reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from taskc.analysis.phases import sent_by_bulk_copies
from taskc.arrays.packed import packed_argument
from taskc.backend.sim import analysis
from taskc.backend.sim.accesses import AccessCompiler, Watch
from taskc.backend.sim.asynchronous import MBARRIERS
from taskc.backend.sim.breakpoints import Breakpoints, Chosen, Stop
from taskc.backend.sim.clusters import CLUSTERS, execute_by_warps, watch_peer
from taskc.backend.sim.collective import WHOLE_BLOCK
from taskc.backend.sim.copies import BULK_COPIES, WORKER_COPIES
from taskc.backend.sim.expressions import ExpressionCompiler, scalar
from taskc.backend.sim.loops import LOOPS
from taskc.backend.sim.machine import Frame, Group, Run
from taskc.backend.sim.memory import Array, SharedArena, Storage
from taskc.backend.sim.operations import IN_LOCKSTEP
from taskc.backend.sim.products import PRODUCTS, registers_of_products
from taskc.backend.sim.recording import warn
from taskc.backend.sim.report import Enough, FindingList, Located, Report
from taskc.backend.sim.shadow import Shadow
from taskc.backend.sim.statements import Makers, StatementCompiler, constant_of, grid_tiles
from taskc.backend.sim.synchronization import REGISTER_POOLS, SYNCHRONIZATION, watch_ring
from taskc.errors import CompileError
from taskc.ir import arithmetic, nodes as ir
from taskc.ir.code_size import deeply
from taskc.ir.extents import extent_value, size_in_bytes
from taskc.ir.operations import OPERATIONS
from taskc.ir.rewrite import walk_statements
from taskc.ir.target import TARGETS, WARP, WARPGROUP, is_asynchronous
from taskc.ir.types import TensorType

_MAKERS: Makers = {
    **LOOPS,
    **WHOLE_BLOCK,
    **SYNCHRONIZATION,
    **WORKER_COPIES,
    **IN_LOCKSTEP,
}
_MAKERS_BY_WARPS: Makers = {
    **MBARRIERS,
    **BULK_COPIES,
    **CLUSTERS,
    **PRODUCTS,
    **REGISTER_POOLS,
}

# --- Arguments and results ------------------------------------------------------------------------


def bind_arguments(
    run: Run, arguments: Sequence[Any], dimensions: Mapping[ir.Variable, int]
) -> tuple[dict[ir.Variable, Any], list[tuple[Array, Storage]]]:
    """The values of scalars and dimensions, and the arrays that take results from memories.

    The parameters' memories and shapes go into `run`.
    """
    kernel = run.kernel
    numbers = {kernel.processors: TARGETS[kernel.target].processors, **dimensions}
    bound: dict[ir.Variable, Any] = {
        size: size.dtype.numpy.type(number) for size, number in numbers.items()
    }
    results: list[tuple[Array, Storage]] = []
    if len(arguments) != len(kernel.parameters):
        raise CompileError(
            f"{kernel.name} takes {len(kernel.parameters)} arguments, not {len(arguments)}",
            kernel.loc,
        )
    pairs = list(zip(kernel.parameters, arguments, strict=True))
    for parameter, value in pairs:
        if isinstance(parameter, ir.Variable):
            bound[parameter] = scalar(
                arithmetic.as_storage(
                    value.item() if isinstance(value, np.ndarray) else value, parameter.dtype
                )
            )
        else:
            _bind_dimensions(parameter, np.asarray(value), bound)
    for parameter, value in pairs:
        if isinstance(parameter, ir.Tensor):
            memory = _bind_tensor(run, parameter, value, bound)
            if parameter.role != "in":
                results.append((value, memory))
    return bound, results


def _bind_dimensions(tensor: ir.Tensor, array: Array, bound: dict[ir.Variable, Any]) -> None:
    dtype = tensor.argument.dtype
    if array.ndim != len(tensor.argument_shape) or array.dtype != dtype.numpy:
        raise CompileError(
            f"{tensor.name} is {dtype} of rank {len(tensor.argument_shape)};"
            f" the argument is {array.dtype} of shape {array.shape}",
            tensor.loc,
        )
    for extent, size in zip(tensor.argument_shape, array.shape, strict=True):
        if isinstance(extent, ir.Variable):
            known = bound.setdefault(extent, extent.dtype.numpy.type(size))
            if known != size:
                raise CompileError(
                    f"{extent.name} is {known} and {size} at once, in {tensor.name}", tensor.loc
                )


def _bind_tensor(
    run: Run, tensor: ir.Tensor, array: Array, bound: dict[ir.Variable, Any]
) -> Storage:
    expected_shape = known_shape(tensor, tensor.argument_shape, bound)
    if array.shape != expected_shape:
        raise CompileError(
            f"{tensor.name} has the shape {expected_shape}; the argument has {array.shape}",
            tensor.loc,
        )
    if tensor.held is not None:
        array = _as_bytes(array, tensor.held).view(tensor.dtype.numpy)
    shape = known_shape(tensor, tensor.shape, bound)
    run.shapes[tensor] = shape
    data = np.ascontiguousarray(array).reshape(-1)
    is_out = tensor.role == "out"
    written = np.full(data.size, 0 if is_out else 1, np.int8)
    memory = Storage(tensor, shape, data, written, complete=not is_out)
    if run.is_flat and tensor.layout is not None:
        places = run.places(tensor, shape)
        memory.data = np.zeros(tensor.layout.slots, data.dtype)
        memory.data[places] = data
        memory.written = np.ones(tensor.layout.slots, np.int8)
        if is_out:
            memory.written[places] = 0
    run.globals[tensor] = memory
    return memory


def _as_bytes(array: Array, held: ir.Tensor) -> Array:
    """The elements in their layout, as a stream of bits."""
    return np.asarray(packed_argument(array, TensorType(held.dtype, array.shape, held.layout)))


def shared_end(tensor: ir.Tensor) -> int:
    return (tensor.offset or 0) + size_in_bytes(tensor)


def known_shape(
    tensor: ir.Tensor, shape: tuple[int | ir.Expression, ...], bound: dict[ir.Variable, Any]
) -> tuple[int, ...]:
    try:
        return tuple([extent_value(extent, bound) for extent in shape])
    except KeyError as error:
        raise CompileError(f"the dimension {error.args[0].name} is not known", tensor.loc) from None


def store_results(run: Run, results: list[tuple[Array, Storage]]) -> None:
    """Copy results from the memories to the arrays; report elements that were never stored."""
    for array, memory in results:
        tensor = memory.tensor
        places = run.places(tensor, memory.shape)
        missing = memory.written[places] == 0
        if missing.any() and not run.aborted:
            first = np.unravel_index(int(np.argmax(missing)), memory.shape)
            name = f"{tensor.name}[{', '.join(str(int(i)) for i in first)}]"
            run.findings.add(
                "not-written",
                f"{name} is never stored",
                tensor.loc,
                count=int(np.count_nonzero(missing)),
                details=(("element", name),),
                where=tensor,
            )
        data = memory.data[places].reshape(array.shape)
        if not np.shares_memory(data, array):
            array[...] = data


def _report(run: Run, allocated: Iterable[ir.Tensor], shared_limit: int | None) -> Report:
    if run.statistics:
        warn(run)
    shared = _shared_bytes(run, allocated)
    if shared_limit is not None and shared > shared_limit:
        run.findings.add(
            "shared-memory",
            f"a block takes {shared} bytes of shared memory; the limit is {shared_limit}",
            run.kernel.loc,
            where="budget",
        )
    return Report(
        run.findings.result(),
        tuple([replace(site.worst, total=site.total) for site in run.traffic.values()]),
        shared,
        sum(run.private_bytes.values()),
    )


def _shared_bytes(run: Run, allocated: Iterable[ir.Tensor]) -> int:
    placed, free, mbarriers = 0, 0, 0
    for tensor in dict.fromkeys(allocated):
        if tensor.scope == ir.SHARED:
            end = shared_end(tensor)
            if tensor.offset is None:
                free += end
            else:
                placed = max(placed, end)
        elif tensor.scope == ir.BARRIER:
            mbarriers += tensor.dtype.nbytes * prod(run.shapes[tensor])
    used = placed + free
    return -(-used // 8) * 8 + mbarriers if mbarriers else used


# --- The run --------------------------------------------------------------------------------------


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
    findings = FindingList(stop_at, until_error=until_error)
    with np.errstate(all="ignore"):
        simulation = Simulation(
            kernel, arguments, findings, on_print or (lambda line: None), seed, dimensions
        )
        simulation.run.statistics = statistics
        Breakpoints(simulation.statements, stop, on_stop)
        with suppress(Enough):
            simulation.execute(on_blocks)
            store_results(simulation.run, simulation.results)
        findings.until_error = False
        return _report(simulation.run, simulation.allocated, shared_limit)


class Simulation:
    """A kernel with the compilers of its nodes."""

    def __init__(
        self,
        kernel: ir.Kernel,
        arguments: Sequence[Any],
        findings: FindingList,
        on_print: Callable[[str], None],
        seed: int | None,
        dimensions: Mapping[ir.Variable, int] | None = None,
    ) -> None:
        self.kernel = kernel
        self.seed = seed
        shapes: dict[ir.Tensor, tuple[int, ...]] = {}
        run = self.run = Run(kernel, findings, shapes, on_print)
        self.bound, self.results = bind_arguments(run, arguments, dimensions or {})
        self.allocated: list[ir.Tensor] = []
        self._examine()
        self.expressions = ExpressionCompiler(run)
        self.accesses = AccessCompiler(run, self.expressions)
        self.accesses.watch = self._watch
        self.statements = StatementCompiler(run, self.expressions, self.accesses)
        self.statements.makers |= _MAKERS
        if run.by_warps:
            self.statements.makers |= _MAKERS_BY_WARPS

    def _watch(self, tensor: ir.Tensor, node: Located) -> Watch | None:
        """A function that checks each access to a tensor beyond the ordinary."""
        if self.run.by_warps and tensor in self.run.peers:
            return watch_peer(tensor, node)
        return watch_ring(self.run, tensor, node)

    # The program.

    def _examine(self) -> None:
        run = self.run
        self.nodes = list(walk_statements(self.kernel.body))
        run.written = frozenset(analysis.writes_among(self.nodes))
        run.of_products = frozenset(registers_of_products(self.nodes))
        for node in self.nodes:
            if isinstance(node, ir.Peer):
                run.peers[node.tensor] = node.of
                run.shapes[node.tensor] = run.shapes[node.of]
            if isinstance(node, ir.Allocate):
                tensor = node.tensor
                self.allocated.append(tensor)
                run.shapes[tensor] = known_shape(tensor, tensor.shape, self.bound)
            if isinstance(node, ir.Move):
                run.sent_on |= sent_by_bulk_copies(node)
            if isinstance(node, ir.RingStep):
                run.ring_of |= dict.fromkeys(node.ring.tensors, node.ring)
        run.remote = analysis.remote_tensors(self.nodes)
        if analysis.is_cluster_at_work(self.nodes):
            run.cluster = ir.cluster_of(self.kernel)
        run.waits_for_grid = analysis.waits_for_grid(self.nodes)
        run.counts_changes = any(isinstance(node, ir.While) for node in self.nodes)
        run.awaits_updates = analysis.watched(self.kernel, run.written)
        run.by_warps = self._runs_by_warps()

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

    def _frame(self, blocks: Array, arena: SharedArena | None) -> Frame:
        workers = self.run.workers
        frame = Frame(Group(self.run, blocks, arena), np.arange(workers), slice(0, workers))
        frame.bind(self.bound)
        return frame

    def execute(self, on_blocks: Callable[[int, int], None]) -> None:
        for tensor, memory in self.run.globals.items():
            if tensor in self.run.written:
                memory.shadow = Shadow(memory.data.size, self._agents(), is_global=True)
        count = self._blocks()
        code = self.statements(self.kernel.body)
        if self.run.by_warps:
            execute_by_warps(
                self.run,
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
        if not self.run.by_phases:
            step = min(step, max(1, _CLOCKS_AT_ONCE // self.run.workers**2))
        if self.run.awaits_updates:
            step = 1  # a block may wait for earlier ones
        if self.run.waits_for_grid:
            step = max(1, count)
        for start in range(0, count, step):
            blocks = np.arange(start, min(start + step, count))
            code.run(self._frame(blocks, self._arena(len(blocks))))
            on_blocks(int(blocks[-1]) + 1, count)

    def _runs_by_warps(self) -> bool:
        """Whether lockstep would not suffice: for mbarriers, bulk copies, roles, or an order by seed."""
        run = self.run
        if run.by_phases:
            return False
        channels = 0
        needs_warps = self.seed is not None or run.cluster > 1 or run.awaits_updates
        for node in self.nodes:
            match node:
                case ir.Allocate(tensor=tensor) if tensor.scope == ir.BARRIER:
                    if tensor not in run.channels:
                        run.channels[tensor] = channels
                        channels += prod(run.shapes[tensor])
                    needs_warps = True
                case ir.RingStep(ring=ring) if ring.transport == "tma":
                    if ring not in run.channels:
                        run.channels[ring] = channels
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
        run.product_channel = channels
        channels += -(-run.workers // WARPGROUP)
        self.channels = channels
        return needs_warps

    def _most_lanes(self) -> int:
        """The most values that a block has at a time."""
        most = self.run.workers
        for node in self.nodes:
            if isinstance(node, ir.Each):
                most = max(most, node.mapping.workers * node.mapping.slots)
            elif isinstance(node, ir.Move):
                most = max(most, prod(node.shape))
        return most

    def _agents(self) -> int:
        """An upper bound of the number of warps, including those that roles cut short."""
        if self.run.by_phases:
            return 1
        roles = sum(len(node.roles) for node in self.nodes if isinstance(node, ir.Roles))
        return (-(-self.run.workers // WARP) + 2 * roles) * self.run.cluster

    def _arena(self, blocks: int) -> SharedArena | None:
        placed = [t for t in self.allocated if t.scope == ir.SHARED and t.offset is not None]
        if not placed:
            return None
        granule = min(tensor.dtype.nbytes for tensor in placed)
        size = max(shared_end(tensor) for tensor in placed)
        arena = SharedArena(blocks, size, granule, None)
        arena.shadow = Shadow(len(arena.written), self._agents(), is_global=False)
        return arena
