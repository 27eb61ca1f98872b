"""All passes over programs together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import taskc as tc
from taskc import f32
from taskc.ir.printer import to_text
from taskc.kernels.matmul import matmul
from taskc.kernels.reductions import reduction
from taskc.programs.pipeline import fused
from tests.programs.lookalikes import doubled, tiled
from tests.programs.running import check

Golden = Callable[[str, str], None]


def test_golden(golden: Golden) -> None:
    machine = tc.machine("avx512")  # the text is of one machine, on all of them

    @tc.program
    def program(
        x: f32[64, 48],
        w: f32[48, 32],
        bias: f32[32],
        flat: f32[2048],
        y: tc.out[f32[64, 32]],
        total: tc.out[f32[64]],
    ):
        scaled = tc.compute((64, 48), lambda i, j: x[i, j] * 0.5)
        moved = tc.compute((64, 48), lambda i, j: scaled[i, j] + x[i, 0])
        product = matmul(64, 32, 48, machine=machine)(x, w)
        seen = product.reshape(2048)
        added = tc.compute((2048,), lambda t: seen[t] + flat[t])
        rows = added.reshape(64, 32)
        tc.compute((64, 32), lambda i, j: max(rows[i, j] + bias[j], 0.0), out=y)
        reduction("sum", (64, 48), (1,), machine=machine)(moved, out=total)

    golden("passes/fusion", to_text(check(program)))


def test_fused_programs_do_not_keep_definitions_alive() -> None:
    @tc.program
    def program(x: f32[8, 12], y: tc.out[f32[8, 12]]):
        doubled(doubled(x), out=y)

    assert all(call.invocation is not None for call in program.ir.calls)
    assert all(call.invocation is None for call in fused(program.ir).calls)


@pytest.mark.parametrize("target", ["cpu", "sm_80", "sm_90a"])
def test_targets_agree(target: str) -> None:
    @tc.program
    def program(x: f32[7, 10], r: f32[7, 10], y: tc.out[f32[7, 10]]):
        s = tc.compute((7, 10), lambda i, j: x[i, j] * r[i, j])
        t = tiled(s)
        tc.compute((7, 10), lambda i, j: t[i, j] + s[i, j] if i > 2 else r[6 - i, j], out=y)

    assert len(check(program, target, is_processor=target == "cpu").calls) <= 2


def test_apart_is_said_in_the_text_and_goes_into_other_programs() -> None:
    @tc.program(fuse=False)
    def inner(x: f32[8, 12], y: tc.out[f32[8, 12]]):
        doubled(doubled(x), out=y)

    @tc.program
    def outer(x: f32[8, 12], y: tc.out[f32[8, 12]]):
        t = inner(x)
        tc.compute((8, 12), lambda i, j: t[i, j] + 1, out=y)

    assert [call.apart for call in outer.ir.calls] == [True, True, False]
    assert len(check(outer).calls) == 3
    assert to_text(inner.ir) == to_text(tc.ir.parse_program(to_text(inner.ir)))
