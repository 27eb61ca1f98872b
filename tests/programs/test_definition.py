"""Programs: what tracing makes of them, and what it refuses."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f16, f32, i32, i64, repeat
from taskc.errors import CompileError
from taskc.programs.ir import kernels_of
from taskc.programs.printer import calls_text
from taskc.programs.tracing import current_trace
from tests.lang.notebook import cell, indented

# What the programs of `rejections.txt` are the body of; its first line is line 22.
HEADER = """\
m, n, q, r, w = tc.dim("m"), tc.dim("n"), tc.dim("q"), tc.dim("r"), tc.dim("w", multiple=4)
columns = repeat(4, 3, order=(1, 0))
def kernel(function): return tc.kernel(workers=4)(function)
@kernel
def copy(x: f32[q], y: tc.out[f32[q]]): pass
@kernel
def two(x: f32[q], z: f32[q], y: tc.out[f32[q]]): pass
@kernel
def both(x: f32[q], y: tc.out[f32[q]], z: tc.out[f32[q]]): pass
@kernel
def update(y: tc.inout[f32[q]], s: f32): pass
@kernel
def fours(x: f32[w], y: tc.out[f32[w]]): pass
@kernel
def fixed(x: f32[8], n: i32, y: tc.out[f32[8]]): pass
@kernel
def fill(y: tc.out[f32[q]]): pass
@kernel
def packed(x: f32[4, 3].laid(columns), y: tc.out[f32[4, 3]]): pass
@tc.program
def p(a: f32[m], b: f32[n], e: f32[8], g: f32[4, 3], t: i32, c: tc.out[f32[m]], d: tc.inout[f32[m]]):
"""

_SECTIONS = re.split(
    r"^=== ",
    (Path(__file__).parent / "rejections.txt").read_text(encoding="utf-8"),
    flags=re.M,
)[1:]


def _section(text: str) -> object:
    name, _, rest = text.partition("\n")
    program, _, expected = rest.partition("\n---\n")
    return pytest.param(program, expected.strip("\n"), id=name.replace(" ", "_"))


@pytest.mark.parametrize(("program", "expected"), [_section(text) for text in _SECTIONS])
def test_rejected(program: str, expected: str) -> None:
    text = program if "@tc." in program else HEADER + indented(program)
    with pytest.raises(CompileError) as caught:
        cell(text, "p.py", np=np)
    assert told(str(caught.value)) == told(expected)
    assert current_trace() is None


def told(text: str) -> str:
    """All of an error; before Python 3.11 less the columns, which Python doesn't know there."""
    if sys.version_info >= (3, 11):
        return text
    return re.sub(r"(?m)(?<=py:\d\d|\.py:\d):\d+(?=: )|^ +\^+\n?", "", text)


def test_there_are_enough_of_them() -> None:
    assert len(_SECTIONS) >= 80


# --- what a program becomes ------------------------------------------------------------------

m, n, k = tc.dim("m"), tc.dim("n"), tc.dim("k", multiple=4)
q = tc.dim("q")


@tc.kernel(workers=4)
def copy(x: f32[q], y: tc.out[f32[q]]):
    pass


@tc.kernel(workers=4)
def add(x: f32[q], z: f32[q], y: tc.out[f32[q]]):
    pass


@tc.kernel(workers=4)
def split(x: f32[q], low: tc.out[f32[q]], high: tc.out[f32[q]]):
    pass


@tc.kernel(workers=4)
def scale(x: tc.inout[f32[q]], factor: f32, count: i64, few: i32):
    pass


def text_of(program: tc.ProgramDefinition) -> list[str]:
    return [line.strip() for line in calls_text(program.ir).splitlines()]


def test_calls_return_temporaries_under_the_names_they_are_given() -> None:
    @tc.program
    def program(x: f32[m], y: tc.out[f32[m]]):
        first = copy(x)
        low, high = split(add(first, x))
        last = tc.empty(f32[m])
        assert add(low, z=high, out=last) is last
        assert copy(last, y=y) is y

    assert text_of(program) == [
        "program program[m](x: f32[m], y: out f32[m]):",
        "temporary first: f32[m]",
        "temporary y_1: f32[m]",
        "temporary low: f32[m]",
        "temporary high: f32[m]",
        "temporary last: f32[m]",
        "copy(x, out=first)",
        "add(first, x, out=y_1)",
        "split(y_1, out=(low, high))",
        "add(low, high, out=last)",
        "copy(last, out=y)",
    ]
    assert repr(program) == "<tc.program program(x: f32[m], y: out f32[m]), 5 calls>"
    assert [kernel.name for kernel in program.kernels] == ["copy", "add", "split"]


def test_control_flow_over_constants_is_pythons() -> None:
    def make(times: int) -> tc.ProgramDefinition:
        @tc.program
        def program(x: tc.inout[f32[8]], factor: f32):
            for count in range(times):
                if count % 2 == 0:
                    scale(x, factor, count, few=-1)
                else:
                    scale(few=7, x=x, factor=0.1, count=2**40)

        return program

    assert text_of(make(3))[1:] == [
        "scale(x, factor, 0, -1)",
        "scale(x, 0.1, 1099511627776, 7)",
        "scale(x, factor, 2, -1)",
    ]
    assert text_of(make(0))[1:] == ["pass"]


def test_sizes_are_computed_with() -> None:
    seen: list[Any] = []

    @tc.program
    def program(x: f32[m, k], y: tc.inout[f32[8]]):
        rows, columns = x.shape
        seen.extend([rows, columns, x.dtype, x.shape[0] + 0, rows - rows, 3 * rows // 3])
        parts = tc.cdiv(rows, 4)
        tc.empty(f32[parts, -rows + 2 * rows + 1, columns // 4 * 4, rows % 3])
        scale(y, 1, rows * columns, np.int64(2) + rows)

    assert seen == [m, k, f32, m, 0, m]
    assert text_of(program)[1:] == [
        "temporary temporary: f32[(m + 3) // 4, m + 1, k // 4 * 4, m % 3]",
        "scale(y, 1.0, m * k, (2 + m).to(i32))",
    ]


def test_shapes_are_compared_as_forms() -> None:
    @tc.kernel(workers=4)
    def square(x: f32[q, q], y: tc.out[f32[q]]):
        pass

    fours = tc.dim("fours", multiple=4)

    @tc.kernel(workers=4)
    def aligned(x: f32[fours], z: f32[fours, 3], y: tc.out[f32[fours]]):
        pass

    @tc.kernel(workers=4)
    def fill(y: tc.out[f32[q]]):
        pass

    @tc.program
    def program(x: f32[k], z: f32[k, 3], w: f32[8, 3]):
        doubled = fill(out=tc.empty(f32[2 * k]))
        split(doubled, out=(tc.empty(f32[k + k]), tc.empty(f32[4 * k - 2 * k])))
        whole = fill(out=tc.empty(f32[k * 8 // 8]))
        add(whole, x)
        aligned(whole, z)
        aligned(fill(out=tc.empty(f32[8])), w)
        assert whole.shape[0] == k
        assert doubled.shape[0] != doubled.shape[0] + 1
        assert k + 1 > 0 <= k
        assert not k < 0

    assert len(program.ir.calls) == 7


def test_a_dimension_is_only_a_name_outside_of_programs() -> None:
    assert bool(m)
    assert (m == 4) is False
    assert {m: 1}[m] == 1
    for wrong in (lambda: m < 1, lambda: int(m), lambda: m + 1 >= k):
        with pytest.raises((TypeError, CompileError), match="is known only at a call"):
            wrong()


def test_one_kernel_with_several_shapes() -> None:
    @tc.program
    def program(x: f32[m], z: f32[n], w: f32[0], y: tc.out[f32[n]]):
        copy(x)
        copy(w)
        copy(copy(z), out=y)

    assert len(program.kernels) == 1
    assert text_of(program)[1:4] == [
        "temporary y_1: f32[m]",
        "temporary y_2: f32[0]",
        "temporary y_3: f32[n]",
    ]


def test_kernels_of_one_name_are_told_apart() -> None:
    def make() -> tc.KernelDefinition:
        @tc.kernel(workers=4)
        def copy(x: tc.inout[f32[4]]):
            pass

        return copy

    first, second = make(), make()

    @tc.program
    def program(x: tc.inout[f32[4]]):
        first(x)
        second(x)
        first(x)

    assert text_of(program)[1:] == ["copy(x)", "copy_1(x)", "copy(x)"]
    assert list(kernels_of(program.ir).values()) == [first.ir, second.ir]


def test_layouts_have_to_agree() -> None:
    columns, rows = repeat(4, 3, order=(1, 0)), repeat(4, 3)

    @tc.kernel(workers=4)
    def pack(x: f32[4, 3], y: tc.out[f32[4, 3].laid(columns)]):
        pass

    @tc.kernel(workers=4)
    def use(x: f32[4, 3].laid(columns), y: tc.out[f32[4, 3].laid(rows)]):
        pass

    @tc.program
    def program(x: f32[4, 3], y: tc.out[f32[4, 3]]):
        kept = tc.empty(f32[4, 3].laid(columns))
        pack(x, out=kept)
        use(kept, out=y)
        use(pack(x))

    assert text_of(program)[1] == f"temporary kept: f32[4, 3].laid({columns})"
    assert text_of(program)[2] == f"temporary y_1: f32[4, 3].laid({columns})"


def test_what_has_been_written_may_be_updated_in_place() -> None:
    @tc.program
    def program(x: f32[m], y: tc.out[f32[m]], z: tc.inout[f32[m]]):
        t = copy(x)
        scale(t, 2.0, 0, 0)
        copy(t, out=y)
        scale(y, 2.0, 0, 0)
        copy(y, out=z)
        copy(y, out=t)  # a temporary may be written again

    assert len(program.ir.calls) == 6


# --- programs in programs --------------------------------------------------------------------


def test_a_program_in_a_program_is_inlined() -> None:
    size = tc.dim("size")

    @tc.program
    def inner(x: f32[size], factor: f32, count: i64, y: tc.out[f32[size]]):
        t = tc.empty(f32[size + 1])
        fours = tc.empty(f32[2 * size])
        split(x, low=y)
        scale(x=y, factor=factor, count=count, few=size)
        assert t.shape[0] - 1 == fours.shape[0] // 2

    @tc.program
    def outer(a: f32[m], b: f32[3], s: f32, y: tc.out[f32[m]]):
        inner(a, s, m - 1, out=y)
        t = inner(b, 0.5, 7)
        inner(t, s, m)

    assert text_of(outer) == [
        "program outer[m](a: f32[m], b: f32[3], s: f32, y: out f32[m]):",
        "temporary t: f32[m + 1]",
        "temporary fours: f32[m * 2]",
        "temporary high: f32[m]",
        "temporary t_1: f32[3]",
        "temporary t_2: f32[4]",
        "temporary fours_1: f32[6]",
        "temporary high_1: f32[3]",
        "temporary y_1: f32[3]",
        "temporary t_3: f32[4]",
        "temporary fours_2: f32[6]",
        "temporary high_2: f32[3]",
        "split(a, out=(y, high))",
        "scale(y, s, m - 1, m.to(i32))",
        "split(b, out=(t_1, high_1))",
        "scale(t_1, 0.5, 7, 3)",
        "split(t_1, out=(y_1, high_2))",
        "scale(y_1, s, m, 3)",
    ]
    assert [kernel.ir for kernel in outer.kernels] == [split.ir, scale.ir]


def test_templates_may_be_called_in_a_body() -> None:
    def make(size: Any) -> tuple[tc.KernelDefinition, tc.ProgramDefinition]:
        @tc.kernel(workers=4)
        def double(x: f32[size], y: tc.out[f32[size]]):
            for start in tc.tiles(size, by=4):
                for i in tc.spatial(4):
                    if start + i < size:
                        y[start + i] = x[start + i] * 2

        @tc.program
        def twice(x: f32[size], y: tc.out[f32[size]]):
            double(double(x), out=y)

        return double, twice

    @tc.program
    def program(x: f32[m], y: tc.out[f32[m]]):
        double, twice = make(x.shape[0])
        double(twice(x), out=y)

    assert program(np.ones(5, np.float32)).tolist() == [8] * 5


# --- the trace itself ------------------------------------------------------------------------


def test_an_exception_leaves_no_trace() -> None:
    with pytest.raises(ValueError, match="invalid literal"):

        @tc.program
        def program(x: f32[4]):
            int("none")

    assert current_trace() is None
    with pytest.raises(NameError, match="nowhere"):

        @tc.program
        def another(x: f32[4]):
            nowhere(x)  # type: ignore[name-defined]

    assert current_trace() is None
    (x,) = copy.example()
    with pytest.raises(tc.ArgumentError):  # and a call of a kernel is a call again
        copy(x.astype(np.float64))


def test_a_trace_belongs_to_its_thread() -> None:
    said: list[str] = []

    @tc.program
    def program(x: f32[m], y: tc.out[f32[m]]):
        def elsewhere() -> None:
            try:
                copy(x)
            except CompileError as error:
                said.append(error.message)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        copy(x, out=y)

    assert said == ["'x' belongs to program 'program', and is used outside of it"]
    assert len(program.ir.calls) == 1


def test_empty_outside_a_program() -> None:
    with pytest.raises(CompileError) as caught:
        tc.empty(f32[4, m])
    assert caught.value.message == (
        "tc.empty makes memory of a size that is known, and m isn't known here"
    )
    assert caught.value.location.file == __file__


def test_handles_show_what_they_are() -> None:
    seen: list[str] = []

    @tc.program
    def program(x: f32[m], s: f16):
        seen.extend([repr(x), repr(s), repr(m + 1), str(x.shape)])
        assert s.dtype is f16
        with pytest.raises(
            AttributeError, match=r"has .shape, .dtype, .reshape and slices, and no .T"
        ):
            copy(x.T)

    assert seen[0] == "<'x' of program 'program'>"
    assert seen[1:3] == ["<'s' of program 'program'>", "m + 1"]


def test_annotations_may_be_texts() -> None:
    space = cell(
        "from __future__ import annotations\n"
        "def make(rows):\n"
        "    @tc.kernel(workers=4)\n"
        "    def look(x: f32[rows, 2]): pass\n"
        "    @tc.program\n"
        "    def program(x: f32[rows, 2]):\n"
        "        look(x)\n"
        "    return program\n"
        "made = make(3)\n"
    )
    assert text_of(space["made"]) == ["program program(x: f32[3, 2]):", "look(x)"]


def test_examples_are_as_those_of_kernels() -> None:
    @tc.program(example=lambda random: (np.full(3, 7, np.float32), np.float32(2)))
    def program(x: f32[m], s: f32, y: tc.out[f32[m]]):
        """Says what it does."""
        copy(x, out=y)

    assert program.example()[0].tolist() == [7, 7, 7]
    assert program.__doc__ == "program(x: f32[m], s: f32, y: out f32[m])\n\nSays what it does."

    @tc.program(example=lambda random: ())
    def wrong(x: f32[m]):
        pass

    with pytest.raises(CompileError, match="has 0 arguments, and the program takes 1: x"):
        wrong.example()


def test_what_a_computation_takes_has_names_of_its_own() -> None:
    """Two of its inputs may be called the same in the program."""

    def times(x: Any, by: float) -> Any:
        return tc.compute((4,), lambda i: x[i] * by)

    @tc.program
    def program(x: tc.f32[4], y: tc.out[tc.f32[4]]):
        first, second = times(x, 2.0), times(x, 5.0)
        tc.compute((4,), lambda i: first[i] - second[i], out=y)

    assert program(np.float32([1, 2, 3, 4])).tolist() == [-3, -6, -9, -12]
