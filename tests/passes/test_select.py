"""Who moves what, which instruction multiplies, and in which order a reduction folds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from taskc.backend.sim import run
from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping
from taskc.ir.target import SM_89
from taskc.passes.pipeline import lower
from taskc.passes.select import select
from tests.passes.kernels import (
    before_and_after,
    keeps_its_result,
    kernel,
    messages,
    nodes,
    refused,
    result,
    through,
)

Golden = Callable[[str, str], None]
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


def test_golden(golden: Golden) -> None:
    start = kernel(
        """
        tile acc: f32[8, 8] by spatial(8, 1).repeat(1, 8)
        tile turned: f32[8, 8] by spatial(1, 8).repeat(8, 1)
        shared s: f32[8, 8]
        move s[i, j] = x[i, j] for (i, j) in (8, 8)
        move acc[i, j] = s[i, j] for (i, j) in (8, 8)
        move turned[i, j] = acc[i, j] for (i, j) in (8, 8)
        mma acc += s[0, 0].as(8, 8) @ s[0, 0].as(8, 8)
        move c[i, j] = acc[i, j] * 2.0 for (i, j) in (4, 8)
        move c[i + 4, j] = turned[i, j] for (i, j) in (4, 8)
        """,
        "x: f32[8, 8], c: out f32[8, 8]",
        workers=8,
    )
    golden("passes/select", before_and_after(start, through(start, select)))


def test_golden_of_a_matrix_instruction(golden: Golden) -> None:
    start = kernel(PRODUCT.format(own=OWN), MATRICES, workers=64, target="sm_80")
    golden("passes/select_matrix", before_and_after(start, through(start, select)))


def test_golden_of_a_reduction(golden: Golden) -> None:
    start = kernel(
        """
        tile t: f32[2, 256] by spatial(1, 2).repeat(2, 4).spatial(1, 32)
        move t[i, j] = x[i, j] for (i, j) in (2, 256)
        tile r: f32[2] by repeat(2).replicate(64)
        reduce r = + over t axis=1
        move c[i] = r[i] for i in 2
        """,
        "x: f32[2, 256], c: out f32[2]",
        workers=64,
        target="sm_80",
    )
    golden("passes/select_reduction", before_and_after(start, through(start, select)))


# Moves.


def mapping_of(move: str, parameters: str, workers: int = 32) -> Mapping:
    start = kernel(f"grid row in 64 by 8:\n    {move}", parameters, workers=workers)
    (made,) = nodes(select(start), ir.Move)
    assert made.by is not None
    return made.by


@pytest.mark.parametrize(
    ("dtype", "columns", "index", "width"),
    [
        ("f32", 64, "row, j", 4),
        ("f16", 64, "row, j", 8),
        ("i8", 64, "row, j", 16),
        ("f64", 64, "row, j", 2),
        ("f32", 64, "row, 4 + j", 4),
        ("f32", 64, "row, j + 4 - 2", 2),
        ("f32", 64, "row, j + 1", 1),
        ("f32", 66, "row, j", 2),  # a row of 66 elements
        ("f32", 67, "row, j", 1),
        ("f32", 64, "j, row", 1),  # transposed
        ("f32", 64, "row, 2 * j", 1),
        ("f32", 64, "row, row * 3 + j", 4),  # row is a multiple of 8
        ("f16", 64, "(row + j) // 8, (row + j) % 8", 8),
        ("f16", 64, "(row + j) // 12, (row + j) % 12", 4),
        ("f16", 64, "(row + j + 4) // 8, (row + j + 4) % 8", 4),
        ("f16", 64, "(row + j) // 8, (row + j + 1) % 8", 1),
        ("f16", 64, "(row + j) // 3, (row + j) % 8", 1),
        ("f16", 64, "2 * j, (row + j) % 8", 1),
        ("f32", 64, "row, row // 2 + j", 1),
    ],
)
def test_widths(dtype: str, columns: int, index: str, width: int) -> None:
    move = f"move c[row // 8, j] = x[{index}] for j in 16"
    by = mapping_of(move, f"x: {dtype}[{columns}, {columns}], c: inout {dtype}[8, 16]", 2)
    run_of_worker = [task for (task,) in by(0)]
    assert run_of_worker[:width] == list(range(width))
    assert width == 16 or by(1)[0] == (width,), "the neighbour has the next ones"


@pytest.mark.parametrize(
    ("shape", "workers", "by"),
    [
        ((8, 16), 32, "spatial(8, 4).repeat(1, 4)"),
        ((16, 16), 32, "repeat(2, 1).spatial(8, 4).repeat(1, 4)"),
        ((8, 6), 24, "spatial(8, 3).repeat(1, 2)"),
        ((5, 4), 8, "spatial(8, 1).repeat(1, 4).within(5, 4)"),
    ],
)
def test_a_cover_is_coalesced_and_masked(shape: tuple[int, int], workers: int, by: str) -> None:
    extents = f"[{shape[0]}, {shape[1]}]"
    found = mapping_of(
        f"move c[i, j] = x[i, j] for (i, j) in {shape}", f"x: f32{extents}, c: inout f32{extents}",
        workers,
    )  # fmt: skip
    assert found.workers == workers
    assert found.covers(shape)
    assert found.iterated == shape, "no task outside the shape"
    assert found == Mapping.parse(by)


def test_owners_move_their_own() -> None:
    own = "spatial(8, 1).repeat(1, 8)"
    start = kernel(
        f"""
        tile bias: f32[8] by repeat(8).replicate(8) = 1.0
        tile acc: f32[8, 8] by {own}
        tile product: f32[8, 8] by {own}
        move acc[i, j] = x[i, j] for (i, j) in (8, 8)
        move product[i, j] = bias[j] * acc[i, j] for (i, j) in (8, 8)
        move c[i, j] = bias[j] + product[i, j] for (i, j) in (8, 8)
        move d[i, j] = product[i, j] for (i, j) in (4, 8)
        """,
        "x: f32[8, 8], c: out f32[8, 8], d: out f32[4, 8]",
        workers=8,
    )
    moves = nodes(select(start), ir.Move)
    whole = Mapping.parse(own)
    assert [move.by for move in moves] == [whole, whole, whole, whole.within(4, 8)]
    keeps_its_result(start)


@pytest.mark.parametrize("index", ["j, i", "i, j"])
def test_whom_the_author_names(index: str) -> None:
    """Not the tile's owners by the position that they move, but those that were named."""
    by = "spatial(1, 8).repeat(8, 1)" if index == "j, i" else "spatial(8, 1).repeat(1, 8)"
    start = kernel(
        f"""
        tile acc: f32[8, 8] by spatial(8, 1).repeat(1, 8)
        move acc[{index}] = x[i, j] for (i, j) in (8, 8) by {by}
        move c[i, j] = acc[i, j] for (i, j) in (8, 8)
        """,
        "x: f32[8, 8], c: out f32[8, 8]",
        workers=8,
    )
    assert nodes(select(start), ir.Move)[0].by == Mapping.parse(by)
    keeps_its_result(start)


def test_a_named_mapping_may_cover_more() -> None:
    start = kernel(
        """
        shared s: f32[8, 8]
        move s[i, j] = x[i, j] for (i, j) in (8, 8) by spatial(8, 4).repeat(2, 2)
        move c[i, j] = s[i, j] for (i, j) in (8, 8)
        """,
        "x: f32[8, 8], c: out f32[8, 8]",
    )
    keeps_its_result(start)


def test_a_change_of_mapping_goes_through_shared_memory() -> None:
    start = kernel(
        """
        tile acc: f32[8, 8] by spatial(8, 1).repeat(1, 8)
        tile turned: f32[8, 8] by spatial(1, 8).repeat(8, 1)
        move acc[i, j] = x[i, j] for (i, j) in (8, 8)
        move turned[i, j] = acc[i, j] for (i, j) in (8, 8)
        move c[i, j] = turned[i, j] for (i, j) in (8, 8)
        """,
        "x: f32[8, 8], c: out f32[8, 8]",
        workers=8,
    )
    scratch = [n.tensor for n in nodes(select(start), ir.Allocate) if n.tensor.scope == ir.SHARED]
    assert [tensor.shape for tensor in scratch] == [(8, 8)]
    lean = keeps_its_result(start)
    assert [barrier.scope for barrier in nodes(lean, ir.Barrier)] == ["warp"]


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


# Reductions and scans.


def tree(values: list[np.float32]) -> np.float32:
    while len(values) > 1:
        half = (len(values) + 1) // 2
        paired = [values[i] + values[i + half] for i in range(len(values) - half)]
        values = [*paired, *values[len(paired) : half]]
    return values[0]


def summed(values: np.ndarray, own: Mapping) -> np.ndarray:
    """Every worker's slots in order, then the tree over the workers of a row by their columns."""
    sums = []
    for row in range(own.shape[0]):
        parts = {}
        for worker in range(own.workers):
            columns = [j for i, j in own(worker) if i == row]
            if columns:
                total = values[row, columns[0]]
                for j in columns[1:]:
                    total = total + values[row, j]
                parts[columns[0]] = total
        sums.append(tree([parts[column] for column in sorted(parts)]))
    return np.array(sums, np.float32)


@pytest.mark.parametrize("target", ["generic", "sm_80"])
@pytest.mark.parametrize(
    ("own", "shuffles"),
    [
        ("spatial(32, 1).repeat(1, 6)", 0),
        ("spatial(16, 2).repeat(1, 3)", 1),
        ("spatial(1, 3).repeat(2, 3)", 0),
        ("spatial(1, 5).repeat(1, 3)", 0),
        ("spatial(4, 8).repeat(2, 3)", 3),
        ("spatial(1, 33).repeat(1, 2)", 0),
        ("spatial(1, 64).repeat(1, 2)", 5),
        ("spatial(2, 8).repeat(1, 2)", 0),  # half a warp
        ("spatial(8, 4, order=(1, 0)).repeat(1, 3)", 2),  # the lanes of a row are 8 apart
        ("spatial(1, 2).repeat(1, 2).spatial(4, 8)", 3),  # beyond the warp: 2 more through memory
        ("spatial(8, 3).repeat(1, 2).spatial(1, 4)", 0),  # 12 positions: not the tree's last levels
        ("spatial(8, 4).repeat(1, 2).spatial(3, 1)", 0),  # lanes 3 apart
    ],
)
def test_the_order_of_a_reduction(own: str, shuffles: int, target: str) -> None:
    owners = Mapping.parse(own)
    rows, columns = owners.shape
    start = kernel(
        f"""
        tile t: f32[{rows}, {columns}] by {own}
        move t[i, j] = x[i, j] for (i, j) in ({rows}, {columns})
        tile r: f32[{rows}] by {owners.project((0,))}
        reduce r = + over t axis=1
        move c[i] = r[i] for i in {rows}
        """,
        f"x: f32[{rows}, {columns}], c: out f32[{rows}]",
        workers=owners.workers,
        target=target,
    )
    exchanged = [do for do in nodes(select(start), ir.Do) if do.operation == "shuffle.xor"]
    assert len(exchanged) == (shuffles if target == "sm_80" else 0)
    for stage in ("parsed", "selected", "lean"):
        x, found = result(lower(start, stage))
        assert found.tobytes() == summed(x, owners).tobytes(), stage


@pytest.mark.parametrize("operator", ["+", "*", "min", "max"])
@pytest.mark.parametrize("value", [-0.0, 0.0, float("inf"), float("-inf"), float("nan"), 3.0])
def test_a_fold_begins_with_an_identity(operator: str, value: float) -> None:
    start = kernel(
        f"""
        tile t: f32[1, 1] by spatial(1, 1)
        move t[i, j] = x[i] for (i, j) in (1, 1)
        tile r: f32[1] by spatial(1)
        reduce r = {operator} over t axis=1
        move c[i] = r[i] for i in 1
        """,
        "x: f32[1], c: out f32[1]",
        workers=1,
    )
    given = np.array([value], np.float32)
    found = [given, np.zeros(1, np.float32)]
    assert run(select(start), found).ok
    assert found[1].tobytes() == given.tobytes()


@pytest.mark.parametrize(
    "own",
    ["spatial(2, 4).within(2, 3)", "mapping((2, 3), 6, [[(0, 0)], [(0, 1)], [(0, 2)], [(1, 2)], [(1, 1)], [(1, 0)]])"],
    ids=["masked", "enumerated"],
)  # fmt: skip
def test_reductions_need_a_plain_mapping(own: str) -> None:
    owners = Mapping.parse(own)
    shape = owners.shape
    start = kernel(
        f"""
        tile t: f32[{shape[0]}, {shape[1]}] by {own} = 1.0
        tile r: f32[2] by repeat(2).replicate({owners.workers})
        reduce r = + over t axis=1
        """,
        workers=owners.workers,
    )
    error = refused(start, select)
    assert error.message == "tc.reduce needs a tile whose mapping is composed and unmasked"
    assert error.location.line == 4
    assert "`t` is laid out by " in (error.hint or "")


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("exclusive", ["", " exclusive"])
def test_scans(axis: int, exclusive: str) -> None:
    start = kernel(
        f"""
        tile t: f32[4, 8] by spatial(2, 4).repeat(2, 2)
        move t[i, j] = x[i, j] for (i, j) in (4, 8)
        tile r: f32[4, 8] by spatial(2, 4).repeat(2, 2)
        scan r = + over t axis={axis}{exclusive}
        move c[i, j] = r[i, j] for (i, j) in (4, 8)
        """,
        "x: f32[4, 8], c: out f32[4, 8]",
        workers=8,
    )
    x, found = result(keeps_its_result(start))
    expected = np.add.accumulate(x, axis=axis, dtype=np.float32)
    if exclusive:
        expected = np.roll(expected, 1, axis=axis)
        expected[(0,) if axis == 0 else (slice(None), 0)] = -0.0
    assert found.tobytes() == expected.tobytes()
