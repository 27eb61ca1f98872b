"""Reads, stores and atomics: bounds, initialization and races are checked here."""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import prod
from typing import Any, TypeAlias

import numpy as np

from taskc.backend.sim.expressions import Evaluate, Expressions, scalar
from taskc.backend.sim.machine import Frame, Races, Run
from taskc.backend.sim.memory import Array, Memory
from taskc.backend.sim.statistics import measure
from taskc.errors import InternalError, Location
from taskc.ir import arithmetic, nodes as ir

Place: TypeAlias = Callable[[Frame], "tuple[Any, Any]"]
"""The linear offset of an access, and the lanes (None: none) where it is illegal."""

Write: TypeAlias = Callable[[Frame, Any], None]
Issue: TypeAlias = Callable[[Frame, Memory, Any, Any, Any, int], None]
Watch: TypeAlias = Callable[[Frame, Memory, Any, Any, bool], None]

_CACHED = 256


class Accesses:
    """Compiles accesses. The sets say which tensors can race, so that others need no shadow."""

    def __init__(self, run: Run, expressions: Expressions) -> None:
        self.run = run
        self.expressions = expressions
        self.written: frozenset[ir.Tensor] = frozenset()  # in the kernel
        self.phase_writes: frozenset[ir.Tensor] = frozenset()  # in the phase being compiled
        self.watch: Callable[[ir.Tensor, object, Location], Watch | None] = lambda *_: None
        self.issue: Issue | None = None  # stores being compiled are asynchronous copies
        expressions.read = self.read

    # Where an access goes.

    def place(
        self, tensor: ir.Tensor, indices: tuple[ir.Expression, ...], node: object, loc: Location
    ) -> Place:
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
                if isinstance(index, np.ndarray):
                    wrong = index.view(np.uint64) >= extent
                    if wrong.any():
                        where = _outside(frame, tensor, wrong, index, extent, dimension, loc, node)
                        if where is not None:
                            illegal = where if illegal is None else illegal | where
                        index = np.where(wrong, 0, index)
                elif not 0 <= index < extent:
                    wrong = np.ones((1, 1), np.bool_)
                    where = _outside(frame, tensor, wrong, index, extent, dimension, loc, node)
                    if where is not None:
                        illegal = where if illegal is None else illegal | where
                    index = np.int64(0)
                total = total + (index if stride == 1 else index * stride)
            return total, illegal

        return place

    def tile_place(
        self, tensor: ir.Tensor, indices: tuple[ir.Expression, ...], node: object, loc: Location
    ) -> Callable[[Frame], tuple[Any, Any, Any]]:
        """(slots, missing, kept): the slots that the workers hold the element in.

        `slots` is an int where all lanes agree, Ellipsis where they are all slots in order, a
        tuple of one array [*axes] where the worker doesn't matter, else an array of lanes.
        """
        evaluates = [self.expressions.index(index) for index in indices]
        owners = tensor.owners
        if owners is None:
            raise InternalError(f"the tile {tensor.name} has no owners")
        shape = self.run.shapes[tensor]
        cache: dict[Any, tuple[Any, Any, Any]] = {}

        def tile_place(frame: Frame) -> tuple[Any, Any, Any]:
            values = [evaluate(frame) for evaluate in evaluates]
            key: Any = [id(v) if isinstance(v, np.ndarray) else ~int(v) for v in values]
            key = (frame.axes, frame.first, int(frame.worker_row[0]), *key)
            found = cache.get(key)
            if found is None and frame.loop is not None and frame.loop.mapping == owners:
                held = frame.loop.values
                if len(held) == len(values) and all(map(operator.is_, held, values)):
                    found = cache[key] = (frame.loop.slots, None, values)
            if found is None:
                tasks = np.stack(np.broadcast_arrays(*values), axis=-1) if values else np.zeros(0)
                slots = owners.find(frame.worker_row - frame.first, tasks)
                missing = slots < 0
                kept = (_simplest(slots, frame), missing if missing.any() else None, values)
                if kept[1] is not None:
                    kept = (np.where(missing, 0, slots), *kept[1:])
                if len(cache) >= _CACHED:
                    cache.clear()
                found = cache[key] = kept
            if found[1] is not None:
                where = found[1] if frame.mask is None else found[1] & frame.mask
                if where.any():
                    self._not_owned(frame, tensor, shape, found[2], where, loc, node)
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
        loc: Location,
        node: object,
    ) -> None:
        for dimension, (index, extent) in enumerate(zip(values, shape, strict=True)):
            wrong = ((index < 0) | (index >= extent)) & where
            if wrong.any():
                _outside(frame, tensor, wrong, index, extent, dimension, loc, node)
                return
        _, worker, position = frame.someone(where)
        element = [
            int(np.broadcast_to(value, np.broadcast_shapes(np.shape(value), where.shape))[position])
            for value in values
        ]
        name = f"{tensor.name}[{', '.join(map(str, element))}]"
        message = f"worker {worker} does not own {name}"
        frame.fault("not-owned", message, where, loc, node)

    # Reads.

    def read(self, node: ir.Read) -> Evaluate:
        match node.tensor.scope:
            case ir.GLOBAL | ir.SHARED:
                return self._read_memory(node)
            case ir.TILE:
                return self._read_tile(node)
            case ir.LOCAL | ir.REGISTER:
                return self._read_private(node)
        raise InternalError(f"{node.tensor.name} can't be read")

    def _races(self, tensor: ir.Tensor) -> bool:
        if tensor.scope == ir.SHARED and self.run.by_phases:
            return tensor in self.phase_writes
        return tensor.scope == ir.SHARED or tensor in self.written

    def _read_memory(self, node: ir.Read) -> Evaluate:
        tensor, loc = node.tensor, node.loc
        place = self.place(tensor, node.indices, node, loc)
        is_shared = tensor.scope == ir.SHARED
        races = self._races(tensor)
        site = self.run.site(loc)
        watch = self.watch(tensor, node, loc)
        measured = not self.run.by_phases

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
                if missing.any():
                    uninitialized(frame, memory, at, missing, illegal, loc, node)
            if watch is not None:
                watch(frame, memory, at, illegal, False)
            if measured and isinstance(at, np.ndarray):
                measure(frame, memory, at, frame.mask, site)
            if races:
                record(frame, memory, at, frame.mask, illegal, site, "read")
            return value

        return read

    def _read_tile(self, node: ir.Read) -> Evaluate:
        tensor, loc = node.tensor, node.loc
        place = self.tile_place(tensor, node.indices, node, loc)
        collective = self._read_collective(node)

        def read(frame: Frame) -> Any:
            if frame.anonymous:
                return collective(frame)
            slots, missing, _ = place(frame)
            memory = memory_of(frame, tensor)
            value = tile_values(memory.data, slots, frame, memory)
            if not (memory.complete or memory.look()):
                lacking = tile_values(memory.written, slots, frame, memory) == 0
                if lacking.any():
                    uninitialized(frame, memory, 0, lacking, missing, loc, node)
            return value

        return read

    def _read_collective(self, node: ir.Read) -> Evaluate:
        """A tile read by a whole-block statement: from the first owner of each element."""
        tensor, loc = node.tensor, node.loc
        place = self.place(tensor, node.indices, node, loc)

        def read(frame: Frame) -> Any:
            at, illegal = place(frame)
            memory = memory_of(frame, tensor)
            flat = self.first_owners(frame, tensor, memory, at)
            missing = memory.written.reshape(-1)[flat] == 0
            if missing.any():
                uninitialized(frame, memory, at, missing, illegal, loc, node)
            return memory.data.reshape(-1)[flat]

        return read

    def first_owners(self, frame: Frame, tensor: ir.Tensor, memory: Memory, at: Any) -> Any:
        """Where in a tile's memory the elements at row-major `at` have their first copies."""
        assert tensor.owners is not None
        workers, slots = tensor.owners.owner_table()
        inside = tuple(slice(extent) for extent in memory.shape)
        worker = workers[inside].reshape(-1)[at] + frame.first
        slot = slots[inside].reshape(-1)[at]
        return (slot * frame.count + frame.block_row) * memory.lanes[-1] + worker

    def _read_private(self, node: ir.Read) -> Evaluate:
        tensor, loc = node.tensor, node.loc
        place = self.place(tensor, node.indices, node, loc)

        def read(frame: Frame) -> Any:
            at, illegal = place(frame)
            memory = memory_of(frame, tensor)
            where = private_place(memory, at)
            value = memory.data[where]
            if not (memory.complete or memory.look()):
                missing = memory.written[where] == 0
                if missing.any():
                    uninitialized(frame, memory, at, missing, illegal, loc, node)
            if frame.anonymous and value.shape[-1] != 1:
                value = value[..., :1]
            return value

        return read

    # Stores.

    def store(
        self, tensor: ir.Tensor, indices: tuple[ir.Expression, ...], node: object, loc: Location
    ) -> Write:
        match tensor.scope:
            case ir.GLOBAL | ir.SHARED:
                return self._store_memory(tensor, indices, node, loc)
            case ir.TILE:
                return self._store_tile(tensor, indices, node, loc)
            case ir.LOCAL | ir.REGISTER:
                return self._store_private(tensor, indices, node, loc)
        raise InternalError(f"{tensor.name} can't be stored to")

    def _store_memory(
        self, tensor: ir.Tensor, indices: tuple[ir.Expression, ...], node: object, loc: Location
    ) -> Write:
        place = self.place(tensor, indices, node, loc)
        is_shared = tensor.scope == ir.SHARED
        once = tensor.scope == ir.GLOBAL and tensor.role == "out"
        site = self.run.site(loc)
        watch = self.watch(tensor, node, loc)
        issue = self.issue
        measured = not self.run.by_phases
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
            shape, together = spread(frame, at, value, where)
            flat, values = flattened(at, shape), flattened(value, shape)
            chosen = None
            if where is not None:
                chosen = flattened(where, shape)
                flat, values = flat[chosen], values[chosen]
            if not flat.size:
                return
            if measured and isinstance(at, np.ndarray):
                measure(frame, memory, at, where, site)
            if once:
                self._check_once(frame, memory, flat, loc, node)
            memory.data[flat] = values
            memory.mark(flat)
            touch(frame, memory, shape, flat, chosen, site, together, "write")

        return store

    def _check_once(
        self, frame: Frame, memory: Memory, flat: Array, loc: Location, node: object
    ) -> None:
        again = memory.written[flat] != 0
        if not again.any():
            numbers = np.arange(flat.size)
            winner = np.empty(memory.written.size, np.int64)
            winner[flat] = numbers
            again = winner[flat] != numbers
            if not again.any():
                return
        name = frame.name_element(memory, int(flat[np.argmax(again)]))
        count = int(np.count_nonzero(again))
        message = f"{name} is stored more than once"
        self.run.findings.add(
            "written-twice", message, loc, count=count, details=(("element", name),), where=node
        )

    def _store_tile(
        self, tensor: ir.Tensor, indices: tuple[ir.Expression, ...], node: object, loc: Location
    ) -> Write:
        place = self.tile_place(tensor, indices, node, loc)
        collective = self.place(tensor, indices, node, loc)

        def store(frame: Frame, value: Any) -> None:
            memory = memory_of(frame, tensor)
            if frame.anonymous:
                at, illegal = collective(frame)
                self._store_to_owners(frame, memory, at, value, selection(frame, illegal))
                return
            slots, missing, _ = place(frame)
            where = frame.mask if missing is None else selection(frame, missing)
            tile_store(memory, slots, frame, value, where)

        return store

    def _store_to_owners(
        self, frame: Frame, memory: Memory, at: Any, value: Any, where: Any
    ) -> None:
        """Each owner of an element gets the value: by way of the whole tile as one array."""
        shape = (frame.count, memory.size)
        elements = np.zeros(shape, memory.data.dtype)
        touched = np.zeros(shape, np.bool_)
        full = np.broadcast_shapes(np.shape(at), np.shape(value), np.shape(where), frame.full)
        flat = np.broadcast_to(at, full).reshape(-1)
        block = np.broadcast_to(frame.block_row, full).reshape(-1)
        values = np.broadcast_to(value, full).reshape(-1)
        if where is not None:
            chosen = np.broadcast_to(where, full).reshape(-1)
            flat, block, values = flat[chosen], block[chosen], values[chosen]
        elements[block, flat] = values
        touched[block, flat] = True
        scatter_tile(memory, elements, touched, frame)

    def _store_private(
        self, tensor: ir.Tensor, indices: tuple[ir.Expression, ...], node: object, loc: Location
    ) -> Write:
        place = self.place(tensor, indices, node, loc)

        def store(frame: Frame, value: Any) -> None:
            at, illegal = place(frame)
            memory = memory_of(frame, tensor)
            where = frame.mask if illegal is None else selection(frame, illegal)
            memory.tried = False
            is_plain = where is None and np.shape(at)[-2:] == (1, 1)
            if is_plain and np.ndim(value) <= np.ndim(at) and len(memory.lanes) == 2:
                slots = at[..., 0, 0]
                memory.data[slots] = value
                memory.written[slots] = 1
                return
            deepest = max(np.ndim(value), np.ndim(where))
            if isinstance(at, np.ndarray) or deepest > len(memory.lanes):
                shape = frame.axes + memory.lanes[-2:]
                lane = flattened(private_lanes(memory), shape)
                at, value = flattened(at, shape), flattened(value, shape)
                if where is not None:
                    where = flattened(where, shape)
                    at, lane, value = at[where], lane[where], value[where]
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

    # Atomics.

    def atomic(self, node: ir.Atomic) -> Callable[[Frame, Any], Any]:
        tensor, loc, operator = node.tensor, node.loc, node.operator
        if tensor.scope not in (ir.GLOBAL, ir.SHARED):
            raise InternalError(f"{tensor.name} can't be updated atomically")
        place = self.place(tensor, node.indices, node, loc)
        is_shared = tensor.scope == ir.SHARED
        site = self.run.site(loc)
        watch = self.watch(tensor, node, loc)
        wants_result = node.result is not None

        def atomic(frame: Frame, value: Any) -> Any:
            at, illegal = place(frame)
            memory = memory_of(frame, tensor)
            if is_shared:
                at = at + memory.rows
            where = selection(frame, illegal)
            if watch is not None:
                watch(frame, memory, at, illegal, True)
            together = self.run.by_phases and not frame.in_each
            shape = (*frame.axes, frame.count, 1 if together else frame.width)
            flat = np.broadcast_to(at, shape).reshape(-1)
            values = np.broadcast_to(value, shape).reshape(-1)
            chosen = None
            if where is not None:
                chosen = np.broadcast_to(where, shape).reshape(-1)
                flat, values = flat[chosen], values[chosen]
            old = np.zeros(shape, memory.data.dtype)
            if not flat.size:
                return old
            if not (memory.complete or memory.look()):
                missing = memory.lacks(np.broadcast_to(at, shape))
                if where is not None:
                    missing = missing & where
                if missing.any():
                    uninitialized(frame, memory, at, missing, None, loc, node)
            before = update(memory.data, flat, values, operator, tensor.dtype, wants_result)
            if wants_result:
                if chosen is None:
                    old = before.reshape(shape)
                else:
                    old.reshape(-1)[chosen] = before
            touch(frame, memory, shape, flat, chosen, site, together, "atomic")
            return old

        return atomic


_AT: dict[str, np.ufunc] = {
    "+": np.add,
    "&": np.bitwise_and,
    "|": np.bitwise_or,
    "^": np.bitwise_xor,
    "min": np.minimum,
    "max": np.maximum,
}


def update(
    data: Array, at: Array, values: Array, operator: str, dtype: Any, wants_result: bool
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
        if operator == "exchange":
            data[where] = values[lanes]
        else:
            data[where] = arithmetic.binary(operator, old, values[lanes], dtype)
    return before


# --- helpers that know no compilation ----------------------------------------------------------


def memory_of(frame: Frame, tensor: ir.Tensor) -> Memory:
    memory = frame.memories.get(tensor)
    if memory is None:
        raise InternalError(f"{tensor.name} is used outside its allocation")
    return memory


def selection(frame: Frame, illegal: Any) -> Any:
    """The lanes that store: active, legal, and the first owner of a replicated task."""
    where = frame.mask
    if frame.owners_only is not None:
        where = frame.owners_only if where is None else where & frame.owners_only
    if illegal is not None:
        where = ~illegal if where is None else where & ~illegal
    return where


def spread(frame: Frame, *operands: Any) -> tuple[tuple[int, ...], bool]:
    """The shape of an access that isn't a read, and whether all workers do it as one."""
    if not frame.in_each and all(np.ndim(x) == 0 or x.shape[-1] == 1 for x in operands):
        return (*frame.axes, frame.count, 1), True
    return frame.full, False


def flattened(value: Any, shape: tuple[int, ...]) -> Array:
    """`value` for each lane, in the order of a worker's tasks.

    The axes of inner loops come first. That is the order where it counts: two tasks that store to
    one element are tasks of the innermost loop, or the loops would not run at once.
    """
    flat: Array = np.broadcast_to(value, shape).reshape(-1)
    return flat


def record(
    frame: Frame, memory: Memory, at: Any, where: Any, illegal: Any, site: int, kind: str
) -> None:
    """Tells the shadow of an access, without widening indices more than needed."""
    if illegal is not None:
        where = ~illegal if where is None else where & ~illegal
    together = not frame.in_each and all(
        np.ndim(x) == 0 or x.shape[-1] == 1 for x in (at, where) if x is not None
    )
    least = (frame.count, 1 if together else frame.width)
    shape = np.broadcast_shapes(np.shape(at), np.shape(where) if where is not None else (), least)
    flat = np.broadcast_to(at, shape).reshape(-1)
    chosen = None
    if where is not None:
        chosen = np.broadcast_to(where, shape).reshape(-1)
        flat = flat[chosen]
    if flat.size:
        touch(frame, memory, shape, flat, chosen, site, together, kind)


def unwaited(frame: Frame, memory: Memory, at: Any, illegal: Any, site: int) -> Any:
    """Reports the lanes that read what is still in flight, and gives them; None: none."""
    where = frame.mask
    if illegal is not None:
        where = ~illegal if where is None else where & ~illegal
    shadow = memory.shadow
    assert shadow is not None and shadow.flight is not None
    where_shape = () if where is None else np.shape(where)
    shape = np.broadcast_shapes(np.shape(at), where_shape, (frame.count, frame.width))
    flat = np.broadcast_to(at, shape).reshape(-1)
    chosen = None
    if where is not None:
        chosen = np.broadcast_to(where, shape).reshape(-1)
        flat = flat[chosen]
    late = np.zeros(shape, np.bool_)
    for granule in range(memory.granules):
        lanes = frame.lanes(shape, flat * memory.granules + granule, chosen, site, False)
        wrong = shadow.in_flight(lanes)
        if wrong is not None:
            Races(frame, memory, site).unwaited(
                "reads", lanes, wrong, shadow.flight.site[lanes.at[wrong]]
            )
            late.reshape(-1)[slice(None) if chosen is None else chosen] |= wrong
    return late if late.any() else None


def touch(
    frame: Frame,
    memory: Memory,
    shape: tuple[int, ...],
    flat: Array,
    chosen: Array | None,
    site: int,
    together: bool,
    kind: str,
) -> None:
    shadow = memory.shadow
    if shadow is None:
        return
    lanes = frame.lanes(shape, flat, chosen, site, together)
    act = getattr(shadow, kind)
    report = Races(frame, memory, site)
    if memory.granules == 1:
        act(lanes, report)
    else:
        for granule in range(memory.granules):
            lanes.at = flat * memory.granules + granule
            act(lanes, report)


def uninitialized(
    frame: Frame, memory: Memory, at: Any, missing: Any, illegal: Any, loc: Location, node: object
) -> None:
    where = missing
    if illegal is not None:
        where = where & ~illegal
    if frame.mask is not None:
        where = where & frame.mask
    if not where.any():
        return
    name = memory.tensor.name
    if memory.tensor.scope in (ir.SHARED, ir.GLOBAL):
        _, _, position = frame.someone(where)
        spots = np.broadcast_to(at, np.broadcast_shapes(np.shape(at), where.shape))
        name = frame.name_element(memory, int(spots[position[len(position) - spots.ndim :]]))
    frame.fault("uninitialized", f"{name} is read before it is written", where, loc, node)


def _outside(
    frame: Frame,
    tensor: ir.Tensor,
    wrong: Any,
    index: Any,
    extent: int,
    dimension: int,
    loc: Location,
    node: object,
) -> Any:
    """Reports the active lanes whose index is outside, and gives them; None if there are none."""
    where = wrong if frame.mask is None else wrong & frame.mask
    if not where.any():
        return None
    message = f"index {{}} is outside 0..{extent - 1} in dimension {dimension} of {tensor.name}"
    frame.fault("out-of-bounds", message, where, loc, node, index)
    return where


def private_lanes(memory: Memory) -> Array:
    return np.arange(prod(memory.lanes)).reshape(memory.lanes)


def private_place(memory: Memory, at: Any) -> Any:
    """An index into private memory, whose data has the shape [size, *lanes]."""
    if not isinstance(at, np.ndarray):
        return at
    if at.shape[-2:] == (1, 1) and len(memory.lanes) == 2:
        return at[..., 0, 0]
    return (at, *np.indices(memory.lanes, sparse=True))


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


def _cube(data: Array, frame: Frame, memory: Memory) -> Array:
    """The frame's workers' part of a tile, [slots, blocks, workers]."""
    cube = data.reshape(-1, *memory.lanes)
    if frame.width != memory.lanes[-1]:
        start = int(frame.columns[0])
        cube = cube[:, :, start : start + frame.width]
    return cube


def tile_values(data: Array, slots: Any, frame: Frame, memory: Memory) -> Array:
    cube = _cube(data, frame, memory)
    if slots is Ellipsis:
        whole = cube if len(cube) == prod(frame.axes) else cube[: prod(frame.axes)]
        return whole.reshape(frame.full)
    if isinstance(slots, (int, tuple)):
        return np.asarray(cube[slots])
    return np.asarray(cube[slots, frame.block_row, np.arange(frame.width)])


def tile_store(memory: Memory, slots: Any, frame: Frame, value: Any, where: Any) -> None:
    for data, new in ((memory.data, value), (memory.written, 1)):
        if new is not value and memory.complete:
            return
        cube = _cube(data, frame, memory)
        if slots is Ellipsis:
            view = cube[: prod(frame.axes)].reshape(frame.full)
            np.copyto(view, new, where=True if where is None else where)
        elif isinstance(slots, int) and not frame.axes:
            np.copyto(cube[slots], new, where=True if where is None else where)
        else:
            index: Any = slots[0][..., None, None] if isinstance(slots, tuple) else slots
            shape = frame.full
            flat = (index * frame.count + frame.block_row) * frame.width + np.arange(frame.width)
            at = flattened(flat, shape)
            values = flattened(new, shape)
            if where is not None:
                chosen = flattened(where, shape)
                at, values = at[chosen], values[chosen]
            if cube.flags.c_contiguous:
                cube.reshape(-1)[at] = values
            else:
                slot, rest = np.divmod(at, frame.count * frame.width)
                cube[slot, rest // frame.width, rest % frame.width] = values
    memory.tried = False


def scatter_tile(memory: Memory, elements: Array, touched: Array, frame: Frame) -> None:
    """Gives every owner its copies of the elements [blocks, size] that were touched."""
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


def gather_tile(memory: Memory, frame: Frame) -> tuple[Array, Array]:
    """A tile as [blocks, *shape], from the first owners; and which elements are uninitialized."""
    owners = memory.tensor.owners
    assert owners is not None
    workers, slots = owners.owner_table()
    inside = tuple(slice(extent) for extent in memory.shape)
    worker, slot = workers[inside] + frame.first, slots[inside]
    blocks = np.arange(frame.count).reshape(-1, *(1 for _ in memory.shape))
    cube = memory.data.reshape(-1, *memory.lanes)
    written = memory.written.reshape(-1, *memory.lanes)
    return cube[slot, blocks, worker], written[slot, blocks, worker] == 0


__all__ = ["Accesses", "scalar"]
