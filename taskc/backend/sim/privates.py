"""LOCAL and REGISTER tensors: private memory of each worker."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from taskc.backend.sim.expressions import Evaluate
from taskc.backend.sim.machine import Frame, Touched
from taskc.backend.sim.memory import Array, Memory
from taskc.backend.sim.recording import memory_of, picked, selection, uninitialized
from taskc.backend.sim.registers import touch_registers
from taskc.backend.sim.report import Located
from taskc.ir import nodes as ir


def read_private(node: ir.Read, place: Callable[[Frame], tuple[Any, Any]]) -> Evaluate:
    tensor = node.tensor

    def read(frame: Frame) -> Any:
        at, illegal = place(frame)
        memory = memory_of(frame, tensor)
        if frame.touched is not None:
            frame.touched.append(Touched(memory, at, frame.mask, node.loc, False))
        where = private_place(memory, at)
        value = memory.data[where]
        if memory.registers is not None:
            touch_registers(frame, memory, lambda array: (array, where), "read", node)
        if not (memory.complete or memory.look()):
            missing = memory.written[where] == 0
            if np.count_nonzero(missing):
                uninitialized(frame, memory, at, missing, illegal, node)
        if frame.anonymous and value.shape[-1] != 1:
            value = value[..., :1]
        return value

    return read


def store_private(
    tensor: ir.Tensor,
    place: Callable[[Frame], tuple[Any, Any]],
    node: Located,
) -> Callable[[Frame, Any], None]:

    def store(frame: Frame, value: Any) -> None:
        at, illegal = place(frame)
        memory = memory_of(frame, tensor)
        where = frame.mask if illegal is None else selection(frame, illegal)
        if frame.touched is not None:
            frame.touched.append(Touched(memory, at, where, node.loc, True))
        memory.tried = False
        if memory.registers is not None:
            index = private_place(memory, at)
            touch_registers(frame, memory, lambda array: (array, index), "written", node)
        is_plain = where is None and np.shape(at)[-2:] == (1, 1)
        if is_plain and np.ndim(value) <= np.ndim(at) and len(memory.lanes) == 2:
            slots = at[..., 0, 0]
            memory.data[slots] = value
            memory.written[slots] = 1
            return
        deepest = max(np.ndim(value), np.ndim(where))
        if isinstance(at, np.ndarray) or deepest > len(memory.lanes):
            shape = frame.axes + memory.lanes[-2:]
            _, at, lane, value = picked(shape, where, at, private_lanes(memory), value)
            count = prod(memory.lanes)
            memory.data.reshape(-1)[at * count + lane] = value
            memory.written.reshape(-1)[at * count + lane] = 1
            return
        if where is None:
            memory.data[at] = value
            memory.written[at] = 1
            memory.complete = memory.complete or memory.size == 1
        else:
            np.copyto(memory.data[at], value, where=where)
            if not memory.complete:
                np.copyto(memory.written[at], 1, where=where)

    return store


def private_lanes(memory: Memory) -> Array:
    """The number of each lane, which is the position of its copy of an element."""
    numbers: Array = np.arange(prod(memory.lanes)).reshape(memory.lanes)
    return numbers


def private_place(memory: Memory, at: Any) -> Any:
    """An index into private memory, whose data has the shape [size, *lanes]."""
    if not isinstance(at, np.ndarray):
        return at
    if at.shape[-2:] == (1, 1) and len(memory.lanes) == 2:
        return at[..., 0, 0]
    return (at, *np.indices(memory.lanes, sparse=True))
