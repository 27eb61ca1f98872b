"""The placement of matrix operands in workers' registers and in shared memory, and the moves between the two.

Some instructions move whole matrices between shared memory and a tile. The
lanes that name the lines of a matrix are not the lanes that hold its elements: both are mappings of the
same tasks. The tile's owners hold the elements. The naming lanes follow from them: the n-th 4 bytes of all
lanes, in the order of their registers, form one matrix.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskc.dataclass import dataclass
from taskc.ir.mapping import Mapping, repeat
from taskc.ir.mapping_forms import MappingError, Mode
from taskc.ir.nodes import (
    SHARED,
    TILE,
    Expression,
    Mma,
    Move,
    Operand,
    Read,
    Swizzle,
    Tensor,
    Variable,
)
from taskc.ir.rewrite import walk
from taskc.ir.target import (
    MATRIX_MOVES,
    WARP,
    MatrixInstruction,
    MatrixMove,
    PackedInstruction,
    SharedForm,
    TileInstruction,
    WarpgroupInstruction,
    WarpInstruction,
)
from taskc.ir.types import DType

UNIT = 16  # bytes that a swizzle moves together
SWIZZLED_ROW = 128  # bytes of memory with the same number in a swizzle


def quotient_of(owners: Mapping, row: MatrixInstruction) -> Mapping | None:
    """The mapping of fragments, with owners == quotient * fragment; None if the row doesn't fit."""
    try:
        quotient = owners / row.accumulator_fragment
    except MappingError:
        return None
    return quotient if quotient.is_composed and quotient.limit is None else None


def without_dimension(quotient: Mapping, dropped: int) -> Mapping:
    """The quotient on one dimension of the result; the other dimension gets extent 1."""
    kept_dimension = 1 - dropped
    projected = quotient.project((kept_dimension,))
    assert projected.worker_modes is not None
    assert projected.slot_modes is not None

    def renumbered(mode: Mode) -> Mode:
        return mode if mode.dimension is None else mode._replace(dimension=kept_dimension)

    shape = (projected.shape[0], 1) if kept_dimension == 0 else (1, projected.shape[0])
    return Mapping.from_modes(
        shape,
        [renumbered(m) for m in projected.worker_modes],
        [renumbered(m) for m in projected.slot_modes],
    )


def left_owners(quotient: Mapping, row: WarpInstruction | WarpgroupInstruction, k: int) -> Mapping:
    """The owners of a left operand of `k` columns in registers."""
    steps = repeat(1, k // row.shape[2])
    return without_dimension(quotient, 1) * steps * row.left_fragment


def right_owners(quotient: Mapping, row: WarpInstruction, k: int) -> Mapping:
    """The owners of a right operand of `k` rows in registers."""
    steps = repeat(k // row.shape[2], 1)
    return without_dimension(quotient, 0) * steps * row.right_fragment


# --- shared memory ---------------------------------------------------------------------------


def swizzle_of(width: int, dtype: DType) -> Swizzle | None:
    """The swizzle for lines of 32, 64 or 128 bytes; None for lines of 16."""
    bits = (width // UNIT).bit_length() - 1
    unit, row = UNIT // dtype.nbytes, SWIZZLED_ROW // dtype.nbytes
    return Swizzle(bits, unit.bit_length() - 1, row.bit_length() - 1) if bits else None


@dataclass(frozen=True, slots=True)
class Placement:
    """A form, with the distances of a descriptor, in elements.

    The first line's units of 16 bytes are `leading` apart where that isn't 16 bytes (none is
    swizzled), or else lines of the next atom across; atoms of eight lines are `stride` apart.
    """

    form: SharedForm
    nbytes: int
    leading: int
    stride: int

    def offsets(self, mn: int, k: int) -> NDArray[Any]:
        """The offsets of a fragment's elements, [mn, k], from its first element, before any swizzle."""
        line, unit = self.form.width // self.nbytes, UNIT // self.nbytes
        rows, depth = np.indices((mn, k))
        if self.form.along == "k":
            across = unit if line > unit else self.leading
            return rows % 8 * line + rows // 8 * self.stride + depth % unit + depth // unit * across
        if line > unit:
            lines, atoms = self.leading, self.stride
        else:
            lines, atoms = self.stride, self.leading
        return rows % line + rows // line * lines + depth % 8 * line + depth // 8 * atoms

    def is_aligned(self, start: int) -> bool:
        """Whether a fragment may begin at this element: at a unit, in the first line of an atom."""
        at = start * self.nbytes
        return at % UNIT == 0 and at // SWIZZLED_ROW % (self.form.width // UNIT) == 0


def runs_along(operand: Operand, *, is_left: bool) -> str:
    """The dimension along which an operand's elements are contiguous: "k" or "mn"."""
    return "mn" if operand.transposed == is_left else "k"


def placement(
    tensor: Tensor, along: str, row: WarpgroupInstruction, *, is_left: bool
) -> Placement | None:
    """The placement of a fragment at the tensor's first element, if the instruction can read it."""
    mn, k = row.shape[0 if is_left else 1], row.shape[2]
    shape = tuple(n for n in tensor.shape[-2:] if isinstance(n, int))
    extents = (mn, k) if along == "k" else (k, mn)
    if len(shape) != 2 or any(a < b for a, b in zip(shape, extents, strict=True)):
        return None
    table = _addresses(tensor, extents)
    if table is None:
        return None
    table = table if along == "k" else table.T
    size = tensor.dtype.nbytes
    for form in row.memory:
        if form.along != along or tensor.swizzle != swizzle_of(form.width, tensor.dtype):
            continue
        line, unit = form.width // size, UNIT // size
        if along == "k":
            leading, stride = table[0, min(unit, k - 1)], table[8 if mn > 8 else 0, 0]
        elif line > unit:
            leading, stride = table[line if mn > line else 0, 0], table[0, 8]
        else:
            leading, stride = table[0, 8], table[unit if mn > unit else 0, 0]
        candidate = Placement(form, size, int(leading), int(stride))
        if np.array_equal(candidate.offsets(mn, k), table):
            return candidate
    return None


def _addresses(tensor: Tensor, extents: tuple[int, int]) -> NDArray[Any] | None:
    """The offsets of the first elements of a tensor's last two dimensions, before any swizzle."""
    rows, columns = np.indices(extents)
    layout = tensor.layout
    if layout is None:
        pitch = tensor.shape[-1]
        assert isinstance(pitch, int)
        return np.asarray(rows * pitch + columns)
    if layout.rank < 2:
        return None
    leading = np.zeros((*extents, layout.rank - 2), np.int64)
    tasks = np.concatenate((leading, rows[..., None], columns[..., None]), axis=-1)
    return layout.find(0, tasks)


# --- packs in memory -------------------------------------------------------------------------


def depth_of(operand: Operand, *, is_left: bool) -> int:
    """The dimension of an operand's tensor that is k: -1, the last, or -2."""
    return -2 if operand.transposed == is_left else -1


def distances(tensor: Tensor, dimension: int, count: int, step: int) -> NDArray[Any] | None:
    """The distances of `count` consecutive elements along a dimension from the first of them.

    It is so wherever that one's index is a multiple of `step`; None where it differs from place to
    place, or isn't known.
    """
    layout, numbers = tensor.layout, np.arange(count)
    if tensor.swizzle is not None:
        return None
    if layout is None:
        pitch = 1 if dimension == -1 else tensor.shape[-1]
        return numbers * pitch if isinstance(pitch, int) else None
    if not layout.is_composed or layout.rank < -dimension:
        return None
    # In a composed layout an address is a sum of a term for each index.
    extent, tensor_extent = layout.shape[dimension], tensor.shape[dimension]
    is_one_layout = isinstance(tensor_extent, int) and tensor_extent <= extent
    if not is_one_layout and (extent % count or step % count):
        return None
    tasks = np.zeros((extent, layout.rank), np.int64)
    tasks[:, dimension] = np.arange(extent)
    places = layout.find(0, tasks)
    starts = np.arange(0, extent - count + 1, step)
    if not starts.size:
        return None
    relative = places[starts[:, None] + numbers] - places[starts][:, None]
    return relative[0] if (relative == relative[0]).all() else None


def pack_step(tensor: Tensor, dimension: int, pack: int) -> int:
    """The step of an index into one of the last two dimensions at which packs begin.

    1: anywhere; 0: the elements don't lie in packs.
    """
    for step in (1, pack):
        if np.array_equal(distances(tensor, dimension, pack, step), np.arange(pack)):  # type: ignore[arg-type]
            return step
    return 0


def tile_pitch(
    operand: Operand, row: TileInstruction, steps: tuple[int, int], *, is_left: bool
) -> int | None:
    """The distance between a tile's lines; None if the operand's memory has no such tiles.

    steps  known divisors of the operand's origin, along k and the other dimension
    """
    dimension, (m, _, k) = depth_of(operand, is_left=is_left), row.shape
    depth = distances(operand.tensor, dimension, k, gcd(k, steps[0]))
    lines = distances(operand.tensor, -3 - dimension, m, gcd(m, steps[1]))
    if depth is None or lines is None:
        return None
    pitch = int(lines[1] if is_left else depth[row.pack])
    q, pack = np.arange(k), row.pack
    expected = (q, pitch) if is_left else (q // pack * pitch + q % pack, pack)
    fits = np.array_equal(depth, expected[0]) and np.array_equal(lines, np.arange(m) * expected[1])
    return pitch if fits else None


def lies_well(
    operand: Operand, row: PackedInstruction, steps: tuple[int, int], *, is_left: bool
) -> bool:
    """Whether an instruction on packs finds them in the operand's memory, from its origin on."""
    if isinstance(row, TileInstruction):
        return tile_pitch(operand, row, steps, is_left=is_left) is not None
    step = pack_step(operand.tensor, depth_of(operand, is_left=is_left), row.pack)
    return bool(step) and steps[0] % step == 0


def packed_layout(tensor: Tensor, dimension: int, pack: int) -> Mapping:
    """A layout with k in packs, and neighbouring packs along the other dimension."""
    rows, columns = (int(n) for n in tensor.shape[-2:])  # type: ignore[arg-type]
    if dimension == -2:
        return repeat(-(-rows // pack), columns) * repeat(pack, 1)
    return repeat(1, -(-columns // pack)) * repeat(rows, pack)


def alignment(tensor: Tensor) -> int:
    """The bytes after which a tensor's swizzle repeats: hardware swizzles whole addresses."""
    swizzle = tensor.swizzle
    return 1 if swizzle is None else tensor.dtype.nbytes << (swizzle.shift + swizzle.bits)


def types_of(mma: Mma) -> tuple[DType, DType, DType]:
    """The types of the left operand, the right one and the accumulator."""
    return mma.left.tensor.dtype, mma.right.tensor.dtype, mma.accumulator.dtype


def misfit(mma: Mma, row: PackedInstruction | WarpgroupInstruction) -> str | None:
    """The reason why an instruction can't do a product, or None. The author's errors are more detailed."""
    owners = mma.accumulator.owners
    assert owners is not None
    m, n, k = row.shape
    if types_of(mma) != row.types:
        left, right, accumulator = row.types
        both = str(left) if left is right else f"{left}, {right}"
        return f"{row.name} is of {both} and {accumulator}"
    quotient = quotient_of(owners, row)
    if quotient is None or mma.left.shape[1] % k:
        return f"{row.name} computes {m} by {n} by {k}, which does not divide the product"
    if isinstance(row, PackedInstruction):
        for is_left, operand in ((True, mma.left), (False, mma.right)):
            if operand.tensor.owners is not None or not lies_well(
                operand, row, (0, 0), is_left=is_left
            ):
                return (
                    f"{operand.tensor} does not lie in packs of {row.pack}, as {row.name} takes it"
                )
        return None
    for is_left, operand in ((True, mma.left), (False, mma.right)):
        tensor = operand.tensor
        if tensor.owners is not None:
            if not is_left or tensor.owners != left_owners(quotient, row, mma.left.shape[1]):
                return f"the owners of {tensor} are not those of {row.name}"
        elif placement(tensor, runs_along(operand, is_left=is_left), row, is_left=is_left) is None:
            return f"{tensor} does not lie as {row.name} takes it"
    return None


LINES = 8
LINE_BYTES = 16


def memory_side(move: Move) -> tuple[Tensor, tuple[Expression, ...]] | None:
    """A move's place in shared memory, if its other side is a whole tile of their owners."""
    value = move.value
    if not isinstance(value, Read) or move.guard is not None or len(move.variables) != 2:
        return None
    sides = [(move.tensor, move.indices), (value.tensor, value.indices)]
    if sides[0][0].scope == SHARED:
        sides.reverse()
    (tile, elements), memory = sides
    is_whole = all(a is b for a, b in zip(elements, move.variables, strict=False))
    if tile.scope != TILE or memory[0].scope != SHARED or len(elements) != 2 or not is_whole:
        return None
    is_same = memory[0].dtype == tile.dtype and move.by == tile.owners
    return memory if is_same and tile.owners is not None else None


def axis_along(indices: tuple[Expression, ...], variables: tuple[Variable, ...]) -> int | None:
    """The move's variable that runs along the lines of memory, if just one does."""
    *leading, last = (list(walk(index)) for index in indices)
    axes = [n for n, variable in enumerate(variables) if any(part is variable for part in last)]
    if len(axes) != 1:
        return None
    along = variables[axes[0]]
    return None if any(part is along for index in leading for part in index) else axes[0]


def line_namers(owners: Mapping, axis: int, row: MatrixMove, tensor: Tensor) -> Mapping | None:
    """The mapping of lanes to the lines they name: a worker's slots are the elements of its lines in order.

    None where the instruction doesn't move the elements to, or from, their owners. `axis` is the
    dimension along which lines lie.
    """
    line = LINE_BYTES // tensor.dtype.nbytes
    fragment = row.fragment(tensor.dtype) if row.fits(tensor.dtype) else None
    if fragment is None or owners.workers % WARP or owners.slots % fragment.slots:
        return None
    if not owners.is_composed or owners.limit is not None:
        return None
    shape = (owners.workers // WARP, WARP, -1, fragment.slots, 2)
    held = owners.tasks[..., [1 - axis, axis]].reshape(shape)
    first = held[:, :1, :, :1]
    if not np.array_equal(held - first, np.broadcast_to(fragment.tasks[:, None], held.shape)):
        return None
    if (first[..., 1] % line).any():
        return None
    assert owners.worker_modes is not None
    assert owners.slot_modes is not None
    warps, _ = _parted(owners.worker_modes, WARP) or (None, None)
    words, _ = _parted(owners.slot_modes, fragment.slots) or (None, None)
    if warps is None or words is None:
        return None
    groups, matrices = _parted(words, row.count) or (None, None)
    if groups is None or matrices is None:
        return None
    idle = Mode(None, WARP // (LINES * row.count), 0)
    return Mapping.from_modes(
        owners.shape,
        (*warps, idle, *matrices, Mode(1 - axis, LINES, 1)),
        (*groups, Mode(axis, line, 1)),
    )


def named_by_lines(move: Move) -> Move:
    """The move with the workers that name the lines as those that do it."""
    side = memory_side(move)
    assert side is not None
    assert move.by is not None
    axis = axis_along(side[1], move.variables)
    assert axis is not None
    namers = line_namers(move.by, axis, MATRIX_MOVES[str(move.how)], side[0])
    return replace(move, by=namers, how=None)


def _parted(modes: Iterable[Mode], size: int) -> tuple[list[Mode], list[Mode]] | None:
    """Split off the fastest digits, of so many values in all; None if a digit straddles the boundary."""
    slow, fast = list(modes), list[Mode]()
    while size > 1:
        if not slow:
            return None
        mode = slow.pop()
        taken_size = min(size, mode.size)
        if size % taken_size or mode.size % taken_size:
            return None
        fast.insert(0, mode._replace(size=taken_size))
        if mode.size > taken_size:
            slow.append(
                mode._replace(size=mode.size // taken_size, stride=mode.stride * taken_size)
            )
        size //= taken_size
    return slow, fast
