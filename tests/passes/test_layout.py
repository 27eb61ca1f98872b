"""Shared tensors get a layout without bank conflicts, and only where that helps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from taskc.backend.sim import run
from taskc.ir import nodes as ir
from taskc.ir.mapping import repeat
from taskc.ir.rewrite import replace_tensors
from taskc.passes import pipeline
from taskc.passes.layout import layout
from taskc.passes.overlap import overlap
from taskc.passes.select import select
from tests.passes.kernels import (
    arguments_for,
    before_and_after,
    keeps_its_result,
    kernel,
    nodes,
    through,
)

Golden = Callable[[str, str], None]


def transposed() -> ir.Kernel:
    return kernel(
        """
        shared t: f32[32, 32]
        each (i, j) in repeat(8, 1).spatial(4, 32):
            t[i, j] = x[i, j]
        each (i, j) in repeat(8, 1).spatial(4, 32):
            c[i, j] = t[j, i]
        """,
        "x: f32[32, 32], c: out f32[32, 32]",
        workers=128,
    )


MATMUL = kernel(
    """
    tile acc: f32[32, 32] by repeat(8, 4).spatial(4, 8) = 0.0
    constant shared a: f32[32, 32]
    move a[i, j] = x[i, j] for (i, j) in (32, 32)
    for q in range(32):
        each (i, j) in repeat(8, 4).spatial(4, 8):
            acc[i, j] = fma(a[i, q], a[j, q], acc[i, j])
    move c[i, j] = acc[i, j] for (i, j) in (32, 32)
    """,
    "x: f32[32, 32], c: out f32[32, 32]",
)


def laid(start: ir.Kernel) -> dict[str, ir.Tensor]:
    made = layout(overlap(select(start)))
    shared = (node.tensor for node in nodes(made, ir.Allocate) if node.tensor.scope == ir.SHARED)
    return {tensor.name: tensor for tensor in shared}


def worst_conflict(start: ir.Kernel) -> int:
    """Into how many accesses bank conflicts split one, in a run of the lean kernel."""
    lean = pipeline.lower(start)
    report = run(lean, arguments_for(lean), statistics=True)
    assert report.ok
    return max(traffic.ways for traffic in report.accesses)


def test_golden(golden: Golden) -> None:
    start = through(transposed(), select, overlap)
    golden("passes/layout", before_and_after(start, through(start, layout)))


@pytest.mark.parametrize(
    ("start", "before"), [(transposed(), 32), (MATMUL, 8)], ids=["transpose", "matmul"]
)
def test_bank_conflicts_disappear(
    start: ir.Kernel, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert worst_conflict(start) == 1
    keeps_its_result(start)
    others = tuple(one for one in pipeline.PASSES if one.name != "layout")
    monkeypatch.setattr(pipeline, "PASSES", others)
    assert worst_conflict(start) == before


def test_nothing_to_gain() -> None:
    start = kernel(
        """
        shared t: f32[32, 32]
        each (i, j) in repeat(8, 1).spatial(4, 32):
            t[i, j] = x[i, j]
        each (i, j) in repeat(8, 1).spatial(4, 32):
            c[i, j] = t[31 - i, j]
        """,
        "x: f32[32, 32], c: out f32[32, 32]",
        workers=128,
    )
    selected = overlap(select(start))
    assert layout(selected) is selected


def test_what_a_worker_has_side_by_side_is_one_access() -> None:
    """Padding by one element would do for single elements; of vectors it would leave nothing."""
    start = kernel(
        """
        shared t: f32[16, 64]
        each (i, j) in spatial(2, 16).repeat(8, 4, order=(1, 0)):
            t[i % 8 * 2 + i // 8, j] = x[i, j]
        each (j, i) in spatial(2, 16).repeat(32, 1):
            c[i, j] = t[i, j]
        each (i, j) in spatial(16, 2).repeat(1, 32):
            d[i, j] = t[i, j]
        """,
        "x: f32[16, 64], c: out f32[16, 64], d: out f32[16, 64]",
    )
    tensor = laid(start)["t"]
    assert tensor.swizzle is None or tensor.swizzle.base == 2
    assert tensor.layout is None or tensor.layout.shape[-1] % 4 == 0
    assert tensor.swizzle is not None or tensor.layout is not None
    keeps_its_result(start)


@pytest.mark.parametrize(("dtype", "width"), [("f32", 4), ("f16", 8), ("f64", 2)])
@pytest.mark.parametrize("columns", [32, 96])
def test_rows_stay_aligned_for_wide_accesses(dtype: str, width: int, columns: int) -> None:
    """Padded (96 elements are no power of two) or swizzled, a run of `width` elements stays one."""
    start = kernel(
        f"""
        constant shared t: {dtype}[32, {columns}]
        move t[i, j] = x[i, j] for (i, j) in (32, {columns})
        for q in range({columns}):
            each i in spatial(32):
                c[i, q] = t[i, q]
        """,
        f"x: {dtype}[32, {columns}], c: out {dtype}[32, {columns}]",
    )
    tensor = laid(start)["t"]
    if columns == 96:
        assert tensor.layout is not None
        padding = tensor.layout.shape[1] - columns
        assert padding > 0
        assert padding % width == 0
    else:
        assert tensor.layout is not None or tensor.swizzle is not None
        if tensor.swizzle is not None:
            assert 1 << tensor.swizzle.base == width
    keeps_its_result(start)


def test_the_targets_of_bulk_copies_stay_as_they_are() -> None:
    text = """
        tile acc: f32[32, 32] by spatial(32, 1).repeat(1, 32) = 0.0
        pipeline p in 64 by 32 stages=3 transport={how}:
            constant shared s: f32[32, 32]
            move s[i, j] = x[p + i, j] for (i, j) in (32, 32)
            each (i, j) in spatial(32, 1).repeat(1, 32):
                acc[i, j] = acc[i, j] + s[i, j]
        move c[i, j] = acc[i, j] for (i, j) in (32, 32)
        """
    for how, is_changed in (("tma", False), ("cp.async", True)):
        start = kernel(text.format(how=how), "x: f32[64, 32], c: out f32[32, 32]", target="sm_90a")
        tensor = laid(start)["s"]
        assert (tensor.layout is not None or tensor.swizzle is not None) == is_changed
        keeps_its_result(start)


def test_rings_have_the_tensors_with_layouts() -> None:
    start = kernel(
        """
        tile acc: f32[32, 32] by spatial(32, 1).repeat(1, 32) = 0.0
        pipeline p in 64 by 32 stages=2:
            constant shared s: f32[32, 32]
            move s[i, j] = x[p + i, j] for (i, j) in (32, 32)
            each (i, j) in spatial(32, 1).repeat(1, 32):
                acc[i, j] = acc[i, j] + s[i, j]
        move c[i, j] = acc[i, j] for (i, j) in (32, 32)
        """,
        "x: f32[64, 32], c: out f32[32, 32]",
    )
    made = layout(overlap(select(start)))
    (tensor,) = {t for t in nodes(made, ir.Allocate) if t.tensor.scope == ir.SHARED}
    assert {t for step in nodes(made, ir.RingStep) for t in step.ring.tensors} == {tensor.tensor}


def test_a_layout_of_the_authors_own_stays() -> None:
    start = transposed()
    (own,) = {node.tensor for node in nodes(start, ir.Allocate)}
    mine = replace(own, layout=repeat(32, 48))
    start = replace(start, body=replace_tensors(start.body, {own: mine}))
    assert layout(overlap(select(start))) == overlap(select(start))
