"""Integer division where the divisor may be 0 or -1 at run time: what it gives, and that no processor traps.

tests/backend/cpu/llvm/guarded_division.ll has what LLVM does wrong with AVX-512; a processor without it reads the
assembly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import DType, i8, i16, i32, i64, u8, u16, u32, u64
from taskc.ir.arithmetic import binary
from tests.backend.cpu.processors import NAMES, loaded_for
from tests.backend.cpu.test_narrowing import assembly, of_llvm

TYPES = (i8, i16, i32, i64, u8, u16, u32, u64)


def quotients(dtype: DType, count: int, workers: int) -> tc.KernelDefinition:
    """Also by what the program itself keeps from being 0, and by shifts, which LLVM knows a lot about."""

    @tc.kernel(workers=workers)
    def divided(a: dtype[count], b: dtype[count], y: tc.out[dtype[6, count]]):
        for start in tc.tiles(count, by=workers):
            for i in tc.spatial(workers):
                if start + i < count:
                    p, q = a[start + i], b[start + i]
                    y[0, start + i] = p // q
                    y[1, start + i] = p % q
                    y[2, start + i] = p // tc.where(q == dtype(0), dtype(1), q)
                    y[3, start + i] = p // (dtype(103) << q)
                    y[4, start + i] = p % (dtype(103) << q)
                    y[5, start + i] = p // tc.where(q >= dtype(5), dtype(1), dtype(103) << q)

    return divided


def operands(dtype: DType) -> tuple[Any, Any]:
    low, high = int(dtype.minimum), int(dtype.maximum)
    candidates = (low, low + 1, 0, 1, 2, 3, 5, 7, 8, 31, 63, 64, 100, high - 1, high)
    few = [number for number in candidates if number <= high]
    if low:
        few += [-1, -2, -7]
    a, b = np.meshgrid(np.array(few, dtype.numpy), np.array(few, dtype.numpy))
    return a.ravel().copy(), b.ravel().copy()


@pytest.mark.parametrize("processor", NAMES)
@pytest.mark.parametrize("workers", [1, 16])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_division_by_what_may_be_0(dtype: DType, workers: int, processor: str) -> None:
    a, b = operands(dtype)
    y = np.zeros((6, a.size), dtype.numpy)
    loaded_for(quotients(dtype, a.size, workers).ir, processor).run([a, b, y], {})
    shifted = binary("<<", 103, b, dtype)
    one = np.ones_like(b)
    for row, (operator, by) in enumerate(
        [
            ("//", b), ("%", b), ("//", np.where(b == 0, one, b)), ("//", shifted),
            ("%", shifted), ("//", np.where(b >= 5, one, shifted)),
        ]
    ):  # fmt: skip
        np.testing.assert_array_equal(y[row], binary(operator, a, by, dtype))
    smallest = (a == dtype.minimum) & (b == -1) if dtype.minimum else np.zeros(a.size, np.bool_)
    assert (y[0][b == 0] == 0).all()
    assert (y[1][b == 0] == 0).all()
    assert (y[0][smallest] == dtype.minimum).all()
    assert (y[1][smallest] == 0).all()


def order(text: str, function: str) -> list[str]:
    """A function's divisions and what it does under a mask, as they follow."""
    body = text.partition(f"\n{function}:")[2].partition("\n.Lfunc_end")[0]
    kinds = ["mask" if "{%k" in line else "division" for line in body.splitlines()
             if "{%k" in line or line.startswith(("\tdiv", "\tidiv"))]  # fmt: skip
    return [kind for k, kind in enumerate(kinds) if not k or kinds[k - 1] != kind]


def shifted_divisor(dtype: DType) -> tc.KernelDefinition:
    @tc.kernel(workers=8)
    def kernel(a: dtype[8], s: dtype[8], y: tc.out[dtype[8]]):
        for i in tc.spatial(8):
            y[i] = a[i] // (dtype(103) << s[i])

    return kernel


def test_llvm_divides_by_what_a_select_keeps_away() -> None:
    """When this fails LLVM is mended, and the wall in `Native._division` may go."""
    assert order(of_llvm("guarded_division"), "divide") == ["division", "mask"]


@pytest.mark.parametrize("dtype", [u64, u32, i64], ids=str)
def test_divisors_of_avx512_are_guarded(dtype: DType) -> None:
    assert order(assembly(shifted_divisor(dtype).ir), "job")[:2] == ["mask", "division"]
