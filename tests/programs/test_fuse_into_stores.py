"""A computation on a kernel's result is computed where the kernel stores it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import taskc as tc
from taskc import f16, f32
from taskc.ir import nodes as ir
from taskc.ir.build import add
from taskc.ir.rewrite import walk
from taskc.passes.prove import problem
from taskc.programs import pairs
from taskc.programs.fuse_into_kernels import _Epilogue
from taskc.programs.indices import Indices
from taskc.programs.ir import kernels_of
from taskc.programs.pipeline import fused
from tests.programs.lookalikes import add_to, both, doubled, tiled
from tests.programs.running import called, check

m, n = tc.dim("m", example=9), tc.dim("n", example=13)


def epilogue(call: Callable[..., object], shape: tuple[int, ...]) -> tc.ProgramDefinition:
    kernel = call

    @tc.program
    def program(x: f32[8, 12], r: f32[shape], y: tc.out[f32[shape]]):
        t = kernel(x)
        tc.compute(shape, lambda *at: t[at] * 2 + r[at] * t[at], out=y)

    return program


def test_a_computation_is_computed_where_a_kernel_stores() -> None:
    made = check(epilogue(doubled, (8, 12)))
    assert called(made) == ["doubled"]
    assert not made.temporaries
    (kernel,) = kernels_of(made).values()
    assert [text for text, _ in kernel.notes] == ["`compute` is computed where `y` is stored"]


def test_an_epilogue_at_the_kernels_own_indices_is_proved_when_it_is_lowered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The proof of the kernel without the epilogue would be the same; a wrong epilogue is found by it."""

    @tc.program
    def program(x: f32[8, 12], b: f32[12], y: tc.out[f32[8, 12]]):
        t = doubled(x)
        tc.compute((8, 12), lambda i, j: t[i, j] * t[i, j] + b[j], out=y)

    def fused_kernel() -> ir.Kernel:
        (kernel,) = kernels_of(fused(program.ir)).values()
        return kernel

    monkeypatch.setattr(pairs, "problem", lambda kernel: pytest.fail("it was proved"))
    assert problem(fused_kernel()) is None

    right = _Epilogue.element

    def wrong(self: Any, at: Indices, value: ir.Expression) -> Any:
        tensor, (row, column), computed = right(self, at, value)
        return tensor, (row, add(column, 1)), computed

    monkeypatch.setattr(_Epilogue, "element", wrong)
    error = problem(fused_kernel())
    assert error is not None
    assert "is outside" in error.message or "can't prove" in error.message


def test_an_epilogue_at_other_indices_is_proved_when_it_is_fused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @tc.program
    def reads_elsewhere(x: f32[8, 12], b: f32[12], y: tc.out[f32[8, 12]]):
        t = doubled(x)
        tc.compute((8, 12), lambda i, j: t[i, j] + b[11 - j], out=y)

    @tc.program
    def reads_another_extent(x: f32[8, 12], b: f32[9, 12], y: tc.out[f32[8, 12]]):
        t = doubled(x)
        tc.compute((8, 12), lambda i, j: t[i, j] + b[i, j], out=y)

    @tc.program
    def reads_on_a_condition(x: f32[8, 12], b: f32[12], y: tc.out[f32[8, 12]]):
        t = doubled(x)
        tc.compute((8, 12), lambda i, j: b[j] if t[i, j] > 0 else t[i, j], out=y)

    proofs: list[ir.Kernel] = []
    monkeypatch.setattr(pairs, "problem", proofs.append)
    for count, program in enumerate((reads_elsewhere, reads_another_extent, reads_on_a_condition)):
        fused(program.ir)
        assert len(proofs) == count + 1


def test_a_result_that_others_read_is_stored_besides() -> None:
    @tc.program
    def program(x: f32[8, 12], t: tc.out[f32[8, 12]], y: tc.out[f32[8, 12]], z: tc.out[f32[8, 12]]):
        doubled(x, out=t)
        tc.compute((8, 12), lambda i, j: t[i, j] + 1, out=y)
        tc.compute((8, 12), lambda i, j: t[i, j] * t[i, j], out=z)

    assert called(check(program)) == ["doubled"]


def test_what_comes_later_may_be_computed_earlier() -> None:
    """The kernel can't wait: its input changes."""

    @tc.program
    def program(x: tc.inout[f32[8, 12]], r: f32[8, 12], y: tc.out[f32[8, 12]]):
        t = doubled(x)
        add_to(r, x)
        tc.compute((8, 12), lambda i, j: t[i, j] + r[i, j], out=y)

    assert called(check(program)) == ["doubled", "add_to"]


def test_axes_before_the_last_may_change_places() -> None:
    @tc.kernel(workers=4)
    def cubes(x: f32[3, 5, 8], y: tc.out[f32[3, 5, 8]]):
        for a, b, c in tc.tiles((3, 5, 8), by=(1, 1, 4)):
            for i, j, k in tc.spatial(1, 1, 4):
                y[a + i, b + j, c + k] = x[a + i, b + j, c + k] + 1

    @tc.program
    def program(x: f32[3, 5, 8], r: f32[5, 3, 8], y: tc.out[f32[5, 3, 8]]):
        t = cubes(x)
        tc.compute((5, 3, 8), lambda i, j, k: t[j, i, k] * r[i, j, k], out=y)

    assert called(check(program)) == ["cubes"]


def test_stores_are_seen_through_shapes() -> None:
    @tc.program
    def program(x: f32[8, 12], r: f32[4, 24], c: f32[24], y: tc.out[f32[4, 24]]):
        t = doubled(x)
        seen = t.reshape(4, 24)
        tc.compute((4, 24), lambda i, j: seen[i, j] + r[i, j], out=y)

    assert called(check(program)) == ["doubled"]


def test_a_stored_tile_is_computed_before_it_travels() -> None:
    @tc.program
    def program(x: f32[7, 10], r: f32[7, 10], b: f32[10], y: tc.out[f16[7, 10]]):
        t = tiled(x)
        tc.compute((7, 10), lambda i, j: (t[i, j] + r[i, j] * b[j]).to(f16), out=y)

    made = check(program)
    assert called(made) == ["tiled"]
    (kernel,) = kernels_of(made).values()
    (store,) = [node for node in walk(kernel.body) if isinstance(node, ir.Move)][1:]
    assert isinstance(store.value, ir.Read)
    assert store.value.tensor.scope == ir.TILE


def test_two_results_take_a_computation_each() -> None:
    @tc.program
    def program(x: f32[8, 12], y: tc.out[f32[8, 12]], z: tc.out[f32[8, 12]]):
        t, u = both(x)
        tc.compute((8, 12), lambda i, j: t[i, j] * 2, out=y)
        tc.compute((8, 12), lambda i, j: u[i, j] * 3, out=z)

    assert called(check(program)) == ["both"]


def test_symbolic_sizes_of_kernels() -> None:
    rows, columns = tc.dim("rows"), tc.dim("columns")

    @tc.kernel(workers=4)
    def copied(x: f32[rows, columns], y: tc.out[f32[rows, columns]]):
        for row, col in tc.tiles((rows, columns), by=(1, 4)):
            for i, j in tc.spatial(1, 4):
                if col + j < columns:
                    y[row + i, col + j] = x[row + i, col + j]

    @tc.program
    def program(
        x: f32[m, n], b: f32[n], c: f32[6, 10], y: tc.out[f32[m, n]], z: tc.out[f32[6, 10]]
    ):
        t = copied(x)
        tc.compute((m, n), lambda i, j: t[i, j] + b[j], out=y)
        u = copied(c)
        tc.compute((6, 10), lambda i, j: u[i, j] + c[5 - i, j], out=z)

    assert len(check(program).calls) == 2


def test_equal_pairs_are_one_kernel() -> None:
    @tc.program
    def layer(x: f32[8, 12], y: tc.out[f32[8, 12]]):
        t = doubled(x)
        tc.compute((8, 12), lambda i, j: t[i, j] + 1, out=y)

    @tc.program
    def program(x: f32[8, 12], y: tc.out[f32[8, 12]]):
        layer(layer(layer(x)), out=y)

    made = check(program)
    assert len(made.calls) == 3
    assert len(kernels_of(made)) == 1


def test_what_coincides_in_one_call_need_not_in_another() -> None:
    @tc.program
    def layer(x: f32[8, 12], r: f32[8, 12], y: tc.out[f32[8, 12]]):
        t = doubled(x)
        tc.compute((8, 12), lambda i, j: t[i, j] * r[i, j], out=y)

    @tc.program
    def program(x: f32[8, 12], z: f32[8, 12], y: tc.out[f32[8, 12]]):
        layer(layer(x, x), z, out=y)

    made = check(program)
    assert called(made) == ["doubled", "doubled"]
    assert len(kernels_of(made)) == 2
