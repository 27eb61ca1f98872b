"""Reductions and scans by functions of one's own: each folds two elements, or two tuples of them, to one.

`repeat(1, 4) * spatial(1, 32)` says: 32 workers side by side take 32 neighbouring elements of a row, 4 times.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import taskc as tc
from taskc import boolean, f32, i32, repeat, spatial

N = 128
own = repeat(1, N // 32) * spatial(1, 32)
rows = tc.dim("rows", example=3)


@tc.function
def first_of(a: Any, b: Any) -> Any:
    """The larger value and its place; of equal values the first place."""
    value, place = a
    other, there = b
    is_first = value > other or (value == other and place < there)
    return value if is_first else other, place if is_first else there


@tc.function
def second_of(a: Any, b: Any) -> Any:
    value, place = a
    other, there = b
    is_first = value > other or (value == other and place < there)
    return other if is_first else value, there if is_first else place


def peaks(random: np.random.Generator) -> tuple[Any]:
    """Rows whose largest element is the last one, the first, and any."""
    x = random.standard_normal((3, N)).astype(np.float32)
    x[0].sort()
    x[1][::-1].sort()
    return (x,)


@tc.kernel(workers=32, example=peaks)
def argmax(x: f32[rows, N], y: tc.out[i32[rows]]) -> None:
    for row in tc.tiles(rows, by=1):
        values, places = tc.tile(f32, own, 0), tc.tile(i32, own, 0)
        for i, j in own:
            values[i, j] = x[row, j]
            places[i, j] = j.to(i32)
        _, best = tc.reduce((values, places), 1, first_of)
        tc.store(y[row : row + 1], best)


@tc.function
def best_two(a: Any, b: Any) -> Any:
    """Of two pairs, each with its larger element first, the two largest: values, then places."""
    top = first_of((a[0], a[2]), (b[0], b[2]))
    left = second_of((a[0], a[2]), (b[0], b[2]))
    right = first_of((a[1], a[3]), (b[1], b[3]))
    next = first_of(left, right)
    return top[0], next[0], top[1], next[1]


@tc.kernel(workers=32, example=peaks)
def top_two(x: f32[rows, N], value: tc.out[f32[rows, 2]], place: tc.out[i32[rows, 2]]) -> None:
    for row in tc.tiles(rows, by=1):
        values, places = tc.tile(f32, own, 0), tc.tile(i32, own, 0)
        others, nowhere = tc.tile(f32, own, float("-inf")), tc.tile(i32, own, N)
        for i, j in own:
            values[i, j] = x[row, j]
            places[i, j] = j.to(i32)
        first, second, here, there = tc.reduce((values, others, places, nowhere), 1, best_two)
        tc.store(value[row : row + 1, 0], first)
        tc.store(value[row : row + 1, 1], second)
        tc.store(place[row : row + 1, 0], here)
        tc.store(place[row : row + 1, 1], there)


@tc.function
def welford(a: Any, b: Any) -> Any:
    """How many numbers, their mean, and the squares of their distances from it: of two groups together."""
    count, mean, squares = a
    more, other, others = b
    both, away = count + more, other - mean
    return both, mean + away * (more / both), squares + others + away * away * count * (more / both)


@tc.kernel(workers=32)
def variance(x: f32[rows, N], y: tc.out[f32[rows]]) -> None:
    for row in tc.tiles(rows, by=1):
        count, mean, squares = tc.tile(f32, own, 1), tc.tile(f32, own, 0), tc.tile(f32, own, 0)
        for i, j in own:
            mean[i, j] = x[row, j]
        count, _, squares = tc.reduce((count, mean, squares), 1, welford)
        for i in count.mapping:
            y[row] = squares[i] / count[i]


@tc.function
def log_add(a: Any, b: Any) -> Any:
    """log(exp(a) + exp(b)), where neither power is too large."""
    larger = max(a, b)
    return larger + tc.log(tc.exp(a - larger) + tc.exp(b - larger))


@tc.kernel(workers=32)
def log_sum_exp(x: f32[rows, N], y: tc.out[f32[rows]]) -> None:
    for row in tc.tiles(rows, by=1):
        t = tc.tile(f32, own, 0)
        tc.copy(t, x[row : row + 1, 0:N])
        tc.store(y[row : row + 1], tc.reduce(t, 1, log_add))


@tc.function
def after(a: Any, b: Any) -> Any:
    """First h * a0 + a1, then that * b0 + b1."""
    return a[0] * b[0], a[1] * b[0] + b[1]


@tc.kernel(workers=32)
def recurrence(keep: f32[rows, N], more: f32[rows, N], h: tc.out[f32[rows, N]]) -> None:
    """h[t] = keep[t] * h[t - 1] + more[t], from 0 on."""
    for row in tc.tiles(rows, by=1):
        factor, term = tc.tile(f32, own, 0), tc.tile(f32, own, 0)
        tc.copy(factor, keep[row : row + 1, 0:N])
        tc.copy(term, more[row : row + 1, 0:N])
        _, states = tc.scan((factor, term), 1, after)
        tc.store(h[row : row + 1, 0:N], states)


@tc.function
def within_segment(a: Any, b: Any) -> Any:
    """A sum begins again where a segment does."""
    begins, total = a
    again, more = b
    return begins or again, more if again else total + more


@tc.kernel(workers=32)
def segmented_sums(x: f32[rows, N], begins: boolean[rows, N], y: tc.out[f32[rows, N]]) -> None:
    for row in tc.tiles(rows, by=1):
        t, flags = tc.tile(f32, own, 0), tc.tile(boolean, own, False)
        tc.copy(t, x[row : row + 1, 0:N])
        tc.copy(flags, begins[row : row + 1, 0:N])
        _, sums = tc.scan((flags, t), 1, within_segment)
        tc.store(y[row : row + 1, 0:N], sums)


def main() -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((5, N)).astype(np.float32)
    assert (argmax(x) == x.argmax(1)).all()
    value, place = top_two(x)
    assert (place == np.argsort(-x, 1)[:, :2]).all()
    assert (value == np.take_along_axis(x, place, 1)).all()
    errors = [np.abs(variance(x) - x.var(1)), np.abs(log_sum_exp(x) - np.log(np.exp(x).sum(1)))]

    keep, begins = random.uniform(0, 1, x.shape).astype(np.float32), random.random(x.shape) < 0.1
    states, sums = recurrence(keep, x), segmented_sums(x, begins)
    state, total = np.zeros(5), np.zeros(5)
    for j in range(N):
        state = keep[:, j] * state + x[:, j]
        total = np.where(begins[:, j], 0, total) + x[:, j]
        errors += [np.abs(states[:, j] - state), np.abs(sums[:, j] - total)]
    print(f"combine: largest error {np.max(errors):.1e}")


if __name__ == "__main__":
    main()
