"""Loads by some of the lanes, or by none: what was loaded by all of them isn't loaded again, if nothing writes it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import taskc as tc
from taskc import DType, f32, f64, i8, spatial
from taskc.backend.cpu.compile import assembly_of, llvm_text
from taskc.passes.pipeline import lower
from tests.backend.cpu.processors import NAMES, loaded_for, processor


@tc.kernel(workers=16)
def chosen(x: f32[16], y: tc.out[f32[16]]):
    for i in spatial(16):
        y[i] = 1.0 if x[i] != 2.0 and x[i] != 3.0 and x[i] != 5.0 else 0.0


@tc.kernel(workers=16)
def changed(x: tc.inout[f32[16]], y: tc.out[f32[16]]):
    for i in spatial(16):
        if x[i] != 2.0:
            x[i] = x[i] + 1.0
            y[i] = x[i]
        else:
            y[i] = x[i]


@pytest.mark.parametrize("name", NAMES)
def test_a_condition_loads_an_element_once(name: str) -> None:
    x = np.arange(16, dtype=np.float32)
    y = np.zeros(16, np.float32)
    loaded_for(chosen.ir, name).run([x, y], {})
    np.testing.assert_array_equal(y, ~np.isin(x, (2, 3, 5)))
    which = processor(name)
    text, _ = llvm_text(lower(replace(chosen.ir, target=which.target)), which)
    assert "masked.load" not in text


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_loaded_again(name: str) -> None:
    x = np.arange(16, dtype=np.float32)
    y = np.zeros(16, np.float32)
    expected = np.where(x != 2, x + 1, x)
    loaded_for(changed.ir, name).run([x, y], {})
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("dtype", [i8, f64], ids=str)
@pytest.mark.parametrize("stride", [1, 2, 9])
@pytest.mark.parametrize("name", NAMES)
def test_a_condition_of_all_lanes_guards_loads_of_any_stride(
    name: str, stride: int, dtype: DType
) -> None:
    """What lies behind the array is a page that nobody may read."""

    @tc.kernel(workers=16)
    def rows(x: dtype[30, 40, 16, stride], y: tc.out[dtype[60, 48, 16]]):
        for (row,) in tc.tiles((60,), by=(2,)):
            for p in range(48):
                for k in range(2):
                    for (i,) in spatial(16):
                        is_there = row + k < 30 and p < 40
                        y[row + k, p, i] = tc.where(is_there, x[row + k, p, i, 0], 0)

    x = np.arange(30 * 40 * 16 * stride).reshape(30, 40, 16, stride).astype(dtype.numpy)
    y = np.zeros((60, 48, 16), dtype.numpy)
    for _ in range(2):
        loaded_for(rows.ir, name).run([x, y], {})
    np.testing.assert_array_equal(y[:30, :40], x[..., 0])
    assert not y[30:].any()
    assert not y[:, 40:].any()


N = tc.dim("n")


@tc.kernel(workers=1)
def sorted_by_insertion(a: tc.inout[f64[N]]):
    for _ in spatial(1):
        for i in range(1, N):
            value, j = a[i], i
            while 0 < j < N and not (a[j - 1] <= value or a[j - 1] != a[j - 1]):
                a[j] = a[j - 1]
                j -= 1
            if 0 <= j < N and (j == 0 or a[j - 1] <= value):
                a[j] = value


@tc.kernel(workers=1)
def folded(a: f64[N], b: f64[N], y: tc.out[f64[1]]):
    for _ in spatial(1):
        total = f64(0)
        for i in range(N):
            total += a[i] * b[i]
        y[0] = total


@pytest.mark.parametrize("name", NAMES)
def test_conditions_of_one_worker_jump_over_what_they_need_not_read(name: str) -> None:
    a = np.random.default_rng(0).random(40)
    expected = np.sort(a)
    loaded_for(sorted_by_insertion.ir, name).run([a], {sorted_by_insertion.ir.dimensions[0]: 40})
    np.testing.assert_array_equal(a, expected)
    which = processor(name)
    text, _ = llvm_text(lower(replace(sorted_by_insertion.ir, target=which.target)), which)
    assert "ptr @nowhere" not in text


def test_sums_of_one_worker_are_unrolled() -> None:
    """As many turns as LLVM likes, and what is left; a vector's are its author's."""
    which = processor(NAMES[0])
    text = assembly_of(lower(replace(folded.ir, target=which.target)), which)
    assert text.count("fmadd") > 3
