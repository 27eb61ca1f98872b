"""Atomic updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from taskc.backend.sim.accesses import Accesses
from taskc.backend.sim.machine import Frame
from taskc.backend.sim.memory import Array
from taskc.backend.sim.recording import memory_of, picked, selection, touch, uninitialized
from taskc.errors import InternalError
from taskc.ir import arithmetic, nodes as ir
from taskc.ir.types import DType

_AT: dict[str, np.ufunc] = {
    "+": np.add,
    "&": np.bitwise_and,
    "|": np.bitwise_or,
    "^": np.bitwise_xor,
    "min": np.minimum,
    "max": np.maximum,
}


def atomic(accesses: Accesses, node: ir.Atomic) -> Callable[[Frame, Any], Any]:
    tensor, operator = node.tensor, node.operator
    if tensor.scope not in (ir.GLOBAL, ir.SHARED):
        raise InternalError(f"{tensor.name} can't be updated atomically")
    place = accesses.place(tensor, node.indices, node)
    is_shared = tensor.scope == ir.SHARED
    site = accesses.run.site(node.loc)
    watch = accesses.watch(tensor, node)
    wants_result = node.result is not None

    def atomic(frame: Frame, value: Any) -> Any:
        at, illegal = place(frame)
        memory = memory_of(frame, tensor)
        if is_shared:
            at = at + memory.rows
        where = selection(frame, illegal)
        if watch is not None:
            watch(frame, memory, at, illegal, True)
        together = accesses.run.by_phases and not frame.in_each
        shape = (*frame.axes, frame.count, 1 if together else frame.width)
        chosen, flat, values = picked(shape, where, at, value)
        old = np.zeros(shape, memory.data.dtype)
        if not flat.size:
            return old
        if not (memory.complete or memory.look()):
            missing = memory.lacks(np.broadcast_to(at, shape))
            if where is not None:
                missing = missing & where
            if missing.any():
                uninitialized(frame, memory, at, missing, None, node)
        counts = frame.run.counts_changes
        was = memory.data[flat] if counts else None
        before = update(memory.data, flat, values, operator, tensor.dtype, wants_result)
        if counts:
            frame.run.changes += bool((memory.data[flat] != was).any())
        if wants_result:
            if chosen is None:
                old = before.reshape(shape)
            else:
                old.reshape(-1)[chosen] = before
        touch(frame, memory, shape, flat, chosen, site, together, "atomic")
        return old

    return atomic


def update(
    data: Array, at: Array, values: Array, operator: str, dtype: DType, wants_result: bool
) -> Array:
    """Atomic updates one after another, in the order of the lanes; gives the old values."""
    if not wants_result and dtype.is_integer and operator in _AT:
        _AT[operator].at(data, at, values)
        return values
    order = np.argsort(at, kind="stable")
    sorted_at = at[order]
    starts = np.flatnonzero(np.concatenate(([True], sorted_at[1:] != sorted_at[:-1])))
    counts = np.diff(np.append(starts, at.size))
    before = np.empty(at.size, data.dtype)
    for turn in range(int(counts.max())):
        lanes = order[starts[counts > turn] + turn]
        where = at[lanes]
        old = data[where]
        before[lanes] = old
        if operator in ("exchange", "release"):
            data[where] = values[lanes]
        elif operator != "acquire":
            data[where] = arithmetic.binary(operator, old, values[lanes], dtype)
    return before
