"""Vector loops: what all turns do in one place is one access of so many elements.

The loop runs its turns at once, statement by statement, as a machine does. Whoever made it claims
that each access is aligned and contiguous, and that no turn touches what another one stores: it is
held to that here.
"""

from __future__ import annotations

from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import numpy as np

from taskc.analysis.banks import swizzled
from taskc.backend.sim.machine import Frame, Touched
from taskc.backend.sim.memory import Array, Memory
from taskc.backend.sim.report import Located
from taskc.backend.sim.statistics import physical

WIDEST = 16  # bytes; GLOBAL and SHARED memory starts at multiples of them


def check_vector(
    frame: Frame, memory: Memory, at: Any, where: Any, node: Located, is_store: bool
) -> None:
    """Reports an access in a vector loop that isn't one access of its elements."""
    count = frame.vector
    rank = len(frame.axes) + 2
    if not frame.axes:  # an asynchronous copy: `at` is its first element
        at, rank = at + np.arange(count).reshape(count, 1, 1), 3
    active: Any = np.atleast_2d(True if where is None else where)
    if active.ndim == rank and len(active) == count:
        partly = active.any(axis=0) & ~active.all(axis=0)
        if np.count_nonzero(partly):
            message = f"only some turns of a vector loop access {memory.tensor.name}"
            frame.fault("not-a-vector", message, partly, node)
        active = active.any(axis=0)
    elif active.ndim == rank:
        active = active[0]
    tensor = memory.tensor
    offsets = at - memory.rows
    if frame.run.is_flat or tensor.layout is None:
        offsets = swizzled(tensor.swizzle, offsets)
    else:
        active = active & (offsets[-1] < memory.size)  # what is outside has been reported
        offsets = physical(tensor, memory.shape, np.clip(offsets, 0, memory.size - 1))
    steps = np.diff(offsets, axis=0) if np.ndim(at) == rank and len(at) > 1 else np.zeros(1)
    if not np.count_nonzero(steps):
        if is_store and count > 1 and np.count_nonzero(active):
            message = f"all turns of a vector loop store to one element of {tensor.name}"
            frame.fault("not-a-vector", message, active, node)
        return
    share = 1 if is_store else _share_of(steps * active)
    turns = np.arange(1, len(steps) + 1).reshape(-1, *[1] * (steps.ndim - 1))
    gaps = (steps != (turns % share == 0)).any(axis=0) & active
    if np.count_nonzero(gaps):
        message = (
            f"{count} elements of {tensor.name} are accessed at once, and don't lie side by side"
        )
        frame.fault("not-a-vector", message, gaps, node)
        return
    size = min(count // share * tensor.dtype.nbytes, WIDEST)
    wrong = (offsets[0] * tensor.dtype.nbytes + (tensor.offset or 0)) % size != 0
    wrong = wrong & active
    if np.count_nonzero(wrong):
        message = (
            f"{count} elements of {tensor.name} are accessed at once from offset {{}} on,"
            f" which isn't at a multiple of {size} bytes"
        )
        frame.fault("misaligned", message, wrong, node, offsets[0])


def _share_of(steps: Array) -> int:
    """How many turns read one element, before the next ones read its neighbour."""
    moving = np.flatnonzero(steps.any(axis=tuple(range(1, steps.ndim))))
    return int(moving[0]) + 1 if moving.size else 1


class _Span(NamedTuple):
    """The bytes [start, end) that each turn touches, and where it does."""

    start: Array
    end: Array
    active: Array


def check_turns(frame: Frame, touched: list[Touched]) -> None:
    """Reports a turn that touches what another one stores. The loop's axis is the frame's first."""
    count = frame.axes[0]
    for first, second in combinations_with_replacement(touched, 2):
        store, other = (first, second) if first.is_store else (second, first)
        if not store.is_store or not _share(store.memory, other.memory):
            continue
        a, b = _span(frame, store), _span(frame, other)
        for distance in range(1, count):
            start, end, active = (np.roll(part, distance, axis=0) for part in b)
            wrong = (a.start < end) & (start < a.end) & a.active & active
            if np.count_nonzero(wrong):
                _report(frame, store, other, wrong)
                break


def _share(a: Memory, b: Memory) -> bool:
    return a is b or (a.shadow is not None and a.shadow is b.shadow)


def _span(frame: Frame, touched: Touched) -> _Span:
    size = touched.memory.tensor.dtype.nbytes
    start = np.broadcast_to(np.asarray(touched.at) * size, frame.full)
    active = np.broadcast_to(True if touched.where is None else touched.where, frame.full)
    return _Span(start, start + size, active)


def _report(frame: Frame, store: Touched, other: Touched, wrong: Array) -> None:
    name = store.memory.tensor.name
    does = "stores to" if other.is_store else "reads"
    message = f"one turn of a vector loop stores to {name}, and another one {does} the same element"
    notes = ((f"it {does} it here", other.loc),)
    frame.fault("not-a-vector", message, wrong, store, notes=notes)
