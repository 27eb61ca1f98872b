"""The smaller and the larger of two numbers: of zeros with signs, and of NaN of both kinds.

With a constant they are one instruction each, and so is what says `limit if a > limit else a`.
tests/backend/cpu/llvm has what LLVM does wrong: negative_zero.ll, and signaling_nan.ll with AVX-512.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import DType, bf16, f16, f32, f64, i32
from taskc.backend.cpu.compile import assembly_of
from taskc.backend.cpu.module import optimized
from taskc.backend.cpu.processor import Processor, typical
from taskc.passes.pipeline import lower
from tests.backend.cpu.processors import NAMES, loaded_for
from tests.backend.cpu.test_narrowing import of_llvm

LIMITS = (0.0, -0.0, 6.0, -2.5, float("inf"), float("-inf"), float("nan"))


def numbers(dtype: DType) -> Any:
    """Each with each, signaling NaNs among them."""
    bits = f"u{dtype.nbytes}"
    plain = np.array([*LIMITS, 1e-310, 1e-40, -1e-40, 1.0, 5.0], dtype.numpy)
    infinite = plain[[4, 5]].view(bits)
    every = np.concatenate([plain, (infinite + 1).view(dtype.numpy)])
    assert np.isnan(every[-2:]).all()
    assert not (every[-2:].view(bits) >> (dtype.mantissa_bits - 1) & 1).any()
    a, b = np.meshgrid(every, every)
    return a.ravel(), b.ravel()


def extremes(dtype: DType, count: int, workers: int) -> tc.KernelDefinition:
    @tc.kernel(workers=workers)
    def kernel(
        a: dtype[count], b: dtype[count], whole: i32[count], y: tc.out[dtype[4 + 4 * len(LIMITS), count]]
    ):  # fmt: skip
        for start in tc.tiles(count, by=workers):
            for i in tc.spatial(workers):
                at = start + i
                if at < count:
                    y[0, at] = min(a[at], b[at])
                    y[1, at] = max(a[at], b[at])
                    y[2, at] = min(a[at], whole[at].to(dtype))  # which is never NaN
                    y[3, at] = max(whole[at].to(dtype), a[at])
                    for k in tc.static(range(len(LIMITS))):
                        limit = dtype(LIMITS[k])
                        y[4 + 4 * k, at] = min(a[at], limit)
                        y[5 + 4 * k, at] = max(limit, a[at])
                        y[6 + 4 * k, at] = limit if a[at] > limit else a[at]
                        y[7 + 4 * k, at] = limit if a[at] < limit else a[at]

    return kernel


def expected(a: Any, b: Any, is_largest: bool) -> Any:
    """By the order -inf … -0.0, 0.0 … inf; NaN of any NaN."""
    first_is_less = (a < b) | ((a == b) & np.signbit(a))
    chosen = np.where(first_is_less != is_largest, a, b)
    return np.where(np.isnan(a) | np.isnan(b), np.nan, chosen)


@pytest.mark.parametrize("processor", NAMES)
@pytest.mark.parametrize("workers", [1, 4, 16])
@pytest.mark.parametrize("dtype", [f32, f64, f16, bf16], ids=str)
@np.errstate(invalid="ignore")
def test_extremes(dtype: DType, workers: int, processor: str) -> None:
    a, b = numbers(dtype)
    whole = np.arange(a.size, dtype=np.int32) % 5 - 2
    y = np.zeros((4 + 4 * len(LIMITS), a.size), dtype.numpy)
    loaded_for(extremes(dtype, a.size, workers).ir, processor).run([a, b, whole, y], {})
    rows = [expected(a, b, False), expected(a, b, True)]
    rows += [expected(a, whole.astype(dtype.numpy), is_largest) for is_largest in (False, True)]
    for number in LIMITS:
        limit = np.full_like(a, number)
        rows += [expected(a, limit, False), expected(a, limit, True)]
        rows += [np.where(a > limit, limit, a), np.where(a < limit, limit, a)]
    exact = (np.asarray(numbers, np.float64) for numbers in (y, rows))
    for found, right in zip(*exact, strict=True):
        np.testing.assert_array_equal(found, right)
        np.testing.assert_array_equal(
            np.signbit(found) | np.isnan(right), np.signbit(right) | np.isnan(right)
        )


@tc.function
def smaller(x: Any) -> Any:
    return min(x, 6)


@tc.function
def larger(x: Any) -> Any:
    return max(1.5, x)


@tc.function
def positive_part(x: Any) -> Any:
    return max(x, 0)


@tc.function
def between(x: Any) -> Any:
    y = 0 if x < 0 else x
    return 6 if y > 6 else y


def of_block(made: Any, dtype: DType, workers: int) -> tc.KernelDefinition:
    @tc.kernel(workers=workers)
    def kernel(x: dtype[workers], y: tc.out[dtype[workers]]):
        for i in tc.spatial(workers):
            y[i] = made(x[i])

    return kernel


# Instructions on vector registers, but for those that move numbers or make constants.
CALCULATES = re.compile(r"\t(?!v?mov|v?broadcast|v?xor)(\w+)\t.*%[xyz]mm")


def calculations(made: Any, dtype: DType, workers: int, processor: Processor) -> list[str]:
    kernel = of_block(made, dtype, workers).ir
    text = assembly_of(lower(replace(kernel, target=processor.target)), processor)
    found: list[str] = CALCULATES.findall(text[text.index("\njob:") : text.index(".size\tjob")])
    return found


@pytest.mark.parametrize("target", ["avx512", "avx2", "sse2"])
@pytest.mark.parametrize(("dtype", "is_vector"), [(f32, False), (f64, False), (f32, True)], ids=str)
def test_one_instruction(dtype: DType, is_vector: bool, target: str) -> None:
    processor = typical(target)
    workers = processor.lanes if is_vector else 1
    of_each = {smaller: 1, larger: 1, positive_part: 2, between: 2}  # a sum makes 0 of -0
    for made, each in of_each.items():
        assert len(calculations(made, dtype, workers, processor)) == each


def test_one_instruction_between_casts() -> None:
    casts = ["vpmovzxwd", "vpslld", "vpsrld", "vpmovdw"]
    for made, chooses in [(smaller, "vminps"), (larger, "vmaxps")]:
        found = calculations(made, bf16, 16, typical("avx512"))
        assert found == [*casts[:2], chooses, *casts[2:]]


def choices(source: DType, dtype: DType, count: int, workers: int) -> tc.KernelDefinition:
    @tc.kernel(workers=workers)
    def kernel(x: source[count], y: tc.out[dtype[4, count]]):
        for start in tc.tiles(count, by=workers):
            for i in tc.spatial(workers):
                at = start + i
                if at < count:
                    v = x[at]
                    made = v.to(dtype)
                    y[0, at] = dtype(0) if v < 0 else made
                    y[1, at] = made if v < 0 else dtype(0)
                    y[2, at] = dtype(0) if v > 0 else made
                    y[3, at] = dtype(-0.0) if v > 0 else made

    return kernel


@pytest.mark.parametrize("processor", NAMES)
@pytest.mark.parametrize("workers", [1, 16])
@pytest.mark.parametrize(
    ("source", "dtype"),
    [(f32, f16), (f16, f32), (f32, f64), (f64, f32), (f64, f16), (f32, bf16), (bf16, f32)],
    ids=str,
)
@np.errstate(invalid="ignore", over="ignore", under="ignore")
def test_a_choice_of_another_type(
    source: DType, dtype: DType, workers: int, processor: str
) -> None:
    x = np.array([0.0, -0.0, 1.5, -1.5, float("inf"), float("-inf"), float("nan")], source.numpy)
    y = np.zeros((4, x.size), dtype.numpy)
    loaded_for(choices(source, dtype, x.size, workers).ir, processor).run([x, y], {})
    v, zero = x.astype(np.float64), 0.0
    rows = [np.where(v < 0, zero, v), np.where(v < 0, v, zero)]
    rows += [np.where(v > 0, zero, v), np.where(v > 0, -zero, v)]
    found, right = y.astype(np.float64), np.array(rows)
    np.testing.assert_array_equal(found, right)
    np.testing.assert_array_equal(np.signbit(found)[right == 0], np.signbit(right)[right == 0])


def test_llvm_loses_a_zeros_sign() -> None:
    """When this fails LLVM is mended: and `Instructions.select` needs no wall."""
    path = Path(__file__).parent / "llvm" / "negative_zero.ll"
    text = str(optimized(path.read_text(encoding="utf-8"), typical("avx512")))
    assert "fcmp oge float" in text


def test_llvm_loses_a_signaling_nan() -> None:
    """When this fails LLVM is mended, and `Native._extreme_of_numbers` may leave it llvm.minimum."""
    assert "vfpclassss\t$5," in of_llvm("signaling_nan")
