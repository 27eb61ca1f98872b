"""Copies between tiles that turn rows along the lanes into columns along them, by shuffles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import DType, Mapping, bf16, f32, f64, i8, i32, repeat, spatial
from taskc.ir import nodes as ir
from taskc.ir.operations import TURN
from taskc.ir.rewrite import walk
from taskc.passes.pipeline import lower
from tests.backend.cpu.processors import NAMES, loaded_for, processor
from tests.stages import same_after_every_pass

LANES = {"avx512": 16, "avx2": 8, "sse2": 4}


def turned(rows: int, columns: int, lanes: int) -> Mapping:
    owners = repeat(-(-rows // lanes), columns) * spatial(lanes, 1)
    return owners if rows % lanes == 0 else owners.within((rows, columns))


def copying(rows: int, columns: int, dtype: DType, owners: Mapping, lanes: int) -> Any:
    own = repeat(rows, columns // lanes) * spatial(1, lanes)

    @tc.kernel(workers=lanes)
    def copying(x: dtype[rows, columns], y: tc.out[dtype[columns, rows]]):
        for (_,) in tc.tiles((1,), by=(1,)):
            made = tc.tile(dtype, own)
            for p, o in own:
                made[p, o] = x[p, o]
            lines = tc.tile(dtype, owners)
            tc.copy(lines, made)
            for p, o in owners:
                y[o, p] = lines[p, o]

    return copying


def turns(kernel: ir.Kernel, target: str) -> int:
    lean = lower(replace(kernel, target=target))
    return sum(isinstance(node, ir.Do) and node.operation == TURN for node in walk(lean.body))


@pytest.mark.each_value(2)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [f32, f64, bf16, i8, i32], ids=str)
@pytest.mark.parametrize("rows", [1, 3, 4, 7, 16, 17, 33])
def test_tiles_are_turned(rows: int, dtype: DType, name: str) -> None:
    lanes = next(n for kind, n in LANES.items() if processor(name).target.startswith(kind))
    columns = 2 * lanes
    kernel = copying(rows, columns, dtype, turned(rows, columns, lanes), lanes).ir
    x = (np.arange(rows * columns) % 100).astype(dtype.numpy).reshape(rows, columns)
    y = np.zeros((columns, rows), dtype.numpy)
    loaded_for(kernel, name).run([x, y], {})
    np.testing.assert_array_equal(y, x.T)


@pytest.mark.parametrize(("target", "lanes"), [("avx512", 16), ("avx2", 8)])
def test_every_stage_computes_the_same(target: str, lanes: int) -> None:
    kernel = copying(11, lanes, f32, turned(11, lanes, lanes), lanes).ir
    x = np.arange(11.0 * lanes, dtype=np.float32).reshape(11, lanes)
    arguments = [x, np.zeros((lanes, 11), np.float32)]
    same_after_every_pass(replace(kernel, target=target), arguments, expected=[x, x.T.copy()])


def test_tiles_are_squares() -> None:
    assert turns(copying(16, 16, f32, turned(16, 16, 16), 16).ir, "avx512") == 1
    assert turns(copying(33, 32, f32, turned(33, 32, 16), 16).ir, "avx512") == 6


def test_other_owners_go_through_memory() -> None:
    """Those of which every lane has rows beside each other, and all owners where there are no vectors of this width."""
    others = spatial(16, 1) * repeat(2, 16)
    assert turns(copying(32, 16, f32, others, 16).ir, "avx512") == 0
    assert turns(copying(16, 16, f32, turned(16, 16, 16), 16).ir, "avx2") == 0
