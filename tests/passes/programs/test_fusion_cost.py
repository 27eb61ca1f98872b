"""A kernel and an expression become one where that costs less than the memory between them."""

from __future__ import annotations

from typing import Any

import pytest

import taskc as tc
from taskc import f32
from taskc.kernels.reductions import reduction
from taskc.kernels.rows import layer_norm
from taskc.kernels.transpose import transpose
from taskc.passes.programs.pipeline import fused


def group_norm(pixels: int, groups: int = 64) -> Any:
    """Four channels to a group, and a factor for each channel."""
    norm = layer_norm(groups, 4 * pixels, scaled=False, shifted=False)
    shape = (groups, 4, pixels)

    @tc.program
    def program(x: f32[shape], s: f32[4], y: tc.out[f32[shape]]) -> None:
        z = norm(x.reshape(groups, 4 * pixels)).reshape(*shape)
        tc.compute(shape, lambda i, j, k: z[i, j, k] * s[j], out=y)

    return program


@pytest.mark.parametrize(
    ("pixels", "groups", "calls"),
    [
        (64 * 64, 64, 1),  # uniform
        (62 * 62, 64, 1),  # two segments of a vector, beside memory
        (3, 8, 1),  # a call more costs more than all of it
        (3, 20_000, 2),  # gathers
    ],
)
def test_quotients_cost_what_their_lengths_say(pixels: int, groups: int, calls: int) -> None:
    assert len(fused(group_norm(pixels, groups).ir).calls) == calls


def after_sums(work: str) -> Any:
    sums = reduction("sum", (20_000, 40), [1])

    @tc.program
    def program(x: f32[20_000, 40], y: tc.out[f32[20_000]]) -> None:
        z = sums(x)
        if work == "tanh":
            tc.compute(20_000, lambda i: tc.tanh(z[i]), out=y)
        else:
            tc.compute(20_000, lambda i: -z[i], out=y)

    return program


def test_what_all_lanes_compute_alike_counts_for_each() -> None:
    assert len(fused(after_sums("tanh").ir).calls) == 2
    assert len(fused(after_sums("tanh").ir, lanes=0).calls) == 1


@pytest.mark.parametrize(("is_turned", "calls"), [(False, 1), (True, 2)])
def test_reads_along_other_axes_are_turned_apart(is_turned: bool, calls: int) -> None:
    kernel = layer_norm(300, 200, scaled=False, shifted=False)

    @tc.program
    def program(x: f32[200, 300], y: tc.out[f32[300, 200]]) -> None:
        if is_turned:
            z = tc.compute((300, 200), lambda i, j: x[j, i] * 2.0)
        else:
            z = tc.compute((300, 200), lambda i, j: x[i // 2, j] * 2.0)
        kernel(z, out=y)

    assert len(fused(program.ir).calls) == calls


def test_what_a_transpose_stores_is_weighed() -> None:
    turned = transpose((256, 500))

    @tc.program
    def program(x: f32[256, 500], y: tc.out[f32[500, 256]], b: f32[2560]) -> None:
        z = turned(x)
        tc.compute((500, 256), lambda i, j: z[i, j] + b[10 * j], out=y)

    assert len(fused(program.ir).calls) == 2


def test_a_single_number_is_weighed_too() -> None:
    sums = reduction("sum", (100,), [0])

    @tc.program
    def program(x: f32[100], y: tc.out[f32[()]]) -> None:
        z = sums(x)
        tc.compute((), lambda: tc.sqrt(z[()]), out=y)

    assert len(fused(program.ir).calls) == 1
