"""mbarriers and named barriers, where warps run by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from taskc.backend.operands import operands_of
from taskc.backend.sim.clusters import groups_of
from taskc.backend.sim.machine import Frame, Group, active_columns
from taskc.backend.sim.memory import Array
from taskc.backend.sim.operations import Operations
from taskc.backend.sim.schedule import Thread, Wait
from taskc.backend.sim.statements import Code, Statements
from taskc.backend.sim.synchronization import all_come, schedule_of
from taskc.ir import nodes as ir
from taskc.ir.target import MOST_COUNTED


class Mbarrier:
    """One mbarrier of one block."""

    def __init__(self, name: str, channel: int) -> None:
        self.name = name
        self.channel = channel
        self.count = 0  # arrivals of each phase; 0 before it is set up
        self.left = 0
        self.bytes = 0
        self.phase = 0
        self.known: Any = None  # knowledge that waiting for the last complete phase gives
        self.collected: Any = None
        self.made: tuple[int, int] = (0, 0)  # worker and clock of its setting up
        self.used: dict[int, int] = {}  # the last clock of each worker's use
        self.flying: list[int] = []  # clocks of bulk copies under way
        self.clock = 0  # clock of the latest copy

    def set_up(self, count: int) -> None:
        self.count = self.left = count
        self.bytes = self.phase = 0
        self.known = self.collected = None
        self.used = {}

    def use(self, workers: Array, stamps: Any) -> None:
        self.used.update(zip(workers.tolist(), stamps.tolist(), strict=True))

    def collect(self, known: Array) -> None:
        self.collected = known if self.collected is None else np.maximum(self.collected, known)

    def advance(self, workers: int) -> None:
        """Complete the phase if no arrivals or bytes are missing."""
        if self.left or self.bytes or not self.count:
            return
        if self.collected is not None:
            known = self.collected.copy()
            if self.clock:
                channel = workers + self.channel
                known[channel] = max(known[channel], min(self.flying, default=self.clock + 1))
            self.known = known
        self.phase += 1
        self.left = self.count

    def is_out_of_range(self) -> bool:
        return abs(self.bytes) > MOST_COUNTED

    def has_completed(self, parity: int) -> bool:
        return self.phase & 1 != parity & 1


class Mbarriers:
    def __init__(self, operations: Operations) -> None:
        self.statements: Statements = operations.statements
        self.accesses = operations.accesses
        self.expressions = operations.expressions
        self.run = operations.run
        operations.makers.update(
            {
                "mbarrier.init": self.init,
                "mbarrier.arrive": self.arrive,
                "mbarrier.expect": self.arrive,
                "mbarrier.release": self.arrive,
                "mbarrier.wait": self.wait,
                "barrier.named": self.named,
                "barrier.arrive": self.named,
            }
        )

    # mbarriers.

    def named_by(self, node: ir.Do, position: int = 0) -> Any:
        """A function that returns the mbarriers that the active lanes name, each with its workers."""
        address = operands_of(node).places[position]
        tensor = address.tensor
        place = self.accesses.place(tensor, address.indices, node)

        def barriers(frame: Frame) -> list[tuple[Mbarrier, Array]]:
            at, illegal = place(frame)
            active = active_columns(frame)
            if illegal is not None:
                active &= ~np.broadcast_to(illegal, (1, frame.width))[0]
            numbers = np.broadcast_to(at, (1, frame.width))[0]
            result = []
            for group, mine in groups_of(frame, tensor, active, node):
                for number in np.unique(numbers[mine]).tolist():
                    workers = frame.worker_row[mine & (numbers == number)]
                    own = self.run.peers.get(tensor, tensor)
                    result.append((self.barrier(group, own, number), workers))
            return result

        return barriers

    def barrier(self, group: Group, tensor: ir.Tensor, number: int) -> Mbarrier:
        table = group.mbarriers
        key = (tensor, number)
        if key not in table:
            channel = group.first_channel + self.run.channels[tensor] + number
            whose = f" of block {group.blocks[0]}" if group.cluster else ""
            table[key] = Mbarrier(f"{tensor.name}[{number}]{whose}", channel)
        barrier: Mbarrier = table[key]
        return barrier

    def counterpart(self, barrier: Mbarrier, mine: Group, group: Group) -> Mbarrier:
        """The mbarrier of another block that corresponds to this block's."""
        key = next(key for key, known in mine.mbarriers.items() if known is barrier)
        return self.barrier(group, *key)

    def is_set_up(self, frame: Frame, barrier: Mbarrier, workers: Array, node: ir.Do) -> bool:
        worker, clock = barrier.made
        order = frame.group.order
        kind = message = ""
        if not barrier.count:
            kind, message = "uninitialized", f"{barrier.name} has not been set up"
        elif (workers != worker).any() and (
            order.uniform
            or ((workers != worker) & (order.known[0, workers, worker] <= clock)).any()
        ):
            kind = "race"
            message = f"{barrier.name} is used, and nothing orders that after its setting up"
        if kind:
            where = np.isin(frame.worker_row, workers)[None]
            frame.fault(kind, message, where, node)
        return bool(barrier.count)

    def init(self, node: ir.Do) -> Code:
        barriers = self.named_by(node)
        count = self.expressions(node.operands[1])

        def run(frame: Frame) -> None:
            order = frame.group.order
            for barrier, workers in barriers(frame):
                worker = int(workers[0])
                if len(workers) > 1:
                    where = np.isin(frame.worker_row, workers)[None]
                    message = f"{len(workers)} workers set up {barrier.name}; one is to"
                    frame.fault("several-issuers", message, where, node)
                order.spread()
                self._check_unused(frame, barrier, worker, node)
                barrier.made = (worker, int(order.stamp(0, workers[:1])[0]))
                barrier.set_up(int(np.max(count(frame))))

        return Code(run)

    def _check_unused(self, frame: Frame, barrier: Mbarrier, worker: int, node: ir.Do) -> None:
        """Check that setting the mbarrier up again is ordered after every earlier use of it."""
        known = frame.group.order.known[0, worker]
        unknown = [w for w, clock in barrier.used.items() if w != worker and known[w] <= clock]
        who = f"its use by {frame.group.name_of(min(unknown))}" if unknown else ""
        if barrier.flying:
            who = "the arrival of a bulk copy that it counts"
        if who:
            where = frame.worker_row[None] == worker
            message = f"{barrier.name} is set up again, and nothing orders that after {who}"
            frame.fault("race", message, where, node)

    def arrive(self, node: ir.Do) -> Code:
        barriers = self.named_by(node)
        expects = node.operation == "mbarrier.expect"
        count = self.expressions(node.operands[1]) if expects else None
        releases = node.operation == "mbarrier.release"
        condition = self.expressions(node.operands[1]) if releases else None

        def run(frame: Frame) -> None:
            order = frame.group.order
            for barrier, workers in barriers(frame):
                if condition is not None:
                    holds = np.broadcast_to(condition(frame), (1, frame.width))[0]
                    workers = workers[np.isin(workers, frame.worker_row[holds])]
                if not len(workers) or not self.is_set_up(frame, barrier, workers, node):
                    continue
                if count is not None:
                    self._expect(frame, barrier, workers, int(np.max(count(frame))), node)
                if len(workers) > barrier.left:
                    where = np.isin(frame.worker_row, workers)[None]
                    message = f"{barrier.name} expects {barrier.left} more arrivals in this phase"
                    frame.fault("over-arrival", message, where, node)
                    workers = workers[: barrier.left]
                if len(workers):
                    order.spread()
                    barrier.use(workers, order.stamp(0, workers))
                    barrier.collect(order.release(0, workers))
                    barrier.left -= len(workers)
                    barrier.advance(order.workers)

        return Code(run)

    def _expect(
        self, frame: Frame, barrier: Mbarrier, workers: Array, count: int, node: ir.Do
    ) -> None:
        barrier.bytes += count * len(workers)
        message = ""
        if not 0 <= count <= MOST_COUNTED:
            message = (
                f"{count} bytes are expected at {barrier.name}; there may be 0 to {MOST_COUNTED}"
            )
        elif barrier.is_out_of_range():
            message = f"{barrier.bytes} bytes are missing at {barrier.name}, which counts to {MOST_COUNTED}"
        if message:
            where = np.isin(frame.worker_row, workers)[None]
            frame.fault("out-of-range", message, where, node)

    def wait(self, node: ir.Do) -> Code:
        barriers = self.named_by(node)
        parity = self.expressions(node.operands[1])

        def steps(frame: Frame) -> Thread:
            order = frame.group.order
            for barrier, workers in barriers(frame):
                if not self.is_set_up(frame, barrier, workers, node):
                    continue
                turn = int(np.max(parity(frame)))

                def ready(barrier: Mbarrier = barrier, turn: int = turn) -> bool:
                    return barrier.has_completed(turn)

                if not ready():
                    missing = f"{barrier.name} to complete its phase of parity {turn}"
                    if barrier.bytes < 0:
                        missing += f" ({-barrier.bytes} bytes have come that nobody expected)"
                    else:
                        missing += (
                            f" ({barrier.left} arrivals and {barrier.bytes} bytes are missing)"
                        )
                    yield Wait(ready, missing, node.loc)
                if barrier.known is not None:
                    order.acquire(0, workers, barrier.known)
                order.spread()
                barrier.use(workers, order.stamp(0, workers))

        return Code(steps, waits=True)

    def named(self, node: ir.Do) -> Code:
        numbers, (count,) = self.expressions(node.operands[0]), operands_of(node).numbers[-1:]
        waits = node.operation == "barrier.named"

        def steps(frame: Frame) -> Thread:
            all_come(frame, slice(0, frame.width), node, "warp")
            number = int(np.max(numbers(frame)))
            what = f"barrier {number} among {count} workers"
            key = ("named", number, frame.group.base)
            return schedule_of(frame).meet(
                key, count, frame, node, what, is_named=True, waits=waits
            )

        return Code(steps, waits=True)
