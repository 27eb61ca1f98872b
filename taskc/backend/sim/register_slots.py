"""Fragments in registers: the parts of a matrix that the lanes of whole warps hold, from a slot on."""

from __future__ import annotations

from typing import Any

import numpy as np

from taskc.backend.sim.accesses import Accesses
from taskc.backend.sim.machine import Frame
from taskc.backend.sim.memory import Array
from taskc.backend.sim.recording import memory_of
from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.ir.target import WARP


class RegisterSlots:
    """A range of registers of each lane, from an address on."""

    def __init__(self, accesses: Accesses, node: ir.Do, at: ir.Address, count: int) -> None:
        self.node, self.tensor, self.count = node, at.tensor, count
        self.place = accesses.place(at.tensor, at.indices, node)

    def _part(self, frame: Frame) -> slice:
        start = int(np.max(self.place(frame)[0]))
        return slice(start, start + self.count)

    def read(self, frame: Frame) -> Array:
        """The registers' values, [block, lane, slot]."""
        memory, part = memory_of(frame, self.tensor), self._part(frame)
        missing = (memory.written[part] == 0).any(axis=0)
        message = f"{self.tensor.name} is read before it is written"
        frame.fault_if("uninitialized", message, missing, self.node)
        return np.moveaxis(memory.data[part], 0, -1)

    def write(self, frame: Frame, values: Array) -> None:
        """Store values [block, lane, slot] for the active lanes."""
        memory, part = memory_of(frame, self.tensor), self._part(frame)
        lanes: Any = True if frame.mask is None else frame.mask
        np.copyto(memory.data[part], np.moveaxis(values, -1, 0), where=lanes)
        np.copyto(memory.written[part], 1, where=lanes)


def check_warps(frame: Frame, name: str, node: ir.Do) -> None:
    """Report a warp-wide operation in which only some lanes of the warp take part."""
    if frame.width % WARP or frame.axes:
        raise InternalError(f"{name} needs whole warps")
    if frame.mask is None:
        return
    mask = np.broadcast_to(frame.mask, frame.full).reshape(frame.count, -1, WARP)
    partly = mask.any(axis=-1) != mask.all(axis=-1)
    if np.count_nonzero(partly):
        where = np.repeat(partly, WARP, axis=-1)
        frame.fault("inactive-lane", "only some lanes of the warp take part", where, node)
