"""Barriers around stores by bulk copies, which go on reading shared memory until their issuer has waited.

Two processors, so that each block has two tiles: what the first one's store still reads, the second one writes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import taskc as tc
from taskc import bf16, f32, repeat, spatial
from taskc.ir.target import SM_90A, TARGETS
from taskc.lang.definition import KernelDefinition
from tests.passes.test_select_products import runs_everywhere

FRAGMENT = spatial(4, 1).repeat(1, 4) * (repeat(2, 1) * spatial(8, 4) * repeat(1, 2))
STEPS = 160  # of k, 32 at a time: more than the ring has slots, so that leaving the loop orders what came before


@pytest.fixture(autouse=True)
def _two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "sm_90a", replace(SM_90A, processors=2))


def with_a_barrier_elsewhere() -> KernelDefinition:
    """A barrier between the store and the wait for it orders what it stands for, and not what the store reads."""

    @tc.kernel(workers=128)
    def kernel(a: bf16[256, STEPS], b: bf16[STEPS, 32], x: f32[128], c: tc.out[f32[256, 32]]):
        for row, col in tc.tiles((256, 32), by=(64, 32), persistent=True):
            around = tc.shared(f32[128])
            for i in spatial(128):
                around[i] = x[i]
            acc = tc.tile(f32, FRAGMENT, 0)
            for p in tc.pipeline(STEPS, by=32, stages=3, specialize=True):
                sa = tc.load(a[row : row + 64, p : p + 32])
                sb = tc.load(b[p : p + 32, col : col + 32])
                tc.mma(acc, sa, sb)
            for i, j in FRAGMENT:
                acc[i, j] += around[127 - i]
            tc.store(c[row : row + 64, col : col + 32], acc)

    return kernel


def with_slots_that_each_worker_releases() -> KernelDefinition:
    """The ring orders what workers did before the loop, and not what their copies still do."""

    @tc.kernel(workers=128)
    def kernel(a: bf16[256, STEPS], b: bf16[STEPS, 32], c: tc.out[f32[256, 32]]):
        for row, col in tc.tiles((256, 32), by=(64, 32), persistent=True):
            acc = tc.tile(f32, FRAGMENT, 0)
            for p in tc.pipeline(STEPS, by=32, stages=3, specialize=True):
                sa = tc.load(a[row : row + 64, p : p + 32])
                sb = tc.load(b[p : p + 32, col : col + 32])
                tc.mma(acc, sa, sb)
                for i, j in FRAGMENT:
                    acc[i, j] += sa[i, j].to(f32)
            tc.store(c[row : row + 64, col : col + 32], acc)

    return kernel


@pytest.mark.parametrize(
    "make", [with_a_barrier_elsewhere, with_slots_that_each_worker_releases], ids=lambda m: m.__name__
)  # fmt: skip
def test_what_a_store_reads_is_written_behind_its_wait_and_a_barrier(make) -> None:  # type: ignore[no-untyped-def]
    text = runs_everywhere(make(), seeds=(0, 1))
    assert "do tma.store(" in text
    assert "do wgmma.m64n32k16.bf16(" in text
