"""Random programs, valid by construction: no races, every output stored once, indices in bounds.

A program is a number of phases over values of a few shapes, in a grid or in one block, and at last the
stores of its outputs. What a phase may read is kept in a `Scope`; what it writes becomes readable after it.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np

from tests.random_programs import description as d, phases
from tests.random_programs.around import Around
from tests.random_programs.description import Apply, Element, Name, Shape, Value
from tests.random_programs.expressions import Expressions
from tests.random_programs.mappings import Mappings, is_replicated
from tests.random_programs.numbers import FLOATS, INTEGERS, STORAGE, number
from tests.random_programs.phases.memory import checksums, stored_whole
from tests.random_programs.phases.pipelines import pipeline
from tests.random_programs.phases.untyped import beside
from tests.random_programs.scope import Readable, Scope, add, i64

WORKERS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 32, 33, 40, 48, 64, 64, 64)
DTYPES = ("f32", "f32", "f32", "f16", "bf16", "f64", "i32", "i32", "i64", "u8", "i8", "u32", "bool")
VARIABLES = "ijlm"


def program(seed: int, index: int) -> d.Program:
    """The program of this number in the sequence of a seed."""
    picks = [random.Random(f"{seed}/{index}{what}") for what in ("", "/untyped")]
    return Generator(*picks).program()


class Generator:
    def __init__(self, pick: random.Random, aside: random.Random) -> None:
        self.pick = pick
        self.aside = aside  # of phases that leave all else as it is
        self.expressions = Expressions(pick)
        self.target = pick.choice(["generic", "sm_80", "sm_90a"])
        self.workers = pick.choice(WORKERS)
        self.mappings = Mappings(pick, self.workers)
        self.parameters: list[d.Parameter] = []
        self.dimensions: list[tuple[str, int, int]] = []
        self.names: dict[str, int] = {}
        self.checked: str | None = None  # the output of checksums
        self.steps = pick.choice([1, 1, 2, 2, 3])

    # Names and data.

    def fresh(self, kind: str) -> str:
        self.names[kind] = self.names.get(kind, 0) + 1
        return f"{kind}{self.names[kind]}"

    def data(self, dtype: str, shape: Shape) -> Any:
        values = np.zeros(shape, STORAGE[dtype])
        for index in np.ndindex(shape):
            values[index] = number(self.datum(dtype), dtype)
        return values

    def datum(self, dtype: str) -> Any:
        pick = self.pick
        if dtype == "bool":
            return pick.random() < 0.5
        if dtype in INTEGERS:
            bits, signed = INTEGERS[dtype]
            if pick.random() < 0.1:
                low = -(1 << (bits - 1)) if signed else 0
                return pick.choice([low, low + (1 << bits) - 1])
            return pick.randint(-20 if signed else 0, 20)
        kind = pick.random()
        if kind < 0.1:
            return pick.choice([0.0, -0.0])
        if kind < 0.13:
            return pick.choice([math.inf, -math.inf, math.nan])
        # Sums of small multiples of 1/8 are exact in any order.
        return pick.randint(-32, 32) / 8 if kind < 0.3 else pick.gauss(0, 2)

    def input(
        self,
        dtype: str,
        shape: Shape,
        symbolic: tuple[int | str, ...] | None = None,
        layout: tuple[d.Factor, ...] = (),
    ) -> Readable:
        name = self.fresh("a")
        self.parameters.append(
            d.Parameter(name, dtype, symbolic or shape, "in", self.data(dtype, shape), layout)
        )
        return Readable(name, dtype, shape)

    def layout(self, shape: Shape) -> tuple[d.Factor, ...]:
        """Panels of panels, perhaps with padding."""
        inner = tuple(self.pick.choice([1, 2, 4]) for _ in shape)
        outer = tuple(-(-n // size) for n, size in zip(shape, inner, strict=True))
        orders = [tuple(self.pick.sample(range(len(shape)), len(shape))) for _ in range(2)]
        return tuple(
            d.Factor("repeat", sizes, order)
            for sizes, order in zip((outer, inner), orders, strict=True)
        )

    def scalar(self, dtype: str, data: Any) -> Name:
        """A scalar parameter."""
        name = self.fresh("x")
        self.parameters.append(d.Parameter(name, dtype, None, "in", data))
        return Name(name, dtype)

    def output(self, dtype: str, shape: Shape, role: str, symbolic: Any = None) -> str:
        name = self.fresh("c")
        data = self.data(dtype, shape)
        self.parameters.append(d.Parameter(name, dtype, symbolic or shape, role, data))
        return name

    # The whole.

    def program(self) -> d.Program:
        pick = self.pick
        kind = pick.random()
        if kind < 0.35:
            body = self.flat()
        else:
            body = self.gridded()
        return d.Program(
            "kernel",
            self.target,
            self.workers,
            tuple(self.dimensions),
            tuple(self.parameters),
            body,
        )

    def inputs(self, scope: Scope) -> Scope:
        pick = self.pick
        for _ in range(pick.randint(1, 2)):
            rank = pick.choice([1, 2, 2, 3])
            shape = tuple(pick.choice([1, 2, 3, 4, 5, 7, 8]) for _ in range(rank))
            layout = self.layout(shape) if pick.random() < 0.3 else ()
            scope = scope.with_memory(self.input(pick.choice(DTYPES), shape, layout=layout))
        if pick.random() < 0.25:
            dtype = pick.choice(["i32", "f32", "i64", "u8"])
            name = self.scalar(dtype, self.data(dtype, (1,))[0]).name
            scope = scope.with_scalar(name, dtype)
        return scope

    def flat(self) -> d.Body:
        """One block."""
        pick = self.pick
        around = Around(self.inputs(Scope()))
        statements, around = self.phases(around, self.steps)
        statements += stored_whole(self, around)
        for _ in range(pick.randint(1, 2)):
            shape = self.small_shape()
            dtype = pick.choice(DTYPES)
            name = self.output(dtype, shape, "out")
            zero = tuple(i64(0) for _ in shape)
            statements += self.final_store(name, dtype, shape, shape, zero, around)
        return (*statements, *self.untyped(around, is_alone=True))

    def small_shape(self) -> Shape:
        pick = self.pick
        rank = pick.choice([1, 2, 2, 2, 3])
        limit = {1: [1, 3, 7, 8, 13, 16, 33, 48], 2: [1, 2, 3, 4, 5, 7, 8], 3: [1, 2, 3, 4]}[rank]
        return tuple(pick.choice(limit) for _ in range(rank))

    def gridded(self) -> d.Body:
        """A grid of tiles over a ragged shape."""
        pick = self.pick
        rank = pick.choice([1, 2, 2, 2, 3])
        by = tuple(
            pick.choice({1: [4, 7, 8, 16], 2: [2, 3, 4, 6, 8], 3: [1, 2, 3, 4]}[rank])
            for _ in range(rank)
        )
        counts = [pick.choice([1, 1, 2, 2, 3]) for _ in range(rank)]
        shape = tuple(
            max(1, n * size - (pick.randrange(size) if pick.random() < 0.6 else 0))
            for n, size in zip(counts, by, strict=True)
        )
        symbolic: list[int | str] = list(shape)
        for dimension in range(rank):
            if pick.random() < 0.15:
                name = self.fresh("n")
                multiple = by[dimension] if shape[dimension] % by[dimension] == 0 else 1
                multiple = pick.choice([1, multiple])
                self.dimensions.append((name, multiple, shape[dimension]))
                symbolic[dimension] = name
        names = tuple(f"row{k}" for k in range(rank))
        fixed = [k for k in range(rank) if isinstance(symbolic[k], int)]
        scope = self.inputs(Scope())
        scope = scope.with_indices(*((names[k], shape[k]) for k in fixed))
        whole = self.input(pick.choice(DTYPES), shape, tuple(symbolic))
        around = Around(scope)
        extents = tuple(
            Name(extent) if isinstance(extent, str) else i64(extent) for extent in symbolic
        )
        starts = tuple(map(Name, names))
        statements: list[d.Statement] = []
        if pick.random() < 0.7:
            block = d.Slice(whole.name, starts, by, whole.dtype)
            name = self.fresh("s")
            fill = self.some_fill(whole.dtype)
            statements.append(d.Load(name, whole.dtype, by, block, fill=fill))
            around = around.with_scope(around.scope.with_memory(Readable(name, whole.dtype, by)))
        grid_tile = (names, by, shape)
        if pick.random() < 0.5:
            more, around = pipeline(self, around, grid_tile)
            statements += more
            if self.steps > 1:  # what follows may have no use for what the loop made
                made = replace(around, scope=Scope(), tiles=around.tiles[-1:])
                statements += checksums(self, made, 1)
        more, around = self.phases(around, self.steps - 1)
        statements += [*more, *checksums(self, around, 1)]
        for _ in range(1 if pick.random() < 0.7 else 2):
            dtype = pick.choice(DTYPES)
            output = self.output(dtype, shape, "out", tuple(symbolic))
            statements += self.final_store(output, dtype, by, shape, starts, around, extents)
        statements += self.untyped(around, is_alone=False)
        order: tuple[Any, ...] = ()
        if rank == 2 and pick.random() < 0.2:
            order = ("grouped", pick.randint(1, 3))
        elif rank > 1 and pick.random() < 0.3:
            order = tuple(pick.sample(range(rank), rank))
        has_roles = any(isinstance(s, d.Pipeline) and s.specialize for s in statements)
        persistent = pick.random() < (0.8 if has_roles else 0.4)
        grid = d.Tiles(names, extents, by, tuple(statements), order, persistent)
        return (grid,)

    def some_fill(self, dtype: str) -> Any:
        if self.pick.random() < 0.6:
            return None
        value = self.expressions.number(dtype).value
        return float(value) if dtype in FLOATS else value

    # The last phases: every element of an output is stored once.

    def final_store(
        self,
        name: str,
        dtype: str,
        by: Shape,
        shape: Shape,
        starts: tuple[Value, ...],
        around: Around,
        extents: tuple[Value, ...] = (),
    ) -> list[d.Statement]:
        pick = self.pick
        extents = extents or tuple(map(i64, shape))
        target = d.Slice(name, starts, by, dtype)
        variables = tuple(VARIABLES[: len(by)])
        pairs = tuple(zip(variables, by, strict=True))
        fitting = [t for t in around.tiles if t.mapping.iterated == by and t.dtype == dtype]
        kind = pick.random()
        if fitting and kind < 0.5:
            tile = pick.choice(fitting)
            zero = tuple(i64(0) for _ in by)
            return [d.StoreBlock(target, d.Slice(tile.name, zero, by, dtype))]
        scope = around.scope.with_indices(*pairs)
        if kind < 0.65:
            mapping, own = self.mapping_for(by, around, variables)
            value = self.expressions.value(dtype, replace(scope, own=own), 2)
            return [d.StoreBlock(target, None, variables, value)]
        mapping, own = self.mapping_for(by, around, variables)
        value = self.expressions.value(dtype, replace(scope, own=own), 3)
        place = tuple(
            add(start, Name(v)) if start != i64(0) else Name(v)
            for start, v in zip(starts, variables, strict=True)
        )
        place = self.maybe_reversed(place, starts, by, variables)
        store: d.Statement = d.Store(name, place, value)
        inside = [
            Apply("<", (index, extent), "bool")
            for index, extent, start, n, size in zip(place, extents, starts, shape, by, strict=True)
            if start != i64(0)
        ]
        for condition in reversed(inside):
            store = d.If(condition, (store,))
        if pick.random() < 0.2 and len(inside) == 0:
            other = replace(store, value=self.expressions.value(dtype, replace(scope, own=own), 1))
            condition = self.expressions.condition(scope, 0)
            store = d.If(condition, (store,), (other,))
        return [d.Each(variables, mapping, (store,))]

    def maybe_reversed(
        self,
        place: tuple[Value, ...],
        starts: tuple[Value, ...],
        by: Shape,
        variables: tuple[str, ...],
    ) -> tuple[Value, ...]:
        if self.pick.random() > 0.15:
            return place
        turned: list[Value] = []
        for start, size, variable in zip(starts, by, variables, strict=True):
            back = Apply("-", (i64(size - 1), Name(variable)), "i64")
            turned.append(add(start, back) if start != i64(0) else back)
        return tuple(turned)

    def mapping_for(
        self, shape: Shape, around: Around, variables: tuple[str, ...], *, replicated: bool = True
    ) -> tuple[d.MappingOf, tuple[Element, ...]]:
        """A mapping over a shape, and the tiles' elements that can be read in a loop over it."""
        fitting = [
            t.mapping
            for t in around.tiles
            if t.mapping.iterated == shape and (replicated or not is_replicated(t.mapping))
        ]
        if fitting and self.pick.random() < 0.75:
            mapping = self.pick.choice(fitting)
        else:
            mapping = self.mappings.over(shape, replicated=replicated)
        indices = tuple(map(Name, variables))
        own = tuple(
            Element(tile.name, indices, tile.dtype)
            for tile in around.tiles
            if tile.mapping.name == mapping.name
        )
        return mapping, own

    # Phases.

    def phases(self, around: Around, count: int) -> tuple[list[d.Statement], Around]:
        statements: list[d.Statement] = []
        for _ in range(count):
            make = self.pick.choice(phases.menu(self, around))
            more, around = make(around)
            statements += more
        return statements, around

    def untyped(self, around: Around, *, is_alone: bool) -> list[d.Statement]:
        """Phases of numbers without a type, with draws of their own: other lines stay what they are."""
        makers = (self, self.expressions, self.mappings)
        drawn = self.pick
        for maker in makers:
            maker.pick = self.aside
        statements = beside(self, around, is_alone=is_alone)
        for maker in makers:
            maker.pick = drawn
        return statements
