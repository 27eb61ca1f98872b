"""Offsets are what the layouts say, in 32 bits exactly where that is proved."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping, mapping, repeat
from taskc.ir.nodes import Cast, For, Variable, constant
from taskc.ir.printer import to_text
from taskc.ir.rewrite import walk
from taskc.ir.types import f32, i32, i64
from taskc.passes.flatten import flatten, linear_offset
from taskc.passes.simplify import simplify
from tests.analysis.test_facts import b, loop
from tests.evaluator import Machine
from tests.programs_of_loops import arguments_for, random_kernel, run_kernel


def skewed(worker: int) -> list[tuple[int, int]]:
    return [(i // 4, (i // 4 + i) % 4) for i in range(16)]


LAYOUTS = [
    ("NCHWc", (2, 32, 3, 5), repeat(2, 2, 3, 5) * repeat(1, 16, 1, 1)),
    ("panel", (8, 128), repeat(1, 2) * repeat(8, 64)),
    ("pairs", (8, 5), repeat(4, 5) * repeat(2, 1)),
    ("columns", (8, 5), repeat(8, 5, order=(1, 0))),
    ("padded", (6, 7), repeat(6, 8)),
    ("blocks", (8, 8), repeat(2, 2) * repeat(2, 2, order=(1, 0)) * repeat(2, 2)),
    ("skewed", (4, 4), mapping((4, 4), 1, skewed)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "layout"), [row[1:] for row in LAYOUTS], ids=[r[0] for r in LAYOUTS]
)
def test_layouts(shape: tuple[int, ...], layout: Mapping) -> None:
    names = tuple(Variable(f"i{d}") for d in range(len(shape)))
    machine = Machine()
    tensor = ir.Tensor("x", f32, shape, ir.GLOBAL, layout=layout)
    offset = linear_offset(tensor, names)
    for task in itertools.product(*map(range, shape)):
        assert machine.value(offset, dict(zip(names, task, strict=True))) == layout.owner(task)[1]


def test_the_outermost_extent_may_be_symbolic() -> None:
    n, i, j = Variable("n"), Variable("i"), Variable("j")
    layout = repeat(2, 2) * repeat(1, 16)
    machine = Machine()
    for extent in (n, 6):
        tensor = ir.Tensor("x", f32, (extent, 32), ir.GLOBAL, layout=layout)
        offset = linear_offset(tensor, (i, j))
        places = {
            machine.value(offset, {i: row, j: column})
            for row, column in itertools.product(range(6), range(32))
        }
        assert places == set(range(6 * 32))
        for row, column in itertools.product(range(6), range(32)):
            expected = row // 2 * 64 + layout.owner((row % 2, column))[1]
            assert machine.value(offset, {i: row, j: column}) == expected


def test_a_ring_of_laid_out_tiles() -> None:
    slot, i, j = Variable("slot"), Variable("i"), Variable("j")
    layout = repeat(8, 5, order=(1, 0))
    tensor = ir.Tensor("ring", f32, (3, 8, 5), ir.SHARED, layout=layout)
    offset = linear_offset(tensor, (slot, i, j))
    value = Machine().value(offset, {slot: 2, i: 3, j: 4})
    assert value == 2 * 40 + layout.owner((3, 4))[1]


def test_results_stay() -> None:
    for seed in range(200):
        kernel, sizes = random_kernel(seed)
        flat = flatten(kernel)
        assert flat.stage == "lean"
        arguments = arguments_for(kernel)
        assert run_kernel(flat, arguments, sizes) == run_kernel(kernel, arguments, sizes), seed
        for node in walk(flat.body):
            if isinstance(node, (ir.Read, ir.Store)):
                assert len(node.indices) == min(1, len(node.tensor.shape))


def example(extent: int) -> ir.Kernel:
    m, n = Variable("m"), Variable("n")
    x = ir.Tensor("x", f32, (extent, 32), ir.GLOBAL)
    y = ir.Tensor("y", f32, (m, n), ir.GLOBAL, role="inout")
    i, t = Variable("i"), Variable("t")
    kernel = ir.Kernel("k", (x, y), (m, n), 32, ir.Sequence(()), "scalar", blocks=m)
    body = ir.Sequence(
        (
            ir.Let(t, b("*", i, 2)),
            ir.Store(y, (kernel.block, t), ir.Read(x, (i, kernel.worker))),
        )
    )
    return replace(kernel, body=replace(loop(i, 0, extent), body=body))


def test_narrowing(golden: Any) -> None:
    golden("passes/flatten", to_text(flatten(example(64))))


@pytest.mark.parametrize(("extent", "narrow"), [(2**26 - 1, True), (2**26 + 1, False)])
def test_narrow_only_where_the_range_fits(extent: int, narrow: bool) -> None:
    """32 * 2**26 is 2**31: the last offset fits an i32, or just doesn't."""
    flat = flatten(example(extent))
    (read,) = (node for node in walk(flat.body) if isinstance(node, ir.Read))
    assert read.indices[0].dtype is (i32 if narrow else i64)
    (outer,) = (node for node in walk(flat.body) if isinstance(node, For))
    assert outer.variable.dtype is i32
    assert flat.worker.dtype is flat.block.dtype is i32


def test_conditions_do_not_narrow() -> None:
    """An expression may be moved out of the branch that bounds it."""
    n = Variable("n")
    y = ir.Tensor("y", f32, (64,), ir.GLOBAL, role="inout")
    store = ir.Store(y, (b("*", n, 2),), ir.Constant(1.0, f32))
    guarded = ir.If(b("<", n, 8), store)
    flat = flatten(ir.Kernel("k", (y,), (n,), 1, guarded, "scalar"))
    (new,) = (node for node in walk(flat.body) if isinstance(node, ir.Store))
    assert new.indices[0].dtype is i64


def test_values_keep_their_type() -> None:
    i = Variable("i")
    z = ir.Tensor("z", i64, (8,), ir.GLOBAL, role="inout")
    kernel = ir.Kernel(
        "k", (z,), (), 1, replace(loop(i, 0, 8), body=ir.Store(z, (i,), i)), "scalar"
    )
    flat = simplify(flatten(kernel))
    (store,) = (node for node in walk(flat.body) if isinstance(node, ir.Store))
    assert store.value.dtype is i64
    assert isinstance(store.value, Cast)


def test_coordinates_of_tma_boxes_stay() -> None:
    i = Variable("i")
    x = ir.Tensor("x", f32, (64, 32), ir.GLOBAL)
    s = ir.Tensor("s", f32, (2, 8, 32), ir.SHARED)
    bar = ir.Tensor("bar", i64, (2,), ir.BARRIER)
    copy = ir.Do(
        "tma.load",
        (
            ir.Address(s, (i, constant(0), constant(0))),
            ir.Address(x, (b("*", i, 8), constant(0))),
            ir.Address(bar, (i,)),
            constant(8),
            constant(32),
        ),
    )
    flat = flatten(ir.Kernel("k", (x,), (), 32, replace(loop(i, 0, 2), body=copy), "scalar"))
    (do,) = (node for node in walk(flat.body) if isinstance(node, ir.Do))
    assert [len(place.indices) for place in do.operands[:3]] == [1, 2, 1]  # type: ignore[union-attr]
