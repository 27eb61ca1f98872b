"""What a random program means: a direct evaluation, slow and plain.

Blocks one after another, phases one after another, and in a phase worker after worker, task after task.
It knows nothing of the compiler: a mapping is the list of tasks that its definition gives.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from tests.programs import description as d
from tests.programs.numbers import INTEGERS, STORAGE, cast, fma, function, number, wrap

Environment = dict[str, Any]
Evaluate = Callable[[Environment], Any]
Run = Callable[[Environment], None]


class OracleError(Exception):
    """The program is not valid: the generator made a mistake."""


# --- mappings --------------------------------------------------------------------------------


def tasks_of(mapping: d.MappingOf) -> list[list[tuple[int, ...] | None]]:
    """The tasks of each worker by slot; None where a slot is empty."""
    if mapping.tasks is not None:
        lists = [list(tasks) for tasks in mapping.tasks]
        slots = max(map(len, lists))
        lists = [tasks + [None] * (slots - len(tasks)) for tasks in lists]
    else:
        rank = len(mapping.shape)
        lists = [[(0,) * rank]]
        for factor in mapping.factors:
            inner = _factor_tasks(factor, rank)
            sizes = (1,) * rank if factor.kind == "replicate" else factor.sizes
            lists = [
                [
                    tuple(a * n + b for a, n, b in zip(outside, sizes, inside, strict=True))
                    for outside in outer
                    for inside in own
                ]
                for outer in lists
                for own in inner
            ]
    if mapping.limit is None:
        return lists
    limit = mapping.limit
    return [
        [
            task
            if task is not None and all(t < n for t, n in zip(task, limit, strict=True))
            else None
            for task in tasks
        ]
        for tasks in lists
    ]


def _factor_tasks(factor: d.Factor, rank: int) -> list[list[tuple[int, ...]]]:
    if factor.kind == "replicate":
        return [[(0,) * rank] for _ in range(factor.sizes[0])]
    order = factor.order or tuple(range(len(factor.sizes)))
    tasks = []
    for digits in itertools.product(*(range(factor.sizes[dimension]) for dimension in order)):
        task = [0] * len(order)
        for dimension, digit in zip(order, digits, strict=True):
            task[dimension] = digit
        tasks.append(tuple(task))
    return [[task] for task in tasks] if factor.kind == "spatial" else [tasks]


class Layout:
    """A mapping as tables: each worker's tasks, and who owns a task first."""

    def __init__(self, mapping: d.MappingOf) -> None:
        self.mapping = mapping
        self.slots = tasks_of(mapping)
        self.tasks = [[t for t in tasks if t is not None] for tasks in self.slots]
        self.held = [set(tasks) for tasks in self.tasks]
        self.first: dict[tuple[int, ...], int] = {}
        for worker, tasks in enumerate(self.tasks):
            for task in tasks:
                self.first.setdefault(task, worker)


# --- memory ----------------------------------------------------------------------------------


class Memory:
    """A tensor in memory: global, shared, or private to a worker or task."""

    def __init__(
        self, shape: tuple[int, ...], values: dict[tuple[int, ...], Any], private: bool = False
    ) -> None:
        self.shape = shape
        self.values = values
        self.private = private


class TileMemory:
    """Registers: for each worker the elements that it holds."""

    def __init__(self, layout: Layout, fill: Any) -> None:
        self.layout = layout
        self.shape = layout.mapping.iterated
        self.values: list[dict[tuple[int, ...], Any]] = [
            {} if fill is None else dict.fromkeys(tasks, fill) for tasks in layout.tasks
        ]


class Oracle:
    def __init__(self, program: d.Program) -> None:
        self.program = program
        self.layouts: dict[str, Layout] = {}
        self.types: dict[str, str] = {}  # of tiles
        self.extents = {name: extent for name, _, extent in program.dimensions}
        self.stored: dict[str, set[tuple[int, ...]]] = {}

    # The whole.

    def results(self) -> dict[str, np.ndarray]:
        """The contents of each output after a run."""
        environment: Environment = {}
        for parameter in self.program.parameters:
            if parameter.shape is None:
                environment[parameter.name] = number(parameter.data, parameter.dtype)
                continue
            array = parameter.data
            values = {}
            if parameter.role != "out":
                values = {
                    index: number(array[index], parameter.dtype)
                    for index in np.ndindex(array.shape)
                }
            else:
                self.stored[parameter.name] = set()
            environment[parameter.name] = Memory(array.shape, values)
        environment.update(self.extents)
        environment[" worker"] = environment[" first"] = None
        run = self.body(self.program.body)
        with np.errstate(all="ignore"):
            run(environment)
        return {
            parameter.name: self.array(parameter, environment[parameter.name])
            for parameter in self.program.parameters
            if parameter.role != "in"
        }

    def array(self, parameter: d.Parameter, memory: Memory) -> np.ndarray:
        result = np.zeros(memory.shape, STORAGE[parameter.dtype])
        for index in np.ndindex(memory.shape):
            if index not in memory.values:
                raise OracleError(f"{parameter.name}{list(index)} is never stored")
            result[index] = memory.values[index]
        return result

    # Expressions: each is compiled to a function of the environment.

    def value(self, node: d.Value) -> Evaluate:
        match node:
            case d.Number():
                constant = number(node.value, node.dtype)
                return lambda environment: constant
            case d.Name():
                name = node.name
                return lambda environment: environment[name]
            case d.Element():
                return self.element(node)
        return self.applied(node)

    def element(self, node: d.Element) -> Evaluate:
        name = node.tensor
        indices = [self.value(index) for index in node.indices]

        def read(environment: Environment) -> Any:
            index = tuple([evaluate(environment) for evaluate in indices])
            memory = environment[name]
            values = memory.values
            if type(memory) is TileMemory:
                worker = environment[" worker"]
                values = values[memory.layout.first[index] if worker is None else worker]
            try:
                return values[index]
            except KeyError:
                raise OracleError(f"{name}{list(index)} of {memory.shape} has no value") from None

        return read

    def applied(self, node: d.Apply) -> Evaluate:
        operator, dtype = node.operator, node.operands[0].dtype
        if operator == "and" or operator == "or":
            left, right = map(self.value, node.operands)
            if operator == "and":
                return lambda environment: left(environment) and right(environment)
            return lambda environment: left(environment) or right(environment)
        if operator == "where":
            condition, then, otherwise = map(self.value, node.operands)
            return lambda e: then(e) if condition(e) else otherwise(e)
        if operator == "cast":
            operand = self.value(node.operands[0])
            return lambda environment: cast(operand(environment), dtype, node.dtype)
        if operator == "+" and dtype in ("f16", "bf16", "f32", "f64"):
            first, second = node.operands
            for product, addend in ((second, first), (first, second)):
                if isinstance(product, d.Apply) and product.operator == "*":
                    return self.fused((*product.operands, addend), dtype)
        if operator in ("fma", "ptx"):
            return self.fused(node.operands, dtype)
        compute = function(operator, dtype)
        if len(node.operands) == 1:
            operand = self.value(node.operands[0])
            return lambda environment: compute(operand(environment))
        left, right = map(self.value, node.operands)
        if operator in ("//", "%"):
            return lambda e: compute(left(e), _nonzero(right(e)))
        return lambda environment: compute(left(environment), right(environment))

    def fused(self, operands: tuple[d.Value, ...], dtype: str) -> Evaluate:
        a, b, c = map(self.value, operands)
        return lambda e: fma(a(e), b(e), c(e), dtype)

    # Statements.

    def body(self, statements: d.Body) -> Run:
        runs = [self.statement(statement) for statement in statements]

        def run(environment: Environment) -> None:
            for step in runs:
                step(environment)

        return run

    def statement(self, node: d.Statement) -> Run:
        return self._makers[type(node)](self, node)

    def let(self, node: d.Let) -> Run:
        value = self.value(node.value)

        def run(environment: Environment) -> None:
            environment[node.name] = value(environment)

        return run

    def tile(self, node: d.Tile) -> Run:
        layout = self.layout(node.mapping)
        fill = None if node.fill is None else number(node.fill, node.dtype)

        self.types[node.name] = node.dtype

        def run(environment: Environment) -> None:
            environment[node.name] = TileMemory(layout, fill)

        return run

    def shared(self, node: d.Shared) -> Run:
        def run(environment: Environment) -> None:
            environment[node.name] = Memory(node.shape, {})

        return run

    def local(self, node: d.Local) -> Run:
        fill = None if node.fill is None else number(node.fill, node.dtype)

        def run(environment: Environment) -> None:
            values = {} if fill is None else dict.fromkeys(np.ndindex(node.shape), fill)
            environment[node.name] = Memory(node.shape, values, private=True)

        return run

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

    def store(self, node: d.Store) -> Run:
        indices = [self.value(index) for index in node.indices]
        value = self.value(node.value)

        def run(environment: Environment) -> None:
            result = value(environment)
            memory = environment[node.tensor]
            if type(memory) is TileMemory or memory.private or environment[" first"]:
                index = tuple([evaluate(environment) for evaluate in indices])
                self.put(environment, node.tensor, index, result)

        return run

    def atomic(self, node: d.Atomic) -> Run:
        indices = [self.value(index) for index in node.indices]
        value = self.value(node.value)
        compute = None if node.operator == "exchange" else function(node.operator, node.dtype)

        def run(environment: Environment) -> None:
            index = tuple([evaluate(environment) for evaluate in indices])
            memory = environment[node.tensor]
            old, new = memory.values[index], value(environment)
            memory.values[index] = new if compute is None else compute(old, new)
            if node.result is not None:
                environment[node.result] = old

        return run

    def each(self, node: d.Each) -> Run:
        layout = self.layout(node.mapping)
        on = None if node.on is None else self.value(node.on)
        body = self.body(node.body)

        def nested(environment: Environment) -> None:
            worker = environment[" worker"] if on is None else on(environment)
            for task in layout.tasks[worker]:
                environment.update(zip(node.variables, task, strict=True))
                body(environment)

        def run(environment: Environment) -> None:
            if environment[" first"] is not None:
                nested(environment)
                return
            for worker, tasks in enumerate(layout.tasks):
                for task in tasks:
                    inner = dict(environment)
                    inner.update(zip(node.variables, task, strict=True))
                    inner[" worker"] = worker
                    inner[" first"] = layout.first[task] == worker
                    body(inner)

        return run

    def branch(self, node: d.If) -> Run:
        condition = self.value(node.condition)
        then, otherwise = self.body(node.then), self.body(node.otherwise)

        def run(environment: Environment) -> None:
            (then if condition(environment) else otherwise)(environment)

        return run

    def loop(self, node: d.For) -> Run:
        start, stop = self.value(node.start), self.value(node.stop)
        body = self.body(node.body)

        def run(environment: Environment) -> None:
            for i in range(start(environment), stop(environment), node.step):
                environment[node.variable] = i
                body(environment)

        return run

    def repetition(self, node: d.While) -> Run:
        condition, body = self.value(node.condition), self.body(node.body)

        def run(environment: Environment) -> None:
            while condition(environment):
                body(environment)

        return run

    def pipeline(self, node: d.Pipeline) -> Run:
        extent, body = self.value(node.extent), self.body(node.body)

        def run(environment: Environment) -> None:
            for step in range(0, extent(environment), node.by):
                environment[node.variable] = step
                body(environment)

        return run

    def tiles(self, node: d.Tiles) -> Run:
        shape = [self.value(extent) for extent in node.shape]
        body = self.body(node.body)

        def run(environment: Environment) -> None:
            ranges = [
                range(0, extent(environment), by) for extent, by in zip(shape, node.by, strict=True)
            ]
            for origin in itertools.product(*ranges):
                block = dict(environment)
                block.update(zip(node.variables, origin, strict=True))
                body(block)

        return run

    # Whole-block operations.

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
                        if dtype in ("f16", "bf16", "f32", "f64"):
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
                total = _identity(node.operator, dtype)
                for place in range(source.shape[node.axis]):
                    here = (*task[: node.axis], place, *task[node.axis + 1 :])
                    before, total = total, combine(total, line[here])
                    prefixes[here] = before if node.exclusive else total
            result = TileMemory(source.layout, None)
            for worker, tasks in enumerate(source.layout.tasks):
                result.values[worker] = {task: prefixes[task] for task in tasks}
            environment[node.name] = result

        return run

    # The rest.

    def printed(self, node: d.Print) -> Run:
        return lambda environment: None

    def check(self, node: d.Assert) -> Run:
        condition = self.value(node.condition)

        def run(environment: Environment) -> None:
            if not condition(environment):
                raise OracleError(f"assertion failed: {node.text}")

        return run

    _makers: ClassVar[dict[type, Callable[[Any, Any], Run]]] = {
        d.Let: let, d.Assign: let, d.Tile: tile, d.Shared: shared, d.Local: local, d.Load: load,
        d.StoreBlock: storeblock, d.Copy: copy, d.Store: store, d.Atomic: atomic, d.If: branch,
        d.While: repetition, d.For: loop, d.Each: each, d.Pipeline: pipeline, d.Tiles: tiles,
        d.Product: product, d.Reduce: reduce, d.Scan: scan, d.Print: printed, d.Assert: check,
    }  # fmt: skip


def _nonzero(divisor: Any) -> Any:
    if divisor == 0:
        raise OracleError("division by zero")
    return divisor


def _identity(operator: str, dtype: str) -> Any:
    """What changes no number that it is folded with."""
    is_float = dtype in ("f16", "bf16", "f32", "f64")
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
