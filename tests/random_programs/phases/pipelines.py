"""Matrix products, and loops whose loads travel ahead of the work."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.random_programs import description as d
from tests.random_programs.around import Around, Made, TileValue
from tests.random_programs.description import Apply, Element, Name, Shape, Value
from tests.random_programs.numbers import FLOATS
from tests.random_programs.phases.common import (
    DTYPES,
    VARIABLES,
    pairs_of,
    variables_of,
)
from tests.random_programs.phases.memory import exchange
from tests.random_programs.scope import Readable, Scope, add, i64

if TYPE_CHECKING:
    from tests.random_programs.generator import Generator


def product(g: Generator, around: Around) -> Made:
    """A matrix product of block values that are made for it."""
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
        scope = around.scope.with_indices(*pairs_of(shape))
        value = g.expressions.value(operand, scope, 1)
        statements.append(d.Load(name, operand, shape, None, variables_of(shape), value))
        sides.append(d.Slice(name, (i64(0), i64(0)), shape, operand))
    name = g.fresh("t")
    fill = 0.0 if accumulator in FLOATS else 0
    statements += [
        d.Tile(name, accumulator, mapping, fill), d.Product(name, sides[0], sides[1], turned)
    ]  # fmt: skip
    return statements, around.with_tile(TileValue(name, accumulator, mapping))


def changing(g: Generator, buffer: Readable, scope: Scope) -> list[d.Statement]:
    """A shared buffer, and the phase that writes it."""
    variables = variables_of(buffer.shape)
    scope = scope.with_indices(*pairs_of(buffer.shape))
    value = g.expressions.value(buffer.dtype, scope, 1)
    store = d.Store(buffer.name, tuple(map(Name, variables)), value)
    return [
        d.Shared(buffer.name, buffer.dtype, buffer.shape),
        d.Each(variables, g.mappings.over(buffer.shape), (store,)),
    ]


def pipeline(g: Generator, around: Around, grid: tuple[tuple[str, ...], Shape, Shape]) -> Made:
    """A loop whose loads travel ahead of the work."""
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
    scope = around.scope
    length: Value = i64(extent)
    is_counted = pick.random() < 0.15 and not is_special
    if is_counted:  # the work changes the count, which no longer matters
        count = Name(g.fresh("x"))
        length = Apply("%", (count, i64(64)), "i64")
        statements.append(d.Let(count.name, i64(extent), cell=True))
    elif pick.random() < 0.2:  # up to the diagonal: tiles have different numbers of steps
        length = Apply("min", (length, add(Name(names[0]), i64(1))), "i64")
        scope = scope.with_scalar(step, "i64")
    else:
        scope = scope.with_indices((step, max(extent, 1)))
    origin: Value = Name(names[0])
    if pick.random() < 0.15:
        origin = Name(g.fresh("x"))
        asked = g.scalar("i64", pick.randint(0, 9))
        statements.append(d.Let(origin.name, Apply("%", (asked, i64(3)), "i64")))
    scalar = None
    if pick.random() < 0.35:
        scalar = Name(g.fresh("x"))
        body.append(d.Let(scalar.name, add(Name(step), i64(pick.randint(1, 5)))))
        scope = scope.with_scalar(scalar.name, "i64")
    blocks: list[Readable] = []
    for _ in range(pick.choice([1, 1, 2])):
        a = g.input(dtype, (shape[0], extent))
        name = g.fresh("s")
        if plain or pick.random() < 0.5:
            source = d.Slice(a.name, (origin, Name(step)), (by[0], bk), dtype)
            fill = None if plain else g.some_fill(dtype)
            body.append(d.Load(name, dtype, (by[0], bk), source, fill=fill))
        else:
            row, column = add(origin, Name("i")), add(Name(step), Name("j"))
            inside = Apply(
                "and",
                (
                    Apply("<", (row, i64(shape[0])), "bool"),
                    Apply("<", (column, i64(extent)), "bool"),
                ),
                "bool",
            )
            element: Value = Element(a.name, (row, column), dtype)
            if scalar is not None and dtype != "bool":
                element = Apply("-", (element, g.expressions.converted(scalar, dtype)), dtype)
            if dtype == "bool":
                value: Value = Apply("and", (inside, element), "bool")
            else:
                value = Apply("where", (inside, element, g.expressions.number(dtype)), dtype)
            body.append(d.Load(name, dtype, (by[0], bk), None, ("i", "j"), value))
        blocks.append(Readable(name, dtype, (by[0], bk)))
    changed = None
    if pick.random() < 0.2:
        changed = Readable(g.fresh("s"), dtype, (by[0], bk))
        statements += changing(g, changed, around.scope)
        place = tuple(
            Apply("-", (i64(size - 1), Name(variable)), "i64")
            for size, variable in zip((by[0], bk), "ij", strict=True)
        )
        name = g.fresh("s")
        value = Element(changed.name, place, dtype)
        body.append(d.Load(name, dtype, (by[0], bk), None, ("i", "j"), value))
        blocks.append(Readable(name, dtype, (by[0], bk)))
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
    if changed is not None:
        body += changing(g, changed, scope.with_memory(*blocks))[1:]
    if is_counted:
        body.append(d.Assign(count.name, i64(pick.choice([0, bk, 9 * bk]))))
    loop: d.Statement = d.Pipeline(step, length, bk, stages, tuple(body), transport, is_special)
    if pick.random() < 0.2 and not is_special and not is_counted:
        loop = d.For(g.fresh("q"), i64(0), i64(pick.randint(1, 3)), 1, (loop,))
    statements.append(loop)
    around = around.with_tile(TileValue(accumulator, of, mapping))
    return statements, around
