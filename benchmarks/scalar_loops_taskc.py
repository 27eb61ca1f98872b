"""The kernels of scalar_loops.py, each with one worker."""

from __future__ import annotations

import taskc as tc
from taskc import f64, i32, i64, spatial, u8, u64

N, M, K = tc.dim("n"), tc.dim("m"), tc.dim("k")


@tc.kernel(workers=1)
def crc16(data: u8[N], y: tc.inout[i32[1]]) -> None:
    for _ in spatial(1):
        crc = i32(0xFFFF)
        for i in range(N):
            b = data[i].to(i32)
            for _ in range(8):
                if ((crc ^ b) & 1) != 0:
                    crc = (crc >> 1) ^ 0x8408
                else:
                    crc = crc >> 1
                b = b >> 1
        y[0] = crc


@tc.kernel(workers=1)
def nussinov(bases: i32[N], t: tc.inout[i32[N, N]]) -> None:
    for _ in spatial(1):
        for i in range(N - 1, -1, -1):
            for j in range(i + 1, N):
                best = max(t[i, j - 1], t[i + 1, j])
                match = 1 if bases[i] + bases[j] == 3 else 0
                best = max(best, t[i + 1, j - 1] + match if i < j - 1 else t[i + 1, j - 1])
                for k in range(i + 1, j):
                    best = max(best, t[i, k] + t[k + 1, j])
                t[i, j] = best


@tc.kernel(workers=1)
def seidel(steps: i64, a: tc.inout[f64[N, N]]) -> None:
    for _ in spatial(1):
        for _ in range(steps):
            for i in range(1, N - 1):
                for j in range(1, N - 1):
                    above = a[i - 1, j - 1] + a[i - 1, j] + a[i - 1, j + 1]
                    below = a[i + 1, j - 1] + a[i + 1, j] + a[i + 1, j + 1]
                    a[i, j] = (above + a[i, j - 1] + a[i, j] + a[i, j + 1] + below) / 9.0


@tc.kernel(workers=1)
def lu(a: tc.inout[f64[N, N]]) -> None:
    for _ in spatial(1):
        for i in range(N):
            for j in range(i):
                total = a[i, j]
                for k in range(j):
                    total -= a[i, k] * a[k, j]
                a[i, j] = total / a[j, j]
            for j in range(i, N):
                total = a[i, j]
                for k in range(i):
                    total -= a[i, k] * a[k, j]
                a[i, j] = total


@tc.kernel(workers=1)
def cholesky(a: tc.inout[f64[N, N]]) -> None:
    for _ in spatial(1):
        for i in range(N):
            for j in range(i):
                total = a[i, j]
                for k in range(j):
                    total -= a[i, k] * a[j, k]
                a[i, j] = total / a[j, j]
            total = a[i, i]
            for k in range(i):
                total -= a[i, k] * a[i, k]
            a[i, i] = tc.sqrt(total)


@tc.kernel(workers=1)
def floyd_warshall(a: tc.inout[i32[N, N]]) -> None:
    for _ in spatial(1):
        for k in range(N):
            for i in range(N):
                for j in range(N):
                    a[i, j] = min(a[i, j], a[i, k] + a[k, j])


@tc.kernel(workers=1)
def triangular_solve(a: f64[N, N], b: f64[N], x: tc.inout[f64[N]]) -> None:
    for _ in spatial(1):
        for i in range(N):
            total = b[i]
            for j in range(i):
                total -= a[i, j] * x[j]
            x[i] = total / a[i, i]


@tc.kernel(workers=1)
def thomas(
    a: f64[N], c: f64[N], d: f64[N], b: f64[N], upper: tc.inout[f64[N]], x: tc.inout[f64[N]]
) -> None:
    assert N > 0
    for _ in spatial(1):
        upper[0] = c[0] / b[0]
        x[0] = d[0] / b[0]
        for i in range(1, N):
            scale = 1.0 / (b[i] - a[i] * upper[i - 1])
            upper[i] = c[i] * scale
            x[i] = (d[i] - a[i] * x[i - 1]) * scale
        for i in range(N - 2, -1, -1):
            x[i] = x[i] - upper[i] * x[i + 1]


@tc.kernel(workers=1)
def recursive_filter(x: f64[N], y: tc.inout[f64[N]]) -> None:
    for _ in spatial(1):
        before, earlier = f64(0), f64(0)
        for i in range(N):
            now = 0.2 * x[i] + 1.1 * before - 0.4 * earlier
            earlier = before
            before = now
            y[i] = now


@tc.kernel(workers=1)
def edit_distance(a: u8[N], b: u8[M], d: tc.inout[i32[N + 1, M + 1]]) -> None:
    for _ in spatial(1):
        for i in range(N + 1):
            d[i, 0] = i.to(i32)
        for j in range(M + 1):
            d[0, j] = j.to(i32)
        for i in range(N):
            for j in range(M):
                change = 0 if a[i] == b[j] else 1
                d[i + 1, j + 1] = min(d[i, j + 1] + 1, d[i + 1, j] + 1, d[i, j] + change)


@tc.kernel(workers=1)
def mandelbrot(most: i64, places: f64[N], counts: tc.inout[i32[N, N]]) -> None:
    for _ in spatial(1):
        for i in range(N):
            for j in range(N):
                x, y, turns = f64(0), f64(0), i32(0)
                while turns < most and x * x + y * y < 4.0:
                    x, y = x * x - y * y + places[j], 2 * x * y + places[i]
                    turns += 1
                counts[i, j] = turns


@tc.kernel(workers=1)
def collatz(count: i64, longest: tc.inout[i64[1]]) -> None:
    for _ in spatial(1):
        best = i64(0)
        for start in range(1, count):
            number, steps = start, i64(0)
            while number != 1:
                number = 3 * number + 1 if number & 1 == 1 else number >> 1
                steps += 1
            best = max(best, steps)
        longest[0] = best


@tc.kernel(workers=1)
def sparse_product(
    x: f64[N], starts: i32[N + 1], columns: i32[K], values: f64[K], y: tc.inout[f64[N]]
) -> None:
    for _ in spatial(1):
        for i in range(N):
            total, first, last = f64(0), starts[i], starts[i + 1]
            assert first >= 0
            assert last <= K
            for p in range(first, last):
                column = columns[p]
                assert 0 <= column < N
                total += values[p] * x[column]
            y[i] = total


@tc.kernel(workers=1)
def histogram(x: i32[N], counts: tc.inout[i32[256]]) -> None:
    for _ in spatial(1):
        for i in range(N):
            assert 0 <= x[i] < 256
            counts[x[i]] += 1


@tc.kernel(workers=1)
def insertion_sort(a: tc.inout[f64[N]]) -> None:
    for _ in spatial(1):
        for i in range(1, N):
            value, place = a[i], i
            for j in range(i - 1, -1, -1):
                if a[j] <= value:
                    break
                a[j + 1] = a[j]
                place = j
            assert 0 <= place < N
            a[place] = value


@tc.kernel(workers=1)
def search(a: i64[N], place: tc.inout[i64[1]]) -> None:
    for _ in spatial(1):
        k = i64(0)
        while k < N and a[k] != 7:
            k += 1
        place[0] = k


@tc.kernel(workers=1)
def newton(a: f64[N], roots: tc.inout[f64[N]]) -> None:
    for _ in spatial(1):
        for i in range(N):
            x = a[i]
            while abs(x * x - a[i]) > 1e-9 * a[i]:
                x = 0.5 * (x + a[i] / x)
            roots[i] = x


@tc.kernel(workers=1)
def xorshift(count: i64, state: tc.inout[u64[1]]) -> None:
    for _ in spatial(1):
        x = state[0]
        for _ in range(count):
            x = x ^ (x << 13)
            x = x ^ (x >> 7)
            x = x ^ (x << 17)
        state[0] = x
