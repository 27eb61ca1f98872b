"""How a kernel is spelled doesn't matter: other names, other orders and helpers are the same code."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

import taskc as tc
from taskc import f32, repeat, spatial
from taskc.backend.cpu.compile import assembly_of
from taskc.backend.cpu.processor import typical
from taskc.passes.pipeline import lower

M, N, K = 96, 192, 128
OWN = repeat(8, 3) * spatial(1, 16)
BM, BN = OWN.shape


@tc.kernel(workers=16)
def plain(a: f32[M, K], b: f32[K, N], c: tc.out[f32[M, N]]):
    for row, col in tc.tiles((M, N), by=(BM, BN)):
        acc = tc.tile(f32, OWN, 0)
        for q in range(K):
            for i, j in OWN:
                acc[i, j] += a[row + i, q] * b[q, col + j]
        for i, j in OWN:
            c[row + i, col + j] = max(acc[i, j], 0)


@tc.kernel(workers=16)
def renamed(left: f32[M, K], right: f32[K, N], result: tc.out[f32[M, N]]):
    for top, first in tc.tiles((M, N), by=(BM, BN)):
        sums = tc.tile(f32, OWN, 0)
        for depth in range(K):
            for y, x in OWN:
                sums[y, x] += left[top + y, depth] * right[depth, first + x]
        for y, x in OWN:
            result[top + y, first + x] = max(sums[y, x], 0)


@tc.kernel(workers=16)
def reordered(b: f32[K, N], a: f32[M, K], c: tc.out[f32[M, N]]):
    for row, col in tc.tiles((M, N), by=(BM, BN)):
        acc = tc.tile(f32, OWN, 0)
        for q in range(K):
            for i, j in OWN:
                column = j + col
                weight = b[q, column]
                acc[i, j] = weight * a[i + row, q] + acc[i, j]
        for i, j in OWN:
            c[i + row, j + col] = max(0, acc[i, j])


@tc.function
def multiplied(total, x, y):
    return total + x * y


@tc.function
def positive(x):
    return max(0, x)


@tc.kernel(workers=16)
def with_helpers(a: f32[M, K], b: f32[K, N], c: tc.out[f32[M, N]]):
    for row, col in tc.tiles((M, N), by=(BM, BN)):
        acc = tc.tile(f32, OWN, 0)
        for q in range(K):
            for i, j in OWN:
                r, s = row + i, col + j
                acc[i, j] = multiplied(acc[i, j], a[r, q], b[q, s])
        for i, j in OWN:
            c[row + i, col + j] = positive(acc[i, j])


def instructions(kernel: tc.KernelDefinition) -> Counter[str]:
    lean = lower(replace(kernel.ir, target="avx512"))
    lines = assembly_of(lean, typical("avx512")).splitlines()
    names = [line.split()[0] for line in lines if line.startswith("\t")]
    return Counter(name for name in names if not name.startswith("."))


@pytest.mark.parametrize("kernel", [renamed, reordered, with_helpers], ids=lambda k: k.name)
def test_other_words_are_the_same_code(kernel: tc.KernelDefinition) -> None:
    expected, found = instructions(plain), instructions(kernel)
    assert found["vfmadd231ps"] == expected["vfmadd231ps"] == 24
    assert abs(found.total() - expected.total()) <= 0.03 * expected.total()
