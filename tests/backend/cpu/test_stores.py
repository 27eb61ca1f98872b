"""Stores by some of the lanes: what LLVM is asked for, and what comes out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import taskc as tc
from taskc import f32, repeat, spatial
from taskc.backend.cpu.compile import llvm_text
from taskc.passes.pipeline import lower
from tests.backend.cpu.processors import NAMES, loaded_for, processor


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("workers", [4, 16, 64])
def test_replicas_store_a_scalar(workers: int, name: str) -> None:
    """The first of those that have a sum writes it, from its own lane of its own vector."""
    own = repeat(3, 1) * spatial(1, workers)

    @tc.kernel(workers=workers)
    def row_sums(x: f32[3, workers], y: tc.out[f32[3]]):
        acc = tc.tile(f32, own)
        for i, j in own:
            acc[i, j] = x[i, j]
        sums = tc.reduce(acc, 1, "+")
        for i in sums.mapping:
            y[i] = sums[i]

    x = np.arange(3 * workers, dtype=np.float32).reshape(3, workers)
    y = np.zeros(3, np.float32)
    loaded_for(row_sums.ir, name).run([x, y], {})
    np.testing.assert_array_equal(y, x.sum(1))
    chosen = processor(name)
    text, _ = llvm_text(lower(replace(row_sums.ir, target=chosen.target)), chosen)
    assert "masked.scatter" not in text


@pytest.mark.parametrize("name", NAMES)
def test_any_lane_may_be_the_one_that_stores(name: str) -> None:
    @tc.kernel(workers=40)
    def ends(x: f32[40], y: tc.out[f32[4]]):
        for i in spatial(40):
            if i == 0:
                y[0] = x[i]
            if i == 7:
                y[1] = x[i]
            if i == 16:
                y[2] = x[i]
            if i == 39:
                y[3] = x[i]

    x, y = np.arange(40, dtype=np.float32), np.zeros(4, np.float32)
    loaded_for(ends.ir, name).run([x, y], {})
    assert y.tolist() == [0, 7, 16, 39]
