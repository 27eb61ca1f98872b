"""Loops, and mapping loops: tasks and turns that are independent run at once."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from taskc.backend.sim import analysis
from taskc.backend.sim.expressions import narrowed
from taskc.backend.sim.machine import Frame, Loop, Touched
from taskc.backend.sim.memory import Array
from taskc.backend.sim.report import Enough
from taskc.backend.sim.schedule import Wait
from taskc.backend.sim.statements import Code, Statements, agreed
from taskc.backend.sim.vectors import check_turns
from taskc.backend.sim.waiting import Turns, Watch, named_source
from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping
from taskc.ir.straight_line import trip_count

_ENDLESS = 1_000_000
_MOST_TURNS = 2**62  # more than anybody waits for
_LANES_AT_ONCE = 1 << 20


class Loops:
    """Compiles loops, as additions to `Statements`."""

    def __init__(self, statements: Statements, written: frozenset[ir.Tensor]) -> None:
        self.statements = statements
        self.written = written
        self.state = statements.state
        self.expressions = statements.expressions
        statements.makers.update(
            {
                ir.While: self._while,
                ir.For: self._for,
                ir.Pipeline: self._pipeline,
                ir.Each: self._each,
            }
        )

    def _while(self, node: ir.While) -> Code:
        condition = self.expressions(node.condition)
        body = self.statements(node.body)
        uniform = self.statements.uniform

        turns = Turns.of(node, self.written)
        spins = self.state.by_warps and bool(turns.sources)
        names = [named_source(source, self.expressions) for source in turns.sources[:1]]

        def goes_on(frame: Frame, turn: int) -> bool:
            if turn == _ENDLESS:
                message = f"the loop has not ended after {_ENDLESS} turns"
                frame.fault("endless-loop", message, np.ones((1, 1), np.bool_), node.loc, node)
                return False
            chosen = condition(frame)
            if uniform:
                chosen = agreed(frame, chosen, node.loc, node)
            frame.mask = narrowed(frame.mask, chosen)
            return frame.mask is None or bool(frame.mask.any())

        def sleep(frame: Frame, watch: Watch) -> Wait:
            """Until somebody changes memory."""
            run, seen = frame.run, watch.changes
            active = np.ones((1, 1), np.bool_) if frame.mask is None else frame.mask
            worker = frame.someone(active)[1]
            awaited = f"{names[0](frame)} to change"
            return Wait(lambda: run.changes != seen, awaited, node.loc, worker=worker, is_spin=True)

        def never_ends(frame: Frame) -> None:
            """Those who are in the loop are all there are."""
            message = "the loop never ends: from one turn to the next nothing changes"
            kind = "endless-loop"
            if names:
                kind = "deadlock"
                message = f"nobody makes progress: {{}} waits for {names[0](frame)} to change"
            active = np.ones((1, 1), np.bool_) if frame.mask is None else frame.mask
            worker = frame.someone(active)[1]
            message = message.format("the block" if worker is None else f"worker {worker}")
            notes = (
                (("this is what it sees, again and again", turns.sources[0].loc),) if names else ()
            )
            frame.fault(kind, message, active, node.loc, node, notes=notes)
            raise Enough

        def steps(frame: Frame) -> Any:
            outer = frame.mask
            turn = 0
            watch = Watch(turns)
            while goes_on(frame, turn):
                is_idle = watch.stays(frame, turn)
                if is_idle and not spins:
                    never_ends(frame)
                if spins:
                    anything = Wait(lambda: True, "others", node.loc)
                    yield sleep(frame, watch) if is_idle else anything
                if body.waits:
                    yield from body.run(frame)
                else:
                    body.run(frame)
                turn += 1
            frame.mask = outer

        def run(frame: Frame) -> None:
            outer = frame.mask
            turn = 0
            watch = Watch(turns)
            while goes_on(frame, turn):
                if watch.stays(frame, turn):
                    never_ends(frame)
                body.run(frame)
                turn += 1
            frame.mask = outer

        return Code(steps, waits=True) if body.waits or spins else Code(run)

    def _for(self, node: ir.For) -> Code:
        if node.kind == "vector":
            return self._vector(node)
        code = self._loop(node.variable, node.start, node.stop, node.step, node.body, node)
        count = trip_count(node)
        if code.waits or self.statements.uniform or count is None or count < 2:
            return code
        if not analysis.turns_are_independent(node, count):
            return code
        body = code.body
        assert body is not None
        assert isinstance(node.start, ir.Constant)
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
            body(frame)
            frame.axes = outer

        return Code(run)

    def _vector(self, node: ir.For) -> Code:
        """All turns at once, and each access is one."""
        body = self.statements(node.body)
        count = trip_count(node)
        if count is None or body.waits:
            raise InternalError("a vector loop has constant bounds, and waits for nobody")
        if not count:
            return Code(lambda frame: None)
        assert isinstance(node.start, ir.Constant)
        first = int(node.start.value)
        values = np.arange(first, first + count * node.step, node.step)
        values = values.astype(node.variable.dtype.numpy)
        independent = analysis.turns_are_independent(node, count)

        def run(frame: Frame) -> None:
            outer = frame.axes
            frame.axes = (count, *outer)
            frame.env[node.variable] = values.reshape(count, *(1 for _ in outer), 1, 1)
            frame.vector = count
            touched: list[Touched] = []
            frame.touched = None if independent else touched
            body.run(frame)
            if touched:
                check_turns(frame, touched)
            frame.axes, frame.vector, frame.touched = outer, 1, None

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
        body = self.statements(body_node)
        storage = variable.dtype.numpy.type
        uniform = self.statements.uniform

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
                    with np.errstate(over="ignore"):  # behind a lane's last turn
                        value = value + storage(step)
            else:
                for number in range(int(begin), int(end), step):
                    frame.env[variable] = storage(number)
                    yield
            frame.mask = outer

        def steps(frame: Frame) -> Any:
            for _ in turns(frame):
                yield from body.run(frame)

        def run(frame: Frame) -> None:
            for _ in turns(frame):
                body.run(frame)

        return Code(steps, waits=True) if body.waits else Code(run, body=body.run)

    def _each(self, node: ir.Each) -> Code:
        outermost = not self.statements.in_each
        accesses = self.statements.accesses
        if outermost:
            accesses.phase_writes = frozenset(analysis.writes(node.body))
        self.statements.in_each = True
        worker = None if node.worker is None else self.expressions.index(node.worker)
        body = self.statements(node.body)
        if outermost:
            self.statements.in_each = False
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


def _turns(begin: Array, end: Array, step: int) -> Array:
    first, last = (begin, end) if step > 0 else (end, begin)
    with np.errstate(over="ignore"):  # a distance may be larger than its type's largest number
        distance = last.astype(np.int64).view(np.uint64) - first.astype(np.int64).view(np.uint64)
        turns = (distance - np.uint64(1)) // np.uint64(abs(step)) + np.uint64(1)
    return np.where(first < last, np.minimum(turns, np.uint64(_MOST_TURNS)), 0).astype(np.int64)
