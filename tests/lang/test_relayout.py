"""Kernels that NumPy replaces, since they only move elements; others that look alike aren't among them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, repeat, spatial
from taskc.arrays.packed import empty
from taskc.ir.types import TensorType
from taskc.kernels.convolution import convolution, convolution_1d
from taskc.lang.relayout import relayout_of

_CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((100, 50, 3), {"order": "NCHW", "filters": "OIHW"}),
    ((100, 50, 3), {}),
    ((3, 64, 7), {"order": "NCHW", "filters": "OIHW", "stride": 2}),
    ((64, 64, 3), {"order": "NCHW", "filters": "OIHW", "groups": 4}),
    ((33, 17, 3), {"transposed": True}),
]


@pytest.mark.parametrize(("sizes", "options"), _CASES)
def test_filters_are_packed_as_their_kernel_packs_them(
    sizes: tuple[int, ...], options: dict[str, Any]
) -> None:
    channels, features, size = sizes
    made = convolution(
        1, 14, 14, channels, features, size=size, padding=size // 2, dtype=f32, packed=True,
        machine=tc.machine("avx512"), **options,
    )  # fmt: skip
    packing = made.packs["w"]
    assert isinstance(packing, tc.KernelDefinition)
    given, packed = packing.ir.parameters
    array = np.random.default_rng(0).standard_normal(given.shape, np.float32)
    memory = empty(TensorType(packed.dtype, packed.shape, packed.layout))
    assert relayout_of(packing.ir) is not None
    assert (
        np.asarray(made.pack(array)).tobytes() == np.asarray(packing(array, out=memory)).tobytes()
    )


def test_filters_of_one_axis_are_seen_with_two() -> None:
    made = convolution_1d(
        1, 14, 5, 20, size=3, dtype=f32, packed=True, order="NCHW", filters="OIHW",
        machine=tc.machine("avx512"),
    )  # fmt: skip
    packing = made.packs["w"]
    assert isinstance(packing, tc.KernelDefinition)
    given, packed = packing.ir.parameters
    assert given.given == (20, 5, 3)
    array = np.random.default_rng(0).standard_normal((20, 5, 3), np.float32)
    memory = empty(TensorType(packed.dtype, packed.shape, packed.layout))
    assert relayout_of(packing.ir) is not None
    assert (
        np.asarray(made.pack(array)).tobytes() == np.asarray(packing(array, out=memory)).tobytes()
    )


_LAID = f32[8, 16].laid(repeat(8, 1) * repeat(1, 16))


def _packing(body: str) -> tc.KernelDefinition:
    @tc.kernel(workers=16)
    def whole(w: f32[9, 5], y: tc.out[_LAID]) -> None:
        for i, _ in tc.tiles((8, 16), by=(1, 16)):
            for j in spatial(16):
                value = f32(0)
                if i < 5 and j < 9:
                    value = w[j, i]
                y[i, j] = value

    @tc.kernel(workers=16)
    def less(w: f32[9, 5], y: tc.out[_LAID]) -> None:
        for i, _ in tc.tiles((8, 16), by=(1, 16)):
            for j in spatial(16):
                value = f32(0)
                if i < 4 and j < 9:
                    value = w[j, i]
                y[i, j] = value

    @tc.kernel(workers=16)
    def other(w: f32[9, 5], y: tc.out[_LAID]) -> None:
        for i, _ in tc.tiles((8, 16), by=(1, 16)):
            for j in spatial(16):
                value = f32(0)
                if i < 5 and j < 9 and i != 2:
                    value = w[j, i]
                y[i, j] = value

    @tc.kernel(workers=16)
    def twice(w: f32[9, 5], y: tc.out[_LAID]) -> None:
        for i, _ in tc.tiles((8, 16), by=(1, 16)):
            for j in spatial(16):
                value = f32(0)
                if i < 5 and j < 9:
                    value = w[j, i] * 2
                y[i, j] = value

    return {"whole": whole, "less": less, "other": other, "twice": twice}[body]


def test_what_is_a_relayout() -> None:
    relayout = relayout_of(_packing("whole").ir)
    assert relayout is not None
    x = np.arange(45, dtype=np.float32).reshape(9, 5)
    expected = np.pad(x.T, [(0, 3), (0, 7)])
    assert relayout(x).tolist() == expected.tolist()


@pytest.mark.parametrize("body", ["less", "other", "twice"])
def test_what_is_none(body: str) -> None:
    """Some elements of the array are left out, or changed."""
    assert relayout_of(_packing(body).ir) is None
