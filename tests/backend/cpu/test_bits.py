"""Functions of bits are instructions on vectors, on processors that have them and on those that don't."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import DType, i8, i32, u16, u64
from taskc.backend.cpu.compile import llvm_text
from taskc.backend.cpu.processor import typical
from taskc.ir.arithmetic import unary
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


@pytest.mark.parametrize("target", ["avx512", "avx2", "neon"])
@pytest.mark.parametrize("name", INTRINSICS)
def test_they_are_vectors(name: str, target: str) -> None:
    lean = lower(replace(of_bits(name, i32).ir, target=target))
    lanes = {"avx512": 16, "avx2": 8, "neon": 4}[target]
    assert f"@llvm.{INTRINSICS[name]}.v{lanes}i32(" in llvm_text(lean, typical(target))[0]
