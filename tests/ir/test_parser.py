"""Errors in a text: what they say, and where."""

from __future__ import annotations

import pytest

from taskc.errors import CompileError
from taskc.ir import (
    parse,
    same_program,
)
from taskc.ir.parser_expressions import _parser
from tests.ir.test_text import HEAD


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


def test_texts_that_are_read_by_turns() -> None:
    """As two threads do: each text has its own depth."""
    body = (
        "    if n == 0:\n        for i in range(n):\n            x[i, 0] = 1.0\n    x[0, 0] = 2.0\n"
    )
    other = "    x[\n0, 0] = 1.0\n"
    reading = [_parser().parse_interactive(HEAD + text, "kernel_text") for text in (body, other)]
    tokens = [one.iter_parse() for one in reading]
    for _ in range(100):
        for one in tokens:
            next(one, None)
    assert [one.feed_eof() for one in reading] == [
        _parser().parse(HEAD + text, "kernel_text") for text in (body, other)
    ]
