"""Computations on computations become one, to the last bit."""

from __future__ import annotations

import taskc as tc
from taskc import bf16, f16, f32, i32, i64
from taskc.ir.printer import to_text
from taskc.programs.ir import Computation
from tests.programs.running import check

m, n = tc.dim("m", example=9), tc.dim("n", example=13)


def value_text(program: tc.ProgramDefinition) -> str:
    """The one computation that is left, as text."""
    (call,) = check(program).calls
    assert isinstance(call.callee, Computation)
    return to_text(call.callee).splitlines()[-1].partition(" = ")[2]


def test_a_chain_is_one_computation() -> None:
    @tc.program
    def program(x: f32[m, n], b: f32[n], r: f32[m, n], y: tc.out[f32[m, n]]):
        h = tc.compute((m, n), lambda i, j: x[i, j] + b[j])
        h = tc.compute((m, n), lambda i, j: h[i, j] * 0.5)
        h = tc.compute((m, n), lambda i, j: h[i, j] + r[i, j])
        tc.compute((m, n), lambda i, j: max(h[i, j], 0.0), out=y)

    assert value_text(program) == "max((x[i, j] + b[j]) * 0.5 + r[i, j], 0.0)"


def test_a_stored_type_stays_a_rounding() -> None:
    @tc.program
    def program(x: f32[40], y: tc.out[f32[40]]):
        half = tc.compute((40,), lambda i: (x[i] * 3).to(f16))
        less = tc.compute((40,), lambda i: (half[i].to(f32) * 7).to(bf16))
        tc.compute((40,), lambda i: less[i].to(f32) * 5, out=y)

    assert value_text(program).count(".to(") == 4


def test_a_product_that_was_stored_is_not_fused_with_a_sum() -> None:
    @tc.program
    def program(x: f32[40], z: f32[40], y: tc.out[f32[40]]):
        product = tc.compute((40,), lambda i: x[i] * z[i])
        tc.compute((40,), lambda i: product[i] + x[i], out=y)

    assert "fma" not in value_text(program)


def test_several_readers_and_a_tree() -> None:
    @tc.program
    def program(x: f32[8, 12], y: tc.out[f32[8, 12]], z: tc.out[f32[12, 8]]):
        root = tc.compute((8, 12), lambda i, j: x[i, j] + 1)
        left = tc.compute((8, 12), lambda i, j: root[i, j] * 2)
        right = tc.compute((8, 12), lambda i, j: root[i, 11 - j] * 3)
        tc.compute((8, 12), lambda i, j: left[i, j] - right[i, j], out=y)
        tc.compute((12, 8), lambda i, j: root[j, i], out=z)

    assert len(check(program).calls) == 2


def test_parts_and_shapes_are_seen_through() -> None:
    @tc.program
    def program(x: f32[6, 8], y: tc.out[f32[4, 2]], z: tc.out[f32[3, 8]], s: tc.out[f32[8]]):
        t = tc.compute((6, 8), lambda i, j: x[i, j] + 1)
        flat = t.reshape(48)
        four = flat[8:16].reshape(4, 2)
        tc.compute((4, 2), lambda i, j: four[i, j] * 2, out=y)
        low = t[2:5]
        tc.compute((3, 8), lambda i, j: low[i, j] * 2, out=z)
        row = t[4]
        tc.compute((8,), lambda i: row[i] * 2, out=s)

    assert len(check(program).calls) == 3


def test_branches_keep_reads_in_bounds() -> None:
    @tc.program
    def program(x: f32[m, n], y: tc.out[f32[m, n]]):
        t = tc.compute((m, n), lambda i, j: x[i, j] * 2)
        tc.compute(
            (m, n), lambda i, j: t[i - 1, j] + t[i, j - 1] if i > 0 and j > 0 else 0.0, out=y
        )

    assert len(check(program).calls) == 1


def test_scalars_and_sizes_go_along() -> None:
    @tc.program
    def program(x: f32[m, n], scale: f32, y: tc.out[f32[m, n]]):
        t = tc.compute((m, n), lambda i, j: x[i, j] * scale)
        tc.compute((m, n), lambda i, j: t[i, j] + (i * n).to(f32) + scale, out=y)

    assert len(check(program).calls) == 1


def test_gathers_of_what_is_computed() -> None:
    @tc.program
    def program(x: f32[40], ids: i32[20], y: tc.out[f32[20]]):
        t = tc.compute((40,), lambda i: x[i] * 2)
        at = tc.compute((20,), lambda i: min(max(ids[i] + 1, 0), 39))
        tc.compute((20,), lambda i: t[at[i].to(i64)], out=y)

    assert len(check(program).calls) == 1


def test_long_chains_end_somewhere() -> None:
    @tc.program
    def program(x: f32[40], y: tc.out[f32[40]]):
        h = x
        for _ in range(30):
            h = tc.compute((40,), lambda i: h[i] * h[i] - h[i])
        tc.compute((40,), lambda i: h[i] + 1, out=y)

    assert 1 < len(check(program).calls) < 10
