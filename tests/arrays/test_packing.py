"""Arguments go into their parameter's layout before a call, and out of it after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from taskc.arrays.packed import packed
from taskc.ir import nodes as ir
from taskc.ir.mapping import repeat
from taskc.ir.types import f32, i32

COLUMNS = repeat(3, 4, order=(1, 0))
PADDED = repeat(4, 4)


def parameter(role: str, layout: Any) -> ir.Tensor:
    return ir.Tensor("x", f32, (3, 4), ir.GLOBAL, role=role, layout=layout)


@pytest.mark.parametrize("layout", [COLUMNS, PADDED])
@pytest.mark.parametrize("role", ["in", "out", "inout"])
def test_what_lies_where_and_comes_back(role: str, layout: Any) -> None:
    value = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    before = value.copy()
    with packed([parameter(role, layout)], [value]) as (memory,):
        assert memory.shape == (layout.slots,)
        for place in np.ndindex(3, 4):
            wanted = 0 if role == "out" else before[place]
            assert memory[layout.owner(place)[1]] == wanted
        memory *= 2
        memory += 1
        assert np.array_equal(value, before)  # until the end
    expected = {"in": before, "out": np.ones_like(before), "inout": 2 * before + 1}[role]
    assert np.array_equal(value, expected)


def test_what_has_no_layout_is_passed_as_it_is() -> None:
    plain, number = np.zeros((3, 4), np.float32), np.int32(5)
    values = [plain, number]
    with packed([parameter("inout", None), ir.Variable("n", i32)], values) as passed:
        assert passed[0] is plain
        assert passed[1] is number


def test_rows_of_layouts_follow_one_another() -> None:
    """A layout of 2 rows, of a tensor of 5: three of them, the last one half empty."""
    value = np.arange(10, dtype=np.float32).reshape(5, 2)
    columns = repeat(2, 2, order=(1, 0))
    tensor = ir.Tensor("x", f32, (ir.Variable("n"), 2), ir.GLOBAL, layout=columns)
    with packed([tensor], [value]) as (memory,):
        assert memory.tolist() == [0, 2, 1, 3, 4, 6, 5, 7, 8, 0, 9, 0]
