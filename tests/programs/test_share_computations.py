"""Equal computations are one, and so is what is made of them."""

from __future__ import annotations

import taskc as tc
from taskc import f32
from taskc.programs.ir import callees_of, kernels_of
from taskc.programs.redundancy import share_computations
from tests.programs.lookalikes import doubled
from tests.programs.running import check

m, n = tc.dim("m", example=5), tc.dim("n", example=7)


def test_layers_are_one_kernel() -> None:
    @tc.program
    def program(x: f32[8, 12], y: tc.out[f32[8, 12]]):
        h = x
        for _ in range(4):
            product = doubled(h)
            moved = tc.compute((8, 12), lambda i, j: product[i, j] + h[i, j])
            h = tc.compute((8, 12), lambda i, j: max(moved[i, j], 0.5))
        doubled(h, out=y)

    made = check(program)
    assert len(made.calls) == 5
    assert len(kernels_of(made)) == 2


def test_what_differs_stays() -> None:
    """By a number, by the order of what is read, and by a size of the same name's place."""

    @tc.program
    def program(
        x: f32[m, m], z: f32[m, m], y: f32[n, n], w: f32[n, n], a: tc.out[f32[m, m]], b: tc.out[f32[m, m]],
        c: tc.out[f32[m, m]], d: tc.out[f32[m, m]], e: tc.out[f32[n, n]],
    ):  # fmt: skip
        tc.compute((m, m), lambda i, j: x[i, j] - z[i, j] * 2, out=a)
        tc.compute((m, m), lambda a, b: x[a, b] - z[a, b] * 2, out=b)
        tc.compute((m, m), lambda i, j: x[i, j] - z[i, j] * 3, out=c)
        tc.compute((m, m), lambda i, j: x[i, j] - z[j, i] * 2, out=d)
        tc.compute((n, n), lambda i, j: y[i, j] - w[i, j] * 2, out=e)

    shared = share_computations(program.ir)
    assert len(callees_of(shared)) == 4
    assert shared.calls[0].callee is shared.calls[1].callee
    check(program)


def test_one_computation_after_itself() -> None:
    """The reader and what it reads are one callee, with the same parameters."""

    @tc.program
    def program(x: f32[8, 12], y: tc.out[f32[8, 12]]):
        h = x
        for _ in range(3):
            h = tc.compute((8, 12), lambda i, j: h[i, j] * 2 - h[i, 11 - j])
        tc.compute((8, 12), lambda i, j: h[i, j] + 1, out=y)

    assert len(check(program).calls) == 1
