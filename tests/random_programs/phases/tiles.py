"""Phases that make, change, convert, reduce and scan tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.random_programs import description as d
from tests.random_programs.around import Around, Made, TileValue
from tests.random_programs.description import Apply, Element, Name, Value
from tests.random_programs.instances import by_rule
from tests.random_programs.mappings import is_unmasked
from tests.random_programs.numbers import INTEGERS
from tests.random_programs.phases.common import (
    DTYPES,
    computed,
    is_constant,
    pairs_of,
    some_shape,
    variables_of,
)
from tests.random_programs.scope import Readable, add, i64

if TYPE_CHECKING:
    from tests.random_programs.generator import Generator


def new_tile(g: Generator, around: Around) -> Made:
    """A tile, each element of which its owners compute."""
    shape = some_shape(g, around)
    if g.pick.random() < 0.35:
        mapping = g.mappings.unmasked(g.pick.choice([1, 2, 2]), 4)
    else:
        mapping, _ = g.mapping_for(shape, around, variables_of(shape))
    shape = mapping.iterated
    variables = variables_of(shape)
    own = tuple(
        Element(t.name, tuple(map(Name, variables)), t.dtype)
        for t in around.tiles
        if t.mapping.name == mapping.name
    )
    dtype = g.pick.choice(DTYPES)
    name = g.fresh("t")
    scope = replace(around.scope.with_indices(*pairs_of(shape)), own=own)
    lets, value = computed(g, dtype, scope, 2)
    if g.pick.random() < 0.3:
        value = g.expressions.guarded_read(dtype, scope)
    store = d.Store(name, tuple(map(Name, variables)), value)
    statements: list[d.Statement] = [
        d.Tile(name, dtype, mapping), d.Each(variables, mapping, (*lets, store))
    ]  # fmt: skip
    return statements, around.with_tile(TileValue(name, dtype, mapping))


def algebra(g: Generator, around: Around) -> Made:
    """A small tile that many instances of the simplifier's rules go into."""
    pick = g.pick
    shape = (pick.choice([1, 2, 3, 4, 5]),)
    mapping, own = g.mapping_for(shape, around, ("i",))
    of = pick.choice(["i64", "i32", "u32", "i8", "f32", "f16"])
    scope = replace(around.scope.with_indices(("i", shape[0])), own=own)
    body: list[d.Statement] = []
    total: Value = g.expressions.number("i64")
    for position in range(16):
        dtype = pick.choice([of, of, "bool"])
        value = g.expressions.value(dtype, scope, 0)
        if position > 1:
            value = by_rule(g.expressions, dtype, scope, 0)
        if is_constant(value):
            continue
        name = g.fresh("v")
        body.append(d.Let(name, value))
        scope = scope.with_scalar(name, dtype)
        part = g.expressions.digest(Name(name, dtype))
        total = add(Apply("*", (total, i64(3)), "i64"), part)
    name = g.fresh("t")
    body.append(d.Store(name, (Name("i"),), total))
    statements: list[d.Statement] = [
        d.Tile(name, "i64", mapping),
        d.Each(("i",), mapping, tuple(body)),
    ]
    return statements, around.with_tile(TileValue(name, "i64", mapping))


def update_tile(g: Generator, around: Around) -> Made:
    """tile += value, or a guarded change of it."""
    tile = g.pick.choice(around.tiles)
    shape = tile.mapping.iterated
    variables = variables_of(shape)
    here = Element(tile.name, tuple(map(Name, variables)), tile.dtype)
    scope = replace(around.scope.with_indices(*pairs_of(shape)), own=(here,))
    value = g.expressions.value(tile.dtype, scope, 2)
    store: d.Statement = d.Store(tile.name, here.indices, value)
    if tile.dtype != "bool" and g.pick.random() < 0.5:
        operator = g.pick.choice(["+", "+", "-", "*"])
        store = d.Store(tile.name, here.indices, Apply(operator, (here, value), tile.dtype), True)
    if g.pick.random() < 0.4:
        store = d.If(g.expressions.condition(scope, 1), (store,))
    return [d.Each(variables, tile.mapping, (store,))], around


def rows(g: Generator, around: Around) -> Made:
    """A tile whose workers have whole rows, in loops with constant bounds."""
    pick = g.pick
    size = pick.randint(2, 5)
    name, step, dtype = g.fresh("t"), g.fresh("q"), pick.choice(["f32", "i32", "f16"])
    outer = d.Factor("spatial", (g.workers, 1))
    mapping = d.MappingOf(
        g.mappings.name(), (g.workers, size), g.workers, (outer, d.Factor("repeat", (1, size)))
    )
    lines = d.MappingOf(g.mappings.name(), (g.workers, 1), g.workers, (outer,))
    here = Element(name, (Name("i"), Name(step)), dtype)
    scope = around.scope.with_indices(("i", g.workers), (step, size))
    body = []
    for _ in range(pick.randint(1, 2)):
        start, stride = pick.choice(
            [(0, 1), (1, 1), (1, 2), (0, 3), (size - 1, -1), (size - 1, -2)]
        )
        stop = i64(size if stride > 0 else -1)
        value = g.expressions.value(dtype, replace(scope, own=(here,)), 2)
        body.append(d.For(step, i64(start), stop, stride, (d.Store(name, here.indices, value),)))
    if pick.random() < 0.5:  # registers of another turn
        back = Element(name, (Name("i"), Apply("-", (i64(size - 1), Name(step)), "i64")), dtype)
        value = g.expressions.value(dtype, replace(scope, own=(here, back)), 2)
        body.append(d.For(step, i64(0), i64(size), 1, (d.Store(name, here.indices, value),)))
    fill = g.expressions.number(dtype).value
    statements: list[d.Statement] = [
        d.Tile(name, dtype, mapping, fill), d.Each(("i", "j"), lines, tuple(body))
    ]  # fmt: skip
    return statements, around.with_tile(TileValue(name, dtype, mapping))


def convert_tile(g: Generator, around: Around) -> Made:
    """The same elements with other owners."""
    tile = g.pick.choice(around.tiles)
    shape = tile.mapping.iterated
    mapping = g.mappings.over(shape)
    name = g.fresh("t")
    zero = tuple(i64(0) for _ in shape)
    copy = d.Copy(
        d.Slice(name, zero, shape, tile.dtype), d.Slice(tile.name, zero, shape, tile.dtype), None
    )
    return [d.Tile(name, tile.dtype, mapping), copy], around.with_tile(
        TileValue(name, tile.dtype, mapping)
    )


def tile_to_shared(
    g: Generator, around: Around, tiles: tuple[TileValue, ...] | None = None
) -> Made:
    """A tile's elements where every worker can read them; `tiles` are those known afterwards."""
    tile = g.pick.choice(around.tiles)
    shape = tile.mapping.iterated
    name = g.fresh("s")
    zero = tuple(i64(0) for _ in shape)
    whole = d.Slice(name, zero, shape, tile.dtype), d.Slice(tile.name, zero, shape, tile.dtype)
    memory = Readable(name, tile.dtype, shape)
    around = replace(around, scope=around.scope.with_memory(memory), tiles=tiles or around.tiles)
    return [d.Shared(name, tile.dtype, shape), d.Copy(*whole, None)], around


def reduction(g: Generator, around: Around) -> Made:
    return _folded(g, around, is_scan=False)


def scan(g: Generator, around: Around) -> Made:
    return _folded(g, around, is_scan=True)


def _folded(g: Generator, around: Around, *, is_scan: bool) -> Made:
    tiles = [t for t in around.tiles if is_unmasked(t.mapping) and t.dtype != "bool"]
    statements: list[d.Statement] = []
    if not tiles:
        mapping = g.mappings.unmasked(g.pick.choice([1, 2, 2, 3]), 6)
        shape = mapping.iterated
        name, dtype = g.fresh("t"), g.pick.choice(["f32", "f32", "f16", "i32", "i64", "u8"])
        scope = around.scope.with_indices(*pairs_of(shape))
        store = d.Store(
            name, tuple(map(Name, variables_of(shape))), g.expressions.value(dtype, scope, 1)
        )
        statements += [d.Tile(name, dtype, mapping), d.Each(variables_of(shape), mapping, (store,))]
        tiles = [TileValue(name, dtype, mapping)]
        around = around.with_tile(tiles[0])
    tile = g.pick.choice(tiles)
    shape = tile.mapping.iterated
    axis = g.pick.randrange(len(shape))
    operators = ["+", "+", "*", "min", "max"]
    if tile.dtype in INTEGERS:
        operators += ["&", "|", "^"]
    operator = g.pick.choice(operators)
    name = g.fresh("r")
    if is_scan:
        statements.append(d.Scan(name, tile.name, axis, operator, g.pick.random() < 0.4))
        return statements, around.with_tile(TileValue(name, tile.dtype, tile.mapping))
    statements.append(d.Reduce(name, tile.name, axis, operator))
    # The result is read where its owners have it: in a loop over the source's mapping.
    variables = variables_of(shape)
    kept = tuple(Name(v) for d_, v in enumerate(variables) if d_ != axis) or (i64(0),)
    result = g.fresh("t")
    dtype = g.pick.choice(DTYPES)
    own = (
        Element(name, kept, tile.dtype),
        Element(tile.name, tuple(map(Name, variables)), tile.dtype),
    )
    scope = replace(around.scope.with_indices(*pairs_of(shape)), own=own)
    store = d.Store(result, tuple(map(Name, variables)), g.expressions.value(dtype, scope, 2))
    statements += [d.Tile(result, dtype, tile.mapping), d.Each(variables, tile.mapping, (store,))]
    around = around.with_tile(TileValue(result, dtype, tile.mapping))
    if g.pick.random() < 0.7:
        more, around = tile_to_shared(g, replace(around, tiles=around.tiles[-1:]), around.tiles)
        statements += more
    return statements, around
