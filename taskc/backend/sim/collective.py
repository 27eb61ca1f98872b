"""Whole-block statements: Move, Mma, Reduce, Scan."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, TypeAlias

import numpy as np

from taskc.backend.sim.copies import issue, task_indices
from taskc.backend.sim.expressions import narrowed, scalar
from taskc.backend.sim.machine import Frame, Run, active_blocks
from taskc.backend.sim.memory import Array, Storage
from taskc.backend.sim.products import mma
from taskc.backend.sim.recording import memory_of
from taskc.backend.sim.report import Located
from taskc.backend.sim.schedule import Thread
from taskc.backend.sim.statements import Code, Makers, StatementCompiler
from taskc.backend.sim.synchronization import arrivals_of
from taskc.backend.sim.tiles import gather_tile, scatter_tile
from taskc.dataclass import dataclass
from taskc.errors import Location
from taskc.ir import arithmetic, nodes as ir
from taskc.ir.mapping import Mapping
from taskc.ir.rewrite import walk
from taskc.ir.scan_order import Arrays, scan_levels, scanned
from taskc.ir.target import is_asynchronous
from taskc.ir.types import DType

Fold: TypeAlias = Callable[[Arrays, Arrays], Arrays]


# --- Move ----------------------------------------------------------------------------------------


def _move(compiler: StatementCompiler, node: ir.Move) -> Code:
    if not compiler.run.by_phases and node.how == "tma":
        return _bulk_move(compiler, node)
    sends = node.how == "tma" and node.tensor.scope == ir.GLOBAL
    by = (
        None if sends else _workers_of(compiler.run, node)
    )  # of a bulk store, only the issuing worker matters
    if not compiler.run.by_phases and node.how == "cp.async" and by is not None:
        compiler.accesses.issue = issue
        code = _move_by(compiler, node, by)
        compiler.accesses.issue = None
        return code
    return _move_by_anyone(compiler, node) if by is None else _move_by(compiler, node, by)


def _move_by(compiler: StatementCompiler, node: ir.Move, by: Mapping) -> Code:
    store: ir.Statement = ir.Store(node.tensor, node.indices, node.value, loc=node.loc)
    if node.guard is not None:
        store = ir.If(node.guard, store, loc=node.loc)
    return compiler(ir.Each(node.variables, by, None, store, loc=node.loc))


def _workers_of(run: Run, node: ir.Move) -> Mapping | None:
    """The mapping that distributes the tasks, where it matters which worker does them."""
    tiles = {
        tensor
        for part in (node.value, node.guard)
        if part is not None
        for read in walk(part)
        if isinstance(read, ir.Read) and (tensor := read.tensor).scope == ir.TILE
    }
    by = node.by
    if node.tensor.scope == ir.TILE:
        tiles.add(node.tensor)
        by = by or node.tensor.owners
    if by is None:
        return None
    if tiles and run.kernel.stage == "parsed":
        return None
    if by.iterated != node.shape:
        limit = tuple(map(min, by.iterated, node.shape))
        if not by.covers(node.shape):
            run.findings.add(
                "not-written",
                f"{by} does not cover the shape {node.shape} of the move",
                node.loc,
                where=node,
            )
        by = by.within(*limit)
    return by


def _move_by_anyone(compiler: StatementCompiler, node: ir.Move) -> Code:
    accesses = compiler.accesses
    accesses.phase_writes = frozenset((node.tensor,))
    value = compiler.expressions(node.value)
    guard = None if node.guard is None else compiler.expressions(node.guard)
    store = accesses.store(node.tensor, node.indices, node)
    accesses.phase_writes = frozenset()
    tasks = task_indices(node.shape)
    count = prod(node.shape)

    def run(frame: Frame) -> None:
        _begin(frame)
        inner = frame.tasks(count)
        for variable, index in zip(node.variables, tasks, strict=True):
            frame.env[variable] = index
        if guard is not None:
            inner.mask = narrowed(inner.mask, guard(inner))
            if inner.mask is not None and not inner.mask.any():
                return
        store(inner, value(inner))
        _begin(frame)

    return _together(compiler, run, node)


def _bulk_move(compiler: StatementCompiler, node: ir.Move) -> Code:
    """A bulk copy: one worker issues it, and the steps of its ring tell when it has arrived."""
    value = compiler.expressions(node.value)
    place = compiler.accesses.place(node.tensor, node.indices, node)
    tasks = task_indices(node.shape)
    site = compiler.run.site(node.loc)

    def run(frame: Frame) -> None:
        if int(frame.worker_row[0]) != frame.first:
            return
        inner = frame.tasks(prod(node.shape))
        for variable, index in zip(node.variables, tasks, strict=True):
            frame.env[variable] = index
        memory = memory_of(frame, node.tensor)
        at = place(inner)[0] + memory.rows
        shape = (1, inner.width)
        flat = np.broadcast_to(at, shape)[0]
        values = np.broadcast_to(value(inner), shape)[0].copy()
        if inner.mask is not None:
            chosen = np.broadcast_to(inner.mask, shape)[0]
            flat, values = flat[chosen], values[chosen]
        slot = int(flat[0] - int(np.max(memory.rows))) // prod(memory.shape[1:])
        ring = arrivals_of(frame, frame.run.ring_of[node.tensor])
        ring.slots[slot].send(frame, memory, flat, values, 0, site)

    return Code(run)


def _together(
    compiler: StatementCompiler, run: Callable[[Frame], None], node: ir.Statement
) -> Code:
    """Make all warps of a role meet and execute the statement as one, where warps run by themselves."""
    if not compiler.run.by_warps:
        return Code(run)

    def act(frames: list[Frame]) -> None:
        last = frames[-1]
        members = last.members
        whole = Frame(last.group, np.arange(members.start, members.stop), members)
        whole.env, whole.memories = last.env, last.memories
        run(whole)

    def steps(frame: Frame) -> Thread:
        key = (id(node), frame.members.start)
        yield from frame.group.schedule.gather(key, frame, node.loc, act)

    return Code(steps, waits=True)


def _begin(frame: Frame) -> None:
    if frame.run.by_phases:
        frame.group.order.step()


# --- Mma -----------------------------------------------------------------------------------------


def _mma(compiler: StatementCompiler, node: ir.Mma) -> Code:
    if compiler.run.by_warps and is_asynchronous(node.how):
        return mma(compiler, node)
    left = _operand(compiler, node.left, node.loc)
    right = _operand(compiler, node.right, node.loc)
    accumulator, dtype = node.accumulator, node.accumulator.dtype
    onto = None if node.accumulate is None else compiler.expressions(node.accumulate)

    def rounded(values: Array, source: DType) -> Array:
        by = node.by or source
        return arithmetic.convert(arithmetic.convert(values, source, by), by, dtype)

    def run(frame: Frame) -> None:
        _begin(frame)
        memory = memory_of(frame, accumulator)
        a = rounded(left(frame), node.left.tensor.dtype)
        b = rounded(right(frame), node.right.tensor.dtype)
        if onto is None or np.all(onto(frame)):
            total = _gather(frame, memory, node)
        else:
            total = np.zeros((frame.count, *memory.shape), memory.data.dtype)
        for q in range(a.shape[2]):
            total = arithmetic.fma(a[:, :, q, None], b[:, q, None, :], total, dtype)
        _scatter(frame, memory, total)

    return _together(compiler, run, node)


def _operand(
    compiler: StatementCompiler, operand: ir.Operand, loc: Location
) -> Callable[[Frame], Array]:
    """The operand's elements, [blocks, rows, columns]."""
    rows, columns = ir.Variable("row"), ir.Variable("column")
    inner = (columns, rows) if operand.transposed else (rows, columns)
    *outer, first, second = operand.origin
    indices = (
        *outer,
        ir.Binary("+", first, inner[0], loc=loc),
        ir.Binary("+", second, inner[1], loc=loc),
    )
    read = compiler.accesses.read(ir.Read(operand.tensor, indices, loc=loc))
    tasks = task_indices(operand.shape)

    def gather(frame: Frame) -> Array:
        count = prod(operand.shape)
        frame.env[rows], frame.env[columns] = tasks
        values = np.broadcast_to(read(frame.tasks(count)), (frame.count, count))
        return values.reshape(frame.count, *operand.shape)

    return gather


def _gather(frame: Frame, memory: Storage, node: Located) -> Array:
    values, missing = gather_tile(memory, frame)
    if missing.any():
        where = missing.reshape(frame.count, -1)
        if frame.mask is not None:
            where = where & active_blocks(frame)[:, None]
        if where.any():
            name = memory.tensor.name
            message = f"{name} is read before it is written"
            inner = frame.tasks(where.shape[1])
            inner.fault("uninitialized", message, where, node)
    return values


def _scatter(frame: Frame, memory: Storage, values: Array) -> None:
    elements = np.ascontiguousarray(values).reshape(frame.count, -1)
    touched = np.ones(elements.shape, np.bool_)
    if frame.mask is not None:
        touched &= active_blocks(frame)[:, None]
    scatter_tile(memory, elements, touched, frame)


# --- Reduce and Scan -----------------------------------------------------------------------------


def _reduce(compiler: StatementCompiler, node: ir.Reduce) -> Code:
    source = node.sources[0]
    plan = reduction_plan(source, compiler.run.shapes[source], node.axis)
    fold = _fold(compiler, node)

    def run(frame: Frame) -> None:
        _begin(frame)
        lines = tuple([line.reshape(frame.count, -1, plan.extent) for line in _lines(frame, node)])
        results = plan.fold(lines, fold(frame))
        for target, result in zip(node.targets, results, strict=True):
            _scatter(frame, memory_of(frame, target), result)

    return _together(compiler, run, node)


def _scan(compiler: StatementCompiler, node: ir.Scan) -> Code:
    owners = node.sources[0].owners
    assert owners is not None
    levels = scan_levels(owners, node.axis)
    fold = _fold(compiler, node)

    def run(frame: Frame) -> None:
        _begin(frame)
        lines = _lines(frame, node)
        results = scanned(levels, lines, fold(frame)) if lines[0].size else lines
        for target, result in zip(node.targets, results, strict=True):
            if node.exclusive:
                result[..., 1:] = result[..., :-1].copy()
                result[..., :1] = identity(str(node.operator), target.dtype)
            placed = np.moveaxis(result, -1, node.axis + 1)
            _scatter(frame, memory_of(frame, target), placed)

    return _together(compiler, run, node)


def _lines(frame: Frame, node: ir.Reduce | ir.Scan) -> Arrays:
    """The sources' elements, with the axis last."""
    values = [_gather(frame, memory_of(frame, source), node) for source in node.sources]
    return tuple([np.moveaxis(value, node.axis + 1, -1) for value in values])


def _fold(compiler: StatementCompiler, node: ir.Reduce | ir.Scan) -> Callable[[Frame], Fold]:
    """The fold of two tuples of arrays, [blocks, ...] each, into a third."""
    operator = node.operator
    if not isinstance(operator, ir.Combine):
        dtype = node.sources[0].dtype
        return lambda frame: lambda a, b: (arithmetic.binary(operator, a[0], b[0], dtype),)
    combine = operator
    lets = [(let.variable, compiler.expressions(let.value)) for let in combine.lets]
    values = [compiler.expressions(value) for value in combine.values]

    def of(frame: Frame) -> Fold:
        def fold(left: Arrays, right: Arrays) -> Arrays:
            shape = left[0].shape
            inner = frame.tasks(prod(shape[1:]))
            for variables, arrays in ((combine.left, left), (combine.right, right)):
                for variable, array in zip(variables, arrays, strict=True):
                    inner.env[variable] = array.reshape(frame.count, -1)
            for variable, evaluate in lets:
                inner.env[variable] = evaluate(inner)
            made = [np.broadcast_to(value(inner), inner.full) for value in values]
            return tuple([array.reshape(shape) for array in made])

        return fold

    return of


WHOLE_BLOCK: Makers = {ir.Move: _move, ir.Mma: _mma, ir.Reduce: _reduce, ir.Scan: _scan}


@dataclass(frozen=True, slots=True)
class ReductionOrder:
    """The order of a reduction: for each line, the positions of each partial result, in order.

    positions  [line, part, element]; valid says which there are
    parts      how many partial results each line has
    """

    extent: int
    positions: Array
    valid: Array
    parts: Array

    def fold(self, lines: Arrays, fold: Fold) -> Arrays:
        """Fold lines [blocks, line, extent] to [blocks, line]."""
        count, _, longest = self.positions.shape
        index = np.arange(count)[:, None, None]
        values = [line[:, index, self.positions] for line in lines]
        partial = tuple([value[..., 0].copy() for value in values])
        for element in range(1, longest):
            valid = self.valid[..., element]
            folded = fold(partial, tuple([value[..., element] for value in values]))
            partial = tuple(
                [np.where(valid, new, old) for new, old in zip(folded, partial, strict=True)]
            )
        results = tuple([part[..., 0].copy() for part in partial])
        for parts in np.unique(self.parts).tolist():
            chosen = self.parts == parts
            tree = tuple([part[:, chosen, :parts] for part in partial])
            remaining = parts
            while remaining > 1:
                half = (remaining + 1) // 2
                upper = tuple([part[..., half:remaining] for part in tree])
                lower = tuple([part[..., : remaining - half] for part in tree])
                rest = [part[..., remaining - half : half] for part in tree]
                pairs = zip(fold(lower, upper), rest, strict=True)
                tree = tuple([np.concatenate(pair, axis=-1) for pair in pairs])
                remaining = half
            for result, part in zip(results, tree, strict=True):
                result[:, chosen] = part[..., 0]
        return results


def reduction_plan(source: ir.Tensor, shape: tuple[int, ...], axis: int) -> ReductionOrder:
    assert source.owners is not None
    workers, slots = source.owners.owner_table()
    inside = tuple(slice(extent) for extent in shape)
    extent = shape[axis]
    worker_lines = np.moveaxis(workers[inside], axis, -1).reshape(-1, extent)
    slot_lines = np.moveaxis(slots[inside], axis, -1).reshape(-1, extent)
    patterns: dict[tuple[bytes, bytes], list[list[int]]] = {}
    lines: list[list[list[int]]] = []
    for line in range(len(worker_lines)):
        # Lines that differ only in their owners share one pattern: workers are numbered by first appearance.
        _, first, inverse = np.unique(worker_lines[line], return_index=True, return_inverse=True)
        names = first[inverse]
        key = (names.tobytes(), slot_lines[line].tobytes())
        if key not in patterns:
            groups: dict[int, list[int]] = {}
            for position, name in enumerate(names.tolist()):
                groups.setdefault(name, []).append(position)
            slot_of = slot_lines[line].tolist()
            patterns[key] = [
                sorted(group, key=slot_of.__getitem__) for _, group in sorted(groups.items())
            ]
        lines.append(patterns[key])
    widest = max((len(line) for line in lines), default=0)
    longest = max((len(group) for line in lines for group in line), default=0)
    positions = np.zeros((len(lines), widest, longest), np.int64)
    valid = np.zeros(positions.shape, np.bool_)
    for i, line_groups in enumerate(lines):
        for j, group in enumerate(line_groups):
            positions[i, j, : len(group)] = group
            valid[i, j, : len(group)] = True
    parts = np.array([len(line) for line in lines], np.int64)
    return ReductionOrder(extent, positions, valid, parts)


def identity(operator: str, dtype: DType) -> Any:
    """The neutral element of an operator."""
    lowest, highest = dtype.minimum, dtype.maximum
    if dtype.is_float:
        lowest, highest = -np.inf, np.inf
    value: Any = {
        "+": -0.0 if dtype.is_float else 0,
        "*": 1,
        "min": highest,
        "max": lowest,
        "&": -1 if dtype.kind == "int" else dtype.maximum,
        "|": 0,
        "^": 0,
    }[operator]
    if dtype.is_float:
        value = float(value)
    return scalar(arithmetic.as_storage(value, dtype))
