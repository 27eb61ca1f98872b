"""Sizes are numbers without a type, as Python's are: what is written with a constant is written with a dimension."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.ir import nodes as ir
from taskc.ir.rewrite import walk
from tests.lang.notebook import cell
from tests.stages import results, same_after_every_pass

SIZE = 12
TEXT = """
import math
import taskc as tc
from taskc import bf16, f16, f32, f64, i8, i16, i32, i64, spatial, u8, u16, u32, u64

def make(n):
    @tc.kernel(workers=4)
    def kernel(x: {dtype}[n], y: tc.out[{result}[n]]):
        for start in tc.tiles(n, by=4):
            for i in spatial(4):
                if start + i < n:
                    v = x[start + i]
                    {statements}
                    y[start + i] = {value}
    return kernel
"""

# The type of x, of y, what is computed of v and n, and statements before.
VALUES: list[tuple[str, str, str, str]] = [
    ("f32", "f32", "v / n", ""),
    ("f32", "f32", "v * (1 / n)", ""),
    ("f32", "f32", "n * v + n", ""),
    ("f64", "f64", "v * (n / 7 - 0.1)", ""),
    ("f16", "f16", "v * n", ""),
    ("bf16", "bf16", "(2.5 * n) // 1 - v", ""),
    ("f32", "f32", "v * n ** -0.5", ""),
    ("f32", "f32", "v * tc.rsqrt(n) + tc.log(n + 1)", ""),
    ("f32", "f32", "v * factor", "factor = 1 / (n * n)"),
    ("f32", "f32", "-(n / 5) * v", ""),
    ("f32", "f32", "n", ""),
    ("f32", "f32", "n / 5", ""),
    ("f32", "f32", "max(v, n / 4)", ""),
    ("f32", "f32", "v * min(n, 7.5) - max(0.5, n / 5, 2)", ""),
    ("f32", "f32", "v * abs(5 - n) + (-n) + abs(0.5 - n)", ""),
    ("u8", "u8", "v + abs(-n)", ""),
    ("f32", "f32", "n if v < n / 2 else 1", ""),
    ("f32", "f32", "1 if v < n else 0", ""),
    ("f32", "f32", "1 if n / 2 < 4.5 else v", ""),
    ("i32", "i32", "(v + 5) % n", ""),
    ("i32", "i32", "min(v, n - 1)", ""),
    ("i32", "i32", "n // 5 - v ** 2", ""),
    ("i32", "i32", "v << n // 6", ""),
    ("i32", "i32", "best", "best = n; best = min(best, v)"),
    ("i32", "i32", "best", "best = 0; best = n; best += v"),
    ("i32", "i32", "n if v > 3 else n + 1", ""),
    ("i32", "i32", "half - v", "half = n // 2"),
    ("u8", "u8", "v + n", ""),
    ("u8", "i32", "1 if v < n else 0", ""),
    ("u64", "u64", "v * n if v < n else 0", ""),
    ("i16", "f32", "v.to(f32) / n", ""),
    ("i64", "f32", "(n / 8).to(f32)", ""),
]


def make(dtype: str, result: str, value: str, statements: str) -> Any:
    names = {"dtype": dtype, "result": result, "value": value, "statements": statements or "pass"}
    return cell(TEXT.format(**names), "p.py")["make"]


@pytest.mark.parametrize("row", VALUES, ids=[f"{row[0]}: {row[3]} {row[2]}" for row in VALUES])
def test_a_dimension_is_as_good_as_a_number(row: tuple[str, str, str, str]) -> None:
    of = make(*row)
    constant, open_ = of(SIZE), of(tc.dim("n", example=SIZE))
    x = np.arange(SIZE).astype(constant.ir.parameters[0].dtype.numpy)
    expected = constant(x)
    made = open_(x)
    if "rsqrt" in row[2] or "**" in row[2]:  # of constants, Python's own
        np.testing.assert_allclose(made, expected, 1e-6)
    else:
        assert made.tobytes() == expected.tobytes()
    arguments = [x, np.zeros_like(expected)]
    for target in ("generic", "sm_80", "avx512"):
        kernel = replace(open_.ir, target=target)
        (stage,) = [same_after_every_pass(kernel, arguments, expected=results(open_.ir, arguments))]
        assert stage[-1].stage == "lean"


# The type of x, of y, what is computed of v, and statements before: named choices of numbers.
CHOICES: list[tuple[str, str, str, str]] = [
    ("f64", "i32", "s", "s = 1 if v > 3 else 0"),
    ("f64", "f64", "s", "s = -1.0 if v > 3 else 1.0"),
    ("f32", "f32", "v * s - s / 2", "s = 1 if v > 3 else 0.5"),
    ("f32", "f32", "s * s + v", "s = -1 if v < 3 else 0 if v == 3 else 1"),
    ("f32", "f32", "s", "s = 2 if v > 3 else n; s = s + v"),
    ("f32", "f32", "s + t", "s = 2 if v > 3 else 1; v = 0.0 * v; t = 1 if v > 0 else 0.5"),
    ("f64", "f64", "s", "s = 0 if start + i >= n - 1 else (1 if x[start + i + 1] > 3 else 2)"),
    ("i16", "i16", "v + s", "s = 0; s = 1 if v > 3 else 2"),
    ("i8", "i64", "s", "s = 1 if v > 3 else 0; s += 5"),
    ("f32", "f32", "max(s, v) * tc.sqrt(s)", "s = 4 if v > 3 else 9"),
    ("i32", "i32", "5 if s != t else 7", "s = 1 if v > 3 else 0; t = 1 if v < 9 else 0"),
    ("i32", "i32", "5 if not (s > t) else 7", "s = 1 if v > 3 else 0; t = s if v < 9 else 2"),
    ("u8", "f32", "1 if flag else 0.5", "flag = True if v > 3 else False; flag = flag and v < 9"),
]


@pytest.mark.parametrize("row", CHOICES, ids=[f"{row[0]}: {row[3]} {row[2]}" for row in CHOICES])
def test_a_choice_of_numbers_is_as_good_as_a_number(row: tuple[str, str, str, str]) -> None:
    made = make(*row)(SIZE)
    x = np.arange(SIZE).astype(made.ir.parameters[0].dtype.numpy)
    expected = []
    for i in range(SIZE):
        names = {"n": SIZE, "start": 0, "i": i, "x": x, "v": x[i], "tc": tc}
        exec(row[3], names)
        expected.append(eval(row[2], names))
    np.testing.assert_allclose(made(x), np.array(expected).astype(made(x).dtype), 1e-6)
    arguments = [x, np.zeros_like(made(x))]
    same_after_every_pass(made.ir, arguments, expected=results(made.ir, arguments))


def test_a_size_has_to_fit_as_a_number_has() -> None:
    of = make("u8", "u8", "v + n", "")
    kernel = of(tc.dim("n"))
    assert kernel(np.full(255, 1, np.uint8))[0] == 0
    with pytest.raises(tc.CheckError, match="n fits u8"):
        kernel(np.ones(256, np.uint8))
    with pytest.raises(tc.CompileError, match="256 is out of range for u8"):
        of(256)


def test_what_is_only_compared_need_not_fit() -> None:
    kernel = make("u8", "i32", "1 if v < n else 0", "")(tc.dim("n"))
    assert kernel(np.full(300, 255, np.uint8)).all()
    assert not [node for node in walk(kernel.ir.body) if isinstance(node, ir.Assert)]


def test_outside_of_kernels() -> None:
    n = tc.dim("n")
    for value, text in (
        (1 / n, "1.0 / n"),
        (n**-0.5, "pow(n, -0.5)"),
        (n * 0.5 + 1, "n * 0.5 + 1.0"),
        (-(n / 3), "0.0 - n / 3.0"),
        (n**2, "n * n"),
        (np.float32(0.5) / (n + 1), "0.5 / (n + 1)"),
    ):
        assert repr(value) == text
    for ask in (lambda: n / 2 < 1, lambda: n < 3.0, lambda: n >= 4, lambda: min(n, 5)):
        with pytest.raises(tc.CompileError, match="is known only at a call"):
            ask()
    with pytest.raises(TypeError, match="is known only at a call"):
        float(n / 2)
    with pytest.raises(TypeError):
        n / "2"


def test_a_size_that_is_named_begins_what_changes() -> None:
    """Its type is decided where something typed meets it, and the name is still the one that was bound."""
    n = tc.dim("n")

    @tc.function
    def last(y: Any, k: Any, size: Any) -> None:
        hole, behind = k, 2 * k + 1
        while behind < size:
            hole = behind
            behind = 2 * behind + 1
        y[0] = hole + behind

    @tc.kernel(workers=1)
    def walked(x: tc.i64[n], size: tc.i64, y: tc.inout[tc.i64[1]]):
        for _ in tc.tiles(1, by=1):
            for _ in tc.spatial(1):
                last(y, n, size)

    for size in (3, 40):
        y = np.zeros(1, np.int64)
        walked(np.zeros(3, np.int64), size, y)
        hole, behind = 3, 7
        while behind < size:
            hole, behind = behind, 2 * behind + 1
        assert y[0] == hole + behind


def test_what_is_asked_of_a_size_stands_with_the_statements_of_a_tile() -> None:
    n = tc.dim("n")

    @tc.kernel(workers=4)
    def scaled(x: tc.f16[n], y: tc.out[tc.f16[n]]) -> None:
        for start in tc.tiles(n, by=4):
            block = tc.load(x[start : start + 4], fill=0)
            for i in tc.spatial(4):
                if start + i < n:
                    y[start + i] = block[i] * n

    (grid,) = (node for node in walk(scaled.ir.body) if isinstance(node, ir.Grid))
    assert isinstance(grid.body, ir.Sequence)
    assert [type(part).__name__ for part in grid.body.statements][:1] == ["Assert"]
    assert not any(isinstance(part, ir.Sequence) for part in grid.body.statements)
