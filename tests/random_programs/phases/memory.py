"""Phases that write shared memory for others to read, and atomics."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.random_programs import description as d
from tests.random_programs.around import Around, Made, TileValue
from tests.random_programs.description import Apply, Element, Name, Value
from tests.random_programs.mappings import is_replicated
from tests.random_programs.phases.common import (
    DTYPES,
    computed,
    mentions,
    pairs_of,
    permuted,
    some_shape,
    some_start,
    variables_of,
)
from tests.random_programs.scope import Readable, add, i64

if TYPE_CHECKING:
    from tests.random_programs.generator import Generator

MOST = 3  # tiles, and as many buffers, that are stored as they are
CELLS = 13  # of the output that checksums go to


def exchange(g: Generator, around: Around) -> Made:
    """A shared buffer that workers write at permuted places, for others to read."""
    shape = some_shape(g, around)
    variables = variables_of(shape)
    mapping, own = g.mapping_for(shape, around, variables)
    dtype = g.pick.choice(DTYPES)
    name = g.fresh("s")
    target, places = permuted(g, shape, variables)
    scope = replace(around.scope.with_indices(*pairs_of(shape)), own=own)
    lets, value = computed(g, dtype, scope, 2)
    store = d.Store(name, places, value)
    statements: list[d.Statement] = [
        d.Shared(name, dtype, target), d.Each(variables, mapping, (*lets, store))
    ]  # fmt: skip
    return statements, around.with_scope(around.scope.with_memory(Readable(name, dtype, target)))


def rotation(g: Generator, around: Around) -> Made:
    """A buffer that is read at others' places and rewritten in each step of a loop."""
    pick = g.pick
    shape = g.small_shape()
    variables = variables_of(shape)
    mapping = g.mappings.over(shape)
    dtype = pick.choice(["f32", "i32", "f16", "i64"])
    shared, tile, step = g.fresh("s"), g.fresh("t"), g.fresh("q")
    indices = tuple(map(Name, variables))
    scope = around.scope.with_indices(*pairs_of(shape))
    statements: list[d.Statement] = [
        d.Shared(shared, dtype, shape),
        d.Tile(tile, dtype, mapping),
        d.Each(
            variables, mapping, (d.Store(shared, indices, g.expressions.value(dtype, scope, 1)),)
        ),
    ]
    inner = scope.with_indices((step, 3)).with_memory(Readable(shared, dtype, shape))
    take = d.Store(tile, indices, g.expressions.value(dtype, inner, 2))
    _, places = permuted(g, shape, variables)
    if len(places) != len(shape) or any(
        mentions(place, {v for k, v in enumerate(variables) if k != position})
        for position, place in enumerate(places)
    ):
        places = indices
    put = d.Store(shared, places, Element(tile, indices, dtype))
    body: tuple[d.Statement, ...] = (
        d.Each(variables, mapping, (take,)), d.Each(variables, mapping, (put,))
    )  # fmt: skip
    if pick.random() < 0.3:
        body = body[::-1]
        first = d.Store(tile, indices, g.expressions.value(dtype, scope, 1))
        statements.append(d.Each(variables, mapping, (first,)))
    loop = d.For(step, i64(0), i64(pick.randint(2, 3)), 1, body)
    memory = Readable(shared, dtype, shape)
    return [*statements, loop], around.with_scope(around.scope.with_memory(memory)).with_tile(
        TileValue(tile, dtype, mapping)
    )


def load_function(g: Generator, around: Around) -> Made:
    """A block value that is a function of the position, or a copy of a part of memory."""
    pick = g.pick
    name = g.fresh("s")
    sources = [m for m in around.scope.memory if m.name.startswith("a")]
    if sources and pick.random() < 0.5:
        source = pick.choice(sources)
        sizes = tuple(pick.randint(1, extent + 2) for extent in source.shape)
        starts = tuple(some_start(g, around.scope, extent) for extent in source.shape)
        box = d.Slice(source.name, starts, sizes, source.dtype)
        load = d.Load(name, source.dtype, sizes, box, fill=g.some_fill(source.dtype))
        return [load], around.with_scope(
            around.scope.with_memory(Readable(name, source.dtype, sizes))
        )
    shape, dtype = g.small_shape(), pick.choice(DTYPES)
    variables = variables_of(shape)
    scope = around.scope.with_indices(*pairs_of(shape))
    value = g.expressions.value(dtype, scope, 2)
    load = d.Load(name, dtype, shape, None, variables, value)
    return [load], around.with_scope(around.scope.with_memory(Readable(name, dtype, shape)))


def copied(g: Generator, around: Around) -> Made:
    """A part of memory copied into a shared buffer, by a mapping of the author's or the compiler's."""
    pick = g.pick
    sources = [m for m in around.scope.memory if m.name[0] == "a"]
    if not sources:
        return [], around
    source = pick.choice(sources)
    sizes = tuple(pick.randint(1, extent) for extent in source.shape)
    starts: tuple[Value, ...] = tuple(
        g.expressions.index(extent - size + 1, around.scope)
        for extent, size in zip(source.shape, sizes, strict=True)
    )
    name = g.fresh("s")
    zero = tuple(i64(0) for _ in sizes)
    by = g.mappings.over(sizes, replicated=False) if pick.random() < 0.6 else None
    copy = d.Copy(
        d.Slice(name, zero, sizes, source.dtype),
        d.Slice(source.name, starts, sizes, source.dtype),
        by,
    )
    # Where the source ends the compiler can't know that all of the buffer is written.
    inside = all(isinstance(start, d.Number) for start in starts)
    clear = g.mappings.over(sizes)
    variables = variables_of(sizes)
    first = d.Store(name, tuple(map(Name, variables)), g.expressions.number(source.dtype))
    statements: list[d.Statement] = [d.Shared(name, source.dtype, sizes)]
    if not inside:
        statements.append(d.Each(variables, clear, (first,)))
    return [*statements, copy], around.with_scope(
        around.scope.with_memory(Readable(name, source.dtype, sizes))
    )


def histogram(g: Generator, around: Around) -> Made:
    """Atomics on integers: their order does not matter."""
    pick = g.pick
    shape = some_shape(g, around)
    variables = variables_of(shape)
    mapping, own = g.mapping_for(shape, around, variables, replicated=False)
    dtype = pick.choice(["i32", "i64", "u32"])
    size = pick.choice([1, 3, 4, 8])
    scope = replace(around.scope.with_indices(*pairs_of(shape)), own=own)
    operator = pick.choice(["+", "+", "min", "max", "&", "|", "^"])
    place = g.expressions.index(size, scope)
    if pick.random() < 0.6:
        number = g.expressions.value("i64", replace(scope, own=own), 1)
        place = Apply("%", (number, i64(size)), "i64")
    value = g.expressions.value(dtype, scope, 1)
    if around.depth == 0 and pick.random() < 0.5:
        name = g.output(dtype, (size,), "inout")
        return [
            d.Each(variables, mapping, (d.Atomic(operator, name, (place,), value, dtype),))
        ], around
    name = g.fresh("s")
    clear = g.mappings.over((size,), replicated=False)
    zero = d.Store(name, (Name("i"),), g.expressions.number(dtype))
    statements: list[d.Statement] = [
        d.Shared(name, dtype, (size,)),
        d.Each(("i",), clear, (zero,)),
        d.Each(variables, mapping, (d.Atomic(operator, name, (place,), value, dtype),)),
    ]
    return statements, around.with_scope(around.scope.with_memory(Readable(name, dtype, (size,))))


def update_in_place(g: Generator, around: Around) -> Made:
    """Each element of a shared buffer changed by its own worker."""
    pick = g.pick
    buffers = [m for m in around.scope.memory if m.name.startswith("w")]
    if not buffers:
        shape, dtype = g.small_shape(), pick.choice(DTYPES)
        name, variables = g.fresh("w"), variables_of(shape)
        mapping = g.mappings.over(shape)
        scope = around.scope.with_indices(*pairs_of(shape))
        store = d.Store(name, tuple(map(Name, variables)), g.expressions.value(dtype, scope, 1))
        statements: list[d.Statement] = [
            d.Shared(name, dtype, shape), d.Each(variables, mapping, (store,))
        ]  # fmt: skip
        return statements, around.with_scope(around.scope.with_memory(Readable(name, dtype, shape)))
    buffer = pick.choice(buffers)
    variables = variables_of(buffer.shape)
    mapping = g.mappings.over(buffer.shape, replicated=False)
    here = Element(buffer.name, tuple(map(Name, variables)), buffer.dtype)
    scope = around.scope.without(buffer.name).with_indices(*pairs_of(buffer.shape))
    scope = replace(scope, own=(here,))
    statement: d.Statement = d.Store(
        buffer.name, here.indices, g.expressions.value(buffer.dtype, scope, 2)
    )
    if pick.random() < 0.5:
        statement = d.If(g.expressions.condition(scope, 1), (statement,))
    return [d.Each(variables, mapping, (statement,))], around


def stored_whole(g: Generator, around: Around) -> list[d.Statement]:
    """What was made goes into outputs of one block, so that nothing can go wrong unseen."""
    made = [(tile.name, tile.dtype, tile.mapping.iterated) for tile in around.tiles[-MOST:]]
    made += [(m.name, m.dtype, m.shape) for m in around.scope.memory if m.name[0] in "sw"][-MOST:]
    statements: list[d.Statement] = []
    for name, dtype, shape in made:
        zero = tuple(i64(0) for _ in shape)
        target = d.Slice(g.output(dtype, shape, "out"), zero, shape, dtype)
        statements.append(d.StoreBlock(target, d.Slice(name, zero, shape, dtype)))
    return statements


def checksums(g: Generator, around: Around, most: int) -> list[d.Statement]:
    """The same where blocks or iterations share an output: sums, which no order changes."""
    statements: list[d.Statement] = []
    made = [m for m in around.scope.memory if m.name[0] in "sw"][-most:]
    for tile in around.tiles[-most:]:
        if not is_replicated(tile.mapping):
            statements.append(_checksum(g, tile.mapping, tile.name, tile.dtype))
            continue
        shape, name = tile.mapping.iterated, g.fresh("s")
        variables = variables_of(shape)
        value = g.expressions.digest(Element(tile.name, tuple(map(Name, variables)), tile.dtype))
        statements.append(d.Load(name, "i64", shape, None, variables, value))
        made.append(Readable(name, "i64", shape))
    for memory in made:
        mapping = g.mappings.over(memory.shape, replicated=False)
        statements.append(_checksum(g, mapping, memory.name, memory.dtype))
    return statements


def _checksum(g: Generator, mapping: d.MappingOf, name: str, dtype: str) -> d.Statement:
    """The sums, in any order, of some elements each."""
    shape = mapping.iterated
    variables = variables_of(shape)
    number: Value = i64(0)
    for variable, size in zip(variables, shape, strict=True):
        number = add(Apply("*", (number, i64(size)), "i64"), Name(variable))
    place = Apply("%", (number, i64(CELLS)), "i64")
    value = g.expressions.digest(Element(name, tuple(map(Name, variables)), dtype))
    if g.checked is None:
        g.checked = g.output("i64", (CELLS,), "inout")
    return d.Each(variables, mapping, (d.Atomic("+", g.checked, (place,), value, "i64"),))
