"""The text of a program parses back, and errors in it say what is wrong, and where."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from taskc.arrays.packed import pack
from taskc.errors import CompileError
from taskc.ir import calls_text, nodes as ir, parse_program, to_text
from taskc.ir.mapping import repeat
from taskc.ir.types import f16, f32, i32, i64
from taskc.programs.ir import Call, Computation, Loop, Program, digest_of, kernels_of
from taskc.programs.verify import verify_program

TEXT = """\
program whole[n multiple=4, m](
    x: f32[n, m],
    left: inout f16[8, 8].laid(repeat(4, 8).repeat(2, 1)),
    few: i8,
    rate: f64,
    flag: bool,
    total: out f32[()],
    out: out f32[m],
):
    temporary temporary: f32[(n + 3) // 4, m * 2, n % 3 - -1]
    temporary padded: f16[8, 5].laid(repeat(2, 6).repeat(4, 1))
    temporary nothing: f32[0]
    view x_1: f32[n * m] of x
    view single: f32[1] of total
    fill(n, (2 + m * n).to(i8), few, -1, out=temporary)
    scale(x_1, left, 0.1, f32(inf), rate, True, out=(padded, nothing))
    fill_1()
    fill(n // 4, -3, few, m, out=temporary)
    store(flag, out=total)
    store(flag, out=out)

kernel fill[n](size: i64, few: i8, other: i8, more: i64, y: out f32[n]) workers=4 stage=parsed:
    pass

kernel scale(
    x: f32[8],
    left: inout f16[8, 8],
    third: f64,
    rate: f32,
    wide: f64,
    flag: bool,
    high: out f16[8, 5],
    low: out f32[0],
) workers=32 stage=lean target=sm_80:
    high[0] = f64(3.0).to(f16)

kernel fill_1() workers=1 stage=parsed:
    pass

kernel store(flag: bool, y: out f32[()]) workers=1 stage=parsed:
    y = 1.0
"""
HEAD = "program p[n](x: f32[n], a: i32, y: out f32[n]):\n"
KERNEL = """\

kernel f[m](u: f32[m], by: i32, v: out f32[m]) workers=4:
    pass
"""


# What a text of a parsed program lacks: the infinity's type is the parameter's.
WHOLE = TEXT.replace("f32(inf)", "inf")


def test_all_that_programs_have_is_read_back() -> None:
    program = parse_program(TEXT)
    assert to_text(program) == WHOLE
    assert to_text(parse_program(WHOLE)) == WHOLE
    n, m = program.dimensions
    assert (n.multiple, m.multiple) == (4, 1)
    x, left, _, rate, flag, total, out = program.parameters
    temporary, padded, _nothing = program.temporaries
    first_view, second_view = program.views
    x_1, seen, of_total = first_view.tensor, first_view.of, second_view.of
    assert (seen, of_total, total.role, x_1.shape[0].dtype) == (x, total, "out", i64)  # type: ignore[union-attr]
    assert padded.layout is not None
    assert (padded.layout.shape, padded.shape) == ((8, 6), (8, 5))
    first, second, third, fourth, *_ = program.calls
    assert list(kernels_of(program)) == ["fill", "scale", "fill_1", "store"]
    assert first.callee is fourth.callee
    assert first.arguments[0] is n
    assert isinstance(first.arguments[1], ir.Cast)
    assert first.arguments[1].operand.dtype is i64
    assert first.arguments[4] is temporary
    assert second.arguments[1] is left
    assert second.arguments[3] == ir.Constant(float("inf"), f32)
    assert second.arguments[4] is rate
    assert third.arguments == ()
    assert program.calls[-1].arguments == (flag, out)


def test_what_is_read_has_its_place() -> None:
    lines = TEXT.splitlines()
    program = parse_program(TEXT, file="whole.txt")
    places = [
        program.loc, *(item.loc for item in program.parameters), program.calls[1].loc,
        *(item.loc for item in program.temporaries), program.views[1].tensor.loc,
        program.calls[1].callee.loc, kernels_of(program)["scale"].body.loc,
    ]  # fmt: skip
    assert [place.file for place in places] == ["whole.txt"] * len(places)
    assert [place.text for place in places] == [lines[place.line - 1] for place in places]
    found = [place.text[place.column - 1 : place.end_column - 1] for place in places]
    assert found[0] == "whole"
    assert found[8] == lines[15].strip()
    assert found[-3:] == ["single", "scale", "high[0] = f64(3.0).to(f16)"]


LOOPS = """\
program loops[n](x: f32[n, 8], y: out f32[n, 8], z: out f32[n, 3]):
    constant w: f32[8] = "4f05df05f8da9356bd66425351f166a5"
    constant one: f32[()] = "47dc540c94ceb704a23875c11273e16b"
    constant tiled: f32[2, 3].laid(repeat(2, 3, order=(1, 0))) = "2b3db5f4ad4f0b4a4d5d7b8a4b2f3bb5"
    temporary h: f32[8]
    start(w, one, out=h)
    for t in steps(n):
        view x_1: f32[8] of x at t * 8
        view y_1: f32[8] of y at (n - 1 - t) * 8
        add(x_1, h, 1, out=y_1)
        for s in steps(3):
            view z_1: f32[()] of z at t * 3 + s
            mark(out=z_1)
    for t_1 in steps(4):
        pass
    use(tiled)

computation start(w: f32[8], one: f32[()], out: out f32[8]):
    out[i] = w[i] + one

computation add[t](x: f32[8], h: f32[8], by: i32, out: out f32[8]):
    out[i] = select(i < t, x[i] + h[7 - i], by.to(f32))

computation "mark"[s, t](out: out f32[()]):
    out[] = (s + t).to(f32)

kernel use(w: f32[2, 3].laid(repeat(2, 3, order=(1, 0)))) workers=4 stage=parsed:
    pass
"""


def constants() -> dict[str, Any]:
    tiled = pack(np.ones((2, 3), np.float32), f32[2, 3].laid(repeat(2, 3, order=(1, 0))))
    arrays = [np.ones(8, np.float32), np.array(2, np.float32), tiled]
    return {digest_of(array): array for array in arrays}


def with_digests(text: str) -> str:
    digests = iter(constants())
    return re.sub(r'"[0-9a-f]{32}"', lambda _: f'"{next(digests)}"', text)


def test_constants_computations_and_loops_are_read_back() -> None:
    text = with_digests(LOOPS)
    program = parse_program(text, constants=constants())
    assert to_text(program) == text.replace('"mark"', "mark")
    verify_program(program)
    (n,) = program.dimensions
    _, loop, other, _ = program.calls
    assert isinstance(loop, Loop)
    assert isinstance(other, Loop)
    add, inner = loop.body
    assert isinstance(add, Call)
    assert isinstance(inner, Loop)
    assert (loop.count, inner.count, other.body) == (n, 3, ())
    assert add.callee.dimensions == (loop.variable,)
    (mark,) = inner.body
    assert isinstance(mark, Call)
    assert mark.callee.dimensions == (inner.variable, loop.variable)
    assert isinstance(mark.callee, Computation)
    assert mark.callee.variables == ()
    assert [view.offset == 0 for view in program.views] == [False] * 3
    assert [memory.size for _, memory in program.constants] == [8, 1, 6]
    assert loop.loc.text == "    for t in steps(n):"


COMPUTATION = """
computation c[n](x: f32[n], s: i32, out: out f32[n]):
    out[i] = x[i] * s.to(f32)
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "message"),
    [
        ("c[n]", "c[k]", 4, 15, "the program has no dimension and no loop of k"),
        ("c[n]", "c", 4, 22, "nothing is called n here"),
        ("out: out f32[n]", "out: f32[n]", 4, 13, "a computation has inputs and scalars, and last"),
        ("x: f32[n], s", "x: inout f32[n], s", 4, 13, "a computation has inputs and scalars, and last"),
        ("x: f32[n], s: i32, out: out f32[n]", "out: out f32[n], x: f32[n], s: i32", 4, 13, "a computation has"),
        ("out[i] =", "x[i] =", 5, 5, "a computation writes its output, out"),
        ("out[i] =", "out[i, j] =", 5, 5, "out has rank 1, not 2"),
        ("out[i] =", "out[] =", 5, 5, "out has rank 1, not 0"),
        ("out[i] =", "out[i + 1] =", 5, 11, "expected ',', ':', ']' or 'multiple', not '+'"),
        ("out[i] =", "out[x] =", 5, 9, "x is bound already"),
        ("x[i] * s.to(f32)", "s", 5, 14, "out is of f32, and this of i32"),
        ("x[i] * s.to(f32)", "out[i]", 5, 14, "out is written, and not read"),
        ("x[i] * s.to(f32)", "y[i]", 5, 14, "nothing is called y here"),
        ("x[i] * s.to(f32)", "x[i]\n    pass", 6, 5, "expected the end of the block, not 'pass'"),
        ("    out[i] =", "    let t = x[j]\n    out[i] =", 5, 15, "nothing is called j here"),
        ("    out[i] =", "    let x = s\n    out[i] =", 5, 9, "x is bound already"),
        ("    out[i] =", "    let t = s\n    out[t] =", 5, 9, "t is bound already"),
        ("out[i] = x[i]", "let t = s\n    out[i] = t[i]", 6, 14, "t is a variable, not a tensor"),
        ("out[i] = x[i]", "let t = -s\n    out[i] = t[i]", 6, 14, "t is an expression, not a tensor"),
        (COMPUTATION, COMPUTATION * 2, 7, 13, "two callees are called c"),
    ],
)  # fmt: skip
def test_errors_in_computations(old: str, new: str, line: int, column: int, message: str) -> None:
    text = HEAD + "    c(x, a, out=y)\n" + COMPUTATION
    parse_program(text)
    with pytest.raises(CompileError) as caught:
        parse_program(text.replace(old, new))
    error = caught.value
    assert error.message.startswith(message)
    assert (error.location.line, error.location.column) == (line, column)


@pytest.mark.parametrize(
    ("body", "line", "column", "message"),
    [
        ('    constant w: f32[8] = "no"\n', 2, 26, "the elements of w aren't given"),
        ('    constant w: f32[9] = "eight"\n', 2, 26, "w is a f32[9], and what is given is an array of float32[8]"),
        ('    constant w: f16[8] = "eight"\n', 2, 26, "w is a f16[8], and what is given is an array of float32[8]"),
        ('    constant w: f32[n] = "eight"\n', 2, 17, "the extents of a constant are numbers"),
        (
            '    constant w: f32[8].laid(repeat(8)) = "eight"\n', 2, 42,
            "w is a f32[8].laid(repeat(8)), and what is given is an array without a layout",
        ),
        ("    for n in steps(3):\n        pass\n", 2, 9, "n is bound already"),
        ("    for t in steps(3):\n        pass\n    for t in steps(3):\n        pass\n", 4, 9, "t is bound already"),
        ("    for t in steps(t):\n        pass\n", 2, 20, "nothing is called t here"),
        ("    for t in steps(a):\n        pass\n", 2, 20, "this is no size"),
        ("    for t in range(3):\n        pass\n", 2, 14, "expected 'steps', not 'range'"),
        ("    for t in steps(3):\n        pass\n    temporary u: f32[t]\n", 4, 22, "nothing is called t here"),
        ("    view v: f32[1] of x at a\n", 2, 28, "this is no size"),
        ("    view v: f32[1] of x at n / 2\n", 2, 28, "this is no size"),
    ],
)  # fmt: skip
def test_errors_in_constants_and_loops(body: str, line: int, column: int, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        parse_program(HEAD + body, constants={"eight": np.zeros(8, np.float32)})
    error = caught.value
    assert error.message.startswith(message)
    assert (error.location.line, error.location.column) == (line, column)


def kernel(name: str, *parameters: ir.Tensor | ir.Variable) -> ir.Kernel:
    return ir.Kernel(name, parameters, (), 1, ir.Sequence(()))


@pytest.mark.parametrize(
    "names",
    [
        ("view", "temporary", "pass"),
        ("copy", "copy", "copy_1"),
        ("a b", "a-b", "for"),
        ("constant", "computation", "steps"),
        ("program",),
    ],
)
def test_no_name_of_a_kernel_is_misread(names: tuple[str, ...]) -> None:
    program = Program("calls", (), (), (), tuple([Call(kernel(name), ()) for name in names]))
    text = to_text(program)
    again = parse_program(text)
    assert to_text(again) == text
    assert len(kernels_of(again)) == len(names)


def test_no_name_of_a_parameter_is_misread() -> None:
    named = [ir.Variable(name, f32) for name in ("nan", "inf", "True", "out", "f16", "exp", "not")]
    taking = kernel("takes", *[ir.Variable(item.name, f32) for item in named])
    program = Program("calls", tuple(named), (), (), (Call(taking, tuple(named)),))
    again = parse_program(to_text(program))
    assert to_text(again) == to_text(program)
    assert again.calls[0].arguments == again.parameters


def test_numbers_keep_the_types_of_their_parameters() -> None:
    types = (f16, i32, f32)
    taking = kernel("takes", *[ir.Variable("x", dtype) for dtype in types])
    values = tuple([ir.Constant(3, dtype) for dtype in types])
    program = Program("calls", (), (), (), (Call(taking, values),))
    assert parse_program(to_text(program)).calls[0].arguments == values


@pytest.mark.parametrize(
    ("body", "line", "column", "message"),
    [
        ("    g(x, a, out=y)\n", 2, 5, "there is no kernel g"),
        ("    f(z, a, out=y)\n", 2, 7, "nothing is called z here"),
        ("    f(x, a, out=z)\n", 2, 17, "nothing is called z here"),
        ("    f(x, out=y)\n", 2, 5, "f takes 2 inputs, not 1"),
        ("    f(x, a, a, out=y)\n", 2, 5, "f takes 2 inputs, not 3"),
        ("    f(x, a)\n", 2, 5, "f takes 1 output, not 0"),
        ("    f(x, a, out=(y, y))\n", 2, 5, "f takes 1 output, not 2"),
        ("    f(x, a, v=y)\n", 2, 13, "inputs come in order, outputs as out=…, not v=…"),
        ("    f(out=y, x, a)\n", 2, 7, "outputs come last, as out=…"),
        ("    f(a, a, out=y)\n", 2, 7, "a is a variable, not a tensor"),
        ("    f(x[0], a, out=y)\n", 2, 7, "u is a tensor, which has a name"),
        ("    f(x, n, out=y)\n", 2, 10, "by is of type i32, and this of i64"),
        ("    f(x, 1.5, out=y)\n", 2, 10, "1.5 is no i32"),
        ("    f(x, a + 1, out=y)\n", 2, 10, "this is no size"),
        ("    f(x, (-n).to(i32), out=y)\n", 2, 10, "this is no size"),
        ("    f(x, a.to(i64).to(i32), out=y)\n", 2, 10, "this is no size"),
        ("    f(x, x[0].to(i32), out=y)\n", 2, 10, "this is no size"),
        ("    temporary t: f32[a]\n", 2, 18, "this is no size"),
        ("    temporary t: f32[n / 2]\n", 2, 18, "this is no size"),
        ("    temporary t: f32[n + i32(1)]\n", 2, 18, "this is no size"),
        ("    temporary t: f32[-1]\n", 2, 18, "an extent of a tensor can't be negative: -1"),
        ("    temporary t: f32[8].at(0)\n", 2, 18, "a tensor of a program has a shape and perhaps"),
        ("    temporary t: f32[8].laid(repeat(2, 4))\n", 2, 18, "a layout of rank 2 can't lay out"),
        (
            "    temporary t: f32[8].laid(spatial(8))\n",
            2,
            18,
            "a memory layout is a mapping with 1",
        ),
        ("    temporary y: f32[8]\n", 2, 15, "y is bound already"),
        ("    temporary t f32[8]\n", 2, 17, "expected ':', not 'f32'"),
        ("    view z: f32[n] of a\n", 2, 23, "a is a variable, not a tensor"),
        ("    view z: f16[n] of x\n", 2, 13, "x is of f32, and its view too"),
        ("    view z: f32[n] of x\n    view w: f32[n] of z\n", 3, 23, "z is a view, too"),
        ("    view z: f32[n] at x\n", 2, 20, "expected '.' or 'of', not 'at'"),
        ("    grid i in 8 by 8:\n        pass\n", 2, 10, "expected '(', not 'i'"),
        ("    f(x, a, out=y) x\n", 2, 20, "expected 'apart' or the end of the line, not 'x'"),
        ("    pass\n", 4, 8, "no call is one of f"),
    ],
)
def test_errors_say_what_and_where(body: str, line: int, column: int, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        parse_program(HEAD + body + KERNEL, file="broken.txt")
    error = caught.value
    assert error.message.startswith(message)
    place = error.location
    assert (place.file, place.line, place.column) == ("broken.txt", line, column)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected 'program', not the end of the text"),
        (KERNEL, "expected 'program', not 'kernel'"),
        ("program p():\n", "expected an indented block, not the end of the text"),
        ("program p() workers=4:\n    pass\n", "expected ':', not 'workers'"),
        ("program p[n: i32]():\n    pass\n", "a dimension is an i64, a multiple of 1 or more"),
        (
            "program p[n multiple=0]():\n    pass\n",
            "a dimension is an i64, a multiple of 1 or more",
        ),
        ("program p(x: f32[8].reshape(2, 4)):\n    pass\n", "a tensor of a program has a shape"),
        ("program p(x: f32[8], x: f32[8]):\n    pass\n", "x is bound already"),
        (f"program p():\n    f()\n{KERNEL}{KERNEL}", "two callees are called f"),
        (
            f"program p():\n    f()\n{KERNEL}x",
            "expected 'computation', 'kernel', 'unrounded' or the end of the text, not 'x'",
        ),
        (f"program p():\n    f()\n{KERNEL.replace('pass', 'x = y')}", "nothing is called x here"),
    ],
)
def test_errors_in_and_below_the_header(text: str, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        parse_program(text)
    assert caught.value.message.startswith(message)
    assert caught.value.location.file == "<ir>"


WORDS = re.findall(r"\w+|[^\w\s]|\s+", TEXT)
PLACES = [place for place, word in enumerate(WORDS) if word.isidentifier() or word.isdecimal()]


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(PLACES),
            st.sampled_from([*sorted(set(WORDS)), "", "-", "nan", "'", "\u00b2", "f32", "99999999999999999999"]),
        ),
        min_size=1,
        max_size=3,
    )
)  # fmt: skip
def test_a_text_with_other_words_is_read_back_or_refused(changes: list[tuple[int, str]]) -> None:
    words = list(WORDS)
    for position, word in changes:
        words[position] = word
    try:
        program = parse_program("".join(words))
    except CompileError:
        return
    text = to_text(program)
    assert to_text(parse_program(text)) == text
    assert text.startswith(calls_text(program))
