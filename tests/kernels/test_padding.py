"""Copies with zeros behind the rows, on GPUs: all lanes work, whatever the length of a row."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, boolean, f16, f32, i8
from taskc.backend.cuda.compile import compile_kernel, disassembler, sass_of
from taskc.kernels.padding import pad, pitch
from taskc.passes.pipeline import lower
from taskc.runtime.checking import for_target
from tests.kernels.simulated import simulated

HOPPER = tc.machine("sm_90a")


@pytest.mark.each_value(2)
@pytest.mark.parametrize("dtype", [f16, f32, i8, boolean], ids=str)
@pytest.mark.parametrize(
    ("shape", "wide"), [((70, 3), 4), ((33, 5), None), ((9, 20), None), ((2, 270), None), ((0, 3), 4)]
)  # fmt: skip
@pytest.mark.parametrize("is_open", [False, True])
def test_results(shape: tuple[int, int], wide: int | None, dtype: tc.DType, is_open: bool) -> None:
    x = (np.arange(np.prod(shape)).reshape(shape) % 13 + 1).astype(dtype.numpy)
    rows = tc.dim("rows") if is_open else shape[0]
    made, notes = simulated(pad(rows, shape[1], dtype, HOPPER, wide), [x], "sm_90a")
    expected = np.zeros((shape[0], wide or pitch(shape[1], dtype)))
    expected[:, : shape[1]] = x
    assert np.array_equal(made, expected)
    assert notes == ()


@pytest.mark.parametrize(
    ("shape", "dtype", "wide", "loads", "stores"),
    [
        ((32 * 224 * 224, 3), f16, 4, 12, {"STG.E.64": 4}),  # the images of a ResNet
        ((1 << 20, 3), f32, None, 12, {"STG.E.128": 4}),
        ((1 << 18, 12), bf16, None, None, {"STG.E.128": 2}),
        ((2039, 2039), f16, None, 8, {"STG.E": 4}),
        ((2039, 2039), f32, None, 4, {"STG.E": 4}),
    ],
    ids=str,
)  # fmt: skip
def test_all_lanes_work(
    shape: tuple[int, int], dtype: tc.DType, wide: int | None, loads: int | None, stores: Any
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC isn't published for this machine")
    kernel = lower(for_target(pad(*shape, dtype, HOPPER, wide).ir, "sm_90a"))
    made = compile_kernel(kernel)
    (access,) = {16 if ".128" in one else 8 if ".64" in one else 4 for one in stores}
    elements = made.blocks * made.threads * sum(stores.values()) * access // dtype.nbytes
    stored = shape[0] * (wide or pitch(shape[1], dtype))
    assert stored <= elements <= 1.01 * stored
    if disassembler() is not None:
        found = re.findall(r"\b(?:LDG|STG)[.\w]*", sass_of(made.cubin))
        assert {one: found.count(one) for one in set(found) if one[0] == "S"} == stores
        if loads is not None:
            assert sum(one[0] == "L" for one in found) == loads
