"""Scans as phases: their order is the mapping's, at every stage and on every target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, i64, repeat, spatial
from taskc.backend.sim import run
from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping, mapping
from taskc.ir.scan_order import scan_levels
from taskc.passes.select import select
from tests.passes.kernels import before_and_after, kernel, nodes, through
from tests.passes.test_select import Golden
from tests.stages import same_after_every_pass

# What happens on the way: one worker, one warp, several, too few, digits of both kinds by turns, and no power of two.
OWNERS = [
    repeat(7),
    spatial(1),
    spatial(32) * repeat(3),
    repeat(3) * spatial(16) * repeat(2),
    spatial(128) * repeat(2),
    repeat(2) * spatial(64),
    spatial(20) * repeat(3),
    spatial(96),
    spatial(5) * repeat(2) * spatial(3) * repeat(2),
    repeat(2) * spatial(2) * repeat(2) * spatial(16) * repeat(2),
    (spatial(32) * repeat(3)).within(70),
    mapping((6,), 3, lambda w: [(w,), (5 - w,)]),
]


@tc.function
def composed(a: Any, b: Any) -> Any:
    """First a, then b, as functions of a line: it doesn't commute."""
    slope, start = a
    steeper, more = b
    return slope * steeper, start * steeper + more


def prefixes(own: Mapping) -> Any:
    (n,) = own.iterated

    @tc.kernel(workers=own.workers)
    def scans(x: f32[n], sums: tc.out[f32[n]], before: tc.out[f32[n]], lines: tc.out[f32[n]]):
        t = tc.tile(f32, own, 0)
        tc.copy(t, x[0:n])
        tc.store(sums[0:n], tc.scan(t, 0, "+"))
        tc.store(before[0:n], tc.scan(t, 0, "+", exclusive=True))
        _, line = tc.scan((t, t), 0, composed)
        tc.store(lines[0:n], line)

    return scans


@pytest.mark.each_value
@pytest.mark.parametrize("target", ["sm_80", "avx512", "avx2"])
@pytest.mark.parametrize("own", OWNERS, ids=str)
def test_scans_are_the_same_at_every_stage_and_on_every_target(own: Mapping, target: str) -> None:
    scans, (n,) = prefixes(own), own.iterated
    x = np.random.default_rng(n).integers(-2, 3, n).astype(np.float32)
    sums = np.cumsum(x)
    lines = np.array([0.0], np.float32)
    for value in x:
        lines = np.append(lines, lines[-1] * value + value)
    found = scans(x)
    np.testing.assert_array_equal(found[0], sums)
    np.testing.assert_array_equal(found[1][1:], sums[:-1])
    assert found[1][:1].tobytes() == np.array([-0.0], np.float32).tobytes()
    np.testing.assert_array_equal(found[2], lines[1:])

    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    given = [x, *[np.zeros_like(x) for _ in range(3)]]
    expected = [np.copy(one) for one in given]
    assert run(scans.ir, expected).ok
    for one, other in zip(scans(x), expected[1:], strict=True):
        assert one.tobytes() == other.tobytes()
    same_after_every_pass(replace(scans.ir, target=target), given, expected=expected)


def by_the_definition(
    values: list[Any], own: Mapping, fold: Callable[[Any, Any], Any]
) -> list[Any]:
    """By recursion over the digits, the outermost one last."""

    def tree(totals: list[Any], i: int) -> Any:
        made, bit = totals[i], 1
        while bit <= i:
            if i & bit:
                below = i // bit * bit
                made = fold(halves(totals[below - bit : below]), made)
            bit *= 2
        return made

    def halves(totals: list[Any]) -> Any:
        if len(totals) == 1:
            return totals[0]
        middle = len(totals) // 2
        return fold(halves(totals[:middle]), halves(totals[middle:]))

    def inside(values: list[Any], levels: list[Any]) -> list[Any]:
        if not levels:
            return values
        *below, level = levels
        size = len(values) // level.size
        blocks = [inside(values[at : at + size], below) for at in range(0, len(values), size)]
        totals = [block[-1] for block in blocks]
        made = blocks[0]
        for k in range(1, level.size):
            if level.is_workers:
                before = tree(totals, k - 1)
                whole = [tree(totals, k)] if size == 1 else None
            else:
                before, whole = made[-1], None
            made = made + (whole or [fold(before, value) for value in blocks[k]])
        return made

    return inside(values, [*scan_levels(own, 0)])


@pytest.mark.parametrize(
    "own", [own for own in OWNERS if own.is_composed and own.limit is None], ids=str
)
def test_the_order_is_that_of_the_digits(own: Mapping) -> None:
    x = np.random.default_rng(1).standard_normal(own.shape[0]).astype(np.float32)
    expected = by_the_definition([*x], own, lambda a, b: a + b)
    assert prefixes(own)(x)[0].tobytes() == np.array(expected, np.float32).tobytes()


@pytest.mark.parametrize(("axis", "n"), [(0, 16), (1, 8)])
def test_along_an_axis_of_two(axis: int, n: int) -> None:
    own = repeat(2, 1) * spatial(8, 4) * repeat(1, 2)

    @tc.kernel(workers=32)
    def sums(x: f32[16, 8], y: tc.out[f32[16, 8]]):
        t = tc.tile(f32, own, 0)
        tc.copy(t, x[0:16, 0:8])
        tc.store(y[0:16, 0:8], tc.scan(t, axis, "+"))

    assert (16, 8)[axis] == n
    x = np.random.default_rng(2).integers(-9, 9, (16, 8)).astype(np.float32)
    np.testing.assert_array_equal(sums(x), np.cumsum(x, axis))
    for target in ("sm_80", "avx512"):
        same_after_every_pass(replace(sums.ir, target=target), [x, np.zeros_like(x)])


def test_exchanges_are_shuffles() -> None:
    """Five levels of a tree in a warp, and what the worker before has; nothing goes through memory."""
    scans = prefixes(spatial(32) * repeat(8))
    chosen = select(replace(scans.ir, target="sm_80"))
    names = [do.operation for do in nodes(chosen, ir.Do)]
    assert names.count("shuffle.bits") == 5 * 4
    assert names.count("shuffle.up") == 4
    shared = [it.tensor.name for it in nodes(chosen, ir.Allocate) if it.tensor.scope == ir.SHARED]
    assert shared == ["t_line"]  # of the exclusive one


def test_golden_of_a_scan(golden: Golden) -> None:
    start = kernel(
        """
        tile t: f32[128] by spatial(64).repeat(2)
        move t[i] = x[i] for i in 128
        tile s: f32[128] by spatial(64).repeat(2)
        scan s = + over t axis=0
        move c[i] = s[i] for i in 128
        """,
        "x: f32[128], c: out f32[128]",
        workers=64,
        target="sm_80",
    )
    golden("passes/select_scan", before_and_after(start, through(start, select)))


def test_empty_and_single_lines() -> None:
    @tc.kernel(workers=4)
    def single(x: f32[4, 1], y: tc.out[f32[4, 1]], place: tc.out[i64[4]]):
        own = spatial(4, 1)
        t = tc.tile(f32, own, 0)
        tc.copy(t, x[0:4, 0:1])
        tc.store(y[0:4, 0:1], tc.scan(t, 1, "+"))
        numbers = tc.tile(i64, own, 3)
        _, best = tc.reduce((t, numbers), 1, composed_places)
        tc.store(place[0:4], best)

    x = np.arange(4, dtype=np.float32)[:, None]
    y, place = single(x)
    np.testing.assert_array_equal(y, x)
    assert place.tolist() == [3] * 4


@tc.function
def composed_places(a: Any, b: Any) -> Any:
    value, place = a
    other, there = b
    return max(value, other), min(place, there)
