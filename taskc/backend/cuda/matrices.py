"""Matrix instructions as functions on fragments: one for each row of ir/target.py that a kernel uses.

Registers of PTX hold 4 bytes of consecutive elements; the fragments are arrays of elements.

    do mma.sync.m16n8k16.f16(&acc[0], &left[0], &right[0])
        ->  tc::mma_sync_m16n8k16_f16(&acc[0], &left[0], &right[0])

An asynchronous product finds what lies in shared memory by a (wgmma) descriptor: where it begins, how far its parts are
from each other, and how its lines are swizzled.
"""

from __future__ import annotations

from collections.abc import Iterator

from taskc.backend.cuda.prelude import Entry
from taskc.backend.cuda.types import STRUCTURES
from taskc.errors import InternalError
from taskc.ir.fragments import UNIT, Placement
from taskc.ir.target import MatrixInstruction, WarpgroupInstruction, WarpInstruction
from taskc.ir.types import DType, bf16, f8e4m3, f8e5m2, f16, f32, i8, i32, tf32, u8

_PTX = {
    f16: "f16",
    bf16: "bf16",
    tf32: "tf32",
    f32: "f32",
    i8: "s8",
    u8: "u8",
    i32: "s32",
    f8e4m3: "e4m3",
    f8e5m2: "e5m2",
}
_SWIZZLES = {128: 1, 64: 2, 32: 3, 16: 0}


def function_name(row: MatrixInstruction) -> str:
    return row.name.replace(".", "_")


def synchronous(row: WarpInstruction) -> Entry:
    """accumulator += left @ right on a warp's fragments."""
    m, n, k = row.shape
    slots = row.accumulator_fragment.slots
    left = words("left", row.operand, row.left_fragment.slots)
    right = words("right", row.types[1], row.right_fragment.slots)
    numbers = iter(range(1000))
    groups = [
        ", ".join([f"%{next(numbers)}" for _ in part]) for part in (range(slots), left, right)
    ]
    types = ".".join([_PTX[dtype] for dtype in (row.accumulator, *row.types)])
    instruction = f"mma.sync.aligned.m{m}n{n}k{k}.row.col.{types}"
    parameters = f"{row.accumulator}* d, const {row.operand}* left, const {row.types[1]}* right"
    inputs = ", ".join([f'"r"({word})' for word in (*left, *right)])
    d, a, b = groups
    return _function(
        row,
        function_name(row),
        parameters,
        [
            f'asm volatile("{instruction} {{{d}}}, {{{a}}}, {{{b}}}, {{{d}}};"',
            f"             : {_accumulators(row)}",
            f"             : {inputs});",
        ],
    )


def asynchronous(row: WarpgroupInstruction, *, in_registers: bool, along: tuple[str, str]) -> Entry:
    """Starts accumulator = left @ right, + accumulator if asked; `along` says how the operands lie."""
    m, n, k = row.shape
    slots = row.accumulator_fragment.slots
    taken = row.left_fragment.slots * row.operand.nbytes // 4
    left = [f"left[{i}]" for i in range(taken)] if in_registers else ["left"]
    kind = "r" if in_registers else "l"
    inputs = [f'"{kind}"({word})' for word in left] + ['"l"(right)', '"r"((u32)accumulate)']
    d = ", ".join([f"%{i}" for i in range(slots)])
    a = ", ".join([f"%{slots + i}" for i in range(len(left))])
    a = f"{{{a}}}" if in_registers else a
    b, condition = (f"%{slots + len(left) + i}" for i in range(2))
    types = ".".join([_PTX[dtype] for dtype in (row.accumulator, *row.types[:2])])
    flags = "" if row.accumulator is i32 else ", 1, 1"
    if row.operand in (f16, bf16):
        transposed = [int(one == "mn") for one in along]
        flags += "".join([f", {one}" for one in transposed[in_registers:]])
    name = asynchronous_name(row, in_registers=in_registers, along=along)
    instruction = f"wgmma.mma_async.sync.aligned.m{m}n{n}k{k}.{types}"
    of_left = "const u32* left" if in_registers else "u64 left"
    return _function(
        row,
        name,
        f"{row.accumulator}* d, {of_left}, u64 right, bool accumulate",
        [
            f'asm volatile("{{ .reg .pred p; setp.ne.b32 p, {condition}, 0;"',
            f'             " {instruction} {{{d}}}, {a}, {b}, p{flags}; }}"',
            f"             : {_accumulators(row)}",
            f'             : {", ".join(inputs)} : "memory");',
        ],
    )


def asynchronous_name(row: MatrixInstruction, *, in_registers: bool, along: tuple[str, str]) -> str:
    ends = ["_registers"] if in_registers else []
    ends += [
        f"_transposed_{side}"
        for side, one in zip(("left", "right"), along, strict=True)
        if one == "mn"
    ]
    return function_name(row) + "".join(ends)


def descriptor(placement: Placement) -> tuple[int, int, int]:
    """The leading and the stride distance in units of 16 bytes, and the number of the swizzle."""
    size, form = placement.nbytes, placement.form
    leading = placement.leading * size // UNIT
    if form.along == "k" and form.width > UNIT:
        leading = 1  # not used
    distances = leading, placement.stride * size // UNIT
    if any(distance >= 1 << 14 for distance in distances):
        raise InternalError(f"a descriptor can't hold the distances {distances}")
    return *distances, _SWIZZLES[form.width]


def words(name: str, dtype: DType, count: int) -> list[str]:
    """The registers of a fragment of so many elements."""
    return [f"tc::packed({name} + {i})" for i in range(0, count, 4 // dtype.nbytes)]


def _accumulators(row: MatrixInstruction) -> str:
    constraint = "+f" if row.accumulator is f32 else "+r"
    parts = [f'"{constraint}"(d[{i}])' for i in range(row.accumulator_fragment.slots)]
    return ", ".join(parts)


def _function(row: MatrixInstruction, name: str, parameters: str, body: list[str]) -> Entry:
    lines = [f"__device__ __forceinline__ void {name}({parameters}) {{"]
    lines += [f"    {line}" for line in body]
    return Entry(name, tuple(_needs(row)), "\n".join([*lines, "}"]))


def _needs(row: MatrixInstruction) -> Iterator[str]:
    if row.operand in STRUCTURES:
        yield row.operand.name
    yield "packed"
