"""What a CUDA author writes, first thing: all of it is proved, for all sizes, and right."""

from __future__ import annotations

import numpy as np
import pytest

import taskc as tc
from taskc import f32, i8, i32, spatial
from taskc.passes.prove import findings

m, n, k = tc.dim("m"), tc.dim("n"), tc.dim("k")
d = tc.dim("d", multiple=2)
nnz = tc.dim("nnz")


@tc.kernel(workers=64)
def stencil(x: f32[n + 2], y: tc.out[f32[n]]):
    for start in tc.tiles(n, by=64):
        halo = tc.load((66,), lambda i: x[start + i] if start + i < n + 2 else 0.0)
        for i in spatial(64):
            if start + i < n:
                y[start + i] = halo[i] + halo[i + 1] + halo[i + 2]


@tc.kernel(workers=64)
def block_sums(x: f32[n], sums: tc.out[f32[tc.cdiv(n, 64)]]):
    for block in tc.tiles(tc.cdiv(n, 64), by=1):
        buf = tc.shared(f32[64])
        for i in spatial(64):
            buf[i] = x[64 * block + i] if 64 * block + i < n else 0.0
        s = 32
        while s > 0:
            for i in spatial(64):
                if i < s:
                    buf[i] += buf[i + s]
            s //= 2
        for i in spatial(64):
            if i == 0:
                sums[block] = buf[0]


@tc.kernel(workers=64)
def block_scan(x: f32[n], before: f32[tc.cdiv(n, 64)], y: tc.out[f32[n]]):
    for start in tc.tiles(n, by=64):
        a = tc.shared(f32[2, 64])
        for i in spatial(64):
            a[0, i] = x[start + i] if start + i < n else 0.0
        turn, s = 0, 1
        while s < 64:
            for i in spatial(64):
                if i >= s:
                    a[1 - turn, i] = a[turn, i] + a[turn, i - s]
                else:
                    a[1 - turn, i] = a[turn, i]
            turn = 1 - turn
            s *= 2
        for i in spatial(64):
            if start + i < n:
                y[start + i] = a[turn, i] + before[start // 64]


@tc.kernel(workers=32)
def batched_gemv(a: f32[m, n, k], x: f32[m, k], y: tc.out[f32[m, n]]):
    for b, row in tc.tiles((m, n), by=(1, 32)):
        for i in spatial(32):
            if row + i < n:
                total = f32(0)
                for q in range(k):
                    total += a[b, row + i, q] * x[b, q]
                y[b, row + i] = total


@tc.kernel(workers=32)
def dot8(a: i8[n], b: i8[n], total: tc.inout[i32[1]]):
    for start in tc.tiles(n, by=32):
        for i in spatial(32):
            if start + i < n:
                tc.atomic_add(total[0], a[start + i].to(i32) * b[start + i].to(i32))


@tc.kernel(workers=32)
def argmax(x: f32[m, n], y: tc.out[i32[m]]):
    for row in tc.tiles(m, by=1):
        best, where = tc.shared(f32[32]), tc.shared(i32[32])
        for i in spatial(32):
            b, w = -tc.inf, i32(0)
            for q in range(i, n, 32):
                if x[row, q] > b:
                    b = x[row, q]
                    w = q.to(i32)
            best[i] = b
            where[i] = w
        s = 16
        while s > 0:
            for i in spatial(32):
                if i < s and best[i + s] > best[i]:
                    best[i] = best[i + s]
                    where[i] = where[i + s]
            s = s // 2
        for i in spatial(32):
            if i == 0:
                y[row] = where[0]


@tc.kernel(workers=32)
def embed(ids: i32[m], table: f32[n, k], y: tc.out[f32[m, k]]):
    for row, col in tc.tiles((m, k), by=(1, 32)):
        for j in spatial(32):
            if col + j < k:
                id = ids[row]
                assert 0 <= id < n, "a row of the table"
                y[row, col + j] = table[id, col + j]


@tc.kernel(workers=32)
def rope(x: f32[m, d], cos: f32[m, d // 2], sin: f32[m, d // 2], y: tc.out[f32[m, d]]):
    for row, col in tc.tiles((m, d // 2), by=(1, 32)):
        for j in spatial(32):
            if col + j < d // 2:
                a, b = x[row, 2 * (col + j)], x[row, 2 * (col + j) + 1]
                c, s = cos[row, col + j], sin[row, col + j]
                y[row, 2 * (col + j)] = a * c - b * s
                y[row, 2 * (col + j) + 1] = a * s + b * c


@tc.kernel(workers=32)
def rope_halves(x: f32[m, d], cos: f32[m, d // 2], sin: f32[m, d // 2], y: tc.out[f32[m, d]]):
    for row, col in tc.tiles((m, d // 2), by=(1, 32)):
        for j in spatial(32):
            if col + j < d // 2:
                a, b = x[row, col + j], x[row, col + j + d // 2]
                c, s = cos[row, col + j], sin[row, col + j]
                y[row, col + j] = a * c - b * s
                y[row, col + j + d // 2] = a * s + b * c


@tc.kernel(workers=64)
def bitonic(x: f32[64], y: tc.out[f32[64]]):
    a = tc.shared(f32[64])
    for i in spatial(64):
        a[i] = x[i]
    size = 2
    while size <= 64:
        step = size // 2
        while step > 0:
            for i in spatial(64):
                other = i ^ step
                if i < other < 64 and (a[i] > a[other]) == ((i & size) == 0):
                    low = a[i]
                    a[i] = a[other]
                    a[other] = low
            step //= 2
        size *= 2
    for i in spatial(64):
        y[i] = a[i]


@tc.kernel(workers=32)
def spmv(starts: i32[m + 1], cols: i32[nnz], values: f32[nnz], x: f32[n], y: tc.out[f32[m]]):
    for row in tc.tiles(m, by=32):
        for i in spatial(32):
            if row + i < m:
                first, last = starts[row + i], starts[row + i + 1]
                assert first >= 0, "the row's first element"
                assert last <= nnz, "the row's last element"
                total = f32(0)
                for q in range(first, last):
                    c = cols[q]
                    assert 0 <= c < n, "a column"
                    total += values[q] * x[c]
                y[row + i] = total


@tc.kernel(workers=32)
def pool(x: f32[m, n], y: tc.out[f32[m // 2, n // 2]]):
    for row, col in tc.tiles((m // 2, n // 2), by=(4, 8)):
        for i, j in spatial(4, 8):
            if row + i < m // 2 and col + j < n // 2:
                best = -tc.inf
                for p in range(2):
                    for q in range(2):
                        best = max(best, x[2 * (row + i) + p, 2 * (col + j) + q])
                y[row + i, col + j] = best


@tc.kernel(workers=64)
def transpose3(x: f32[m, n, k], y: tc.out[f32[k, n, m]]):
    for a, b, c in tc.tiles((m, n, k), by=(8, 1, 8)):
        for i, j in spatial(8, 8):
            if a + i < m and c + j < k:
                y[c + j, b, a + i] = x[a + i, b, c + j]


RANDOM = np.random.default_rng(5)


def floats(*shape: int) -> np.ndarray:
    """Small whole numbers, so that sums are exact in any order."""
    return RANDOM.integers(-9, 9, shape).astype(np.float32)


def rotated(x, cos, sin, first, second):
    y = np.empty_like(x)
    y[:, first] = x[:, first] * cos - x[:, second] * sin
    y[:, second] = x[:, first] * sin + x[:, second] * cos
    return y


ALL = (
    stencil, block_sums, block_scan, batched_gemv, dot8, argmax, embed, rope, rope_halves, bitonic,
    spmv, pool, transpose3,
)  # fmt: skip


@pytest.mark.parametrize("kernel", ALL, ids=lambda kernel: kernel.name)
def test_all_is_proved(kernel) -> None:
    assert [str(error) for error in findings(kernel.ir)] == []


@pytest.mark.parametrize("size", [1, 64, 150])
def test_prefix_sums_in_two_steps(size: int) -> None:
    x = floats(size)
    sums = block_sums(x)
    blocks = [x[start : start + 64].sum() for start in range(0, size, 64)]
    np.testing.assert_array_equal(sums, blocks)
    before = np.concatenate(([0], np.cumsum(sums)[:-1])).astype(np.float32)
    np.testing.assert_array_equal(block_scan(x, before), np.cumsum(x))


def test_stencil_and_pool() -> None:
    x = floats(75)
    np.testing.assert_array_equal(stencil(x), x[:-2] + x[1:-1] + x[2:])
    image = floats(7, 19)
    whole = image[:6, :18].reshape(3, 2, 9, 2)
    np.testing.assert_array_equal(pool(image), whole.max(axis=(1, 3)))


def test_products() -> None:
    a, x = floats(3, 37, 5), floats(3, 5)
    np.testing.assert_array_equal(batched_gemv(a, x), np.einsum("bij,bj->bi", a, x))
    left, right = (RANDOM.integers(-128, 128, 77).astype(np.int8) for _ in range(2))
    total = np.zeros(1, np.int32)
    dot8(left, right, total)
    assert total[0] == left.astype(np.int32) @ right.astype(np.int32)


def test_rows() -> None:
    x = RANDOM.permutation(5 * 45).reshape(5, 45).astype(np.float32)
    np.testing.assert_array_equal(argmax(x), x.argmax(axis=1))
    ids = RANDOM.integers(0, 5, 8).astype(np.int32)
    np.testing.assert_array_equal(embed(ids, x), x[ids])


def test_rotations() -> None:
    x, cos, sin = floats(3, 74), floats(3, 37), floats(3, 37)
    every = slice(0, None, 2), slice(1, None, 2)
    np.testing.assert_array_equal(rope(x, cos, sin), rotated(x, cos, sin, *every))
    halves = slice(0, 37), slice(37, None)
    np.testing.assert_array_equal(rope_halves(x, cos, sin), rotated(x, cos, sin, *halves))


def test_sorting_and_transposing() -> None:
    x = floats(64)
    np.testing.assert_array_equal(bitonic(x), np.sort(x))
    x = floats(9, 3, 17)
    np.testing.assert_array_equal(transpose3(x), x.transpose(2, 1, 0))


def test_sparse_rows() -> None:
    dense = floats(40, 23) * (RANDOM.random((40, 23)) < 0.2)
    rows, columns = np.nonzero(dense)
    starts = np.searchsorted(rows, np.arange(41)).astype(np.int32)
    x = floats(23)
    y = spmv(starts, columns.astype(np.int32), dense[rows, columns].astype(np.float32), x)
    np.testing.assert_array_equal(y, dense @ x)
