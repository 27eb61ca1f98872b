"""Loops become vectors exactly where all lanes agree and memory is aligned; results stay."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from taskc.ir import nodes as ir
from taskc.ir.nodes import Binary, Constant, Expression, For, Select, Swizzle, Variable, constant
from taskc.ir.printer import to_text
from taskc.ir.rewrite import walk
from taskc.ir.types import boolean, f16, f32
from taskc.passes.vectorize import vectorize
from tests.analysis.test_facts import b, loop
from tests.each_value import few
from tests.programs_of_loops import arguments_for, random_kernel, run_kernel
from tests.stages import changes

X = ir.Tensor("x", f32, (512,), ir.GLOBAL)
Y = ir.Tensor("y", f32, (512,), ir.GLOBAL, role="inout")
E, P, N, M = Variable("e"), Variable("p"), Variable("n", multiple=4), Variable("m")
ZERO = Constant(0.0, f32)


def kernel_of(body: ir.Statement) -> ir.Kernel:
    outer = replace(loop(P, 0, 8), body=body)
    return ir.Kernel("k", (X, Y), (N, M), 1, outer, "lean")


def over(count: int, body: ir.Statement, variable: Variable = E) -> For:
    return replace(loop(variable, 0, count), body=body, kind="unroll")


def copy(offset: Expression, source: Expression | None = None) -> ir.Store:
    return ir.Store(Y, (offset,), ir.Read(X, (source or offset,)))


def widths(body: ir.Statement) -> list[int]:
    kernel = vectorize(kernel_of(body))
    for n in (4, 12, 20):
        sizes = {N: n, M: n + 3}
        arguments = arguments_for(kernel)
        assert run_kernel(kernel, wide(arguments), sizes) == run_kernel(
            kernel_of(body), wide(arguments), sizes
        )
    return [
        node.stop.value  # type: ignore[union-attr]
        for node in walk(kernel.body)
        if isinstance(node, For) and node.kind == "vector"
    ]


def wide(arguments: dict[ir.Tensor, Any]) -> dict[ir.Tensor, Any]:
    return {tensor: [*values, *values] for tensor, values in arguments.items()}


AT = b("+", b("*", P, 8), E)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (over(4, copy(AT)), [4]),
        (over(8, copy(AT)), [4]),
        (over(2, copy(AT)), [2]),
        (over(6, copy(AT)), [2]),
        (over(3, copy(AT)), []),
        (over(4, copy(b("+", AT, 2))), [2]),
        (over(4, copy(b("+", AT, 1))), []),
        (over(4, copy(AT, b("+", AT, M))), []),
        (over(4, copy(AT, b("+", AT, b("*", N, 2)))), [4]),
        (over(4, copy(b("*", E, 2))), []),
        (over(4, copy(AT, b("*", P, 3))), [4]),  # the same element in every lane
        (over(4, copy(b("*", P, 8), AT)), []),  # one place for all lanes
        (over(4, copy(AT, b("//", AT, 4))), [4]),
        (over(4, copy(AT, b("//", AT, 2))), [4]),  # the same element in two lanes, then the next one
        (over(4, copy(AT, b("+", b("//", AT, 2), b("*", P, 3)))), [2]),
        (over(4, copy(AT, b("//", b("+", AT, 1), 2))), []),
        (over(4, copy(b("//", AT, 2), AT)), []),  # two lanes store to one place
        (over(4, copy(AT, b("%", AT, 16))), [4]),
        (over(4, ir.Store(Y, (AT,), ZERO)), [4]),
        (over(4, ir.Store(Y, (AT,), ir.Cast(E, f32))), [4]),
        (over(4, ir.If(b("<", AT, N), copy(AT))), [4]),
        (over(4, ir.If(b("<", AT, M), copy(AT))), []),
        (over(4, ir.If(b("<=", AT, N), copy(AT))), []),
        (over(4, ir.If(b("<=", AT, b("-", N, 1)), copy(AT))), [4]),
        (over(4, ir.If(b(">", N, AT), copy(AT))), [4]),
        (over(4, ir.If(b(">=", AT, N), copy(AT))), [4]),
        (over(4, ir.If(b("==", AT, N), copy(AT))), []),
        (over(4, ir.If(b("and", b("<", AT, N), b("<", P, M)), copy(AT))), [4]),
        (over(4, ir.If(b("<", P, M), ir.If(b("<", AT, N), copy(AT)))), [4]),
        (over(4, ir.If(b("<", AT, N), copy(AT), copy(b("+", AT, 8)))), []),
        (over(4, ir.Store(Y, (AT,), Select(b("<", AT, N), ir.Read(X, (AT,)), ZERO))), [4]),
        (over(4, ir.Store(Y, (AT,), Select(b("<", AT, M), ir.Read(X, (AT,)), ZERO))), []),
        (over(4, ir.Store(Y, (AT,), Binary("+", ir.Read(Y, (AT,)), ir.Read(X, (AT,))))), [4]),
        (over(4, ir.Store(Y, (AT,), ir.Read(Y, (b("+", AT, 4),)))), []),
        (over(4, ir.Store(Y, (AT,), ir.Read(Y, (b("*", P, 8),)))), []),
        (over(4, ir.Sequence((copy(AT), copy(b("+", AT, 4))))), [4]),
        (over(4, ir.Sequence((copy(AT), copy(AT)))), [4]),
        (over(4, ir.Sequence((copy(AT), copy(b("+", AT, 2))))), [2]),
        (over(4, ir.Sequence((copy(AT), copy(b("+", AT, N))))), []),
        (over(4, ir.If(Binary("<", ir.Read(Y, (b("*", P, 8),)), ZERO), copy(AT))), []),
        (over(4, ir.If(Binary("<", ir.Read(X, (b("*", P, 8),)), ZERO), copy(AT))), [4]),
        (over(4, ir.If(Binary("<", ir.Read(X, (AT,)), ZERO), copy(AT))), []),
    ],
)  # fmt: skip
def test_which_loops(body: ir.Statement, expected: list[int]) -> None:
    assert widths(body) == expected


@pytest.mark.parametrize(
    ("read", "shown"),
    [(b("*", b("//", AT, 4), 3), "x[p * 6]"), (b("//", AT, 2), "x[p * 4 + e // 2]")],
)
def test_an_index_shows_which_lanes_read_one_element(read: Expression, shown: str) -> None:
    """Whoever writes the vector out need not prove it again, with the facts of a later stage."""
    name = Variable("name")
    named = ir.Sequence((ir.Let(name, read), copy(AT, name)))
    for body in (copy(AT, read), named):
        assert shown in to_text(vectorize(kernel_of(over(4, body))))


def test_names_inside_the_loop() -> None:
    t, p, v = Variable("t"), Variable("p", ir.boolean), Variable("v", f32)
    body = over(4, ir.Sequence((ir.Let(t, AT), ir.Let(v, ir.Read(X, (t,))), ir.Store(Y, (t,), v))))
    assert widths(body) == [4]
    varying = ir.Select(p, ZERO, Constant(1.0, f32))
    for limit, expected in ((1, []), (2, [2]), (3, [])):
        uneven = ir.Sequence((ir.Let(p, b("<", E, limit)), ir.Store(Y, (AT,), varying)))
        assert widths(over(4, uneven)) == expected
    index = ir.Tensor("index", ir.i64, (512,), ir.GLOBAL, role="inout")
    moving = ir.Sequence((ir.Let(t, ir.Read(index, (AT,))), ir.Store(Y, (AT,), ir.Read(X, (t,)))))
    kernel = kernel_of(over(4, moving))
    assert vectorize(kernel) is kernel


@pytest.mark.parametrize(
    ("divisor", "expected"), [(4, [4]), (12, [4]), (2, [2]), (6, [2]), (3, [])]
)
def test_quotients_of_names(divisor: int, expected: list[int]) -> None:
    """A name that varies has quotients that may not: they choose what is read, and whether."""
    j = Variable("j")
    first = b("*", b("//", j, divisor), 4)
    source = ir.Read(X, (b("+", first, b("%", AT, 4)),))
    value = Select(b("<", b("//", j, divisor), 3), source, ZERO)
    body = ir.Sequence((ir.Let(j, AT), ir.Store(Y, (j,), value)))
    assert widths(over(4, body)) == expected


def test_wide_and_narrow_types() -> None:
    half = ir.Tensor("half", f16, (512,), ir.GLOBAL, role="inout")
    read = ir.Read(X, (AT,))
    mixed = over(8, ir.Store(half, (AT,), ir.Cast(read, f16)))
    narrow = over(8, ir.Store(half, (AT,), Constant(1.0, f16)))
    for body, expected in ((mixed, 4), (narrow, 8)):
        loops = [n for n in walk(vectorize(kernel_of(body)).body) if isinstance(n, For)]
        assert loops[-1].stop == constant(expected)


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (ir.Tensor("s", f32, (512,), ir.SHARED), True),
        (ir.Tensor("s", f32, (512,), ir.SHARED, offset=32), True),
        (ir.Tensor("s", f32, (512,), ir.SHARED, offset=40), False),
        (ir.Tensor("s", f32, (512,), ir.SHARED, swizzle=Swizzle(3, 2, 3)), True),
        (ir.Tensor("s", f32, (512,), ir.SHARED, swizzle=Swizzle(3, 0, 3)), False),
    ],
)
def test_shared_memory(tensor: ir.Tensor, expected: bool) -> None:
    kernel = kernel_of(over(4, ir.Store(tensor, (AT,), ir.Read(X, (AT,)))))
    loops = [n for n in walk(vectorize(kernel).body) if isinstance(n, For)]
    widest = [n.stop for n in loops if n.kind == "vector"]
    assert (widest == [constant(4)]) is expected


def test_registers_that_are_read_may_be_any() -> None:
    acc = ir.Tensor("acc", f32, (32,), ir.REGISTER)
    turned = over(4, ir.Store(Y, (AT,), ir.Read(acc, (b("*", E, 4),))))
    kernel = vectorize(kernel_of(turned))
    assert [n.kind for n in walk(kernel.body) if isinstance(n, For)][-1] == "vector"
    scattered = over(4, ir.Store(acc, (b("*", E, 4),), ir.Read(X, (AT,))))
    kernel = kernel_of(scattered)
    assert vectorize(kernel) is kernel


def test_scalars_that_change_on_the_way() -> None:
    value = ir.Tensor("value", f32, (), ir.LOCAL)
    now = ir.Read(value, ())
    steps = (
        ir.Allocate(value),
        ir.Store(value, (), ir.Read(X, (AT,))),
        ir.Store(value, (), Binary("+", now, Constant(1.0, f32))),
    )
    store = ir.Store(Y, (AT,), now)
    assert widths(over(4, ir.Sequence((*steps, store)))) == [4]
    guarded = ir.If(b("<", AT, N), ir.Sequence((store,)))
    assert widths(over(4, ir.Sequence((*steps, guarded)))) == [4]
    filled = (ir.Allocate(value, Constant(0.0, f32)), steps[2])
    assert widths(over(4, ir.Sequence((*filled, store)))) == [4]
    again = ir.If(b("<", AT, N), ir.Store(value, (), ZERO))
    assert widths(over(4, ir.Sequence((*steps, again, store)))) == []


def test_registers_alone_are_not_vectors() -> None:
    acc = ir.Tensor("acc", f32, (16,), ir.REGISTER)
    kernel = kernel_of(over(4, ir.Store(acc, (E,), ZERO)))
    assert vectorize(kernel) is kernel


@pytest.mark.parametrize(("limit", "expected"), [(N, 1), (M, 0)])
def test_a_read_behind_and_is_for_all_lanes_or_none(limit: Variable, expected: int) -> None:
    """The machine reads all of a vector; `limit` may lie within it."""
    flags = ir.Tensor("flags", boolean, (512,), ir.GLOBAL)
    marks = ir.Tensor("marks", boolean, (512,), ir.GLOBAL, role="inout")
    value = Binary("and", Binary("<", AT, limit), ir.Read(flags, (AT,)))
    body = over(4, ir.Store(marks, (AT,), value))
    kernel = replace(kernel_of(body), parameters=(flags, marks))
    assert sum(n.kind == "vector" for n in walk(vectorize(kernel).body) if isinstance(n, For)) == (
        expected
    )


def test_guarded_copy(golden: Any) -> None:
    body = over(8, ir.If(b("<", AT, N), copy(AT)))
    golden("passes/vectorize_guard", to_text(vectorize(kernel_of(body))))


def test_random_loops() -> None:
    """Random offsets, guards and counts; the evaluator runs vectors lane by lane, reads first."""
    count = 0
    for seed in range(500):
        pick = random.Random(seed)

        def offset(pick: random.Random = pick) -> Expression:
            base = b("*", P, pick.choice([4, 8, 16, 2, 3]))
            part = b("+", base, pick.choice([0, 0, 4, 8, 2, 1]))
            lane = pick.choice([E, E, E, E, b("*", E, 2), constant(0)])
            total = b("+", part, lane)
            if pick.random() < 0.1:
                return b(pick.choice(["//", "%"]), total, pick.choice([4, 8, 16]))
            return total

        def condition(pick: random.Random = pick) -> Expression:
            operator = pick.choice(["<", "<=", ">", ">=", "<", "<"])
            sides = offset(), b("+", pick.choice([N, N, M]), pick.choice([0, 0, -1, 1, 4]))
            return b(operator, *(sides if pick.random() < 0.7 else sides[::-1]))

        stores = []
        at = offset()
        for _ in range(pick.choice([1, 1, 2])):
            where = at if pick.random() < 0.6 else offset()
            value: Expression = ir.Read(pick.choice([X, X, Y]), (where,))
            if pick.random() < 0.4:
                value = Select(condition(), value, ZERO)
            stores.append(ir.Store(Y, (at if pick.random() < 0.7 else offset(),), value))
        body: ir.Statement = ir.Sequence(tuple(stores))
        if pick.random() < 0.4:
            body = ir.If(condition(), body)
        lanes = replace(loop(E, 0, 1), stop=constant(pick.choice([2, 4, 8, 6])), body=body)
        kernel = kernel_of(lanes)
        new = vectorize(kernel)
        count += new is not kernel
        arguments = wide(arguments_for(kernel))
        for n in (4, 40):
            sizes = {N: n, M: n - 1}
            expected = run_kernel(kernel, arguments, sizes)
            assert run_kernel(new, arguments, sizes) == expected, seed
    assert count > 50


@pytest.mark.parametrize("block", few(range(4), 1))
def test_all_lean_passes_keep_results(block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        kernel, sizes = random_kernel(seed)
        arguments = arguments_for(kernel)
        expected = run_kernel(kernel, arguments, sizes)
        for step in changes(kernel):
            kernel = step.kernel
            assert run_kernel(kernel, arguments, sizes) == expected, (seed, step.name)
        assert kernel.stage == "lean"
