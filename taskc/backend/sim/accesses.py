"""Reads and stores, with their checks of bounds, initialization and races."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations_with_replacement
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from taskc.analysis.coalescing import swizzled
from taskc.backend.sim.expressions import Evaluate, ExpressionCompiler
from taskc.backend.sim.machine import Frame, Run, Touched, both
from taskc.backend.sim.memory import Array, Storage, physical
from taskc.backend.sim.recording import (
    legal,
    measure,
    memory_of,
    outside,
    picked,
    record,
    selection,
    spread,
    touch,
    uninitialized,
    unwaited,
)
from taskc.backend.sim.report import Located
from taskc.backend.sim.tiles import TileAccesses, read_private, store_private
from taskc.errors import InternalError
from taskc.ir import arithmetic, nodes as ir
from taskc.ir.types import DType

Locator: TypeAlias = Callable[[Frame], "tuple[Any, Any]"]
"""The linear offset of an access, and the lanes (None: none) where it is illegal."""

Write: TypeAlias = Callable[[Frame, Any], None]
Issue: TypeAlias = Callable[[Frame, Storage, Any, Any, Any, int], None]
Watch: TypeAlias = Callable[[Frame, Storage, Any, Any, bool], None]


class AccessCompiler:
    """Compiles accesses. `phase_writes` are the tensors written in the phase being compiled: they can race."""

    def __init__(self, run: Run, expressions: ExpressionCompiler) -> None:
        self.run = run
        self.expressions = expressions
        self.phase_writes: frozenset[ir.Tensor] = frozenset()
        self.watch: Callable[[ir.Tensor, Located], Watch | None] = lambda *_: None
        self.issue: Issue | None = None  # set while stores are compiled as asynchronous copies
        self.tiles = TileAccesses(expressions, self.place)
        expressions.read = self.read

    # Offsets.

    def place(
        self, tensor: ir.Tensor, indices: tuple[ir.Expression, ...], node: Located
    ) -> Locator:
        shape = self.run.shapes[tensor]
        if len(indices) != len(shape):
            if len(indices) != 1:
                raise InternalError(f"{tensor.name} has rank {len(shape)}, not {len(indices)}")
            shape = (prod(shape),)
        if self.run.is_flat and len(indices) == 1 and tensor.layout is not None:
            shape = (tensor.layout.slots,)
        base, stride = 0, prod(shape)
        terms: list[tuple[Evaluate, int, int, int]] = []
        for dimension, (index, extent) in enumerate(zip(indices, shape, strict=True)):
            stride = stride // extent if extent else 1
            if isinstance(index, ir.Constant) and 0 <= index.value < extent:
                base += int(index.value) * stride
            else:
                terms.append((self.expressions.index(index), extent, stride, dimension))
        if not terms:
            fixed = np.int64(base)
            return lambda frame: (fixed, None)

        def place(frame: Frame) -> tuple[Any, Any]:
            total: Any = base
            illegal = None
            for evaluate, extent, stride, dimension in terms:
                index = evaluate(frame)
                is_one = not isinstance(index, np.ndarray)
                wrong: Any = not 0 <= index < extent if is_one else index.view(np.uint64) >= extent
                if wrong if is_one else np.count_nonzero(wrong):
                    lanes = np.ones((1, 1), np.bool_) if is_one else wrong
                    where = outside(frame, tensor, lanes, index, extent, dimension, node)
                    if where is not None:
                        illegal = where if illegal is None else illegal | where
                    index = np.int64(0) if is_one else np.where(wrong, 0, index)
                total = total + (index if stride == 1 else index * stride)
            return total, illegal

        return place

    def _element(
        self, tensor: ir.Tensor, indices: tuple[ir.Expression, ...], node: Located
    ) -> Callable[[Frame], tuple[Storage, Any, Any]]:
        """A function for an element in memory: its offset, and the lanes where that is illegal, as in `place`."""
        place = self.place(tensor, indices, node)
        is_shared = tensor.scope == ir.SHARED

        def element(frame: Frame) -> tuple[Storage, Any, Any]:
            at, illegal = place(frame)
            memory = memory_of(frame, tensor)
            return memory, at + memory.rows if is_shared else at, illegal

        return element

    def _races(self, tensor: ir.Tensor) -> bool:
        """Whether accesses may race; all others need no shadow."""
        if tensor.scope == ir.SHARED and self.run.by_phases:
            return tensor in self.phase_writes
        return tensor.scope == ir.SHARED or tensor in self.run.written

    def _is_measured(self, tensor: ir.Tensor) -> bool:
        return self.run.statistics and not (self.run.by_phases or tensor in self.run.peers)

    # Reads.

    def read(self, node: ir.Read, kind: str = "load") -> Evaluate:
        """Compile a read; `kind` is its name in the statistics."""
        match node.tensor.scope:
            case ir.GLOBAL | ir.SHARED:
                return self._read_memory(node, kind)
            case ir.TILE:
                return self.tiles.read(node)
            case ir.LOCAL | ir.REGISTER:
                return read_private(node, self.place(node.tensor, node.indices, node))
        raise InternalError(f"{node.tensor.name} can't be read")

    def _read_memory(self, node: ir.Read, kind: str) -> Evaluate:
        tensor = node.tensor
        element = self._element(tensor, node.indices, node)
        races, measured = self._races(tensor), self._is_measured(tensor)
        site = self.run.site(node.loc)
        watch = self.watch(tensor, node)

        def read(frame: Frame) -> Any:
            memory, at, illegal = element(frame)
            if not memory.size:
                return memory.data.dtype.type(0)
            value = memory.data.take(at) if isinstance(at, np.ndarray) else memory.data[at]
            if memory.shadow is not None and memory.shadow.flight is not None:
                late = unwaited(frame, memory, at, illegal, site)
                if late is not None:
                    illegal = late if illegal is None else illegal | late
            if not (memory.complete or memory.look()):
                missing = memory.lacks(at)
                if np.count_nonzero(missing):
                    uninitialized(frame, memory, at, missing, illegal, node)
            if watch is not None:
                watch(frame, memory, at, illegal, False)
            if frame.vector > 1:
                note_vector(frame, memory, at, legal(frame.mask, illegal), node, False)
            if measured:
                measure(frame, memory, at, frame.mask, site, kind)
            if races:
                record(frame, memory, at, frame.mask, illegal, site, "read")
            return value

        return read

    # Stores.

    def store(self, tensor: ir.Tensor, indices: tuple[ir.Expression, ...], node: Located) -> Write:
        match tensor.scope:
            case ir.GLOBAL | ir.SHARED:
                return self._store_memory(tensor, indices, node)
            case ir.TILE:
                return self.tiles.store(tensor, indices, node)
            case ir.LOCAL | ir.REGISTER:
                return store_private(tensor, self.place(tensor, indices, node), node)
        raise InternalError(f"{tensor.name} can't be stored to")

    def _store_memory(
        self, tensor: ir.Tensor, indices: tuple[ir.Expression, ...], node: Located
    ) -> Write:
        element = self._element(tensor, indices, node)
        once = tensor.scope == ir.GLOBAL and tensor.role == "out"
        site = self.run.site(node.loc)
        watch = self.watch(tensor, node)
        issue = self.issue
        measured = self._is_measured(tensor)
        if issue is not None:

            def start(frame: Frame, value: Any) -> None:
                memory, at, illegal = element(frame)
                issue(frame, memory, at, value, illegal, site)

            return start

        def store(frame: Frame, value: Any) -> None:
            memory, at, illegal = element(frame)
            where = selection(frame, illegal)
            if watch is not None:
                watch(frame, memory, at, illegal, True)
            if frame.vector > 1:
                note_vector(frame, memory, at, where, node, True)
            shape, together = spread(frame, at, value, where)
            chosen, flat, values = picked(shape, where, at, value)
            if not flat.size:
                return
            if measured:
                measure(frame, memory, at, where, site, "store")
            if once:
                self.check_once(frame, memory, flat, node)
            if self.run.counts_changes:
                self.run.changes += bool((memory.data[flat] != values).any())
            memory.put(flat, values)
            touch(frame, memory, shape, flat, chosen, site, together, "write")

        return store

    def atomic(self, node: ir.Atomic) -> Callable[[Frame, Any], Any]:
        """Compile an atomic update; its function returns the old values."""
        tensor, operator = node.tensor, node.operator
        element = self._element(tensor, node.indices, node)
        site = self.run.site(node.loc)
        watch = self.watch(tensor, node)
        wants_result = node.result is not None

        def atomic(frame: Frame, value: Any) -> Any:
            memory, at, illegal = element(frame)
            where = selection(frame, illegal)
            if watch is not None:
                watch(frame, memory, at, illegal, True)
            together = self.run.by_phases and not frame.in_each
            shape = (*frame.axes, frame.count, 1 if together else frame.width)
            chosen, flat, values = picked(shape, where, at, value)
            old = np.zeros(shape, memory.data.dtype)
            if not flat.size:
                return old
            if not (memory.complete or memory.look()):
                missing = both(memory.lacks(np.broadcast_to(at, shape)), where)
                if missing.any():
                    uninitialized(frame, memory, at, missing, None, node)
            counts = self.run.counts_changes
            was = memory.data[flat] if counts else None
            before = update(memory.data, flat, values, operator, tensor.dtype, wants_result)
            if counts:
                self.run.changes += bool((memory.data[flat] != was).any())
            if wants_result:
                old.reshape(-1)[slice(None) if chosen is None else chosen] = before
            touch(frame, memory, shape, flat, chosen, site, together, "atomic")
            return old

        return atomic

    def check_once(self, frame: Frame, memory: Storage, flat: Array, node: Located) -> None:
        again = memory.written[flat] != 0
        if not np.count_nonzero(again):
            numbers = np.arange(flat.size)
            winner = np.empty(memory.written.size, np.int64)
            winner[flat] = numbers
            again = winner[flat] != numbers
            if not np.count_nonzero(again):
                return
        name = frame.name_element(memory, int(flat[np.argmax(again)]))
        count = int(np.count_nonzero(again))
        message = f"{name} is stored more than once"
        self.run.findings.add(
            "written-twice",
            message,
            node.loc,
            count=count,
            details=(("element", name),),
            where=node,
        )


# --- Vector loops: the accesses of all turns in one place are one access of several elements ---
# The loop runs its turns at once, statement by statement, as a machine does. A vector loop claims that each
# access is aligned and contiguous, and that no turn touches an element that another one stores: the claim is
# checked here.


WIDEST = 16  # bytes; GLOBAL and SHARED memory starts at a multiple of it


def note_vector(
    frame: Frame, memory: Storage, at: Any, where: Any, node: Located, is_store: bool
) -> None:
    """Check an access in a vector loop, and note it where the loop's turns may conflict."""
    check_vector(frame, memory, at, where, node, is_store)
    if frame.touched is not None:
        frame.touched.append(Touched(memory, at, where, node.loc, is_store))


def check_vector(
    frame: Frame, memory: Storage, at: Any, where: Any, node: Located, is_store: bool
) -> None:
    """Report an access in a vector loop that isn't one contiguous, aligned access."""
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
        active = active & (offsets[-1] < memory.size)  # elements outside have been reported
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
    """How many consecutive turns read the same element."""
    moving = np.flatnonzero(steps.any(axis=tuple(range(1, steps.ndim))))
    return int(moving[0]) + 1 if moving.size else 1


class _Span(NamedTuple):
    """The bytes [start, end) that each turn touches, and the lanes that are active."""

    start: Array
    end: Array
    active: Array


def check_turns(frame: Frame, touched: list[Touched]) -> None:
    """Report a turn that touches an element another turn stores. The loop's axis is the frame's first."""
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


def _share(a: Storage, b: Storage) -> bool:
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


# --- Atomic updates -----------------------------------------------------------------------------


_AT: dict[str, np.ufunc] = {
    "+": np.add,
    "&": np.bitwise_and,
    "|": np.bitwise_or,
    "^": np.bitwise_xor,
    "min": np.minimum,
    "max": np.maximum,
}


def update(
    data: Array, at: Array, values: Array, operator: str, dtype: DType, wants_result: bool
) -> Array:
    """Atomic updates one after another, in the order of the lanes; returns the old values."""
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
