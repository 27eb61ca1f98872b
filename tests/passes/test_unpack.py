"""Elements of sub-byte types are what ml_dtypes says of their bits, at every stage."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import DType, f32, i4, i8, repeat, spatial, u8
from taskc.backend import sim
from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping
from taskc.ir.printer import to_text
from taskc.ir.rewrite import walk
from taskc.passes.pipeline import lower
from taskc.passes.unpack import unpack
from tests.ir.test_bits import SUB_BYTE, elements
from tests.random_programs.mutations.mutation import Wrong, edited
from tests.stages import same_after_every_pass

unpacking = sys.modules[unpack.__module__]  # whose name is the function's, too


def widened(dtype: DType, m: int, n: int, layout: Mapping | None = None) -> Any:
    """Every element of a matrix as an f32, neighbours by neighbouring workers."""
    b = dtype[m, n] if layout is None else dtype[m, n].laid(layout)

    @tc.kernel(workers=16)
    def kernel(b: b, y: tc.out[f32[m, n]]):  # type: ignore[valid-type]
        for row, column in tc.tiles((m, n), by=(1, 16)):
            for _, j in spatial(1, 16):
                if column + j < n:
                    y[row, column + j] = b[row, column + j].to(f32)

    return kernel


def codes_of(dtype: DType, m: int, n: int) -> np.ndarray:
    """All there are, again and again, row by row from another one on."""
    return (np.arange(m)[:, None] * 5 + np.arange(n)) % (1 << dtype.bits)


LAYOUTS = [None, repeat(1, 5) * repeat(4, 16), repeat(4, 40) * repeat(1, 2), repeat(5, 81)]


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", SUB_BYTE, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=["rows", "panels", "pairs", "padded"])
def test_every_element_is_what_its_bits_are(dtype: DType, layout: Mapping | None) -> None:
    m, n = 4, 80 - 45 * (layout is None)  # rows that begin within bytes
    kernel, x = widened(dtype, m, n, layout), elements(dtype, codes_of(dtype, m, n))
    expected = x.astype(np.float32)
    made = np.zeros((m, n), np.float32)
    seen: set[str] = set()
    for target in ("generic", "sm_90a", "avx2"):
        now = replace(kernel.ir, target=target)
        same_after_every_pass(now, [x, made], expected=[x, expected], seen=seen)
    np.testing.assert_array_equal(kernel(x), expected)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("_unpacked", edited("_times(_modulo(offset, 2), 4)", "_times(_modulo(offset, 1), 4)")),
        ("_unpacked", edited("Constant(8, u16)", "Constant(7, u16)")),
        ("_unpacked", edited("_modulo(start, 8)", "_modulo(start, 4)")),
        ("_unpacked", edited("_like(dtype.bits - 1, start)", "_like(0, start)")),
        ("_float", edited("16 - dtype.bits", "15 - dtype.bits")),
        ("_float", edited("dtype.exponent_bits - 1", "dtype.exponent_bits")),
    ],
)
def test_planted_mistakes_are_seen(
    name: str, wrong: Wrong, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, name, wrong(getattr(unpacking, name)))
    seen = []
    for dtype in SUB_BYTE:
        kernel, x = widened(dtype, 3, 35), elements(dtype, codes_of(dtype, 3, 35))
        made = np.zeros((3, 35), np.float32)
        lean = lower(replace(kernel.ir, target="generic"))
        report = sim.run(lean, [x, made])
        seen.append(bool(report.findings) or not np.array_equal(made, x.astype(np.float32)))
    assert any(seen)


@pytest.mark.parametrize("dtype", SUB_BYTE, ids=str)
def test_no_byte_behind_the_end_is_read(dtype: DType) -> None:
    """The last element of all lies in the last byte, or in the last two; a page without access follows."""
    for n in range(1, 9):
        kernel, x = widened(dtype, 1, n), elements(dtype, codes_of(dtype, 1, n))
        np.testing.assert_array_equal(kernel(x), x.astype(np.float32))
        assert not tc.check(kernel, (x,))


def test_behind_the_pass_there_are_bytes() -> None:
    lean = lower(widened(i4, 4, 32).ir)
    (b, _) = lean.parameters
    assert isinstance(b, ir.Tensor)
    assert b.dtype is u8
    assert b.shape == (64,)
    assert {node.tensor.dtype for node in walk(lean.body) if isinstance(node, ir.Read)} == {u8}


def test_a_kernel_without_such_types_stays_the_same() -> None:
    @tc.kernel(workers=4)
    def copied(x: f32[4], y: tc.out[f32[4]]):
        for i in spatial(4):
            y[i] = x[i]

    assert unpack(copied.ir) is copied.ir


def test_the_text(golden: Any) -> None:
    n = tc.dim("n", multiple=2)

    @tc.kernel(workers=8)
    def summed(b: i4[n, 16], y: tc.out[f32[8]]):
        for i in spatial(8):
            total = i8(0)
            for k in range(n):
                total += b[k, 2 * i + 1]
            y[i] = total.to(f32)

    golden("passes/unpack", to_text(lower(summed.ir)))
