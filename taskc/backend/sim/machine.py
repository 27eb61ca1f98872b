"""What runs: frames, which are sets of workers that execute statements together.

Values are NumPy scalars, where all workers agree, or arrays that broadcast to
`frame.axes + (blocks, workers)`; the axes are the slots of the enclosing mapping loops. A mask of
the same form says which of them execute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from taskc.backend.sim.advice import Request
from taskc.backend.sim.memory import LIVES, Arena, Array, Memory
from taskc.backend.sim.order import Order
from taskc.backend.sim.report import Findings, Traffic
from taskc.backend.sim.shadow import SEVERAL, WORKER_BITS, Found, Lanes, Shadow
from taskc.errors import Location, Notes
from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping


class Run:
    """What all groups of one run share."""

    def __init__(
        self,
        kernel: ir.Kernel,
        findings: Findings,
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
        self.globals: dict[ir.Tensor, Memory] = {}
        self.accesses: dict[int, Traffic] = {}
        self.requests: dict[
            int, tuple[ir.Tensor, dict[bytes, Request]]
        ] = {}  # kinds, of SHARED ones
        self.private_bytes: dict[ir.Tensor, int] = {}
        self.statistics = False
        self.by_warps = False  # each warp is a generator of its own
        self.aborted = False
        self.channels: dict[ir.Tensor | ir.Ring, int] = {}
        self.ring_of: dict[ir.Tensor, ir.Ring] = {}

    def site(self, loc: Location) -> int:
        self.sites.append(loc)
        return len(self.sites) - 1


class Group:
    """Blocks that are simulated together, and what belongs to them."""

    def __init__(
        self, run: Run, blocks: Array, arena: Arena | None, order: Order | None = None
    ) -> None:
        self.run = run
        self.blocks = blocks  # their numbers, ascending
        self.order = order or Order(len(blocks), run.workers, run.by_phases)
        self.memories: dict[ir.Tensor, Memory] = dict(run.globals)
        self.arena = arena
        self.width = run.workers
        self.shared_seen: dict[ir.Tensor, Memory] = {}
        self.tiles: dict[ir.Tensor, Memory] = {}
        self.turns: dict[tuple[int, int], int] = {}  # how often each warp has come to an Allocate
        self.lives: dict[tuple[int, int], Memory] = {}  # what a turn of an Allocate gave
        self.rings: dict[ir.Ring, Any] = {}
        self.schedule: Any = None
        self.mbarriers: dict[tuple[ir.Tensor, int], Any] = {}
        self.fences: dict[int, list[int]] = {}  # the clocks at which each worker has fenced
        self.outgoing: dict[int, Any] = {}  # each worker's bulk stores

    def shared(self, tensor: ir.Tensor) -> Memory:
        """The memory of a SHARED tensor, the same one whenever the tensor is allocated again."""
        memory = self.shared_seen.get(tensor)
        if memory is None:
            shape = self.run.shapes[tensor]
            number = self._number()
            if self.arena is not None and tensor.offset is not None:
                memory = self.arena.place(tensor, shape, number)
            else:
                count = len(self.blocks)
                size = int(np.prod(shape, dtype=np.int64))
                memory = Memory(
                    tensor,
                    shape,
                    np.zeros(count * size, tensor.dtype.numpy),
                    np.zeros(count * size, np.int16),
                    rows=(np.arange(count) * size)[:, None] if count > 1 else 0,
                    shadow=Shadow(count * size, self.order.agents, is_global=False),
                )
            self.shared_seen[tensor] = memory
        return memory

    def _number(self) -> int:
        """For what is written in one life of a tensor: a new one, as far as there are any."""
        return (len(self.shared_seen) + len(self.lives)) % LIVES + 1

    def allocate(self, tensor: ir.Tensor, frame: Frame, node: object) -> Memory:
        """A SHARED tensor begins a new life, in the blocks that are active.

        Warps that run by themselves come here one after another, while others may still read what
        the turn before has written: for them each turn is a memory of its own, at the same place.
        """
        memory = self.shared(tensor)
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
        for granule in range(memory.granules):
            memory.written[at * memory.granules + granule] = 0
        return memory

    def reset_tile(self, memory: Memory, frame: Frame, fill: Callable[[Frame], Any] | None) -> None:
        """The workers of the frame have the tile anew."""
        columns = slice(int(frame.columns[0]), int(frame.columns[0]) + frame.width)
        memory.complete = False
        memory.written[..., columns] = fill is not None
        if fill is not None:
            memory.data[..., columns] = fill(frame)


class Touched(NamedTuple):
    """An access in a vector loop; `where`: by whom, None for all."""

    memory: Memory
    at: Any
    where: Any
    loc: Location
    is_store: bool


class Loop(NamedTuple):
    """The innermost mapping loop: its variables' values, and which slots they are the tasks of.

    `slots` is one slot, or Ellipsis for all of them in order.
    """

    mapping: Mapping
    values: list[Array]
    slots: Any


class Frame:
    """Workers that execute together. Only the statement being executed changes it."""

    __slots__ = (
        "anonymous",
        "axes",
        "block_row",
        "columns",
        "copies",
        "count",
        "env",
        "first",
        "group",
        "in_each",
        "loop",
        "mask",
        "members",
        "memories",
        "owners_only",
        "run",
        "touched",
        "vector",
        "warp",
        "width",
        "worker_row",
    )

    def __init__(self, group: Group, workers: Array, members: slice, warp: int = 0) -> None:
        self.group = group
        self.run = group.run
        self.env: dict[ir.Variable, Any] = {}
        self.memories = dict(group.memories)
        self.mask: Any = None
        self.axes: tuple[int, ...] = ()
        self.block_row = np.arange(len(group.blocks))[:, None]
        self.worker_row = workers
        self.count = len(group.blocks)
        self.width = len(workers)
        self.columns = workers
        self.members = members  # of the current role, or of the block
        self.first = members.start
        self.in_each = False
        self.loop: Loop | None = None
        self.anonymous = False
        self.owners_only: Any = None  # where a replicated task is this worker's to store
        self.warp = warp
        self.vector = 1  # how many elements an access is of; 0 where it has been counted before
        self.touched: list[Touched] | None = None  # in a vector loop whose turns may conflict
        self.copies: Any = None

    def tasks(self, count: int) -> Frame:
        """A frame of unnamed workers, one for each of `count` tasks of a whole-block statement."""
        other = Frame.__new__(Frame)
        other.group, other.run = self.group, self.run
        other.env, other.memories = self.env, self.memories
        other.mask, other.axes = self.mask, ()
        other.block_row, other.count = self.block_row, self.count
        other.worker_row = other.columns = np.arange(count)
        other.width = count
        other.first, other.members, other.warp = self.first, self.members, self.warp
        other.in_each = other.anonymous = True
        other.owners_only = other.loop = other.copies = other.touched = None
        other.vector = 1
        return other

    @property
    def full(self) -> tuple[int, ...]:
        return (*self.axes, self.count, self.width)

    def active(self, extra: Any = None) -> Any:
        """The mask, narrowed; None if nobody is masked."""
        if extra is None:
            return self.mask
        return extra if self.mask is None else self.mask & extra

    def someone(self, where: Any) -> tuple[int, int | None, tuple[int, ...]]:
        """The first position at which `where` holds: block, worker and position."""
        shape = np.broadcast_shapes(np.shape(where), (1, 1))
        where = np.broadcast_to(where, shape)
        position = tuple(int(i) for i in np.argwhere(where)[0])
        block = int(self.group.blocks[position[-2]])
        if self.anonymous or shape[-1] == 1 != self.width:
            return block, None, position
        return block, int(self.worker_row[position[-1]]), position

    def fault(
        self,
        kind: str,
        message: str,
        where: Any,
        location: Location,
        site: object,
        value: Any = None,
        notes: Notes = (),
    ) -> None:
        """A finding about the lanes where `where` holds; `{}` in the message is `value` there."""
        block, worker, position = self.someone(where)
        if value is not None:
            value = np.broadcast_to(value, np.broadcast_shapes(np.shape(value), np.shape(where)))
            spot = value[position[len(position) - value.ndim :]] if value.ndim else value
            message = message.format(spot)
        details: tuple[tuple[str, str | int], ...] = (("block", block),)
        if worker is not None:
            details = (*details, ("worker", worker))
        count = int(np.count_nonzero(where))
        self.run.findings.add(
            kind, message, location, details=details, count=count, notes=notes, where=site
        )

    def lanes(
        self, shape: tuple[int, ...], at: Array, chosen: Array | None, site: int, together: bool
    ) -> Lanes:
        """Who accesses the elements `at`, which are those chosen from an array of shape `shape`.

        `together`: all workers of a block do it as one, and the shape has one column.
        """
        numbers = self.group.blocks[:, None] << WORKER_BITS
        worker: Any = -1
        if (together and self.width > 1) or (self.anonymous and not self.run.by_phases):
            identity = numbers | SEVERAL
        else:
            worker = np.broadcast_to(self.worker_row, shape).reshape(-1)
            identity = numbers | self.worker_row
        who = np.broadcast_to(identity, shape).reshape(-1)
        block = np.broadcast_to(self.block_row, shape).reshape(-1)
        if chosen is not None:
            who, block = who[chosen], block[chosen]
            if isinstance(worker, np.ndarray):
                worker = worker[chosen]
        order = self.group.order
        agents = None
        if not isinstance(worker, np.ndarray) and self.width < len(order.agent_of):
            first, last = order.agent_of[[int(self.worker_row[0]), int(self.worker_row[-1])]]
            agents = range(int(first), int(last) + 1)
        members = self.members
        if not self.anonymous:  # the other warps of a role may not be there yet
            members = slice(int(self.worker_row[0]), int(self.worker_row[-1]) + 1)
        return Lanes(order, at, block, worker, members, who, site, agents)

    def name_element(self, memory: Memory, flat: int) -> str:
        """How a person calls an element: `s[3, 4]`."""
        tensor = memory.tensor
        if memory.granules != 1:
            flat //= memory.granules
        if tensor.scope == ir.SHARED:
            rows = np.reshape(memory.rows, -1)
            flat = int(min(flat - row for row in rows.tolist() if flat >= row))
        if self.run.is_flat or not memory.shape:
            return f"{tensor.name}[{flat}]" if memory.shape else tensor.name
        indices = np.unravel_index(flat, memory.shape) if flat < memory.size else (flat,)
        return f"{tensor.name}[{', '.join(str(int(i)) for i in indices)}]"


def active_blocks(frame: Frame) -> Array:
    """In which blocks somebody executes, [blocks]."""
    if frame.mask is None:
        return np.ones(frame.count, np.bool_)
    full = np.broadcast_to(frame.mask, frame.full)
    return np.asarray(np.moveaxis(full, -2, 0).reshape(frame.count, -1).any(axis=1))


def active_columns(frame: Frame) -> Array:
    """Which workers execute, where a frame has one block."""
    if frame.mask is None:
        return np.ones(frame.width, np.bool_)
    return np.asarray(np.broadcast_to(frame.mask, (1, frame.width))[0].copy())


class Races:
    """Turns what the shadow of a memory finds, for one access, into findings."""

    def __init__(self, frame: Frame, memory: Memory, site: int) -> None:
        self.frame = frame
        self.memory = memory
        self.site = site

    def race(self, verb: str, other_verb: str, found: Found | None) -> None:
        if found is None:
            return
        run = self.frame.run
        at, mine, other, other_site, count = found
        block, other_block = mine >> WORKER_BITS, other >> WORKER_BITS
        element = self.frame.name_element(self.memory, at)
        who, whom = self._name(mine), self._name(other)
        details: tuple[tuple[str, str | int], ...] = (("block", block), ("element", element))
        details = (*details, ("worker", who), ("other", whom))
        if block != other_block:
            who, whom = f"{who} of block {block}", f"{whom} of block {other_block}"
            why = "blocks are not ordered"
        elif run.by_phases:
            why = "within one phase"
        else:
            why = "and nothing orders the two"
        run.findings.add(
            "race",
            f"{who} {verb} {element}, which {whom} {other_verb} ({why})",
            run.sites[self.site],
            count=count,
            details=details,
            notes=((f"{whom} {other_verb} it here", run.sites[other_site]),),
            where=self.site,
        )

    def unwaited(
        self, verb: str, lanes: Lanes, wrong: Array, sites: Array, leaving: bool = False
    ) -> None:
        run = self.frame.run
        first = int(np.argmax(wrong))
        element = self.frame.name_element(self.memory, int(lanes.at[first]))
        who = self._name(int(lanes.who[first]))
        done = (
            "a bulk store may not have read yet" if leaving else "a copy may not have reached yet"
        )
        run.findings.add(
            "unwaited-copy",
            f"{who} {verb} {element}, which {done}",
            run.sites[self.site],
            count=int(np.count_nonzero(wrong)),
            details=(("block", int(lanes.who[first]) >> WORKER_BITS), ("element", element)),
            notes=(("the copy is issued here", run.sites[int(sites[0])]),),
            where=self.site,
        )

    def _name(self, who: int) -> str:
        worker = who & SEVERAL
        run = self.frame.run
        if worker == SEVERAL:
            return "several workers" if run.workers > 1 else "its worker"
        is_task = self.frame.anonymous and run.by_phases
        return f"task {worker}" if is_task else f"worker {worker}"
