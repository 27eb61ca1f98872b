"""What a kernel reads of a computation is computed where it is read."""

from __future__ import annotations

import taskc as tc
from taskc import f32
from taskc.kernels.reductions import reduction
from taskc.kernels.rows import softmax
from taskc.runtime.checking import examine
from taskc.runtime.driver import compile_ahead
from tests.programs.lookalikes import doubled, tiled
from tests.programs.running import called, check


def test_a_sum_along_rows_takes_what_comes_before_it() -> None:
    sums = reduction("sum", (33, 70), (1,))

    @tc.program
    def program(x: f32[33, 70], b: f32[70], y: tc.out[f32[33]]):
        t = tc.compute((33, 70), lambda i, j: x[i, j] + b[j])
        u = tc.compute((33, 70), lambda i, j: max(t[i, j], 0.0) * 0.5)
        sums(u, out=y)

    made = check(program)
    assert called(made) == ["fold"]
    assert not made.temporaries


def test_whole_rows_take_both_sides() -> None:
    rows = softmax(20, 24)

    @tc.program
    def program(x: f32[20, 24], mask: f32[20, 24], y: tc.out[f32[20, 24]]):
        t = tc.compute((20, 24), lambda i, j: x[i, j] + mask[i, j])
        u = rows(t)
        tc.compute((20, 24), lambda i, j: u[i, j] * mask[i, j], out=y)

    assert len(check(program, "cpu").calls) == 1


def test_loads_of_blocks_take_a_value() -> None:
    @tc.program
    def program(x: f32[7, 10], y: tc.out[f32[7, 10]]):
        t = tc.compute((7, 10), lambda i, j: x[i, 9 - j] + 1)
        tiled(t, out=y)

    assert called(check(program)) == ["tiled"]


def test_bulk_copies_of_gpus_stay() -> None:
    @tc.kernel(workers=4)
    def piped(x: f32[8, 16], y: tc.out[f32[8]]):
        own = tc.repeat(8) * tc.replicate(4)
        total = tc.tile(f32, own, 0)
        for p in tc.pipeline(16, by=4, stages=2):
            part = tc.load(x[0:8, p : p + 4])
            for q in range(4):
                for i in own:
                    total[i] += part[i, q]
        for i in own:
            y[i] = total[i]

    @tc.program
    def program(x: f32[8, 16], y: tc.out[f32[8]]):
        t = tc.compute((8, 16), lambda i, j: x[i, j] + 1)
        piped(t, out=y)

    assert len(check(program, "sm_80", is_processor=False).calls) == 2
    assert len(check(program).calls) == 1
    assert len(compile_ahead(program, "sm_80")) == 2
    assert len(examine(program, stages="parsed", target="sm_90a").calls) == 2
    assert len(examine(program, stages="parsed").calls) == 1


def test_a_part_is_read_where_it_starts() -> None:
    @tc.program
    def program(x: f32[12, 12], y: tc.out[f32[8, 12]]):
        t = tc.compute((12, 12), lambda i, j: x[i, j] + x[j, i])
        doubled(t[3:11], out=y)

    assert called(check(program)) == ["doubled"]
