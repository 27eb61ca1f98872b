"""Barriers and operations, where all blocks run in lockstep."""

from __future__ import annotations

import numpy as np

from taskc.backend.sim.machine import Frame
from taskc.backend.sim.order import WARP
from taskc.backend.sim.statements import Code, Statements
from taskc.ir import nodes as ir


class Synchronization:
    def __init__(self, statements: Statements) -> None:
        self.statements = statements
        self.run = statements.state
        statements.makers[ir.Barrier] = self.barrier

    def barrier(self, node: ir.Barrier) -> Code:
        if self.run.by_phases:
            return Code(lambda frame: None)
        is_warp = node.scope == "warp"

        def run(frame: Frame) -> None:
            order = frame.group.order
            if frame.mask is None and not is_warp:
                order.step()
                return
            full = (frame.count, frame.width)
            active = np.ones(full, np.bool_)
            if frame.mask is not None:
                active = np.broadcast_to(frame.mask, full)
            size = WARP if is_warp else max(frame.width, 1)
            for first in range(0, frame.width, size):
                part = active[:, first : first + size]
                some, every = part.any(axis=1), part.all(axis=1)
                if (some != every).any():
                    where = np.zeros(full, np.bool_)
                    where[:, first : first + size] = part & ~every[:, None]
                    who = "warp" if is_warp else "block"
                    message = f"only some workers of the {who} reach this barrier"
                    frame.fault("barrier-divergence", message, where, node.loc, node)
                if is_warp:
                    for block in np.flatnonzero(every).tolist():
                        order.join_workers(block, frame.worker_row[first : first + size])
                elif every.any():
                    order.join_blocks(np.flatnonzero(every))

        return Code(run)
