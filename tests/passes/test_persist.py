"""Persistent grids: loops over a block's tiles, and rings that run on from tile to tile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, repeat, spatial
from taskc.backend.sim import run
from taskc.ir import nodes as ir
from taskc.ir.nodes import MOST_PROCESSORS
from taskc.ir.parser import parse
from taskc.ir.printer import to_text
from taskc.ir.rewrite import walk
from taskc.ir.target import TARGETS
from taskc.mutation import mutate
from taskc.passes.overlap import overlap
from taskc.passes.persist import persist
from taskc.passes.pipeline import lower
from taskc.passes.select import select
from taskc.passes.specialize import specialize
from tests.passes.kernels import (
    after,
    arguments_for,
    before_and_after,
    keeps_its_result,
    kernel,
    messages,
    nodes,
    result,
    through,
)
from tests.stages import results, same_after_every_pass

Golden = Callable[[str, str], None]

WAYS = {
    "registers": {"transport": "registers"},
    "cp.async": {"transport": "cp.async"},
    "tma": {"transport": "tma"},
    "specialized": {"transport": "tma", "specialize": True},
    "specialized registers": {"transport": "registers", "specialize": True},
}
OWN = spatial(2, 1) * spatial(4, 8) * repeat(1, 1)  # 8 x 8, by two warps


@pytest.fixture(autouse=True)
def _machines_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three blocks, so that a few tiles are several for each, and not as many for all."""
    for name, target in list(TARGETS.items()):
        monkeypatch.setitem(TARGETS, name, replace(target, processors=3))


def product(
    m: Any,
    n: Any,
    k: Any,
    *,
    stages: int = 3,
    order: Any = (0, 1),
    transport: Any = None,
    specialize: bool = False,
) -> ir.Kernel:
    bk = 4
    bm, bn = OWN.shape

    @tc.kernel(workers=OWN.workers)
    def product(a: f32[m, k], b: f32[k, n], c: tc.out[f32[m, n]]):
        for row, col in tc.tiles((m, n), by=(bm, bn), order=order, persistent=True):
            acc = tc.tile(f32, OWN, 0)
            for p in tc.pipeline(
                k, by=bk, stages=stages, transport=transport, specialize=specialize
            ):
                sa = tc.load(a[row : row + bm, p : p + bk])
                sb = tc.load(b[p : p + bk, col : col + bn])
                for q in range(bk):
                    for i, j in OWN:
                        acc[i, j] += sa[i, q] * sb[q, j]
            tc.store(c[row : row + bm, col : col + bn], acc)

    return replace(product.ir, target="sm_90a")


def inputs(m: int, n: int, k: int) -> list[Any]:
    random = np.random.default_rng(0)
    return [random.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n))]


def holds(start: ir.Kernel, plain: ir.Kernel, sizes: tuple[int, int, int], seeds: Any) -> None:
    """Every stage computes the bits of the program without a ring, under every schedule."""
    arguments = [*inputs(*sizes), np.full(sizes[:2], 77, np.float32)]
    same_after_every_pass(start, arguments, seeds=seeds, expected=results(plain, arguments))


# The loop over tiles.


def test_golden(golden: Golden) -> None:
    start = kernel(
        """
        grid (row, col) in (n, 48) by (8, 16) order=("grouped", 2) persistent:
            each (i, j) in repeat(4, 1).spatial(2, 16):
                if row + i < n:
                    c[row + i, col + j] = x[row + i, col + j]
        """,
        "x: f32[n, 48], c: out f32[n, 48]",
        dimensions="n",
    )
    start = through(start, select)
    golden("passes/persist", before_and_after(start, through(start, persist)))


@pytest.mark.parametrize(("rows", "loops"), [(8, 0), (24, 0), (25, 1)])
def test_a_tile_for_each_block_needs_no_loop(rows: int, loops: int) -> None:
    start = kernel(
        f"""
        grid row in {rows} by 8 persistent:
            each i in spatial(8):
                if row + i < {rows}:
                    c[row + i] = x[row + i]
        """,
        f"x: f32[{rows}], c: out f32[{rows}]",
        workers=8,
    )
    made = through(start, select, persist)
    assert len(nodes(made, ir.For)) == loops
    assert not any(grid.persistent for grid in nodes(made, ir.Grid))
    keeps_its_result(start)


def test_a_plain_grid_is_left_alone() -> None:
    start = select(kernel("grid r in 64 by 8:\n    move c[r + i] = x[r + i] for i in 8"))
    assert persist(start) is start


# Rings that run on.


@pytest.mark.parametrize("way", ["registers", "cp.async", "tma", "specialized"])
def test_golden_rings(way: str, golden: Golden) -> None:
    how = "transport=tma specialize" if way == "specialized" else f"transport={way}"
    start = kernel(
        f"""
        grid row in 56 by 8 persistent:
            tile acc: f32[8, 8] by spatial(8, 4).repeat(1, 2) = 0.0
            pipeline p in 32 by 8 stages=3 {how}:
                constant shared s: f32[8, 8]
                move s[i, j] = x[row + i, p + j] for (i, j) in (8, 8)
                each (i, j) in spatial(8, 4).repeat(1, 2):
                    acc[i, j] = acc[i, j] + s[7 - i, j]
            move c[row + i, j] = acc[i, j] for (i, j) in (8, 8)
        """,
        "x: f32[56, 32], c: out f32[56, 8]",
        target="sm_90a",
    )
    start = through(start, select, persist)
    golden(f"passes/persist_{way}", before_and_after(start, through(start, specialize, overlap)))


@pytest.mark.each_value
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("sizes", "stages"),
    [
        ((32, 16, 16), 3),
        ((30, 21, 12), 4),  # ragged tiles, and fewer steps than stages
        ((40, 16, 4), 4),  # one step a tile: loads are issued for tiles further on
        ((8, 40, 8), 2),
        ((40, 8, 20), 2),
        ((24, 8, 8), 3),  # one tile a block
    ],
    ids=str,
)
def test_results_stay(way: str, sizes: tuple[int, int, int], stages: int) -> None:
    if "tma" in str(WAYS[way]) and sizes[1] % 4:
        sizes = (sizes[0], 20, sizes[2])  # rows of 16 bytes
    plain = product(*sizes, stages=1)
    holds(product(*sizes, stages=stages, **WAYS[way]), plain, sizes, range(3))


@pytest.mark.each_value
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("k", [0, 4, 12])
def test_symbolic_sizes(way: str, k: int) -> None:
    """Without a step nothing is loaded, and nothing is divided by how many there are."""
    shape = (tc.dim("m"), tc.dim("n", multiple=4), tc.dim("k", multiple=4))
    sizes = (25, 12, k)
    plain = product(*shape, stages=1)
    holds(product(*shape, stages=4, **WAYS[way]), plain, sizes, (None, 0))


@pytest.mark.parametrize("cluster", ["", " cluster=(2, 1)"])
@pytest.mark.parametrize("way", ["cp.async", "specialized"])
def test_one_code_for_every_number_of_processors(way: str, cluster: str) -> None:
    """Only the launch knows the number; also of clusters that the machine hasn't processors enough for."""
    sizes = (64, 20, 8)
    text = to_text(product(*sizes, **WAYS[way]))
    made = lower(parse(text.replace(" persistent", f" persistent{cluster}")))
    expected = None
    for processors in (1, 2, 3, 7, 23, 24, 25, MOST_PROCESSORS):
        given = [*inputs(*sizes), np.full(sizes[:2], 77, np.float32)]
        report = run(made, given, dimensions={made.processors: processors})
        assert report.ok, report
        expected = given[-1] if expected is None else expected
        np.testing.assert_array_equal(given[-1], expected)
    np.testing.assert_allclose(expected, given[0] @ given[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", ["registers", "cp.async"])
def test_ragged_steps(way: str) -> None:
    shape = (tc.dim("m"), tc.dim("n"), tc.dim("k"))
    for sizes in ((27, 11, 7), (1, 1, 1), (0, 5, 3), (50, 3, 2)):
        holds(product(*shape, stages=3, **WAYS[way]), product(*shape, stages=1), sizes, (None, 0))


@pytest.mark.each_value
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("order", [("grouped", 2), (1, 0)])
def test_orders_of_tiles(way: str, order: Any) -> None:
    sizes = (40, 24, 8)
    plain = product(*sizes, stages=1, order=order)
    holds(product(*sizes, stages=3, order=order, **WAYS[way]), plain, sizes, (None, 0, 1))


@pytest.mark.each_value
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("sizes", "stages"), [((32, 16, 16), 3), ((64, 8, 8), 4)], ids=str)
def test_every_barrier_is_needed(way: str, sizes: tuple[int, int, int], stages: int) -> None:
    m, n, _ = sizes
    arguments = [*inputs(*sizes), np.zeros((m, n), np.float32)]
    mutants = list(mutate(product(*sizes, stages=stages, **WAYS[way]), [arguments]))
    deleted = [m for m in mutants if m.kind == "delete" and "barrier" in m.description]
    assert deleted
    kept = [m.description for m in deleted if not m.reported and "mbarrier" not in m.description]
    assert kept == []
    assert [m.description for m in mutants if not (m.reported or m.reason)] == []


def order_of_operations(start: ir.Kernel) -> list[str]:
    """Ring steps, and the loop over tiles, in the order of the text."""
    found = []
    for node in walk(start.body):
        if isinstance(node, ir.RingStep):
            found.append(node.operation)
        if isinstance(node, ir.For) and node.variable.name == "turn":
            found.append("tiles")
    return found


@pytest.mark.parametrize("way", ["registers", "cp.async", "tma"])
def test_the_prologue_stands_before_the_tiles(way: str) -> None:
    made = after(product(32, 24, 16, **WAYS[way]), "overlap")
    middle = (
        ["release", "acquire", "commit"] if way == "registers" else ["acquire", "commit", "release"]
    )
    assert order_of_operations(made) == ["acquire", "commit", "tiles", "wait", *middle]


def test_the_producer_runs_ahead_over_tiles() -> None:
    made = after(product(32, 24, 16, **WAYS["specialized"]), "overlap")
    assert order_of_operations(made) == [
        "tiles", "acquire", "commit", "tiles", "wait", "release"
    ]  # fmt: skip
    lowered = after(product(32, 24, 16, **WAYS["specialized"]), "lower_rings")
    (grid,) = nodes(lowered, ir.Grid)
    assert len([n for n in walk(grid.body) if isinstance(n, ir.Barrier)]) == 1, "it is set up once"


def test_loads_of_later_tiles_overlap_the_work() -> None:
    """With one step a tile and four stages, three tiles are in flight while one is computed."""
    ahead = []
    made = after(product(64, 24, 4, stages=4, **WAYS["registers"]), "overlap")
    tiles = {node.variable for node in nodes(made, ir.For) if node.variable.name == "turn"}
    for let in nodes(made, ir.Let):
        if let.variable.name == "turn":
            ahead.append([v for v in walk(let.value) if v in tiles])
    assert [bool(found) for found in ahead] == [False, True], "in the prologue, and in a step"


# Where a ring can't run on, or not alone.


def tiles_of(body: str, parameters: str, *, rows: int = 56) -> ir.Kernel:
    text = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    return kernel(f"grid row in {rows} by 8 persistent:\n{text}\n", parameters, target="sm_90a")


LOAD = """
tile acc: f32[8, 8] by spatial(8, 4).repeat(1, 2) = 0.0
{before}
pipeline p in {extent} by 8 stages=3{how}:
    constant shared s: f32[8, 8]
    move s[i, j] = {load} for (i, j) in (8, 8)
    each (i, j) in spatial(8, 4).repeat(1, 2):
        acc[i, j] = acc[i, j] + s[7 - i, j]
{behind}
move c[row + i, j] = acc[i, j] for (i, j) in (8, 8)
"""
PARAMETERS = "x: f32[56, 64], n: inout i64[8], c: out f32[56, 8]"


def loading(
    load: str = "x[row + i, p + j]",
    *,
    before: str = "pass",
    extent: str = "32",
    how: str = "",
    behind: str = "pass",
) -> ir.Kernel:
    body = LOAD.format(load=load, before=before, extent=extent, how=how, behind=behind)
    return tiles_of(body, PARAMETERS)


HOWS = ["", " transport=registers", " transport=tma", " specialize"]


@pytest.mark.parametrize("how", HOWS)
def test_steps_that_the_tile_counts(how: str) -> None:
    """A triangle: the ring is set up for each tile, but where a producer counts the steps as they come."""
    start = loading(extent="row + 8", how=how)
    made = after(start, "overlap")
    assert messages(made) == (
        []
        if "specialize" in how
        else [
            "this pipeline does not run on across tiles: how many steps it has depends on the tile"
        ]
    )
    assert order_of_operations(made)[0] == "tiles"
    loop = next(n for n in nodes(made, ir.For) if n.variable.name == "turn")
    allocated = [n for n in walk(loop) if isinstance(n, ir.Allocate)]
    assert any(n.tensor.scope == ir.SHARED for n in allocated) == ("specialize" not in how)
    keeps_its_result(start)


def test_tiles_without_a_step() -> None:
    """The cell counts on: what comes after an empty tile is in the slot that is next."""
    keeps_its_result(loading(extent="(row // 8 % 2) * 24", how=" specialize"))


@pytest.mark.parametrize("how", HOWS)
def test_scalars_of_a_tile(how: str) -> None:
    """The loads of the next tile compute them anew; what is counted with them must not differ."""
    start = loading(
        "x[top + i, p + j]",
        before="let top = row // 8 * 8\nlet half = 64 // 2",
        extent="half",
        how=how,
    )
    made = after(start, "overlap")
    assert messages(made) == []
    assert order_of_operations(made)[0] == ("tiles" if "specialize" in how else "acquire")
    keeps_its_result(start)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ({"load": "x[row + i, p + j] + t", "before": "local m: f32 = 0.0\nm = 2.0\nlet t = m"},
         "the load of `s` reads `m`, which the work writes"),
        ({"load": "x[row + i, p + j] + n[row // 8].to(f32)", "behind": "move n[row // 8 + i] = 3 for i in 1"},
         "the load of `s` reads `n`, which the work writes"),
        ({"load": "x[row + i, p % 32 + j]", "extent": "m", "before": "local m: i64 = 8\nm = m + 24"},
         "how many steps it has reads `m`, which the work writes"),
    ],
    ids=["a scalar", "memory", "the extent"],
)  # fmt: skip
def test_what_a_tile_computes(case: dict[str, Any], why: str) -> None:
    start = loading(**case)
    made = after(start, "overlap")
    assert f"this pipeline does not run on across tiles: {why}" in messages(made)
    assert order_of_operations(made)[0] == "tiles"
    keeps_its_result(start)


def test_a_pipeline_within_something() -> None:
    text = LOAD.format(load="x[row + i, p + j]", before="pass", extent="32", how="", behind="pass")
    head, tail = text.split("pipeline", 1)
    loop, store = tail.rsplit("pass", 1)
    inner = "pipeline" + loop
    nested = "if row < 24:\n" + "\n".join("    " + line for line in inner.splitlines())
    start = tiles_of(head + nested + store, PARAMETERS)
    made = after(start, "overlap")
    assert messages(made) == [
        "this pipeline does not run on across tiles: it stands within another statement"
    ]
    keeps_its_result(start)


@pytest.mark.each_value
@pytest.mark.parametrize("first", HOWS)
@pytest.mark.parametrize("second", HOWS[:3])
def test_two_pipelines_in_a_tile(first: str, second: str) -> None:
    """Each has a ring of its own, which runs on; mbarriers of both are set up behind one barrier."""
    again = f"""pipeline q in 24 by 8 stages=4{second}:
    constant shared t: f32[8, 8]
    move t[i, j] = x[row + i, q + 8 + j] for (i, j) in (8, 8)
    each (i, j) in spatial(8, 4).repeat(1, 2):
        acc[i, j] = acc[i, j] * t[i, 7 - j]"""
    start = loading(how=first, behind=again)
    made = after(start, "overlap")
    assert messages(made) == []
    keeps_its_result(start)
    lowered = after(start, "lower_rings")
    set_up = [b for b in nodes(lowered, ir.Barrier) if "its first use" in b.orders]
    counted = [" specialize" in first, " transport=tma" in (first, second)]
    assert len(set_up) == sum(counted), "one, and one more within the consumer"


def test_a_scalar_from_memory_for_each_tile() -> None:
    """A gather of rows: the loads of the next tile read where it is by themselves."""
    start = tiles_of(
        LOAD.format(
            load="x[top + i, p + j]",
            before="let top = n[row // 8] % 49",
            extent="32",
            how=" transport=tma",
            behind="pass",
        ),
        "x: f32[56, 64], n: i64[8], c: out f32[56, 8]",
    )
    made = after(start, "overlap")
    assert messages(made) == []
    assert order_of_operations(made)[0] == "acquire"
    keeps_its_result(start)


@pytest.mark.parametrize(("steps", "barriers"), [(2, 2), (3, 2), (4, 1), (5, 1)])
def test_more_steps_than_stages_order_the_consumers(steps: int, barriers: int) -> None:
    """Who has waited for a slot for the second time knows that all others are in this tile, too."""
    start = kernel(
        f"""
        grid row in 56 by 8 persistent:
            tile acc: f32[8, 8] by spatial(8, 8) = 0.0
            pipeline p in {8 * steps} by 8 stages=3 transport=tma specialize:
                constant shared s: f32[8, 8]
                move s[i, j] = x[row + i, p + j] for (i, j) in (8, 8)
                each (i, j) in spatial(8, 8):
                    acc[i, j] = acc[i, j] + s[7 - i, j]
            shared turned: f32[8, 8]
            each (i, j) in spatial(8, 8):
                turned[7 - i, j] = acc[i, j]
            move c[row + i, j] = turned[i, j] for (i, j) in (8, 8) by spatial(8, 8)
        """,
        "x: f32[56, 40], c: out f32[56, 8]",
        workers=64,
        target="sm_90a",
    )
    keeps_its_result(start)
    made = after(start, "synchronize")
    assert [barrier.scope for barrier in nodes(made, ir.Barrier)] == ["role"] * barriers
    for seed in range(2):
        result(after(start, "lower_rings"), seed=seed)
    arguments = arguments_for(start)
    deleted = [m for m in mutate(start, [arguments]) if m.description == "the role barrier deleted"]
    assert deleted
    assert all(mutant.reported for mutant in deleted)


def test_a_warp_that_is_ahead_reads_what_all_read() -> None:
    """What orders it is the ring, and the warps come to that one by one."""
    start = kernel(
        """
        constant shared first: f32[64]
        move first[i] = x[0, 0] for i in 64
        tile acc: f32[8, 8] by spatial(8, 8) = 0.0
        pipeline p in 32 by 8 stages=3 transport=tma specialize:
            constant shared s: f32[8, 8]
            move s[i, j] = x[i, p + j] for (i, j) in (8, 8)
            each (i, j) in spatial(8, 8):
                acc[i, j] = acc[i, j] + s[7 - i, j]
        each (i, j) in spatial(8, 8):
            acc[i, j] = acc[i, j] + first[0]
        move c[i, j] = acc[i, j] for (i, j) in (8, 8) by spatial(8, 8)
        """,
        "x: f32[8, 32], c: out f32[8, 8]",
        workers=64,
        target="sm_90a",
    )
    assert not nodes(after(start, "synchronize"), ir.Barrier)
    keeps_its_result(start)
    for seed in range(5):
        result(after(start, "lower_mappings"), seed=seed)
