"""Frames, which are sets of workers that execute statements together, and the state of a run.

Values are NumPy scalars, where all workers agree, or arrays that broadcast to
`frame.axes + (blocks, workers)`; the axes are the slots of the enclosing mapping loops. A mask of
the same form says which of them execute.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from taskc.backend.sim.memory import LIVES, Array, SharedArena, Storage, addresses_of, shared_memory
from taskc.backend.sim.report import FindingList, Located, SiteTraffic
from taskc.backend.sim.shadow import FEWEST, SEVERAL, WORKER_BITS, Lanes, Order
from taskc.dataclass import dataclass
from taskc.errors import Location, Notes
from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping


class Run:
    """State that all groups of one run share."""

    def __init__(
        self,
        kernel: ir.Kernel,
        findings: FindingList,
        shapes: dict[ir.Tensor, tuple[int, ...]],
        on_print: Callable[[str], None],
    ) -> None:
        self.kernel = kernel
        self.findings = findings
        self.shapes = shapes
        self.on_print = on_print
        self.by_phases = ir.STAGES.index(kernel.stage) < ir.STAGES.index("synchronized")
        self.is_flat = kernel.stage == "lean"
        self.workers = kernel.workers + kernel.helpers
        self.sites: list[Location] = []
        self.globals: dict[ir.Tensor, Storage] = {}
        self.traffic: dict[int, SiteTraffic] = {}
        self.private_bytes: dict[ir.Tensor, int] = {}
        self.statistics = False  # whether accesses are measured
        self.by_warps = False  # whether each warp is a generator of its own
        self.waits_for_grid = False  # whether the program has barriers of all blocks
        self.grid_barriers = 0  # completed barriers of all blocks, where warps run by themselves
        self.cluster = 1  # blocks that run together because they communicate
        self.peers: dict[ir.Tensor, ir.Tensor] = {}  # from tensors of other blocks to this block's
        self.remote: set[ir.Tensor] = set()  # tensors that other blocks access
        self.aborted = False
        self.awaits_updates = False  # whether loops of the program wait for updates by others
        self.counts_changes = False  # whether changes are counted
        self.changes = 0  # number of changes to memory that others see
        self.channels: dict[ir.Tensor | ir.Ring, int] = {}
        self.product_channel = 0  # channel of the first warpgroup's matrix products
        self.ring_of: dict[ir.Tensor, ir.Ring] = {}
        self.sent_on: set[ir.Tensor] = set()  # tensors whose slots bulk copies send on
        self.written: frozenset[ir.Tensor] = frozenset()  # tensors written anywhere in the kernel
        self.of_products: frozenset[ir.Tensor] = frozenset()  # registers of asynchronous products

    def places(self, tensor: ir.Tensor, shape: tuple[int, ...]) -> Any:
        """An index for a tensor's elements in row-major order: their addresses, once these follow the layout."""
        if self.is_flat and tensor.layout is not None:
            return addresses_of(tensor, shape)
        return slice(None)

    def site(self, loc: Location) -> int:
        self.sites.append(loc)
        return len(self.sites) - 1

    def who(self, identity: int) -> tuple[int, int | None]:
        """The block of an access, and its worker, or None for several workers."""
        unit, number = identity >> WORKER_BITS, identity & SEVERAL
        if number >= FEWEST:
            return unit * self.cluster + SEVERAL - number, None
        if self.cluster == 1:
            return unit, number
        rank, worker = divmod(number, self.workers)
        return unit * self.cluster + rank, worker


Identities: TypeAlias = "tuple[Array, Array, Array | int, slice, range | None]"
"""Of an access's lanes: who, block, worker, members and agents, as `Lanes` takes them."""

_KEPT_LANES = 1 << 14


@dataclass(slots=True)
class IssuedGroups:
    """Asynchronous actions of one worker or warp: those in no group yet, and the groups not waited for."""

    open: list[Any] = field(default_factory=list)
    closed: list[list[Any]] = field(default_factory=list)

    def commit(self) -> None:
        self.closed.append(self.open)
        self.open = []

    def complete(self, most: int) -> list[Any]:
        """Remove the first groups, up to those so many that remain; returns their actions."""
        done = max(len(self.closed) - most, 0)
        complete, self.closed = self.closed[:done], self.closed[done:]
        return [action for group in complete for action in group]

    @property
    def left(self) -> list[Any]:
        return [*self.open, *(action for group in self.closed for action in group)]


class Group:
    """Blocks that are simulated together, and their state."""

    def __init__(
        self,
        run: Run,
        blocks: Array,
        arena: SharedArena | None,
        order: Order | None = None,
        rank: int = 0,
        cluster: Any = None,
    ) -> None:
        self.run = run
        self.blocks = blocks  # numbers of the blocks, ascending
        self.rank = rank
        self.cluster = cluster  # the shared state of a cluster's blocks; None without a cluster
        self.units = blocks // run.cluster
        self.base = rank * run.workers  # number of the first worker in `order`
        self.order = order or Order(len(blocks), run.workers, run.by_phases)
        self.memories: dict[ir.Tensor, Storage] = dict(run.globals)
        self.arena = arena
        self.width = self.order.workers
        self.shared_seen: dict[ir.Tensor, Storage] = {}
        self.tiles: dict[ir.Tensor, Storage] = {}
        self.turns: dict[tuple[int, int], int] = {}  # how often each warp has come to an Allocate
        self.lives: dict[tuple[int, int], Storage] = {}  # the memory of each turn of an Allocate
        self.rings: dict[ir.Ring, Any] = {}
        self.first_channel = rank * (self.order.channels // run.cluster)
        self.schedule: Any = None  # of the warps that run by themselves
        self.mbarriers: dict[tuple[ir.Tensor, int], Any] = {}
        self.identities: dict[tuple[Any, ...], Identities] = {}
        self.fences: dict[int, list[int]] = {}  # the clocks at which each worker has fenced
        self.outgoing: defaultdict[int, IssuedGroups] = defaultdict(IssuedGroups)  # by worker
        self.products: defaultdict[int, IssuedGroups] = defaultdict(IssuedGroups)  # by warp
        self.multiplied: list[Any] = []  # all asynchronous matrix products
        self.fenced: set[int] = set()  # the warps that have fenced their registers for those
        self.tile_registers: dict[int, Array] = {}  # contents of the tile registers
        self.registers: Any = None  # the number that each warpgroup has

    def shared(self, tensor: ir.Tensor) -> Storage:
        """The memory of a SHARED tensor, the same whenever the tensor is allocated again."""
        memory = self.shared_seen.get(tensor)
        if memory is None:
            shape = self.run.shapes[tensor]
            number = self._number()
            if self.cluster is not None:
                whole = self.cluster.shared(tensor, shape)
                memory = whole.seen_from(whole.rows[self.rank : self.rank + 1])
            elif self.arena is not None and tensor.offset is not None:
                memory = self.arena.place(tensor, shape, number)
            else:
                memory = shared_memory(tensor, shape, len(self.blocks), self.order.agents, 1)
            self.shared_seen[tensor] = memory
        return memory

    def report(
        self, kind: str, message: str, loc: Location, where: object, notes: Notes = ()
    ) -> None:
        """Add a finding about the first of these blocks."""
        details = (("block", int(self.blocks[0])),)
        self.run.findings.add(kind, message, loc, details=details, notes=notes, where=where)

    def name_of(self, worker: int) -> str:
        """The displayed name of a worker, from its number in `order`."""
        rank, number = divmod(worker, self.run.workers)
        if rank == self.rank:
            return f"worker {number}"
        return f"worker {number} of block {int(self.units[0]) * self.run.cluster + rank}"

    def _number(self) -> int:
        """A number for the writes in one life of a tensor, different from the last ones."""
        return (len(self.shared_seen) + len(self.lives)) % LIVES + 1

    def allocate(self, tensor: ir.Tensor, frame: Frame, node: object) -> Storage:
        """Begin a new life of a SHARED tensor in the active blocks.

        Warps that run by themselves come here one after another, while others may still read what
        the turn before has written: for them each turn is a memory of its own, at the same place.
        """
        memory = self.shared(tensor)
        if tensor in self.run.remote:
            return memory
        if frame.width != self.width:
            turn = self.turns[id(node), frame.warp] = self.turns.get((id(node), frame.warp), 0) + 1
            life = self.lives.get((id(node), turn))
            if life is not None:
                return life
            self.lives[id(node), turn] = memory.again(self._number())
            return self.lives[id(node), turn]
        if frame.mask is None and not memory.overlaid:
            memory.forget()
            return memory
        blocks = np.flatnonzero(active_blocks(frame))
        elements = np.arange(memory.size) + np.broadcast_to(memory.rows, (self.blocks.size, 1))
        at = elements[blocks].reshape(-1)
        memory.complete = False
        for entries in memory.entries(at):
            memory.written[entries] = 0
        return memory

    def reset_tile(
        self, memory: Storage, frame: Frame, fill: Callable[[Frame], Any] | None
    ) -> None:
        """Allocate the tile anew for the workers of the frame."""
        columns = slice(int(frame.columns[0]), int(frame.columns[0]) + frame.width)
        memory.complete = False
        memory.written[..., columns] = fill is not None
        if memory.registers is not None:
            memory.registers.touched[..., columns] = fill is not None
        if fill is not None:
            memory.data[..., columns] = fill(frame)


class Touched(NamedTuple):
    """An access in a vector loop; `where` is the mask of its workers, None for all."""

    memory: Storage
    at: Any
    where: Any
    loc: Location
    is_store: bool


class EachLoop(NamedTuple):
    """The innermost mapping loop: its variables' values, and the slots of its tasks.

    `slots` is one slot, or Ellipsis for all of them in order.
    """

    mapping: Mapping
    values: list[Array]
    slots: Any


@dataclass(slots=True, eq=False)
class Frame:
    """Workers that execute together. Only the statement being executed changes a frame.

    members      the workers of the current role, or of the block
    owners_only  where a replicated task is this worker's to store
    vector       how many elements an access is of; 0 where it has been counted before
    touched      by accesses in a vector loop whose turns may conflict
    ranks        whose the tensors of other blocks are
    """

    group: Group
    worker_row: Array
    members: slice
    warp: int = 0
    run: Run = field(init=False)
    env: dict[ir.Variable, Any] = field(default_factory=dict)
    memories: dict[ir.Tensor, Storage] = field(init=False)
    mask: Any = None
    axes: tuple[int, ...] = ()
    block_row: Array = field(init=False)
    count: int = field(init=False)
    width: int = field(init=False)
    columns: Array = field(init=False)
    first: int = field(init=False)
    in_each: bool = False
    loop: EachLoop | None = None
    anonymous: bool = False
    owners_only: Any = None
    vector: int = 1
    touched: list[Touched] | None = None
    copies: Any = None
    ranks: dict[ir.Tensor, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.run = self.group.run
        self.memories = dict(self.group.memories)
        self.count, self.width = len(self.group.blocks), len(self.worker_row)
        self.block_row, self.columns = np.arange(self.count)[:, None], self.worker_row
        self.first = self.members.start

    def bind(self, bound: dict[ir.Variable, Any]) -> None:
        """Bind arguments and dimensions, and the numbers of the workers and their blocks."""
        worker, block = self.run.kernel.worker, self.run.kernel.block
        self.env.update(bound)
        self.env[worker] = self.numbers[None, :].astype(worker.dtype.numpy)
        self.env[block] = self.group.blocks[:, None].astype(block.dtype.numpy)

    def tasks(self, count: int) -> Frame:
        """A frame of unnamed workers, one for each of `count` tasks of a whole-block statement."""
        other = copy(self)
        other.axes = ()
        other.mask = None if self.mask is None else active_blocks(self)[:, None]
        other.worker_row = other.columns = np.arange(count)
        other.width = count
        other.in_each = other.anonymous = True
        other.owners_only = other.loop = other.copies = other.touched = None
        other.vector = 1
        return other

    @property
    def numbers(self) -> Array:
        """The workers' numbers in their block."""
        return self.worker_row - self.group.base

    @property
    def full(self) -> tuple[int, ...]:
        return (*self.axes, self.count, self.width)

    @property
    def active(self) -> Array:
        """Mask of the lanes that execute."""
        return np.broadcast_to(True if self.mask is None else self.mask, self.full)

    def only(self, workers: Any) -> Array:
        """Mask of these workers, in a frame with one block."""
        return np.isin(self.worker_row, workers)[None]

    def someone(self, where: Any) -> tuple[int, int | None, tuple[int, ...]]:
        """Block, worker and position of the first lane where `where` holds; None holds everywhere."""
        where = True if where is None else where
        shape = np.broadcast_shapes(np.shape(where), (1, 1))
        where = np.broadcast_to(where, shape)
        position = tuple(int(i) for i in np.argwhere(where)[0])
        block = int(self.group.blocks[position[-2]])
        if self.anonymous or shape[-1] == 1 != self.width:
            return block, None, position
        return block, int(self.worker_row[position[-1]]) - self.group.base, position

    def fault(
        self,
        kind: str,
        message: str,
        where: Any,
        site: Located,
        value: Any = None,
        notes: Notes = (),
    ) -> None:
        """Add a finding about the lanes where `where` holds; `{}` in the message stands for `value` there."""
        block, worker, position = self.someone(where)
        if value is not None:
            value = np.broadcast_to(value, np.broadcast_shapes(np.shape(value), np.shape(where)))
            spot = value[position[len(position) - value.ndim :]] if value.ndim else value
            message = message.format(spot)
        details: tuple[tuple[str, str | int], ...] = (("block", block),)
        if worker is not None:
            details = (*details, ("worker", worker))
        count = 1 if where is None else int(np.count_nonzero(where))
        self.run.findings.add(
            kind, message, site.loc, details=details, count=count, notes=notes, where=site
        )

    def fault_if(
        self, kind: str, message: str, wrong: Any, site: Located, value: Any = None
    ) -> Any:
        """Add a finding if `wrong` holds on any active lane; returns the mask of these, or None."""
        where = both(self.mask, wrong)
        if not np.count_nonzero(where):
            return None
        self.fault(kind, message, where, site, value)
        return where

    def lanes(
        self,
        memory: Storage,
        shape: tuple[int, ...],
        at: Array,
        chosen: Array | None,
        site: int,
        together: bool = False,
    ) -> Iterator[Lanes]:
        """The access of workers to the elements `at`, chosen from an array of shape `shape`, by shadow entries.

        `together`: all workers of a block do it as one, and the shape has one column.
        """
        lanes = self.access(memory, shape, at, chosen, site, together)
        for entries in memory.entries(at):
            lanes.at = entries
            yield lanes

    def access(
        self,
        memory: Storage,
        shape: tuple[int, ...],
        entries: Array,
        chosen: Array | None,
        site: int,
        together: bool = False,
    ) -> Lanes:
        """The access of workers to entries of the shadow, chosen as in `lanes`."""
        who, block, worker, members, agents = self._identities(shape, together)
        if chosen is not None:
            who, block = who[chosen], block[chosen]
            if isinstance(worker, np.ndarray):
                worker = worker[chosen]
        return Lanes(self, memory, entries, block, worker, members, who, site, agents)

    def _identities(self, shape: tuple[int, ...], together: bool) -> Identities:
        """The identities for the lanes of a shape. They are the same for each access, so they are cached."""
        members = self.members
        first = int(self.worker_row[0])
        key = (shape, together, self.anonymous, self.width, first, members.start, members.stop)
        identities = self.group.identities.get(key)
        if identities is not None:
            return identities
        numbers = self.group.units[:, None] << WORKER_BITS
        worker: Any = -1
        is_unnamed = self.anonymous and not self.run.by_phases
        is_alone = members.stop - members.start == 1
        if (together and self.width > 1) or (is_unnamed and not is_alone):
            identity = numbers | (SEVERAL - self.group.rank)
        else:
            row = np.asarray(members.start) if is_unnamed else self.worker_row
            worker = np.broadcast_to(row, shape).reshape(-1)
            identity = numbers | row
        who = np.broadcast_to(identity, shape).reshape(-1)
        block = np.broadcast_to(self.block_row, shape).reshape(-1)
        order = self.group.order
        agents = None
        if (
            not self.anonymous
        ):  # the other warps of a role may know less, as they may not have arrived
            members = slice(first, first + self.width)
        if not isinstance(worker, np.ndarray):
            lowest, last = order.agent_of[[members.start, members.stop - 1]].tolist()
            agents = range(lowest, last + 1)
        identities = who, block, worker, members, agents
        if who.size <= _KEPT_LANES:
            self.group.identities[key] = identities
        return identities

    def name_element(self, memory: Storage, flat: int) -> str:
        """The displayed name of an element: `s[3, 4]`."""
        tensor = memory.tensor
        if memory.granules != 1:
            flat //= memory.granules
        whose = ""
        if memory.stride:
            rank, flat = divmod(flat, memory.stride)
            flat -= int(np.reshape(memory.rows, -1)[0]) % memory.stride
            if rank != self.group.rank:
                whose = f" of block {int(self.group.units[0]) * self.run.cluster + rank}"
        elif tensor.scope == ir.SHARED:
            rows = np.reshape(memory.rows, -1)
            flat = int(min(flat - row for row in rows.tolist() if flat >= row))
        if self.run.is_flat or not memory.shape:
            return (f"{tensor.name}[{flat}]" if memory.shape else tensor.name) + whose
        indices = np.unravel_index(flat, memory.shape) if flat < memory.size else (flat,)
        return f"{tensor.name}[{', '.join(str(int(i)) for i in indices)}]{whose}"


def active_blocks(frame: Frame) -> Array:
    """Mask of blocks with at least one active worker, [blocks]."""
    if frame.mask is None:
        return np.ones(frame.count, np.bool_)
    return np.asarray(np.moveaxis(frame.active, -2, 0).reshape(frame.count, -1).any(axis=1))


def both(mask: Any, other: Any) -> Any:
    """The lanes of two masks; None stands for all lanes."""
    return other if mask is None else mask if other is None else mask & other
