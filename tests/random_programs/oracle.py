"""What a random program means: a direct evaluation, slow and plain.

Blocks one after another, phases one after another, and in a phase worker after worker, task after task.
It knows nothing of the compiler: a mapping is the list of tasks that its definition gives.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from tests.random_programs import description as d
from tests.random_programs.numbers import STORAGE, function, number
from tests.random_programs.oracle_blocks import Blocks
from tests.random_programs.oracle_memory import (
    Environment,
    Memory,
    OracleError,
    Run,
    TileMemory,
)


class Oracle(Blocks):
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

    # The rest.

    def silent(self, node: d.Print | d.Breakpoint) -> Run:
        return lambda environment: None

    def check(self, node: d.Assert) -> Run:
        condition = self.value(node.condition)

        def run(environment: Environment) -> None:
            if not condition(environment):
                raise OracleError(f"assertion failed: {node.text}")

        return run

    _makers: ClassVar[dict[type, Callable[[Any, Any], Run]]] = {
        d.Let: let, d.Assign: let, d.Tile: tile, d.Shared: shared, d.Local: local,
        d.Load: Blocks.load, d.StoreBlock: Blocks.storeblock, d.Copy: Blocks.copy,
        d.Store: store, d.Atomic: atomic, d.If: branch, d.While: repetition, d.For: loop,
        d.Each: each, d.Pipeline: pipeline, d.Tiles: tiles, d.Product: Blocks.product,
        d.Reduce: Blocks.reduce, d.Scan: Blocks.scan, d.Print: silent, d.Breakpoint: silent,
        d.Assert: check,
    }  # fmt: skip
