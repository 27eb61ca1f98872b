"""Reads and stores: bounds, initialization and races are checked here."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, TypeAlias

import numpy as np

from taskc.backend.sim.expressions import Evaluate, Expressions
from taskc.backend.sim.machine import Frame, Run, Touched
from taskc.backend.sim.memory import Array, Memory
from taskc.backend.sim.privates import read_private, store_private
from taskc.backend.sim.recording import (
    legal,
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
from taskc.backend.sim.statistics import measure
from taskc.backend.sim.tiles import Tiles
from taskc.backend.sim.vectors import check_vector
from taskc.errors import InternalError
from taskc.ir import nodes as ir

Locator: TypeAlias = Callable[[Frame], "tuple[Any, Any]"]
"""The linear offset of an access, and the lanes (None: none) where it is illegal."""

Write: TypeAlias = Callable[[Frame, Any], None]
Issue: TypeAlias = Callable[[Frame, Memory, Any, Any, Any, int], None]
Watch: TypeAlias = Callable[[Frame, Memory, Any, Any, bool], None]


class Accesses:
    """Compiles accesses. The sets say which tensors can race, so that others need no shadow."""

    def __init__(self, run: Run, expressions: Expressions) -> None:
        self.run = run
        self.expressions = expressions
        self.written: frozenset[ir.Tensor] = frozenset()  # in the kernel
        self.phase_writes: frozenset[ir.Tensor] = frozenset()  # in the phase being compiled
        self.watch: Callable[[ir.Tensor, Located], Watch | None] = lambda *_: None
        self.of_products: frozenset[ir.Tensor] = frozenset()  # asynchronous ones' registers
        self.issue: Issue | None = None  # stores being compiled are asynchronous copies
        self.tiles = Tiles(expressions, self.place)
        expressions.read = self.read

    # Where an access goes.

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

    # Reads.

    def read(self, node: ir.Read, kind: str = "load") -> Evaluate:
        """`kind`: what the statistics call it."""
        match node.tensor.scope:
            case ir.GLOBAL | ir.SHARED:
                return self._read_memory(node, kind)
            case ir.TILE:
                return self.tiles.read(node)
            case ir.LOCAL | ir.REGISTER:
                return read_private(node, self.place(node.tensor, node.indices, node))
        raise InternalError(f"{node.tensor.name} can't be read")

    def _races(self, tensor: ir.Tensor) -> bool:
        if tensor.scope == ir.SHARED and self.run.by_phases:
            return tensor in self.phase_writes
        return tensor.scope == ir.SHARED or tensor in self.written

    def _is_measured(self, tensor: ir.Tensor) -> bool:
        return self.run.statistics and not (self.run.by_phases or tensor in self.run.peers)

    def _read_memory(self, node: ir.Read, kind: str) -> Evaluate:
        tensor = node.tensor
        place = self.place(tensor, node.indices, node)
        is_shared = tensor.scope == ir.SHARED
        races = self._races(tensor)
        site = self.run.site(node.loc)
        watch = self.watch(tensor, node)
        measured = self._is_measured(tensor)

        def read(frame: Frame) -> Any:
            at, illegal = place(frame)
            memory = memory_of(frame, tensor)
            if is_shared:
                at = at + memory.rows
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
                where = legal(frame.mask, illegal)
                check_vector(frame, memory, at, where, node, False)
                if frame.touched is not None:
                    frame.touched.append(Touched(memory, at, where, node.loc, False))
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
        place = self.place(tensor, indices, node)
        is_shared = tensor.scope == ir.SHARED
        once = tensor.scope == ir.GLOBAL and tensor.role == "out"
        site = self.run.site(node.loc)
        watch = self.watch(tensor, node)
        issue = self.issue
        measured = self._is_measured(tensor)
        if issue is not None:

            def start(frame: Frame, value: Any) -> None:
                at, illegal = place(frame)
                memory = memory_of(frame, tensor)
                issue(frame, memory, at + memory.rows, value, illegal, site)

            return start

        def store(frame: Frame, value: Any) -> None:
            at, illegal = place(frame)
            memory = memory_of(frame, tensor)
            if is_shared:
                at = at + memory.rows
            where = selection(frame, illegal)
            if watch is not None:
                watch(frame, memory, at, illegal, True)
            if frame.vector > 1:
                check_vector(frame, memory, at, where, node, True)
                if frame.touched is not None:
                    frame.touched.append(Touched(memory, at, where, node.loc, True))
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
            memory.data[flat] = values
            memory.mark(flat)
            touch(frame, memory, shape, flat, chosen, site, together, "write")

        return store

    def check_once(self, frame: Frame, memory: Memory, flat: Array, node: Located) -> None:
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
