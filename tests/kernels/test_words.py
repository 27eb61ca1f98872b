"""Products with weights in words: activations in floats, and rounded to bytes in groups."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import DType, f16, f32, i32
from taskc.kernels.quantized.words import columns_of_experts, rounded_rows, words_matmul
from tests.kernels.simulated import simulated

Array = np.ndarray[Any, Any]


def in_bytes(codes: Array, bits: int) -> Array:
    """Codes with the first of a byte in its lowest bits."""
    parts = codes.reshape(len(codes), -1, 8 // bits) << np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_or.reduce(parts, axis=-1)


class Operands:
    """Activations and weights, what these stand for, and the operands that a kernel takes."""

    def __init__(
        self, m: int, n: int, k: int, *, bits: int = 4, group: int = 32, zeros: bool = False,
        bias: bool = False, scales: DType = f32, dtype: DType = f32, seed: int = 0,
    ) -> None:  # fmt: skip
        random = np.random.default_rng([m, n, k, bits, seed])
        self.group, self.bits, groups = group, bits, ceil(k / group)
        self.a = random.standard_normal((m, k)).astype(dtype.numpy)
        if m and k:
            self.a[0, : group // 2] = 0
            self.a[-1] = 0
        self.codes = random.integers(0, 1 << bits, (n, groups * group)).astype(np.uint8)
        self.scales = (random.random((groups, n)) + 0.5).astype(scales.numpy)
        points = random.integers(0, 1 << bits, (groups, n)).astype(np.uint8)
        self.zeros = points if zeros else np.full_like(points, 1 << bits - 1)
        self.further = [random.standard_normal(n).astype(np.float32)] if bias else []
        self.has_zeros = zeros

    def packed(self, kernel: Any) -> list[Any]:
        operands = [
            kernel.pack(in_bytes(self.codes, self.bits), "b"),
            kernel.pack(self.scales, "scales"),
        ]
        if self.has_zeros:
            operands.append(kernel.pack(self.zeros, "points"))
        return [*operands, *self.further]

    def product(self, a: Array) -> Array:
        moved = self.codes.T.astype(np.float64) - np.repeat(self.zeros, self.group, 0)
        w = (moved * np.repeat(self.scales.astype(np.float64), self.group, 0))[: a.shape[1]]
        return a.astype(np.float64) @ w + sum(self.further)

    def rounded(self) -> tuple[Array, Array]:
        """Activations in bytes, in groups, and their factors."""
        m, k = self.a.shape
        whole = np.zeros((m, ceil(k / self.group) * self.group), np.float32)
        whole[:, :k] = self.a
        parts = whole.reshape(m, ceil(k / self.group), self.group)
        factors = np.abs(parts).max(-1) * np.float32(1 / 127)
        inverse = np.divide(1, factors, np.zeros_like(factors), where=factors > 0)
        return np.rint(parts * inverse[..., None]), factors


SHAPES = [
    ((1, 70, 64), {"zeros": True}),
    ((3, 64, 70), {"bias": True}),
    ((4, 9, 128), {"bits": 2, "group": 16, "zeros": True}),
    ((5, 33, 100), {"bits": 8, "group": 64, "zeros": True, "bias": True}),
    ((16, 130, 256), {"group": 128, "scales": f16}),
    ((19, 20, 33), {"bits": 2, "group": 32}),
    ((2, 1, 5), {"bits": 8, "group": 16}),
    ((0, 20, 32), {}),
]


def kernels(operands: Operands, n: int, m: Any, dtype: DType | None, result: DType = f32) -> Any:
    return words_matmul(
        m, n, operands.a.shape[1], dtype=dtype, bits=operands.bits, group=operands.group,
        scales=f16 if operands.scales.dtype == np.float16 else f32, zeros=operands.has_zeros,
        bias=bool(operands.further), result=result,
    )  # fmt: skip


@pytest.mark.parametrize(("shape", "options"), SHAPES, ids=str)
def test_by_floats(shape: tuple[int, int, int], options: dict[str, Any]) -> None:
    operands = Operands(*shape, **options)
    kernel = kernels(operands, shape[1], shape[0], f32)
    found = kernel(operands.a, *operands.packed(kernel))
    np.testing.assert_allclose(found, operands.product(operands.a), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("own", [1, 3])
def test_the_weights_of_an_expert_for_each_product(own: int) -> None:
    m, n, k, count, places = 5, 70, 64, 4, np.int32([3, 0, 3])
    experts = [Operands(m, n, k, zeros=True, seed=seed) for seed in range(count)]
    kernel = words_matmul(m, n, k, dtype=f32, zeros=True, experts=(count, own, 3))
    wide = columns_of_experts(n, count) // count

    def together(arrays: list[Array], axis: int) -> Array:
        behind = [(0, wide - n) if d == axis else (0, 0) for d in range(2)]
        return np.concatenate([np.pad(array, behind) for array in arrays], axis)

    found = kernel(
        np.stack([one.a for one in experts[:own]]),
        kernel.pack(together([in_bytes(one.codes, 4) for one in experts], 0), "b"),
        kernel.pack(together([one.scales for one in experts], 1), "scales"),
        kernel.pack(together([one.zeros for one in experts], 1), "points"),
        places,
    )
    for s, place in enumerate(places):
        np.testing.assert_allclose(
            found[s], experts[place].product(experts[min(s, own - 1)].a), rtol=1e-5, atol=1e-3
        )


@pytest.mark.parametrize(("shape", "options"), SHAPES, ids=str)
def test_by_bytes(shape: tuple[int, int, int], options: dict[str, Any]) -> None:
    m, n, k = shape
    operands = Operands(*shape, **options)
    whole, factors = operands.rounded()
    rounded = rounded_rows(m, k, group=operands.group)(operands.a)
    groups = factors.shape[1]
    in_words = whole.reshape(m, groups, 4, operands.group // 4).swapaxes(2, 3).astype(np.int8)
    np.testing.assert_array_equal(
        rounded[0], np.ascontiguousarray(in_words).view(np.int32).reshape(rounded[0].shape)
    )
    np.testing.assert_array_equal(rounded[1], factors)
    np.testing.assert_array_equal(rounded[2], whole.sum(-1))
    kernel = kernels(operands, n, m, None)
    found = kernel(*rounded, *operands.packed(kernel))
    floats = (whole * factors[..., None].astype(np.float64)).reshape(m, groups * operands.group)[
        :, :k
    ]
    np.testing.assert_allclose(found, operands.product(floats), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("dtype", [None, f32], ids=["bytes", "floats"])
def test_rows_that_a_call_counts(dtype: DType | None) -> None:
    """Each tile is as high as the rows that are left, or a little higher."""
    m = tc.dim("m")
    for count in (0, 1, 2, 3, 4, 7, 8, 13, 130):
        operands = Operands(count, 40, 70, zeros=True)
        kernel = kernels(operands, 40, m, dtype)
        left, a = (operands.a,), operands.a
        if dtype is None:
            left = rounded_rows(m, 70)(operands.a)
            whole, factors = operands.rounded()
            a = (whole * factors[..., None]).reshape(count, 96)[:, :70]
        found = kernel(*left, *operands.packed(kernel))
        np.testing.assert_allclose(found, operands.product(a), rtol=1e-5, atol=1e-3)


def test_narrow_floats_on_both_sides() -> None:
    operands = Operands(3, 20, 64, dtype=f16)
    kernel = kernels(operands, 20, 3, f16, f16)
    found = kernel(operands.a, *operands.packed(kernel))
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, operands.product(operands.a), rtol=2e-3, atol=2e-2)
    rounded = rounded_rows(3, 64, dtype=f16)(operands.a)
    np.testing.assert_array_equal(rounded[2], operands.rounded()[0].sum(-1))


def test_weights_lie_the_same_for_any_number_of_rows() -> None:
    """A model has them once, for one row and for many, for floats and for bytes."""
    counts: list[Any] = [1, 2, 16, 300, tc.dim("m")]
    types = {
        str(
            [
                (item.dtype, item.shape, item.layout)
                for item in words_matmul(m, 70, 128, dtype=dtype).ir.parameters[-3:-1]
            ]
        )
        for m in counts
        for dtype in (f32, None)
    }
    assert len(types) == 1


@pytest.mark.parametrize("target", ["avx2", "avx512_vnni"])
def test_in_the_simulator(target: str) -> None:
    operands, machine = Operands(5, 37, 64, zeros=True), tc.machine(target)
    whole, factors = operands.rounded()
    kernel = words_matmul(5, 37, 64, dtype=None, zeros=True, machine=machine)
    in_words = whole.reshape(5, -1, 4, 8).swapaxes(2, 3).astype(np.int8)
    left = [np.ascontiguousarray(in_words).view(np.int32).reshape(5, -1), factors]
    totals = whole.sum(-1).astype(i32.numpy)
    found, _ = simulated(
        kernel, [*left, totals, *operands.packed(kernel)], target, ("parsed", "lean")
    )
    floats = (whole * factors[..., None].astype(np.float64)).reshape(5, -1)
    np.testing.assert_allclose(found, operands.product(floats), rtol=1e-5, atol=1e-3)
