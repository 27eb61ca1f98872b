"""How reductions are selected: their order, identities, and mappings."""

from __future__ import annotations

import numpy as np
import pytest

from taskc.backend.sim import run
from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping
from taskc.passes.pipeline import lower
from taskc.passes.select import select
from tests.passes.kernels import (
    before_and_after,
    kernel,
    nodes,
    refused,
    result,
    through,
)
from tests.passes.test_select import Golden


def test_golden_of_a_reduction(golden: Golden) -> None:
    start = kernel(
        """
        tile t: f32[2, 256] by spatial(1, 2).repeat(2, 4).spatial(1, 32)
        move t[i, j] = x[i, j] for (i, j) in (2, 256)
        tile r: f32[2] by repeat(2).replicate(64)
        reduce r = + over t axis=1
        move c[i] = r[i] for i in 2
        """,
        "x: f32[2, 256], c: out f32[2]",
        workers=64,
        target="sm_80",
    )
    golden("passes/select_reduction", before_and_after(start, through(start, select)))


def tree(values: list[np.float32]) -> np.float32:
    while len(values) > 1:
        half = (len(values) + 1) // 2
        paired = [values[i] + values[i + half] for i in range(len(values) - half)]
        values = [*paired, *values[len(paired) : half]]
    return values[0]


def summed(values: np.ndarray, own: Mapping) -> np.ndarray:
    """Every worker's slots in order, then the tree over the workers of a row by their columns."""
    sums = []
    for row in range(own.shape[0]):
        parts = {}
        for worker in range(own.workers):
            columns = [j for i, j in own(worker) if i == row]
            if columns:
                total = values[row, columns[0]]
                for j in columns[1:]:
                    total = total + values[row, j]
                parts[columns[0]] = total
        sums.append(tree([parts[column] for column in sorted(parts)]))
    return np.array(sums, np.float32)


@pytest.mark.each_value
@pytest.mark.parametrize("target", ["generic", "sm_80"])
@pytest.mark.parametrize(
    ("own", "shuffles"),
    [
        ("spatial(32, 1).repeat(1, 6)", 0),
        ("spatial(16, 2).repeat(1, 3)", 1),
        ("spatial(1, 3).repeat(2, 3)", 0),
        ("spatial(1, 5).repeat(1, 3)", 0),
        ("spatial(4, 8).repeat(2, 3)", 3),
        ("spatial(1, 33).repeat(1, 2)", 0),
        ("spatial(1, 64).repeat(1, 2)", 5),
        ("spatial(2, 8).repeat(1, 2)", 0),  # half a warp
        ("spatial(8, 4, order=(1, 0)).repeat(1, 3)", 2),  # the lanes of a row are 8 apart
        ("spatial(1, 2).repeat(1, 2).spatial(4, 8)", 3),  # beyond the warp: 2 more through memory
        ("spatial(8, 3).repeat(1, 2).spatial(1, 4)", 0),  # 12 positions: not the tree's last levels
        ("spatial(8, 4).repeat(1, 2).spatial(3, 1)", 0),  # lanes 3 apart
    ],
)
def test_the_order_of_a_reduction(own: str, shuffles: int, target: str) -> None:
    owners = Mapping.parse(own)
    rows, columns = owners.shape
    start = kernel(
        f"""
        tile t: f32[{rows}, {columns}] by {own}
        move t[i, j] = x[i, j] for (i, j) in ({rows}, {columns})
        tile r: f32[{rows}] by {owners.project((0,))}
        reduce r = + over t axis=1
        move c[i] = r[i] for i in {rows}
        """,
        f"x: f32[{rows}, {columns}], c: out f32[{rows}]",
        workers=owners.workers,
        target=target,
    )
    exchanged = [do for do in nodes(select(start), ir.Do) if do.operation == "shuffle.xor"]
    assert len(exchanged) == (shuffles if target == "sm_80" else 0)
    for stage in ("parsed", "selected", "lean"):
        x, found = result(lower(start, stage))
        assert found.tobytes() == summed(x, owners).tobytes(), stage


@pytest.mark.parametrize("operator", ["+", "*", "min", "max"])
@pytest.mark.parametrize("value", [-0.0, 0.0, float("inf"), float("-inf"), float("nan"), 3.0])
def test_a_fold_begins_with_an_identity(operator: str, value: float) -> None:
    start = kernel(
        f"""
        tile t: f32[1, 1] by spatial(1, 1)
        move t[i, j] = x[i] for (i, j) in (1, 1)
        tile r: f32[1] by spatial(1)
        reduce r = {operator} over t axis=1
        move c[i] = r[i] for i in 1
        """,
        "x: f32[1], c: out f32[1]",
        workers=1,
    )
    given = np.array([value], np.float32)
    found = [given, np.zeros(1, np.float32)]
    assert run(select(start), found).ok
    assert found[1].tobytes() == given.tobytes()


@pytest.mark.parametrize(
    "own",
    ["spatial(2, 4).within(2, 3)", "mapping((2, 3), 6, [[(0, 0)], [(0, 1)], [(0, 2)], [(1, 2)], [(1, 1)], [(1, 0)]])"],
    ids=["masked", "enumerated"],
)  # fmt: skip
def test_reductions_need_a_plain_mapping(own: str) -> None:
    owners = Mapping.parse(own)
    shape = owners.shape
    start = kernel(
        f"""
        tile t: f32[{shape[0]}, {shape[1]}] by {own} = 1.0
        tile r: f32[2] by repeat(2).replicate({owners.workers})
        reduce r = + over t axis=1
        """,
        workers=owners.workers,
    )
    error = refused(start, select)
    assert error.message == "tc.reduce needs a tile whose mapping is composed and unmasked"
    assert error.location.line == 4
    assert "`t` is laid out by " in (error.hint or "")
