"""Matrix instructions as functions on fragments: one for each row of ir/target.py that a kernel uses.

PTX registers hold 4 bytes of consecutive elements; fragments are arrays of elements.

    do mma.sync.m16n8k16.f16(&acc[0], &left[0], &right[0])
        ->  tc::mma_sync_m16n8k16_f16(&acc[0], &left[0], &right[0])

An asynchronous product finds what lies in shared memory by a (wgmma) descriptor: where it begins, how far its parts are
from each other, and how its lines are swizzled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from taskc.backend.cuda.expressions import ExpressionWriter
from taskc.backend.cuda.prelude import STRUCTURES, PreludeEntry
from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.ir.affine import SymbolTable
from taskc.ir.fragments import UNIT, Placement
from taskc.ir.linear import Affine
from taskc.ir.nodes import REGISTER, Binary, Bitcast, Cast, Constant, Expression, Statement, Tensor
from taskc.ir.rewrite import walk
from taskc.ir.target import (
    MatrixInstruction,
    MatrixMove,
    WarpgroupInstruction,
    WarpInstruction,
    is_asynchronous,
)
from taskc.ir.types import DType, bf16, f8e4m3, f8e5m2, f16, f32, i8, i32, tf32, u8, u16, u32

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


def synchronous(row: WarpInstruction) -> PreludeEntry:
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


def asynchronous(
    row: WarpgroupInstruction, *, in_registers: bool, along: tuple[str, str]
) -> PreludeEntry:
    """Start accumulator = left @ right, + accumulator if requested; `along` specifies the operands' major axes."""
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
    """The registers of a fragment with so many elements."""
    return [f"tc::packed({name} + {i})" for i in range(0, count, 4 // dtype.nbytes)]


def _accumulators(row: MatrixInstruction) -> str:
    constraint = "+f" if row.accumulator is f32 else "+r"
    parts = [f'"{constraint}"(d[{i}])' for i in range(row.accumulator_fragment.slots)]
    return ", ".join(parts)


def _function(row: MatrixInstruction, name: str, parameters: str, body: list[str]) -> PreludeEntry:
    lines = [f"__device__ __forceinline__ void {name}({parameters}) {{"]
    lines += [f"    {line}" for line in body]
    return PreludeEntry(name, tuple(_needs(row)), "\n".join([*lines, "}"]))


def _needs(row: MatrixInstruction) -> Iterator[str]:
    if row.operand in STRUCTURES:
        yield row.operand.name
    yield "packed"


# --- Moves of whole matrices as functions on fragments: one for each row of ir/target.py and type
#     do ldmatrix.x4(&left[0], &sa[t5])   ->  tc::ldmatrix_x4_f16(&left[0], &sa[t5])
#     do stmatrix.x4(&sc[t5], &acc[0])    ->  tc::stmatrix_x4_f16(&sc[t5], &acc[0])
#
# The instruction moves registers of 4 bytes, in halves, whatever the element type.


def matrix_move(row: MatrixMove, dtype: DType) -> PreludeEntry:
    """The function of a move; its target comes first, as in the operation."""
    transposed = ".trans" if row.transposed else ""
    kind = row.name.partition(".")[0]
    instruction = f"{kind}.sync.aligned.m8n8.x{row.count}{transposed}.shared.b16"
    name = f"{row.name.replace('.', '_')}_{dtype}"
    numbers = range(row.count)
    needs = ["shared_address"]
    if row.is_load:
        registers = ", ".join([f"%{i}" for i in numbers])
        results = ", ".join([f'"=r"(w[{i}])' for i in numbers])
        parameters = f"{dtype}* to, const {dtype}* line"
        body = [
            f"u32 w[{row.count}];",
            f'asm volatile("{instruction} {{{registers}}}, [%{row.count}];"',
            f'             : {results} : "r"(shared_address(line)) : "memory");',
            "memcpy(to, w, sizeof(w));",
        ]
    else:
        registers = ", ".join([f"%{i + 1}" for i in numbers])
        parts = words("from", dtype, row.count * 4 // dtype.nbytes)
        inputs = ", ".join([f'"r"({word})' for word in parts])
        parameters = f"{dtype}* line, const {dtype}* from"
        body = [
            f'asm volatile("{instruction} [%0], {{{registers}}};"',
            f'             :: "r"(shared_address(line)), {inputs} : "memory");',
        ]
        needs += ["packed"]
    needs += [dtype.name] if dtype in STRUCTURES else []
    lines = [f"__device__ __forceinline__ void {name}({parameters}) {{"]
    lines += [f"    {line}" for line in body]
    return PreludeEntry(name, tuple(needs), "\n".join([*lines, "}"]))


# --- Operands of asynchronous products in registers, in words of 4 bytes -------------------------
#     do wgmma.fence()                                   const auto packed_p = tc::packed_whole(p);
#     do wgmma.m64n64k16.f16(&acc[0], &p[8], ...)   ->   tc::wgmma_fence();
#                                                        tc::wgmma_m64n64k16_f16(&acc[0], packed_p.words + 8 / 2, ...);
#
# Packing comes before the fence: after it, the assembler would take it for a change of registers that a product in
# flight reads, and would let that product end first.


class PackedRegisters:
    """`names` maps tensors to the packed words that are in scope."""

    def __init__(self, expressions: ExpressionWriter) -> None:
        self.expressions = expressions
        self.names: dict[Tensor, str] = {}

    def before(self, statements: Sequence[Statement]) -> Iterator[str]:
        """Code to place before the first statement, if it is a fence: packing for the products after it."""
        if not _is_fence(statements[0]):
            return
        names = self.expressions.names
        until_next_fence = takewhile(lambda statement: not _is_fence(statement), statements[1:])
        for tensor in dict.fromkeys(_left_registers(until_next_fence)):
            self.names[tensor] = names.fresh(f"packed_{names[tensor]}")
            yield f"const auto {self.names[tensor]} = {self._whole(tensor)};"

    def __call__(self, place: ir.Address) -> str:
        """The address of a fragment's words; without a fence before it, they are packed for it alone."""
        (index,) = place.indices
        words = self.names.get(place.tensor) or self._whole(place.tensor)
        return f"{words}.words + ({self.expressions(index)}) / {4 // place.tensor.dtype.nbytes}"

    def _whole(self, tensor: Tensor) -> str:
        return f"{self.expressions.use('packed_whole')}({self.expressions.names[tensor]})"


def _is_fence(statement: Statement) -> bool:
    return isinstance(statement, ir.Do) and statement.operation == "wgmma.fence"


def _left_registers(statements: Iterable[Statement]) -> Iterator[Tensor]:
    for node in (node for statement in statements for node in walk(statement)):
        if isinstance(node, ir.Do) and is_asynchronous(node.operation):
            left = node.operands[1]
            if isinstance(left, ir.Address) and left.tensor.scope == ir.REGISTER:
                yield left.tensor


# --- Two 16-bit registers that get the halves of a word get it whole ----------------------------
#     right[0] = bitcast((word & 65535).to(u16), f16)
#     right[1] = bitcast((word >> 16).to(u16), f16)       ->   tc::store_word(&right[0], word);
#
# Stored separately, each half would be extracted by one instruction and put back by another one, just before the
# product that reads both.


def word_of_halves(statements: Sequence[Statement], scope: SymbolTable) -> Expression | None:
    """The word whose lower half the first of two statements stores, and whose upper half the second stores."""
    match statements:
        case [
            ir.Store(tensor=tensor, indices=(first,), value=lower),
            ir.Store(tensor=other, indices=(second,), value=upper),
        ] if tensor is other and tensor.scope == REGISTER:
            word = _lower(lower)
            if word is None or word.dtype is not u32 or word != _upper(upper):
                return None
            return word if scope.form(second) - scope.form(first) == Affine(1, {}, 0) else None
    return None


def _lower(value: Expression) -> Expression | None:
    match _bits(value):
        case Binary(operator="&", left=word, right=Constant(value=0xFFFF)):
            return word
    return None


def _upper(value: Expression) -> Expression | None:
    match _bits(value):
        case Binary(operator=">>", left=word, right=Constant(value=16)):
            return word
    return None


def _bits(value: Expression) -> Expression | None:
    """The value that is cut to 16 bits and perhaps reinterpreted as a float."""
    value = value.operand if isinstance(value, Bitcast) else value
    return value.operand if isinstance(value, Cast) and value.dtype is u16 else None
