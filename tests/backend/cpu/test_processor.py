"""Processors: which target one has, and what those without wide vectors need instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.backend.cpu.processor import host, processor, typical
from tests.backend.cpu.processors import NAMES, loaded_for

AVX512 = dict.fromkeys(("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "f16c"), True)


VNNI = AVX512 | {"avx512vnni": True}
LINUX = "x86_64-unknown-linux-gnu"


@pytest.mark.parametrize(
    ("triple", "features", "target", "lanes"),
    [
        (LINUX, VNNI, "avx512_vnni", 16),
        (LINUX, AVX512 | {"avxvnni": True, "avx512f": False}, "avx2_vnni", 8),
        (LINUX, AVX512 | {"avx512bf16": True}, "avx512", 16),
        ("x86_64-unknown-linux-gnu", AVX512, "avx512", 16),
        ("x86_64-unknown-linux-gnu", AVX512 | {"avx512vl": False}, "avx2", 8),
        ("x86_64-unknown-linux-gnu", {"avx2": True, "fma": True}, "sse2", 4),
        ("x86_64-unknown-linux-gnu", {}, "sse2", 4),
        ("aarch64-unknown-linux-gnu", {"neon": True, "sve": True}, "neon", 4),
        ("arm64-apple-darwin23.0.0", {}, "neon", 4),
    ],
)
def test_the_target_follows_from_the_features(
    triple: str, features: dict[str, bool], target: str, lanes: int
) -> None:
    typical("neon")  # so that LLVM knows all of its targets
    made = processor(triple, "generic", features)
    assert (made.target, made.lanes, made.vector_bits) == (target, lanes, 32 * lanes)
    assert made.fingerprint != host().fingerprint


@pytest.mark.parametrize(
    ("name", "target"),
    [("znver4", "avx512_bf16"), ("znver5", "avx512_bf16"), ("cooperlake", "avx512_vnni")],
)
def test_products_of_bf16_are_of_processors_where_they_are_fast(name: str, target: str) -> None:
    assert processor(LINUX, name, VNNI | {"avx512bf16": True}).target == target


def test_a_cache_tells_processors_apart() -> None:
    names = ("avx512_bf16", "avx512_vnni", "avx512", "avx2_vnni", "avx2", "sse2", "neon")
    assert [typical(name).target for name in names] == list(names)
    prints = {typical(name).fingerprint for name in names}
    assert len(prints | {host().fingerprint}) == 8


def converting(source: Any, result: Any, count: int) -> Any:
    @tc.kernel(workers=16)
    def convert(x: source[count], y: tc.out[result[count]]):
        for start in tc.tiles(count, by=64):
            for i in tc.spatial(16).repeat(4):
                if start + i < count:
                    y[start + i] = x[start + i].to(result)

    return convert


@pytest.mark.parametrize("name", NAMES)
def test_conversions_of_half_precision(name: str) -> None:
    """All of the 65536 numbers to f32; from f32, what lies on, between and around them."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    wide = np.empty(1 << 16, np.float32)
    loaded_for(converting(tc.f16, tc.f32, 1 << 16).ir, name).run([halves, wide], {})
    expected = halves.astype(np.float32)
    is_number = ~np.isnan(expected)
    np.testing.assert_array_equal(
        wide[is_number].view(np.uint32), expected[is_number].view(np.uint32)
    )
    assert np.isnan(wide[~is_number]).all()

    finite = np.sort(expected[np.isfinite(expected)])
    between = (finite[:-1].astype(np.float64) + finite[1:]) / 2
    middles = between.astype(np.float32)  # exact: f32 has enough bits
    around = [np.nextafter(middles, np.float32(side)) for side in (-np.inf, np.inf)]
    special = [65504, 65519.996, 65520, 65536, 3e38, np.inf, 1e-45, 2.0**-25, 2.0**-24, np.nan]
    both = np.array(special, np.float32)
    given = np.concatenate([finite, middles, *around, both, -both])
    with np.errstate(over="ignore", under="ignore"):
        wanted = given.astype(np.float16)
    made = np.empty(len(given), np.float16)
    loaded_for(converting(tc.f32, tc.f16, len(given)).ir, name).run([given, made], {})
    is_number = ~np.isnan(wanted)
    np.testing.assert_array_equal(
        made[is_number].view(np.uint16), wanted[is_number].view(np.uint16)
    )
    assert np.isnan(made[~is_number]).all()


def extremes(dtype: tc.DType, count: int, workers: int) -> tc.KernelDefinition:
    @tc.kernel(workers=workers)
    def kernel(x: dtype[count], y: dtype[count], z: tc.out[dtype[4, count]]):
        for start in tc.tiles(count, by=workers):
            for i in tc.spatial(workers):
                if start + i < count:
                    a, b = x[start + i], y[start + i]
                    z[0, start + i] = min(a, b)
                    z[1, start + i] = max(a, b)
                    z[2, start + i] = min(a, dtype(0.0))
                    z[3, start + i] = max(dtype(-0.0), a)

    return kernel


def order(number: float) -> tuple[float, float]:
    return number, np.copysign(1, number)


@pytest.mark.parametrize("dtype", [tc.f16, tc.bf16, tc.f32, tc.f64], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_extremes(name: str, dtype: tc.DType) -> None:
    """One NaN makes one, and -0 < +0: of two numbers, beside a constant, on one lane and on many."""
    special = (0.0, -0.0, 1.0, -1.0, 1e-7, -1e-7, np.inf, -np.inf, np.nan, -np.nan, 3e4, 0.5)
    numbers = np.array(special).astype(dtype.numpy)
    x, y = (grid.ravel() for grid in np.meshgrid(numbers, numbers))
    for workers in (1, 16):
        z = np.empty((4, x.size), dtype.numpy)
        loaded_for(extremes(dtype, x.size, workers).ir, name).run([x, y, z], {})
        for a, b, found in zip(x.tolist(), y.tolist(), z.T.tolist(), strict=True):
            pairs = ((min, a, b), (max, a, b), (min, a, 0.0), (max, -0.0, a))
            wanted = [
                np.nan if np.isnan(p) or np.isnan(q) else pick(p, q, key=order)
                for pick, p, q in pairs
            ]
            # As text, -0.0 differs from 0.0, and nan is equal to itself.
            assert str([float(each) for each in found]) == str([float(each) for each in wanted])


@pytest.mark.parametrize("name", NAMES)
def test_fused_products_round_once(name: str) -> None:
    @tc.kernel(workers=16)
    def fused(x: tc.f32[16], y: tc.out[tc.f32[16]]):
        for i in tc.spatial(16):
            y[i] = tc.fma(x[i], x[i], -1.0)

    x = (1 + np.arange(16, dtype=np.float32) * 2.0**-20).astype(np.float32)
    y = np.empty(16, np.float32)
    loaded_for(fused.ir, name).run([x, y], {})
    np.testing.assert_array_equal(y, (x.astype(np.float64) ** 2 - 1).astype(np.float32))
