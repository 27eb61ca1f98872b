"""The text of a kernel parses back, whatever its expressions are."""

from __future__ import annotations

import ast
import math
import struct
from collections.abc import Callable
from functools import reduce
from typing import Any, get_args

import pytest
from hypothesis import given, settings, strategies as st

from taskc.ir import (
    expression_text,
    nodes as ir,
    parse,
    program_difference,
    to_text,
)
from taskc.ir.arithmetic import BINARY_OPERATORS, COMPARISONS, UNARY_OPERATORS
from taskc.ir.nodes import Binary, Constant, Read, Store, Tensor, Variable, constant
from taskc.ir.rewrite import map_children, walk
from taskc.ir.text_rules import PRECEDENCE, rounded
from taskc.ir.types import DTYPES, DType, bf16, boolean, f16, f32, f64, i32, i64, u8
from tests.ir.stage_programs import PROGRAMS

HEAD = "kernel f(x: inout f32[8, 8], n: i64) workers=4 stage=parsed:\n"


def kernel(*statements: ir.Statement, **more: Any) -> ir.Kernel:
    return ir.Kernel("k", more.pop("parameters", ()), (), 4, ir.Sequence(statements), **more)


# --- round trips ---


@pytest.mark.parametrize("build", PROGRAMS, ids=lambda build: build.__name__)
def test_every_stage_parses_back(build: Callable[[], ir.Kernel]) -> None:
    program = build()
    text = to_text(program)
    again = parse(text)
    assert program_difference(program, again) is None
    assert to_text(again) == text
    assert (again.stage, again.target) == (program.stage, program.target)


def test_the_programs_use_every_node_type() -> None:
    used: set[type] = set()
    for build in PROGRAMS:
        program = build()
        used |= {type(node) for node in walk(program.body)}
    assert used == {*get_args(ir.Expression), *get_args(ir.Statement)}


def test_every_node_has_its_place_in_the_text() -> None:
    for build in PROGRAMS:
        text = to_text(build())
        lines = text.splitlines()
        for node in walk(parse(text, file="some.txt").body):
            if isinstance(node, ir.Sequence):
                continue
            assert node.loc.file == "some.txt"
            assert node.loc.text == lines[node.loc.line - 1]
            assert 1 <= node.loc.column <= len(node.loc.text)


def test_locations_span_the_source() -> None:
    program = parse(HEAD + "    x[n, 0] = x[0, 1] + x[1, n] * 2.0 - x[2, 2]\n")
    store = program.body
    assert isinstance(store, ir.Store)
    value = store.value
    assert isinstance(value, Binary)
    assert isinstance(value.left, Binary)

    def source(node: ir.Expression) -> str:
        return node.loc.text[node.loc.column - 1 : node.loc.end_column - 1]

    assert source(value) == "x[0, 1] + x[1, n] * 2.0 - x[2, 2]"
    assert source(value.left) == "x[0, 1] + x[1, n] * 2.0"
    assert source(value.left.right) == "x[1, n] * 2.0"
    assert (store.loc.line, store.loc.column) == (2, 5)


# --- expressions ---


def _numbers(dtype: DType) -> st.SearchStrategy[Constant]:
    if dtype is boolean:
        return st.booleans().map(lambda value: Constant(value, boolean))
    if dtype.is_float:
        floats = st.floats() | st.sampled_from([0.0, -0.0, 1.0, -2.5, math.inf, -math.inf])
        return floats.map(lambda value: Constant(rounded(value, dtype), dtype))
    return st.integers(int(dtype.minimum), int(dtype.maximum)).map(lambda n: Constant(n, dtype))


NAMES = {dtype: Variable(f"v_{dtype}", dtype) for dtype in DTYPES.values()}
CELLS = {dtype: Tensor(f"t_{dtype}", dtype, (4, 4), ir.SHARED) for dtype in DTYPES.values()}
TYPES = (boolean, u8, i32, i64, f16, bf16, f32, f64)


@st.composite
def expressions(draw: st.DrawFn, dtype: DType, depth: int) -> ir.Expression:
    """An expression of a type, with every operator that gives it."""
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        return draw(_numbers(dtype) | st.just(NAMES[dtype]))

    def part(of: DType) -> ir.Expression:
        return draw(expressions(of, depth - 1))

    kinds = ["select", "cast", "read", "binary", "binary", "unary"]
    if dtype.is_float:
        kinds.append("fused")
    if dtype is boolean:
        kinds += ["comparison", "comparison", "isnan"]
    match draw(st.sampled_from(kinds)):
        case "select":
            return ir.Select(part(boolean), part(dtype), part(dtype))
        case "cast":
            return ir.Cast(part(draw(st.sampled_from(TYPES))), dtype)
        case "read":
            return Read(CELLS[dtype], (part(i64), part(i64)))
        case "fused":
            return ir.Fused(part(dtype), part(dtype), part(dtype))
        case "comparison":
            of = draw(st.sampled_from(TYPES))
            return Binary(draw(st.sampled_from(sorted(COMPARISONS))), part(of), part(of))
        case "isnan":
            return ir.Unary("isnan", part(f32))
        case "unary":
            names = [n for n, op in UNARY_OPERATORS.items() if dtype.kind in op.kinds]
            names = [name for name in names if name != "isnan"]
            return ir.Unary(draw(st.sampled_from(names)), part(dtype))
        case _:
            names = [n for n, op in BINARY_OPERATORS.items() if dtype.kind in op.kinds]
            names = [name for name in names if name not in COMPARISONS]
            return Binary(draw(st.sampled_from(names)), part(dtype), part(dtype))


def holding(expression: ir.Expression, how: int) -> ir.Kernel:
    """A kernel with the expression where its type is told, assumed, or must be said."""
    of = expression.dtype
    allocations = [ir.Allocate(cell) for cell in CELLS.values()]
    place = Store(CELLS[of], (constant(0), constant(1)), expression)
    uses: tuple[ir.Statement, ...] = (
        ir.Let(Variable("x", of), expression),
        place,
        ir.Print("{}", (expression,)),
    )
    variables = tuple(variable for dtype, variable in NAMES.items())
    return kernel(*allocations, uses[how], parameters=variables)


@settings(max_examples=75)
@given(st.sampled_from(TYPES).flatmap(lambda d: expressions(d, 4)), st.integers(0, 2))
def test_random_expressions_parse_back(expression: ir.Expression, how: int) -> None:
    program = holding(expression, how)
    text = to_text(program)
    again = parse(text)
    assert program_difference(program, again) is None, text
    assert to_text(again) == text


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("-3", Constant(-3)),
        ("-(3)", ir.Unary("-", Constant(3))),
        ("--3", ir.Unary("-", Constant(-3))),
        ("-n + 1", Binary("+", ir.Unary("-", NAMES[i64]), Constant(1))),
        ("1 - 2 - 3", Binary("-", Binary("-", Constant(1), Constant(2)), Constant(3))),
        ("1 - (2 - 3)", Binary("-", Constant(1), Binary("-", Constant(2), Constant(3)))),
        ("1 + 2 * 3", Binary("+", Constant(1), Binary("*", Constant(2), Constant(3)))),
        ("1 << 2 + 3 & 4 ^ 5 | 6", None),
        ("not n == 1 and n < 2 or n > 3", None),
        ("not (n == 1 and n < 2)", None),
        ("(n < 1) == (n < 2)", None),
        ("-n % 3", Binary("%", ir.Unary("-", NAMES[i64]), Constant(3))),
        ("~n.to(i32)", None),
        ("(-3).to(f32)", ir.Cast(Constant(-3), f32)),
        ("f32(0.1) * f32(3.0)", Binary("*", Constant(rounded(0.1, f32), f32), Constant(3.0, f32))),
        ("9223372036854775807 - n", None),
        ("f64(-inf)", Constant(-math.inf, f64)),
    ],
)
def test_precedence_is_pythons(text: str, meaning: ir.Expression | None) -> None:
    program = parse(f"kernel f(n: i64) workers=1 stage=parsed:\n    let x = {text}\n")
    assert isinstance(program.body, ir.Let)
    assert to_text(program).splitlines()[1] == f"    let x = {text}".replace(
        "let x = f64(", "let x: f64 = "
    ).replace("-inf)", "-inf")
    if meaning is not None:
        n = program.parameters[0]
        assert isinstance(n, Variable)

        def renamed(e: Any) -> Any:
            return n if e is NAMES[i64] else map_children(e, renamed)

        assert program.body.value == renamed(meaning)


PYTHON = {
    ast.Or: "or",
    ast.And: "and",
    ast.Not: "not",
    ast.USub: "-",
    ast.Invert: "~",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.BitAnd: "&",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}


def as_python_reads(node: ast.expr) -> ir.Expression:
    match node:
        case ast.Constant(value=int(value)):
            return constant(value)
        case ast.UnaryOp():
            return ir.Unary(PYTHON[type(node.op)], as_python_reads(node.operand))
        case ast.BinOp():
            sides = as_python_reads(node.left), as_python_reads(node.right)
            return Binary(PYTHON[type(node.op)], *sides)
        case ast.Compare(ops=[operator], comparators=[right]):
            return Binary(
                PYTHON[type(operator)], as_python_reads(node.left), as_python_reads(right)
            )
        case ast.BoolOp():
            parts = [as_python_reads(value) for value in node.values]
            return reduce(lambda a, b: Binary(PYTHON[type(node.op)], a, b), parts)
    raise AssertionError(ast.dump(node))


def untyped(depth: int) -> st.SearchStrategy[ir.Expression]:
    """Every operator on every operand, whatever the types: only the parentheses matter."""
    leaf: st.SearchStrategy[ir.Expression] = st.integers(0, 9).map(constant)
    if depth == 0:
        return leaf
    part = untyped(depth - 1)
    unary = st.builds(ir.Unary, st.sampled_from(["-", "~", "not"]), part)
    return leaf | unary | st.builds(Binary, st.sampled_from(sorted(PRECEDENCE)), part, part)


def flat(e: ir.Expression) -> str:
    """Fully parenthesized; `and` and `or` leaning left, since Python keeps no nesting of them."""
    match e:
        case ir.Unary():
            return f"({e.operator} {flat(e.operand)})"
        case Binary(operator="and" | "or", right=Binary() as right) if right.operator == e.operator:
            inner = Binary(e.operator, e.left, right.left)
            return flat(Binary(e.operator, inner, right.right))
        case Binary():
            return f"({flat(e.left)} {e.operator} {flat(e.right)})"
    return expression_text(e)


def check_python_reads_the_same(expression: ir.Expression) -> None:
    tree = ast.parse(expression_text(expression), mode="eval").body
    assert flat(as_python_reads(tree)) == flat(expression)


def test_python_reads_the_same_tree_for_each_pair_of_operators() -> None:
    one, two, three = map(constant, (1, 2, 3))
    for inner in PRECEDENCE:
        for outer in PRECEDENCE:
            check_python_reads_the_same(Binary(outer, Binary(inner, one, two), three))
            check_python_reads_the_same(Binary(outer, one, Binary(inner, two, three)))
        for prefix in ("-", "~", "not"):
            check_python_reads_the_same(ir.Unary(prefix, Binary(inner, one, two)))
            check_python_reads_the_same(Binary(inner, ir.Unary(prefix, one), two))
            check_python_reads_the_same(Binary(inner, one, ir.Unary(prefix, two)))


@settings(max_examples=100)
@given(untyped(4))
def test_python_reads_the_same_tree(expression: ir.Expression) -> None:
    check_python_reads_the_same(expression)


@pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if d.is_float], ids=str)
def test_floats_round_trip_by_their_bits(dtype: DType) -> None:
    values = [0.0, -0.0, 1.0, 0.1, 1 / 3, 1e-3, 16777217.0, dtype.maximum, dtype.smallest_normal]
    values += [2.0**-149, 5e-324, math.pi * 1e30]
    for value in (rounded(float(v), dtype) for v in values):
        program = kernel(ir.Let(Variable("x", dtype), Constant(value, dtype)))
        again = parse(to_text(program)).body
        assert isinstance(again, ir.Let)
        assert isinstance(again.value, Constant)
        assert struct.pack("d", again.value.value) == struct.pack("d", value)


def test_a_number_takes_the_type_of_what_is_beside_it() -> None:
    text = HEAD + "    x[0, 0] = 1 + x[0, 1]\n    x[0, 1] = 0.1\n    let y = n * 2 < 7\n"
    body = parse(text).body
    assert isinstance(body, ir.Sequence)
    constants = [n for n in walk(body) if isinstance(n, Constant)]
    assert [(c.value, c.dtype) for c in constants if c.dtype is f32] == [
        (1.0, f32),
        (rounded(0.1, f32), f32),
    ]
    assert [c.value for c in constants if c.dtype is i64] == [0, 0, 0, 1, 0, 1, 2, 7]
