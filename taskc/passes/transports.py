"""Transports: how the block values of a pipelined loop get to shared memory.

Bulk copies take boxes of a tensor, and the pixels of images under one tap of a filter, for consecutive results
(TMA's im2col).

    x[(row + i) // 196, (row + i) // 14 % 14 * 2 + p // 192 - 1, (row + i) % 14 * 2 + p // 64 % 3 - 1, q]

for (i, q) in (128, 64) is, for 128 results from number `row` on, of 14 rows by 14 columns, the pixel under the
tap in row p // 192 and column p // 64 % 3 of their filter, where filters are 2 pixels apart, and the first
begins 1 above and 1 left of the image. The copy counts columns, rows and images by itself; pixels outside
the image arrive as zeros.

If a block value is the same in all blocks of a cluster, each block loads a part of it for all of them (multicast).

    grid (row, col) in (m, n) by (128, 256) cluster=(2, 1):
        ... move sb[slot, i, j] = b[p + i, col + j] for (i, j) in (64, 256) how=tma       in a producer's loop
->
    do tma.load.multicast(&sb[slot, block % 2 * 32, 0], &b[p + block % 2 * 32, col], &full[slot], 3, 32, 64) ...

A slot is then free when the consumers of all blocks have released it: they arrive at each block's mbarrier.
A load is common to all blocks of a cluster if its dependence on the tile doesn't involve the rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import copysign, gcd, prod

from taskc.analysis.coalescing import (
    ATOM,
    contiguous_width,
    divisor,
    facts_of_names,
    line_of,
    move_width,
    steady_width,
    unit_stride,
)
from taskc.analysis.facts import Facts
from taskc.analysis.prover import addends
from taskc.dataclass import dataclass
from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.affine import affine, constant_difference
from taskc.ir.build import ZERO, add, floor_divide, index, less, modulo, multiply, subtract, total
from taskc.ir.nodes import GLOBAL, Expression, Statement, Tensor, Variable
from taskc.ir.operations import RELEASE
from taskc.ir.rewrite import all_below, map_children, substitute, walk
from taskc.ir.target import Target

# Limits of a map of pixels: offset of a tap from its filter's first, padding around an image, distance of filters.
MOST_OFFSET, MOST_PADDING, MOST_STRIDE = 255, 128, 8


@dataclass(frozen=True, slots=True)
class Pixels:
    """Pairs are of rows and columns.

    first    position of the first result's filter: image, row, column, and the first channel
    offsets  of the tap in the filter
    outputs  results of an image
    strides  of the filter
    padding  above and left of an image, where the first filter begins
    """

    first: tuple[Expression, ...]
    offsets: tuple[Expression, Expression]
    outputs: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers that are the same for all copies."""
        return *self.outputs, *self.strides, *self.padding


@dataclass(frozen=True, slots=True)
class _PixelIndex:
    """An index along rows or columns: digit * stride + rest; the digit is number // weight % extent.

    Without an extent it is number // weight, as it is of the rows of a single image.
    """

    number: Expression
    weight: int
    extent: int | None
    stride: int
    rest: Expression

    @property
    def padding(self) -> int:
        return max(0, -_constant(self.rest))

    @property
    def offset(self) -> Expression:
        return add(self.rest, self.padding)


def pixels_of(move: ir.Move, distant: ir.Read | ir.Address, known: Facts) -> Pixels | None:
    """The pixels that a move to shared memory takes from `distant`, if it has that form."""
    shape = distant.tensor.shape
    if (
        len(move.variables) != 2
        or len(shape) != 4
        or not all(isinstance(n, int) for n in shape[1:])
    ):
        return None
    along, channel = move.variables
    image, row, column, last = distant.indices
    if not unit_stride(last, channel, known) or any(along is node for node in walk(last)):
        return None
    if any(channel is node for part in (image, row, column) for node in walk(part)):
        return None
    places = _places(row, column, along)
    if places is None:
        return None
    row_digit, column_digit = places
    number, zero = column_digit.number, {along: ZERO}
    steps = (
        row_digit.weight == column_digit.extent,
        constant_difference(row_digit.number, number) == 0,
    )
    if not (unit_stride(number, along, known) and column_digit.weight == 1 and all(steps)):
        return None
    start = substitute(number, zero)
    if row_digit.extent is None:
        # There is nothing after the only image's last row.
        if shape[0] != 1 or any(node is along for node in walk(image)):
            return None
        most_rows = int(shape[1]) - 1 + MOST_PADDING - 1  # type: ignore[arg-type]
        row_digit = replace(
            row_digit, extent=(most_rows + row_digit.padding) // row_digit.stride + 1
        )
    else:
        pixels = floor_divide(number, row_digit.weight * row_digit.extent)
        if constant_difference(image, pixels) != 0 and not (
            constant_difference(image, substitute(pixels, zero)) == 0
            and _lie_between(start, move.shape[0], row_digit.weight * row_digit.extent, known)
        ):
            return None
    both = row_digit, column_digit
    rows, columns = (
        subtract(
            multiply(modulo(floor_divide(start, p.weight), p.extent or 1), p.stride), p.padding
        )
        for p in both
    )
    first = substitute(image, zero), rows, columns, substitute(last, {channel: ZERO})
    return Pixels(
        first,
        (row_digit.offset, column_digit.offset),
        (int(row_digit.extent or 1), int(column_digit.extent or 1)),
        (row_digit.stride, column_digit.stride),
        (row_digit.padding, column_digit.padding),
    )


def corners(pixels: Pixels, extents: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """The positions of filters: the first one's row and column, and the last one's, relative to the last pixel."""
    both = zip(pixels.padding, pixels.outputs, pixels.strides, extents, strict=True)
    beyond = [(count - 1) * step - before - (n - 1) for before, count, step, n in both]
    return (-pixels.padding[0], -pixels.padding[1]), (beyond[0], beyond[1])


def misplaced(pixels: Pixels, distant: ir.Read, known: Facts) -> str | None:
    """The first of a bulk copy's numbers that is too large, as a message; or None."""
    height, width = (int(n) for n in distant.tensor.shape[1:3])  # type: ignore[arg-type]
    if any(
        not -MOST_PADDING <= n < MOST_PADDING for c in corners(pixels, (height, width)) for n in c
    ):
        return f"begins or ends more than {MOST_PADDING} pixels beyond its images"
    if max(pixels.strides) > MOST_STRIDE:
        return f"has filters more than {MOST_STRIDE} pixels apart"
    for offset in pixels.offsets:
        interval = known.interval(offset)
        if interval.low is None or interval.low < 0:
            return "may have taps in front of its filter"
        if interval.high is None or interval.high > MOST_OFFSET:
            return f"may have taps more than {MOST_OFFSET} pixels behind its filter's first"
    return None


def _lie_between(start: Expression, count: int, multiple: int, known: Facts) -> bool:
    """Whether so many numbers from `start` on are between two multiples of a number."""
    step = divisor(start, known)
    return step % count == 0 and multiple % count == 0


def _places(
    row: Expression, column: Expression, along: Variable
) -> tuple[_PixelIndex, _PixelIndex] | None:
    column_digit = _place(column, along)
    if column_digit is None or column_digit.extent is None:
        return None
    row_digit = _place(row, along)
    if row_digit is None and not any(node is along for node in walk(row)):
        # One row of results: the next one is the next image's.
        row_digit = _PixelIndex(column_digit.number, column_digit.extent, 1, 1, row)
    return None if row_digit is None else (row_digit, column_digit)


def _place(position: Expression, along: Variable) -> _PixelIndex | None:
    """The index as a digit of a number that `along` counts up, and the rest."""
    terms = addends(position)
    varying = [term for term in terms if any(node is along for node in walk(term[0]))]
    if len(varying) != 1 or varying[0][1] < 1:
        return None
    ((digit, stride),) = varying
    remainder = total(multiply(term, times) for term, times in terms if term is not digit)
    match digit:
        case ir.Binary(operator="%", left=number, right=ir.Constant(value=int(extent))):
            weight = 1
            match number:
                case ir.Binary(operator="//", left=inner, right=ir.Constant(value=int(weight))):
                    number = inner
            return _PixelIndex(number, weight, extent, stride, remainder)
        case ir.Binary(operator="//", left=number, right=ir.Constant(value=int(weight))):
            return _PixelIndex(number, weight, None, stride, remainder)
    return None


def _constant(rest: Expression) -> int:
    return sum(int(n.value) * times for n, times in addends(rest) if isinstance(n, ir.Constant))


COPY_BYTES = (16, 8, 4)
BOX_EXTENT = 256


def transport_for(
    pipeline: ir.Pipeline,
    moves: Sequence[ir.Move],
    kernel: ir.Kernel,
    target: Target,
    notes: list[tuple[str, Location]],
) -> str:
    """The pipeline's own choice, or the best that all its loads allow.

    Two stages travel through registers: with one step in flight that costs no more, and needs one barrier
    a step. Bulk copies are taken where they are asked for, or where a producer warp issues them.
    """
    if pipeline.transport is not None:
        refusal = refusal_of(pipeline.transport, moves, target, kernel)
        if refusal is not None:
            raise CompileError(
                f"this pipeline can't travel by {pipeline.transport}: {refusal}", pipeline.loc
            )
        return pipeline.transport
    for transport in target.transports:
        if transport == "tma" and not pipeline.specialize:
            continue
        if transport == "cp.async" and pipeline.stages == 2 and not pipeline.specialize:
            continue
        refusal = refusal_of(transport, moves, target, kernel)
        if refusal is None:
            return transport
        notes.append((f"this pipeline does not travel by {transport}: {refusal}", pipeline.loc))
    return "registers"


def refusal_of(
    transport: str, moves: Sequence[ir.Move], target: Target, kernel: ir.Kernel
) -> str | None:
    known = facts_of_names(kernel)
    if transport not in target.transports:
        return f"{target.name} does not have it"
    if transport == "registers":
        return None
    for move in moves:
        refusal = (
            _copy_refusal(move, target, known)
            if transport == "cp.async"
            else _load_refusal(move, known)
        )
        if refusal is not None:
            return f"the load of `{move.tensor.name}` {refusal}"
    return None


def plain_read(move: ir.Move) -> tuple[ir.Read, ir.Expression | None] | None:
    """The read that a move copies unchanged, and the condition outside of which it writes zeros; None for other
    moves.
    """
    value = move.value
    condition: ir.Expression | None = None
    if isinstance(value, ir.Select):
        other = value.otherwise
        if not isinstance(other, ir.Constant) or other.value or _is_negative_zero(other):
            return None
        condition = value.condition
        value = value.then
    if not isinstance(value, ir.Read) or value.tensor.scope != GLOBAL or move.guard is not None:
        return None
    return value, condition


def _is_negative_zero(constant: ir.Constant) -> bool:
    return constant.dtype.is_float and copysign(1.0, constant.value) < 0


def copy_elements(move: ir.Move, target: Target, known: Facts) -> int:
    """The number of elements of one asynchronous copy; 0 if not even 4 bytes are aligned."""
    size = move.tensor.dtype.nbytes
    width = gcd(move_width(move, target, known), run_of(move))
    read = plain_read(move)
    if read is not None and read[1] is not None:
        width = min(width, _condition_width(read[1], move.variables[-1], known))
    return next((n // size for n in COPY_BYTES if n % size == 0 and n // size <= width), 0)


def run_of(move: ir.Move) -> int:
    """The number of consecutive elements of the last dimension in a worker's consecutive slots."""
    assert move.by is not None
    modes = move.by.slot_modes
    if not modes:
        return 1
    fastest = modes[-1]
    is_run = fastest.dimension == len(move.shape) - 1 and fastest.stride == 1
    return fastest.size if is_run else 1


def _condition_width(condition: ir.Expression, along: ir.Variable, known: Facts) -> int:
    """The number of aligned consecutive values of `along` for which a condition has one outcome."""
    match condition:
        case ir.Binary(operator="and" | "or", left=left, right=right):
            return min(_condition_width(left, along, known), _condition_width(right, along, known))
        case ir.Binary(operator="<" | "<=" | ">=" | ">", left=left, right=right):
            steady = min(steady_width(part, along, 1 << 10, known) for part in (left, right))
            if steady > 1:
                return steady
            # base + along < bound: both multiples of the width, so a run is on one side of the bound.
            if condition.operator in ("<", ">="):
                width = contiguous_width((left,), (0,), along, 1 << 10, known)
                bound = divisor(right, known)
                return min(width, bound & -bound) if bound else width
    return 1 if any(node is along for node in walk(condition)) else 1 << 10


def _copy_refusal(move: ir.Move, target: Target, known: Facts) -> str | None:
    read = plain_read(move)
    if read is None:
        return "is not a plain copy that fills with zeros"
    if read[0].dtype != move.tensor.dtype:
        return "converts its type"
    if not copy_elements(move, target, known):
        return "is not aligned to 4 bytes"
    return None


def _only_tests_bounds(condition: ir.Expression, read: ir.Read) -> bool:
    """Whether the condition only requires the read's indices to be in bounds."""
    match condition:
        case ir.Binary(operator="and", left=left, right=right):
            return _only_tests_bounds(left, read) and _only_tests_bounds(right, read)
        case ir.Binary(operator="<" | "<=" | ">" | ">=" as operator, left=left, right=right):
            if operator in (">", ">="):
                left, right = right, left
            least = 1 if operator in ("<", ">") else 0
            margin = subtract(right, left)  # at least `least`
            return any(
                _implies(one, margin, least)
                for index, extent in zip(read.indices, read.tensor.shape, strict=True)
                for one in (index, subtract(subtract(extent, 1), index))
            )
    return False


def _implies(one: ir.Expression, other: ir.Expression, least: int) -> bool:
    """Whether `other` >= `least` follows if `one` isn't negative; `one` may be a multiple of `other` plus a
    constant.
    """
    form, part = affine(one), affine(other)
    for atom, factor in part.terms.items():
        times, rest = divmod(form.coefficient(atom), factor)
        if rest or times < 1:
            return False
        more = form - affine(multiply(other, times))
        return more.is_constant and -(more.constant // times) >= least
    return False


def _load_refusal(move: ir.Move, known: Facts) -> str | None:
    read = plain_read(move)
    if read is None:
        return "is not a plain copy that fills with zeros"
    source, condition = read
    if source.dtype != move.tensor.dtype:
        return "converts its type"
    pixels = pixels_of(move, source, known)
    if pixels is None:
        return box_refusal(move.tensor, move, source, condition, known)
    if source.tensor.layout is not None:
        return "has a layout of its own"
    return (
        _fill_refusal(source, condition)
        or _line_refusal(move.tensor, move, source, known)
        or misplaced(pixels, source, known)
    )


def box_refusal(
    shared: Tensor,
    move: ir.Move,
    distant: ir.Read,
    condition: ir.Expression | None,
    known: Facts,
) -> str | None:
    """The reason why a bulk copy can't transfer the elements `distant` of a move to or from shared memory.

    condition  outside of which nothing is copied
    """
    if distant.tensor.layout is not None:
        return "has a layout of its own"
    used = [[v for v in move.variables if any(n is v for n in walk(i))] for i in distant.indices]
    steps = [(i, v) for i, variables in zip(distant.indices, used, strict=True) for v in variables]
    is_straight = all(len(variables) <= 1 for variables in used)
    if not is_straight or [v for _, v in steps] != list(move.variables):
        return "is not a box of its tensor"
    if not all(unit_stride(index, v, known) for index, v in steps):
        return "is not a box of its tensor"
    return _fill_refusal(distant, condition) or _line_refusal(shared, move, distant, known)


def _fill_refusal(distant: ir.Read, condition: ir.Expression | None) -> str | None:
    if condition is not None and not _only_tests_bounds(condition, distant):
        return "fills more than what lies outside its tensor"
    return None


def _line_refusal(shared: Tensor, move: ir.Move, distant: ir.Read, known: Facts) -> str | None:
    """The reason why a bulk copy can't transfer the rows, in shared memory and in the tensor."""
    size = shared.dtype.nbytes
    line = line_of(shared)
    if line is None:
        return "goes to shared memory of another layout"
    box = (*move.shape[:-1], line)
    if line * size % 16:
        return "has rows that are not a multiple of 16 bytes"
    if len(distant.indices) > 1 and divisor(distant.tensor.shape[-1], known) * size % 16:
        return "comes from rows that are not a multiple of 16 bytes"
    if prod(box) * size % 128:
        return "takes slots that are not a multiple of 128 bytes"
    if any(extent > BOX_EXTENT for extent in box):
        return f"is wider than {BOX_EXTENT}"
    return None


def common_loads(body: Statement, size: int) -> set[int]:
    """The bulk loads (their ids) that are the same in all `size` blocks of a cluster."""
    grids = all_below(body, ir.Grid)
    if size < 2 or len(grids) != 1:
        return set()
    numbers = _numbers(grids[0])
    lets: dict[Variable, Expression] = {}
    common_ids: set[int] = set()
    for node in walk(grids[0].body):
        if isinstance(node, ir.Let):
            lets[node.variable] = substitute(node.value, lets)
        if isinstance(node, ir.Move) and node.how == "tma" and node.tensor.scope == ir.SHARED:
            rows = node.shape[0]
            value = _of_clusters(substitute(node.value, lets), grids[0], numbers, size)
            if value and len(node.shape) == 2 and rows % (ATOM * size) == 0:
                common_ids.add(id(node))
    return common_ids


def _numbers(grid: ir.Grid) -> set[Variable]:
    """Variables that count blocks or tiles: consecutive numbers belong to one cluster."""
    loops = {
        node.variable
        for node in walk(grid.body)
        if isinstance(node, ir.For) and node.start in grid.variables
    }
    return {*grid.variables, *loops} if grid.by == (1,) else set()


def _of_clusters(value: Expression, grid: ir.Grid, numbers: set[Variable], size: int) -> bool:
    """Whether a value depends on blocks and tiles only through the cluster's number."""
    cluster = Variable("cluster")

    def visit(node: Expression) -> Expression:
        match node:
            case ir.Binary(operator="//", left=Variable() as number, right=ir.Constant(value=by)):
                if number in numbers and by == size:
                    return cluster
        return map_children(node, visit)

    used = {node for node in walk(visit(value)) if isinstance(node, Variable)}
    if numbers:
        return used.isdisjoint(numbers)
    differing = {v for v, by in zip(grid.variables, grid.cluster, strict=True) if by > 1}
    return prod(grid.cluster) == size and used.isdisjoint(differing)


def multicast(load: ir.Do, rank: Expression, size: int) -> ir.Do:
    """The part of a bulk load that the block of a rank does for all: some of the rows of its box."""
    shared, distant, full, *extents = load.operands
    assert isinstance(shared, ir.Address)
    assert isinstance(distant, ir.Address)
    *_, box_rows, columns = extents
    assert isinstance(box_rows, ir.Constant)
    rows = int(box_rows.value) // size
    first = multiply(rank, rows)
    *outer, row, column = shared.indices
    shared = replace(shared, indices=(*outer, add(row, first), column))
    *outer, row, column = distant.indices
    distant = replace(distant, indices=(*outer, add(row, first), column))
    everyone = index((1 << size) - 1)
    boxes = (*extents[:-2], index(rows), columns)
    return replace(
        load, operation="tma.load.multicast", operands=(shared, distant, full, everyone, *boxes)
    )


def arrivals(empty: ir.Address, number: Expression, size: int, group: int) -> Statement:
    """The arrival of a group of readers in each block of the cluster, by the worker with the rank's number."""
    loc = empty.loc
    peer = replace(empty.tensor, name=f"peer_{empty.tensor.name}", offset=None)
    worker = modulo(number, group)
    there = ir.Do(RELEASE, (replace(empty, tensor=peer), less(worker, size)), loc=loc)
    rank = modulo(worker, size)
    return ir.Sequence((ir.Peer(peer, empty.tensor, rank, loc=loc), there), loc=loc)


def together(loc: Location) -> list[Statement]:
    """A barrier of all workers of a cluster."""
    return [ir.Do(f"cluster.{what}", (), loc=loc) for what in ("arrive", "wait")]
