"""The barrier of all blocks: what comes before it is known behind it, and all have to come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import i64
from taskc.backend import sim
from taskc.errors import Finding
from tests.backend.sim.test_clusters import everywhere
from tests.whole_grid import make_total


@pytest.mark.parametrize(("blocks", "workers"), [(1, 32), (5, 48), (16, 64)])
def test_a_sum_over_the_grid(blocks: int, workers: int) -> None:
    x = np.random.default_rng(0).integers(-99, 99, (blocks, workers))
    total = make_total(blocks, workers)
    everywhere(total, x, np.zeros(blocks, np.int64), np.zeros(1, np.int64), expected=[x.sum()])


def test_waves_through_the_grid() -> None:
    """Each step reads what the neighbours' last one has written: the barrier is met again and again."""

    @tc.cuda.kernel(workers=32)
    def waves(x: tc.inout[i64[4, 32]], y: tc.inout[i64[4, 32]]):
        for row in tc.tiles(4, by=1):
            w = tc.worker()
            for _ in range(3):
                y[row, w] = x[(row + 1) % 4, w] + 1
                tc.cuda.grid_sync()
                x[row, w] = y[(row + 1) % 4, w] + 1
                tc.cuda.grid_sync()

    x = np.arange(128).reshape(4, 32)
    everywhere(waves, x, np.zeros_like(x), expected=np.roll(x, -5, axis=0) + 5)


def test_what_all_have_counted() -> None:
    """Atomic updates of all blocks, before the barrier and behind it, and reads between."""

    @tc.cuda.kernel(workers=32)
    def counted(x: i64[4, 32], counts: tc.inout[i64[2]], y: tc.out[i64[4, 2]]):
        for row in tc.tiles(4, by=1):
            w = tc.worker()
            tc.atomic_add(counts[x[row, w] % 2], 1)
            tc.cuda.grid_sync()
            if w < 2:
                y[row, w] = counts[w]
            tc.cuda.grid_sync()
            tc.atomic_add(counts[0], 1)

    x = np.random.default_rng(0).integers(0, 9, (4, 32))
    odd = int((x % 2).sum())
    expected = [[x.size - odd, odd]] * 4
    everywhere(counted, x, np.zeros(2, np.int64), np.zeros((4, 2), np.int64), expected=expected)


def test_with_roles_mbarriers_and_clusters() -> None:
    """Where warps run by themselves, each block goes as far as the barrier, and waits for the others."""

    @tc.cuda.kernel(workers=64)
    def turn(x: i64[4, 32], y: tc.inout[i64[4, 32]], z: tc.out[i64[4, 32]]):
        for row in tc.tiles(4, by=1, cluster=2):
            s = tc.shared(i64[32])
            filled = tc.cuda.barriers(1)
            w = tc.worker()
            if w == 0:
                tc.cuda.mbarrier_init(filled[0], 32)
            tc.cuda.cluster_sync()
            with tc.cuda.roles():
                with tc.cuda.role("giver", warps=1):
                    s[w] = x[row, w]
                    tc.cuda.mbarrier_arrive(filled[0])
                with tc.cuda.role("taker", warps=1):
                    tc.cuda.mbarrier_wait(filled[0], 0)
                    y[row, w - 32] = 2 * s[w - 32]
            tc.cuda.grid_sync()
            if w < 32:
                z[row, w] = y[3 - row, w]
            tc.cuda.cluster_sync()

    x = np.arange(128).reshape(4, 32)
    everywhere(turn, x, np.zeros_like(x), np.zeros_like(x), expected=2 * x[::-1])


SEEDS = (None, 1, 2)


def found(definition: Any, seed: int | None, *arguments: np.ndarray) -> list[Finding]:
    return list(sim.run(definition.ir, arguments, seed=seed).findings)


@pytest.mark.parametrize("seed", SEEDS)
def test_without_it_blocks_race(seed: int | None) -> None:
    x = np.ones((5, 48), np.int64)
    total = make_total(5, 48, waits=False)
    kinds = found(total, seed, x, np.zeros(5, np.int64), np.zeros(1, np.int64))
    assert [one.kind for one in kinds] == ["race"]


@pytest.mark.parametrize("seed", SEEDS)
def test_it_orders_only_what_came_before(seed: int | None) -> None:
    """All read before it, and one of them behind it: another block then writes too early."""

    @tc.cuda.kernel(workers=32)
    def early(x: tc.inout[i64[1]], y: tc.out[i64[3]]):
        for row in tc.tiles(3, by=1):
            before = x[0]
            tc.cuda.grid_sync()
            if tc.worker() == 0:
                if row == 0:
                    y[row] = x[0]
                elif row == 1:
                    x[0] = 1
                    y[row] = before
                else:
                    y[row] = before

    (race,) = found(early, seed, np.zeros(1, np.int64), np.zeros(3, np.int64))
    assert race.kind == "race"
    assert "worker 0 of block 1 writes x[0], which worker 0 of block 0 reads" in str(race)
    assert "(and nothing orders the two)" in str(race)


@pytest.mark.parametrize("seed", SEEDS)
def test_readers_before_it_are_forgotten(seed: int | None) -> None:
    """What all blocks have read one of them may go on reading and writing by itself."""

    @tc.cuda.kernel(workers=32)
    def owner(x: tc.inout[i64[1]], y: tc.out[i64[3]]):
        for row in tc.tiles(3, by=1):
            before = x[0]
            tc.cuda.grid_sync()
            if row == 0:
                if tc.worker() == 0:
                    x[0] = x[0] + 1
                tc.sync()
            if tc.worker() == 0:
                y[row] = before

    x, y = np.zeros(1, np.int64), np.ones(3, np.int64)
    assert found(owner, seed, x, y) == []
    assert (x[0], y.tolist()) == (1, [0, 0, 0])


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_that_do_not_come(seed: int | None) -> None:
    @tc.cuda.kernel(workers=64)
    def some(y: tc.out[i64[3, 64]]):
        for row in tc.tiles(3, by=1):
            if row > 0:
                tc.cuda.grid_sync()
            y[row, tc.worker()] = row

    (divergence,) = found(some, seed, np.zeros((3, 64), np.int64))
    assert divergence.kind == "barrier-divergence"
    assert divergence.location.line == some.ir.loc.line + 3
    assert "some blocks come to this barrier of the grid" in divergence.message


def test_blocks_that_come_to_another_one() -> None:
    @tc.cuda.kernel(workers=64)
    def other(y: tc.out[i64[2, 64]]):
        for row in tc.tiles(2, by=1):
            if row > 0:
                tc.cuda.grid_sync()
            else:
                tc.cuda.grid_sync()
            y[row, tc.worker()] = row

    (divergence,) = found(other, 1, np.zeros((2, 64), np.int64))
    assert divergence.message == (
        "some blocks come to this barrier of the grid, but others come to another one"
    )
    (_, place), *_ = divergence.notes
    assert place.line == divergence.location.line - 2
