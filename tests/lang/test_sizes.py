"""Extents that are computed from symbolic dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, spatial
from taskc.arrays.arguments import ArgumentError
from taskc.ir import calls_text
from taskc.lang.sizes import Size

m, n = tc.dim("m", example=5), tc.dim("n", example=4)


@tc.kernel(workers=8)
def flatten(x: f32[m, n], y: tc.out[f32[m * n]]):
    for row, col in tc.tiles((m, n), by=(2, 4)):
        for i, j in spatial(2, 4):
            if row + i < m and col + j < n:
                y[(row + i) * n + col + j] = x[row + i, col + j]


@tc.kernel(workers=8)
def smooth(x: f32[n], y: tc.out[f32[n - 2]]):
    for start in tc.tiles(n - 2, by=8):
        for i in spatial(8):
            if start + i < n - 2:
                y[start + i] = x[start + i] + x[start + i + 1] + x[start + i + 2]


@pytest.mark.parametrize("shape", [(5, 4), (1, 1), (0, 3), (3, 0), (7, 13)])
def test_a_product(shape: tuple[int, int]) -> None:
    x = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(flatten(x), x.ravel())


def test_a_difference() -> None:
    np.testing.assert_array_equal(smooth(np.ones(9, np.float32)), np.full(7, 3, np.float32))
    assert smooth(np.ones(2, np.float32)).shape == (0,)
    with pytest.raises(ArgumentError, match=r"output 'y' would have the extent n - 2 = -1"):
        smooth(np.ones(1, np.float32))


def test_a_dimension_that_only_the_output_has() -> None:
    @tc.kernel(workers=8)
    def pairs(x: f32[n + 1], y: tc.out[f32[n]]):
        for start in tc.tiles(n, by=8):
            for i in spatial(8):
                if start + i < n:
                    y[start + i] = x[start + i] + x[start + i + 1]

    x = np.arange(10, dtype=np.float32)
    np.testing.assert_array_equal(pairs(x), x[1:] + x[:-1])
    assert pairs(x[:1]).shape == (0,)
    with pytest.raises(
        ArgumentError, match=r"'x' must be f32\[n \+ 1\] with n a whole number, 0 or more"
    ):
        pairs(x[:0])
    with pytest.raises(
        ArgumentError, match=r"'x' must be f32\[n \+ 1\] with n \+ 1 = 9, not f32\[10\]"
    ):
        pairs(x, out=np.empty(8, np.float32))


@tc.kernel(workers=8)
def repeated(x: f32[m * n], z: f32[3 * m], y: tc.out[f32[n]]):
    for start in tc.tiles(n, by=8):
        for i in spatial(8):
            if start + i < n:
                y[start + i] = x[start + i] if m > 0 else z[0] if m > 1 else 0


def test_dimensions_that_follow_one_from_another() -> None:
    x, z = np.arange(10, dtype=np.float32), np.zeros(6, np.float32)
    np.testing.assert_array_equal(repeated(x, z), x[:5])  # m from z, and n from x

    @tc.program
    def twice(x: f32[2 * n], z: f32[6], y: tc.out[f32[n]]):
        repeated(x, z, out=y)

    np.testing.assert_array_equal(twice(x, z), x[:5])
    for wrong, message in (
        ((x, z[:5]), r"'z' must be f32\[m \* 3\] with m a whole number, 0 or more, not f32\[5\]"),
        ((x[:9], z), r"'x' must be f32\[m \* n\] with n a whole number, 0 or more, not f32\[9\]"),
        (
            (x, z[:0]),
            "'x' has the extent m [*] n, and nothing tells n; give an argument the extent n, or",
        ),
    ):
        with pytest.raises(ArgumentError, match=message):
            repeated(*wrong)


def test_what_does_not_fit() -> None:
    x = np.ones((5, 4), np.float32)
    message = r"output 'y' must be f32\[m \* n\] with m \* n = 20, not f32\[21\]"
    with pytest.raises(ArgumentError, match=message):
        flatten(x, out=np.empty(21, np.float32))

    @tc.kernel(workers=1)
    def unknown(y: tc.inout[f32[m * n]]):
        for i in spatial(1):
            if m * n > 0:
                y[i] = 0

    with pytest.raises(
        ArgumentError,
        match=r"nothing tells m; give an argument the extent m, or declare f32\[m, n\].reshape\(m \* n\)$",
    ):
        unknown(np.ones(4, np.float32))


def test_examples_and_names() -> None:
    assert repr(flatten) == "<tc.kernel flatten(x: f32[m, n], y: out f32[m * n]), 8 workers>"
    assert smooth.example()[0].shape == (4,)
    extent = 2 * (m + 1) - n // 3
    assert isinstance(extent, Size)
    assert [str(size) for size in (extent, -m, 7 - m, tc.cdiv(m, 2), m % 3)] == [
        "(m + 1) * 2 - n // 3",
        "0 - m",
        "7 - m",
        "(m + 1) // 2",
        "m % 3",
    ]
    assert m + n - n is m
    assert (m - m, n * 0 + 3) == (0, 3)


def test_what_is_no_size() -> None:
    with pytest.raises(TypeError):
        m * "two"
    for wrong in (lambda: n // m, lambda: 2 // m, lambda: m % 0):
        with pytest.raises(tc.CompileError, match="divided by a constant of at least 1"):
            wrong()
    for wrong in (lambda: range(m), lambda: int(m + 1), lambda: float(m)):  # type: ignore[call-overload, arg-type, return-value]
        with pytest.raises(TypeError, match="is known only at a call"):
            wrong()


@tc.kernel(workers=4)
def last(x: f32[n], y: tc.out[f32[n % 3]]):
    for i in spatial(4):
        if i < n % 3:
            assert n // 3 * 3 + i < n
            y[i] = x[n // 3 * 3 + i]


def test_a_remainder() -> None:
    np.testing.assert_array_equal(last(np.arange(8, dtype=np.float32)), [6, 7])
    assert last(np.ones(3, np.float32)).shape == (0,)


# --- in programs -----------------------------------------------------------------------------

rows = tc.dim("rows", example=3)


@tc.kernel(workers=8)
def sums(x: f32[n + 1], y: tc.out[f32[n]]):
    for start in tc.tiles(n, by=8):
        for i in spatial(8):
            if start + i < n:
                y[start + i] = x[start + i] + x[start + i + 1]


@tc.kernel(workers=8)
def plus(x: f32[m, n], flat: f32[m * n], y: tc.out[f32[m, n]]):
    for row, col in tc.tiles((m, n), by=(2, 4)):
        for i, j in spatial(2, 4):
            if row + i < m and col + j < n:
                y[row + i, col + j] = x[row + i, col + j] + flat[(row + i) * n + col + j]


def temporaries(program: tc.ProgramDefinition) -> list[str]:
    lines = [line.strip() for line in calls_text(program.ir).splitlines()]
    return [line for line in lines if line.startswith("temporary")]


def test_a_program_calls_kernels_of_computed_extents() -> None:
    @tc.program
    def program(x: f32[rows, 4], y: tc.out[f32[rows, 4]], z: tc.out[f32[4 * rows]]):
        flat = flatten(x)
        assert flat.shape[0] == 4 * rows
        plus(x, flat, out=y)
        flatten(y, out=z)

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    y, z = program(x)
    assert temporaries(program) == ["temporary flat: f32[rows * 4]"]
    np.testing.assert_array_equal(y, x + x)
    np.testing.assert_array_equal(z, (x + x).ravel())
    assert not any(examined.findings for examined in tc.check(program))


def test_a_program_learns_a_dimension_from_a_computed_extent() -> None:
    @tc.program
    def program(x: f32[rows], y: tc.out[f32[rows - 2]]):
        sums(sums(x), out=y)

    x = np.arange(5, dtype=np.float32)
    assert temporaries(program) == ["temporary y_1: f32[rows - 1]"]
    np.testing.assert_array_equal(program(x), [4, 8, 12])
    with pytest.raises(ArgumentError, match=r"output 'y' would have the extent rows - 2 = -1"):
        program(x[:1])

    @tc.program(fuse=False)
    def unused(x: f32[rows]):
        sums(x)

    with pytest.raises(ArgumentError, match=r"has the extent rows - 1 = -1, and an extent is 0"):
        unused(x[:0])


def test_computed_extents_of_constant_sizes() -> None:
    @tc.program
    def program(x: f32[2, 3], z: f32[1], y: tc.out[f32[6]]):
        flatten(x, out=y)
        sums(z)

    assert temporaries(program) == ["temporary y_1: f32[0]"]
    assert program(np.ones((2, 3), np.float32), np.ones(1, np.float32)).shape == (6,)


def test_a_program_in_a_program_with_computed_extents() -> None:
    @tc.program
    def inner(x: f32[n], y: tc.out[f32[n - 2]]):
        sums(sums(x), out=y)

    @tc.program
    def outer(x: f32[rows], z: f32[6], y: tc.out[f32[rows - 4]], w: tc.out[f32[2]]):
        inner(inner(x), out=y)
        inner(inner(z), out=w)

    y, w = outer(np.arange(7, dtype=np.float32), np.arange(6, dtype=np.float32))
    np.testing.assert_array_equal(y, [32, 48, 64])
    np.testing.assert_array_equal(w, [32, 48])


def test_sizes_are_no_programs_own() -> None:
    kept: list[Any] = []

    @tc.program
    def first(x: f32[rows]):
        @tc.kernel(workers=4)
        def look(x: tc.out[f32[rows + 1]], like: f32[rows]):
            pass

        kept.extend([x.shape[0] + 1, look])

    size, look = kept
    assert repr(look) == "<tc.kernel look(x: out f32[rows + 1], like: f32[rows]), 4 workers>"

    @tc.program
    def second(like: f32[rows]):
        look(like, out=tc.empty(f32[size]))

    assert temporaries(second) == ["temporary temporary: f32[rows + 1]"]
