"""A condition or an index that has a name is as good as one written in place."""

from __future__ import annotations

from typing import Any

import pytest

import taskc as tc
from taskc import f32, i32, spatial
from taskc.passes.prove import findings
from tests.passes.proofs.programs import Case

N = tc.dim("n", example=40)


@tc.function
def inside(at, n):  # type: ignore[no-untyped-def]
    low = at >= 0
    high = at < n
    return low and high


def kernels(n: Any) -> dict[str, Any]:
    @tc.kernel(workers=16)
    def mask(u: f32[n], v: tc.out[f32[n]]):  # type: ignore[valid-type, no-untyped-def]
        for x in tc.tiles(n, by=16):
            for i in spatial(16):
                at = x + i
                mask = at < n
                if mask:
                    v[at] = u[at]

    @tc.kernel(workers=16)
    def both(u: f32[n], v: tc.out[f32[n]]):  # type: ignore[valid-type, no-untyped-def]
        for x in tc.tiles(n, by=16):
            for i in spatial(16):
                at = x + i
                mask = at < n
                between = mask and 0 < at < n - 1
                if mask:
                    v[at] = u[at - 1] + u[at + 1] if between and u[at] > 0 else u[at]

    @tc.kernel(workers=16)
    def function(u: f32[n], v: tc.out[f32[n]]):  # type: ignore[valid-type, no-untyped-def]
        for x in tc.tiles(n, by=16):
            for i in spatial(16):
                there = inside(x + i, n)
                if there:
                    v[x + i] = tc.where(inside(x + i - 1, n), u[x + i - 1], 0.0)

    @tc.kernel(workers=16)
    def negated(u: f32[n], v: tc.out[f32[n]]):  # type: ignore[valid-type, no-untyped-def]
        for x in tc.tiles(n, by=16):
            for i in spatial(16):
                at = x + i
                outside = at >= n
                if not outside:
                    first = at < 5
                    if first:
                        v[at] = u[at]
                    if not first:
                        v[at] = 2 * u[at]

    @tc.kernel(workers=16)
    def from_memory(u: f32[n], w: i32[n], v: tc.out[f32[n]]):  # type: ignore[valid-type, no-untyped-def]
        for x in tc.tiles(n, by=16):
            for i in spatial(16):
                mask = x + i < n
                if mask:
                    good = w[x + i] >= 0 and w[x + i] < n
                    v[x + i] = u[w[x + i]] if good else 0.0

    @tc.kernel(workers=16)
    def number(u: f32[n], v: tc.out[f32[n]]):  # type: ignore[valid-type, no-untyped-def]
        for start in tc.tiles(n, by=16):
            tile = start // 16
            for i in spatial(16):
                at = tile * 16 + i
                if at < n:
                    v[at] = u[at]

    @tc.kernel(workers=4)
    def number_of_tile(u: f32[n], v: tc.out[f32[tc.cdiv(n, 16)]]):  # type: ignore[valid-type, no-untyped-def]
        for start in tc.tiles(n, by=16):
            for i in tc.replicate(4):
                v[start // 16 + i] = u[start]

    made = (mask, both, function, negated, from_memory, number, number_of_tile)
    return {kernel.name: kernel for kernel in made}


@pytest.mark.parametrize("name", kernels(N))
@pytest.mark.parametrize("size", [40, 1 << 24, N], ids=str)
def test_accepted(name: str, size: Any) -> None:
    assert not findings(kernels(size)[name].ir)


MOVING = """
shared s: i64[1]
each i in spatial(4):
    let good = 0 <= s[0] and s[0] < 8 and i < 4
    {between}
    if good:
        c[s[0]] = 1.0
"""


@pytest.mark.parametrize("between", ["s[0] = 9", ""])
def test_memory_that_changes_after_the_name_was_given(between: str) -> None:
    text = MOVING.format(between=between or "c[0] = 0.0")
    errors = findings(Case("", "c: inout f32[8]", text).kernel())
    is_refused = any("can't prove that index `s[0]`" in error.message for error in errors)
    assert is_refused == bool(between)


def test_a_long_condition_is_seen_through_in_time() -> None:
    lines = ["let m0 = x < n"]
    for k in range(60):
        lines.append(f"let m{k + 1} = m{k} and x < n or m{k} and x < n + {k}")
    body = "\n    ".join(["grid x in n by 1:", *lines, "if m60:", "    c[x] = 1.0"])
    assert not findings(Case("", "c: inout f32[n]", body, dimensions="n").kernel())
