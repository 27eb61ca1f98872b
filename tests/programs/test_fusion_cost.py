"""A kernel and an expression become one where that costs less than the memory between them."""

from __future__ import annotations

from typing import Any

import pytest

import taskc as tc
from taskc import f32
from taskc.kernels.matmul import matmul
from taskc.kernels.reductions import reduction
from taskc.kernels.rows import layer_norm, log_softmax, rms_norm, softmax
from taskc.kernels.transpose import transpose
from taskc.programs.pipeline import fused


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


@pytest.mark.parametrize(("last", "calls"), [(16, 2), (128, 1)])
def test_quotients_that_lanes_share_cost_as_often_as_they_change(last: int, calls: int) -> None:
    turned = transpose((102, 19, last), (1, 0, 2))

    @tc.program
    def program(x: f32[19, 17, 6, last], y: tc.out[f32[19, 102, last]]) -> None:
        z = tc.compute((17, 19, 6, last), lambda i, j, k, m: x[j, i, k, m])
        turned(z.reshape(102, 19, last), out=y)

    assert len(fused(program.ir).calls) == calls


@pytest.mark.parametrize(
    ("columns", "work", "calls"), [(147, "tanh", 2), (147, "double", 1), (1024, "tanh", 1)]
)
def test_folds_of_short_rows_are_waited_for_by_long_operations(
    columns: int, work: str, calls: int
) -> None:
    kernel, shape = rms_norm(432, columns, scaled=False), (432, columns)

    @tc.program
    def program(x: f32[shape], y: tc.out[f32[shape]]) -> None:
        z = kernel(x)
        if work == "tanh":
            tc.compute(shape, lambda i, j: tc.tanh(z[i, j]), out=y)
        else:
            tc.compute(shape, lambda i, j: z[i, j] * 2.0, out=y)

    assert len(fused(program.ir).calls) == calls


@pytest.mark.parametrize(
    ("rows", "work", "calls"), [(640, "tanh", 2), (640, "double", 1), (96, "tanh", 1)]
)
def test_far_reads_of_a_tile_are_waited_for_by_long_operations(
    rows: int, work: str, calls: int
) -> None:
    kernel, shape = matmul(rows, 824, 31), (rows, 824)

    @tc.program
    def program(a: f32[rows, 31], b: f32[31, 824], r: f32[shape], y: tc.out[f32[shape]]) -> None:
        z = kernel(a, b)
        if work == "tanh":
            tc.compute(shape, lambda i, j: tc.tanh(z[i, j] + r[i, j]), out=y)
        else:
            tc.compute(shape, lambda i, j: z[i, j] * 2.0 + r[i, j], out=y)

    assert len(fused(program.ir).calls) == calls


@pytest.mark.parametrize(
    ("function", "rows", "columns", "calls"),
    [(softmax, 3066, 171, 1), (log_softmax, 15_887, 33, 2), (layer_norm, 10_480, 50, 2)],
)
def test_folds_that_waited_before_cost_nothing_more(
    function: Any, rows: int, columns: int, calls: int
) -> None:
    shape = rows, columns
    kernel = function(
        *shape, **({"scaled": False, "shifted": False} if function is layer_norm else {})
    )

    @tc.program
    def program(x: f32[shape], s: f32[shape], y: tc.out[f32[shape]]) -> None:
        z = kernel(x)
        tc.compute(shape, lambda i, j: tc.tanh(z[i, j] * s[i, j]), out=y)

    assert len(fused(program.ir).calls) == calls


@pytest.mark.parametrize(("function", "calls"), [("tanh", 2), ("exp", 1)])
def test_functions_count_as_many_operations_as_they_take(function: str, calls: int) -> None:
    kernel, shape = softmax(64, 132, inner=62), (64, 132, 62)

    @tc.program
    def program(x: f32[shape], r: f32[shape], y: tc.out[f32[shape]]) -> None:
        if function == "tanh":
            z = tc.compute(shape, lambda i, j, k: tc.tanh(x[i, j, k] + r[i, j, k]))
        else:
            z = tc.compute(shape, lambda i, j, k: tc.exp(x[i, j, k] + r[i, j, k]))
        kernel(z, out=y)

    assert len(fused(program.ir).calls) == calls


@pytest.mark.parametrize(("rows", "calls"), [(160, 2), (640, 1), (16_000, 1)])
def test_functions_hide_what_a_cache_takes(rows: int, calls: int) -> None:
    kernel, shape = rms_norm(rows, 392, scaled=False), (rows, 392)

    @tc.program
    def program(x: f32[shape], s: f32[392], y: tc.out[f32[shape]]) -> None:
        z = kernel(x)
        tc.compute(shape, lambda i, j: tc.tanh(z[i, j] * s[j]), out=y)

    assert len(fused(program.ir).calls) == calls


@pytest.mark.parametrize(("n", "calls"), [(199, 2), (4099, 1)])
def test_each_fold_waits_for_what_comes_before_it(n: int, calls: int) -> None:
    """Exponentials before the sum hide nothing of what the next row's maximum waits for."""
    shape = (1 << 18) // n, n
    kernel = log_softmax(*shape)

    @tc.program
    def program(x: f32[shape], y: tc.out[f32[shape]]) -> None:
        z = kernel(x)
        tc.compute(shape, lambda i, j: tc.tanh(z[i, j]), out=y)

    assert len(fused(program.ir).calls) == calls


@pytest.mark.parametrize(("order", "calls"), [((0, 1, 2), 1), ((1, 2, 0), 2)])
def test_lanes_in_other_rows_are_gathered(order: tuple[int, int, int], calls: int) -> None:
    """The lanes of i % 23 have few quotients, and each is in a row of its own where that is the first axis."""
    shape = (23, 416, 63)
    turned = tuple(shape[axis] for axis in order)
    sums = reduction("sum", (23, 1872, 14), [1])

    @tc.function
    def both(x: Any, z: Any, *at: Any) -> Any:
        here = [at[order.index(axis)] for axis in range(3)]
        return x[here[0], here[1], here[2]] + z[here[0], here[1], here[2]]

    @tc.program
    def program(x: f32[shape], z: f32[shape], y: tc.out[f32[23, 14]]) -> None:
        moved = tc.compute(turned, lambda i, j, k: both(x, z, i, j, k))
        sums(moved.reshape(23, 1872, 14), out=y)

    assert len(fused(program.ir).calls) == calls
