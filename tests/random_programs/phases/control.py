"""Scalars, and control flow around phases and within them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.random_programs import description as d
from tests.random_programs.around import Around, Made, TileValue
from tests.random_programs.description import Apply, Element, Name, Value
from tests.random_programs.phases.common import (
    is_constant,
    pairs_of,
    some_shape,
    variables_of,
)
from tests.random_programs.phases.memory import checksums
from tests.random_programs.phases.tiles import update_tile
from tests.random_programs.scope import add, i64

if TYPE_CHECKING:
    from tests.random_programs.generator import Generator


def scalars(g: Generator, around: Around) -> Made:
    """A uniform scalar with a name."""
    dtype = g.pick.choice(["i64", "f32", "i32", "f16"])
    name = g.fresh("x")
    value = g.expressions.value(dtype, around.scope, 2)
    if is_constant(value):
        value = g.expressions.converted(g.expressions.index(7, around.scope), dtype)
        if is_constant(value):
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
    elif kind < 0.6 and around.scope.memory:
        stop = Apply("%", (_recent(g, around), i64(count + 1)), "i64")
    scope = around.scope
    if isinstance(stop, d.Number):  # of other loops only linear reasoning knows the range
        scope = scope.with_indices((step, count))
    inner = replace(around, scope=scope, depth=around.depth + 1)
    statements, inner = g.phases(inner, pick.randint(1, 2))
    statements += _seen(g, around, inner)
    if not statements:
        return [], around
    return [d.For(step, start, stop, stride, tuple(statements))], around


def _recent(g: Generator, around: Around) -> Value:
    """A number from memory that was written last, for control flow."""
    return g.expressions.converted(g.expressions.read(around.scope), "i64")


def _seen(g: Generator, around: Around, inner: Around) -> list[d.Statement]:
    """What a body made goes into a tile from outside, or into an output."""
    statements: list[d.Statement] = []
    if around.tiles:
        statements, _ = update_tile(g, replace(inner, tiles=around.tiles))
    if g.pick.random() < 0.5:
        statements += checksums(g, inner, 1)
    return statements


def branch(g: Generator, around: Around) -> Made:
    """Phases under a uniform condition."""
    inner = replace(around, depth=around.depth + 1)
    condition = g.expressions.condition(around.scope, 1)
    if around.scope.memory and g.pick.random() < 0.4:
        condition = Apply("<", (_recent(g, around), i64(g.pick.randint(-3, 3))), "bool")
    if is_constant(condition):
        return [], around
    bodies = []
    for _ in range(2):
        statements, after = g.phases(inner, 1)
        statements += _seen(g, around, after)
        bodies.append(tuple(statements))
    if not bodies[0]:
        return [], around
    return [d.If(condition, bodies[0], bodies[1] if g.pick.random() < 0.6 else ())], around


def repetition(g: Generator, around: Around) -> Made:
    """A while loop over phases."""
    name = g.fresh("x")
    inner = replace(around, scope=around.scope.with_scalar(name, "i64"), depth=around.depth + 1)
    statements, after = g.phases(inner, 1)
    statements += _seen(g, around, after)
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


def pause(g: Generator, around: Around) -> Made:
    """A breakpoint, for the whole block or for each task."""
    if g.pick.random() < 0.5:
        return [d.Breakpoint()], around
    shape = some_shape(g, around)
    variables = variables_of(shape)
    mapping, _ = g.mapping_for(shape, around, variables)
    return [d.Each(variables, mapping, (d.Breakpoint(),))], around


def bounded_sum(g: Generator, around: Around) -> Made:
    """A loop that may have no turn, over elements that exist only where it has one."""
    pick = g.pick
    sources = [m for m in around.scope.memory if len(m.shape) == 1 and m.dtype != "bool"]
    if not sources:
        return [], around
    source = pick.choice(sources)
    (extent,) = source.shape
    shape = (extent + pick.randint(0, 5),)
    mapping, own = g.mapping_for(shape, around, ("i",))
    dtype, name, cell, step = pick.choice(["f32", "i32", "i64"]), *map(g.fresh, "txq")
    scope = replace(around.scope.with_indices(("i", shape[0])), own=own)
    place = pick.choice([Name("i"), Name(step), Name(step)])
    part = g.expressions.converted(Element(source.name, (place,), source.dtype), dtype)
    total = Apply("+", (Name(cell, dtype), part), dtype)
    body = (
        d.Let(cell, g.expressions.number(dtype), cell=True),
        d.For(step, Name("i"), i64(extent), pick.choice([1, 1, 2]), (d.Assign(cell, total),)),
        d.Store(
            name,
            (Name("i"),),
            Apply("-", (Name(cell, dtype), g.expressions.value(dtype, scope, 1)), dtype),
        ),
    )
    statements: list[d.Statement] = [d.Tile(name, dtype, mapping), d.Each(("i",), mapping, body)]
    return statements, around.with_tile(TileValue(name, dtype, mapping))


def divergent(g: Generator, around: Around) -> Made:
    """Control flow and mutable scalars that differ between tasks."""
    pick = g.pick
    shape = some_shape(g, around)
    variables = variables_of(shape)
    # Nested loops over another mapping are for tiles without replicas.
    mapping, own = g.mapping_for(shape, around, variables, replicated=False)
    dtype = pick.choice(["f32", "i32", "i64"])
    name, cell, step = g.fresh("t"), g.fresh("x"), g.fresh("q")
    scope = replace(around.scope.with_indices(*pairs_of(shape)), own=own)
    with_cell = scope.with_scalar(cell, dtype)
    body: list[d.Statement] = [d.Let(cell, g.expressions.number(dtype), cell=True)]
    change = d.Assign(cell, g.expressions.value(dtype, with_cell.with_indices((step, 4)), 2))
    kind = pick.random()
    if kind < 0.25:
        other = d.Assign(cell, g.expressions.value(dtype, with_cell, 1))
        change = d.Assign(cell, g.expressions.value(dtype, with_cell, 2))
        body.append(d.If(g.expressions.condition(scope, 1), (change,), (other,)))
    elif kind < 0.5:
        stop = g.expressions.modulo(g.expressions.index(7, scope), 5)
        if pick.random() < 0.5:
            stop = add(g.expressions.modulo(stop, 3), i64(1))
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
    pick = g.pick
    shape = some_shape(g, around)
    variables = variables_of(shape)
    mapping, own = g.mapping_for(shape, around, variables)
    dtype, size = pick.choice(["f32", "i32", "f16"]), pick.randint(2, 4)
    name, array, step = g.fresh("t"), g.fresh("p"), g.fresh("q")
    scope = replace(around.scope.with_indices(*pairs_of(shape)), own=own)
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
