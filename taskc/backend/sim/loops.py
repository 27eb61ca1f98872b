"""Loops and mapping loops: independent tasks and turns run at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from taskc.analysis.touches import exit_condition
from taskc.backend.sim import analysis
from taskc.backend.sim.accesses import check_turns
from taskc.backend.sim.analysis import Turns, TurnWatch, named_source
from taskc.backend.sim.expressions import Evaluate, narrowed
from taskc.backend.sim.machine import EachLoop, Frame, Touched
from taskc.backend.sim.memory import Array
from taskc.backend.sim.report import Enough
from taskc.backend.sim.schedule import Thread, WarpWait
from taskc.backend.sim.statements import NOTHING, Code, Makers, StatementCompiler, agreed, repeated
from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.ir.code_size import trip_count
from taskc.ir.mapping import Mapping

_ENDLESS = 1_000_000
_MOST_TURNS = 2**62  # more than anybody waits for
_LANES_AT_ONCE = 1 << 20


def _while(compiler: StatementCompiler, node: ir.While) -> Code:
    condition = compiler.expressions(node.condition)
    body = compiler(node.body)
    uniform = compiler.uniform
    watched = Turns.of(node, compiler.run.written)
    spins = compiler.run.by_warps and bool(watched.sources)
    awaited = None
    if watched.sources:
        awaited = named_source(watched.sources[0], compiler.expressions)

    def goes_on(frame: Frame, turn: int) -> bool:
        if turn == _ENDLESS:
            message = f"the loop has not ended after {_ENDLESS} turns"
            frame.fault("endless-loop", message, None, node)
            return False
        chosen = condition(frame)
        if uniform:
            chosen = agreed(frame, chosen, node)
        frame.mask = narrowed(frame.mask, chosen)
        return frame.mask is None or bool(np.count_nonzero(frame.mask))

    def turns(frame: Frame) -> Iterator[Any]:
        outer, turn, watch = frame.mask, 0, TurnWatch(watched)
        while goes_on(frame, turn):
            is_idle = watch.stays(frame, turn)
            if is_idle and not spins:
                _never_ends(frame, node, watched, awaited)
            if is_idle and awaited is not None:
                yield _change(frame, node, watch, awaited(frame))
            else:
                yield WarpWait(lambda: True, "others", node.loc) if spins else None
            turn += 1
        frame.mask = outer

    if not spins:
        return repeated(turns, body)

    def steps(frame: Frame) -> Thread:
        for wait in turns(frame):
            yield wait
            yield from body.steps(frame)

    return Code(steps, waits=True)


def _for(compiler: StatementCompiler, node: ir.For) -> Code:
    if node.kind == "vector":
        return _vector(compiler, node)
    code = _loop(compiler, node.variable, node.start, node.stop, node.step, node.body, node)
    count = trip_count(node)
    if code.waits or compiler.uniform or count is None or count < 2:
        return code
    if compiler.before is not None or not analysis.turns_are_independent(node, count):
        return code
    body = code.body
    assert body is not None
    values = _values(node, count)

    def run(frame: Frame) -> None:
        """Run all turns at once, along an axis of their own."""
        outer = frame.axes
        if prod(outer) * count * frame.count * frame.width > _LANES_AT_ONCE:
            code.run(frame)
            return
        _bind_turns(frame, node, values)
        body(frame)
        frame.axes = outer

    return Code(run)


def _vector(compiler: StatementCompiler, node: ir.For) -> Code:
    """Run all turns at once; each access of all turns is one vector access."""
    body = compiler(node.body)
    count = trip_count(node)
    if count is None or body.waits:
        raise InternalError("a vector loop has constant bounds, and waits for nobody")
    if not count:
        return NOTHING
    values = _values(node, count)
    independent = analysis.turns_are_independent(node, count)

    def run(frame: Frame) -> None:
        outer = frame.axes
        _bind_turns(frame, node, values)
        frame.vector = count
        touched: list[Touched] = []
        frame.touched = None if independent else touched
        body.run(frame)
        if touched:
            check_turns(frame, touched)
        frame.axes, frame.vector, frame.touched = outer, 1, None

    return Code(run)


def _pipeline(compiler: StatementCompiler, node: ir.Pipeline) -> Code:
    zero = ir.constant(0)
    return _loop(compiler, node.variable, zero, node.extent, node.by, node.body, node)


def _loop(
    compiler: StatementCompiler,
    variable: ir.Variable,
    start: ir.Expression,
    stop: ir.Expression,
    step: int,
    body_node: ir.Statement,
    node: ir.For | ir.Pipeline,
) -> Code:
    first, last = compiler.expressions(start), compiler.expressions(stop)
    body = compiler(body_node)
    condition = exit_condition(node) if isinstance(node, ir.For) else None
    goes_on = None if condition is None else compiler.expressions(condition)

    def is_over(frame: Frame) -> bool:
        """Whether the remaining turns do nothing, on all lanes."""
        return goes_on is not None and not _anywhere(frame, goes_on(frame))

    storage = variable.dtype.numpy.type
    uniform = compiler.uniform

    def turns(frame: Frame) -> Iterator[None]:
        """Bind the variable for each turn, and mask lanes that are past their end."""
        begin, end = first(frame), last(frame)
        if uniform:
            begin = agreed(frame, begin, node)
            end = agreed(frame, end, node)
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
                if is_over(frame):
                    break
                frame.env[variable] = value
                yield
                with np.errstate(over="ignore"):  # after a lane's last turn
                    value = value + storage(step)
        else:
            for number in range(int(begin), int(end), step):
                if is_over(frame):
                    break
                frame.env[variable] = storage(number)
                yield
        frame.mask = outer

    return repeated(turns, body)


def _each(compiler: StatementCompiler, node: ir.Each) -> Code:
    outermost = not compiler.in_each
    accesses = compiler.accesses
    if outermost:
        accesses.phase_writes = frozenset(analysis.writes(node.body))
    compiler.in_each = True
    worker = None if node.worker is None else compiler.expressions.index(node.worker)
    body = compiler(node.body)
    if outermost:
        compiler.in_each = False
        accesses.phase_writes = frozenset()
    mapping = node.mapping
    # A user who steps from line to line sees one task after another.
    at_once = not body.waits and compiler.before is None
    tasks_of = _tasks_of(node, worker, at_once and analysis.tasks_are_independent(node))

    def turns(frame: Frame) -> Iterator[None]:
        tasks = tasks_of(frame)
        mask, axes, owners = frame.mask, frame.axes, frame.owners_only
        in_each, loop = frame.in_each, frame.loop
        is_plain = worker is None and not axes and mapping.is_composed
        frame.in_each = True
        if compiler.run.by_phases and outermost:
            frame.group.order.step()
        for slot, turn in enumerate(tasks.turns):
            slots = Ellipsis if tasks.at_once else slot
            frame.loop = EachLoop(mapping, turn.values, slots) if is_plain else None
            if tasks.at_once:
                frame.axes = tasks.axes + axes
                turn = turn.within(len(axes))
            frame.env.update(zip(node.variables, turn.values, strict=True))
            if turn.valid is not None:
                frame.mask = narrowed(mask, turn.valid)
                if frame.mask is not None and not np.count_nonzero(frame.mask):
                    continue
            if turn.owned is not None:
                frame.owners_only = turn.owned if owners is None else owners & turn.owned
            yield
            frame.mask = mask
        frame.mask, frame.axes, frame.owners_only = mask, axes, owners
        frame.in_each, frame.loop = in_each, loop
        if compiler.run.by_phases and outermost:
            frame.group.order.step()

    return repeated(turns, body)


def _tasks_of(
    node: ir.Each, worker: Evaluate | None, independent: bool
) -> Callable[[Frame], Tasks]:
    """A function that returns the tasks of a frame's workers."""
    prepared: dict[Any, Tasks] = {}
    mapping = node.mapping

    def tasks_of(frame: Frame) -> Tasks:
        if worker is None:
            key = (int(frame.worker_row[0]) - frame.first, frame.width)
            tasks = prepared.get(key)
            if tasks is None:
                numbers = frame.worker_row - frame.first
                if numbers[-1] >= mapping.workers:
                    raise InternalError(f"{mapping} has {mapping.workers} workers, the group more")
                tasks = prepared[key] = Tasks(mapping, numbers[None, :], independent)
            return tasks
        numbers = np.atleast_2d(worker(frame))
        outside = (numbers < 0) | (numbers >= mapping.workers)
        if np.count_nonzero(outside):
            message = f"worker {{}} is outside the mapping's {mapping.workers}"
            frame.fault_if("out-of-bounds", message, outside, node, numbers)
            numbers = np.where(outside, 0, numbers)
        return Tasks(mapping, numbers, independent)

    return tasks_of


LOOPS: Makers = {ir.While: _while, ir.For: _for, ir.Pipeline: _pipeline, ir.Each: _each}


class TaskTurn(NamedTuple):
    """The variables' values, the mask of existing tasks, and of those that the worker owns first; None is all."""

    values: list[Array]
    valid: Array | None
    owned: Array | None

    def within(self, rank: int) -> TaskTurn:
        """The same turn inside so many axes of enclosing loops."""
        if not rank:
            return self
        grow = (..., *[None] * rank, slice(None), slice(None))
        valid, owned = (None if part is None else part[grow] for part in self[1:])
        return TaskTurn([value[grow] for value in self.values], valid, owned)


class Tasks:
    """The tasks of some workers: all slots at once, with axes of their own, or slot by slot."""

    def __init__(self, mapping: Mapping, workers: Array, at_once: bool) -> None:
        self.axes: tuple[int, ...] = ()
        at_once = self.at_once = at_once and workers.ndim == 2
        if at_once and mapping.worker_modes is not None and mapping.slot_modes is not None:
            values = self._composed(mapping, workers)
        else:
            tasks = np.moveaxis(mapping.tasks[workers], -2, 0)  # [slot, blocks, workers, rank]
            values = [tasks[..., dimension] for dimension in range(mapping.rank)]
            if at_once:
                self.axes = (mapping.slots,)
        inside: Any = None
        if at_once and mapping.is_composed:
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
            self.turns = [TaskTurn(values, inside, owned)]
            return
        self.turns = [
            TaskTurn(
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
        remaining = workers
        for mode in reversed(mapping.worker_modes or ()):
            remaining, digit = np.divmod(remaining, mode.size)
            if mode.dimension is not None:
                values[mode.dimension] = values[mode.dimension] + digit * mode.stride
        for axis, mode in enumerate(modes):
            if mode.dimension is not None:
                shape = [1] * (len(modes) + 2)
                shape[axis] = mode.size
                step = (np.arange(mode.size) * mode.stride).reshape(shape)
                values[mode.dimension] = values[mode.dimension] + step
        return values


def _anywhere(frame: Frame, condition: Any) -> bool:
    return bool(np.any(condition if frame.mask is None else condition & frame.mask))


def _change(frame: Frame, node: ir.While, watch: TurnWatch, awaited: str) -> WarpWait:
    """A wait until memory changes, for the workers of a loop."""
    run, seen = frame.run, watch.changes
    worker = frame.someone(frame.mask)[1]
    what = f"{awaited} to change"
    return WarpWait(lambda: run.changes != seen, what, node.loc, worker=worker, is_spin=True)


def _never_ends(
    frame: Frame, node: ir.While, turns: Turns, awaited: Callable[[Frame], str] | None
) -> None:
    """Report a loop that never ends: its workers are the only ones, so nobody changes what they see."""
    if awaited is None:
        message = "the loop never ends: from one turn to the next nothing changes"
        frame.fault("endless-loop", message, frame.mask, node)
        raise Enough
    worker = frame.someone(frame.mask)[1]
    who = "the block" if worker is None else f"worker {worker}"
    message = f"nobody makes progress: {who} waits for {awaited(frame)} to change"
    notes = (("this is what it sees, again and again", turns.sources[0].loc),)
    frame.fault("deadlock", message, frame.mask, node, notes=notes)
    raise Enough


def _bind_turns(frame: Frame, loop: ir.For, values: Array) -> None:
    """Give the turns an axis, and the variable its value in each of them."""
    frame.env[loop.variable] = values.reshape(len(values), *[1] * len(frame.axes), 1, 1)
    frame.axes = (len(values), *frame.axes)


def _values(loop: ir.For, count: int) -> Array:
    """The variable's value in each turn of a loop with a constant start."""
    assert isinstance(loop.start, ir.Constant)
    first = int(loop.start.value)
    values = np.arange(first, first + count * loop.step, loop.step)
    return values.astype(loop.variable.dtype.numpy)


def _turns(begin: Array, end: Array, step: int) -> Array:
    first, last = (begin, end) if step > 0 else (end, begin)
    with np.errstate(over="ignore"):  # a distance may exceed the largest number of its type
        distance = last.astype(np.int64).view(np.uint64) - first.astype(np.int64).view(np.uint64)
        turns = (distance - np.uint64(1)) // np.uint64(abs(step)) + np.uint64(1)
    return np.where(first < last, np.minimum(turns, np.uint64(_MOST_TURNS)), 0).astype(np.int64)
