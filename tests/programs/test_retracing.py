"""Programs that were read as text: they run as those that were traced, and are held to the same."""

from __future__ import annotations

import numpy as np
import pytest

import taskc as tc
from taskc import f32, i32, i64, repeat, spatial
from taskc.errors import CompileError
from taskc.ir import parse_program, to_text

m, k = tc.dim("m"), tc.dim("k", multiple=4)
q = tc.dim("q")
BLOCKS = f32[8, 6].laid(repeat(2, 6) * repeat(4, 1))


@tc.kernel(workers=4)
def counted(x: f32[q], first: i64, step: i32, y: tc.out[f32[q]]):
    for start in tc.tiles(q, by=4):
        for i in spatial(4):
            if start + i < q:
                y[start + i] = x[start + i] + (first + (start + i) * step.to(i64)).to(f32)


@tc.kernel(workers=4)
def halved(x: tc.inout[f32[q]], factor: f32):
    for start in tc.tiles(q, by=4):
        for i in spatial(4):
            if start + i < q:
                x[start + i] = x[start + i] * factor


@tc.kernel(workers=4)
def turned(x: f32[m, k], high: tc.out[f32[k, m]], low: tc.out[f32[k, m]]):
    for row, col in tc.tiles((m, k), by=(1, 4)):
        for i in spatial(4):
            high[col + i, row] = x[row, col + i]
            low[col + i, row] = x[row, col + i] / 3


@tc.kernel(workers=4)
def blocked(x: f32[8, 6], y: tc.out[BLOCKS]):
    for row, col in tc.tiles((8, 6), by=(4, 1)):
        for i in spatial(4):
            y[row + i, col] = x[row + i, col] + 1


@tc.kernel(workers=4)
def unblocked(x: BLOCKS, y: tc.out[f32[8, 6]]):
    for row, col in tc.tiles((8, 6), by=(4, 1)):
        for i in spatial(4):
            y[row + i, col] = x[row + i, col] * 2


@tc.program
def sizes(x: f32[m, k], factor: f32, high: tc.out[f32[k, m]], low: tc.out[f32[k * m]]):
    flat = counted(x.reshape(m * k), m * k, step=k // 4 - m)
    halved(flat, factor)
    halved(flat, 0.1)
    _, lower = turned(flat.reshape(m, k), high=high)
    counted(lower.reshape(k * m), 3 - m, 2, y=low)


@tc.program
def laid(x: f32[8, 6], y: tc.out[f32[8, 6]]):
    unblocked(blocked(x), y=y)


def read(program: tc.ProgramDefinition) -> tc.ProgramDefinition:
    text = to_text(program.ir)
    definition = tc.ProgramDefinition.of(parse_program(text))
    assert to_text(definition.ir) == text
    return definition


@pytest.mark.parametrize("program", [sizes, laid], ids=lambda program: program.name)
def test_a_program_that_was_read_gives_the_same_bits(program: tc.ProgramDefinition) -> None:
    again = read(program)
    for larger in (0, 1):
        arguments = program.example(seed=larger, larger=larger)
        assert [np.shape(one) for one in again.example(larger=larger)] == [
            *map(np.shape, arguments)
        ]
        made, same = program(*arguments), again(*arguments)
        for one, other in zip(
            *[x if isinstance(x, tuple) else (x,) for x in (made, same)], strict=True
        ):
            assert one.tobytes() == other.tobytes()
    assert repr(again) == repr(program)


def test_a_program_that_was_read_is_called_by_others() -> None:
    again = read(laid)

    @tc.program
    def twice(x: f32[8, 6], y: tc.out[f32[8, 6]]):
        again(again(x), y=y)

    x = np.arange(48, dtype=np.float32).reshape(8, 6)
    np.testing.assert_array_equal(twice(x), laid(laid(x)))
    np.testing.assert_array_equal(read(twice)(x), laid(laid(x)))
    assert tc.check(read(twice)) == ()


TEXT = """\
program p[n](x: f32[n], z: inout f32[n], a: i32, y: out f32[n]):
    temporary t: f32[n]
    temporary b: f32[8, 6].laid(repeat(2, 6).repeat(4, 1))
    view v: f32[1, n] of t
    add(x, n, out=t)
    add(t, 3, out=y)

kernel add[q](x: f32[q], by: i64, y: out f32[q]) workers=4 stage=parsed:
    grid s in q by 4:
        each i in spatial(4):
            if s + i < q:
                y[s + i] = x[s + i] + by.to(f32)
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "message"),
    [
        (
            "add(t, 3, out=y)",
            "add(z, 3, out=x)",
            6,
            5,
            "add(): output 'y' is written, and 'x' is an input",
        ),
        (
            "add(x, n, out=t)",
            "add(v, n, out=t)",
            5,
            5,
            "add(): argument 'x' must be f32[q], not f32[1, n]",
        ),
        (
            "add(x, n, out=t)",
            "add(t, n, out=t)",
            5,
            5,
            "add(): argument 'x' is read, and no call has written 't'",
        ),
        (
            "add(x, n, out=t)",
            "add(z, n, out=z)",
            5,
            5,
            "add(): output 'y' is written, and 'z' is also given for",
        ),
        (
            "add(x, n, out=t)",
            "add(x, n, out=y)",
            6,
            5,
            "add(): argument 'x' is read, and no call has written 't'",
        ),
        ("add(t, 3, out=y)", "add(x, 3, out=t)", 1, 50, "no call writes the output 'y'"),
        (
            "f32[1, n] of t",
            "f32[1, n + 1] of t",
            4,
            10,
            "f32[1, n + 1] isn't surely a part of t: f32[n]",
        ),
        (
            "f32[1, n] of t",
            "f32[1, n - 1] of t at 2",
            4,
            10,
            "f32[1, n - 1] at 2 isn't surely a part of t: f32[n]",
        ),
        (
            "f32[1, n] of t",
            "f32[n] of t at n - n - 1",
            4,
            10,
            "f32[n] at n - n - 1 isn't surely a part of t: f32[n]",
        ),
        ("t: f32[n]", "t: f16[n]", 4, 13, "t is of f16, and its view too"),
        (
            "[8, 6].laid",
            "[8, 7].laid",
            3,
            15,
            "the layout repeat(2, 6).repeat(4, 1) has no place for all",
        ),
        (
            "f32[1, n] of t",
            "f32[6, 8] of b",
            4,
            10,
            "'b' has a layout of its own, and no other shape",
        ),
    ],
)
def test_what_no_function_could_be_traced_into_is_refused(
    old: str, new: str, line: int, column: int, message: str
) -> None:
    tc.ProgramDefinition.of(parse_program(TEXT))
    assert TEXT.count(old) == 1
    text = TEXT.replace(old, new)
    with pytest.raises(CompileError) as caught:
        tc.ProgramDefinition.of(parse_program(text, file="p.txt"))
    assert caught.value.message.startswith(message)
    place = caught.value.location
    assert (place.file, place.line, place.column) == ("p.txt", line, column)
