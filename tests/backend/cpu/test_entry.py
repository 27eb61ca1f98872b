"""Compiled code that takes calls: when it is there, and how quick it is."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.backend.cpu import entry
from tests import guards
from tests.counting import instructions

n = tc.dim("n")


@tc.kernel(workers=16)
def scale(x: tc.f32[n], by: tc.f32, y: tc.out[tc.f32[n]]):
    for start in tc.tiles(n, by=64):
        for i in tc.spatial(16).repeat(4):
            if start + i < n:
                assert x[start + i] < 1e30, "too large"
                y[start + i] = x[start + i] * by


X = np.linspace(-3, 3, 100, dtype=np.float32)


def identity(dtype: Any) -> Any:
    @tc.kernel(workers=1)
    def given(x: dtype, y: tc.out[dtype[1]]):
        for i in tc.spatial(1):
            y[i] = x

    return given


def test_code_goes_with_its_kernel() -> None:
    kernel = identity(tc.i32)
    kernel(1)
    function = kernel.direct
    alive = weakref.ref(kernel)
    del kernel
    gc.collect()
    assert alive() is not None
    assert function(7).tolist() == [7]
    del function
    gc.collect()
    assert alive() is None


def test_a_warm_kernel_is_traced_in_a_program() -> None:
    scale(X, 1.0)

    @tc.program
    def twice(x: tc.f32[100], y: tc.out[tc.f32[100]]):
        t = tc.empty(tc.f32[100])
        scale(x, 2.0, out=t)
        scale(t, 2.0, out=y)

    np.testing.assert_array_equal(twice(X), X * 4)

    def foreign(x: tc.f32[100], y: tc.out[tc.f32[100]]):
        scale(X.astype(np.float64), 2.0, out=y)

    with pytest.raises(tc.CompileError, match="not an array of float64"):
        tc.program(foreign)


@pytest.mark.parametrize("strange", ["header", "implementation"])
def test_other_kinds_of_python(strange: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if strange == "header":
        strange_fields = entry._ArrayFields()
        monkeypatch.setattr(entry._ArrayFields, "from_address", lambda place: strange_fields)
    else:
        monkeypatch.setattr(entry.sys.implementation, "name", "pypy")
    kernel = identity(tc.i32)
    assert kernel(3).tolist() == [3]
    assert kernel.direct is None
    assert kernel(4).tolist() == [4]


def test_more_than_2_to_the_31_elements(tmp_path: Path) -> None:
    """Nine blocks, each of which touches a few bytes of a sparse file."""
    size, by = 2**31 + 17, 2**28
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(size)

    @tc.kernel(workers=16)
    def mark(x: tc.inout[tc.u8[n]]):
        for start in tc.tiles(n, by=by):
            for i in tc.spatial(16).repeat(2):
                if start + i < n:
                    x[start + i] = x[start + i] + (start // by + i + 1).to(tc.u8)

    mapped = np.asarray(np.memmap(path, np.uint8, "r+"))
    for number, call in enumerate((mark.call, mark), start=1):
        call(mapped)
        for start in range(0, size, by):
            count = min(32, size - start)
            expected = [number * (start // by + 1 + i) for i in range(count)]
            assert mapped[start : start + count].tolist() == expected
    assert mark.direct is not None


def test_a_call_is_quick() -> None:
    """Hardly anything of it is Python's, from the second call on."""
    quick = tc.KernelDefinition.of(scale.ir)
    x, out = X[:64].copy(), np.empty(64, np.float32)
    with guards.absent():
        quick(x, 2.0, out=out)
    assert instructions(lambda: quick(x, 2.0, out=out)) < 100
    assert instructions(lambda: quick.call(x, 2.0, out=out)) > 1000  # what it does without


def test_out_is_quick_as_the_name_of_the_output_too() -> None:
    twice = tc.trace("twice", {"x": tc.f32[64]}, lambda x: tc.compute((64,), lambda i: 2 * x[i]))
    x, out = X[:64].copy(), np.empty(64, np.float32)
    with guards.absent():
        twice(x, out=out)
    assert instructions(lambda: twice(x, out=out)) < 100
    np.testing.assert_array_equal(out, 2 * x)
