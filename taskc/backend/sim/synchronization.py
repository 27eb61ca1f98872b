"""Barriers, roles and ring steps, in lockstep and by warps.

The registers of a block, which its warpgroups give up and take (`setmaxnreg`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from taskc.analysis.phases import sent_by_bulk_copies
from taskc.backend.operands import operands_of
from taskc.backend.sim.accesses import Accesses, Watch
from taskc.backend.sim.expressions import Expressions
from taskc.backend.sim.machine import Frame, Run, active_blocks, active_columns
from taskc.backend.sim.memory import Array, Memory
from taskc.backend.sim.operations import Operations
from taskc.backend.sim.report import Located
from taskc.backend.sim.schedule import Schedule, Thread, Wait
from taskc.backend.sim.shadow import join_all
from taskc.backend.sim.statements import Code, Statements
from taskc.backend.sim.worker_copies import close_group, wait_for
from taskc.ir import nodes as ir
from taskc.ir.target import MOST_REGISTERS, WARP, WARPGROUP, registers_at_launch

# --- Rings by phases: the protocol of acquire, commit, wait and release, slot by slot -----------


FREE, ACQUIRED, COMMITTED, READY = range(4)
_STATES = ("free", "being filled", "in flight", "ready")

# For each ring step: a slot's state before and after it, and the finding if the state is another.
_STEPS = {
    "acquire": (FREE, ACQUIRED, "slot-in-use", "acquires", "is not free"),
    "commit": (ACQUIRED, COMMITTED, "not-acquired", "commits to", "it has not acquired"),
    "wait": (COMMITTED, READY, "stale-stage", "waits for", "it has not committed"),
    "release": (READY, FREE, "early-release", "releases", "is not its own"),
}


class State:
    """The state of each slot of a ring, for each block, and the step it belongs to."""

    def __init__(self, blocks: int, stages: int) -> None:
        self.state = np.zeros((blocks, stages), np.int8)
        self.step = np.full((blocks, stages), -1, np.int64)
        self.released = np.zeros((blocks, stages), np.bool_)

    def renew(self, blocks: Array) -> None:
        """Free all slots, when the ring's tensors are allocated anew."""
        self.state[blocks] = FREE
        self.step[blocks] = -1
        self.released[blocks] = False


class Rings:
    def __init__(
        self, run: Run, expressions: Expressions, accesses: Accesses, nodes: list[Any]
    ) -> None:
        self.run = run
        self.expressions = expressions
        self.ring_of = run.ring_of
        self.sent_on: set[ir.Tensor] = set()
        for node in nodes:
            if isinstance(node, ir.Move):
                self.sent_on |= sent_by_bulk_copies(node)
            elif isinstance(node, ir.RingStep):
                for tensor in node.ring.tensors:
                    self.ring_of[tensor] = node.ring
        accesses.watch = self.watch

    @staticmethod
    def state(frame: Frame, ring: ir.Ring) -> State:
        rings = frame.group.rings
        if ring not in rings:
            rings[ring] = State(frame.count, ring.stages)
        state: State = rings[ring]
        return state

    def step(self, node: ir.RingStep) -> Code:
        ring, operation = node.ring, node.operation
        if operation not in _STEPS:  # steps are distinguished by their numbers here
            return Code(lambda frame: None)
        step = self.expressions.index(node.step)
        before, new, kind, verb, complaint = _STEPS[operation]

        def run(frame: Frame) -> None:
            state = self.state(frame, ring)
            number = np.broadcast_to(step(frame), (frame.count, 1))
            active = active_blocks(frame)[:, None]
            slot = number % ring.stages
            rows = frame.block_row
            now, held = state.state[rows, slot], state.step[rows, slot]
            wrong = (now != before) & active
            if operation != "acquire":
                wrong |= (held != number) & active
            if wrong.any():
                message = f"step {{}} {verb} a slot of {ring.name} that {complaint}"
                frame.fault(kind, message, wrong, node, number)
            if operation == "acquire":
                # Parities follow the steps' numbers, so no step may be skipped or repeated.
                wrong = (number != np.where(held < 0, slot, held + ring.stages)) & active
                if wrong.any():
                    message = f"step {{}} of {ring.name} is not the next one of its slot"
                    frame.fault("out-of-turn", message, wrong, node, number)
            chosen = active[:, 0]
            state.state[rows[chosen], slot[chosen]] = new
            state.step[rows[chosen], slot[chosen]] = number[chosen]
            state.released[rows[chosen], slot[chosen]] = new == FREE

        return Code(run)

    def watch(self, tensor: ir.Tensor, node: Located) -> Watch | None:
        """A function that checks each access to a tensor of a ring."""
        ring = self.ring_of.get(tensor)
        if ring is None or not self.run.by_phases:
            return None
        size = int(np.prod(self.run.shapes[tensor][1:], dtype=np.int64))
        # A worker that sends a slot on overwrites elements that it has read there.
        also_writable = READY if tensor in self.sent_on else ACQUIRED

        def watch(frame: Frame, memory: Memory, at: Any, illegal: Any, is_write: bool) -> None:
            state = self.state(frame, ring)
            slot: Array = (at - memory.rows) // size
            slot = np.broadcast_to(slot, np.broadcast_shapes(slot.shape, (frame.count, 1)))
            now = state.state[frame.block_row, slot]
            wrong = (now != ACQUIRED) & (now != also_writable) if is_write else now != READY
            if not wrong.any():
                return
            if illegal is not None:
                wrong = wrong & ~illegal
            if frame.mask is not None:
                wrong = wrong & frame.mask
            if not wrong.any():
                return
            _, _, position = frame.someone(wrong)
            spot = tuple(
                min(i, n - 1) for i, n in zip(position[-slot.ndim :], slot.shape, strict=True)
            )
            number = int(slot[spot])
            word = _STATES[int(now[spot])]
            released = state.released[frame.block_row, slot][spot]
            if is_write:
                kind = "not-acquired" if int(now[spot]) == FREE else "slot-in-use"
                message = f"{tensor.name} is written in slot {number}, which is {word}"
            elif released:
                kind = "early-release"
                message = f"{tensor.name} is read in slot {number}, which has been released"
            else:
                kind = "stale-stage"
                message = f"{tensor.name} is read in slot {number}, which is {word}"
            frame.fault(kind, message, wrong, node)

        return watch


GROUPS = {"warp": WARP, "warpgroup": WARPGROUP}


class Synchronization:
    def __init__(self, statements: Statements, rings: Rings) -> None:
        self.statements = statements
        self.run = statements.state
        self.rings = rings
        self.in_roles = False
        statements.makers[ir.Barrier] = self.barrier
        statements.makers[ir.Roles] = self.roles
        statements.makers[ir.RingStep] = self.ring_step

    # Barriers.

    def barrier(self, node: ir.Barrier) -> Code:
        if self.run.by_phases:
            return Code(lambda frame: None)
        if node.scope == "grid":
            return self._barrier_of_grid(node)
        if self.run.by_warps:
            return self._barrier_of_warps(node)
        group = GROUPS.get(node.scope)

        def run(frame: Frame) -> None:
            order = frame.group.order
            if frame.mask is None and not group:
                order.step()
                return
            size = group or max(frame.width, 1)
            for first in range(0, frame.width, size):
                every = all_come(frame, slice(first, first + size), node, node.scope)
                if group:
                    for block in np.flatnonzero(every).tolist():
                        order.join_workers(block, frame.worker_row[first : first + size])
                elif every.any():
                    order.join_blocks(np.flatnonzero(every))

        return Code(run)

    def _barrier_of_warps(self, node: ir.Barrier) -> Code:
        if node.scope == "warp":

            def run(frame: Frame) -> None:
                all_come(frame, slice(0, frame.width), node, "warp")
                frame.group.order.join_workers(0, frame.worker_row)

            return Code(run)
        what = f"the {node.scope} barrier"

        def steps(frame: Frame) -> Thread:
            all_come(frame, slice(0, frame.width), node, node.scope)
            base = frame.group.base
            everyone = slice(base, base + self.run.workers)
            members = everyone if node.scope == "block" else frame.members
            if node.scope == "warpgroup":
                first = base + int(frame.numbers[0]) // WARPGROUP * WARPGROUP
                members = slice(first, first + WARPGROUP)
            size = members.stop - members.start
            return schedule_of(frame).meet((members.start, size), size, frame, node, what)

        return Code(steps, waits=True)

    def _barrier_of_grid(self, node: ir.Barrier) -> Code:
        if self.run.by_warps:

            def steps(frame: Frame) -> Thread:
                run = self.run
                all_come(frame, slice(0, frame.width), node, "grid")
                before, what = run.grid_barriers, "the barrier of the grid"

                def have_all_come() -> bool:
                    return run.grid_barriers > before

                yield Wait(have_all_come, what, node.loc, is_barrier=True, grid_barrier=node)

            return Code(steps, waits=True)

        def run(frame: Frame) -> None:
            every = all_come(frame, slice(0, frame.width), node, "grid")
            if every.all():
                join_all([frame.group.order])
            elif every.any():
                message = "only some blocks come to this barrier of the grid"
                frame.fault("barrier-divergence", message, every[:, None], node)

        return Code(run)

    # Roles.

    def roles(self, node: ir.Roles) -> Code:
        self.in_roles = True
        bodies = [self.statements(role.body) for role in node.roles]
        self.in_roles = False
        if self.run.by_phases:
            return Code(self._roles_by_phases(node, bodies))
        parts = list(zip(node.roles, bodies, strict=True))

        def steps(frame: Frame) -> Thread:
            outer = frame.members, frame.first
            for role, body in parts:
                if role.first <= int(frame.numbers[0]) < role.first + role.workers:
                    frame.first = frame.group.base + role.first
                    frame.members = slice(frame.first, frame.first + role.workers)
                    yield from body.steps(frame)
            frame.members, frame.first = outer

        return Code(steps, waits=True)

    def _roles_by_phases(self, node: ir.Roles, bodies: list[Code]) -> Callable[[Frame], None]:
        """Run each role as one frame; they take turns where they wait for the ring."""

        def run(frame: Frame) -> None:
            frames = []
            for number, role in enumerate(node.roles):
                members = slice(role.first, role.first + role.workers)
                other = Frame(frame.group, np.arange(members.start, members.stop), members, number)
                other.env = dict(frame.env)
                other.memories = dict(frame.memories)
                other.mask = frame.mask
                frames.append(other)
            Schedule(frame.group, None).run(frames, lambda frame: bodies[frame.warp].steps(frame))

        return run

    # Ring steps.

    def ring_step(self, node: ir.RingStep) -> Code:
        if not self.run.by_phases:
            return self._ring_step_of_warps(node)
        code = self.rings.step(node)
        if not self.in_roles or node.operation not in ("acquire", "wait"):
            return code
        step = self.statements.expressions.index(node.step)
        wanted = FREE if node.operation == "acquire" else COMMITTED
        stages = node.ring.stages

        def steps(frame: Frame) -> Thread:
            number = np.broadcast_to(step(frame), (frame.count, 1))
            state = self.rings.state(frame, node.ring)
            rows, slot = frame.block_row, number % stages

            def ready() -> bool:
                good = state.state[rows, slot] == wanted
                if wanted == COMMITTED:
                    good = good & (state.step[rows, slot] == number)
                if frame.mask is not None:
                    good = good | ~frame.mask
                return bool(good.all())

            if not ready():
                which = f"step {int(number.flat[0])} of {node.ring.name}"
                verb = "a free slot for" if wanted == FREE else "the copies of"
                yield Wait(ready, f"{verb} {which}", node.loc)
            code.run(frame)

        return Code(steps, waits=True)

    def _ring_step_of_warps(self, node: ir.RingStep) -> Code:
        """Execute a ring step from stage synchronized on, until ring steps are lowered to operations."""
        ring, operation = node.ring, node.operation
        step = self.statements.expressions.index(node.step)
        if ring.transport == "cp.async":
            if operation == "commit":
                return Code(lambda frame: close_group(frame, (ring, int(np.max(step(frame))))))
            if operation == "wait":

                def wait(frame: Frame) -> None:
                    number = int(np.max(step(frame)))
                    wait_for(frame, lambda copy: copy.is_of(ring, number))

                return Code(wait)
            return Code(lambda frame: None)
        if not self.in_roles and ring.transport != "tma":
            return Code(lambda frame: None)
        return self._counted_step(node)

    def _counted_step(self, node: ir.RingStep) -> Code:
        """A ring step of slots with, in effect, mbarriers: for arrivals, and between roles for releases."""
        ring, operation = node.ring, node.operation
        step = self.statements.expressions.index(node.step)
        between_roles = self.in_roles
        is_bulk = ring.transport == "tma"

        def steps(frame: Frame) -> Thread:
            number = int(np.max(step(frame)))
            counted = ring_state(frame, ring)
            order = frame.group.order
            match operation:
                case "acquire":
                    before = number - ring.stages
                    if between_roles and before >= 0:
                        if not counted.is_free(before):
                            what = f"a free slot for step {number} of {ring.name}"
                            yield Wait(lambda: counted.is_free(before), what, node.loc)
                        order.acquire(0, frame.worker_row, counted.released[before][1])
                case "commit":
                    if is_bulk:
                        if (
                            int(frame.worker_row[0]) == frame.first
                        ):  # the worker that issues the copies
                            counted.committed.add(number)
                    else:
                        counted.arrive(counted.filled, number, frame)
                case "wait":
                    if not counted.has_arrived(number, is_bulk):
                        what = f"the copies of step {number} of {ring.name}"
                        yield Wait(lambda: counted.has_arrived(number, is_bulk), what, node.loc)
                    if is_bulk:
                        order.acquire(0, frame.worker_row, counted.arrived(order, number))
                    else:
                        order.acquire(0, frame.worker_row, counted.filled[number][1])
                case "enter" | "leave":
                    pass  # steps are distinguished by their numbers here
                case _:
                    if between_roles:
                        counted.arrive(counted.released, number, frame)

        return Code(steps, waits=True)


class RingArrivals:
    """A ring with counted slots: arrivals and releases of each step."""

    def __init__(self, stages: int, channel: int) -> None:
        self.stages = stages
        self.channel = channel  # channel of slot 0
        self.committed: set[int] = set()
        self.flying = [0] * stages  # bulk copies under way, for each slot
        self.clock = [0] * stages
        self.filled: dict[int, tuple[int, Any]] = {}
        self.released: dict[int, tuple[int, Any]] = {}
        self.size = {id(self.filled): 0, id(self.released): 0}

    def arrive(self, table: dict[int, tuple[int, Any]], step: int, frame: Frame) -> None:
        known = frame.group.order.release(0, frame.worker_row)
        count, before = table.get(step, (0, None))
        if before is not None:
            known = np.maximum(before, known)
        table[step] = (count + frame.width, known)
        self.size[id(table)] = frame.members.stop - frame.members.start

    def is_free(self, step: int) -> bool:
        return self._complete(self.released, step)

    def has_arrived(self, step: int, is_bulk: bool) -> bool:
        if is_bulk:
            return step in self.committed and not self.flying[step % self.stages]
        return self._complete(self.filled, step)

    def arrived(self, order: Any, step: int) -> Any:
        order.spread()
        known = np.zeros(order.workers + order.channels, np.int32)
        slot = step % self.stages
        known[order.workers + self.channel + slot] = self.clock[slot] + 1
        return known

    def _complete(self, table: dict[int, tuple[int, Any]], step: int) -> bool:
        return step in table and table[step][0] >= self.size[id(table)]


def ring_state(frame: Frame, ring: ir.Ring) -> RingArrivals:
    rings = frame.group.rings
    if ring not in rings:
        channel = frame.group.first_channel + frame.run.channels.get(ring, 0)
        rings[ring] = RingArrivals(ring.stages, channel)
    counted: RingArrivals = rings[ring]
    return counted


def schedule_of(frame: Frame) -> Schedule:
    schedule: Schedule = frame.group.schedule
    return schedule


def all_come(frame: Frame, part: slice, node: ir.Barrier | ir.Do, scope: str) -> Any:
    """Mask of blocks in which all of these workers arrive; reports blocks in which only some do."""
    if frame.mask is None:
        return np.ones(frame.count, np.bool_)
    full = (frame.count, frame.width)
    active: Array = np.broadcast_to(frame.mask, full)[:, part]
    some, every = active.any(axis=1), active.all(axis=1)
    if (some != every).any():
        where = np.zeros(full, np.bool_)
        where[:, part] = active & ~np.asarray(every)[:, None]
        message = f"only some workers of the {scope} come to this barrier"
        frame.fault("barrier-divergence", message, where, node)
    return every


class RegisterPool:
    """The registers of one block: `held` has the number per worker of each warpgroup. Requests for more wait."""

    def __init__(self, workers: int) -> None:
        self.launched = registers_at_launch(workers)
        self.held = [min(self.launched, MOST_REGISTERS)] * -(-workers // WARPGROUP)
        self.free = 0
        self.asked: dict[int, int] = {}

    def ask(self, group: int, count: int) -> None:
        self.asked[group] = count
        self.serve()

    def serve(self) -> None:
        for group, count in list(self.asked.items()):
            more = (count - self.held[group]) * WARPGROUP
            if more <= self.free:
                self.free -= more
                self.held[group] = count
                del self.asked[group]
                self.serve()
                return


class RegisterPools:
    def __init__(self, operations: Operations) -> None:
        self.run = operations.run
        operations.makers["setmaxnreg"] = self.change

    def change(self, node: ir.Do) -> Code:
        (count,) = operands_of(node).numbers

        def steps(frame: Frame) -> Thread:
            active = active_columns(frame)
            first = int(frame.numbers[0]) // WARPGROUP * WARPGROUP
            if not active.all() or first + WARPGROUP > self.run.workers:
                message = "only some workers of the warpgroup take part"
                frame.fault("inactive-lane", message, active[None], node)
                return
            pool, number = pool_of(frame), first // WARPGROUP

            def ask() -> None:
                held = pool.held[number]
                # The instruction depends on the number at launch.
                if (count < held) if count > pool.launched else (count > held):
                    verb = "takes" if count > pool.launched else "gives up"
                    frame.fault(
                        "registers",
                        f"the warpgroup {verb} registers to have {count}, and has {held}",
                        np.ones((1, 1), np.bool_),
                        node,
                    )
                pool.ask(number, count)

            key = "registers", frame.group.base + first, id(node)
            yield from schedule_of(frame).gather(key, frame, node.loc, ask, WARPGROUP)
            if number in pool.asked:
                missing = (count - pool.held[number]) * WARPGROUP - pool.free
                what = f"{missing} more registers of the block's, which nobody has given up"
                yield Wait(lambda: number not in pool.asked, what, node.loc)

        return Code(steps, waits=True)


def pool_of(frame: Frame) -> RegisterPool:
    if frame.group.registers is None:
        frame.group.registers = RegisterPool(frame.run.workers)
    pool: RegisterPool = frame.group.registers
    return pool
