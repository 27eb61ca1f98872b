"""What phases of all kinds are made with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.random_programs import description as d
from tests.random_programs.around import Around
from tests.random_programs.description import Apply, Name, Shape, Value
from tests.random_programs.instances import by_rule
from tests.random_programs.scope import Scope, add, i64

if TYPE_CHECKING:
    from tests.random_programs.generator import Generator

DTYPES = ("f32", "f32", "f32", "f16", "bf16", "f64", "i32", "i32", "i64", "u8", "bool")
VARIABLES = "ijlm"


def variables_of(shape: Shape) -> tuple[str, ...]:
    return tuple(VARIABLES[: len(shape)])


def pairs_of(shape: Shape) -> tuple[tuple[str, int], ...]:
    return tuple(zip(variables_of(shape), shape, strict=True))


def is_constant(value: Value) -> bool:
    """Python would compute it, and the scalar would have no type."""
    if isinstance(value, Apply):
        return all(map(is_constant, value.operands))
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
            value = by_rule(g.expressions, of, scope, 0)
        if is_constant(value):
            continue
        name = g.fresh("v")
        lets.append(d.Let(name, value))
        scope = scope.with_scalar(name, of)
    return tuple(lets), g.expressions.value(dtype, scope, depth)


def some_shape(g: Generator, around: Around) -> Shape:
    known = [t.mapping.iterated for t in around.tiles]
    return g.pick.choice(known) if known and g.pick.random() < 0.6 else g.small_shape()


def permuted(
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


def mentions(value: Value, names: set[str]) -> bool:
    if isinstance(value, Name):
        return value.name in names
    return isinstance(value, Apply) and any(mentions(part, names) for part in value.operands)


def some_start(g: Generator, scope: Scope, extent: int) -> Value:
    return g.expressions.index(extent, scope) if g.pick.random() < 0.5 else i64(0)
