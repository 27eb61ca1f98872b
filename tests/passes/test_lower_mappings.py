"""Mapping loops become index arithmetic: every task by its worker."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from taskc.backend.sim import run
from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping
from taskc.ir.rewrite import walk
from taskc.passes.lower_grid import lower_grid
from taskc.passes.lower_mappings import lower_mappings
from taskc.passes.lower_rings import lower_rings
from taskc.passes.overlap import overlap
from taskc.passes.select import select
from tests.evaluator import Machine
from tests.passes.kernels import (
    before_and_after,
    keeps_its_result,
    kernel,
    nodes,
    through,
)

Golden = Callable[[str, str], None]


FIRST = (select, overlap, lower_rings, lower_grid)
SNAKE = "mapping((2, 4), 2, [[(0, 0), (0, 1), (0, 2), (0, 3)], [(1, 3), (1, 2), (1, 1), (1, 0)]])"


def scalar(start: ir.Kernel) -> ir.Kernel:
    return through(start, *FIRST, lower_mappings)


def test_golden(golden: Golden) -> None:
    start = through(
        kernel(
            """
            tile acc: f32[8, 16] by spatial(4, 8).repeat(2, 2)
            each (i, j) in spatial(4, 8).repeat(2, 2):
                acc[i, j] = x[i, j]
            each (i, j) in spatial(4, 8).repeat(2, 2).within(7, 16):
                acc[i, j] = acc[i, j] + 1.0
            each i in spatial(8).replicate(4):
                d[i] = x[i, 0]
            move c[i, j] = acc[i, j] for (i, j) in (8, 16)
            """,
            "x: f32[8, 16], c: out f32[8, 16], d: out f32[8]",
        ),
        *FIRST,
    )
    golden("passes/lower_mappings", before_and_after(start, through(start, lower_mappings)))


MAPPINGS = [
    "spatial(4, 8)",
    "repeat(2, 3).spatial(2, 2)",
    "spatial(2, 2).repeat(2, 3, order=(1, 0)).spatial(2, 1)",
    "spatial(4, 2, order=(1, 0)).repeat(3, 2)",
    "spatial(3, 5).repeat(2, 2).within(5, 9)",
    "spatial(2, 2).replicate(4).repeat(2, 2)",
    "replicate(3).spatial(2, 2).within(2, 1)",
    SNAKE,
    "mapping((2, 2), 3, [[(0, 0)], [(1, 1), (0, 1)], [(1, 0)]])",
    "mapping((2, 2), 3, [[(0, 0)], [(0, 0), (0, 1)], [(1, 1), (1, 0)]])",
]


@pytest.mark.parametrize("text", [m for m in MAPPINGS if not Mapping.parse(m).is_replicated])
def test_every_task_by_its_workers_in_order(text: str) -> None:
    """A record of who does what when, made by the lowered loop, is the mapping itself."""
    mapping = Mapping.parse(text)
    start = kernel(
        f"""
        local count: i64 = 0
        each (i, j) in {text}:
            seen[worker, count, 0] = i
            seen[worker, count, 1] = j
            count = count + 1
        """,
        f"seen: inout i64[{mapping.workers}, {mapping.slots}, 2]",
        workers=mapping.workers,
        stage="synchronized",
    )
    seen = np.full((mapping.workers, mapping.slots, 2), -1)
    report = run(through(start, lower_grid, lower_mappings), [seen])
    assert report.ok, report
    for worker in range(mapping.workers):
        tasks = [tuple(pair) for pair in seen[worker].tolist() if pair != [-1, -1]]
        assert tasks == mapping(worker)


@pytest.mark.parametrize("text", [m for m in MAPPINGS if Mapping.parse(m).is_replicated])
def test_the_first_owner_stores(text: str) -> None:
    mapping = Mapping.parse(text)
    rows, columns = mapping.shape
    start = kernel(
        f"""
        each (i, j) in {text}:
            seen[i, j] = worker + 1
        """,
        f"seen: inout i64[{rows}, {columns}]",
        workers=mapping.workers,
        stage="synchronized",
    )
    made = through(start, lower_grid, lower_mappings)
    seen = np.zeros((rows, columns), np.int64)
    assert run(made, [seen]).ok
    owners, _ = mapping.owner_table()
    assert (seen - 1 == owners).all()


def test_who_replicates_by_an_expression_stores_itself() -> None:
    """`.on` names the worker; the loop's own replication is between the workers of that name."""
    start = kernel(
        """
        each i in spatial(8):
            each j in spatial(2).repeat(4) on i % 2:
                if i < 2:
                    c[i, j] = x[i, j]
                elif j // 4 == i % 2:
                    c[i, j % 4] = x[i, j % 4]
                    c[i, j % 4 + 4] = x[i, j % 4]
        """,
        "x: f32[8, 8], c: inout f32[8, 8]",
        workers=8,
    )
    keeps_its_result(start)


@pytest.mark.parametrize("text", MAPPINGS)
def test_a_tile_by_any_mapping(text: str) -> None:
    mapping = Mapping.parse(text)
    rows, columns = mapping.iterated
    start = kernel(
        f"""
        tile t: f32[{rows}, {columns}] by {text}
        each (i, j) in {text}:
            t[i, j] = x[i, j]
        move c[i, j] = t[i, j] for (i, j) in ({rows}, {columns})
        """,
        f"x: f32[{rows}, {columns}], c: out f32[{rows}, {columns}]",
        workers=mapping.workers,
    )
    made = scalar(start)
    (register,) = [n.tensor for n in nodes(made, ir.Allocate) if n.tensor.scope == ir.REGISTER]
    assert register.shape == (mapping.slots,)
    keeps_its_result(start)


def nodes_of(expression: ir.Expression) -> list[object]:
    return list(walk(expression))


def variables_of(expression: ir.Expression) -> list[ir.Variable]:
    return sorted(
        {n for n in nodes_of(expression) if isinstance(n, ir.Variable)}, key=lambda v: v.name
    )


def test_matrix_instructions_take_consecutive_registers() -> None:
    start = kernel(
        """
        tile acc: f32[32, 16] by repeat(2, 2).repeat(2, 1).spatial(8, 4).repeat(1, 2) = 0.0
        constant shared a: f16[32, 16]
        move a[i, j] = x[i, j] for (i, j) in (32, 16)
        mma acc += a[0, 0].as(32, 16) @ a[0, 0].as(16, 16)
        move c[i, j] = acc[i, j] for (i, j) in (32, 16)
        """,
        "x: f16[32, 16], c: out f32[32, 16]",
        target="sm_80",
    )
    machine = Machine()
    (mma,) = [do for do in nodes(scalar(start), ir.Do) if do.operation.startswith("mma")]
    loops = [v for place in mma.operands for v in variables_of(place.indices[0])]  # type: ignore[union-attr]
    f0, f1 = sorted(set(loops), key=lambda v: v.name)
    for row in range(2):
        for column in range(2):
            slots = [machine.value(p.indices[0], {f0: row, f1: column}) for p in mma.operands]  # type: ignore[union-attr]
            assert slots == [(2 * row + column) * 4, row * 8, column * 4]
    keeps_its_result(start)
