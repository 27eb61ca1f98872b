"""Barriers, roles and ring steps, in lockstep and by warps.

The registers of a block, which its warpgroups give up and take (`setmaxnreg`).
"""

from __future__ import annotations

from collections import defaultdict
from math import prod
from typing import Any

import numpy as np

from taskc.backend.operations import operands_of
from taskc.backend.sim.accesses import Watch
from taskc.backend.sim.asynchronous import Channel
from taskc.backend.sim.copies import close_group, wait_for
from taskc.backend.sim.machine import Frame, Run, active_blocks
from taskc.backend.sim.memory import Array, Storage
from taskc.backend.sim.recording import legal
from taskc.backend.sim.report import Located
from taskc.backend.sim.schedule import Thread, WarpSchedule, WarpWait, all_come
from taskc.backend.sim.shadow import Arrivals, Order, join_all
from taskc.backend.sim.statements import NOTHING, Code, Makers, StatementCompiler
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


class SlotStates:
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


def slots_of(frame: Frame, ring: ir.Ring) -> SlotStates:
    rings = frame.group.rings
    if ring not in rings:
        rings[ring] = SlotStates(frame.count, ring.stages)
    slots: SlotStates = rings[ring]
    return slots


def watch_ring(run: Run, tensor: ir.Tensor, node: Located) -> Watch | None:
    """A function that checks each access to a tensor of a ring."""
    ring = run.ring_of.get(tensor)
    if ring is None or not run.by_phases:
        return None
    size = prod(run.shapes[tensor][1:])
    # A worker that sends a slot on overwrites elements that it has read there.
    also_writable = READY if tensor in run.sent_on else ACQUIRED

    def watch(frame: Frame, memory: Storage, at: Any, illegal: Any, is_write: bool) -> None:
        slots = slots_of(frame, ring)
        slot: Array = (at - memory.rows) // size
        slot = np.broadcast_to(slot, np.broadcast_shapes(slot.shape, (frame.count, 1)))
        now = slots.state[frame.block_row, slot]
        wrong = (now != ACQUIRED) & (now != also_writable) if is_write else now != READY
        if not wrong.any():
            return
        wrong = legal(wrong if frame.mask is None else wrong & frame.mask, illegal)
        if not wrong.any():
            return
        _, _, position = frame.someone(wrong)
        spot = tuple(min(i, n - 1) for i, n in zip(position[-slot.ndim :], slot.shape, strict=True))
        number = int(slot[spot])
        done, why = "read", f"is {_STATES[int(now[spot])]}"
        if is_write:
            kind, done = "not-acquired" if int(now[spot]) == FREE else "slot-in-use", "written"
        elif slots.released[frame.block_row, slot][spot]:
            kind, why = "early-release", "has been released"
        else:
            kind = "stale-stage"
        message = f"{tensor.name} is {done} in slot {number}, which {why}"
        frame.fault(kind, message, wrong, node)

    return watch


def _step_by_phases(compiler: StatementCompiler, node: ir.RingStep) -> Code:
    ring, operation = node.ring, node.operation
    if operation not in _STEPS:  # steps are distinguished by their numbers here
        return NOTHING
    step = compiler.expressions.index(node.step)
    before, new, kind, verb, complaint = _STEPS[operation]

    def run(frame: Frame) -> None:
        slots = slots_of(frame, ring)
        number = np.broadcast_to(step(frame), (frame.count, 1))
        active = active_blocks(frame)[:, None]
        slot = number % ring.stages
        rows = frame.block_row
        now, held = slots.state[rows, slot], slots.step[rows, slot]
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
        slots.state[rows[chosen], slot[chosen]] = new
        slots.step[rows[chosen], slot[chosen]] = number[chosen]
        slots.released[rows[chosen], slot[chosen]] = new == FREE

    if not compiler.in_roles or operation not in ("acquire", "wait"):
        return Code(run)

    def steps(frame: Frame) -> Thread:
        number = np.broadcast_to(step(frame), (frame.count, 1))
        slots = slots_of(frame, ring)
        rows, slot = frame.block_row, number % ring.stages

        def ready() -> bool:
            good = slots.state[rows, slot] == before
            if operation == "wait":
                good = good & (slots.step[rows, slot] == number)
            if frame.mask is not None:
                good = good | ~frame.mask
            return bool(good.all())

        if not ready():
            what = "a free slot for" if operation == "acquire" else "the copies of"
            yield WarpWait(ready, f"{what} step {int(number.flat[0])} of {ring.name}", node.loc)
        run(frame)

    return Code(steps, waits=True)


# --- Rings by warps: from stage synchronized on, until ring steps are lowered to operations ------


class StepArrivals:
    """The arrivals of a role's workers at each step of a ring."""

    def __init__(self) -> None:
        self.steps: defaultdict[int, Arrivals] = defaultdict(Arrivals)
        self.size = 0

    def come(self, frame: Frame, step: int) -> None:
        self.steps[step].come(frame.group.order, frame.worker_row)
        self.size = frame.members.stop - frame.members.start

    def is_complete(self, step: int) -> bool:
        return step in self.steps and self.steps[step].count >= self.size


class RingArrivals:
    """A ring whose slots have, in effect, mbarriers: for arrivals, and between roles for releases."""

    def __init__(self, stages: int, first_channel: int) -> None:
        self.slots = [Channel(first_channel + slot) for slot in range(stages)]
        self.committed: set[int] = set()  # steps of bulk copies
        self.filled = StepArrivals()
        self.released = StepArrivals()

    def has_arrived(self, step: int, is_bulk: bool) -> bool:
        if is_bulk:
            return step in self.committed and not self.slots[step % len(self.slots)].flying
        return self.filled.is_complete(step)

    def known(self, order: Order, step: int, is_bulk: bool) -> Array:
        """The knowledge that waiting for a step gives."""
        if not is_bulk:
            return np.asarray(self.filled.steps[step].known)
        order.spread()
        known = np.zeros(order.workers + order.channels, np.int32)
        channel = self.slots[step % len(self.slots)]
        known[order.workers + channel.number] = channel.reached
        return known


def arrivals_of(frame: Frame, ring: ir.Ring) -> RingArrivals:
    rings = frame.group.rings
    if ring not in rings:
        first = frame.group.first_channel + frame.run.channels.get(ring, 0)
        rings[ring] = RingArrivals(ring.stages, first)
    arrivals: RingArrivals = rings[ring]
    return arrivals


def _ring_step(compiler: StatementCompiler, node: ir.RingStep) -> Code:
    if compiler.run.by_phases:
        return _step_by_phases(compiler, node)
    ring, operation = node.ring, node.operation
    step = compiler.expressions.index(node.step)
    if ring.transport == "cp.async":
        if operation == "commit":
            return Code(lambda frame: close_group(frame, (ring, int(np.max(step(frame))))))
        if operation == "wait":

            def wait(frame: Frame) -> None:
                number = int(np.max(step(frame)))
                wait_for(frame, lambda copy: copy.is_of(ring, number))

            return Code(wait)
        return NOTHING
    between_roles, is_bulk = compiler.in_roles, ring.transport == "tma"
    if not between_roles and not is_bulk:
        return NOTHING

    def steps(frame: Frame) -> Thread:
        number = int(np.max(step(frame)))
        arrivals, order = arrivals_of(frame, ring), frame.group.order
        before = number - ring.stages
        match operation:
            case "acquire":
                if between_roles and before >= 0:
                    released = arrivals.released
                    if not released.is_complete(before):
                        what = f"a free slot for step {number} of {ring.name}"
                        yield WarpWait(lambda: released.is_complete(before), what, node.loc)
                    order.acquire(0, frame.worker_row, released.steps[before].known)
            case "commit":
                if not is_bulk:
                    arrivals.filled.come(frame, number)
                elif int(frame.worker_row[0]) == frame.first:  # the worker that issues the copies
                    arrivals.committed.add(number)
            case "wait":
                if not arrivals.has_arrived(number, is_bulk):
                    what = f"the copies of step {number} of {ring.name}"
                    yield WarpWait(lambda: arrivals.has_arrived(number, is_bulk), what, node.loc)
                order.acquire(0, frame.worker_row, arrivals.known(order, number, is_bulk))
            case "enter" | "leave":
                pass  # steps are distinguished by their numbers here
            case _:
                if between_roles:
                    arrivals.released.come(frame, number)

    return Code(steps, waits=True)


# --- Barriers ------------------------------------------------------------------------------------


_GROUPS = {"warp": WARP, "warpgroup": WARPGROUP}


def _barrier(compiler: StatementCompiler, node: ir.Barrier) -> Code:
    run = compiler.run
    if run.by_phases:
        return NOTHING
    if node.scope == "grid":
        return _barrier_of_grid_by_warps(node) if run.by_warps else _barrier_of_grid(node)
    if run.by_warps:
        return _barrier_of_warp(node) if node.scope == "warp" else _barrier_of_warps(node)
    group = _GROUPS.get(node.scope)

    def barrier(frame: Frame) -> None:
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

    return Code(barrier)


def _barrier_of_warp(node: ir.Barrier) -> Code:
    def run(frame: Frame) -> None:
        all_come(frame, slice(0, frame.width), node, "warp")
        frame.group.order.join_workers(0, frame.worker_row)

    return Code(run)


def _barrier_of_warps(node: ir.Barrier) -> Code:
    what = f"the {node.scope} barrier"

    def steps(frame: Frame) -> Thread:
        all_come(frame, slice(0, frame.width), node, node.scope)
        base = frame.group.base
        everyone = slice(base, base + frame.run.workers)
        members = everyone if node.scope == "block" else frame.members
        if node.scope == "warpgroup":
            first = base + int(frame.numbers[0]) // WARPGROUP * WARPGROUP
            members = slice(first, first + WARPGROUP)
        size = members.stop - members.start
        yield from frame.group.schedule.meet((members.start, size), size, frame, node, what)

    return Code(steps, waits=True)


def _barrier_of_grid_by_warps(node: ir.Barrier) -> Code:
    def steps(frame: Frame) -> Thread:
        run = frame.run
        all_come(frame, slice(0, frame.width), node, "grid")
        before, what = run.grid_barriers, "the barrier of the grid"

        def have_all_come() -> bool:
            return run.grid_barriers > before

        yield WarpWait(have_all_come, what, node.loc, is_barrier=True, grid_barrier=node)

    return Code(steps, waits=True)


def _barrier_of_grid(node: ir.Barrier) -> Code:
    def run(frame: Frame) -> None:
        every = all_come(frame, slice(0, frame.width), node, "grid")
        if every.all():
            join_all([frame.group.order])
        elif every.any():
            message = "only some blocks come to this barrier of the grid"
            frame.fault("barrier-divergence", message, every[:, None], node)

    return Code(run)


# --- Roles ---------------------------------------------------------------------------------------


def _roles(compiler: StatementCompiler, node: ir.Roles) -> Code:
    compiler.in_roles = True
    bodies = [compiler(role.body) for role in node.roles]
    compiler.in_roles = False
    parts = list(zip(node.roles, bodies, strict=True))

    def by_phases(frame: Frame) -> None:
        """Run each role as one frame; they take turns where they wait for the ring."""
        frames = []
        for number, role in enumerate(node.roles):
            members = slice(role.first, role.first + role.workers)
            other = Frame(frame.group, np.arange(members.start, members.stop), members, number)
            other.env = dict(frame.env)
            other.memories = dict(frame.memories)
            other.mask = frame.mask
            frames.append(other)
        WarpSchedule(frame.group, None).run(frames, lambda frame: bodies[frame.warp].steps(frame))

    def steps(frame: Frame) -> Thread:
        outer = frame.members, frame.first
        for role, body in parts:
            if role.first <= int(frame.numbers[0]) < role.first + role.workers:
                frame.first = frame.group.base + role.first
                frame.members = slice(frame.first, frame.first + role.workers)
                yield from body.steps(frame)
        frame.members, frame.first = outer

    return Code(by_phases) if compiler.run.by_phases else Code(steps, waits=True)


# --- The registers of a block, which its warpgroups give up and take -----------------------------


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


def _change_registers(compiler: StatementCompiler, node: ir.Do) -> Code:
    (count,) = operands_of(node).numbers

    def steps(frame: Frame) -> Thread:
        active, group = frame.active, frame.group
        first = int(frame.numbers[0]) // WARPGROUP * WARPGROUP
        if not active.all() or first + WARPGROUP > frame.run.workers:
            message = "only some workers of the warpgroup take part"
            frame.fault("inactive-lane", message, active, node)
            return
        if group.registers is None:
            group.registers = RegisterPool(frame.run.workers)
        pool: RegisterPool = group.registers
        number = first // WARPGROUP

        def ask(_: list[Frame]) -> None:
            held = pool.held[number]
            # The instruction depends on the number at launch.
            takes = count > pool.launched
            if count < held if takes else count > held:
                verb = "takes" if takes else "gives up"
                message = f"the warpgroup {verb} registers to have {count}, and has {held}"
                frame.fault("registers", message, None, node)
            pool.ask(number, count)

        key = "registers", group.base + first, id(node)
        yield from group.schedule.gather(key, frame, node.loc, ask, WARPGROUP)
        if number in pool.asked:
            missing = (count - pool.held[number]) * WARPGROUP - pool.free
            what = f"{missing} more registers of the block's, which nobody has given up"
            yield WarpWait(lambda: number not in pool.asked, what, node.loc)

    return Code(steps, waits=True)


SYNCHRONIZATION: Makers = {ir.Barrier: _barrier, ir.Roles: _roles, ir.RingStep: _ring_step}
REGISTER_POOLS: Makers = {"setmaxnreg": _change_registers}
