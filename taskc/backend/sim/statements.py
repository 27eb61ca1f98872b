"""Statements as closures.

A statement becomes a function of the frame. Where it may have to wait for other warps, it is a
generator function instead, and `Code.waits` says so; a generator yields what it waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from taskc.backend.sim import analysis
from taskc.backend.sim.accesses import Accesses
from taskc.backend.sim.atomics import atomic
from taskc.backend.sim.expressions import Evaluate, Expressions, narrowed
from taskc.backend.sim.machine import Frame, Loop, Run
from taskc.backend.sim.memory import Array, Memory
from taskc.backend.sim.order import WARP
from taskc.backend.sim.schedule import Wait
from taskc.errors import InternalError, Location
from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping
from taskc.ir.rewrite import walk
from taskc.ir.types import i64

_ENDLESS = 1_000_000
_SPINS = 10_000
_LANES_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Code:
    """`run(frame)` executes the statement, or, where it `waits`, gives a generator that does."""

    run: Callable[[Frame], Any]
    waits: bool = False
    body: Callable[[Frame], Any] | None = None  # of a loop


class Statements:
    """Compiles statements."""

    def __init__(self, run: Run, expressions: Expressions, accesses: Accesses) -> None:
        self.state = run
        self.expressions = expressions
        self.accesses = accesses
        self.in_each = False
        self.divergent = analysis.divergent_locals(run.kernel.body) if run.by_phases else None
        self.makers: dict[type, Callable[[Any], Code]] = {
            ir.Sequence: self._sequence,
            ir.Let: self._let,
            ir.Allocate: self._allocate,
            ir.Store: self._store,
            ir.Atomic: self._atomic,
            ir.If: self._if,
            ir.While: self._while,
            ir.For: self._for,
            ir.Grid: self._grid,
            ir.Pipeline: self._pipeline,
            ir.Each: self._each,
            ir.Print: self._print,
            ir.Assert: self._assert,
        }

    def __call__(self, node: ir.Statement) -> Code:
        maker = self.makers.get(type(node))
        if maker is None:
            raise InternalError(f"the simulator can't execute {type(node).__name__}")
        return maker(node)

    @property
    def _uniform(self) -> bool:
        """The statement being compiled is executed by all workers of a block in the same way."""
        return self.state.by_phases and not self.in_each

    # Straight lines.

    def _sequence(self, node: ir.Sequence) -> Code:
        parts = [self(statement) for statement in node.statements]
        if any(part.waits for part in parts):

            def steps(frame: Frame) -> Any:
                for part in parts:
                    if part.waits:
                        yield from part.run(frame)
                    else:
                        part.run(frame)

            return Code(steps, waits=True)
        runs = [part.run for part in parts]

        def run(frame: Frame) -> None:
            for one in runs:
                one(frame)

        return Code(run)

    def _let(self, node: ir.Let) -> Code:
        value = self.expressions(node.value)
        variable = node.variable
        uniform = self._uniform

        def run(frame: Frame) -> None:
            result = value(frame)
            if isinstance(result, np.ndarray):
                if uniform and result.shape[-1] != 1:
                    result = agreed(frame, result, node.loc, node)
                if not result.flags.owndata:  # it may be a view of memory that will change
                    result = result.copy()
            frame.env[variable] = result

        return Code(run)

    def _allocate(self, node: ir.Allocate) -> Code:
        tensor, fill = node.tensor, node.fill
        shape = self.state.shapes[tensor]
        size = prod(shape)
        initial = None if fill is None else self.expressions(fill)
        if tensor.scope == ir.SHARED:

            def allocate_shared(frame: Frame) -> None:
                memory = frame.group.allocate(tensor, frame, initial, node)
                frame.memories[tensor] = memory

            return Code(allocate_shared)
        if tensor.scope == ir.BARRIER:
            return Code(lambda frame: None)
        storage = tensor.dtype.numpy
        is_tile = tensor.scope == ir.TILE
        if is_tile and tensor.owners is not None:
            size = tensor.owners.slots
        narrow = self.divergent is not None and tensor not in self.divergent and not self.in_each
        is_narrow = tensor.scope == ir.LOCAL and narrow
        self.state.private_bytes[tensor] = size * tensor.dtype.nbytes

        def allocate(frame: Frame) -> None:
            if is_tile:
                width = frame.group.width
                old = frame.group.tiles.get(tensor)
                if old is not None and frame.width != width:
                    frame.memories[tensor] = old
                    frame.group.reset_tile(old, frame, initial)
                    return
                lanes: tuple[int, ...] = (frame.count, width)
            else:
                lanes = (*frame.axes, frame.count, 1 if is_narrow else frame.width)
            data = np.zeros((size, *lanes), storage)
            written = np.zeros((size, *lanes), np.int8)
            memory = Memory(tensor, shape, data, written, lanes=lanes)
            if initial is not None:
                data[...] = initial(frame)
                written[...] = 1
                memory.complete = True
            frame.memories[tensor] = memory
            if is_tile:
                frame.group.tiles[tensor] = memory

        return Code(allocate)

    def _store(self, node: ir.Store) -> Code:
        tensor = node.tensor
        value = self.expressions(node.value)
        store = self.accesses.store(tensor, node.indices, node, node.loc)
        if not self._uniform:
            return Code(lambda frame: store(frame, value(frame)))

        def run(frame: Frame) -> None:
            frame.group.order.step()
            store(frame, agreed(frame, value(frame), node.loc, node))

        return Code(run)

    def _atomic(self, node: ir.Atomic) -> Code:
        value = self.expressions(node.value)
        update = atomic(self.accesses, node)
        result = node.result

        def run(frame: Frame) -> None:
            old = update(frame, value(frame))
            if result is not None:
                frame.env[result] = old

        return Code(run)

    def _print(self, node: ir.Print) -> Code:
        values = [self.expressions(value) for value in node.values]
        text = node.text

        def run(frame: Frame) -> None:
            full = (*frame.axes, frame.count, frame.width)
            results = [np.broadcast_to(value(frame), full) for value in values]
            width = 1 if not frame.in_each and self.state.by_phases else frame.width
            mask = None if frame.mask is None else np.broadcast_to(frame.mask, full)
            for block in range(frame.count):
                for worker in range(width):
                    if mask is None or mask[..., block, worker].any():
                        line = text.format(*(r[..., block, worker].flat[0] for r in results))
                        self.state.on_print(line)

        return Code(run)

    def _assert(self, node: ir.Assert) -> Code:
        condition = self.expressions(node.condition)
        message = node.text or "the assertion does not hold"

        def run(frame: Frame) -> None:
            wrong = np.logical_not(condition(frame))
            if wrong.any():
                where = wrong if frame.mask is None else wrong & frame.mask
                if where.any():
                    frame.fault("assertion", message, where, node.loc, node)

        return Code(run)

    # Control flow.

    def _if(self, node: ir.If) -> Code:
        condition = self.expressions(node.condition)
        then = self(node.then)
        otherwise = Code(lambda frame: None) if node.otherwise is None else self(node.otherwise)
        has_else = node.otherwise is not None
        uniform = self._uniform

        def branches(frame: Frame) -> tuple[Any, Any]:
            """The masks of the two branches; False where one isn't taken."""
            chosen = condition(frame)
            if uniform:
                chosen = agreed(frame, chosen, node.loc, node)
            outer = frame.mask
            if not isinstance(chosen, np.ndarray):
                return (outer, False) if chosen else (False, outer)
            wanted = chosen if outer is None else chosen & outer
            refused = ~chosen if outer is None else ~chosen & outer
            if not refused.any():
                return outer, False
            return (wanted if wanted.any() else False), refused

        if then.waits or otherwise.waits:

            def steps(frame: Frame) -> Any:
                outer = frame.mask
                for mask, code in zip(branches(frame), (then, otherwise), strict=True):
                    if mask is not False:
                        frame.mask = mask
                        if code.waits:
                            yield from code.run(frame)
                        else:
                            code.run(frame)
                frame.mask = outer

            return Code(steps, waits=True)

        def run(frame: Frame) -> None:
            outer = frame.mask
            wanted, refused = branches(frame)
            if wanted is not False:
                frame.mask = wanted
                then.run(frame)
            if has_else and refused is not False:
                frame.mask = refused
                otherwise.run(frame)
            frame.mask = outer

        return Code(run)

    def _while(self, node: ir.While) -> Code:
        condition = self.expressions(node.condition)
        body = self(node.body)
        uniform = self._uniform

        spins = self.state.by_warps and any(
            isinstance(part, ir.Read) and part.tensor.scope in (ir.GLOBAL, ir.SHARED)
            for part in walk(node.condition)
        )
        most = _SPINS if spins else _ENDLESS

        def goes_on(frame: Frame, turn: int) -> bool:
            if turn == most:
                message = f"the loop has not ended after {most} turns"
                frame.fault("endless-loop", message, np.ones((1, 1), np.bool_), node.loc, node)
                return False
            chosen = condition(frame)
            if uniform:
                chosen = agreed(frame, chosen, node.loc, node)
            frame.mask = narrowed(frame.mask, chosen)
            return frame.mask is None or bool(frame.mask.any())

        def steps(frame: Frame) -> Any:
            outer = frame.mask
            turn = 0
            while goes_on(frame, turn):
                if spins:
                    yield Wait(lambda: True, "others", node.loc)
                if body.waits:
                    yield from body.run(frame)
                else:
                    body.run(frame)
                turn += 1
            frame.mask = outer

        def run(frame: Frame) -> None:
            outer = frame.mask
            turn = 0
            while goes_on(frame, turn):
                body.run(frame)
                turn += 1
            frame.mask = outer

        return Code(steps, waits=True) if body.waits or spins else Code(run)

    def _for(self, node: ir.For) -> Code:
        code = self._loop(node.variable, node.start, node.stop, node.step, node.body, node)
        count = analysis.constant_turns(node)
        if code.waits or self._uniform or count is None or count < 2:
            return code
        if not analysis.turns_are_independent(node, count):
            return code
        body = code.body
        assert body is not None and isinstance(node.start, ir.Constant)
        first = int(node.start.value)
        values = np.arange(first, first + count * node.step, node.step)
        values = values.astype(node.variable.dtype.numpy)

        def run(frame: Frame) -> None:
            """All turns at once, along an axis of their own."""
            outer = frame.axes
            if prod(outer) * count * frame.count * frame.width > _LANES_AT_ONCE:
                code.run(frame)
                return
            frame.axes = (count, *outer)
            frame.env[node.variable] = values.reshape(count, *(1 for _ in outer), 1, 1)
            wide = frame.vector
            frame.vector = count if node.kind == "vector" else 1
            body(frame)
            frame.axes, frame.vector = outer, wide

        return Code(run)

    def _pipeline(self, node: ir.Pipeline) -> Code:
        zero = ir.constant(0)
        return self._loop(node.variable, zero, node.extent, node.by, node.body, node)

    def _loop(
        self,
        variable: ir.Variable,
        start: ir.Expression,
        stop: ir.Expression,
        step: int,
        body_node: ir.Statement,
        node: ir.For | ir.Pipeline,
    ) -> Code:
        first, last = self.expressions(start), self.expressions(stop)
        body = self(body_node)
        storage = variable.dtype.numpy.type
        uniform = self._uniform

        def turns(frame: Frame) -> Any:
            """Binds the variable for each turn, and masks the lanes that have come to their end."""
            begin, end = first(frame), last(frame)
            if uniform:
                begin = agreed(frame, begin, node.loc, node)
                end = agreed(frame, end, node.loc, node)
            outer = frame.mask
            if isinstance(begin, np.ndarray) or isinstance(end, np.ndarray):
                counts = _turns(np.asarray(begin), np.asarray(end), step)
                if outer is not None:
                    counts = np.where(outer, counts, 0)
                if not counts.size or (counts == counts.flat[0]).all():
                    least = most = int(counts.max(initial=0))
                else:
                    least, most = int(counts.min()), int(counts.max())
                value = begin
                for turn in range(most):
                    if turn >= least:
                        frame.mask = narrowed(outer, counts > turn)
                    frame.env[variable] = value
                    yield
                    value = value + storage(step)
            else:
                for number in range(int(begin), int(end), step):
                    frame.env[variable] = storage(number)
                    yield
            frame.mask = outer

        def steps(frame: Frame) -> Any:
            for _ in turns(frame):
                yield from body.run(frame)

        together = 1
        if isinstance(node, ir.For) and node.kind == "vector":
            together = analysis.constant_turns(node) or 1

        def run(frame: Frame) -> None:
            wide = frame.vector
            for turn, _ in enumerate(turns(frame)):
                frame.vector = together if turn == 0 else 1
                body.run(frame)
            frame.vector = wide

        return Code(steps, waits=True) if body.waits else Code(run, body=body.run)

    def _grid(self, node: ir.Grid) -> Code:
        body = self(node.body)
        shape = [self.expressions(constant_of(extent)) for extent in node.shape]

        def bind(frame: Frame) -> None:
            tiles = grid_tiles([int(np.max(extent(frame))) for extent in shape], node.by)
            origin = grid_origin(frame.group.blocks, tiles, node)
            for variable, value in zip(node.variables, origin, strict=True):
                frame.env[variable] = value[:, None]

        def steps(frame: Frame) -> Any:
            bind(frame)
            yield from body.run(frame)

        def run(frame: Frame) -> None:
            bind(frame)
            body.run(frame)

        return Code(steps, waits=True) if body.waits else Code(run)

    # Mapping loops.

    def _each(self, node: ir.Each) -> Code:
        outermost = not self.in_each
        accesses = self.accesses
        if outermost:
            accesses.phase_writes = frozenset(analysis.writes(node.body))
        self.in_each = True
        worker = None if node.worker is None else self.expressions.index(node.worker)
        body = self(node.body)
        if outermost:
            self.in_each = False
            accesses.phase_writes = frozenset()
        independent = not body.waits and analysis.tasks_are_independent(node)
        prepared: dict[Any, Tasks] = {}
        mapping = node.mapping

        def tasks_of(frame: Frame) -> Tasks:
            if worker is None:
                key = (int(frame.worker_row[0]) - frame.first, frame.width)
                tasks = prepared.get(key)
                if tasks is None:
                    numbers = frame.worker_row - frame.first
                    if numbers[-1] >= mapping.workers:
                        raise InternalError(
                            f"{mapping} has {mapping.workers} workers, the group more"
                        )
                    tasks = prepared[key] = Tasks(mapping, numbers[None, :], independent)
                return tasks
            numbers = np.atleast_2d(worker(frame))
            outside = (numbers < 0) | (numbers >= mapping.workers)
            if outside.any():
                where = outside if frame.mask is None else outside & frame.mask
                if where.any():
                    message = f"worker {{}} is outside the mapping's {mapping.workers}"
                    frame.fault("out-of-bounds", message, where, node.loc, node, numbers)
                numbers = np.where(outside, 0, numbers)
            return Tasks(mapping, numbers, independent)

        variables = node.variables

        def turns(frame: Frame) -> Any:
            tasks = tasks_of(frame)
            outer = frame.mask, frame.axes, frame.in_each, frame.owners_only
            outer_loop = frame.loop
            is_plain = worker is None and not outer[1] and mapping.is_composed
            frame.in_each = True
            if self.state.by_phases and outermost:
                frame.group.order.step()
            for slot, (values, valid, owned) in enumerate(tasks.turns):
                if is_plain:
                    frame.loop = Loop(mapping, values, Ellipsis if tasks.at_once else slot)
                else:
                    frame.loop = None
                if tasks.at_once:
                    frame.axes = tasks.axes + outer[1]
                    grow = (..., *(None for _ in outer[1]), slice(None), slice(None))
                    if outer[1]:
                        values = [value[grow] for value in values]
                        valid = valid if valid is None else valid[grow]
                        owned = owned if owned is None else owned[grow]
                for variable, value in zip(variables, values, strict=True):
                    frame.env[variable] = value
                if valid is not None:
                    frame.mask = narrowed(outer[0], valid)
                    if frame.mask is not None and not frame.mask.any():
                        continue
                if owned is not None:
                    frame.owners_only = owned if outer[3] is None else outer[3] & owned
                yield
                frame.mask = outer[0]
            frame.mask, frame.axes, frame.in_each, frame.owners_only = outer
            frame.loop = outer_loop
            if self.state.by_phases and outermost:
                frame.group.order.step()

        def steps(frame: Frame) -> Any:
            for _ in turns(frame):
                yield from body.run(frame)

        def run(frame: Frame) -> None:
            for _ in turns(frame):
                body.run(frame)

        return Code(steps, waits=True) if body.waits else Code(run)


class Tasks:
    """The tasks of some workers: all slots at once, with axes of their own, or slot by slot.

    turns: (the variables' values, which tasks there are, which the worker is the first owner of);
    None stands for all.
    """

    def __init__(self, mapping: Mapping, workers: Array, at_once: bool) -> None:
        self.axes: tuple[int, ...] = ()
        at_once = self.at_once = at_once and workers.ndim == 2
        self.turns: list[tuple[list[Array], Array | None, Array | None]]
        if at_once and mapping.worker_modes is not None and mapping.slot_modes is not None:
            values = self._composed(mapping, workers)
        else:
            tasks = np.moveaxis(mapping.tasks[workers], -2, 0)  # [slot, blocks, workers, rank]
            values = [tasks[..., dimension] for dimension in range(mapping.rank)]
            if at_once:
                self.axes = (mapping.slots,)
        inside: Any = None
        if mapping.is_composed:
            for value, limit, extent in zip(values, mapping.iterated, mapping.shape, strict=True):
                if limit != extent:
                    inside = value < limit if inside is None else inside & (value < limit)
        elif not mapping.valid.all():
            inside = np.moveaxis(mapping.valid[workers], -1, 0)
        owned: Any = None
        if mapping.is_replicated:
            first, slot = mapping.owner_table()
            owned = first[tuple(values)] == workers
            if not mapping.is_composed and not at_once:
                owned = owned & (slot[tuple(values)] == np.arange(mapping.slots)[:, None, None])
        if at_once:
            self.turns = [(values, inside, owned)]
            return
        self.turns = [
            (
                [np.ascontiguousarray(value[slot]) for value in values],
                None if inside is None else inside[slot],
                None if owned is None else owned[slot],
            )
            for slot in range(mapping.slots)
        ]

    def _composed(self, mapping: Mapping, workers: Array) -> list[Array]:
        """Values that have an axis only where they depend on it."""
        modes = mapping.slot_modes or ()
        self.axes = tuple(mode.size for mode in modes)
        rank = mapping.rank
        values: list[Any] = [np.zeros((1, 1), np.int64) for _ in range(rank)]
        rest = workers
        for mode in reversed(mapping.worker_modes or ()):
            rest, digit = np.divmod(rest, mode.size)
            if mode.dimension is not None:
                values[mode.dimension] = values[mode.dimension] + digit * mode.stride
        for axis, mode in enumerate(modes):
            if mode.dimension is not None:
                shape = [1] * (len(modes) + 2)
                shape[axis] = mode.size
                step = (np.arange(mode.size) * mode.stride).reshape(shape)
                values[mode.dimension] = values[mode.dimension] + step
        return values


# --- helpers ---------------------------------------------------------------------------------


def constant_of(extent: int | ir.Expression) -> ir.Expression:
    return ir.Constant(extent, i64) if isinstance(extent, int) else extent


def grid_tiles(shape: list[int], by: tuple[int, ...]) -> list[int]:
    return [-(-extent // step) for extent, step in zip(shape, by, strict=True)]


def grid_origin(blocks: Array, tiles: list[int], node: ir.Grid) -> list[Array]:
    """Where the tiles of some blocks begin, in each dimension."""
    rank = len(tiles)
    if node.order and node.order[0] == "grouped" and rank >= 2:
        group = int(node.order[1])
        *outer, rows, columns = tiles
        rest, number = np.divmod(blocks, rows * columns) if rows * columns else (blocks, blocks)
        first = number // (group * columns) * group
        height = np.minimum(rows - first, group)
        within = number % (group * columns)
        numbers = [*np.unravel_index(rest, outer)] if outer else []
        numbers += [first + within % height, within // height]
    else:
        order = [int(i) for i in node.order] if node.order else list(range(rank))
        spelled = np.unravel_index(blocks, [tiles[i] for i in order]) if rank else ()
        numbers = [spelled[order.index(i)] for i in range(rank)]
    return [np.asarray(n, np.int64) * by for n, by in zip(numbers, node.by, strict=True)]


def agreed(frame: Frame, value: Any, loc: Location, node: object) -> Any:
    """A value that all workers of a block have to agree on, once for each block."""
    if not isinstance(value, np.ndarray) or value.shape[-1] == 1:
        return value
    one = value[..., :1]
    wrong = (value != one) & ((value == value) | (one == one))
    if wrong.any():
        where = wrong if frame.mask is None else wrong & frame.mask
        if where.any():
            frame.fault("divergence", "workers disagree on a uniform value", where, loc, node)
    return one.copy()


def _turns(begin: Array, end: Array, step: int) -> Array:
    distance = end - begin if step > 0 else begin - end
    return np.maximum(0, -(-distance // abs(step)))


__all__ = ["WARP", "Code", "Evaluate", "Statements", "Tasks"]
