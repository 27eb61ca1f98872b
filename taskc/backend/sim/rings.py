"""Rings by phases: the protocol of acquire, commit, wait and release, slot by slot."""

from __future__ import annotations

from typing import Any

import numpy as np

from taskc.analysis.phases import sent_by_bulk_copies
from taskc.backend.sim.accesses import Accesses, Watch
from taskc.backend.sim.expressions import Expressions
from taskc.backend.sim.machine import Frame, Run, active_blocks
from taskc.backend.sim.memory import Array, Memory
from taskc.backend.sim.report import Located
from taskc.backend.sim.statements import Code
from taskc.ir import nodes as ir

FREE, ACQUIRED, COMMITTED, READY = range(4)
_STATES = ("free", "being filled", "in flight", "ready")

# Of a ring step: the state that a slot is in before it and behind it, and what is said where it isn't.
_STEPS = {
    "acquire": (FREE, ACQUIRED, "slot-in-use", "acquires", "is not free"),
    "commit": (ACQUIRED, COMMITTED, "not-acquired", "commits to", "it has not acquired"),
    "wait": (COMMITTED, READY, "stale-stage", "waits for", "it has not committed"),
    "release": (READY, FREE, "early-release", "releases", "is not its own"),
}


class State:
    """What each slot of a ring is in, for each block, and for which step."""

    def __init__(self, blocks: int, stages: int) -> None:
        self.state = np.zeros((blocks, stages), np.int8)
        self.step = np.full((blocks, stages), -1, np.int64)
        self.released = np.zeros((blocks, stages), np.bool_)

    def renew(self, blocks: Array) -> None:
        """The ring's tensors are allocated anew: all slots are free."""
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
        if operation not in _STEPS:  # steps are told apart by their numbers here
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
                # Parities are those of the steps' numbers, so that none may be left out or come again.
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
        """What checks each access to a tensor of a ring."""
        ring = self.ring_of.get(tensor)
        if ring is None or not self.run.by_phases:
            return None
        size = int(np.prod(self.run.shapes[tensor][1:], dtype=np.int64))
        # Who sends a slot on writes over what he has read there.
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
