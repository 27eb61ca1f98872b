"""Tables of 256 bytes, looked up in memory or permuted in registers, and floats that are rounded to bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import DType, f32, i8, i16, u8, u16
from taskc.backend.cpu.compile import assembly_of
from taskc.backend.cpu.processor import Processor, processor, typical
from taskc.ir import nodes as ir
from taskc.passes.pipeline import lower
from tests.backend.cpu.processors import NAMES, loaded_for

WORKERS = 32


def looking_up(count: int, size: int, kept: DType) -> tc.KernelDefinition:
    @tc.kernel(workers=WORKERS)
    def looked_up(x: u8[count], table: kept[size], y: tc.out[kept[count]]):
        for start in tc.tiles(count, by=WORKERS):
            for i in tc.spatial(WORKERS):
                if start + i < count:
                    y[start + i] = table[min(x[start + i].to(tc.i32), size - 1)]

    return looked_up


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kept", [u8, i8, u16], ids=str)
@pytest.mark.parametrize("size", [256, 255, 7])
@pytest.mark.parametrize("count", [1, 31, 300])
def test_tables(name: str, kept: DType, size: int, count: int) -> None:
    random = np.random.default_rng(count)
    x = random.integers(0, 256, count).astype(np.uint8)
    x[:1] = 255
    table = random.integers(kept.minimum, int(kept.maximum) + 1, size).astype(kept.numpy)
    y = np.zeros(count, kept.numpy)
    loaded_for(looking_up(count, size, kept).ir, name).run([x, table, y], {})
    np.testing.assert_array_equal(y, table[np.minimum(x, size - 1)])


def assembly(kernel: ir.Kernel, which: Processor) -> str:
    return assembly_of(lower(replace(kernel, target=which.target)), which)


def with_vbmi() -> Processor:
    plain = typical("avx512_vnni")
    features = {name[1:]: True for name in plain.features.split(",")} | {"avx512vbmi": True}
    return processor(plain.triple, "icelake-server", features)


@pytest.mark.parametrize(
    ("size", "kept", "is_permuted"), [(256, u8, True), (255, u8, False), (256, u16, False)]
)
def test_only_tables_of_all_bytes_are_permuted(size: int, kept: DType, is_permuted: bool) -> None:
    kernel = looking_up(WORKERS, size, kept).ir
    text = assembly(kernel, with_vbmi())
    assert (text.count("vpermi2b") + text.count("vpermt2b") >= 2) == is_permuted
    assert "vpermi2b" not in assembly(kernel, typical("avx512_vnni"))


def rounding(count: int, kept: DType, zero: DType | None) -> tc.KernelDefinition:
    @tc.kernel(workers=WORKERS)
    def rounded(x: f32[count], z: (zero or u8)[1], y: tc.out[kept[count]]):
        for start in tc.tiles(count, by=WORKERS):
            for i in tc.spatial(WORKERS):
                if start + i < count:
                    if tc.static(zero is None):
                        y[start + i] = round(x[start + i]).to(kept)
                    else:
                        y[start + i] = (round(x[start + i]) + z[0].to(f32)).to(kept)

    return rounded


def awkward_floats() -> Any:
    halves = np.arange(-600, 600, dtype=np.float32) / 2
    large = np.float32([1e9, 3e9, 1e30, np.inf, np.nan, 8388609, 16777217, 0.49999997])
    return np.concatenate([halves, large, -large])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kept", [u8, i8, i16, u16], ids=str)
@pytest.mark.parametrize("zero", [None, 0, 3, 255, -128, 127])
def test_rounded_floats(name: str, kept: DType, zero: int | None) -> None:
    """Halves go to even, before a zero point is added; what is beyond a range is its end, and no number is 0."""
    kind = None if zero is None else u8 if zero >= 0 else i8
    x = awkward_floats()
    y = np.zeros(len(x), kept.numpy)
    z = np.array([zero or 0], (kind or u8).numpy)
    loaded_for(rounding(len(x), kept, kind).ir, name).run([x, z, y], {})
    wide = np.rint(x.astype(np.float64)) + (zero or 0)
    expected = np.clip(np.nan_to_num(wide, nan=0.0), kept.minimum, kept.maximum)
    np.testing.assert_array_equal(y, expected.astype(kept.numpy))


def test_one_instruction_rounds_and_converts() -> None:
    text = assembly(rounding(64, u8, u8).ir, typical("avx512"))
    assert "vcvtps2dq" in text
    assert "vrndscaleps" not in text
