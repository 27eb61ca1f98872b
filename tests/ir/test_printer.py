"""What programs look like as text, and how their names are made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taskc.ir import (
    expression_text,
    nodes as ir,
    parse,
    program_difference,
    same_program,
    statement_text,
    to_text,
)
from taskc.ir.mapping import repeat, spatial
from taskc.ir.nodes import Binary, Constant, Read, Store, Tensor, Variable, constant
from taskc.ir.parser_expressions import _parser
from taskc.ir.text_rules import RESERVED
from taskc.ir.types import DTYPES, f16, f32, f64, i64
from tests.ir.test_text import kernel


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
    assert program_difference(program, parse(to_text(program))) is None


def test_every_word_of_the_grammar_may_be_a_name() -> None:
    words = {t.pattern.value for t in _parser().terminals if t.pattern.value.isidentifier()}
    assert len(words) > 40
    for word in sorted(words | DTYPES.keys() | {"min", "select", "range", "out", "multiple"}):
        x = Tensor(word, i64, (8,), ir.GLOBAL, role="inout")
        i = Variable(word)
        loop = ir.For(i, Read(x, (constant(1),)), constant(8), 1, Store(x, (i,), i))
        program = replace(kernel(loop, parameters=(x,)), name=word)
        assert program_difference(program, parse(to_text(program))) is None


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
    assert program_difference(program, parse(to_text(program))) is None
