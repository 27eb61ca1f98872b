"""Words of eight 4-bit elements are read whole where all that reads a parameter is such words."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import DType, i4, repeat, spatial, u4, u32
from taskc.backend import sim
from taskc.ir.bits import into_bytes
from taskc.ir.parser import parse
from taskc.ir.printer import to_text
from taskc.kernels.quantized.algorithms import byte, words
from taskc.passes.gather_words import gather_words
from taskc.passes.simplify import simplify
from tests.ir.test_bits import elements
from tests.random_programs.mutations.mutation import Wrong, edited
from tests.stages import same_after_every_pass

K, N = 8, 64

gathering = sys.modules[gather_words.__module__]  # whose name is the function's, too


def copied(dtype: DType, word: Any, k: int = K, n: int = N, target: str = "sm_80") -> Any:
    @tc.kernel(workers=8)
    def copied(b: dtype[k, n], y: tc.out[u32[k, n // 8]]) -> None:
        for at in tc.tiles(n // 8, by=4):
            for p in tc.pipeline(k, by=4, stages=3):
                packed = tc.load((4, 4), lambda q, w: word(b, p + q, at + w))
                for q, w in repeat(2, 1) * spatial(2, 4):
                    if at + w < n // 8:
                        y[p + q, at + w] = packed[q, w]

    return replace(copied.ir, target=target)


def gathered(kernel: Any) -> str:
    return to_text(gather_words(simplify(kernel)))


@pytest.mark.parametrize("dtype", [u4, i4], ids=str)
def test_words_are_copied_as_they_lie(dtype: DType) -> None:
    start = copied(dtype, words)
    text = gathered(start)
    assert f"b: {dtype}[8, 64].words()" in text
    assert "move packed[q, w] = b[p + q, at + w]" in text
    assert to_text(parse(text)) == text
    x = elements(dtype, np.arange(K * N).reshape(K, N) % 16)
    expected = into_bytes(x, dtype).view(np.uint32).reshape(K, N // 8)
    same_after_every_pass(
        start, [x, np.zeros((K, N // 8), np.uint32)], expected=[x, expected], seen=set()
    )


@tc.function
def element(b: Any, q: Any, j: Any) -> Any:
    return b[q, j].to(u32) & 15


@tc.function
def xored(b: Any, q: Any, w: Any) -> Any:
    return words(b, q, w) ^ element(b, q, 8 * w)


@tc.function
def turned(b: Any, q: Any, w: Any) -> Any:
    return words(b, q, w) >> 4 << 4 | element(b, q, 8 * w)


@tc.function
def one_on(b: Any, q: Any, w: Any) -> Any:
    return byte(b, q, 8 * w) | byte(b, q, 8 * w + 2) << 8 | byte(b, q, 8 * w + 5) << 16


@tc.function
def signed(b: Any, q: Any, w: Any) -> Any:
    return words(b, q, w) | b[q, 8 * w].to(u32)


@tc.function
def swapped(b: Any, q: Any, w: Any) -> Any:
    return (
        byte(b, q, 8 * w + 2)
        | byte(b, q, 8 * w) << 8
        | byte(b, q, 8 * w + 4) << 16
        | byte(b, q, 8 * w + 6) << 24
    )


@tc.function
def second(b: Any, q: Any, w: Any) -> Any:
    return words(b, q, 1)


@tc.function
def exchanged(b: Any, q: Any, w: Any) -> Any:
    return (
        byte(b, q, 8 * w)
        | byte(b, q, 8 * w + 4) << 8
        | byte(b, q, 8 * w + 2) << 16
        | byte(b, q, 8 * w + 6) << 24
    )


@tc.function
def of_two_rows(b: Any, q: Any, w: Any) -> Any:
    return (
        byte(b, q, 8 * w)
        | byte(b, 0, 8 * w + 2) << 8
        | byte(b, q, 8 * w + 4) << 16
        | byte(b, q, 8 * w + 6) << 24
    )


@pytest.mark.parametrize(
    "word",
    [xored, turned, one_on, signed, swapped, exchanged, of_two_rows],
    ids=lambda word: word.__name__,
)
def test_what_is_not_such_words_stays_as_it_is(word: Any) -> None:
    start = copied(i4, word)
    assert ".words()" not in gathered(start)
    x = elements(i4, np.arange(K * N).reshape(K, N) % 16)
    same_after_every_pass(start, [x, np.zeros((K, N // 8), np.uint32)], seen=set())


def test_rows_are_whole_words_and_the_target_is_no_processor() -> None:
    assert ".words()" in gathered(copied(u4, words))
    assert ".words()" not in gathered(copied(u4, words, target="avx2"))
    assert ".words()" not in gathered(copied(u4, words, n=60))


PLANTED = [
    (edited("read.indices[-1] != _behind(last, number)", "False"), exchanged),
    (edited("list(read.indices[:-1]) != leading", "False"), of_two_rows),
    (edited("int(value) // TOGETHER", "int(value)"), second),
]


@pytest.mark.parametrize(("wrong", "word"), PLANTED)
@pytest.mark.parametrize("is_planted", [True, False])
def test_planted_mistakes_are_seen(
    wrong: Wrong, word: Any, is_planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = simplify(copied(u4, word))
    x = elements(u4, np.arange(K * N).reshape(K, N) * 7 // 5 % 16)
    made, expected = (np.zeros((K, N // 8), np.uint32) for _ in range(2))
    assert not sim.run(before, [x, expected]).findings
    if is_planted:
        monkeypatch.setattr(gathering, "_word", wrong(gathering._word))
    findings = sim.run(gather_words(before), [x, made]).findings
    assert (bool(findings) or not np.array_equal(made, expected)) == is_planted
