"""The kinds of phases that random programs are made of, and the control flow around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.programs import description as d
from tests.programs.description import Apply, Element, Name, Shape, Value
from tests.programs.expressions import FLOATS, Readable, Scope, add, i64
from tests.programs.mappings import is_unmasked
from tests.programs.numbers import INTEGERS

if TYPE_CHECKING:
    from tests.programs.generator import Around, Generator, TileValue

Made = tuple[list[d.Statement], "Around"]
Phase = Callable[["Generator", "Around"], Made]
DTYPES = ("f32", "f32", "f32", "f16", "bf16", "f64", "i32", "i32", "i64", "u8", "bool")
VARIABLES = "ijlm"


def menu(g: Generator, around: Around) -> list[Callable[[Around], Made]]:
    """The phases that can stand here, as often as they should be chosen."""
    kinds: list[Phase] = [
        *[new_tile] * 3, *[exchange] * 5, *[load_function] * 3, *[scalars] * 2, cells,
        *[histogram] * 2, *[copied] * 2, update_in_place, *[assertion] * 2, *[divergent] * 3, private_array,
        *[reduction] * 2, *[scan] * 2, printed, *[algebra] * 6,
    ]  # fmt: skip
    if around.depth < 2:
        kinds += [*[serial_loop] * 3, branch, *[repetition] * 2, *[rotation] * 3]
    if around.tiles:
        kinds += [*[update_tile] * 3, *[convert_tile] * 2, tile_to_shared, *[reduction] * 2]
    kinds += [*[product] * 2]
    return [lambda around, kind=kind: kind(g, around) for kind in kinds]  # type: ignore[misc]


def _variables(shape: Shape) -> tuple[str, ...]:
    return tuple(VARIABLES[: len(shape)])


def _pairs(shape: Shape) -> tuple[tuple[str, int], ...]:
    return tuple(zip(_variables(shape), shape, strict=True))


def _is_constant(value: Value) -> bool:
    """Python would compute it, and the scalar would have no type."""
    if isinstance(value, Apply):
        return all(map(_is_constant, value.operands))
    return isinstance(value, d.Number)


def computed(
    g: Generator, dtype: str, scope: Scope, depth: int
) -> tuple[tuple[d.Statement, ...], Value]:
    """A value, and the scalars that are named on the way to it."""
    lets: list[d.Statement] = []
    while g.pick.random() < 0.65 and len(lets) < 5:
        of = g.pick.choice(["u32", "i64", "i32", "f32", "bool", "bool", "bool", dtype])
        if g.pick.random() < 0.2 or not lets:
            value = g.expressions.value(of, scope, 1)
        else:
            value = g.expressions.by_rule(of, scope, 0)
        if _is_constant(value):
            continue
        name = g.fresh("v")
        lets.append(d.Let(name, value))
        scope = scope.with_scalar(name, of)
    return tuple(lets), g.expressions.value(dtype, scope, depth)


def _shape(g: Generator, around: Around) -> Shape:
    known = [t.mapping.iterated for t in around.tiles]
    return g.pick.choice(known) if known and g.pick.random() < 0.6 else g.small_shape()


# --- tiles -----------------------------------------------------------------------------------


def new_tile(g: Generator, around: Around) -> Made:
    """A tile, each element of which its owners compute."""
    from tests.programs.generator import TileValue

    shape = _shape(g, around)
    if g.pick.random() < 0.35:
        mapping = g.mappings.unmasked(g.pick.choice([1, 2, 2]), 4)
    else:
        mapping, _ = g.mapping_for(shape, around, _variables(shape))
    shape = mapping.iterated
    variables = _variables(shape)
    own = tuple(
        Element(t.name, tuple(map(Name, variables)), t.dtype)
        for t in around.tiles
        if t.mapping.name == mapping.name
    )
    dtype = g.pick.choice(DTYPES)
    name = g.fresh("t")
    scope = replace(around.scope.with_indices(*_pairs(shape)), own=own)
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
    from tests.programs.generator import TileValue

    pick = g.pick
    shape = (pick.choice([1, 2, 3, 4, 5]),)
    mapping, own = g.mapping_for(shape, around, ("i",))
    of = pick.choice(["i64", "i32", "u32", "i8", "f32", "f16"])
    scope = replace(around.scope.with_indices(("i", shape[0])), own=own)
    body: list[d.Statement] = []
    total: Value = g.expressions.number("i64")
    for position in range(10):
        dtype = pick.choice([of, of, "bool"])
        value = g.expressions.value(dtype, scope, 0)
        if position > 1:
            value = g.expressions.by_rule(dtype, scope, 0)
        if _is_constant(value):
            continue
        name = g.fresh("v")
        body.append(d.Let(name, value))
        scope = scope.with_scalar(name, dtype)
        part = g.expressions.converted(Name(name, dtype), "i64")
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
    variables = _variables(shape)
    here = Element(tile.name, tuple(map(Name, variables)), tile.dtype)
    scope = replace(around.scope.with_indices(*_pairs(shape)), own=(here,))
    value = g.expressions.value(tile.dtype, scope, 2)
    store: d.Statement = d.Store(tile.name, here.indices, value)
    if tile.dtype != "bool" and g.pick.random() < 0.5:
        operator = g.pick.choice(["+", "+", "-", "*"])
        store = d.Store(tile.name, here.indices, Apply(operator, (here, value), tile.dtype), True)
    if g.pick.random() < 0.4:
        store = d.If(g.expressions.condition(scope, 1), (store,))
    return [d.Each(variables, tile.mapping, (store,))], around


def convert_tile(g: Generator, around: Around) -> Made:
    """The same elements with other owners."""
    from tests.programs.generator import TileValue

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
    from tests.programs.generator import TileValue

    tiles = [t for t in around.tiles if is_unmasked(t.mapping) and t.dtype != "bool"]
    statements: list[d.Statement] = []
    if not tiles:
        mapping = g.mappings.unmasked(g.pick.choice([1, 2, 2, 3]), 6)
        shape = mapping.iterated
        name, dtype = g.fresh("t"), g.pick.choice(["f32", "f32", "f16", "i32", "i64", "u8"])
        scope = around.scope.with_indices(*_pairs(shape))
        store = d.Store(
            name, tuple(map(Name, _variables(shape))), g.expressions.value(dtype, scope, 1)
        )
        statements += [d.Tile(name, dtype, mapping), d.Each(_variables(shape), mapping, (store,))]
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
    variables = _variables(shape)
    kept = tuple(Name(v) for d_, v in enumerate(variables) if d_ != axis) or (i64(0),)
    result = g.fresh("t")
    dtype = g.pick.choice(DTYPES)
    own = (
        Element(name, kept, tile.dtype),
        Element(tile.name, tuple(map(Name, variables)), tile.dtype),
    )
    scope = replace(around.scope.with_indices(*_pairs(shape)), own=own)
    store = d.Store(result, tuple(map(Name, variables)), g.expressions.value(dtype, scope, 2))
    statements += [d.Tile(result, dtype, tile.mapping), d.Each(variables, tile.mapping, (store,))]
    around = around.with_tile(TileValue(result, dtype, tile.mapping))
    if g.pick.random() < 0.7:
        more, around = tile_to_shared(g, replace(around, tiles=around.tiles[-1:]), around.tiles)
        statements += more
    return statements, around


# --- memory ----------------------------------------------------------------------------------


def _permuted(
    g: Generator, shape: Shape, variables: tuple[str, ...]
) -> tuple[Shape, tuple[Value, ...]]:
    """Another place for each position, no two the same, and the shape that the places have."""
    pick = g.pick
    places: list[Value] = []
    for variable, size in zip(variables, shape, strict=True):
        kind = pick.random()
        if kind < 0.3:
            places.append(Apply("-", (i64(size - 1), Name(variable)), "i64"))
        elif kind < 0.5 and size > 1:
            moved = add(Name(variable), i64(pick.randint(1, size)))
            places.append(Apply("%", (moved, i64(size)), "i64"))
        else:
            places.append(Name(variable))
    order = list(range(len(shape)))
    if len(shape) > 1 and pick.random() < 0.5:
        pick.shuffle(order)
    shape = tuple(shape[k] for k in order)
    places = [places[k] for k in order]
    if len(shape) == 2 and pick.random() < 0.2:
        flat = add(Apply("*", (places[0], i64(shape[1])), "i64"), places[1])
        return (shape[0] * shape[1],), (flat,)
    return shape, tuple(places)


def exchange(g: Generator, around: Around) -> Made:
    """A shared buffer that workers write at permuted places, for others to read."""
    shape = _shape(g, around)
    variables = _variables(shape)
    mapping, own = g.mapping_for(shape, around, variables)
    dtype = g.pick.choice(DTYPES)
    name = g.fresh("s")
    target, places = _permuted(g, shape, variables)
    scope = replace(around.scope.with_indices(*_pairs(shape)), own=own)
    lets, value = computed(g, dtype, scope, 2)
    store = d.Store(name, places, value)
    statements: list[d.Statement] = [
        d.Shared(name, dtype, target), d.Each(variables, mapping, (*lets, store))
    ]  # fmt: skip
    return statements, around.with_scope(around.scope.with_memory(Readable(name, dtype, target)))


def rotation(g: Generator, around: Around) -> Made:
    """A buffer that is read at others' places and rewritten in each step of a loop."""
    from tests.programs.generator import TileValue

    pick = g.pick
    shape = g.small_shape()
    variables = _variables(shape)
    mapping = g.mappings.over(shape)
    dtype = pick.choice(["f32", "i32", "f16", "i64"])
    shared, tile, step = g.fresh("s"), g.fresh("t"), g.fresh("q")
    indices = tuple(map(Name, variables))
    scope = around.scope.with_indices(*_pairs(shape))
    statements: list[d.Statement] = [
        d.Shared(shared, dtype, shape),
        d.Tile(tile, dtype, mapping),
        d.Each(
            variables, mapping, (d.Store(shared, indices, g.expressions.value(dtype, scope, 1)),)
        ),
    ]
    inner = scope.with_indices((step, 3)).with_memory(Readable(shared, dtype, shape))
    take = d.Store(tile, indices, g.expressions.value(dtype, inner, 2))
    _, places = _permuted(g, shape, variables)
    if len(places) != len(shape) or any(
        _mentions(place, {v for k, v in enumerate(variables) if k != position})
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


def _mentions(value: Value, names: set[str]) -> bool:
    if isinstance(value, Name):
        return value.name in names
    return isinstance(value, Apply) and any(_mentions(part, names) for part in value.operands)


def load_function(g: Generator, around: Around) -> Made:
    """A block value that is a function of the position, or a copy of a part of memory."""
    pick = g.pick
    name = g.fresh("s")
    sources = [m for m in around.scope.memory if m.name.startswith("a")]
    if sources and pick.random() < 0.5:
        source = pick.choice(sources)
        sizes = tuple(pick.randint(1, extent + 2) for extent in source.shape)
        starts = tuple(_start(g, around.scope, extent) for extent in source.shape)
        box = d.Slice(source.name, starts, sizes, source.dtype)
        load = d.Load(name, source.dtype, sizes, box, fill=g.some_fill(source.dtype))
        return [load], around.with_scope(
            around.scope.with_memory(Readable(name, source.dtype, sizes))
        )
    shape, dtype = g.small_shape(), pick.choice(DTYPES)
    variables = _variables(shape)
    scope = around.scope.with_indices(*_pairs(shape))
    value = g.expressions.value(dtype, scope, 2)
    load = d.Load(name, dtype, shape, None, variables, value)
    return [load], around.with_scope(around.scope.with_memory(Readable(name, dtype, shape)))


def _start(g: Generator, scope: Scope, extent: int) -> Value:
    return g.expressions.index(extent, scope) if g.pick.random() < 0.5 else i64(0)


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
    variables = _variables(sizes)
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
    shape = _shape(g, around)
    variables = _variables(shape)
    mapping, own = g.mapping_for(shape, around, variables, replicated=False)
    dtype = pick.choice(["i32", "i64", "u32"])
    size = pick.choice([1, 3, 4, 8])
    scope = replace(around.scope.with_indices(*_pairs(shape)), own=own)
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
        name, variables = g.fresh("w"), _variables(shape)
        mapping = g.mappings.over(shape)
        scope = around.scope.with_indices(*_pairs(shape))
        store = d.Store(name, tuple(map(Name, variables)), g.expressions.value(dtype, scope, 1))
        statements: list[d.Statement] = [
            d.Shared(name, dtype, shape), d.Each(variables, mapping, (store,))
        ]  # fmt: skip
        return statements, around.with_scope(around.scope.with_memory(Readable(name, dtype, shape)))
    buffer = pick.choice(buffers)
    variables = _variables(buffer.shape)
    mapping = g.mappings.over(buffer.shape, replicated=False)
    here = Element(buffer.name, tuple(map(Name, variables)), buffer.dtype)
    scope = around.scope.without(buffer.name).with_indices(*_pairs(buffer.shape))
    scope = replace(scope, own=(here,))
    statement: d.Statement = d.Store(
        buffer.name, here.indices, g.expressions.value(buffer.dtype, scope, 2)
    )
    if pick.random() < 0.5:
        statement = d.If(g.expressions.condition(scope, 1), (statement,))
    return [d.Each(variables, mapping, (statement,))], around


# --- scalars and control flow ----------------------------------------------------------------


def scalars(g: Generator, around: Around) -> Made:
    """A uniform scalar with a name."""
    dtype = g.pick.choice(["i64", "f32", "i32", "f16"])
    name = g.fresh("x")
    value = g.expressions.value(dtype, around.scope, 2)
    if _is_constant(value):
        value = g.expressions.converted(g.expressions.index(7, around.scope), dtype)
        if _is_constant(value):
            return [], around
    return [d.Let(name, value)], around.with_scope(around.scope.with_scalar(name, dtype))


def cells(g: Generator, around: Around) -> Made:
    """A mutable scalar, changed in a loop of uniform control flow."""
    pick = g.pick
    dtype, name, step = pick.choice(["f32", "i32", "i64"]), g.fresh("x"), g.fresh("q")
    scope = around.scope.with_scalar(name, dtype)
    first = d.Let(name, g.expressions.number(dtype), cell=True)
    inner = scope.with_indices((step, 3))
    change: d.Statement = d.Assign(name, g.expressions.value(dtype, inner, 1))
    if pick.random() < 0.5:
        change = d.If(g.expressions.condition(inner, 1), (change,))
    loop = d.For(step, i64(0), i64(3), 1, (change,))
    return [first, loop], around.with_scope(scope)


def serial_loop(g: Generator, around: Around) -> Made:
    """Phases repeated; what the body makes ends with it, but for what it adds to a tile."""
    pick = g.pick
    step = g.fresh("q")
    count = pick.randint(1, 3)
    kind = pick.random()
    start, stop, stride = i64(0), i64(count), 1
    if kind < 0.25:
        start, stop, stride = i64(count - 1), i64(-1), -1
    elif kind < 0.4:
        stop, stride = i64(count), 2
    scope = around.scope.with_indices((step, count))
    inner = replace(around, scope=scope, depth=around.depth + 1)
    statements, inner = g.phases(inner, pick.randint(1, 2))
    if around.tiles:
        more, _ = update_tile(g, replace(inner, tiles=around.tiles))
        statements += more
    if not statements:
        return [], around
    return [d.For(step, start, stop, stride, tuple(statements))], around


def branch(g: Generator, around: Around) -> Made:
    """Phases under a uniform condition."""
    inner = replace(around, depth=around.depth + 1)
    condition = g.expressions.condition(around.scope, 1)
    if _is_constant(condition):
        return [], around
    bodies = []
    for _ in range(2):
        statements, after = g.phases(inner, 1)
        if around.tiles:
            more, _ = update_tile(g, replace(after, tiles=around.tiles))
            statements += more
        bodies.append(tuple(statements))
    if not bodies[0]:
        return [], around
    return [d.If(condition, bodies[0], bodies[1] if g.pick.random() < 0.6 else ())], around


def repetition(g: Generator, around: Around) -> Made:
    """A while loop over phases."""
    name = g.fresh("x")
    inner = replace(around, scope=around.scope.with_scalar(name, "i64"), depth=around.depth + 1)
    statements, after = g.phases(inner, 1)
    if around.tiles:
        more, _ = update_tile(g, replace(after, tiles=around.tiles))
        statements += more
    count = d.Assign(name, add(Name(name), i64(1)))
    condition = Apply("<", (Name(name), i64(g.pick.randint(1, 3))), "bool")
    return [d.Let(name, i64(0), cell=True), d.While(condition, (*statements, count))], around


def assertion(g: Generator, around: Around) -> Made:
    """Something that holds, inside a mapping loop or outside."""
    scope = around.scope
    if not scope.indices:
        return [], around
    name, size = g.pick.choice(scope.indices)
    check = d.Assert(Apply("<", (Name(name), i64(size)), "bool"), f"{name} is below {size}")
    return [check], around


def printed(g: Generator, around: Around) -> Made:
    """A line for a person, once a block."""
    value = g.expressions.value("i64", around.scope, 1)
    return [d.Print("{}", (value,))], around


def divergent(g: Generator, around: Around) -> Made:
    """Control flow and mutable scalars that differ between tasks."""
    from tests.programs.generator import TileValue

    pick = g.pick
    shape = _shape(g, around)
    variables = _variables(shape)
    # Nested loops over another mapping are for tiles without replicas.
    mapping, own = g.mapping_for(shape, around, variables, replicated=False)
    dtype = pick.choice(["f32", "i32", "i64"])
    name, cell, step = g.fresh("t"), g.fresh("x"), g.fresh("q")
    scope = replace(around.scope.with_indices(*_pairs(shape)), own=own)
    with_cell = scope.with_scalar(cell, dtype)
    body: list[d.Statement] = [d.Let(cell, g.expressions.number(dtype), cell=True)]
    change = d.Assign(cell, g.expressions.value(dtype, with_cell.with_indices((step, 4)), 2))
    kind = pick.random()
    if kind < 0.25:
        other = d.Assign(cell, g.expressions.value(dtype, with_cell, 1))
        change = d.Assign(cell, g.expressions.value(dtype, with_cell, 2))
        body.append(d.If(g.expressions.condition(scope, 1), (change,), (other,)))
    elif kind < 0.5:
        stop = add(g.expressions.index(3, scope), i64(1))
        body.append(d.For(step, i64(0), stop, 1, (change,)))
    elif kind < 0.7:
        count = g.fresh("x")
        body.append(d.Let(count, g.expressions.index(4, scope), cell=True))
        change = d.Assign(cell, g.expressions.value(dtype, with_cell, 1))
        down = d.Assign(count, Apply("-", (Name(count), i64(1)), "i64"))
        body.append(d.While(Apply(">", (Name(count), i64(0)), "bool"), (change, down)))
    else:
        inner = g.mappings.of_two()
        worker = Apply("%", (Name(variables[0]), i64(2)), "i64")
        change = d.Assign(cell, g.expressions.value(dtype, with_cell.with_indices((step, 4)), 2))
        body.append(d.Each((step,), inner, (change,), on=worker))
    body.append(d.Store(name, tuple(map(Name, variables)), Name(cell, dtype)))
    statements: list[d.Statement] = [
        d.Tile(name, dtype, mapping), d.Each(variables, mapping, tuple(body))
    ]  # fmt: skip
    return statements, around.with_tile(TileValue(name, dtype, mapping))


def private_array(g: Generator, around: Around) -> Made:
    """A task's own array, indexed at run time."""
    from tests.programs.generator import TileValue

    pick = g.pick
    shape = _shape(g, around)
    variables = _variables(shape)
    mapping, own = g.mapping_for(shape, around, variables)
    dtype, size = pick.choice(["f32", "i32", "f16"]), pick.randint(2, 4)
    name, array, step = g.fresh("t"), g.fresh("p"), g.fresh("q")
    scope = replace(around.scope.with_indices(*_pairs(shape)), own=own)
    inner = scope.with_indices((step, size))
    fill = g.expressions.number(dtype).value
    put = d.Store(array, (Name(step),), g.expressions.value(dtype, inner, 1))
    body: tuple[d.Statement, ...] = (
        d.Local(array, dtype, (size,), fill),
        d.For(step, i64(0), i64(pick.randint(1, size)), 1, (put,)),
        d.Store(
            name,
            tuple(map(Name, variables)),
            Element(array, (g.expressions.index(size, scope),), dtype),
        ),
    )
    statements: list[d.Statement] = [d.Tile(name, dtype, mapping), d.Each(variables, mapping, body)]
    return statements, around.with_tile(TileValue(name, dtype, mapping))


# --- products and pipelines ------------------------------------------------------------------


def product(g: Generator, around: Around) -> Made:
    """A matrix product of block values that are made for it."""
    from tests.programs.generator import TileValue

    pick = g.pick
    fits = g.workers % 32 == 0 and g.target != "generic" and pick.random() < 0.4
    operand, accumulator = pick.choice(
        [("f16", "f32"), ("f32", "f32"), ("bf16", "f32"), ("i8", "i32"), ("f16", "f16")]
    )
    depth = pick.choice([1, 2, 3, 5])
    if fits:
        operand, accumulator, depth = pick.choice(
            [("f16", "f32", 16), ("bf16", "f32", 16), ("i8", "i32", 32)]
        )
        warps = g.workers // 32
        pieces = [d.Factor("spatial", (warps, 1)), d.Factor("repeat", (2, 1))]
        pieces += [d.Factor("spatial", (8, 4)), d.Factor("repeat", (1, 2))]
        mapping = d.MappingOf(g.mappings.name(), (16 * warps, 8), g.workers, tuple(pieces))
    else:
        mapping = g.mappings.over((pick.choice([1, 2, 3, 4, 8]), pick.choice([1, 2, 4, 5, 8])))
    m, n = mapping.iterated
    statements: list[d.Statement] = []
    sides = []
    turned = pick.random() < 0.3, pick.random() < 0.3
    for shape, is_turned in zip(((m, depth), (depth, n)), turned, strict=True):
        shape = shape[::-1] if is_turned else shape
        name = g.fresh("s")
        scope = around.scope.with_indices(*_pairs(shape))
        value = g.expressions.value(operand, scope, 1)
        statements.append(d.Load(name, operand, shape, None, _variables(shape), value))
        sides.append(d.Slice(name, (i64(0), i64(0)), shape, operand))
    name = g.fresh("t")
    fill = 0.0 if accumulator in FLOATS else 0
    statements += [
        d.Tile(name, accumulator, mapping, fill), d.Product(name, sides[0], sides[1], turned)
    ]  # fmt: skip
    return statements, around.with_tile(TileValue(name, accumulator, mapping))


def pipeline(g: Generator, around: Around, grid: tuple[tuple[str, ...], Shape, Shape]) -> Made:
    """A loop whose loads travel ahead of the work."""
    from tests.programs.generator import TileValue

    pick = g.pick
    names, by, shape = grid
    rank = len(by)
    stages, step = pick.choice([1, 2, 2, 3, 3, 4]), g.fresh("p")
    bk = pick.choice([1, 2, 3, 4, 8])
    extent = bk * pick.randint(1, 4) - (pick.randrange(bk) if pick.random() < 0.4 else 0)
    transport = None
    is_special = g.target == "sm_90a" and g.workers % 32 == 0 and pick.random() < 0.7
    plain = (g.target != "generic" and pick.random() < 0.7) or is_special
    if is_special or (g.target == "sm_90a" and pick.random() < 0.3):
        bk, extent = pick.choice([4, 8]), 4 * pick.randint(1, 5)
        transport = "tma" if pick.random() < 0.6 else None
        plain = True
    elif pick.random() < 0.3:
        transport = "registers"
    elif plain and g.target != "generic" and pick.random() < 0.5 and stages > 1:
        transport = "cp.async"
    dtype = pick.choice(["f32", "f32", "i32", "f32", "i64", "f64"] if plain else list(DTYPES))
    if transport == "tma" and by[0] * bk * int(dtype[1:]) % (128 * 8):
        transport = None  # bulk copies go to whole lines, of 128 bytes
    statements: list[d.Statement] = []
    body: list[d.Statement] = []
    scope = around.scope.with_indices((step, max(extent, 1)))
    blocks: list[Readable] = []
    for _ in range(pick.choice([1, 1, 2])):
        a = g.input(dtype, (shape[0], extent))
        name = g.fresh("s")
        if plain or pick.random() < 0.5:
            source = d.Slice(a.name, (Name(names[0]), Name(step)), (by[0], bk), dtype)
            fill = None if plain else g.some_fill(dtype)
            body.append(d.Load(name, dtype, (by[0], bk), source, fill=fill))
        else:
            row, column = add(Name(names[0]), Name("i")), add(Name(step), Name("j"))
            inside = Apply(
                "and",
                (
                    Apply("<", (row, i64(shape[0])), "bool"),
                    Apply("<", (column, i64(extent)), "bool"),
                ),
                "bool",
            )
            element = Element(a.name, (row, column), dtype)
            if dtype == "bool":
                value: Value = Apply("and", (inside, element), "bool")
            else:
                value = Apply("where", (inside, element, g.expressions.number(dtype)), dtype)
            body.append(d.Load(name, dtype, (by[0], bk), None, ("i", "j"), value))
        blocks.append(Readable(name, dtype, (by[0], bk)))
    if pick.random() < 0.2:
        scalar = g.fresh("x")
        body.insert(0, d.Let(scalar, add(Name(step), i64(pick.randint(1, 5)))))
        scope = scope.with_scalar(scalar, "i64")
    mapping = g.mappings.over(by)
    accumulator = g.fresh("t")
    of = pick.choice(["f32", "i32", "i64", "f64", dtype if dtype != "bool" else "u8"])
    fill = 0.0 if of in FLOATS else 0
    statements.append(d.Tile(accumulator, of, mapping, fill))
    variables = tuple(VARIABLES[:rank])
    here = Element(accumulator, tuple(map(Name, variables)), of)
    inner = replace(
        scope.with_memory(*blocks, *blocks, *blocks).with_indices(*zip(variables, by, strict=True)),
        own=(here,),
    )
    if pick.random() < 0.5:
        q = g.fresh("q")
        inner = inner.with_indices((q, bk))
        factors = [
            g.expressions.converted(
                Element(block.name, (g.expressions.index(by[0], inner), Name(q)), dtype), of
            )
            for block in (blocks[0], blocks[-1])
        ]
        value = Apply("+", (here, Apply("*", tuple(factors), of)), of)
        each: d.Statement = d.Each(
            variables, mapping, (d.Store(accumulator, here.indices, value, augmented=True),)
        )
        body.append(d.For(q, i64(0), i64(bk), 1, (each,)))
    else:
        value = g.expressions.value(of, inner, 2)
        read = g.expressions.converted(
            Element(
                blocks[0].name,
                (g.expressions.index(by[0], inner), g.expressions.index(bk, inner)),
                dtype,
            ),
            of,
        )
        value = Apply("+", (here, Apply("+", (value, read), of)), of)
        body.append(d.Each(variables, mapping, (d.Store(accumulator, here.indices, value),)))
    if pick.random() < 0.25 and not is_special:
        within = replace(around, scope=scope.with_memory(*blocks), depth=2)
        more, _ = exchange(g, within)
        body += more
    statements.append(d.Pipeline(step, i64(extent), bk, stages, tuple(body), transport, is_special))
    around = around.with_tile(TileValue(accumulator, of, mapping))
    return statements, around
