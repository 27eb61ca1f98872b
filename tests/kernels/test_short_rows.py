"""Matrices with short rows that end within an access, turned on GPUs: 16 bytes at a time on both sides."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import boolean, f16, f32, i8
from taskc.backend.cuda.compile import compile_kernel, disassembler, sass_of
from taskc.ir import nodes as ir
from taskc.ir.rewrite import walk
from taskc.kernels.transpose import transpose
from taskc.mutation import inputs_of, mutate
from taskc.passes.pipeline import lower
from taskc.runtime.checking import for_target
from tests.kernels.simulated import simulated

HOPPER = tc.machine("sm_90a")


def turned(shape: Any, dtype: tc.DType) -> tc.KernelDefinition:
    return transpose(shape, (0, 2, 1), dtype=dtype, machine=HOPPER)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [f16, f32, boolean], ids=str)
@pytest.mark.parametrize(
    "shape", [(2, 80, 49), (2, 49, 80), (1, 64, 7), (3, 9, 144), (2, 16, 1), (0, 32, 49)], ids=str
)
def test_results(shape: tuple[int, ...], dtype: tc.DType) -> None:
    """The last run ends where the matrix does, and not where a block's rows would."""
    x = (np.arange(np.prod(shape)).reshape(shape) % 1999).astype(dtype.numpy)
    kernel = turned((tc.dim("images"), *shape[1:]), dtype)
    made, notes = simulated(kernel, [x], "sm_90a")
    assert np.array_equal(made.reshape(shape[0], shape[2], shape[1]), x.transpose(0, 2, 1))
    assert notes == ()


def test_after_every_pass() -> None:
    x = np.arange(2 * 72 * 49).reshape(2, 72, 49).astype(np.float16)
    for given in (x, np.ascontiguousarray(x.transpose(0, 2, 1))):
        made, _ = simulated(turned(given.shape, f16), [given], "sm_80", "all")
        assert np.array_equal(made.reshape(2, given.shape[2], -1), given.transpose(0, 2, 1))


@pytest.mark.parametrize("dtype", [f16, f32, i8], ids=str)
@pytest.mark.parametrize("shape", [(32, 512, 49), (32, 49, 512), (8, 192, 35)], ids=str)
def test_accesses_are_whole(shape: tuple[int, ...], dtype: tc.DType) -> None:
    """Whatever lies in the device's memory is read and written 16 bytes at a time."""
    kernel = lower(for_target(turned(shape, dtype).ir, "sm_90a"))
    wide = [
        16 // dtype.nbytes == node.stop.value  # type: ignore[attr-defined]
        for node in walk(kernel.body)
        if isinstance(node, ir.For) and node.kind == "vector"
    ]
    assert wide.count(True) >= 2
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC isn't published for this machine")
    if disassembler() is not None:
        accesses = re.findall(r"\b(?:LDG|STG)[.\w]*", sass_of(compile_kernel(kernel).cubin))
        assert accesses
        assert all(".128" in access for access in accesses)


def test_other_rows_are_turned_in_squares() -> None:
    """Of 196 elements of 2 bytes an access of 8 takes a whole number."""
    runs = {
        shape: "rows" in {n.tensor.name for n in walk(turned(shape, f16).ir.body) if isinstance(n, ir.Allocate)}
        for shape in ((1, 64, 49), (1, 64, 196), (1, 49, 49), (1, 64, 4099), (tc.dim("n"), 7, 64))
    }  # fmt: skip
    assert list(runs.values()) == [True, False, False, False, True]


@pytest.mark.parametrize("shape", [(1, 64, 7), (1, 7, 64)], ids=str)
def test_breaks_are_reported(shape: tuple[int, ...]) -> None:
    kernel = turned(shape, f16)
    mutants = list(mutate(for_target(kernel.ir, "sm_90a"), inputs_of(kernel)))
    assert mutants
    assert [m.description for m in mutants if not (m.reported or m.reason)] == []
