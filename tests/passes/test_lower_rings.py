"""Bulk copies: mbarriers that are set up again, and memory that stores have used before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, repeat, spatial
from taskc.backend.sim import run
from taskc.ir import nodes as ir
from taskc.ir.rewrite import map_statements, walk
from taskc.ir.target import TARGETS
from taskc.lang.definition import KernelDefinition
from taskc.passes.pipeline import lower

M, N, K = 32, 32, 16
SEEDS = (None, 0, 1)


def make(persistent: bool, specialize: bool, addend: str) -> KernelDefinition:
    """A product, to which a block value is added `before` or `after`, in shared memory too."""
    own = spatial(2, 1) * spatial(4, 8) * repeat(2, 2)
    bm, bn = own.shape

    @tc.kernel(workers=own.workers)
    def product(a: f32[M, K], b: f32[K, N], d: f32[M, N], c: tc.out[f32[M, N]]):
        for row, col in tc.tiles((M, N), by=(bm, bn), persistent=persistent):
            acc = tc.tile(f32, own, 0)
            if tc.static(addend == "before"):
                first = tc.load((bm, bn), lambda i, j: d[row + i, col + j] * 2)
                for i, j in own:
                    acc[i, j] += first[i, j]
            for p in tc.pipeline(K, by=4, stages=3, transport="tma", specialize=specialize):
                sa = tc.load(a[row : row + bm, p : p + 4])
                sb = tc.load(b[p : p + 4, col : col + bn])
                for q in range(4):
                    for i, j in own:
                        acc[i, j] += sa[i, q] * sb[q, j]
            if tc.static(addend == "after"):
                last = tc.load((bm, bn), lambda i, j: d[row + i, col + j] * 2)
                for i, j in own:
                    acc[i, j] += last[i, j]
            tc.store(c[row : row + bm, col : col + bn], acc)

    return product


def arguments() -> list[Any]:
    random = np.random.default_rng(0)
    return [random.standard_normal(s).astype(np.float32) for s in ((M, K), (K, N), (M, N))]


def without(body: ir.Statement, gone: ir.Statement) -> ir.Statement:
    def visit(node: ir.Statement) -> ir.Statement:
        if isinstance(node, ir.Sequence):
            kept = tuple([visit(s) for s in node.statements if s is not gone])
            return replace(node, statements=kept)
        return map_statements(node, visit)

    return visit(body)


def is_order(node: object) -> bool:
    is_fence = isinstance(node, ir.Do) and node.operation == "fence.proxy.async"
    return is_fence or isinstance(node, ir.Barrier)


@pytest.mark.each_value(2)
@pytest.mark.parametrize("addend", ["none", "before", "after"])
@pytest.mark.parametrize("specialize", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_what_orders_bulk_copies_is_enough_and_no_more(
    persistent: bool, specialize: bool, addend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TARGETS, "sm_90a", replace(TARGETS["sm_90a"], processors=2))
    definition = make(persistent, specialize, addend).ir
    inputs = arguments()
    expected = np.zeros((M, N), np.float32)
    assert not run(definition, [*inputs, expected]).findings
    for stage, seeds in (("synchronized", (None,)), ("scalar", (0,)), ("lean", SEEDS)):
        kernel = lower(replace(definition, target="sm_90a"), stage)
        for seed in seeds:
            c = np.zeros((M, N), np.float32)
            report = run(kernel, [*inputs, c], seed=seed)
            assert not report.findings, (stage, seed, str(report))
            assert c.tobytes() == expected.tobytes()
    kernel = lower(replace(definition, target="sm_90a"), "scalar")
    for node in [node for node in walk(kernel.body) if is_order(node)]:
        fewer = replace(kernel, body=without(kernel.body, node))  # type: ignore[arg-type]
        reports = [run(fewer, [*inputs, np.zeros((M, N), np.float32)], seed=seed) for seed in SEEDS]
        assert any(not report.ok for report in reports), node


@pytest.mark.parametrize(
    ("persistent", "specialize", "addend", "fences"),
    [
        (False, False, "none", 0),
        (False, False, "before", 1),  # the ring takes the addend's place
        (False, False, "after", 0),  # the addend takes the ring's place
        (True, False, "before", 0),  # the ring runs on, so nothing else takes its place
        (True, False, "after", 0),
        (True, True, "after", 0),  # beside each other
    ],
)
def test_a_fence_stands_where_a_ring_takes_the_place_of_stores(
    persistent: bool,
    specialize: bool,
    addend: str,
    fences: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(TARGETS, "sm_90a", replace(TARGETS["sm_90a"], processors=2))
    definition = make(persistent, specialize, addend).ir
    kernel = lower(replace(definition, target="sm_90a"), "synchronized")
    found = [
        n for n in walk(kernel.body) if isinstance(n, ir.Do) and n.operation == "fence.proxy.async"
    ]
    assert len(found) == fences
