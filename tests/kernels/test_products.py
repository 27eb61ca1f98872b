"""Products of the library by matrix instructions: every type and variant, ragged shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f32, i8, i32, u8
from taskc.ir import nodes as ir
from taskc.ir.mapping import repeat, spatial
from taskc.ir.rewrite import walk
from taskc.ir.target import AVX512_AMX, AVX512_VNNI
from taskc.kernels import matmul
from taskc.kernels.matmul import Packs, product
from taskc.kernels.matmul.plan import candidates_of_packs
from taskc.passes.pipeline import lower
from taskc.runtime.machine import Machine
from taskc.tune.space import least
from tests.kernels.problems import gemm

RAGGED = [(1, 1, 1), (2, 3, 5), (3, 127, 2), (15, 17, 16), (16, 48, 8), (17, 33, 67), (129, 49, 1)]


def operands(m: int, n: int, k: int, dtype: tc.DType) -> tuple[Any, Any]:
    random = np.random.default_rng(m * 7 + n)
    if dtype.is_float:
        return tuple(random.standard_normal(s).astype(dtype.numpy) for s in ((m, k), (k, n)))  # type: ignore[return-value]
    ends = np.iinfo(dtype.numpy)
    a = random.integers(ends.min, ends.max + 1, (m, k)).astype(dtype.numpy)
    return a, random.integers(-128, 128, (k, n)).astype(np.int8)


def check(found: Any, a: Any, b: Any, bias: Any = 0) -> None:
    """Integers exactly; floats within a rounding for each step."""
    if a.dtype == bf16.numpy:
        wide = a.astype(np.float64), b.astype(np.float64)
        size = np.abs(wide[0]) @ np.abs(wide[1]) + np.abs(bias)
        error = np.abs(found.astype(np.float64) - (wide[0] @ wide[1] + bias))
        assert (error <= (a.shape[1] + 1) * 2.0**-24 * size).all()
    else:
        expected = a.astype(np.int64) @ b.astype(np.int64) + bias
        np.testing.assert_array_equal(found, expected.astype(np.int32))


@pytest.mark.each_value
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape", RAGGED, ids=str)
def test_ragged_shapes(shape: tuple[int, int, int], packed: bool) -> None:
    m, n, k = shape
    a, b = operands(m, n, k, i8)
    kernel = product(m, n, k, dtype=i8, packed=packed)
    right = kernel.pack(b) if packed else b
    check(kernel(a, right), a, b)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [u8, bf16], ids=str)
@pytest.mark.parametrize("shape", [(17, 50, 37), (5, 16, 64)], ids=str)
def test_types(shape: tuple[int, int, int], dtype: tc.DType, packed: bool) -> None:
    m, n, k = shape
    a, b = operands(m, n, k, dtype)
    kernel = product(m, n, k, dtype=dtype, result=f32 if dtype is bf16 else None, packed=packed)
    right = kernel.pack(b) if packed else b
    check(kernel(a, right), a, b)


def test_types_without_an_instruction() -> None:
    a, b = operands(5, 20, 9, f32)
    kernel = product(5, 20, 9, dtype=f32, packed=True)
    found = kernel(a, kernel.pack(b))
    np.testing.assert_allclose(found, a @ b, rtol=1e-5, atol=1e-5)


def test_epilogues() -> None:
    """A quantized layer: the bias, what is below zero cut off, and a result of 8 bits."""
    a, b = operands(17, 50, 37, u8)
    bias = np.arange(-25, 25, dtype=np.int32) * 1000

    @tc.function
    def requantized(value):
        return min(max(value, 0) // 4096, 255)

    kernel = product(17, 50, 37, dtype=u8, bias=True, activation=requantized, result=u8)
    total = a.astype(np.int64) @ b.astype(np.int64) + bias
    expected = np.minimum(np.maximum(total, 0) // 4096, 255).astype(np.uint8)
    assert len(np.unique(expected)) > 10
    np.testing.assert_array_equal(kernel(a, b, bias), expected)


def test_bias_of_floats() -> None:
    a, b = operands(17, 50, 38, bf16)
    bias = np.arange(50, dtype=np.float32)
    check(product(17, 50, 38, bias=True, result=f32)(a, b, bias), a, b, bias)
    halved = product(17, 50, 38, bias=True)(a, b, bias)
    assert halved.dtype == bf16.numpy


@pytest.mark.parametrize("packed", [False, True])
def test_any_number_of_rows(packed: bool) -> None:
    """One compilation for all of them."""
    rows = tc.dim("m")
    kernel = product(rows, 33, 19, dtype=i8, packed=packed)
    for m in (1, 11, 12, 13, 400):
        a, b = operands(m, 33, 19, i8)
        right = kernel.pack(b) if packed else b
        check(kernel(a, right), a, b)


INTEGERS = (i8, i8, i32)


def chosen(m: int, n: int, types: Any, machine: Machine) -> Packs:
    return least(candidates_of_packs, gemm(m, n, 64, types), machine)


def machine(lanes: int = 16, threads: int = 1, products: Any = AVX512_VNNI.products) -> Machine:
    return Machine(lanes, 32 if lanes == 16 else 16, threads, 1 << 20, products)


def vectors(rows: int, count: int) -> Any:
    return repeat(rows, count) * spatial(1, 16)


def test_blocks_keep_threads_busy_and_tiles_waste_little() -> None:
    assert chosen(1024, 1024, INTEGERS, machine()) == Packs(vectors(12, 2), 1032, 4, 4)
    assert chosen(1024, 64, INTEGERS, machine(threads=8)).tall < 128, "two panels for eight threads"
    assert chosen(1, 1024, INTEGERS, machine()).own.shape[0] == 1
    assert chosen(8, 48, INTEGERS, machine()) == Packs(vectors(8, 3), 8, 4, 4)
    assert chosen(1024, 1024, INTEGERS, machine(lanes=8)).wide == 16
    assert chosen(1024, 1024, (f32, f32, f32), machine()).pack == 1


def test_tile_registers_are_for_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    there = machine(products=AVX512_AMX.products)
    fragment = repeat(16, 1) * spatial(1, 16)
    assert chosen(1024, 1024, INTEGERS, there) == Packs(repeat(2, 2) * fragment, 1024, 4, 64)
    assert chosen(1024, 1024, (bf16, bf16, f32), there).step == 32
    assert chosen(1, 1024, INTEGERS, there).step == 4
    monkeypatch.setattr(matmul.tc, "machine", lambda: there)
    for packed in (False, True):
        kernel = product(40, 33, 100, dtype=i8, packed=packed).ir
        selected = lower(replace(kernel, target="avx512_amx"), "selected")
        found = {(n.how, n.left.shape[1]) for n in walk(selected.body) if isinstance(n, ir.Mma)}
        assert found == {("tdpbssd", 128)}


def test_a_packed_operand_is_of_its_shape() -> None:
    _, b = operands(4, 20, 9, i8)
    kernel = product(4, 20, 9, dtype=i8, packed=True)
    with pytest.raises(TypeError):
        kernel(np.zeros((4, 9), np.int8), product(4, 20, 13, dtype=i8, packed=True).pack(b))


def test_products_by_packs_are_for_processors() -> None:
    with pytest.raises(tc.CompileError, match="products by packs are for processors"):
        product(4, 4, 4, dtype=i8, machine=tc.machine("sm_80"))
