"""Linear forms: what cancels, what divides, and that they mean the expression."""

from __future__ import annotations

import pytest

from taskc.analysis.facts import Facts
from taskc.ir import nodes as ir
from taskc.ir.affine import SymbolTable, affine, constant_difference, divisible
from taskc.ir.nodes import Binary, Cast, Expression, Select, Unary, Variable, constant
from taskc.ir.printer import expression_text
from taskc.ir.types import f32, i32, i64
from tests.analysis.test_facts import b, loop
from tests.evaluator import Generator, Machine

X, Y, R = Variable("x"), Variable("y"), Variable("r")


def bounded() -> SymbolTable:
    """r in [0, 8), and y a multiple of 4."""
    facts = Facts.empty().enter(loop(R, 0, 8)).enter(loop(Y, 0, Variable("n"), 4))
    return facts.scope


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (b("-", b("+", b("*", X, 8), Y), Y), "x * 8"),
        (b("//", b("+", b("*", X, 8), 4), 4), "x * 2 + 1"),
        (b("%", b("+", b("*", X, 8), R), 8), "r"),
        (b("//", b("+", b("*", X, 8), R), 8), "x"),
        (b("//", b("+", Y, 3), 4), "y // 4"),
        (b("%", b("+", Y, 3), 4), "3"),
        (b("//", b("+", b("*", Y, 2), R), 8), "y * 2 // 8"),
        (b("//", b("//", X, 3), 5), "x // 15"),
        (b("-", b("//", b("+", X, Y), 3), b("//", b("+", Y, X), 3)), "0"),
        (b("-", b("*", X, b("+", Y, 1)), b("*", b("+", Y, 1), X)), "0"),
        (b("-", b("*", b("+", X, 1), Y), Y), "x * y"),
        (b("*", b("+", X, Y), 4), "(x + y) * 4"),
        (b("-", b("-", X, 5), b("-", Y, 2)), "x - y - 3"),
        (Unary("-", b("-", X, Y)), "y - x"),
        (b("-", 3, b("+", X, 5)), "-2 - x"),
        (Unary("~", X), "-1 - x"),
        (b("<<", X, 3), "x * 8"),
        (b(">>", b("*", X, 8), 1), "x * 4"),
        (b("&", b("+", b("*", X, 16), R), 7), "r"),
        (b("min", b("+", X, 1), b("+", X, 3)), "x + 1"),
        (b("max", R, -1), "r"),
        (Cast(Cast(R, i32), i64), "r"),
        (Select(b("<", X, Y), R, R), "r"),
        (b("//", X, 0), "x // 0"),
    ],
)
def test_forms(expression: Expression, expected: str) -> None:
    scope = bounded()
    assert expression_text(affine(expression, scope).to_expression()) == expected


def test_differences_and_divisors() -> None:
    scope = bounded()
    assert (
        constant_difference(b("+", X, b("*", Y, 3)), b("+", b("*", Y, 3), b("-", X, 4)), scope) == 4
    )
    assert constant_difference(X, Y, scope) is None
    assert divisible(b("+", b("*", X, 8), b("*", Y, 2)), 8, scope)
    assert divisible(b("-", Y, 12), 4, scope)
    assert not divisible(b("+", Y, 2), 4, scope)
    assert divisible(Variable("n", multiple=16), 8)
    odd = Facts.empty().enter(ir.For(X, constant(3), constant(50), 4, ir.Sequence(())))
    assert odd.congruence(X) == (4, 3)
    assert divisible(b("+", X, 1), 4, odd.scope)


def test_reads_are_equal_by_tensor_and_index() -> None:
    table, other = (ir.Tensor(name, i64, (8,), ir.GLOBAL) for name in "ab")
    first, second = ir.Read(table, (b("+", X, Y),)), ir.Read(table, (b("+", Y, X),))
    assert constant_difference(first, second) == 0
    assert constant_difference(first, ir.Read(other, (b("+", X, Y),))) is None


def test_floats_within_are_told_apart() -> None:
    def chosen(value: float) -> Expression:
        bound = ir.Constant(value, f32)
        return Select(Binary("<", Variable("f", f32), bound), X, Y)

    assert constant_difference(chosen(0.0), chosen(-0.0)) is None


def test_long_sums_stay_balanced() -> None:
    names = [Variable(f"v{i}") for i in range(1000)]
    total: Expression = names[0]
    for name in names[1:400]:
        total = b("+", total, name)
    written = affine(total).to_expression()

    def depth(node: Expression) -> int:
        return 1 + max(depth(node.left), depth(node.right)) if isinstance(node, Binary) else 0

    assert depth(written) < 20


@pytest.mark.parametrize("dtype", [i64, i32])
def test_forms_mean_the_expression(dtype: ir.DType) -> None:
    machine = Machine()
    names = [Variable("x", dtype), Variable("y", dtype)]
    for seed in range(1500):
        expression = Generator(seed, names, dtype).integer(4)
        form = affine(expression)
        written = form.to_expression(dtype)
        for x in (-9, -1, 0, 3, 8, 100):
            for y in (-4, 0, 1, 7, 64):
                values = dict(zip(names, (x, y), strict=True))
                expected = machine.value(expression, values)
                assert machine.value(written, values) == expected, (seed, expression, written)
