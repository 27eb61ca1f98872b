"""The registers of a block, which its warpgroups give up and take (`setmaxnreg`)."""

from __future__ import annotations

import numpy as np

from taskc.backend.operands import operands_of
from taskc.backend.sim.machine import Frame, active_columns
from taskc.backend.sim.operations import Operations
from taskc.backend.sim.schedule import Thread, Wait
from taskc.backend.sim.statements import Code
from taskc.backend.sim.synchronization import schedule_of
from taskc.ir import nodes as ir
from taskc.ir.target import MOST_REGISTERS, WARPGROUP, registers_at_launch


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
