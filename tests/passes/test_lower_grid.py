"""Every tile of a grid is executed exactly once, in the order that was asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given, strategies as st

from taskc.backend.cuda.compiled import count, form_of
from taskc.backend.sim import run
from taskc.errors import NOWHERE
from taskc.ir import nodes as ir
from taskc.ir.rewrite import walk
from taskc.ir.target import TARGETS
from taskc.passes import lower_grid as module
from taskc.passes.lower_grid import lower_grid
from taskc.passes.persist import persist
from taskc.passes.select import select
from tests.evaluator import Machine
from tests.passes.kernels import before_and_after, keeps_its_result, kernel, refused, through

Golden = Callable[[str, str], None]


def counted(grid: str, shape: tuple[int, ...], order: bool = False) -> ir.Kernel:
    """Each tile adds 1 to its element, or notes its block's number."""
    names = ", ".join("rst"[: len(shape)])
    extents = ", ".join(map(str, shape))
    return kernel(
        f"""
        grid ({names}) in ({extents}) by ({", ".join("1" * len(shape))}){grid}:
            each i in spatial(1):
                {f"atomic seen[{names}] += 1" if not order else f"seen[{names}] = block + 1"}
        """,
        f"seen: inout i64[{extents}]",
        workers=1,
        stage="selected",
    )


def numbers(start: ir.Kernel, shape: tuple[int, ...]) -> np.ndarray:
    seen = np.zeros(shape, np.int64)
    report = run(replace(lower_grid(persist(start)), stage="synchronized"), [seen])
    assert report.ok, report
    return seen


def test_a_dimension_of_one_tile_costs_nothing() -> None:
    start = kernel(
        """
        grid (a, i, b, j) in (1, m, 3, n) by (1, 1, 4, 32):
            each k in spatial(32):
                if j + k < n:
                    c[i, j + k] = 1.0
        """,
        "c: out f32[m, n]",
        dimensions="m, n",
        stage="selected",
    )
    lowered = lower_grid(persist(start))
    values = {n.variable.name: n.value for n in walk(lowered.body) if isinstance(n, ir.Let)}
    assert values["a"] == values["b"] == ir.Constant(0)
    operators = [n.operator for n in walk(values["i"]) if isinstance(n, ir.Binary)]
    assert "%" not in operators


def test_golden(golden: Golden) -> None:
    start = through(
        kernel(
            """
            grid (row, col) in (n, 48) by (8, 16) order=("grouped", 2) persistent:
                each (i, j) in repeat(4, 1).spatial(2, 16):
                    if row + i < n:
                        c[row + i, col + j] = x[row + i, col + j]
            """,
            "x: f32[n, 48], c: out f32[n, 48]",
            dimensions="n",
        ),
        select,
    )
    start = replace(start, stage="synchronized")
    golden("passes/lower_grid", before_and_after(start, through(start, persist, lower_grid)))


@pytest.mark.parametrize("order", [(), (0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_orders(order: tuple[int, ...]) -> None:
    """The dimensions from slowest to fastest."""
    shape = (2, 3, 4)
    start = counted(f" order={order}" if order else "", shape, order=True)
    slowest_first = order or (0, 1, 2)
    expected = np.arange(24).reshape([shape[d] for d in slowest_first])
    assert (numbers(start, shape) - 1 == expected.transpose(np.argsort(slowest_first))).all()


@pytest.mark.parametrize("order", [(), (1, 0), ("grouped", 2), ("backwards", 2)])
def test_the_tiles_of_a_cluster_are_consecutive(order: tuple[object, ...]) -> None:
    """What `order` orders are the clusters."""
    shape, cluster = (8, 6), (2, 3)
    text = f" order=({', '.join(map(json.dumps, order))})" if order else ""
    start = counted(f"{text} cluster=(2, 3)", shape, order=True)
    found = numbers(start, shape) - 1
    clusters = numbers(counted(text, (4, 2), order=True), (4, 2)) - 1
    for row in range(8):
        for column in range(6):
            within = row % 2 * 3 + column % 3
            assert found[row, column] == clusters[row // 2, column // 3] * 6 + within
    assert lower_grid(start).cluster == prod(cluster)


def grouped(number: int, rows: int, columns: int, height: int) -> tuple[int, int]:
    """Written anew: walk down the columns of groups of `height` rows."""
    order = [
        (row, column)
        for top in range(0, rows, height)
        for column in range(columns)
        for row in range(top, min(top + height, rows))
    ]
    return order[number]


@given(st.integers(1, 9), st.integers(1, 7), st.integers(1, 5))
def test_groups_are_a_bijection(rows: int, columns: int, height: int) -> None:
    """The last group may be lower."""
    counts = [ir.Constant(rows), ir.Constant(columns)]
    number = ir.Variable("number")
    lets, digits = module._grouped(counts, number, height, NOWHERE)
    machine = Machine()
    found = []
    for tile in range(rows * columns):
        values = {number: tile}
        for let in lets:
            assert isinstance(let, ir.Let)
            values[let.variable] = machine.value(let.value, values)
        found.append(tuple(machine.value(digit, values) for digit in digits))
    assert found == [grouped(tile, rows, columns, height) for tile in range(rows * columns)]


@pytest.mark.parametrize("cluster", ["", " cluster=(2, 1)"])
def test_backwards_is_grouped_from_the_last_column(cluster: str) -> None:
    shape = (6, 4)
    forwards, backwards = (
        numbers(counted(f' order=("{order}", 2){cluster}', shape, order=True), shape)
        for order in ("grouped", "backwards")
    )
    assert (backwards == forwards[:, ::-1]).all()
    assert backwards[0, 3] == 1


@pytest.mark.parametrize("processors", [1, 2, 3, 7, 24, 25, 100])
@pytest.mark.parametrize(
    "order", ["", ' order=("grouped", 3)', ' order=("backwards", 3)', " order=(1, 0)"]
)
def test_persistent_blocks_share_the_tiles(
    processors: int, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TARGETS, "generic", replace(TARGETS["generic"], processors=processors))
    start = counted(f"{order} persistent", (4, 6))
    made = lower_grid(persist(start))
    assert made.blocks is not None
    assert count(form_of(made.blocks, made), [processors]) == min(24, processors)
    assert (numbers(start, (4, 6)) == 1).all()


@pytest.mark.parametrize("n", [0, 1, 8, 9, 64, 65])
@pytest.mark.parametrize("persistent", ["", " persistent"])
def test_symbolic_sizes(n: int, persistent: str) -> None:
    start = kernel(
        f"""
        let rows = (n + 7) // 8
        grid r in rows * 8 by 8{persistent}:
            each i in spatial(8):
                if r + i < n:
                    c[r + i] = x[r + i]
        """,
        "x: f32[n], c: out f32[n]",
        workers=8,
        dimensions="n",
    )
    keeps_its_result(start, {"n": n})


def test_the_launch_knows_only_dimensions() -> None:
    start = select(
        kernel(
            """
            let rows = n // 2
            let twice = rows * 2
            grid r in twice by 8:
                each i in spatial(8):
                    if r + i < n:
                        c[r + i] = 1.0
            """,
            "c: inout f32[n]",
            workers=8,
            dimensions="n",
        )
    )
    blocks = lower_grid(start).blocks
    assert blocks is not None
    assert {v for v in walk(blocks) if isinstance(v, ir.Variable)} == set(start.dimensions)


def test_a_number_of_blocks_from_memory() -> None:
    start = kernel(
        """
        let rows = x[0]
        grid r in rows by 8:
            each i in spatial(8):
                x[0] = 1
        """,
        "x: inout i64[8]",
        workers=8,
        stage="selected",
    )
    error = refused(start, lower_grid)
    assert error.message.startswith("how many blocks there are depends on memory")
    assert error.location.line == 3


def test_without_a_grid_there_is_one_block() -> None:
    assert lower_grid(select(kernel("move c[i] = x[i] for i in 64"))).blocks == ir.Constant(1)


def test_more_workers_than_there_are() -> None:
    def of(workers: int) -> ir.Kernel:
        text = f"each i in spatial({workers}):\n    y[i] = 1.0"
        return kernel(text, f"y: out f32[{workers}]", workers=workers, target="sm_80")

    error = refused(of(1025), select, lower_grid)
    assert error.message == "a block of sm_80 has at most 1024 workers, and this has 1025"
    lower_grid(select(of(1024)))
