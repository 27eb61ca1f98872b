"""Parts of tensors: which they are, and what is known to have been written of a tensor by calls on its parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32
from taskc.errors import CompileError
from taskc.ir import parse_program, to_text
from taskc.programs.verify import verify_program
from tests.lang.notebook import cell, indented

m, n, q = tc.dim("m"), tc.dim("n"), tc.dim("q")


@tc.kernel(workers=4)
def doubled(x: f32[q], y: tc.out[f32[q]]):
    for start in tc.tiles(q, by=4):
        for i in tc.spatial(4):
            if start + i < q:
                y[start + i] = x[start + i] * 2


@tc.kernel(workers=4)
def halved(x: tc.inout[f32[q]]):
    for start in tc.tiles(q, by=4):
        for i in tc.spatial(4):
            if start + i < q:
                x[start + i] = x[start + i] / 2


@tc.kernel(workers=4)
def moved(x: tc.inout[f32[q]], z: f32[q]):
    for start in tc.tiles(q, by=4):
        for i in tc.spatial(4):
            if start + i < q:
                x[start + i] = z[start + i]


def numbers(*shape: int) -> Any:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def checked(program: tc.ProgramDefinition) -> tc.ProgramDefinition:
    """The program; it keeps its rules, and its text is one that is held to the same."""
    verify_program(program.ir)
    text = to_text(program.ir)
    again = tc.ProgramDefinition.of(parse_program(text))
    assert to_text(again.ir) == text
    return program


# --- parts -------------------------------------------------------------------------------------------


def test_parts_are_those_of_numpy() -> None:
    shapes: list[Any] = []

    @tc.program
    def program(
        x: f32[6, 4], a: tc.out[f32[4]], b: tc.out[f32[4]], c: tc.out[f32[2]], d: tc.out[f32[8]]
    ):
        doubled(x[2], out=a)
        doubled(x[-1], out=b)
        doubled(x[3, 1:3], out=c)
        doubled(x[1:][1:-2].reshape(4, 2)[0:4].reshape(8), out=d)
        shapes.extend([x[:].shape, x[2:2].shape, x[-3:,].shape, x[1:3].shape, x[5, 4:].shape])

    x = numbers(6, 4)
    a, b, c, d = checked(program)(x)
    assert a.tolist() == (x[2] * 2).tolist()
    assert b.tolist() == (x[-1] * 2).tolist()
    assert c.tolist() == (x[3, 1:3] * 2).tolist()
    assert d.tolist() == (x[2:4] * 2).reshape(8).tolist()
    assert shapes == [(6, 4), (0, 4), (3, 4), (2, 4), (0,)]


def test_parts_with_sizes_as_bounds() -> None:
    @tc.program
    def program(x: f32[m, 3], y: f32[n], a: tc.out[f32[n * 3]], b: tc.out[f32[m * 3]]):
        z = tc.empty(f32[m + n, 3])
        doubled(x.reshape(m * 3), out=z[n:].reshape(m * 3))
        tc.compute((n, 3), lambda i, j: y[i], out=z[:n])
        doubled(z[:n].reshape(n * 3), out=a)
        doubled(z[n:].reshape(m * 3), out=b)

    x = numbers(5, 3)
    a, b = checked(program)(x[2:], numbers(2))
    assert a.tolist() == [0, 0, 0, 2, 2, 2]
    assert b.tolist() == (x[2:] * 4).reshape(-1).tolist()


def test_parts_of_temporaries_constants_and_elements() -> None:
    table = numbers(3, 4)

    def body(x: Any) -> Any:
        t = doubled(x)
        w = tc.constant(table)
        last = t[-1]
        part = w[1:][1][2:]
        return tc.compute(2, lambda i: part[i] + last[()])

    assert tc.trace("p", {"x": f32[4]}, body)(numbers(4)).tolist() == [16, 17]


def test_a_program_on_parts_in_a_program() -> None:
    @tc.program
    def inner(x: f32[n, 3], y: tc.out[f32[n, 3]], z: tc.out[f32[3]]):
        flat, made = x.reshape(n * 3), y.reshape(n * 3)
        w = tc.constant(np.float32([1, 2, 3]))
        first = flat[0:0]
        tc.compute(n * 3, lambda i: flat[i] + float(first.shape[0]), out=made)
        tc.compute(3, lambda i: w[i] + n.to(f32), out=z)

    @tc.program
    def outer(x: f32[m + 2, 3], y: tc.out[f32[m, 3]], z: tc.out[f32[2, 3]]):
        rest, _ = inner(x[2:], y=y)
        inner(x[:2], out=(tc.empty(f32[2, 3]), z[1]))
        inner(rest, out=(tc.empty(f32[m, 3]), z[0]))

    verify_program(outer.ir)
    assert len(outer.ir.constants) == 1
    x = numbers(5, 3)
    y, z = outer(x, out=(np.empty((3, 3), np.float32), np.empty((2, 3), np.float32)))
    assert y.tolist() == x[2:].tolist()
    assert z.tolist() == [[4, 5, 6], [3, 4, 5]]


# --- what is written ---------------------------------------------------------------------------------


def test_parts_that_meet_are_the_whole() -> None:
    @tc.program
    def concatenated(x: f32[n], z: f32[m], y: tc.out[f32[n + m + 1]]):
        t = tc.empty(f32[n + m + 1])
        doubled(z, out=t[n + 1 :])
        doubled(x, out=t[:n])
        doubled(x[0:0], out=t[0:0])
        tc.compute(1, lambda i: f32(-1.0), out=t[n : n + 1])
        doubled(t, out=y)

    found = checked(concatenated)(numbers(3), numbers(2))
    assert found.tolist() == [0, 4, 8, -2, 0, 4]


def test_parts_whose_order_nobody_knows_are_kept() -> None:
    @tc.program
    def program(x: f32[n], z: f32[m], y: tc.out[f32[m]], u: tc.out[f32[n]]):
        t = tc.empty(f32[n + m])
        doubled(z, out=t[n:])
        doubled(x, out=t[m:])
        doubled(t[n:], out=y)
        doubled(t[m:], out=u)

    y, u = checked(program)(numbers(1), numbers(2))
    assert (y.tolist(), u.tolist()) == ([0, 0], [0])


def test_outputs_are_written_in_parts() -> None:
    @tc.program
    def program(x: f32[n, 3], z: f32[3], y: tc.out[f32[n + 1, 3]]):
        tc.compute(3, lambda i: z[i], out=y[n])
        tc.compute((n, 3), lambda i, j: x[i, j] + 1.0, out=y[:n])
        halved(y[n])
        halved(y[:n].reshape(n * 3))

    x = numbers(2, 3)
    assert checked(program)(x, numbers(3)).tolist() == [[0.5, 1, 1.5], [2, 2.5, 3], [0, 0.5, 1]]


def test_traced_outputs_are_filled_in_place() -> None:
    def body(x: Any, z: Any) -> Any:
        y = tc.empty(f32[m + n])
        doubled(x, out=y[:m])
        doubled(z, out=y[m:])
        return y

    program = checked(tc.trace("concatenated", {"x": f32[m], "z": f32[n]}, body))
    assert program.ir.temporaries == ()
    assert program(numbers(2), numbers(3)).tolist() == [0, 2, 0, 2, 4]

    def twice(x: Any) -> Any:
        y = doubled(x)
        doubled(x, out=y)
        return y

    copied = tc.trace("copied", {"x": f32[m]}, twice)
    assert len(copied.ir.calls) == 3
    assert copied(numbers(2)).tolist() == [0, 2]


def test_a_part_is_read_while_another_is_written() -> None:
    @tc.program
    def program(x: f32[n], y: tc.out[f32[n * 2]]):
        doubled(x, out=y[:n])
        doubled(y[:n], out=y[n:])
        moved(y[n:], y[:n])

    assert checked(program)(numbers(3)).tolist() == [0, 2, 4, 0, 2, 4]


HEADER = """\
m, n, q = tc.dim("m"), tc.dim("n"), tc.dim("q")
@tc.program
def p(x: f32[n], z: f32[m], g: f32[4, 3], y: tc.out[f32[n + m]], u: tc.inout[f32[n]], s: i32):
"""


@pytest.mark.parametrize(
    ("body", "line", "part", "message"),
    [
        ("doubled(x, out=y[:n])", 3, "", "calls write parts of the output 'y' of program 'p', and surely no more"),
        (
            "doubled(x, out=y[:n])\ndoubled(y, out=tc.empty(f32[n + m]))", 5, "doubled(y, out=tc.empty(f32[n + m]))",
            "doubled(): argument 'x' is read, and calls before have written only parts of the output 'y'",
        ),
        (
            "t = tc.empty(f32[n + m])\ndoubled(x, out=t[:n])\ndoubled(t[m:], out=u)", 6, "doubled(t[m:], out=u)",
            "doubled(): argument 'x' is read, and calls before have written only parts of 't'",
        ),
        (
            "doubled(x, out=y[:n])\ndoubled(x, out=y[m:])", 5, "doubled(x, out=y[m:])",
            "doubled(): output 'y' is written, and the output 'y' has been written before",
        ),
        (
            "doubled(x, out=y[:n])\nmoved(y[:0], y[:n])", 5, "moved(y[:0], y[:n])",
            "moved(): argument 'z' must be f32[q] with q = 0 (from 'x'), not f32[n]",
        ),
        (
            "t = doubled(g.reshape(12))\nmoved(t[2:8], t[:6])", 5, "moved(t[2:8], t[:6])",
            "moved(): argument 'x' is written, and 't' is also given for 'z'",
        ),
        (
            "doubled(x, out=x[0:n])", 4, "doubled(x, out=x[0:n])",
            "doubled(): output 'y' is written, and 'x' is an input of program 'p'",
        ),
        (
            "doubled(x, out=tc.constant(np.zeros(3, np.float32))[:])", 4, None,
            "doubled(): output 'y' must be f32[q] with q = n (from 'x'), not f32[3]",
        ),
        (
            "w = tc.constant(np.zeros(3, np.float32))\ndoubled(g[0], out=w[:])", 5, "doubled(g[0], out=w[:])",
            "doubled(): output 'y' is written, and 'w' is constant",
        ),
        ("x[n]", 4, "x[n]", "n isn't surely a place on axis 0 of 'x', of n"),
        ("x[0]", 4, "x[0]", "0 isn't surely a place on axis 0 of 'x', of n"),
        ("g[4]", 4, "g[4]", "4 isn't surely a place on axis 0 of 'g', of 4"),
        ("g[-5]", 4, "g[-5]", "-1 isn't surely a place on axis 0 of 'g', of 4"),
        ("g[0, 2:4]", 4, "g[0, 2:4]", "4 isn't surely a place on axis 1 of 'g', of 3"),
        ("g[3:2]", 4, "g[3:2]", "this part of 'g' ends before it begins"),
        ("g[::-1]", 4, "g[::-1]", "a step is a constant of at least 1, and this is -1"),
        ("g[0, 0, 0]", 4, "g[0, 0, 0]", "'g' has 2 dimensions, and 3 are given"),
        ("g[s]", 4, "g[s]", "a place in a tensor is an integer or a size, not the scalar 's': i32"),
        ("g[:s]", 4, "g[:s]", "a place in a tensor is an integer or a size, not the scalar 's': i32"),
        ("g[True]", 4, "g[True]", "a place in a tensor is an integer or a size, not True"),
        ("g[None]", 4, "g[None]", "a place in a tensor is an integer or a size, not None"),
        ("g[0.5:]", 4, "g[0.5:]", "a place in a tensor is an integer or a size, not 0.5"),
        ("g[0] = 1.0", 4, "g[0]", "'g' is no memory to write to"),
    ],
)  # fmt: skip
def test_refused(body: str, line: int, part: str | None, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        cell(HEADER + indented(body), "p.py", np=np, doubled=doubled, moved=moved)
    error = caught.value
    assert error.message.startswith(message)
    assert error.location.line == line
    place = error.location
    if part is not None and part:
        assert place.text[place.column - 1 : place.end_column - 1] == part
