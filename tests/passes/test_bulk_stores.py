"""Barriers around stores by bulk copies, which go on reading shared memory until their issuer has waited.

Two processors, so that each block has two tiles: what the first one's store still reads, the second one writes.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f32, repeat, spatial
from taskc.backend import sim
from taskc.errors import Finding
from taskc.ir import nodes as ir
from taskc.ir.parser import parse
from taskc.ir.printer import to_text
from taskc.ir.target import SM_90A, TARGETS
from taskc.lang.definition import KernelDefinition
from taskc.passes import synchronize
from taskc.passes.pipeline import lower
from tests.passes.test_select_products import on_hopper, operands, runs_everywhere

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


def with_panels(groups: int, columns: int) -> KernelDefinition:
    """Three or four panels of a tile, and two slots."""
    rows = 64 * groups
    fragment = repeat(2, 1) * spatial(8, 4) * repeat(1, 2)
    own = spatial(4 * groups, 1).repeat(1, columns // 8) * fragment

    @tc.kernel(workers=128 * groups)
    def kernel(a: bf16[4 * rows, 32], b: bf16[32, columns], c: tc.out[f32[4 * rows, columns]]):
        for row, col in tc.tiles((4 * rows, columns), by=(rows, columns), persistent=True):
            acc = tc.tile(f32, own, 0)
            for p in tc.pipeline(32, by=32, stages=2, specialize=True):
                sa = tc.load(a[row : row + rows, p : p + 32])
                sb = tc.load(b[p : p + 32, col : col + columns])
                tc.mma(acc, sa, sb)
            tc.store(c[row : row + rows, col : col + columns], acc)

    return kernel


@pytest.mark.parametrize(("groups", "columns", "processors"), [(1, 96, 2), (2, 128, 2), (1, 96, 4)])
def test_panels_leave_while_others_are_written(
    groups: int, columns: int, processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each slot, the last copy is waited for, and no other."""
    monkeypatch.setitem(TARGETS, "sm_90a", replace(SM_90A, processors=processors))
    text = runs_everywhere(with_panels(groups, columns))
    head, panels = text[text.index("consumer") :].split("for n: i32 in unroll(", 1)
    words = re.findall(r"tma\.wait\(\d\)|barrier (?=role|warpgroup)|tma\.store(?=\()", panels)
    assert words[:4] == ["tma.wait(1)", "barrier ", "barrier ", "tma.store"]
    # Of three panels, the next tile's first one has the slot of the last one. Four processors: there is no next tile.
    assert ("tma.wait(0)" in head) == (columns == 96 and processors == 2)


def test_a_slot_is_not_written_before_its_copy_has_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator sees a barrier that is missing behind the wait, and a wait for too few."""
    right = synchronize.awaited
    monkeypatch.setattr(
        synchronize, "awaited", lambda state, most=0: state if most else right(state)
    )
    assert found_in(lower(on_hopper(with_panels(1, 128))))
    monkeypatch.undo()
    monkeypatch.setitem(TARGETS, "sm_90a", replace(SM_90A, processors=2))
    text = to_text(lower(on_hopper(with_panels(1, 128))))
    assert not found_in(parse(text))
    assert found_in(parse(text.replace("tma.wait(1)", "tma.wait(2)")))


def found_in(kernel: ir.Kernel) -> tuple[Finding, ...]:
    given = operands(with_panels(1, 128))
    return sim.run(kernel, [*given, np.zeros((256, 128), np.float32)], seed=1).findings
