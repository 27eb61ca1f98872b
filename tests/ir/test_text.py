"""The text of a kernel: what it looks like, that it parses back, and what errors in it say."""

from __future__ import annotations

import ast
import dataclasses
import math
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any, get_args

import pytest
from hypothesis import given, settings, strategies as st

from taskc.errors import CompileError
from taskc.ir import (
    difference,
    expression_text,
    nodes as ir,
    parse,
    same_program,
    statement_text,
    to_text,
)
from taskc.ir.arithmetic import BINARY_OPERATORS, COMPARISONS, UNARY_OPERATORS
from taskc.ir.mapping import repeat, spatial
from taskc.ir.nodes import Binary, Constant, Read, Store, Tensor, Variable, constant
from taskc.ir.parser_text import _parser
from taskc.ir.rewrite import map_children, walk
from taskc.ir.text_rules import PRECEDENCE, RESERVED, rounded
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
    assert difference(program, again) is None
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


# --- what it looks like ---


def test_matmul_looks_like_this() -> None:
    own = spatial(4, 8) * repeat(8, 4)
    a = Tensor("a", f32, (64, 32), ir.GLOBAL)
    b = Tensor("b", f32, (32, 64), ir.GLOBAL)
    c = Tensor("c", f32, (64, 64), ir.GLOBAL, role="out")
    sa = Tensor("sa", f32, (32, 8), ir.SHARED, constant=True)
    acc = Tensor("acc", f32, (32, 32), ir.TILE, owners=own)
    row, col, p, q = (Variable(name) for name in ("row", "col", "p", "q"))

    def load(tensor: Tensor, source: Tensor, first: Variable) -> ir.Statement:
        i, j = Variable("i"), Variable("j")
        indices = Binary("+", first, i), Binary("+", p, j)
        inside = Binary("<", indices[0], constant(64))
        value = ir.Select(inside, Read(source, indices), Constant(0.0, f32))
        return ir.Move(tensor, (i, j), (i, j), (32, 8), value)

    i, j = Variable("i"), Variable("j")
    product = ir.Fused(Read(sa, (i, q)), Read(b, (q, Binary("+", col, j))), Read(acc, (i, j)))
    work = ir.For(
        q, constant(0), constant(8), 1, ir.Each((i, j), own, None, Store(acc, (i, j), product))
    )
    step = ir.Sequence((ir.Allocate(sa), load(sa, a, row), work))
    u, w = Variable("i"), Variable("j")
    place = Binary("+", row, u), Binary("+", col, w)
    store = ir.Move(c, place, (u, w), (32, 32), Read(acc, (u, w)))
    pipeline = ir.Pipeline(p, constant(32), 8, 2, step)
    tile = ir.Sequence((ir.Allocate(acc, Constant(0.0, f32)), pipeline, store))
    grid = ir.Grid((row, col), (64, 64), (32, 32), tile)
    assert to_text(ir.Kernel("matmul", (a, b, c), (), 32, grid)) == (
        """\
kernel matmul(a: f32[64, 32], b: f32[32, 64], c: out f32[64, 64]) workers=32 stage=parsed:
    grid (row, col) in (64, 64) by (32, 32):
        tile acc: f32[32, 32] by spatial(4, 8).repeat(8, 4) = 0.0
        pipeline p in 32 by 8 stages=2:
            constant shared sa: f32[32, 8]
            move sa[i, j] = select(row + i < 64, a[row + i, p + j], 0.0) for (i, j) in (32, 8)
            for q in range(8):
                each (i_1, j_1) in spatial(4, 8).repeat(8, 4):
                    acc[i_1, j_1] = fma(sa[i_1, q], b[q, col + j_1], acc[i_1, j_1])
        move c[row + i_2, col + j_2] = acc[i_2, j_2] for (i_2, j_2) in (32, 32)
"""
    )


def test_scalars_and_loops_look_like_this() -> None:
    n, i, j = Variable("n", multiple=4), Variable("i"), Variable("i")
    x = Tensor("x", f16, (n,), ir.GLOBAL, role="inout")
    best = Tensor("best", f16, (), ir.LOCAL)
    look = ir.If(
        Binary(">", Read(x, (i,)), Read(best, ())), Store(best, (), Read(x, (i,))), ir.Sequence(())
    )
    body = ir.Sequence(
        (
            ir.Allocate(best, Constant(float("-inf"), f16)),
            ir.For(i, constant(0), n, 1, look),
            ir.For(j, constant(1), n, 2, Store(x, (j,), Constant(0.5, f16))),
        )
    )
    assert to_text(ir.Kernel("largest", (x,), (n,), 1, body)) == (
        """\
kernel largest[n multiple=4](x: inout f16[n]) workers=1 stage=parsed:
    local best: f16 = -inf
    for i in range(n):
        if x[i] > best:
            best = x[i]
        else:
            pass
    for i_1 in range(1, n, 2):
        x[i_1] = 0.5
"""
    )


def test_a_ring_looks_like_this() -> None:
    slot = Tensor("slot", f32, (2, 8), ir.SHARED)
    ring = ir.Ring("loads", (slot,), 2, "cp.async")
    k = Variable("k")
    steps = (ir.RingStep(name, ring, k) for name in ("acquire", "commit", "wait", "release"))
    loop = ir.For(k, constant(0), constant(4), 1, ir.Sequence(tuple(steps)))
    program = ir.Kernel("r", (), (), 8, ir.Sequence((ir.Allocate(slot), loop)), "pipelined")
    assert to_text(program) == (
        """\
kernel r() workers=8 stage=pipelined:
    shared slot: f32[2, 8]
    ring loads = (slot) stages=2 transport=cp.async
    for k in range(4):
        acquire loads[k]
        commit loads[k]
        wait loads[k]
        release loads[k]
"""
    )


def test_messages_show_parts_of_programs() -> None:
    i, x = Variable("i"), Tensor("x", f32, (4,), ir.SHARED)
    assert expression_text(Binary("*", Binary("+", i, constant(1)), i)) == "(i + 1) * i"
    assert statement_text(Store(x, (i,), Constant(0.1, f64))) == "x[i] = f64(0.1)"


def test_printing_never_fails() -> None:
    broken = Store(Tensor("x", f32, (4,), ir.SHARED), (), 17)  # type: ignore[arg-type]
    assert statement_text(broken) == "x[] = <17>"


@pytest.mark.parametrize("word", sorted(RESERVED))
def test_no_name_is_taken_for_a_word_of_the_language(word: str) -> None:
    i = Variable(word)
    x = Tensor(word, f32, (8,), ir.SHARED)
    each = ir.Each((i,), repeat(8), constant(0), Store(x, (i,), Read(x, (i,))))
    program = kernel(ir.Allocate(x), each)
    assert difference(program, parse(to_text(program))) is None


def test_every_word_of_the_grammar_may_be_a_name() -> None:
    words = {t.pattern.value for t in _parser().terminals if t.pattern.value.isidentifier()}
    assert len(words) > 40
    for word in sorted(words | DTYPES.keys() | {"min", "select", "range", "out", "multiple"}):
        x = Tensor(word, i64, (8,), ir.GLOBAL, role="inout")
        i = Variable(word)
        loop = ir.For(i, Read(x, (constant(1),)), constant(8), 1, Store(x, (i,), i))
        program = replace(kernel(loop, parameters=(x,)), name=word)
        assert difference(program, parse(to_text(program))) is None


def test_odd_names_become_identifiers() -> None:
    names = ["a b", "1st", "", "größe", "x", "x_1", "x"]
    values = [ir.Let(Variable(name), constant(i)) for i, name in enumerate(names)]
    program = replace(kernel(*values), name="my kernel", target='a "b"')
    text = to_text(program)
    assert [line.split()[1] for line in text.splitlines()[1:]] == [
        *("a_b", "_1st", "_", "größe", "x", "x_1", "x_2"),
    ]
    again = parse(text)
    assert (again.name, again.target) == ("my kernel", 'a "b"')
    assert same_program(program, again)


def test_a_long_sum_does_not_recurse() -> None:
    n = Variable("n")
    total: ir.Expression = n
    for i in range(5000):
        total = Binary("+-"[i % 2], total, constant(i))
    program = kernel(ir.Let(Variable("x"), total), parameters=(n,))
    assert difference(program, parse(to_text(program))) is None


def test_comparing_shared_operands_takes_no_exponential_time() -> None:
    def chain() -> ir.Kernel:
        n = Variable("n")
        value: ir.Expression = n
        for _ in range(3000):
            value = Binary("+", value, value)
        return kernel(ir.Let(Variable("x"), value), parameters=(n,))

    assert same_program(chain(), chain())


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


@settings(max_examples=400)
@given(st.sampled_from(TYPES).flatmap(lambda d: expressions(d, 4)), st.integers(0, 2))
def test_random_expressions_parse_back(expression: ir.Expression, how: int) -> None:
    program = holding(expression, how)
    text = to_text(program)
    again = parse(text)
    assert difference(program, again) is None, text
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


@settings(max_examples=300)
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


# --- differences ---


def _variants(node: Any) -> list[Any]:
    """The node with one of its attributes changed, for each that has an obvious other value."""
    changed = []
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if not field.init or field.name == "loc":
            continue
        other: Any = None
        match value:
            case bool():
                other = not value
            case int():
                other = value + 1
            case float():
                other = value + 1 if math.isfinite(value) else 0.0
            case str():
                other = value + "x"
            case tuple() if value and all(isinstance(n, int) for n in value):
                other = (*value[:-1], value[-1] + 1)
        if other is not None:
            changed.append(replace(node, **{field.name: other}))
    return changed


@pytest.mark.parametrize("build", PROGRAMS, ids=lambda build: build.__name__)
def test_any_changed_attribute_is_a_difference(build: Callable[[], ir.Kernel]) -> None:
    program = build()
    planted = 0
    for target in list(walk(program.body)):
        if isinstance(target, Variable):
            continue
        for variant in _variants(target):

            def swap(node: Any, old: Any = target, new: Any = variant) -> Any:
                return new if node is old else map_children(node, swap)

            mutant = replace(program, body=swap(program.body))
            assert difference(program, mutant) is not None
            planted += 1
    assert planted > 5


def test_differences_are_told() -> None:
    def told(first: str, second: str) -> str | None:
        return difference(parse(HEAD + first), parse(HEAD + second))

    assert told("    let y = n + 1\n", "    let z = n + 1\n") is None
    assert told("    let y = n + 1\n", "    let y = n + 2\n") == (
        "Binary.right: `1` against `2`, in `let y = n + 1` against `let y = n + 2`"
    )
    assert told("    let y = n + 1\n", "    let y = n - 1\n") == (
        "Binary.operator: '+' against '-', in `let y = n + 1` against `let y = n - 1`"
    )
    assert told("    let y = n\n    let z = n\n", "    let y = n\n    let z = y\n") == (
        "Let.value: `n` against `y`, in `let z = n` against `let z = y`"
    )
    assert told("    shared y: f32[4]\n", "    shared y: f32[5]\n") is not None
    assert told("    x[0, 0] = 0.0\n", "    x[0, 0] = -0.0\n") is not None
    assert told("    x[0, 0] = nan\n", "    x[0, 0] = nan\n") is None


def test_names_correspond_one_to_one() -> None:
    a, b = Variable("a"), Variable("b")

    def sums(*pair: Variable) -> ir.Kernel:
        return kernel(ir.Let(Variable("x"), Binary("+", *pair)), parameters=(a, b))

    assert difference(sums(a, b), sums(a, b)) is None
    assert difference(sums(a, b), sums(a, a)) is not None
    assert difference(sums(a, a), sums(a, b)) is not None
    assert difference(sums(a, b), sums(b, a)) is not None


# --- errors in a text ---


@pytest.mark.parametrize(
    ("body", "line", "column", "message"),
    [
        ("    y[0] = 1\n", 2, 5, "nothing is called y here"),
        ("    let y = z + 1\n", 2, 13, "nothing is called z here"),
        ("    x[n] = 1.0\n", 2, 5, "x has rank 2, but 1 index here"),
        ("    x[0, 0] = x\n", 2, 15, "x has rank 2, but no index here"),
        ("    x[0, 0, 0] = 1.0\n", 2, 5, "x has rank 2, but 3 indices here"),
        ("    let n = 1\n", 2, 9, "n is bound already"),
        ("    let y 3\n", 2, 11, "expected ':', '=' or 'multiple', not '3'"),
        ("    let y = 3 +\n", 2, 16, "expected an expression, not the end of the line"),
        ("    let y = 3 $ 4\n", 2, 15, "expected '.', an operator or the end of the line, not '$'"),
        ("    let y = 1 < n < 3\n", 2, 19, "comparisons don't chain"),
        ("    let y = 1 + not n\n", 2, 17, "parenthesize this 'not'"),
        ("    let y = exp(n, n)\n", 2, 13, "exp takes 1 operands, not 2"),
        ("    let y = foo(n)\n", 2, 13, "there is no function foo"),
        ("    let y: f33 = 1\n", 2, 12, "there is no type f33"),
        ("    let y: i8 = 300\n", 2, 17, "300 is outside the range of i8"),
        ("    let y = n + 1.5\n", 2, 17, "1.5 is no i64"),
        ("    let y = f32(n)\n", 2, 13, "f32(…) takes a number"),
        ("    let y = x.to(i64)\n", 2, 13, "x has rank 2, but no index here"),
        (
            "    each (i, j) in spatial(4):\n        pass\n",
            2,
            10,
            "the names are 2, the dimensions 1",
        ),
        ("    each i in spatial(4) + 1:\n        pass\n", 2, 26, "expected ':' or 'on', not '+'"),
        (
            "    each i in spatial(4, order=(3,)):\n        pass\n",
            *(2, 15, "in the mapping: column 1: spatial(4) needs each dimension"),
        ),
        ("    for i in range(n, 8, n):\n        pass\n", 2, 26, "a step is an integer constant"),
        ("    do shuffle.sideways(n)\n", 2, 8, "there is no operation 'shuffle.sideways'"),
        ("    let y = do cp.async.wait(0)\n", 2, 9, "cp.async.wait has no result"),
        ("    wait r[0]\n", 2, 10, "nothing is called r here"),
        ("    wait x[0]\n", 2, 10, "x is a tensor, not a ring"),
        ("    shared y: f32[8] = n\n", 2, 24, "a tensor is filled with a constant"),
        ("    if n < 1:\n    pass\n", 3, 5, "expected an indented block, not 'pass'"),
        (
            "    if n < 1:\n        pass\n      pass\n",
            4,
            1,
            "this line is indented like none above",
        ),
        (
            "    pass\n        pass\n",
            3,
            9,
            "expected a statement or the end of the block, not a deeper",
        ),
        ("    scope:\n        let y = 1\n    let z = y\n", 4, 13, "nothing is called y here"),
        ('    print "{}\n', 2, 11, "expected a string, not '\"'"),
        (
            "    let y = (n + 1\n",
            2,
            19,
            "expected ')', '.' or an operator, not the end of the block",
        ),
        ("", 1, 61, "expected an indented block, not the end of the text"),
        ("    table t = [1, -, 2]\n", 2, 15, "a table is a list of integers"),
        ('    snippet max(z) = z as "mov.b64 %0, %1;"\n', 2, 13, "max is a function already"),
        (
            '    snippet s(z) = z as "mov.b64 %0, %1;"\n    let y = s(1, 2)\n',
            3,
            13,
            "s takes 1 operands, not 2",
        ),
        (
            '    snippet s(z) = z as "mov.b64 %0, %1;"\n    let y = s\n',
            3,
            13,
            "s is a snippet, not",
        ),
    ],
)
def test_errors_say_what_and_where(body: str, line: int, column: int, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        parse(HEAD + body, file="broken.txt")
    error = caught.value
    assert error.message.startswith(message)
    assert (error.location.file, error.location.line, error.location.column) == (
        *("broken.txt", line, column),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected 'kernel', not the end of the text"),
        ("kernel f() stage=parsed:\n    pass\n", "a kernel says its number of workers: workers=…"),
        ("kernel f() workers=1 stage=late:\n    pass\n", "there is no stage 'late'"),
        ("kernel f() workers=1 workers=2:\n    pass\n", "this is said twice"),
        ("kernel f(a: f32[m]) workers=1:\n    pass\n", "nothing is called m here"),
        (
            f"kernel f(a: f32[{'7' * 5000}]) workers=1:\n    pass\n",
            "a number has 1000 digits at most",
        ),
        (f"kernel f() workers={'7' * 5000}:\n    pass\n", "a number has 1000 digits at most"),
    ],
)
def test_errors_in_the_header(text: str, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        parse(text)
    assert caught.value.message == message
    assert caught.value.location.file == "<ir>"


def test_comments_and_blank_lines_are_skipped() -> None:
    plain = HEAD + "    x[0, 0] = 1.0\n    if n < 1:\n        pass\n"
    spaced = (
        f"# first\n\n{HEAD}\n  # odd\n    x[0, 0] = 1.0  # why\n\n    if n < 1:\n\n        pass\n#"
    )
    assert same_program(parse(plain), parse(spaced))
