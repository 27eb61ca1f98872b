"""Stores of numbers that were made narrower, by some of the lanes: nothing beside them is written.

tests/backend/cpu/llvm has what LLVM does wrong. Where these programs run they run with canaries (tests/guards.py);
of AVX-512, which makes the mistakes, a processor without it reads the assembly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

import taskc as tc
from taskc import DType, bf16, f8e4m3, f8e5m2, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from taskc.backend.cpu.compile import assembly_of
from taskc.backend.cpu.processor import typical
from taskc.ir import nodes as ir
from taskc.ir.arithmetic import convert
from taskc.ir.types import boolean
from taskc.passes.pipeline import lower
from tests.backend.cpu.processors import NAMES, loaded_for

TYPES = (boolean, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64, f8e4m3, f8e5m2)
PAIRS = [(wide, narrow) for wide, narrow in product(TYPES, TYPES) if narrow.bits < wide.bits]
WORKERS = 32
_STORE = re.compile(r"^\tmov([bwlq])\t[^(]*, [-\d]*\(")  # of a general register or a constant
_BYTES = {"b": 1, "w": 2, "l": 4, "q": 8}


def narrowing(
    count: int, wide: DType, narrow: DType, workers: int = WORKERS
) -> tc.KernelDefinition:
    @tc.kernel(workers=workers)
    def narrowed(x: wide[count], y: tc.out[narrow[count]]):
        for start in tc.tiles(count, by=workers):
            for i in tc.spatial(workers):
                if start + i < count:
                    y[start + i] = x[start + i].to(narrow)

    return narrowed


def one_by_one(wide: DType, narrow: DType) -> tc.KernelDefinition:
    """Each lane in a store of its own."""

    @tc.kernel(workers=8)
    def apart(x: wide[8], y: tc.out[narrow[8]]):
        for lane in range(8):
            for i in tc.spatial(8):
                if i == lane:
                    y[i] = x[i].to(narrow)

    return apart


def numbers(dtype: DType, count: int) -> Any:
    """Of all bytes, none of which is a canary."""
    return (np.arange(1, count + 1) * 37 % 251 - (120 if dtype.is_signed else 0)).astype(
        dtype.numpy
    )


def check(kernel: ir.Kernel, wide: DType, narrow: DType, count: int, processor: str) -> None:
    x, y = numbers(wide, count), np.zeros(count, narrow.numpy)
    loaded = loaded_for(kernel, processor)
    for _ in range(2):  # before canaries, and behind them
        loaded.run([x, y], {})
        np.testing.assert_array_equal(y, convert(x, wide, narrow))


@pytest.mark.parametrize("processor", NAMES)
@pytest.mark.parametrize(
    ("wide", "narrow", "count"),
    [
        (i32, i8, 17), (f32, bf16, 17), (i64, i8, 33), (f32, f16, 1), (f64, f8e4m3, 9),
        (u64, u32, 5), (f32, boolean, 49), (i16, u8, 65), (f64, f32, 3),
    ],
    ids=str,
)  # fmt: skip
def test_narrow_stores_keep_within_an_array(
    wide: DType, narrow: DType, count: int, processor: str
) -> None:
    check(narrowing(count, wide, narrow).ir, wide, narrow, count, processor)


@pytest.mark.parametrize("processor", NAMES)
def test_narrow_stores_of_one_lane_keep_to_it(processor: str) -> None:
    check(one_by_one(i64, i8).ir, i64, i8, 8, processor)
    check(one_by_one(f32, bf16).ir, f32, bf16, 8, processor)


@pytest.mark.sweep
@pytest.mark.parametrize("processor", NAMES)
@pytest.mark.parametrize(("wide", "narrow"), PAIRS, ids=str)
def test_narrow_stores_of_every_size(wide: DType, narrow: DType, processor: str) -> None:
    for count in range(1, 131):
        check(narrowing(count, wide, narrow).ir, wide, narrow, count, processor)


# Of AVX-512, in its assembly.


def wide_stores(assembly: str, function: str, size: int) -> list[str]:
    """A function's stores of scalars that take more than so many bytes, but for those to its stack."""
    body = assembly.partition(f"\n{function}:")[2].partition("\n.Lfunc_end")[0]
    stores = [(line, _STORE.match(line)) for line in body.splitlines()]
    return [
        line
        for line, found in stores
        if found and _BYTES[found[1]] > size and not line.endswith("(%rsp)")
    ]


def assembly(kernel: ir.Kernel) -> str:
    processor = typical("avx512")
    return assembly_of(lower(replace(kernel, target=processor.target)), processor)


def test_llvm_stores_too_much_of_one_narrowed_lane() -> None:
    """When this fails LLVM is mended, and `Memory._narrow` may go."""
    assert wide_stores(of_llvm("narrow_store"), "store", 1) == ["\tmovl\t%eax, 3(%rsi)"]


@pytest.mark.parametrize(
    ("wide", "narrow", "count"), [(i32, i8, 17), (f32, bf16, 17), (i64, i8, 1), (i64, u32, 1)]
)
def test_no_store_of_avx512_is_wider_than_an_element(
    wide: DType, narrow: DType, count: int
) -> None:
    text = assembly(narrowing(count, wide, narrow).ir)
    assert "\njob:" in text
    assert wide_stores(text, "job", narrow.nbytes) == []


@pytest.mark.sweep
@pytest.mark.parametrize(("wide", "narrow"), PAIRS, ids=str)
def test_no_store_of_avx512_is_ever_wider(wide: DType, narrow: DType) -> None:
    for kernel in _one_lane_too_many(wide, narrow):
        assert wide_stores(assembly(kernel), "job", narrow.nbytes) == []


def _one_lane_too_many(wide: DType, narrow: DType) -> Iterator[ir.Kernel]:
    yield one_by_one(wide, narrow).ir
    for workers in (4, 8, 16, 32):
        for vectors in (0, 1, 2):
            yield narrowing(vectors * min(workers, 16) + 1, wide, narrow, workers).ir


def of_llvm(name: str) -> str:
    """The assembly of one of the files beside this one, with AVX-512."""
    text = (Path(__file__).parent / "llvm" / f"{name}.ll").read_text(encoding="utf-8")
    processor = typical("avx512")
    return str(processor.machine.emit_assembly(llvm.parse_assembly(text)))


@pytest.mark.parametrize("processor", NAMES)
@pytest.mark.parametrize("narrow", [i8, u8, i16, u16], ids=str)
@pytest.mark.parametrize("wide", [f32, f64, bf16], ids=str)
def test_floats_beyond_the_ends(wide: DType, narrow: DType, processor: str) -> None:
    """They become the ends, NaN 0; between, what is behind the point is cut off."""
    low, high = narrow.minimum, narrow.maximum
    near = [end + part for end in (low, high, 0) for part in (-1.5, -1, -0.5, 0, 0.5, 1, 1.5)]
    found = [*near, np.nan, -np.nan, np.inf, -np.inf, -0.0, 1e-30, 3e38, -3e38, 2**31, -(2**31)]
    with np.errstate(over="ignore"):
        x = np.array(found, wide.numpy)
    y = np.zeros(len(x), narrow.numpy)
    loaded_for(narrowing(len(x), wide, narrow).ir, processor).run([x, y], {})
    with np.errstate(invalid="ignore"):
        expected = np.clip(np.trunc(np.nan_to_num(x.astype(np.float64), nan=0)), low, high)
    np.testing.assert_array_equal(y, expected.astype(narrow.numpy))
