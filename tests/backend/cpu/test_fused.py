"""a * b + c is rounded once on every processor; where there is no instruction for it, by our own code."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest

import taskc as tc
from taskc import DType, f32, f64
from taskc.backend.cpu.compile import assembly_of
from taskc.backend.cpu.processor import typical
from taskc.ir import arithmetic
from taskc.passes.pipeline import lower
from tests.backend.cpu.processors import NAMES, loaded_for

COUNT = 4000


def fused(dtype: DType, count: int, workers: int = 4) -> tc.KernelDefinition:
    @tc.kernel(workers=workers)
    def kernel(a: dtype[count], b: dtype[count], c: dtype[count], y: tc.out[dtype[count]]):
        for start in tc.tiles(count, by=workers):
            for i in tc.spatial(workers):
                if start + i < count:
                    y[start + i] = tc.fma(a[start + i], b[start + i], c[start + i])

    return kernel


def operands(dtype: DType) -> np.ndarray:
    """Any bits; sums that cancel, or are next to a tie; results and parts of products that are subnormal, or overflow;
    special numbers."""
    random, numbers = np.random.default_rng(0), np.dtype(dtype.numpy).type
    limits = np.finfo(numbers)
    drawn = [np.frombuffer(random.bytes(3 * COUNT * dtype.nbytes), numbers).reshape(3, -1)]

    def near(low: float, high: float, bits: int) -> np.ndarray:
        power = random.integers(int(low), int(high), COUNT, endpoint=True)
        digits = 1 + random.integers(0, 1 << bits, COUNT) / 2.0**bits
        return np.ldexp(digits, power).astype(numbers) * random.choice(
            [numbers(1), numbers(-1)], COUNT
        )

    with np.errstate(all="ignore"):
        for bits in (limits.nmant, 5):
            a, b = near(-4, 4, bits), near(-4, 4, bits)
            product = a * b
            drawn.append(np.stack([a, b, -np.nextafter(product, random.choice(a, COUNT))]))
            drawn += [np.stack([a, b, near(-far, far, limits.nmant)]) for far in (4, 60, 100)]
            drawn.append(np.stack([a, b, product * near(-60, 60, 1)]))
        lowest = limits.minexp - limits.nmant
        for middle in (lowest, limits.minexp + limits.nmant, limits.maxexp - 1):
            a, b = (
                near(middle // 2 - 9, middle // 2 + 9, 23),
                near(middle // 2 - 9, middle // 2, 23),
            )
            drawn.append(np.stack([a, b, near(max(middle - 60, lowest), middle, 23)]))
    special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        1.5,
        inf,
        -inf,
        nan,
        limits.max,
        limits.tiny,
        -limits.smallest_subnormal,
    ]
    drawn.append(np.stack([x.ravel() for x in np.meshgrid(*[np.array(special, numbers)] * 3)]))
    return np.concatenate(drawn, axis=1)


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_exact(name: str, dtype: DType) -> None:
    a, b, c = (np.ascontiguousarray(each) for each in operands(dtype))
    y = np.empty_like(a)
    loaded_for(fused(dtype, a.size).ir, name).run([a, b, c, y], {})
    wanted = arithmetic.fma(a, b, c, dtype)
    np.testing.assert_array_equal(y, wanted)
    np.testing.assert_array_equal(np.signbit(y)[~np.isnan(y)], np.signbit(wanted)[~np.isnan(y)])


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_the_library_is_called_for_few(dtype: DType) -> None:
    """On a processor without an instruction it took a hundred times as long."""
    plain = typical("sse2")
    lean = lower(replace(fused(dtype, 64).ir, target=plain.target))
    functions = assembly_of(lean, plain).split("@function")
    calling = [text for text in functions if "fma@PLT" in text or "fmaf@PLT" in text]
    assert [text.split()[0].rstrip(":") for text in calling] == (
        [] if dtype is f32 else ["fused_if_rare.f64.4"]
    )
