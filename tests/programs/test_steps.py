"""Loops of programs: bodies traced once, what they read and write, and what is refused."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, i64
from taskc.errors import NOWHERE, CompileError
from taskc.ir import calls_text, parse_program, to_text
from taskc.programs.ir import Loop
from taskc.programs.tracing import current_trace
from taskc.programs.verify import verify_program
from tests.lang.notebook import cell, indented
from tests.programs.test_written import checked, doubled, halved, numbers

m, n, k, q = tc.dim("m"), tc.dim("n"), tc.dim("k"), tc.dim("q")


@tc.kernel(workers=4)
def added(x: f32[q], z: f32[q], by: i64, y: tc.out[f32[q]]):
    for start in tc.tiles(q, by=4):
        for i in tc.spatial(4):
            if start + i < q:
                y[start + i] = x[start + i] + z[start + i] + by.to(f32)


@tc.program
def sums(x: f32[n, k], y: tc.out[f32[n + 1, k]]):
    """Each row of y is the one before it, x's row, and its number."""
    tc.compute(k, lambda j: f32(0.0), out=y[0])
    for t in tc.steps(n):
        added(x[t], y[t], t, out=y[t + 1])


def expected_sums(x: Any) -> Any:
    with_numbers = x + np.arange(len(x), dtype=np.float32)[:, None]
    return np.concatenate([0 * x[:1], np.cumsum(with_numbers, 0, np.float32)])


def test_a_recurrence_over_parts_of_its_output() -> None:
    x = numbers(4, 3)
    assert checked(sums)(x).tolist() == expected_sums(x).tolist()
    assert sums(numbers(0, 3)).tolist() == [[0, 0, 0]]
    _, loop = sums.ir.calls
    assert isinstance(loop, Loop)
    assert len(loop.body) == 1
    assert repr(sums).endswith(", 2 calls>")


def test_an_attempt_that_fails_leaves_nothing() -> None:
    def halving(fails: bool) -> Any:
        def body(x: Any) -> Any:
            before, trace = tc.compute((4, 3), lambda t, i: x[t, i]), current_trace()
            assert trace is not None
            with suppress(CompileError), trace.attempt():
                if fails:
                    table = tc.constant(np.ones(3, np.float32))
                    for t in tc.steps(4):
                        flag = tc.compute((), lambda: t > 2)
                        with tc.branch(flag):
                            tc.compute(3, lambda i: table[i] + x[t, i], out=before[t])
                            raise CompileError("no", NOWHERE)
            for t in tc.steps(4):
                halved(before[t])
            return before

        return tc.trace("halving", {"x": f32[4, 3]}, body)

    assert to_text(halving(True).ir) == to_text(halving(False).ir)
    assert not halving(True).ir.constants


def test_the_text_of_a_loop() -> None:
    assert calls_text(sums.ir).splitlines() == [
        "program sums[n, k](x: f32[n, k], y: out f32[n + 1, k]):",
        "    view y_1: f32[k] of y",
        "    compute(out=y_1)",
        "    for t in steps(n):",
        "        view x_1: f32[k] of x at t * k",
        "        view y_2: f32[k] of y at t * k",
        "        view y_3: f32[k] of y at (t + 1) * k",
        "        added(x_1, y_2, t, out=y_3)",
    ]


def test_a_state_that_each_step_updates() -> None:
    def body(x: Any) -> Any:
        state = tc.compute(3, lambda j: f32(1.0))
        for t in tc.steps(n):
            row = x[n - 1 - t]
            after = tc.compute(3, lambda j: state[j] * 2.0 + row[j] + t.to(f32))
            doubled(after, out=state)
            halved(state)
        return state

    program = checked(tc.trace("p", {"x": f32[n, 3]}, body))
    x, state = numbers(4, 3), np.ones(3, np.float32)
    for t in range(4):
        state = state * 2 + x[3 - t] + t
    assert program(x).tolist() == state.tolist()
    assert program(numbers(0, 3)).tolist() == [1, 1, 1]


def test_backwards_and_in_two_directions() -> None:
    @tc.program
    def program(x: f32[n, 2], y: tc.out[f32[n, 2]], z: tc.out[f32[n, 2, 2]]):
        for t in tc.steps(n):
            doubled(x[t], out=y[n - 1 - t])
        for t in tc.steps(n):
            doubled(x[t], out=z[t, 0])
            doubled(y[t], out=z[t, 1])

    x = numbers(3, 2)
    y, z = checked(program)(x)
    assert y.tolist() == (2 * x[::-1]).tolist()
    assert z.tolist() == np.stack([2 * x, 4 * x[::-1]], 1).tolist()


def test_a_recurrence_backwards() -> None:
    @tc.program
    def program(x: f32[n, 2], y: tc.out[f32[n + 1, 2]]):
        tc.compute(2, lambda i: f32(1.0), out=y[n])
        for t in tc.steps(n):
            added(x[n - 1 - t], y[n - t], 0, out=y[n - 1 - t])

    x = numbers(3, 2)
    expected = np.concatenate([np.cumsum(x[::-1], 0, np.float32)[::-1] + 1, np.ones((1, 2))])
    assert checked(program)(x).tolist() == expected.tolist()


def test_a_loop_in_a_loop() -> None:
    @tc.program
    def program(x: f32[m, n, 2], y: tc.out[f32[m, n, 2]], last: tc.out[f32[2]]):
        state = tc.compute(2, lambda i: f32(0.0))
        for a in tc.steps(m):
            for b in tc.steps(n):
                after = added(x[a, b], state, a * 10 + b)
                doubled(after, out=state)
                doubled(after, out=y[a, b])
        doubled(y.reshape(m * n * 2)[0:0], out=tc.empty(f32[0]))
        doubled(state, out=last)

    x, state = numbers(2, 3, 2), np.zeros(2, np.float32)
    y = np.zeros_like(x)
    for a in range(2):
        for b in range(3):
            state = (x[a, b] + state + (a * 10 + b)) * 2
            y[a, b] = state
    found, last = checked(program)(x)
    assert found.tolist() == y.tolist()
    assert last.tolist() == (state * 2).tolist()


def test_a_number_of_steps_that_is_known() -> None:
    def body(x: Any) -> Any:
        y = tc.empty(f32[4, 2])
        for t in tc.steps(4):
            assert t < 4
            assert t >= 0
            assert t - 4 != 0
            doubled(x, out=y[t])
        last = tc.empty(f32[2])
        for _ in tc.steps(2):
            doubled(x, out=last)
        return {"y": y, "last": doubled(last)}

    program = checked(tc.trace("p", {"x": f32[2]}, body))
    y, last = program(numbers(2))
    assert y.tolist() == [[0, 2]] * 4
    assert last.tolist() == [0, 4]


def test_programs_with_loops_in_programs() -> None:
    @tc.program
    def outer(x: f32[m, 2, 3], y: tc.out[f32[m, 3, 3]], z: tc.out[f32[3, 3]]):
        for t in tc.steps(m):
            sums(x[t], out=y[t])
        w = tc.constant(numbers(2, 3))
        sums(w, out=z)

    x = numbers(2, 2, 3)
    y, z = checked_with_constants(outer)(x)
    assert y.tolist() == np.stack([expected_sums(one) for one in x]).tolist()
    assert z.tolist() == expected_sums(numbers(2, 3)).tolist()
    loops = [step for step in outer.ir.calls if isinstance(step, Loop)]
    inner = [step for step in loops[0].body if isinstance(step, Loop)]
    assert len({loops[0].variable, loops[1].variable, inner[0].variable}) == 3


@tc.program
def weighted(x: f32[n, 2], y: tc.out[f32[n, 2]]):
    for t in tc.steps(n):
        row = x[t]
        tc.compute(2, lambda j: row[j] + (n - t).to(f32) * x[t, j], out=y[t])


def test_computations_of_a_step_in_programs_in_programs() -> None:
    @tc.program
    def outer(
        x: f32[m, 2],
        z: f32[m + 1, 2],
        y: tc.out[f32[m + 1, 2]],
        u: tc.out[f32[m, m, 2]],
    ):
        weighted(z, out=y)
        for t in tc.steps(m):
            weighted(x, out=u[t])

    def expected(x: Any) -> Any:
        return x + (len(x) - np.arange(len(x), dtype=np.float32))[:, None] * x

    checked(weighted)
    x, z = numbers(3, 2), numbers(4, 2)
    y, u = checked(outer)(x, z)
    assert y.tolist() == expected(z).tolist()
    assert u.tolist() == [expected(x).tolist()] * 3
    assert tc.check(outer, (x, z)) == ()


def checked_with_constants(program: tc.ProgramDefinition) -> tc.ProgramDefinition:
    from taskc.programs.ir import digest_of

    verify_program(program.ir)
    known = {digest_of(memory): memory for _, memory in program.ir.constants}
    text = to_text(program.ir)
    again = tc.ProgramDefinition.of(parse_program(text, constants=known))
    assert to_text(again.ir) == text
    return again


def test_the_checker_goes_through_all_steps() -> None:
    assert tc.check(sums, (numbers(3, 2),)) == ()


HEADER = """\
n = tc.dim("n")
@tc.program
def p(x: f32[n, 2], y: tc.out[f32[n, 2]], w: tc.out[f32[2]], s: i32):
"""
FILLED = "doubled(x[t], out=y[t])\n"


@pytest.mark.parametrize(
    ("body", "line", "part", "message"),
    [
        (
            "for t in tc.steps(n):\n    doubled(x[t], out=w)", 5, "doubled(x[t], out=w)",
            "steps of a loop write the output 'w' more than once",
        ),
        (
            "for t in tc.steps(n):\n    doubled(x[t], out=y[t])\n    doubled(x[t], out=y[n - 1 - t])", 6, None,
            "doubled(): output 'y' is written, and the output 'y' has been written before",
        ),
        (
            "h = tc.empty(f32[2])\nfor t in tc.steps(n):\n    doubled(x[t], out=h)\ndoubled(h, out=w)", 7,
            "doubled(h, out=w)",
            "doubled(): argument 'x' is read, and no call has written 'h' before",
        ),
        (
            "h = tc.empty(f32[2])\nfor t in tc.steps(n):\n    doubled(h, out=y[t])\n    doubled(x[t], out=h)", 6,
            "doubled(h, out=y[t])",
            "doubled(): argument 'x' is read, and no call has written 'h' before",
        ),
        (
            "u = tc.empty(f32[n, 2])\nfor t in tc.steps(n):\n    doubled(u[t], out=y[t])\n    doubled(x[t], out=u[t])",
            6, "doubled(u[t], out=y[t])",
            "doubled(): argument 'x' is read, and no call has written 'u' before",
        ),
        (
            "u = tc.empty(f32[n, 2])\nfor t in tc.steps(n):\n    doubled(u[n - 1 - t], out=y[t])\n"
            "    doubled(x[t], out=u[n - 1 - t])", 6, "doubled(u[n - 1 - t], out=y[t])",
            "doubled(): argument 'x' is read, and no call has written 'u' before",
        ),
        (
            "u = tc.empty(f32[2 * n, 2])\nfor a in tc.steps(n):\n    for b in tc.steps(n):\n        doubled(u[2 * b])",
            7, "doubled(u[2 * b])",
            "doubled(): argument 'x' is read, and no call has written 'u' before",
        ),
        (
            "for t in tc.steps(n):\n    doubled(x[t], out=y[t])\ndoubled(y[t], out=w)", 6, "y[t]",
            "'t' is the number of a loop's step, and its loop is over",
        ),
        (
            "for t in tc.steps(n):\n    last = x[t]\n    doubled(last, out=y[t])\ndoubled(last, out=w)", 7,
            "doubled(last, out=w)",
            "'last' is another part in each step of t, and that loop is over",
        ),
        (
            "for t in tc.steps(n):\n    last = x[t]\n    doubled(last, out=y[t])\nlast.reshape(1, 2)", 7,
            "last.reshape(1, 2)",
            "'last' is another part in each step of t, and that loop is over",
        ),
        (
            "for t in tc.steps(n):\n    doubled(x[:t].reshape(2 * t))", 5, "doubled(x[:t].reshape(2 * t))",
            "the temporary 'y' would have another size in each step of t",
        ),
        (
            "for t in tc.steps(n):\n    x[t + 1]", 5, "x[t + 1]",
            "t + 1 isn't surely a place on axis 0 of 'x', of n",
        ),
        (
            "for t in tc.steps(n + 1):\n    x[t]", 5, "x[t]",
            "t isn't surely a place on axis 0 of 'x', of n",
        ),
        (
            "for t in tc.steps(n):\n    if t == 0: pass", 5, "t == 0",
            "whether t == 0 is known only when the program is called",
        ),
        (
            "for t in tc.steps(n):\n    doubled(x[t], out=y[t])\n    break", 4, "tc.steps(n)",
            "this loop isn't run to its end: a break or a return leaves it",
        ),
        ("for t in tc.steps(n - 1): pass", 4, "tc.steps(n - 1)", "n - 1 steps aren't surely 0 or more"),
        ("for t in tc.steps(-1): pass", 4, "tc.steps(-1)", "-1 steps aren't surely 0 or more"),
        ("for t in tc.steps(x): pass", 4, "tc.steps(x)", "an extent is an integer, a tc.dim or computed from some"),
    ],
)  # fmt: skip
def test_refused(body: str, line: int, part: str | None, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        cell(HEADER + indented(body), "p.py", doubled=doubled)
    error = caught.value
    assert error.message.startswith(message)
    place = error.location
    assert place.line == line
    if part is not None:
        assert place.text[place.column - 1 : place.end_column - 1] == part


def test_steps_outside_a_program() -> None:
    with pytest.raises(CompileError, match=r"tc\.steps is for the body of a @tc\.program"):
        tc.steps(3)


def test_as_many_steps_as_a_scalar_says() -> None:
    n = tc.dim("n")

    @tc.program
    def summed(count: tc.i32, scale: tc.f64, a: tc.f64[n], y: tc.inout[tc.f64[n]]) -> None:
        half = scale / 2
        for t in tc.steps(2 * count - 1):
            tc.compute(n, lambda i: y[i] + half * t[()].to(tc.f64) * a[i], out=y)

    a = np.arange(3.0)
    for count in (0, 1, 2, 5, -3):
        y = np.ones(3)
        summed(np.int32(count), 3.0, a, y)
        np.testing.assert_array_equal(y, 1 + 1.5 * sum(range(2 * count - 1)) * a)

    with pytest.raises(
        CompileError, match="steps are counted by an integer, and this is the scalar 'x'"
    ):

        @tc.program
        def by_a_float(x: tc.f64, y: tc.inout[tc.f64[n]]) -> None:
            for _ in tc.steps(x):
                pass


def test_a_computation_reads_what_was_there_before_it_wrote() -> None:
    n = tc.dim("n")

    @tc.program
    def turned(a: tc.inout[tc.f64[n + 1, 3]]) -> None:
        tc.compute((n + 1, 3), lambda i, j: a[n - i, j] + 10 * a[i, 2 - j], out=a)
        tc.compute((n + 1, 3), lambda i, j: 7.0 if j == 1 else a[i, j], out=a)
        row = a[0]
        tc.compute(3, lambda j: row[2 - j] + a[0, j], out=row)

    a = np.random.default_rng(0).random((4, 3))
    expected = a[::-1] + 10 * a[:, ::-1]
    expected[:, 1] = 7
    expected[0] += expected[0, ::-1]
    turned(a)
    np.testing.assert_allclose(a, expected, 1e-15)
