"""`tc.dot_bytes` on processors: one instruction where there is one, and the same numbers everywhere.

Dot products of packs in memory are tested in test_products.py.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import DType, i8, i16, i32, i64, repeat, spatial
from taskc.backend.cpu.compile import assembly_of
from taskc.backend.cpu.processor import host, typical
from taskc.passes.pipeline import lower
from tests.backend.cpu.test_products import run


def added(dtype: DType, own: tc.Mapping, mask: int = -1) -> Any:
    shape = own.shape

    @tc.kernel(workers=own.workers)
    def kernel(
        a: tc.typed[dtype[shape]], b: tc.typed[dtype[shape]], c: tc.typed[tc.inout[dtype[shape]]]
    ) -> None:
        for i, j in own:
            c[i, j] += tc.dot_bytes(a[i, j], b[i, j] & mask)

    return kernel


def operands(dtype: DType, shape: tuple[int, ...]) -> list[Any]:
    """Numbers of the whole range, with bytes of -128 and 255 among them."""
    ends, random = np.iinfo(dtype.numpy), np.random.default_rng(dtype.bits)
    a, b = (random.integers(ends.min, ends.max, shape, dtype.numpy, True) for _ in range(2))
    a.view(np.int8).flat[:8], b.view(np.uint8).flat[:8] = -128, 255
    return [a, b]


def expected(a: Any, b: Any, start: int) -> Any:
    products = a[..., None].view(np.int8).astype(object) * b[..., None].view(np.uint8)
    bits = 8 * a.itemsize
    wrapped = [
        (int(n) + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
        for n in (products.sum(-1) + start).flat
    ]
    return np.array(wrapped, a.dtype).reshape(a.shape)


@pytest.mark.parametrize("own", [repeat(3, 1) * spatial(1, 16), repeat(2, 3)], ids=str)
@pytest.mark.parametrize("dtype", [i8, i16, i32, i64], ids=str)
def test_every_type_on_lanes_and_alone(dtype: DType, own: tc.Mapping) -> None:
    a, b = operands(dtype, own.shape)
    for found in run(added(dtype, own), a, b):  # compiled, and simulated
        np.testing.assert_array_equal(found, expected(a, b, 77))


@pytest.mark.parametrize("mask", [-1, 0x7F7F7F7F], ids=["all", "short"])
@pytest.mark.parametrize("target", ["avx2", "avx512"])
def test_without_the_instruction(target: str, mask: int) -> None:
    if not host().target.startswith("avx512"):
        pytest.skip("needs a processor that has these targets' instructions")
    kernel = added(i32, repeat(3, 1) * spatial(1, 16), mask)
    a, b = operands(i32, (3, 16))
    found, _ = run(kernel, a, b, on=replace(host(), target=target))
    np.testing.assert_array_equal(found, expected(a, b & np.int32(mask), 77))


@pytest.mark.parametrize("target", ["avx2", "avx512"])
def test_short_bytes_are_multiplied_in_pairs(target: str) -> None:
    """Bytes up to 127 by signed ones: two products fit 16 bits. Larger ones wouldn't."""
    own = repeat(3, 1) * spatial(1, typical(target).lanes)
    for mask, count in ((0x7F7F7F7F, 3), (0x7F7FFF7F, 0)):
        lean = lower(replace(added(i32, own, mask).ir, target=target))
        assert len(re.findall(r"\tvpmaddubsw\t", assembly_of(lean, typical(target)))) == count


@pytest.mark.parametrize(
    ("target", "count"), [("avx512_vnni", 3), ("avx2_vnni", 3), ("avx512", 0), ("avx2", 0)]
)
def test_a_sum_and_a_product_are_one_instruction(target: str, count: int) -> None:
    own = repeat(3, 1) * spatial(1, typical(target).lanes)
    lean = lower(replace(added(i32, own).ir, target=target))
    text = assembly_of(lean, typical(target))
    assert len(re.findall(r"\tvpdpbusd\t", text)) == count
    assert not count or not re.findall(r"\tvpadd", text)
