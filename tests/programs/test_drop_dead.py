"""What nobody reads goes."""

from __future__ import annotations

import taskc as tc
from taskc import f32
from taskc.programs.pipeline import fused
from taskc.runtime.driver import scheduled
from tests.programs.lookalikes import doubled
from tests.programs.running import called, check


def test_what_nobody_reads_goes() -> None:
    @tc.program
    def program(x: f32[8, 12], y: tc.out[f32[8, 12]]):
        unread = doubled(x)
        tc.compute((8, 12), lambda i, j: unread[i, j] + 1)
        doubled(x, out=y)

    made = check(program)
    assert (len(made.calls), made.temporaries) == (1, ())


def test_a_program_of_kernels_alone_runs_without_what_is_dead() -> None:
    @tc.program
    def program(x: f32[8, 12], y: tc.out[f32[8, 12]]):
        doubled(doubled(x))
        doubled(x, out=y)

    made, definitions = scheduled(program)
    assert len(made.calls) == 1
    assert [*definitions.values()] == [doubled]


def test_what_is_printed_stays() -> None:
    @tc.kernel(workers=1)
    def shown(x: f32[8, 12], y: tc.out[f32[1]]):
        for i in tc.spatial(1):
            tc.print("{}", x[0, 0])
            y[i] = x[0, 0]

    @tc.program
    def program(x: f32[8, 12], y: tc.out[f32[8, 12]]):
        shown(x)
        doubled(x, out=y)

    assert called(fused(program.ir)) == ["shown", "doubled"]
