"""The features of each target, as data (tensor cores, AVX-512, AMX, capacities): passes read it, backends only emit.

A matrix instruction is a row of one of four kinds, by the workers that act together and the source of its operands:
it defines the elements that each worker holds. It fits a `tc.mma` if the accumulator's mapping divides by
the row's fragment: own = quotient * fragment. An operand in registers is then held as the quotient,
projected on the operand's dimensions, times the operand's own fragment; one in shared memory lies in one
of the row's forms. `taskc.ir.fragments` computes both.

Processors take both operands from memory, in packs: `pack` consecutive elements of k of a row of the
left matrix, or of a column of the right one, lie together, at whatever address. Row-major is such a form
of the left operand; of the right one it is repeat(k // pack, n) * repeat(pack, 1), and any panels of it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import ClassVar

from taskc.dataclass import dataclass
from taskc.ir.mapping import Mapping, repeat, spatial
from taskc.ir.types import DType, bf16, f8e4m3, f8e5m2, f16, f32, i8, i16, i32, tf32, u8


@dataclass(frozen=True, slots=True)
class SharedForm:
    """The placement of an operand in SHARED memory: atoms of eight lines of `width` bytes.

    along    "k": a line is consecutive elements of k, and the eight lines are rows or columns of the
             result; "mn": the other way round
    width    16 without a swizzle; of 32, 64 or 128 bytes, 16-byte units are XORed with the line's number
    """

    along: str
    width: int


@dataclass(frozen=True, slots=True)
class _Product:
    """The common fields of all kinds: `shape` is (m, n, k), and the accumulator's fragment covers m x n."""

    asynchronous: ClassVar[bool] = False

    name: str
    shape: tuple[int, int, int]
    operand: DType
    right: DType
    accumulator: DType
    accumulator_fragment: Mapping

    @property
    def types(self) -> tuple[DType, DType, DType]:
        """The types of the left operand, the right one and the accumulator."""
        return self.operand, self.right, self.accumulator

    @property
    def group(self) -> int:
        """The number of consecutive workers that act together, from a multiple of it on."""
        return self.accumulator_fragment.workers


@dataclass(frozen=True, slots=True)
class DotInstruction(_Product):
    """Each worker on its own adds the product of two packs to an element.

    pack    elements that lie together in memory, from where the operands come
    offset  is added to every element of the left operand before it is multiplied. What that amounts to,
            offset * the sum of a column of the right operand, has to be subtracted in the end
    """

    pack: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class TileInstruction(_Product):
    """Works on `tiles` tile registers, which don't belong to the workers' lanes.

    Fragments of the accumulator have to be put there before they are added to, and packs of either
    operand before they are multiplied. In memory a tile is 16 lines of 64 bytes, at any equal distance.
    """

    pack: int
    tiles: int


@dataclass(frozen=True, slots=True)
class WarpInstruction(_Product):
    """A warp holds both operands in registers: fragments of m x k and k x n."""

    left_fragment: Mapping
    right_fragment: Mapping


@dataclass(frozen=True, slots=True)
class WarpgroupInstruction(_Product):
    """Runs asynchronously to the warps that issued it, until they wait for it.

    The left operand is in registers or in SHARED memory, the right one is there, in one of the forms
    that `memory` lists.
    """

    asynchronous: ClassVar[bool] = True

    left_fragment: Mapping
    memory: tuple[SharedForm, ...]


PackedInstruction = DotInstruction | TileInstruction  # both operands come from memory, in packs
MatrixInstruction = PackedInstruction | WarpInstruction | WarpgroupInstruction


@dataclass(frozen=True, slots=True)
class MatrixMove:
    """A warp moves `count` matrices, of eight lines of 16 bytes each, between SHARED memory and registers.

    Lane 8 * i + r names line r of matrix i, wherever that lies, at a multiple of 16 bytes; what lanes from
    8 * count on name is ignored. Of each matrix every lane has 4 bytes, matrix after matrix.

    is_load     from memory into registers; else the other way
    transposed  a lane's 4 bytes are of two lines, not of one: only of 16-bit elements
    """

    name: str
    count: int
    is_load: bool
    transposed: bool

    def fits(self, dtype: DType) -> bool:
        """Whether elements of this type are moved whole."""
        return dtype.nbytes == 2 or (dtype.nbytes in (1, 4) and not self.transposed)

    def fragment(self, dtype: DType) -> Mapping:
        """The owners of a matrix's elements, lines by elements of a line."""
        if self.transposed:
            return spatial(4, 8, order=(1, 0)) * repeat(2, 1)
        return spatial(8, 4) * repeat(1, 4 // dtype.nbytes)


WARP = 32  # of a GPU
WARPGROUP = 4 * WARP
REGISTERS = 1 << 16  # of a multiprocessor
THREAD_REGISTERS = 255  # that a thread's code can name
LEAST_REGISTERS, MOST_REGISTERS = (
    24,
    256,
)  # of a worker, after its warpgroup has given up or taken registers
MOST_COUNTED = (
    1 << 20
) - 1  # arrivals of a phase of an mbarrier, and bytes that are missing or too many


def registers_at_launch(threads: int) -> int:
    """Registers of each thread at launch, if warpgroups change them: an equal share of the multiprocessor's."""
    return min(REGISTERS // threads // 8 * 8, THREAD_REGISTERS)


@dataclass(frozen=True, slots=True)
class Target:
    """warp          workers that run in lockstep and may exchange registers
    vector_bytes  the widest single access of one worker
    shared_bytes  most shared memory of a block
    banks         4-byte banks of shared memory, 0 for none
    processors    number of blocks that run at a time; an actual device may have another number
    shuffles      whether the workers of a warp can exchange registers
    cluster       most blocks that may be scheduled together
    transports    transports of block values in a pipeline, best first; if empty, loads don't overlap work
    narrow        whether offsets are 32-bit where that suffices
    moves         instructions that move matrices between SHARED memory and registers, the largest first
    unroll_limit      statements that a loop may become if it is unrolled to save its overhead
    merge_limit        statements that a part of it may become if its reads of SHARED memory merge into one access
    registers     registers of a block that warpgroups can hand to each other; 0 if they can't
    group         workers of a warpgroup, which has barriers of its own; 0 for none
    vectors       vector registers of a processor; 0 for a GPU
    converts      the smallest floats, in bits, that it has conversion instructions for
    capabilities  the compute capabilities of the GPUs that run it; empty if it isn't for GPUs
    """

    name: str
    warp: int
    max_workers: int
    processors: int
    vector_bytes: int
    shared_bytes: int
    banks: int
    shuffles: bool
    transports: tuple[str, ...]
    cluster: int = 1
    matrix: tuple[MatrixInstruction, ...] = ()
    moves: tuple[MatrixMove, ...] = ()
    narrow: bool = True
    unroll_limit: int = 256
    merge_limit: int = 1024
    registers: int = 0
    group: int = 0
    vectors: int = 0
    converts: int = 8
    capabilities: tuple[tuple[int, int], ...] = ()

    def matrix_instruction(self, name: str) -> MatrixInstruction:
        return next(row for row in self.matrix if row.name == name)

    @property
    def is_processor(self) -> bool:
        """Whether a worker is a lane of a CPU's vectors."""
        return self.banks == 0

    def runs(self, other: Target) -> bool:
        """Whether it supports everything code for another target may use, except for the size of shared memory."""
        return (
            {*other.matrix} <= {*self.matrix}
            and {*other.moves} <= {*self.moves}
            and {*other.transports} <= {*self.transports}
            and (other.cluster, other.registers) <= (self.cluster, self.registers)
        )

    @property
    def products(self) -> tuple[MatrixInstruction, ...]:
        """The instructions that `tc.mma` may become."""
        return tuple(row for row in self.matrix if not row.asynchronous)


_PAIRS = repeat(2, 1) * spatial(8, 4) * repeat(1, 2)  # 16 x 8: four lanes span a row


@cache
def _left_fragment(k: int) -> Mapping:
    """16 x k: 4 bytes of consecutive k are one register."""
    return repeat(2, 2, order=(1, 0)) * spatial(8, 4) * repeat(1, k // 8)


def _mma_sync(operand: DType, accumulator: DType, right: DType | None = None) -> WarpInstruction:
    """The m16n8 family of PTX: 32 bytes of k."""
    k = 32 // operand.nbytes
    packed = k // 8
    types = f"{operand}.{right}" if right else f"{operand}"
    return WarpInstruction(
        name=f"mma.sync.m16n8k{k}.{types}",
        shape=(16, 8, k),
        operand=operand,
        right=right or operand,
        accumulator=accumulator,
        accumulator_fragment=_PAIRS,
        left_fragment=_left_fragment(k),
        right_fragment=repeat(2, 1) * spatial(4, 8, order=(1, 0)) * repeat(packed, 1),
    )


_MMA_SYNC = (
    *(_mma_sync(operand, f32) for operand in (f16, bf16, tf32)),
    *(_mma_sync(operand, i32) for operand in (i8, u8)),
    _mma_sync(u8, i32, i8),
)
_MMA_SYNC_F8 = tuple(_mma_sync(operand, f32) for operand in (f8e4m3, f8e5m2))

_WARPS = spatial(4, 1)  # of a warpgroup: each has 16 rows
_FORMS_ALONG_K = tuple(SharedForm("k", width) for width in (128, 64, 32, 16))
_FORMS_ALONG_MN = tuple(SharedForm("mn", width) for width in (128, 64, 32, 16))


@cache
def _of_warpgroup(columns: int) -> Mapping:
    return _WARPS * repeat(1, columns // 8) * _PAIRS


@cache
def _left_of_warpgroup(k: int) -> Mapping:
    return _WARPS * _left_fragment(k)


def _wgmma(operand: DType, accumulator: DType, n: int) -> WarpgroupInstruction:
    """The m64nN family of PTX: 32 bytes of k, by four warps; only 16-bit types are transposed."""
    k = 32 // operand.nbytes
    return WarpgroupInstruction(
        name=f"wgmma.m64n{n}k{k}.{operand}",
        shape=(64, n, k),
        operand=operand,
        right=operand,
        accumulator=accumulator,
        accumulator_fragment=_of_warpgroup(n),
        left_fragment=_left_of_warpgroup(k),
        memory=_FORMS_ALONG_K + (_FORMS_ALONG_MN if operand.nbytes == 2 else ()),
    )


def _matrix_moves(name: str, *, is_load: bool) -> tuple[MatrixMove, ...]:
    """The m8n8 family of PTX."""
    return tuple(
        MatrixMove(f"{name}.x{count}{end}", count, is_load, end != "")
        for count in (4, 2, 1)
        for end in ("", ".trans")
    )


_LDMATRIX = _matrix_moves("ldmatrix", is_load=True)
_STMATRIX = _matrix_moves("stmatrix", is_load=False)

_COLUMNS = range(256, 0, -8)  # the widest first
_WGMMA = tuple(
    _wgmma(operand, f32, n) for operand in (f16, bf16, tf32, f8e4m3, f8e5m2) for n in _COLUMNS
) + tuple(_wgmma(i8, i32, n) for n in _COLUMNS if n % 16 == 0 or n in (8, 24))

GENERIC = Target(
    name="generic",
    warp=32,
    max_workers=1 << 16,
    processors=4,
    vector_bytes=16,
    shared_bytes=1 << 20,
    banks=32,
    shuffles=False,
    transports=("registers",),
    cluster=8,
)

SM_80 = Target(
    name="sm_80",
    warp=WARP,
    max_workers=1024,
    processors=108,
    vector_bytes=16,
    shared_bytes=163 * 1024,
    banks=32,
    shuffles=True,
    transports=("cp.async", "registers"),
    converts=16,
    capabilities=((8, 0),),
    matrix=_MMA_SYNC,
    moves=_LDMATRIX,
)

SM_86 = replace(SM_80, name="sm_86", processors=84, shared_bytes=99 * 1024, capabilities=((8, 6),))
SM_87 = replace(SM_80, name="sm_87", processors=16, capabilities=((8, 7),))

SM_89 = Target(
    name="sm_89",
    warp=WARP,
    max_workers=1024,
    processors=128,
    vector_bytes=16,
    shared_bytes=99 * 1024,
    banks=32,
    shuffles=True,
    transports=("cp.async", "registers"),
    capabilities=((8, 9),),
    matrix=_MMA_SYNC + _MMA_SYNC_F8,
    moves=_LDMATRIX,
)

SM_90A = Target(
    name="sm_90a",
    warp=WARP,
    max_workers=1024,
    processors=132,
    vector_bytes=16,
    shared_bytes=227 * 1024,
    banks=32,
    shuffles=True,
    transports=("tma", "cp.async", "registers"),
    cluster=8,
    matrix=_MMA_SYNC + _MMA_SYNC_F8 + _WGMMA,
    moves=_LDMATRIX + _STMATRIX,
    registers=REGISTERS,
    group=WARPGROUP,
    capabilities=((9, 0),),
)

# No wgmma. It has bulk copies and mbarriers, which are untested there: cp.async works without them.
SM_120A = replace(
    SM_89, name="sm_120a", processors=170, moves=_LDMATRIX + _STMATRIX, capabilities=((12, 0),)
)


def _dot(
    name: str, operand: DType, accumulator: DType, *, right: DType | None = None, offset: int = 0
) -> DotInstruction:
    """Each lane adds the product of two packs of 4 bytes to its element."""
    pack = 4 // operand.nbytes
    return DotInstruction(
        name=name,
        shape=(1, 1, pack),
        operand=operand,
        right=right or operand,
        accumulator=accumulator,
        accumulator_fragment=repeat(1, 1),
        pack=pack,
        offset=offset,
    )


# Four times as many products as an f32 fma, on every processor that has it. It multiplies unsigned numbers by signed
# ones: a signed left operand has its sign bits flipped, which makes it larger by 128.
_VNNI = (
    _dot("vpdpbusd.u8", u8, i32, right=i8),
    _dot("vpdpbusd.i8", i8, i32, offset=128),
)


def _of_tiles(
    name: str, operand: DType, accumulator: DType, *, right: DType | None = None
) -> TileInstruction:
    """Tiles of Intel's AMX: an accumulator's row is a vector; operands are 16 lines of 16 packs."""
    pack = 4 // operand.nbytes
    return TileInstruction(
        name=name,
        shape=(16, 16, 16 * pack),
        operand=operand,
        right=right or operand,
        accumulator=accumulator,
        accumulator_fragment=repeat(16, 1) * spatial(1, 16),
        pack=pack,
        tiles=8,
    )


# Fourteen times as many products as an f32 fma for bf16, 28 times for 8 bits.
_AMX = (
    _of_tiles("tdpbf16ps", bf16, f32),
    _of_tiles("tdpbssd", i8, i32),
    _of_tiles("tdpbusd", u8, i32, right=i8),
)

# Twice as many products as an f32 fma, of bytes that were widened.
_OF_WORDS = (_dot("vpmaddwd", i16, i32),)

# Twice as many products as an f32 fma on AMD's Zen 4 and 5. On Intel's processors just as many, so they don't have this
# row.
_BF16 = (_dot("vdpbf16ps", bf16, f32),)


def _processor(
    name: str,
    lanes: int,
    vectors: int,
    matrix: tuple[MatrixInstruction, ...] = (),
    converts: int = 16,
) -> Target:
    """A worker is a SIMD lane, so its own accesses are single elements; lanes exchange registers."""
    return Target(
        name=name,
        warp=lanes,
        max_workers=1 << 16,
        processors=1 << 16,
        vector_bytes=1,
        shared_bytes=1 << 28,
        banks=0,
        shuffles=True,
        cluster=8,  # blocks may run one after another
        transports=(),
        matrix=matrix,
        narrow=False,
        unroll_limit=128,  # each statement is a vector's, and a loop costs next to nothing
        vectors=vectors,
        converts=converts,
    )


AVX512 = _processor("avx512", 16, 32, _OF_WORDS)
AVX512_VNNI = _processor("avx512_vnni", 16, 32, _VNNI)
AVX512_BF16 = _processor("avx512_bf16", 16, 32, _VNNI + _BF16)
AVX512_AMX = _processor("avx512_amx", 16, 32, _AMX + _VNNI)
AVX2 = _processor("avx2", 8, 16, _OF_WORDS)
AVX2_VNNI = _processor("avx2_vnni", 8, 16, _VNNI)
NEON = _processor("neon", 4, 32)
SSE2 = _processor("sse2", 4, 16, converts=32)

_PROCESSORS = (AVX512, AVX512_VNNI, AVX512_BF16, AVX512_AMX, AVX2, AVX2_VNNI, NEON, SSE2)
_GPUS = (SM_80, SM_86, SM_87, SM_89, SM_90A, SM_120A)
TARGETS: dict[str, Target] = {target.name: target for target in (GENERIC, *_GPUS, *_PROCESSORS)}

GPUS: tuple[Target, ...] = tuple(
    sorted((t for t in TARGETS.values() if t.capabilities), key=lambda t: t.capabilities[0])
)

MATRIX_INSTRUCTIONS: dict[str, MatrixInstruction] = {
    row.name: row for target in TARGETS.values() for row in target.matrix
}

WARP_INSTRUCTIONS: dict[str, WarpInstruction] = {
    name: row for name, row in MATRIX_INSTRUCTIONS.items() if isinstance(row, WarpInstruction)
}

WARPGROUP_INSTRUCTIONS: dict[str, WarpgroupInstruction] = {
    name: row for name, row in MATRIX_INSTRUCTIONS.items() if isinstance(row, WarpgroupInstruction)
}

MATRIX_MOVES: dict[str, MatrixMove] = {
    row.name: row for target in TARGETS.values() for row in target.moves
}


def is_asynchronous(name: str | None) -> bool:
    """Whether this is a matrix instruction that runs asynchronously."""
    return name in WARPGROUP_INSTRUCTIONS
