"""Numbers without a type: conditional expressions of plain numbers, named or not, and what is computed of them.

The description says what Python does: `d.Apply("if", (c, 1, 0), "number")` is a Python number, computed with
Python's operators, and `"typed"` is what a use makes of it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from tests.random_programs import description as d
from tests.random_programs.around import Around, Made, TileValue
from tests.random_programs.description import Apply, Element, Name, Number, Value
from tests.random_programs.numbers import FLOATS, INTEGERS, function, wrap
from tests.random_programs.phases.common import is_constant, pairs_of, variables_of
from tests.random_programs.phases.memory import checksums
from tests.random_programs.scope import Readable, Scope, add, i64

if TYPE_CHECKING:
    from tests.random_programs.generator import Generator

TYPES = ("f32", "f64", "f16", "bf16", "i32", "i64", "u8", "i8", "u32")
MOST = 40_000  # what a number comes to at most: it is a finite f16, too
ALTERNATIVES = 24


class Numbers:
    """Random numbers without a type; `values` has all that each name can come to."""

    def __init__(self, g: Generator, scope: Scope, sizes: tuple[tuple[str, int], ...]) -> None:
        self.g = g
        self.scope = scope
        self.values: dict[str, tuple[Any, ...]] = {name: (size,) for name, size in sizes}

    def number(self, depth: int, *, integral: bool = False) -> Value:
        pick = self.g.pick
        kind = pick.random()
        if depth <= 0 or kind < 0.1:
            names = [n for n, of in self.values.items() if not integral or _are_integers(of)]
            if names and pick.random() < 0.4:
                return Name(pick.choice(names), "number")
            return Number(
                pick.choice([-3, -1, 0, 1, 2, 5] + [0.5, -1.5] * (not integral)), "number"
            )
        left = self.number(depth - 1, integral=integral)
        if kind < 0.2:
            return self.kept(Apply(pick.choice(["neg", "abs"]), (left,), "number"))
        right = self.number(depth - 1, integral=integral)
        if kind < 0.7:
            return Apply("if", (self.condition(), left, right), "number")
        operators = ["+", "-", "*", "min", "max", "//", "%", *([] if integral else ["/"])]
        return self.kept(Apply(pick.choice(operators), (left, right), "number"))

    def kept(self, value: Apply) -> Value:
        """The value, or one of its operands where Python would not compute it, or it is too much."""
        return value if self.alternatives(value) else value.operands[0]

    def condition(self) -> Value:
        for _ in range(8):
            found = self.g.expressions.condition(self.scope, 0)
            if not is_constant(found):
                return found
        return Apply("<", (Name(self.scope.indices[-1][0]), i64(2)), "bool")

    def alternatives(self, value: Value) -> tuple[Any, ...]:
        """All that a number can come to; none where a part of it cannot be computed, or they are many."""
        match value:
            case Number():
                return (value.value,)
            case Name():
                return self.values[value.name]
        assert isinstance(value, Apply)
        operands = value.operands[1:] if value.operator == "if" else value.operands
        sides = [self.alternatives(operand) for operand in operands]
        if not all(sides):
            return ()
        if value.operator == "if":
            return self.few([*sides[0], *sides[1]])
        compute = function(value.operator, "number")
        try:
            values = [compute(*parts) for parts in product(*sides)]
        except ZeroDivisionError:
            return ()
        if not all(map(_are_integers, sides)):  # of a size and a float the language makes a float
            values = list(map(float, values))
        return self.few(values)

    def few(self, values: list[Any]) -> tuple[Any, ...]:
        fit = len(values) <= ALTERNATIVES and all(abs(value) <= MOST for value in values)
        return tuple(values) if fit else ()

    def fitting(self, dtype: str, depth: int = 2, *, but: tuple[Any, ...] = ()) -> Value:
        """A number that every use as this type can make one of it."""
        for _ in range(20):
            made = self.number(depth, integral=dtype in INTEGERS)
            if self.fits(made, dtype) and not set(but) & set(self.alternatives(made)):
                return made
        return Apply("if", (self.condition(), Number(1, "number"), Number(2, "number")), "number")

    def fits(self, value: Value, dtype: str) -> bool:
        values = self.alternatives(value)
        if dtype in FLOATS:
            return bool(values)
        return bool(values) and _are_integers(values) and all(v == wrap(v, dtype) for v in values)

    def value(self, dtype: str, *, of_type: bool = False) -> Value:
        """A value, with numbers without a type in it; `of_type`: not only such."""
        pick = self.g.pick
        typed = self.typed_value(dtype)
        kind = pick.random()
        if kind < 0.1 and not of_type:
            return _typed(self.fitting(dtype), dtype)
        if kind < 0.2:
            number = self.number(2, integral=True)
            if _is_choice(number) and self.alternatives(number):
                return Apply("cast", (number,), dtype)
        if kind < 0.35:
            sides: tuple[Value, Value] = (typed, _typed(self.fitting(dtype), dtype))
            operator = pick.choice(["if", "where"])
            return Apply(operator, (self.condition(), *sides[:: pick.choice([1, -1])]), dtype)
        if kind < 0.4 and dtype in FLOATS:
            return Apply("fma", (typed, _typed(self.fitting(dtype), dtype), typed), dtype)
        if kind < 0.5 and dtype in ("f32", "f64"):
            return Apply("angle", (typed, _typed(self.fitting(dtype, but=(0,)), dtype)), dtype)
        if kind < 0.6 and dtype in INTEGERS:
            right = _typed(self.fitting(dtype, but=(0, -1)), dtype)
            return Apply(pick.choice(["//", "%"]), (typed, right), dtype)
        if kind < 0.7 and dtype in INTEGERS:
            low, high = (Number(pick.randint(1, 9), dtype) for _ in range(2))
            return Apply("-", (Apply("-", (typed, low), dtype), high), dtype)
        sides = (typed, _typed(self.fitting(dtype), dtype))
        operator = pick.choice(["+", "-", "*", "min", "max"])
        return Apply(operator, sides[:: pick.choice([1, -1])], dtype)

    def typed_value(self, dtype: str) -> Value:
        expressions = self.g.expressions
        for _ in range(4):
            made = expressions.value(dtype, self.scope, 1)
            if not is_constant(made):
                return made
        return expressions.converted(Name(self.scope.indices[-1][0]), dtype)


def untyped(g: Generator, around: Around) -> Made:
    """A tile whose values are computed of numbers without a type."""
    pick = g.pick
    shape = g.small_shape()
    variables = variables_of(shape)
    mapping, own = g.mapping_for(shape, around, variables)
    dtype, name, cell = pick.choice(TYPES), g.fresh("t"), g.fresh("x")
    scope = replace(around.scope.with_indices(*pairs_of(shape)), own=own)
    numbers = Numbers(g, scope, tuple((n, size) for n, _, size in g.dimensions))
    body: list[d.Statement] = []

    def named(value: Value, values: tuple[Any, ...]) -> str:
        body.append(d.Let(g.fresh("w"), value))
        numbers.values[body[-1].name] = values  # type: ignore[union-attr]
        return body[-1].name  # type: ignore[union-attr]

    for _ in range(pick.randint(1, 3)):
        value = numbers.number(2)
        if _is_choice(value) and numbers.alternatives(value):
            named(value, numbers.alternatives(value))
    value = numbers.fitting(dtype)
    if not _is_choice(value):
        value = Apply("if", (numbers.condition(), value, Number(1, "number")), "number")
    body.append(d.Let(cell, _typed(value, dtype), cell=True))
    total = Apply(
        pick.choice(["+", "-", "max"]),
        (Name(cell, dtype), numbers.value(dtype, of_type=True)),
        dtype,
    )
    change: d.Statement = d.Assign(cell, total)
    form = pick.random()
    if form < 0.3:
        left, right = numbers.fitting("i64"), numbers.fitting("f64", 1)
        test = Apply(pick.choice(["<", "!=", "==", ">="]), (left, right), "bool")
        count = len(numbers.alternatives(left)) * len(numbers.alternatives(right))
        if count > ALTERNATIVES or not (_is_choice(left) or _is_choice(right)):
            test = Apply("<", (numbers.typed_value("f32"), _typed(right, "f32")), "bool")
        change = d.If(test, (change,))
    elif form < 0.6:
        turns = Apply("if", (numbers.condition(), *_pair(pick.choice([0, 1]), 2)), "number")
        change = d.For(g.fresh("q"), i64(0), _typed(turns, "i64"), 1, (change,))
    elif form < 0.75:
        flag = Apply("if", (numbers.condition(), *_pair(*pick.sample([True, False], 2))), "number")
        body.append(d.Let(g.fresh("w"), flag))
        change = d.If(_typed(Name(body[-1].name, "number"), "bool"), (change,))  # type: ignore[union-attr]
    elif memory := [m for m in scope.memory if m.dtype != "bool"]:
        of = pick.choice(memory)
        places = tuple(
            _typed(Apply("if", (numbers.condition(), *_pair(0, size - 1)), "number"), "i64")
            for size in of.shape
        )
        read = g.expressions.converted(Element(of.name, places, of.dtype), dtype)
        change = d.Assign(cell, Apply("+", (Name(cell, dtype), read), dtype))
    body += [change, d.Store(name, tuple(map(Name, variables)), Name(cell, dtype))]
    statements: list[d.Statement] = [
        d.Tile(name, dtype, mapping), d.Each(variables, mapping, tuple(body))
    ]  # fmt: skip
    return statements, around.with_tile(TileValue(name, dtype, mapping))


def strided(g: Generator, around: Around, *, is_alone: bool) -> Made:
    """A buffer that each worker goes through in steps from a place of its own, `range(w, n, 16)`.

    `is_alone`: there is one block, so that it may be an output, of a size that is known only when it runs.
    """
    pick = g.pick
    extent = pick.choice([1, 2, g.workers, 2 * g.workers + 1, 3 * g.workers - 1, 37])
    dtype, step = pick.choice(TYPES), g.fresh("q")
    role, stop, statements = "shared", i64(extent), []
    if is_alone and pick.random() < 0.6:
        size = g.fresh("n")
        g.dimensions.append((size, 1, extent))
        role, stop = pick.choice(["out", "inout"]), Name(size)
        name = g.output(dtype, (extent,), role, (size,))
    else:
        name = g.fresh("s")
        statements.append(d.Shared(name, dtype, (extent,)))
    factors = (d.Factor("spatial", (g.workers,)),)
    mapping = d.MappingOf(g.mappings.name(), (g.workers,), g.workers, factors)
    here = Element(name, (Name(step),), dtype)
    scope = around.scope.with_indices(("i", g.workers)).with_scalar(step, "i64")

    def turns(first: Value, by: int, of: Scope) -> d.Statement:
        store = d.Store(name, here.indices, Numbers(g, of, ()).value(dtype))
        return d.Each(("i",), mapping, (d.For(step, first, stop, by, (store,)),))

    if role != "inout":
        statements.append(turns(Name("i"), g.workers, scope))
    for _ in range(0 if role == "out" else pick.randint(1, 2)):
        first = add(Name("i"), i64(pick.randint(0, 5))) if pick.random() < 0.5 else Name("i")
        by = g.workers * pick.choice([1, 1, 2])
        statements.append(turns(first, by, replace(scope, own=(here,))))
    if role == "shared":
        around = around.with_scope(around.scope.with_memory(Readable(name, dtype, (extent,))))
    return statements, around


def beside(g: Generator, around: Around, *, is_alone: bool) -> list[d.Statement]:
    """Phases of these forms, which nothing else of the program depends on."""
    statements: list[d.Statement] = []
    made = around
    if g.pick.random() < 0.4:
        more, made = untyped(g, made)
        statements += more
    if g.pick.random() < 0.25:
        more, made = strided(g, made, is_alone=is_alone)
        statements += more
    tiles = made.tiles[len(around.tiles) :]
    memory = made.scope.memory[len(around.scope.memory) :]
    return statements + checksums(g, Around(Scope(memory=memory), tiles), 1)


def _typed(value: Value, dtype: str) -> Apply:
    return Apply("typed", (value,), dtype)


def _pair(first: Any, second: Any) -> tuple[Number, Number]:
    return Number(first, "number"), Number(second, "number")


def _is_choice(value: Value) -> bool:
    """Whether a condition decides it, so that it has no type but isn't a constant."""
    if not isinstance(value, Apply):
        return False
    return value.operator == "if" or any(map(_is_choice, value.operands))


def _are_integers(values: tuple[Any, ...]) -> bool:
    return all(isinstance(value, int) for value in values)
