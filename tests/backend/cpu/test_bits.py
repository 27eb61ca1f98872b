"""Bits of another type are themselves, and functions of bits are of vectors, on each processor."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import DType, i8, i32, u16, u64
from taskc.backend import sim
from taskc.backend.cpu.compile import llvm_text
from taskc.backend.cpu.processor import typical
from taskc.ir.arithmetic import unary
from taskc.ir.types import DTYPES, boolean
from taskc.passes.pipeline import lower
from tests.backend.cpu.processors import NAMES, loaded_for

INTRINSICS = {
    "popcount": "ctpop",
    "leading_zeros": "ctlz",
    "trailing_zeros": "cttz",
    "reverse_bits": "bitreverse",
}


def of_bits(name: str, dtype: DType) -> tc.KernelDefinition:
    function: Any = getattr(tc, name)

    @tc.kernel(workers=32)
    def kernel(x: dtype[100], y: tc.out[dtype[100]]):
        for start in tc.tiles(100, by=32):
            for i in tc.spatial(32):
                if start + i < 100:
                    y[start + i] = function(x[start + i])

    return kernel


@pytest.mark.parametrize("processor", NAMES)
@pytest.mark.parametrize("dtype", [i8, u16, i32, u64], ids=str)
@pytest.mark.parametrize("name", INTRINSICS)
def test_functions_of_bits(name: str, dtype: DType, processor: str) -> None:
    x = np.frombuffer(np.random.default_rng(5).bytes(100 * dtype.nbytes), dtype.numpy).copy()
    x[::7] = 0
    y = np.zeros_like(x)
    loaded_for(of_bits(name, dtype).ir, processor).run([x, y], {})
    np.testing.assert_array_equal(y, unary(name, x, dtype))


SCALARS = [dtype for dtype in DTYPES.values() if dtype is not boolean and not dtype.is_sub_byte]
PAIRS = [
    (source, target)
    for source, target in product(SCALARS, SCALARS)
    if source.bits == target.bits and source is not target
]


@pytest.mark.parametrize("processor", NAMES)
@pytest.mark.parametrize(("source", "target"), PAIRS, ids=str)
def test_the_same_bits_of_another_type(source: DType, target: DType, processor: str) -> None:
    @tc.kernel(workers=16)
    def kernel(x: source[100], y: tc.out[target[100]]):
        for start in tc.tiles(100, by=16):
            for i in tc.spatial(16):
                if start + i < 100:
                    y[start + i] = x[start + i].bitcast(target)

    x = np.frombuffer(np.random.default_rng(5).bytes(100 * source.nbytes), source.numpy).copy()
    for run in (loaded_for(kernel.ir, processor).run, lambda given, _: sim.run(kernel.ir, given)):
        y = np.zeros(100, target.numpy)
        run([x, y], {})
        assert y.tobytes() == x.tobytes()  # of NaNs, too


@pytest.mark.parametrize("target", ["avx512", "avx2", "neon"])
@pytest.mark.parametrize("name", INTRINSICS)
def test_they_are_vectors(name: str, target: str) -> None:
    lean = lower(replace(of_bits(name, i32).ir, target=target))
    lanes = {"avx512": 16, "avx2": 8, "neon": 4}[target]
    assert f"@llvm.{INTRINSICS[name]}.v{lanes}i32(" in llvm_text(lean, typical(target))[0]
