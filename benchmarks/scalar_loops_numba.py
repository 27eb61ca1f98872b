"""The loops of scalar_loops.py as Numba compiles them; it is imported here alone."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np


@numba.njit
def crc16(data: Any, y: Any) -> None:
    crc = 0xFFFF
    for i in range(data.shape[0]):
        b = data[i]
        for _ in range(8):
            if ((crc ^ b) & 1) != 0:
                crc = (crc >> 1) ^ 0x8408
            else:
                crc = crc >> 1
            b = b >> 1
    y[0] = crc


@numba.njit
def nussinov(bases: Any, t: Any) -> None:
    n = t.shape[0]
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, n):
            best = max(t[i, j - 1], t[i + 1, j])
            match = 1 if bases[i] + bases[j] == 3 else 0
            best = max(best, t[i + 1, j - 1] + match if i < j - 1 else t[i + 1, j - 1])
            for k in range(i + 1, j):
                best = max(best, t[i, k] + t[k + 1, j])
            t[i, j] = best


@numba.njit
def seidel(steps: Any, a: Any) -> None:
    n = a.shape[0]
    for _ in range(steps):
        for i in range(1, n - 1):
            for j in range(1, n - 1):
                above = a[i - 1, j - 1] + a[i - 1, j] + a[i - 1, j + 1]
                below = a[i + 1, j - 1] + a[i + 1, j] + a[i + 1, j + 1]
                a[i, j] = (above + a[i, j - 1] + a[i, j] + a[i, j + 1] + below) / 9.0


@numba.njit
def lu(a: Any) -> None:
    n = a.shape[0]
    for i in range(n):
        for j in range(i):
            total = a[i, j]
            for k in range(j):
                total -= a[i, k] * a[k, j]
            a[i, j] = total / a[j, j]
        for j in range(i, n):
            total = a[i, j]
            for k in range(i):
                total -= a[i, k] * a[k, j]
            a[i, j] = total


@numba.njit
def cholesky(a: Any) -> None:
    n = a.shape[0]
    for i in range(n):
        for j in range(i):
            total = a[i, j]
            for k in range(j):
                total -= a[i, k] * a[j, k]
            a[i, j] = total / a[j, j]
        total = a[i, i]
        for k in range(i):
            total -= a[i, k] * a[i, k]
        a[i, i] = np.sqrt(total)


@numba.njit
def floyd_warshall(a: Any) -> None:
    n = a.shape[0]
    for k in range(n):
        for i in range(n):
            for j in range(n):
                a[i, j] = min(a[i, j], a[i, k] + a[k, j])


@numba.njit
def triangular_solve(a: Any, b: Any, x: Any) -> None:
    for i in range(x.shape[0]):
        total = b[i]
        for j in range(i):
            total -= a[i, j] * x[j]
        x[i] = total / a[i, i]


@numba.njit
def thomas(a: Any, c: Any, d: Any, b: Any, upper: Any, x: Any) -> None:
    n = x.shape[0]
    upper[0] = c[0] / b[0]
    x[0] = d[0] / b[0]
    for i in range(1, n):
        scale = 1.0 / (b[i] - a[i] * upper[i - 1])
        upper[i] = c[i] * scale
        x[i] = (d[i] - a[i] * x[i - 1]) * scale
    for i in range(n - 2, -1, -1):
        x[i] = x[i] - upper[i] * x[i + 1]


@numba.njit
def recursive_filter(x: Any, y: Any) -> None:
    before, earlier = 0.0, 0.0
    for i in range(x.shape[0]):
        now = 0.2 * x[i] + 1.1 * before - 0.4 * earlier
        earlier = before
        before = now
        y[i] = now


@numba.njit
def edit_distance(a: Any, b: Any, d: Any) -> None:
    n, m = a.shape[0], b.shape[0]
    for i in range(n + 1):
        d[i, 0] = i
    for j in range(m + 1):
        d[0, j] = j
    for i in range(n):
        for j in range(m):
            change = 0 if a[i] == b[j] else 1
            d[i + 1, j + 1] = min(d[i, j + 1] + 1, d[i + 1, j] + 1, d[i, j] + change)


@numba.njit
def mandelbrot(most: Any, places: Any, counts: Any) -> None:
    n = places.shape[0]
    for i in range(n):
        for j in range(n):
            x, y, turns = 0.0, 0.0, 0
            while turns < most and x * x + y * y < 4.0:
                x, y = x * x - y * y + places[j], 2 * x * y + places[i]
                turns += 1
            counts[i, j] = turns


@numba.njit
def collatz(count: Any, longest: Any) -> None:
    best = 0
    for start in range(1, count):
        number, steps = start, 0
        while number != 1:
            number = 3 * number + 1 if number & 1 == 1 else number >> 1
            steps += 1
        best = max(best, steps)
    longest[0] = best


@numba.njit
def sparse_product(x: Any, starts: Any, columns: Any, values: Any, y: Any) -> None:
    for i in range(y.shape[0]):
        total = 0.0
        for p in range(starts[i], starts[i + 1]):
            total += values[p] * x[columns[p]]
        y[i] = total


@numba.njit
def histogram(x: Any, counts: Any) -> None:
    for i in range(x.shape[0]):
        counts[x[i]] += 1


@numba.njit
def insertion_sort(a: Any) -> None:
    for i in range(1, a.shape[0]):
        value, place = a[i], i
        for j in range(i - 1, -1, -1):
            if a[j] <= value:
                break
            a[j + 1] = a[j]
            place = j
        a[place] = value


@numba.njit
def search(a: Any, place: Any) -> None:
    k = 0
    while k < a.shape[0] and a[k] != 7:
        k += 1
    place[0] = k


@numba.njit
def newton(a: Any, roots: Any) -> None:
    for i in range(a.shape[0]):
        x = a[i]
        while abs(x * x - a[i]) > 1e-9 * a[i]:
            x = 0.5 * (x + a[i] / x)
        roots[i] = x


@numba.njit
def xorshift(count: Any, state: Any) -> None:
    x = state[0]
    for _ in range(count):
        x = x ^ (x << np.uint64(13))
        x = x ^ (x >> np.uint64(7))
        x = x ^ (x << np.uint64(17))
    state[0] = x
