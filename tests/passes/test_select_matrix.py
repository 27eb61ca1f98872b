"""Which matrix instruction a product takes, and its fragments."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from taskc.ir import nodes as ir
from taskc.ir.target import SM_89
from taskc.passes.select import select
from tests.passes.kernels import (
    before_and_after,
    keeps_its_result,
    kernel,
    messages,
    nodes,
    through,
)
from tests.passes.test_select import Golden

MATRICES = "x: f16[64, 32], y: f16[32, 32], c: out f32[64, 32]"
OWN = "spatial(2, 1).repeat(2, 4).repeat(2, 1).spatial(8, 4).repeat(1, 2)"
PRODUCT = """
    tile acc: f32[64, 32] by {own} = 0.0
    constant shared a: f16[64, 32]
    move a[i, j] = x[i, j] for (i, j) in (64, 32)
    constant shared b: f16[32, 32]
    move b[i, j] = y[j, i] for (i, j) in (32, 32)
    mma acc += a[0, 0].as(64, 32) @ b[0, 0].as(32, 32, transposed)
    move c[i, j] = acc[i, j] for (i, j) in (64, 32)
"""


def test_golden_of_a_matrix_instruction(golden: Golden) -> None:
    start = kernel(PRODUCT.format(own=OWN), MATRICES, workers=64, target="sm_80")
    golden("passes/select_matrix", before_and_after(start, through(start, select)))


# Matrix instructions.
def instructions(start: ir.Kernel) -> set[str | None]:
    return {mma.how for mma in nodes(select(start), ir.Mma)}


def test_a_product_by_an_instruction_keeps_its_result() -> None:
    start = kernel(PRODUCT.format(own=OWN), MATRICES, workers=64, target="sm_80")
    assert instructions(start) == {"mma.sync.m16n8k16.f16"}
    keeps_its_result(start)


@pytest.mark.parametrize(
    "own",
    [
        "spatial(8, 8).repeat(8, 4)",
        "spatial(1, 2).repeat(4, 2).spatial(8, 4).repeat(2, 2)",  # a row's two halves adjacent
        "spatial(2, 1).repeat(2, 4).repeat(2, 1).spatial(8, 4, order=(1, 0)).repeat(1, 2)",
    ],
)
def test_fragments_have_to_divide(own: str) -> None:
    start = kernel(PRODUCT.format(own=own), MATRICES, workers=64, target="sm_80")
    selected = select(start)
    assert not nodes(selected, ir.Mma)
    (note,) = messages(selected)
    assert note.startswith("tc.mma of f16 into f32 by ")
    assert note.endswith("it becomes fused multiply-adds")
    assert "mma.sync.m16n8k16.f16" in note
    keeps_its_result(start)


def test_k_has_to_be_a_multiple() -> None:
    text = PRODUCT.format(own=OWN).replace("as(64, 32)", "as(64, 24)")
    start = kernel(text.replace("as(32, 32,", "as(24, 32,"), MATRICES, workers=64, target="sm_80")
    assert not instructions(start)
    keeps_its_result(start)


def test_a_target_without_instructions_says_nothing() -> None:
    selected = select(kernel(PRODUCT.format(own=OWN), MATRICES, workers=64))
    assert not nodes(selected, ir.Mma)
    assert selected.notes == ()
    assert nodes(selected, ir.Fused)


@pytest.mark.parametrize(
    ("own", "how"), [(OWN, "mma.sync.m16n8k32.i8"), ("spatial(8, 8).repeat(8, 4)", None)]
)
def test_integers(own: str, how: str | None) -> None:
    text = PRODUCT.format(own=own).replace("f32", "i32").replace("f16", "i8").replace("0.0", "0")
    parameters = MATRICES.replace("f32", "i32").replace("f16", "i8")
    start = kernel(text, parameters, workers=64, target="sm_80")
    assert instructions(start) == ({how} if how else set())
    assert not nodes(select(start), ir.Fused), "fma is for floats"
    keeps_its_result(start)


def test_operands_in_registers_go_through_shared_memory() -> None:
    start = kernel(
        """
        tile acc: f32[8, 8] by spatial(8, 1).repeat(1, 8) = 0.0
        tile t: f32[8, 8] by spatial(1, 8).repeat(8, 1)
        move t[i, j] = x[i, j] for (i, j) in (8, 8)
        mma acc += t[0, 0].as(8, 8) @ t[0, 0].as(8, 8, transposed)
        move c[i, j] = acc[i, j] for (i, j) in (8, 8)
        """,
        "x: f32[8, 8], c: out f32[8, 8]",
        workers=8,
    )
    keeps_its_result(start)


BYTES = ("i8", "u8", "u8.i8", "f8e4m3", "f8e5m2")


def ptx_fragments(name: str) -> tuple[Callable[..., tuple[int, int]], ...]:
    """Row and column of element `e` of a lane, for the accumulator, A and B, as PTX's tables say.

    From the PTX ISA, "Matrix Fragments for mma.m16n8k16/k8/k32"; e counts c0, c1, ... (a0, b0).
    """

    def accumulator(group: int, thread: int, e: int) -> tuple[int, int]:
        return (group if e < 2 else group + 8), thread * 2 + (e & 1)

    def a16(group: int, thread: int, e: int) -> tuple[int, int]:
        row = group if 0 <= e < 2 or 4 <= e < 6 else group + 8
        return row, thread * 2 + (e & 1) + (0 if e < 4 else 8)

    def b16(group: int, thread: int, e: int) -> tuple[int, int]:
        return thread * 2 + (e & 1) + (0 if e < 2 else 8), group

    def a_tf32(group: int, thread: int, e: int) -> tuple[int, int]:
        return (group if e in (0, 2) else group + 8), (thread if e < 2 else thread + 4)

    def b_tf32(group: int, thread: int, e: int) -> tuple[int, int]:
        return (thread if e == 0 else thread + 4), group

    def a8(group: int, thread: int, e: int) -> tuple[int, int]:
        row = group if 0 <= e < 4 or 8 <= e < 12 else group + 8
        return row, thread * 4 + (e & 3) + (0 if e < 8 else 16)

    def b8(group: int, thread: int, e: int) -> tuple[int, int]:
        return thread * 4 + (e & 3) + (0 if e < 4 else 16), group

    return {
        "mma.sync.m16n8k16.f16": (accumulator, a16, b16),
        "mma.sync.m16n8k16.bf16": (accumulator, a16, b16),
        "mma.sync.m16n8k8.tf32": (accumulator, a_tf32, b_tf32),
        **{f"mma.sync.m16n8k32.{of}": (accumulator, a8, b8) for of in BYTES},
    }[name]


@pytest.mark.parametrize("row", SM_89.matrix, ids=lambda row: row.name)
def test_fragments_are_those_of_ptx(row: object) -> None:
    for fragment, formula in zip(
        (row.accumulator_fragment, row.left_fragment, row.right_fragment),
        ptx_fragments(row.name),
        strict=True,
    ):
        for lane in range(32):
            group, thread = lane >> 2, lane % 4
            expected = [formula(group, thread, e) for e in range(fragment.slots)]
            assert fragment(lane) == expected, f"{row.name}, lane {lane}"
