"""Clusters: shared memory of other blocks, their mbarriers, multicast, and the barrier of all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f32, i32, i64, spatial
from taskc.backend import sim
from taskc.errors import CompileError
from taskc.passes.pipeline import lower
from tests.stages import changes, results, same_after_every_pass

SEEDS = (None, 1)


def everywhere(definition: Any, *arguments: Any, expected: np.ndarray) -> None:
    """The last argument is the result: the same at every stage, in every schedule."""
    kernels = same_after_every_pass(definition.ir, arguments, seeds=SEEDS)
    assert np.array_equal(results(kernels[-1], arguments)[-1], expected)


def make_sum(blocks: int, cluster: int, workers: int):
    """Each cluster sums its part of x: everybody's partial sums go to all blocks."""

    @tc.cuda.kernel(workers=workers)
    def total(x: i64[blocks, workers], y: tc.out[i64[blocks]]):
        for row in tc.tiles(blocks, by=1, cluster=cluster):
            part = tc.shared(i64[workers])
            sums = tc.shared(i64[cluster])
            w = tc.worker()
            part[w] = x[row, w]
            tc.sync()
            tc.cuda.cluster_sync()
            if w < cluster:
                mine = i64(0)
                for i in range(workers):
                    mine += part[i]
                tc.cuda.peer(sums, w)[tc.cuda.cluster_rank()] = mine
            tc.cuda.cluster_sync()
            if w == 0:
                whole = i64(0)
                for r in range(cluster):
                    whole += sums[r]
                y[row] = whole

    return total


@pytest.mark.parametrize(
    ("blocks", "cluster", "workers"), [(2, 2, 32), (6, 3, 64), (8, 8, 40), (4, 1 + 1, 7)]
)
def test_a_sum_over_the_cluster(blocks: int, cluster: int, workers: int) -> None:
    x = np.random.default_rng(0).integers(-99, 99, (blocks, workers))
    sums = x.sum(axis=1).reshape(-1, cluster).sum(axis=1)
    everywhere(
        make_sum(blocks, cluster, workers),
        *(x, np.zeros(blocks, np.int64)),
        expected=np.repeat(sums, cluster),
    )


OWN = spatial(8, 8).repeat(1, 2)


@tc.cuda.kernel(workers=96)
def matmul(a: f32[32, 24], b: f32[24, 32], c: tc.out[f32[32, 32]]):
    for row, col in tc.tiles((32, 32), by=(8, 16), cluster=(2, 1)):
        sa = tc.shared(f32[2, 8, 8])
        sb = tc.shared(f32[2, 8, 16])
        full = tc.cuda.barriers(2)
        empty = tc.cuda.barriers(2)
        w = tc.worker()
        rank = tc.cuda.cluster_rank()
        if w == 0:
            for s in range(2):
                tc.cuda.mbarrier_init(full[s], 1)
                tc.cuda.mbarrier_init(empty[s], 4)  # two warps of each block
        tc.cuda.cluster_sync()
        with tc.cuda.roles():
            with tc.cuda.role("producer", warps=1):
                if w == 0:
                    for t in range(3):
                        tc.cuda.mbarrier_wait(empty[t % 2], (t // 2 + 1) % 2)
                        tc.cuda.mbarrier_expect(full[t % 2], 256 + 512)
                        tc.cuda.tma_load(sa[t % 2, 0, 0], a[row, 8 * t], full[t % 2], 8, 8)
                        # Each block has one half of the right operand sent to both.
                        half = 4 * rank
                        tc.cuda.tma_load_multicast(
                            sb[t % 2, half, 0], b[8 * t + half, col], full[t % 2], 3, 4, 16
                        )
            with tc.cuda.role("consumer", warps=2):
                acc = tc.tile(f32, OWN, 0)
                for t in range(3):
                    tc.cuda.mbarrier_wait(full[t % 2], t // 2 % 2)
                    for q in range(8):
                        for i, j in OWN:
                            acc[i, j] += sa[t % 2, i, q] * sb[t % 2, q, j]
                    tc.cuda.syncwarp()
                    if w % 32 == 0:
                        tc.cuda.mbarrier_arrive(empty[t % 2])
                        tc.cuda.mbarrier_arrive(tc.cuda.peer(empty, 1 - rank)[t % 2])
                for i, j in OWN:
                    c[row + i, col + j] = acc[i, j]
        tc.cuda.cluster_sync()


def test_a_matmul_that_shares_its_right_operand() -> None:
    random = np.random.default_rng(0)
    a = random.integers(-9, 9, (32, 24)).astype(np.float32)
    b = random.integers(-9, 9, (24, 32)).astype(np.float32)
    everywhere(matmul, a, b, np.zeros((32, 32), np.float32), expected=a @ b)


def make_warpgroup_matmul(m: int, n: int, k: int):
    """Two blocks, one above the other, each load half of what both multiply by, and send it to both."""
    own = spatial(4, 1).repeat(1, 2).repeat(2, 1).spatial(8, 4).repeat(1, 2)
    steps, stages, bn, bk = tc.cdiv(k, 64), 2, 16, 64

    @tc.cuda.kernel(workers=160)
    def kernel(a: bf16[m, k], b: bf16[n, k], c: tc.out[f32[m, n]]):
        for row, col in tc.tiles((m, n), by=(64, bn), cluster=(2, 1)):
            sa = tc.shared(bf16[stages, 64, bk], swizzle=128)
            sb = tc.shared(bf16[stages, bn, bk], swizzle=128)
            full = tc.cuda.barriers(stages)
            empty = tc.cuda.barriers(stages)
            w = tc.worker()
            rank = tc.cuda.cluster_rank()
            half = bn // 2 * rank
            if w == 0:
                for s in range(stages):
                    tc.cuda.mbarrier_init(full[s], 1)
                    tc.cuda.mbarrier_init(empty[s], 2)
            tc.cuda.cluster_sync()
            with tc.cuda.roles():
                with tc.cuda.role("consumer", warps=4):
                    acc = tc.tile(f32, own)
                    tc.cuda.wgmma_fence()
                    for t in range(steps):
                        s = t % stages
                        tc.cuda.mbarrier_wait(full[s], t // stages % 2)
                        tc.cuda.wgmma(acc, sa[s, :, :], sb[s, :, :].T, accumulate=t > 0)
                        tc.cuda.wgmma_commit()
                        tc.cuda.wgmma_wait(0)
                        if w < 2:
                            tc.cuda.mbarrier_arrive(tc.cuda.peer(empty, w)[s])
                    for i, j in own:
                        if row + i < m and col + j < n:
                            c[row + i, col + j] = acc[i, j]
                with tc.cuda.role("producer", warps=1):
                    if w == 128:
                        for t in range(steps):
                            s = t % stages
                            tc.cuda.mbarrier_wait(empty[s], (t // stages + 1) % 2)
                            tc.cuda.mbarrier_expect(full[s], (64 + bn) * bk * 2)
                            tc.cuda.tma_load(sa[s, 0, 0], a[row, t * bk], full[s], 64, bk)
                            tc.cuda.tma_load_multicast(
                                sb[s, half, 0], b[col + half, t * bk], full[s], 3, bn // 2, bk
                            )
            tc.cuda.cluster_sync()

    return kernel


@pytest.mark.parametrize(("m", "n", "k"), [(128, 16, 256), (65, 28, 136), (128, 16, 8)])
def test_warpgroups_that_share_their_right_operand(m: int, n: int, k: int) -> None:
    random = np.random.default_rng(k)
    a, b = (random.integers(-4, 5, (x, k)).astype(ml_dtypes.bfloat16) for x in (m, n))
    expected = a.astype(np.float32) @ b.astype(np.float32).T
    kernel = make_warpgroup_matmul(m, n, k)
    everywhere(kernel, a, b, np.zeros((m, n), np.float32), expected=expected)


def test_messages_from_block_to_block() -> None:
    """The last one to arrive goes on with what the others have left in its memory."""

    @tc.cuda.kernel(workers=32)
    def ring(x: i64[6], y: tc.out[i64[6]]):
        for i in tc.tiles(6, by=1, cluster=3):
            box = tc.shared(i64[1])
            count = tc.shared(i32[1])
            come = tc.cuda.barriers(1)
            w = tc.worker()
            rank = tc.cuda.cluster_rank()
            if w == 0:
                tc.cuda.mbarrier_init(come[0], 1)
                count[0] = 0
            tc.cuda.cluster_sync()
            if w == 0:
                following = (rank + 1) % 3
                if rank > 0:
                    tc.cuda.mbarrier_wait(come[0], 0)
                else:
                    box[0] = 0
                value = box[0] + x[i]
                if rank < 2:
                    tc.cuda.peer(box, following)[0] = value
                    tc.cuda.mbarrier_arrive(tc.cuda.peer(come, following)[0])
                y[i] = value
                tc.atomic_add(tc.cuda.peer(count, 0)[0], 1)
            tc.cuda.cluster_sync()
            assert count[0] == (3 if rank == 0 else 0), "everybody was there"

    x = np.arange(6) ** 2
    everywhere(ring, x, np.zeros(6, np.int64), expected=x.reshape(2, 3).cumsum(axis=1).reshape(-1))


def test_split_barriers_and_global_memory() -> None:
    """Between arriving and waiting there is other work; what is global is ordered as well."""

    @tc.cuda.kernel(workers=64)
    def turn(x: i64[4, 64], z: tc.inout[i64[4, 64]], y: tc.out[i64[4, 64]]):
        for i in tc.tiles(4, by=1, cluster=4):
            w = tc.worker()
            z[i, w] = x[i, w]
            tc.cuda.cluster_arrive()
            twice = 2 * x[i, w]
            tc.cuda.cluster_wait()
            y[i, w] = z[(i + 1) % 4, w] + twice

    x = np.arange(256).reshape(4, 64)
    everywhere(turn, x, np.zeros_like(x), np.zeros_like(x), expected=np.roll(x, -1, axis=0) + 2 * x)


def test_persistent_clusters_run_the_tiles_of_clusters() -> None:
    @tc.cuda.kernel(workers=32)
    def swap(x: i64[400, 2], y: tc.out[i64[400, 2]]):
        for i, j in tc.tiles((400, 2), by=(1, 1), persistent=True, cluster=(1, 2)):
            s = tc.shared(i64[1])
            rank = tc.cuda.cluster_rank()
            tc.cuda.cluster_sync()  # nobody reads the tile before any more
            if tc.worker() == 0:
                s[0] = x[i, j]
            tc.cuda.cluster_sync()
            if tc.worker() == 0:
                y[i, j] = tc.cuda.peer(s, 1 - rank)[0]
            tc.cuda.cluster_sync()

    x = np.arange(800).reshape(400, 2)
    for kernel in (swap.ir, lower(swap.ir)):
        y = np.zeros_like(x)
        report = sim.run(kernel, [x, y])
        assert report.ok, str(report)
        assert np.array_equal(y, x[:, ::-1])


def test_blocks_of_different_clusters_are_not_ordered() -> None:
    @tc.cuda.kernel(workers=32)
    def far(z: tc.inout[i64[4]]):
        for i in tc.tiles(4, by=1, cluster=2):
            if tc.worker() == 0:
                z[i] = i
            tc.cuda.cluster_sync()
            if tc.worker() == 0:
                z[(i + 2) % 4] = i

    report = sim.run(far.ir, [np.zeros(4, np.int64)])
    found = report.findings[0]
    assert found.kind == "race"
    assert "worker 0 of block 2 writes z[" in found.message
    assert "(blocks are not ordered)" in found.message


def test_a_deadlock_names_the_blocks() -> None:
    @tc.cuda.kernel(workers=32)
    def stuck(y: tc.out[i64[2]]):
        for i in tc.tiles(2, by=1, cluster=2):
            come = tc.cuda.barriers(1)
            if tc.worker() == 0:
                tc.cuda.mbarrier_init(come[0], 32)
            tc.cuda.cluster_sync()
            tc.cuda.mbarrier_wait(come[0], 0)
            tc.cuda.mbarrier_arrive(tc.cuda.peer(come, 1 - tc.cuda.cluster_rank())[0])
            y[i] = 0

    report = sim.run(stuck.ir, [np.zeros(2, np.int64)])
    found = report.findings[0]
    assert found.kind == "deadlock"
    assert found.message == (
        "nobody can go on: workers wait for come[0] of block 0 to complete its phase of parity 0"
        " (32 arrivals and 0 bytes are missing)"
    )
    assert [note for note, _ in found.notes] == [
        f"workers 0..31 of block {block} wait for come[0] of block {block} to complete its phase"
        " of parity 0 (32 arrivals and 0 bytes are missing)"
        for block in (0, 1)
    ]


def test_a_kernel_of_phases_only_has_its_blocks_numbered() -> None:
    @tc.kernel(workers=32)
    def scale(x: f32[4, 96], y: tc.out[f32[4, 96]]):
        for i, j in tc.tiles((4, 96), by=(1, 32), cluster=(2, 1)):
            for k in spatial(32):
                y[i, j + k] = 2 * x[i, j + k]

    x = np.arange(384, dtype=np.float32).reshape(4, 96)
    for kernel in (scale.ir, *(step.kernel for step in changes(scale.ir))):
        y = np.zeros_like(x)
        report = sim.run(kernel, [x, y])
        assert report.ok, str(report)
        assert np.array_equal(y, 2 * x)


def test_other_targets_have_no_clusters() -> None:
    n = tc.dim("n", multiple=64)

    @tc.kernel(workers=32)
    def scale(x: f32[n], y: tc.out[f32[n]]):
        for i in tc.tiles(n, by=32, cluster=2):
            for k in spatial(32):
                y[i + k] = 2 * x[i + k]

    assert lower(scale.ir).cluster == 2
    with pytest.raises(CompileError, match="sm_89 has no clusters"):
        lower(replace(scale.ir, target="sm_89"))


def test_a_symbolic_grid_is_surely_a_multiple() -> None:
    n = tc.dim("n", multiple=32)

    @tc.kernel(workers=32)
    def scale(x: f32[n], y: tc.out[f32[n]]):
        for i in tc.tiles(n, by=32, cluster=2):
            for k in spatial(32):
                y[i + k] = 2 * x[i + k]

    with pytest.raises(CompileError) as caught:
        lower(scale.ir)
    assert caught.value.message == (
        "the (n + 31) // 32 tiles of dimension 0 aren't surely a multiple of the cluster's 2"
    )
    with pytest.raises(CompileError, match="the 3 tiles of dimension 0 aren't a multiple"):
        sim.run(scale.ir, [np.zeros(96, np.float32), np.zeros(96, np.float32)])
