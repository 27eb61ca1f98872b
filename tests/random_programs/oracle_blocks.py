"""The oracle's whole-block operations: moves, products, reductions and scans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.random_programs import description as d
from tests.random_programs.numbers import FLOATS, INTEGERS, cast, fma, function, number, wrap
from tests.random_programs.oracle_memory import (
    Environment,
    Layout,
    Memory,
    OracleError,
    Run,
    TileMemory,
)
from tests.random_programs.oracle_values import Values


class Blocks(Values):
    def __init__(self, program: d.Program) -> None:
        self.program = program
        self.layouts: dict[str, Layout] = {}
        self.types: dict[str, str] = {}  # of tiles
        self.extents = {name: extent for name, _, extent in program.dimensions}
        self.stored: dict[str, set[tuple[int, ...]]] = {}

    def layout(self, mapping: d.MappingOf) -> Layout:
        if mapping.name not in self.layouts:
            self.layouts[mapping.name] = Layout(mapping)
        return self.layouts[mapping.name]

    def put(self, environment: Environment, name: str, index: tuple[int, ...], value: Any) -> None:
        memory = environment[name]
        if isinstance(memory, TileMemory):
            worker = environment[" worker"]
            owners = range(len(memory.values)) if worker is None else (worker,)
            found = False
            for owner in owners:
                if index in memory.layout.held[owner]:
                    memory.values[owner][index] = value
                    found = True
            if not found:
                raise OracleError(f"{name}{list(index)} has no such owner")
            return
        if not all(0 <= i < n for i, n in zip(index, memory.shape, strict=True)):
            raise OracleError(f"{name}{list(index)} is outside {memory.shape}")
        if name in self.stored:
            if index in self.stored[name]:
                raise OracleError(f"{name}{list(index)} is stored twice")
            self.stored[name].add(index)
        memory.values[index] = value

    def box(
        self, box: d.Slice
    ) -> Callable[[Environment, tuple[int, ...]], tuple[tuple[int, ...], bool]]:
        """Where an element of a box lies, and whether the box's dimensions are in bounds there."""
        starts = [self.value(start) for start in box.starts]

        def place(
            environment: Environment, position: tuple[int, ...]
        ) -> tuple[tuple[int, ...], bool]:
            rest = iter(position)
            index: list[int] = []
            inside = True
            shape = environment[box.tensor].shape
            for start, size, extent in zip(starts, box.sizes, shape, strict=True):
                i = start(environment)
                if size is not None:
                    i += next(rest)
                    inside = inside and 0 <= i < extent
                index.append(i)
            return tuple(index), inside

        return place

    def load(self, node: d.Load) -> Run:
        fill = None if node.fill is None else number(node.fill, node.dtype)
        if node.source is None:
            assert node.value is not None
            value = self.value(node.value)

            def run(environment: Environment) -> None:
                values = {}
                inner = self.collective(environment)
                for position in np.ndindex(node.shape):
                    inner.update(zip(node.variables, position, strict=True))
                    try:
                        values[position] = value(inner)
                    except OracleError:
                        if fill is None:
                            raise
                        values[position] = fill
                environment[node.name] = Memory(node.shape, values)

            return run
        place, source = self.box(node.source), node.source.tensor
        zero = fill if fill is not None else number(0, node.dtype)

        def run_box(environment: Environment) -> None:
            values = {}
            for position in np.ndindex(node.shape):
                index, inside = place(environment, position)
                values[position] = environment[source].values[index] if inside else zero
            environment[node.name] = Memory(node.shape, values)

        return run_box

    def collective(self, environment: Environment) -> Environment:
        """Outside mapping loops: an element of a tile is its first owner's."""
        inner = dict(environment)
        inner[" worker"] = None
        return inner

    def taken(self, environment: Environment, name: str, index: tuple[int, ...]) -> Any:
        memory = environment[name]
        if isinstance(memory, TileMemory):
            return memory.values[memory.layout.first[index]][index]
        return memory.values[index]

    def storeblock(self, node: d.StoreBlock) -> Run:
        place = self.box(node.target)
        shape, target = node.target.shape, node.target.tensor
        if node.source is None:
            assert node.value is not None
            value = self.value(node.value)

            def run(environment: Environment) -> None:
                inner = self.collective(environment)
                for position in np.ndindex(shape):
                    index, inside = place(environment, position)
                    if inside:
                        inner.update(zip(node.variables, position, strict=True))
                        self.put(inner, target, index, value(inner))

            return run
        return self.transfer(node.target, node.source)

    def copy(self, node: d.Copy) -> Run:
        return self.transfer(node.target, node.source)

    def transfer(self, target: d.Slice, source: d.Slice) -> Run:
        place, fetch = self.box(target), self.box(source)

        def run(environment: Environment) -> None:
            inner = self.collective(environment)
            found = []
            for position in np.ndindex(target.shape):
                index, inside = place(environment, position)
                origin, is_there = fetch(environment, position)
                if inside and is_there:
                    found.append((index, self.taken(environment, source.tensor, origin)))
            for index, value in found:
                self.put(inner, target.tensor, index, value)

        return run

    def product(self, node: d.Product) -> Run:
        left, right = self.box(node.left), self.box(node.right)

        def run(environment: Environment) -> None:
            accumulator = environment[node.accumulator]
            dtype = self.types[node.accumulator]
            depth = node.left.shape[0 if node.transposed[0] else 1]
            for worker, values in enumerate(accumulator.values):
                for i, j in accumulator.layout.tasks[worker]:
                    total = values[i, j]
                    for q in range(depth):
                        a, _ = left(environment, (q, i) if node.transposed[0] else (i, q))
                        b, _ = right(environment, (j, q) if node.transposed[1] else (q, j))
                        x = self.taken(environment, node.left.tensor, a)
                        y = self.taken(environment, node.right.tensor, b)
                        x = cast(x, node.left.dtype, dtype)
                        y = cast(y, node.right.dtype, dtype)
                        if dtype in FLOATS:
                            total = fma(x, y, total, dtype)
                        else:
                            product = function("*", dtype)(x, y)
                            total = function("+", dtype)(product, total)
                    values[i, j] = total

        return run

    def reduce(self, node: d.Reduce) -> Run:
        self.types[node.name] = self.types[node.source]

        def run(environment: Environment) -> None:
            source = environment[node.source]
            combine = function(node.operator, self.types[node.source])
            lines: dict[tuple[int, ...], dict[int, Any]] = {}
            # Slots ascending, for each worker by itself.
            for worker, values in enumerate(source.values):
                own: dict[tuple[int, ...], list[Any]] = {}
                for task in source.layout.tasks[worker]:
                    rest = task[: node.axis] + task[node.axis + 1 :]
                    own.setdefault(rest, []).append((task[node.axis], values[task]))
                for rest, found in own.items():
                    total = found[0][1]
                    for _, value in found[1:]:
                        total = combine(total, value)
                    # Workers that share a position hold the same elements.
                    position = min(place for place, _ in found)
                    lines.setdefault(rest, {}).setdefault(position, total)
            totals = {}
            for rest, parts in lines.items():
                row = [parts[position] for position in sorted(parts)]
                while len(row) > 1:
                    half = (len(row) + 1) // 2
                    row = [
                        combine(row[i], row[i + half]) if i + half < len(row) else row[i]
                        for i in range(half)
                    ]
                totals[rest or (0,)] = row[0]
            environment[node.name] = self.projected(source, node.axis, totals)

        return run

    def projected(
        self, source: TileMemory, axis: int, totals: dict[tuple[int, ...], Any]
    ) -> TileMemory:
        """The tile without the axis: each worker holds what it had a part of."""
        slots = []
        for tasks in source.layout.tasks:
            kept = [task[:axis] + task[axis + 1 :] or (0,) for task in tasks]
            slots.append(tuple(dict.fromkeys(kept)))
        shape = source.shape[:axis] + source.shape[axis + 1 :] or (1,)
        layout = Layout(d.MappingOf("", shape, len(slots), tasks=tuple(slots)))
        result = TileMemory(layout, None)
        for worker, tasks in enumerate(layout.tasks):
            result.values[worker] = {task: totals[task] for task in tasks}
        return result

    def scan(self, node: d.Scan) -> Run:
        self.types[node.name] = self.types[node.source]

        def run(environment: Environment) -> None:
            source = environment[node.source]
            dtype = self.types[node.source]
            combine = function(node.operator, dtype)
            line = {
                task: self.taken(environment, node.source, task) for task in source.layout.first
            }
            prefixes = {}
            for task in line:
                if task[node.axis]:
                    continue
                places = [
                    (*task[: node.axis], place, *task[node.axis + 1 :])
                    for place in range(source.shape[node.axis])
                ]
                levels = _levels(source.layout, places)
                results = _scanned([line[here] for here in places], levels, combine)
                if node.exclusive:
                    results = [_identity(node.operator, dtype), *results[:-1]]
                prefixes.update(zip(places, results, strict=True))
            result = TileMemory(source.layout, None)
            for worker, tasks in enumerate(source.layout.tasks):
                result.values[worker] = {task: prefixes[task] for task in tasks}
            environment[node.name] = result

        return run


def _identity(operator: str, dtype: str) -> Any:
    """What changes no number that it is folded with."""
    is_float = dtype in FLOATS
    if operator in ("min", "max"):
        if is_float:
            return number(float("inf") if operator == "min" else float("-inf"), dtype)
        bits, signed = INTEGERS[dtype]
        least = -(1 << (bits - 1)) if signed else 0
        return least + (1 << bits) - 1 if operator == "min" else least
    if operator == "+":
        return number(-0.0 if is_float else 0, dtype)
    if operator == "&":
        return wrap(-1, dtype)
    return number(1 if operator == "*" else 0, dtype)


def _levels(layout: Layout, places: list[tuple[int, ...]]) -> list[tuple[bool, int]]:
    """Of a line, from the inside out: whether neighbouring blocks are different workers', and how many there are."""
    mapping = layout.mapping
    if mapping.tasks is not None or mapping.iterated != mapping.shape:
        return [(False, len(places))]
    owners = [layout.first[place] for place in places]
    levels, size = [], 1
    while size < len(owners):
        blocks = [owners[at : at + size] for at in range(0, len(owners), size)]
        is_workers = blocks[0] != blocks[1]
        # A level of workers ends where the first comes again; one of slots, where another comes.
        ends = [k for k, block in enumerate(blocks) if k and (block == blocks[0]) == is_workers]
        count = ends[0] if ends else len(blocks)
        levels.append((is_workers, count))
        size *= count
    return levels


def _scanned(values: list[Any], levels: list[tuple[bool, int]], combine: Any) -> list[Any]:
    size, values = 1, list(values)
    for is_workers, count in levels:
        for start in range(0, len(values), size * count):
            ends = [start + size * (k + 1) - 1 for k in range(count)]
            totals = [values[end] for end in ends]
            for k in range(1, count):
                if not is_workers:
                    totals[k] = combine(totals[k - 1], totals[k])
                for bit in range(k.bit_length()) if is_workers else ():
                    if k >> bit & 1:
                        totals[k] = combine(
                            _node(values, ends, (k >> bit) - 1, bit, combine), totals[k]
                        )
            for k in range(1, count):
                block = range(ends[k] + 1 - size, ends[k] + 1)
                for at in block:
                    values[at] = totals[k] if size == 1 else combine(totals[k - 1], values[at])
        size *= count
    return values


def _node(values: list[Any], ends: list[int], node: int, level: int, combine: Any) -> Any:
    """The total of 2**level blocks, halves first."""
    if level == 0:
        return values[ends[node]]
    left = _node(values, ends, 2 * node, level - 1, combine)
    return combine(left, _node(values, ends, 2 * node + 1, level - 1, combine))
