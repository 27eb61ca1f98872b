"""tc.reduce and tc.scan by a function: the same at every stage and on every target."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, f64, i32, repeat, spatial
from taskc.backend.sim import run
from taskc.ir.mapping import Mapping
from taskc.ir.printer import to_text
from tests.stages import same_after_every_pass


@tc.function
def larger(a: Any, b: Any) -> Any:
    value, place = a
    other, there = b
    first = value > other or (value == other and place < there)
    return value if first else other, place if first else there


@tc.function
def moments(a: Any, b: Any) -> Any:
    """Of two groups of numbers: how many, their mean, and the sum of the squares of their distances from it."""
    count, mean, squares = a
    more, other, others = b
    both = count + more
    away = other - mean
    share = more / both
    return both, mean + away * share, squares + others + away * away * count * share


def folded(own: Mapping) -> Any:
    rows, columns = own.shape

    @tc.kernel(workers=own.workers)
    def folds(
        x: f32[rows, columns],
        best: tc.out[f32[rows]],
        place: tc.out[i32[rows]],
        mean: tc.out[f32[rows]],
        squares: tc.out[f32[rows]],
    ):
        t = tc.tile(f32, own, 0)
        tc.copy(t, x[0:rows, 0:columns])
        places = tc.tile(i32, own, 0)
        for i, j in own:
            places[i, j] = j.to(i32)
        value, where = tc.reduce((t, places), 1, larger)
        tc.store(best[0:rows], value)
        tc.store(place[0:rows], where)
        ones, none = tc.tile(f32, own, 1), tc.tile(f32, own, 0)
        _, middle, spread = tc.reduce((ones, t, none), 1, moments)
        tc.store(mean[0:rows], middle)
        tc.store(squares[0:rows], spread)

    return folds


@pytest.mark.parametrize(
    "own",
    [
        repeat(2, 5),
        spatial(1, 1),
        spatial(1, 64) * repeat(1, 2),
        spatial(1, 2) * repeat(1, 2) * spatial(2, 16) * repeat(1, 2),
        spatial(8, 3) * repeat(1, 2) * spatial(1, 4),
        spatial(2, 16, order=(1, 0)) * repeat(1, 3),
    ],
    ids=str,
)
def test_reductions_by_functions(own: Mapping) -> None:
    folds, (rows, columns) = folded(own), own.shape
    x = np.random.default_rng(columns).integers(-3, 4, own.shape).astype(np.float32)
    best, place, mean, squares = folds(x)
    np.testing.assert_array_equal(best, x.max(1))
    np.testing.assert_array_equal(place, x.argmax(1))
    np.testing.assert_allclose(mean, x.mean(1), atol=1e-5)
    np.testing.assert_allclose(squares, x.var(1) * columns, rtol=1e-5, atol=1e-4)

    x = np.random.default_rng(1).standard_normal(own.shape).astype(np.float32)
    made = [np.zeros(rows, dtype) for dtype in (np.float32, np.int32, np.float32, np.float32)]
    given = [x, *made]
    expected = [np.copy(one) for one in given]
    assert run(folds.ir, expected).ok
    for one, other in zip(folds(x), expected[1:], strict=True):
        assert one.tobytes() == other.tobytes()
    seen: set[str] = set()
    for target in ("sm_80", "avx512"):
        same_after_every_pass(replace(folds.ir, target=target), given, expected=expected, seen=seen)


def test_a_tuple_of_one_gives_one() -> None:
    @tc.function
    def both(a, b):
        return (a[0] + b[0],)

    @tc.kernel(workers=8)
    def total(x: f64[8], y: tc.out[f64[1]]):
        t = tc.tile(f64, spatial(8), 0)
        tc.copy(t, x[0:8])
        (sums,) = tc.reduce((t,), 0, both)
        tc.store(y[0:1], sums)

    assert total(np.arange(8.0)).tolist() == [28.0]


def test_numbers_take_the_type_of_the_elements() -> None:
    @tc.function
    def any_positive(a, b):
        return 1 if a > 0 or b > 0 else 0

    @tc.kernel(workers=8)
    def anywhere(x: i32[8], y: tc.out[i32[1]]):
        t = tc.tile(i32, spatial(8), 0)
        tc.copy(t, x[0:8])
        tc.store(y[0:1], tc.reduce(t, 0, any_positive))

    x = np.zeros(8, np.int32)
    assert anywhere(x).tolist() == [0]
    x[5] = 7
    assert anywhere(x).tolist() == [1]


def test_the_function_stands_in_the_text() -> None:
    lines = to_text(folded(spatial(1, 8)).ir).splitlines()
    first = next(line.strip() for line in lines if line.strip().startswith("combine"))
    assert first.startswith("combine larger(a0: f32, a1: i32, b0: f32, b1: i32) = let value = a0, ")
    assert sum("= larger over (" in line for line in lines) == 1
