"""Registers: tiles, which a mapping distributes over workers, and LOCAL and REGISTER tensors, private to each worker.

From its start until a wait for its group an asynchronous matrix product has its accumulator, and a left operand that
is in registers. What ordinary code touches is the products' only after the next `wgmma.fence`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import prod
from typing import Any, TypeAlias

import numpy as np

from taskc.backend.sim.expressions import Evaluate, ExpressionCompiler
from taskc.backend.sim.machine import Frame, Touched, both
from taskc.backend.sim.memory import Array, Storage
from taskc.backend.sim.recording import memory_of, outside, picked, selection, uninitialized
from taskc.backend.sim.report import Located
from taskc.errors import InternalError
from taskc.ir import nodes as ir

PlaceMaker: TypeAlias = Callable[
    [ir.Tensor, tuple[ir.Expression, ...], Located],
    Callable[[Frame], "tuple[Any, Any]"],
]

Pick: TypeAlias = Callable[[Array], "tuple[Array, Any]"]
"""Where an access goes: a view of an array of all registers, and an index into it."""


class Registers:
    """The state of a memory's registers, in arrays of the data's shape.

    touched  by ordinary code since the last fence
    held     1 + the number of the product that has it; 0: none
    """

    __slots__ = ("held", "touched")

    def __init__(self, shape: tuple[int, ...], is_filled: bool) -> None:
        self.touched = np.full(shape, is_filled)
        self.held = np.zeros(shape, np.int32)


def touch_registers(frame: Frame, memory: Storage, pick: Pick, verb: str, node: Located) -> None:
    """Check and note an access of ordinary code to registers."""
    registers = memory.registers
    assert registers is not None
    held, index = pick(registers.held)
    now = np.asarray(held[index])
    wrong = now != 0
    mask: Any = True
    if frame.mask is not None:
        mask = np.broadcast_to(frame.mask, np.broadcast_shapes(np.shape(frame.mask), now.shape))
        mask = (
            mask if mask.shape == now.shape else mask.any(axis=tuple(range(mask.ndim - now.ndim)))
        )
        wrong = wrong & mask
    if np.count_nonzero(wrong):
        product = frame.group.multiplied[int(now[wrong].flat[0]) - 1]
        lanes = wrong if wrong.ndim >= 2 else wrong.reshape(1, -1)
        block, worker, _ = frame.someone(lanes)
        details: tuple[tuple[str, str | int], ...] = (("block", block),)
        if worker is not None:
            details = (*details, ("worker", worker))
        frame.run.findings.add(
            "unwaited-product",
            f"registers of {memory.tensor.name} are {verb} while a matrix product has them",
            node.loc,
            count=int(np.count_nonzero(wrong)),
            details=details,
            notes=(("the product is issued here", product.loc),),
            where=node,
        )
    touched, index = pick(registers.touched)
    np.logical_or.at(touched, index, mask)


# --- Tiles ---------------------------------------------------------------------------------------


_CACHED = 256


class TileAccesses:
    """Compiles accesses to tiles. `place` gives row-major offsets, for whole-block statements."""

    def __init__(self, expressions: ExpressionCompiler, place: PlaceMaker) -> None:
        self.expressions = expressions
        self.place = place

    def _slots(
        self, tensor: ir.Tensor, indices: tuple[ir.Expression, ...], node: Located
    ) -> Callable[[Frame], tuple[Any, Any, Any]]:
        """(slots, missing, kept): the slots in which the workers hold the element.

        `slots` is an int where all lanes agree, Ellipsis where they are all slots in order, a
        tuple of one array [*axes] where the worker doesn't matter, else an array of lanes.
        """
        evaluates = [self.expressions.index(index) for index in indices]
        owners = tensor.owners
        if owners is None:
            raise InternalError(f"the tile {tensor.name} has no owners")
        shape = tuple(n for n in tensor.shape if isinstance(n, int))
        cache: dict[Any, tuple[Any, Any, Any]] = {}

        def tile_place(frame: Frame) -> tuple[Any, Any, Any]:
            values = [evaluate(frame) for evaluate in evaluates]
            key: Any = [id(v) if isinstance(v, np.ndarray) else ~int(v) for v in values]
            key = (frame.axes, frame.first, int(frame.worker_row[0]), *key)
            found = cache.get(key)
            if found is None and frame.loop is not None and frame.loop.mapping == owners:
                held = frame.loop.values
                # An inner loop that runs all its turns at once has added axes of its own.
                is_whole = frame.loop.slots is not Ellipsis or prod(frame.axes) == owners.slots
                if is_whole and len(held) == len(values) and all(map(operator.is_, held, values)):
                    found = cache[key] = (frame.loop.slots, None, values)
            if found is None:
                tasks = np.stack(np.broadcast_arrays(*values), axis=-1) if values else np.zeros(0)
                slots = owners.find(frame.worker_row - frame.first, tasks)
                missing = slots < 0
                kept = (
                    _simplest(slots, frame),
                    missing if np.count_nonzero(missing) else None,
                    values,
                )
                if kept[1] is not None:
                    kept = (np.where(missing, 0, slots), *kept[1:])
                if len(cache) >= _CACHED:
                    cache.clear()
                found = cache[key] = kept
            if found[1] is not None:
                where = both(frame.mask, found[1])
                if np.count_nonzero(where):
                    self._not_owned(frame, tensor, shape, found[2], where, node)
                    return found[0], where, None
            return found[0], None, None

        return tile_place

    def _not_owned(
        self,
        frame: Frame,
        tensor: ir.Tensor,
        shape: tuple[int, ...],
        values: list[Any],
        where: Any,
        node: Located,
    ) -> None:
        for dimension, (index, extent) in enumerate(zip(values, shape, strict=True)):
            wrong = ((index < 0) | (index >= extent)) & where
            if np.count_nonzero(wrong):
                outside(frame, tensor, wrong, index, extent, dimension, node)
                return
        _, worker, position = frame.someone(where)
        element = [
            int(np.broadcast_to(value, np.broadcast_shapes(np.shape(value), where.shape))[position])
            for value in values
        ]
        name = f"{tensor.name}[{', '.join(map(str, element))}]"
        message = f"worker {worker} does not own {name}"
        frame.fault("not-owned", message, where, node)

    def read(self, node: ir.Read) -> Evaluate:
        tensor = node.tensor
        place = self._slots(tensor, node.indices, node)
        collective = self._read_collective(node)

        def read(frame: Frame) -> Any:
            if frame.anonymous:
                return collective(frame)
            slots, missing, _ = place(frame)
            memory = memory_of(frame, tensor)
            value = tile_values(memory.data, slots, frame, memory)
            if memory.registers is not None:
                touch_registers(frame, memory, _picked(slots, frame, memory), "read", node)
            if not (memory.complete or memory.look()):
                lacking = tile_values(memory.written, slots, frame, memory) == 0
                if np.count_nonzero(lacking):
                    uninitialized(frame, memory, 0, lacking, missing, node)
            return value

        return read

    def _read_collective(self, node: ir.Read) -> Evaluate:
        """A tile read by a whole-block statement: from the first owner of each element."""
        tensor = node.tensor
        place = self.place(tensor, node.indices, node)

        def read(frame: Frame) -> Any:
            at, illegal = place(frame)
            memory = memory_of(frame, tensor)
            flat = first_owners(frame, memory, at)
            if memory.registers is not None:
                touch_registers(frame, memory, lambda a: (a.reshape(-1), flat), "read", node)
            missing = memory.written.reshape(-1)[flat] == 0
            if np.count_nonzero(missing):
                uninitialized(frame, memory, at, missing, illegal, node)
            return memory.data.reshape(-1)[flat]

        return read

    def store(
        self, tensor: ir.Tensor, indices: tuple[ir.Expression, ...], node: Located
    ) -> Callable[[Frame, Any], None]:
        place = self._slots(tensor, indices, node)
        collective = self.place(tensor, indices, node)

        def store(frame: Frame, value: Any) -> None:
            memory = memory_of(frame, tensor)
            if frame.anonymous:
                at, illegal = collective(frame)
                if memory.registers is not None:
                    flat = first_owners(frame, memory, at)
                    pick = lambda array: (array.reshape(-1), flat)  # noqa: E731
                    touch_registers(frame, memory, pick, "written", node)
                self._store_to_owners(frame, memory, at, value, selection(frame, illegal))
                return
            slots, missing, _ = place(frame)
            where = frame.mask if missing is None else selection(frame, missing)
            if memory.registers is not None:
                touch_registers(frame, memory, _picked(slots, frame, memory), "written", node)
            tile_store(memory, slots, frame, value, where)

        return store

    def _store_to_owners(
        self, frame: Frame, memory: Storage, at: Any, value: Any, where: Any
    ) -> None:
        """Store a value for each owner of an element, through an array of the whole tile."""
        shape = (frame.count, memory.size)
        elements = np.zeros(shape, memory.data.dtype)
        touched = np.zeros(shape, np.bool_)
        full = np.broadcast_shapes(np.shape(at), np.shape(value), np.shape(where), frame.full)
        _, flat, block, values = picked(full, where, at, frame.block_row, value)
        elements[block, flat] = values
        touched[block, flat] = True
        scatter_tile(memory, elements, touched, frame)


def first_owners(frame: Frame, memory: Storage, at: Any) -> Any:
    """Flat indices of the first copies of the elements at row-major `at` in a tile's memory."""
    worker, slot = (part.reshape(-1)[at] for part in _first_copies(frame, memory))
    return (slot * frame.count + frame.block_row) * memory.lanes[-1] + worker


def _first_copies(frame: Frame, memory: Storage) -> tuple[Array, Array]:
    """The worker and the slot of the first copy of each of a tile's elements."""
    owners = memory.tensor.owners
    assert owners is not None
    workers, slots = owners.owner_table()
    inside = tuple(slice(extent) for extent in memory.shape)
    return workers[inside] + frame.first, slots[inside]


def _simplest(slots: Array, frame: Frame) -> Any:
    if slots.min() == slots.max():
        return int(slots.min())
    if slots.ndim >= 2 and slots.shape[-2] == 1 and (slots == slots[..., :1]).all():
        plain = slots[..., 0, 0]
        count = prod(frame.axes)
        if plain.shape == frame.axes and (plain.reshape(-1) == np.arange(count)).all():
            return Ellipsis
        return (plain,)
    return slots


def cube_of(data: Array, frame: Frame, memory: Storage) -> Array:
    """The part of a tile that belongs to the frame's workers, [slots, blocks, workers]."""
    cube = data.reshape(-1, *memory.lanes)
    if frame.width != memory.lanes[-1]:
        start = int(frame.columns[0])
        cube = cube[:, :, start : start + frame.width]
    return cube


def _picked(slots: Any, frame: Frame, memory: Storage) -> Pick:
    index: Any = slots
    if slots is Ellipsis:
        index = np.arange(prod(frame.axes)).reshape(frame.axes)
    elif isinstance(slots, np.ndarray):
        index = slots, frame.block_row, np.arange(frame.width)
    return lambda array: (cube_of(array, frame, memory), index)


def tile_values(data: Array, slots: Any, frame: Frame, memory: Storage) -> Array:
    cube = cube_of(data, frame, memory)
    if slots is Ellipsis:
        whole = cube if len(cube) == prod(frame.axes) else cube[: prod(frame.axes)]
        return whole.reshape(frame.full)
    if isinstance(slots, (int, tuple)):
        return np.asarray(cube[slots])
    return np.asarray(cube[slots, frame.block_row, np.arange(frame.width)])


def tile_store(memory: Storage, slots: Any, frame: Frame, value: Any, where: Any) -> None:
    for data, new in ((memory.data, value), (memory.written, 1)):
        if new is not value and memory.complete:
            return
        cube = cube_of(data, frame, memory)
        if slots is Ellipsis:
            view = cube[: prod(frame.axes)].reshape(frame.full)
            np.copyto(view, new, where=True if where is None else where)
        elif isinstance(slots, int) and not frame.axes:
            np.copyto(cube[slots], new, where=True if where is None else where)
        else:
            index: Any = slots[0][..., None, None] if isinstance(slots, tuple) else slots
            shape = frame.full
            flat = (index * frame.count + frame.block_row) * frame.width + np.arange(frame.width)
            _, at, values = picked(shape, where, flat, new)
            if cube.flags.c_contiguous:
                cube.reshape(-1)[at] = values
            else:
                slot, rest = np.divmod(at, frame.count * frame.width)
                cube[slot, rest // frame.width, rest % frame.width] = values
    memory.tried = False


def scatter_tile(memory: Storage, elements: Array, touched: Array, frame: Frame) -> None:
    """Store the touched elements [blocks, size] to every owner's copy."""
    owners = memory.tensor.owners
    assert owners is not None
    tasks, valid = owners.tasks, owners.valid
    inside = valid & (tasks < memory.shape).all(axis=-1)
    numbers = np.zeros(inside.shape, np.int64)
    for dimension, extent in enumerate(memory.shape):
        numbers = numbers * extent + np.where(inside, tasks[..., dimension], 0)
    first = frame.first
    cube = memory.data.reshape(-1, *memory.lanes)[:, :, first : first + owners.workers]
    written = memory.written.reshape(-1, *memory.lanes)[:, :, first : first + owners.workers]
    where = (touched[:, numbers] & inside).transpose(2, 0, 1)
    np.copyto(cube, elements[:, numbers].transpose(2, 0, 1), where=where)
    np.copyto(written, 1, where=where)
    memory.tried = False


def gather_tile(memory: Storage, frame: Frame) -> tuple[Array, Array]:
    """A tile as [blocks, *shape], from the first owners; and the mask of uninitialized elements."""
    worker, slot = _first_copies(frame, memory)
    blocks = np.arange(frame.count).reshape(-1, *(1 for _ in memory.shape))
    cube = memory.data.reshape(-1, *memory.lanes)
    written = memory.written.reshape(-1, *memory.lanes)
    return cube[slot, blocks, worker], written[slot, blocks, worker] == 0


# --- Private memory ------------------------------------------------------------------------------


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


def private_lanes(memory: Storage) -> Array:
    """The number of each lane, which is the position of its copy of an element."""
    numbers: Array = np.arange(prod(memory.lanes)).reshape(memory.lanes)
    return numbers


def private_place(memory: Storage, at: Any) -> Any:
    """An index into private memory, whose data has the shape [size, *lanes]."""
    if not isinstance(at, np.ndarray):
        return at
    if at.shape[-2:] == (1, 1) and len(memory.lanes) == 2:
        return at[..., 0, 0]
    return (at, *np.indices(memory.lanes, sparse=True))
