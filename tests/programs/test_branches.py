"""Branches and whiles of programs: bodies traced once and chosen at run time, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import boolean, f32, i64
from taskc.errors import CompileError
from taskc.ir import calls_text, parse_program
from taskc.programs.ir import Branch, While
from taskc.runtime import driver
from tests.lang.notebook import cell, indented
from tests.programs.test_written import checked, doubled, halved, moved, numbers

n = tc.dim("n", example=5)


@tc.program
def chosen(x: f32[n], flag: boolean[1], y: tc.out[f32[n]]):
    """Twice x, or half of it and one more."""
    with tc.branch(flag):
        doubled(x, out=y)
    with tc.otherwise():
        half = tc.compute(n, lambda i: x[i] / 2)
        tc.compute(n, lambda i: half[i] + 1, name="more", out=y)


@tc.program
def collatz(start: i64[()], count: tc.out[i64[()]]):
    """How many steps it takes to 1."""
    value = tc.compute((), lambda: start[()], name="copy")
    steps = tc.compute((), lambda: i64(0), name="zero")
    goes_on = tc.compute((), lambda: value[()] > 1, name="large")
    is_odd = tc.empty(boolean[()])
    for _ in tc.steps_while(goes_on):
        tc.compute((), lambda: value[()] % 2 == 1, name="odd", out=is_odd)
        with tc.branch(is_odd):
            tripled = tc.compute((), lambda: value[()] * 3 + 1, name="tripled")
            tc.compute((), lambda: tripled[()], name="copy", out=value)
        with tc.otherwise():
            half = tc.compute((), lambda: value[()] // 2, name="half")
            tc.compute((), lambda: half[()], name="copy", out=value)
        more = tc.compute((), lambda: steps[()] + 1, name="more")
        tc.compute((), lambda: more[()], name="copy", out=steps)
        tc.compute((), lambda: value[()] > 1, name="large", out=goes_on)
    tc.compute((), lambda: steps[()], name="copy", out=count)


def collatz_steps(value: int) -> int:
    count = 0
    while value > 1:
        value, count = value * 3 + 1 if value % 2 else value // 2, count + 1
    return count


@pytest.mark.parametrize("target", ["cpu", "sim"])
def test_one_body_is_run(target: str) -> None:
    x = numbers(5)
    for flag, expected in ((True, x * 2), (False, x / 2 + 1)):
        found = driver.call(checked(chosen), (x, np.array([flag])), {}, target)
        assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("target", ["cpu", "sim"])
def test_a_body_is_run_while_a_flag_holds(target: str) -> None:
    for start in (0, 1, 2, 3, 6) if target == "sim" else (0, 1, 2, 27, 97):
        found = driver.call(checked(collatz), (np.array(start),), {}, target)
        assert found == collatz_steps(start)


def test_calls_by_compiled_code() -> None:
    """Once a call has come, the next ones go there, and plans are found for the same sizes."""
    x = numbers(3)
    for _ in range(3):
        for flag in (True, False, False):
            assert chosen(x, np.array([flag])).tolist() == (x * 2 if flag else x / 2 + 1).tolist()
        assert [int(collatz(np.array(start))) for start in (1, 7, 27)] == [0, 16, 111]


def test_their_text() -> None:
    assert calls_text(chosen.ir).splitlines() == [
        "program chosen[n](x: f32[n], flag: bool[1], y: out f32[n]):",
        "    temporary half: f32[n]",
        "    if flag:",
        "        doubled(x, out=y)",
        "    else:",
        "        compute(x, out=half)",
        "        more(half, out=y)",
    ]
    body = calls_text(collatz.ir).splitlines()
    at = body.index("    while goes_on:")
    assert body[at : at + 5] == [
        "    while goes_on:",
        "        odd(value, out=is_odd)",
        "        if is_odd:",
        "            tripled(value, out=tripled)",
        "            copy_1(tripled, out=value)",
    ]
    assert isinstance(chosen.ir.calls[0], Branch)
    assert isinstance(collatz.ir.calls[3], While)


def test_bodies_without_steps() -> None:
    @tc.program
    def program(x: tc.inout[f32[n]], flags: boolean[2]):
        with tc.branch(flags[0:1]):
            pass
        with tc.branch(flags[1]):
            pass
        with tc.otherwise():
            halved(x)

    assert "        pass" in calls_text(program.ir).splitlines()
    x = numbers(4)
    for flags in ([True, False], [False, True]):
        checked(program)(x, np.array(flags))
    assert x.tolist() == (numbers(4) / 2).tolist()


def test_branches_in_loops_choose_by_steps() -> None:
    @tc.program
    def program(x: f32[n, 3], flags: boolean[n], y: tc.out[f32[n, 3]], total: tc.inout[f32[3]]):
        for t in tc.steps(n):
            with tc.branch(flags[t]):
                doubled(x[t], out=y[t])
                halved(total)
            with tc.otherwise():
                tc.compute(3, lambda j: x[t, j] + t.to(f32), out=y[t])

    x, flags, total = (
        numbers(4, 3),
        np.array([True, False, False, True]),
        np.full(3, 8.0, np.float32),
    )
    y = checked(program)(x, flags, total)
    expected = np.where(flags[:, None], x * 2, x + np.arange(4, dtype=np.float32)[:, None])
    assert y.tolist() == expected.tolist()
    assert total.tolist() == [2, 2, 2]


def test_loops_and_whiles_in_a_while() -> None:
    """Each turn adds up the rows, as often as there is something left."""

    @tc.program
    def program(x: f32[n, 2], turns: i64[()], y: tc.out[f32[2]]):
        total = tc.compute(2, lambda j: f32(0.0))
        left = tc.compute((), lambda: turns[()])
        inner = tc.empty(boolean[()])
        goes_on = tc.compute((), lambda: left[()] > 0)
        for _ in tc.steps_while(goes_on):
            for t in tc.steps(n):
                row, before = x[t], tc.compute(2, lambda j: total[j])
                tc.compute(2, lambda j: before[j] + row[j], out=total)
            tc.compute((), lambda: left[()] % 2 == 0, out=inner)
            for _ in tc.steps_while(inner):
                halved(total)
                tc.compute((), lambda: False, out=inner)
            less = tc.compute((), lambda: left[()] - 1)
            tc.compute((), lambda: less[()], out=left)
            tc.compute((), lambda: left[()] > 0, out=goes_on)
        doubled(total, out=y)

    def expected(x: Any, turns: int) -> Any:
        total = np.zeros(2, np.float32)
        for left in range(turns, 0, -1):
            total = total + x.sum(0)
            total = total / 2 if left % 2 == 0 else total
        return total * 2

    for rows, turns in ((3, 0), (3, 1), (4, 5), (0, 3)):
        x = numbers(rows, 2)
        assert checked(program)(x, np.array(turns)).tolist() == expected(x, turns).tolist()


def test_programs_with_branches_in_programs() -> None:
    @tc.program
    def outer(
        x: f32[2, n], flags: boolean[2], start: i64[()], y: tc.out[f32[2, n]], k: tc.out[i64[2]]
    ):
        for t in tc.steps(2):
            chosen(x[t], flags[t : t + 1], out=y[t])
        first = collatz(start)
        collatz(first, out=k[0])
        with tc.branch(flags[0]):
            collatz(start, out=k[1])
        with tc.otherwise():
            tc.compute((), lambda: first[()], out=k[1])

    x = numbers(2, 3)
    y, k = checked(outer)(x, np.array([False, True]), np.array(27))
    assert y.tolist() == [(x[0] / 2 + 1).tolist(), (x[1] * 2).tolist()]
    assert k.tolist() == [collatz_steps(111), 111]
    y, k = outer(x, np.array([True, True]), np.array(6))
    assert k.tolist() == [collatz_steps(8), 8]


def test_a_flag_may_be_a_constant_or_returned() -> None:
    def body(x: Any) -> Any:
        y = tc.empty(f32[n])
        with tc.branch(tc.constant(np.array(False))):
            doubled(x, out=y)
        with tc.otherwise():
            moved_in = tc.compute(n, lambda i: x[i] + 1)
            tc.compute(n, lambda i: moved_in[i] * 3, out=y)
        flag = tc.compute((1,), lambda i: x[0] > 0)
        with tc.branch(flag):
            halved(y)
        return {"y": y, "flag": flag}

    program = tc.trace("p", {"x": f32[n]}, body)
    assert program.ir.temporaries[0].name == "moved_in"  # the others became outputs
    for x in (numbers(2), numbers(2) + 1):
        y, flag = program(x)
        assert flag.tolist() == [bool(x[0] > 0)]
        assert y.tolist() == ((x + 1) * 3 / (2 if flag[0] else 1)).tolist()


def test_what_both_bodies_write_is_written() -> None:
    """In parts that meet in other places, too."""

    @tc.program
    def program(x: f32[6], flag: boolean[1], y: tc.out[f32[6]]):
        h = tc.empty(f32[6])
        with tc.branch(flag):
            doubled(x, out=h)
            doubled(h, out=y)
        with tc.otherwise():
            doubled(x[0:2], out=h[0:2])
            doubled(x[2:6], out=h[2:6])
            for t in tc.steps(6):
                doubled(h[t : t + 1], out=y[t : t + 1])
        moved(h, y)

    for flag in (True, False):
        assert checked(program)(numbers(6), np.array([flag])).tolist() == (4 * numbers(6)).tolist()


def test_a_body_reads_what_it_and_earlier_steps_have_written() -> None:
    @tc.program
    def program(x: f32[n], flags: boolean[n], y: tc.out[f32[n]]):
        u = tc.empty(f32[n])
        for t in tc.steps(n):
            with tc.branch(flags[t]):
                doubled(x[t : t + 1], out=u[t : t + 1])
                halved(u[0 : t + 1])
            with tc.otherwise():
                doubled(x[t : t + 1], out=u[t : t + 1])
        doubled(u, out=y)

    x, flags = numbers(4) + 1, np.array([False, True, False, True])
    assert checked(program)(x, flags).tolist() == [1, 2, 6, 8]


def test_the_checker_examines_what_is_taken() -> None:
    assert tc.check(collatz, (np.array(3),)) == ()
    assert tc.check(chosen, (numbers(3), np.array([False]))) == ()


def test_an_assertion_in_a_while_ends_it() -> None:
    @tc.kernel(workers=1)
    def counted(count: tc.inout[i64[1]], flag: tc.inout[boolean[1]]):
        for i in tc.spatial(1):
            count[i] = count[i] + 1
            assert count[i] < 5, "too far"

    @tc.program
    def program(count: tc.inout[i64[1]], flag: tc.inout[boolean[1]]):
        for _ in tc.steps_while(flag):
            counted(count, flag)

    count = np.zeros(1, np.int64)
    for _ in range(2):
        with pytest.raises(tc.CheckError, match="too far"):
            program(count, np.array([True]))
    assert count.tolist() == [6]


HEADER = """\
n = tc.dim("n")
@tc.program
def p(x: f32[n], f: boolean[1], two: boolean[2], y: tc.out[f32[n]], w: tc.inout[f32[n]], s: boolean):
    g = tc.compute((), lambda: not f[0])
"""
WHILE = "for _ in tc.steps_while(g):\n    {}\n    tc.compute((), lambda: f[0], out=g)"


@pytest.mark.parametrize(
    ("body", "line", "part", "message"),
    [
        ("with tc.branch(f):\n    doubled(x, out=y)", 3, "y: tc.out[f32[n]]",
         "whether calls write the output 'y' of program 'p' depends on a flag"),
        ("with tc.branch(f):\n    doubled(x, out=y)\ndoubled(x, out=y)", 7, "doubled(x, out=y)",
         "doubled(): output 'y' is written, and the output 'y' has been written before"),
        ("with tc.branch(f):\n    h = doubled(x)\ndoubled(h, out=y)", 7, "doubled(h, out=y)",
         "doubled(): argument 'x' is read, and whether calls before have written 'h' depends on a flag"),
        ("with tc.branch(f):\n    h = doubled(x)\nwith tc.otherwise():\n    doubled(h, out=y)", 8, "doubled(h, out=y)",
         "doubled(): argument 'x' is read, and no call has written 'h' before"),
        ("with tc.branch(f):\n    halved(w)\n    return\nhalved(w)", 7, "return",
         "this leaves a body that is traced whether or not its flag holds"),
        ("for k in range(3):\n    with tc.branch(f):\n        if k == 1:\n            break", 8, "break",
         "this leaves a body that is traced whether or not its flag holds"),
        ("tc.branch(f)\nhalved(w)", 5, "tc.branch(f)", "this has no body"),
        ("tc.steps_while(g)\nhalved(w)", 5, "tc.steps_while(g)", "this has no body"),
        ("with tc.otherwise():\n    halved(w)", 5, "tc.otherwise()", "tc.otherwise comes right behind the body of a"),
        ("with tc.branch(f):\n    halved(w)\nhalved(w)\nwith tc.otherwise():\n    halved(w)", 8, "tc.otherwise()",
         "tc.otherwise comes right behind the body of a tc.branch, and there is none"),
        ("with tc.branch(f): halved(w)\nwith tc.otherwise(): halved(w)\nwith tc.otherwise(): halved(w)", 7,
         "tc.otherwise()", "tc.otherwise comes right behind the body of a tc.branch, and there is none"),
        ("with tc.branch(s): halved(w)", 5, "tc.branch(s)",
         "tc.branch takes a tensor of one bool, and this is the scalar 's': bool"),
        ("with tc.branch(True): halved(w)", 5, "tc.branch(True)",
         "tc.branch takes a tensor of one bool, and this is True"),
        ("with tc.branch(two): halved(w)", 5, "tc.branch(two)", "'two' is bool[2], and a condition is one bool"),
        ("with tc.branch(x): halved(w)", 5, "tc.branch(x)", "'x' is f32[n], and a condition is one bool"),
        ("u = tc.empty(boolean[1])\nwith tc.branch(u): halved(w)", 6, "tc.branch(u)",
         "'u' is read to choose among steps, and isn't surely written before"),
        ("for _ in tc.steps_while(f):\n    halved(w)", 5, "tc.steps_while(f)",
         "nothing in this loop writes 'f': it would never end"),
        (WHILE.format("doubled(x, out=y)"), 6, "doubled(x, out=y)",
         "a loop whose number of steps isn't known writes the output 'y'"),
        (WHILE.format("h = doubled(x)") + "\ndoubled(h, out=y)", 8, "doubled(h, out=y)",
         "doubled(): argument 'x' is read, and whether calls before have written 'h' depends on a flag"),
        ("h = tc.empty(f32[n])\n" + WHILE.format("halved(h)\n    doubled(x, out=h)"), 7, "halved(h)",
         "halved(): argument 'x' is read, and no call has written 'h' before"),
        ("for _ in tc.steps_while(g):\n    halved(w)\n    break", 5, "tc.steps_while(g)",
         "this loop isn't run to its end: a break or a return leaves it"),
        ("with tc.branch(f):\n    for _ in tc.steps_while(g):\n        break", 6, "tc.steps_while(g)",
         "this loop isn't run to its end: a break or a return leaves it"),
        ("for t in tc.steps(2):\n    with tc.branch(two[t]):\n        doubled(x, out=y)", 7, "doubled(x, out=y)",
         "steps of a loop write the output 'y' more than once"),
        ("for t in tc.steps(n):\n    with tc.branch(f):\n        doubled(x[t:n], out=y[t:n])", 7, None,
         "steps of a loop write the output 'y' more than once"),
    ],
)  # fmt: skip
def test_refused(body: str, line: int, part: str | None, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        cell(HEADER + indented(body), "p.py", doubled=doubled, halved=halved)
    error = caught.value
    assert error.message.startswith(message)
    place = error.location
    assert place.line == line
    if part is not None:
        assert place.text[place.column - 1 : place.end_column - 1] == part


def test_steps_that_may_write_what_others_may() -> None:
    """Neighbouring steps, each if a flag holds."""
    with pytest.raises(CompileError, match="steps of a loop write the output 'y' more than once"):

        @tc.program
        def program(x: f32[n], f: boolean[1], y: tc.out[f32[n + 1]]):
            for t in tc.steps(n):
                with tc.branch(f):
                    doubled(x[t : t + 1], out=y[t : t + 1])
                with tc.branch(f):
                    doubled(x[t : t + 1], out=y[t + 1 : t + 2])


@pytest.mark.parametrize("what", [tc.branch, tc.steps_while])
def test_outside_a_program(what: Any) -> None:
    with pytest.raises(CompileError, match=r"is for the body of a @tc\.program"):
        what(np.array([True]))
    with pytest.raises(CompileError, match=r"tc\.otherwise is for the body of a @tc\.program"):
        tc.otherwise()


TEXT = """\
program p(x: f32[2], f: bool[1], two: bool[2], y: inout f32[2]):
    {}

kernel k(x: inout f32[2]) workers=1:
    each i in repeat(2):
        x[i] = x[i] + 1.0
"""


@pytest.mark.parametrize(
    ("step", "line", "column", "message"),
    [
        ("if nothing:\n        k(y)", 2, 8, "nothing is called nothing here"),
        ("if two:\n        k(y)", 2, 8, "two is bool[2], and a condition is one bool"),
        ("while x:\n        k(y)", 2, 11, "x is f32[2], and a condition is one bool"),
        ("if f:\n        k(y)\n    else:\n        no(out=y)", 5, 9, "there is no kernel no"),
        ("while f:\n        k(y)", 2, 11, "nothing in this loop writes 'f': it would never end"),
    ],
)
def test_texts_that_are_refused(step: str, line: int, column: int, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        tc.ProgramDefinition.of(parse_program(TEXT.format(step)))
    place = caught.value.location
    assert (place.line, place.column, caught.value.message) == (line, column, message)
