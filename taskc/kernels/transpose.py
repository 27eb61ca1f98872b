"""The axes of a tensor in any other order.

A `Problem` is what is computed, a plan how. The algorithms, one after the other below:

rows     where the last axis stays last: rows are copied
squares  on processors: squares of as many rows as there are lanes, turned in registers
tiles    on GPUs: small squares turned in registers, whose rows are exchanged through shared memory
runs     on GPUs: short rows that end within an access, taken as one run
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, gcd, prod
from typing import Any

import taskc as tc
from taskc import (
    CompileError,
    DType,
    KernelDefinition,
    Machine,
    Mapping,
    TensorType,
    auto_map,
    boolean,
    f32,
    repeat,
    spatial,
)
from taskc.dataclass import dataclass
from taskc.kernels.machine_facts import GPU, PROCESSOR, seconds_of_bytes
from taskc.kernels.operator import KernelOperator, operator
from taskc.kernels.owners import boxes_of, owners_of_boxes, power, width
from taskc.kernels.signatures import Function, Value, Values, known
from taskc.programs.schedule import columns, lines, quarters

__all__ = ["Problem", "Rows", "Runs", "Squares", "Tiles", "build", "transpose"]


def transpose(
    shape: Sequence[Any],
    order: Sequence[int] | None = None,
    *,
    dtype: DType = f32,
    machine: Machine | None = None,
) -> KernelDefinition:
    """y's axis number k is x's axis order[k]; by default the axes are reversed."""
    return TRANSPOSE(**locals())


# --- What a transpose computes, and which four axes its blocks go through, whichever algorithm does it
# Axes that stay together are joined. If more than four are left, all but the last of the input and that of the output
# are counted by one number.


RANK = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """y is x with its axes in another order.

    given, made  the types of x and y
    order    which axis of x is each of y's
    extents  of the four axes that blocks go through
    across   which of them the output ends with; the input ends with the last
    digits   for each axis of x: of which of the four numbers its index is a digit, of what size, and below what
             limit, if there is one; none where the four are x's axes
    """

    given: TensorType
    made: TensorType
    order: tuple[int, ...]
    extents: tuple[Any, ...]
    across: int
    digits: tuple[tuple[int, int, int], ...] = ()

    @property
    def dtype(self) -> DType:
        return self.given.dtype

    @property
    def wide(self) -> DType:
        """The type of what is turned in registers."""
        return self.dtype

    @property
    def outside(self) -> Any:
        """The value in place of elements behind an edge."""
        return False if self.dtype is boolean else 0

    @property
    def source(self) -> Function:
        """The indices of x, from those of the four axes."""

        @tc.function
        def source(place: Values) -> Any:
            return (
                (*[_digit(place[at], size, n) for at, size, n in self.digits],)
                if self.digits
                else place
            )

        return source

    @property
    def target(self) -> Function:
        """The indices of y."""
        source = self.source

        @tc.function
        def target(place: Values) -> Values:
            there = source(place)
            return (*[there[axis] for axis in self.order],)

        return target

    @property
    def replaced(self) -> Function:
        """Indices of the four axes, with another one in the axis `across`."""

        @tc.function
        def replaced(a: Value, b: Value, c: Value, row: Value, col: Value) -> Values:
            return (
                row if self.across == 0 else a,
                row if self.across == 1 else b,
                row if self.across == 2 else c,
                col,
            )

        return replaced


@tc.function
def _digit(number: Value, size: Value, extent: Value) -> Value:
    """A digit of a number: the first has no others before it, the last none behind it."""
    upper = number // size if size > 1 else number
    return upper % extent if extent else upper


def problem_of(shape: Sequence[Any], order: Sequence[int] | None, dtype: DType) -> Problem:
    """Check options and complete them: the problem of a user's call."""
    wanted = tuple(range(len(shape))[::-1] if order is None else order)
    given, places = joined(shape, wanted)
    made = tuple([given[axis] for axis in places])
    across, last = places[-1], len(given) - 1
    extents: tuple[Any, ...] = given
    digits: tuple[tuple[int, int, int], ...] = ()
    if len(given) > RANK:
        extents, digits = _counted(shape, wanted, given, across)
        across = RANK - 1 if across == last else RANK - 2
    return Problem(
        given=dtype[tuple(shape)].reshape(*given),
        made=dtype[tuple([shape[axis] for axis in wanted])].reshape(*made),
        order=places,
        extents=extents,
        across=across,
        digits=digits,
    )


def joined(shape: Sequence[Any], order: Sequence[int]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """The extents of at least four axes, neighbours that stay together being one, and their new order."""
    rank = len(shape)
    if sorted(axis % rank if -rank <= axis < rank else rank for axis in order) != [*range(rank)]:
        raise CompileError(f"{tuple(order)} is no order of the axes of {tuple(shape)}")
    wanted = [axis % rank for axis in order]
    wanted = [axis for axis in wanted if not (isinstance(shape[axis], int) and shape[axis] == 1)]
    runs: list[list[int]] = []
    for axis in wanted:
        follows = bool(runs) and not [n for n in wanted if runs[-1][-1] < n < axis]
        if follows and axis > runs[-1][-1]:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    missing = max(0, RANK - len(runs))
    sources = sorted(runs)
    extents = [prod(shape[axis] for axis in run) for run in sources]
    places = (*range(missing), *[missing + sources.index(run) for run in runs])
    return (*[1] * missing, *extents), places


def _counted(
    shape: Sequence[Any], wanted: Sequence[int], given: tuple[Any, ...], across: int
) -> tuple[tuple[Any, ...], tuple[tuple[int, int, int], ...]]:
    """Four extents, one of which counts the axes that neither side ends with; and each axis' digit."""
    last = len(given) - 1
    if not all(isinstance(extent, int) for extent in given):
        raise CompileError(
            f"the order {tuple(wanted)} takes the axes of {tuple(shape)} apart too often",
            hint=f"with neighbours joined, {len(given)} are left, and {RANK} is the limit where"
            " their extents aren't known",
        )
    digits: list[tuple[int, int, int]] = []
    count = 1
    for axis in range(last, -1, -1):
        if axis in (across, last):
            digits.insert(0, (RANK - 1 if axis == last else RANK - 2, 0, 0))
        else:
            is_first = not set(range(axis)) - {across}
            digits.insert(0, (RANK - 3, max(1, count), 0 if is_first else max(1, given[axis])))
            count *= given[axis]
    height = 1 if across == last else given[across]
    return (1, count, height, given[last]), tuple(digits)


# --- How a transpose is computed, as data. A plan's type is its algorithm -----------------------


@dataclass(frozen=True, slots=True)
class Rows:
    """own  who has which elements of a block, where rows stay rows"""

    own: Mapping

    def cost(self, problem: Problem, machine: Machine) -> float:
        return _seconds(problem, machine)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Rows]:
        wide = width(problem.extents[-1], problem.dtype)
        for accesses in (1, 2, 4, 8):
            yield Rows(boxes_of(problem.extents, wide, machine, accesses))


@dataclass(frozen=True, slots=True)
class Squares:
    """On processors: a block has tall x wide squares of lanes x lanes elements."""

    lanes: int
    tall: int
    wide: int

    def cost(self, problem: Problem, machine: Machine) -> float:
        return _seconds(problem, machine)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Squares]:
        sides = (1, 2, 4, 8, 16, 32)
        for tall in {self.tall, *(n for n in sides if n <= self.tall)}:
            for wide in {self.wide, *(n for n in sides if n <= self.wide)}:
                yield replace(self, tall=tall, wide=wide)


@dataclass(frozen=True, slots=True)
class Tiles:
    """On GPUs: a worker has repeats squares of side x side elements, and workers lie down and across."""

    side: int
    repeats: tuple[int, int]
    workers: tuple[int, int]

    def cost(self, problem: Problem, machine: Machine) -> float:
        """Accesses of less than half the widest one don't fill memory."""
        wanted = GPU.access_bytes / 2
        return _seconds(problem, machine) * max(1, wanted / (self.side * problem.dtype.nbytes))

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Tiles]:
        for most, repeats in ((8, 1), (8, 2), (8, 4), (16, 1), (16, 2), (32, 1)):
            yield _tiles(problem, machine, self.side, most, repeats)


@dataclass(frozen=True, slots=True)
class Runs:
    """On GPUs: so many short rows, which end within an access, are one run of memory; `is_read`: of x, else of y."""

    rows: int
    is_read: bool

    def cost(self, problem: Problem, machine: Machine) -> float:
        return _seconds(problem, machine)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Runs]:
        for rows in (16, 32, 128):
            if rows * problem.dtype.nbytes >= GPU.access_bytes:
                yield replace(self, rows=rows)


def candidates(problem: Problem, machine: Machine) -> Iterator[Rows | Squares | Tiles | Runs]:
    height, broad = problem.extents[problem.across], problem.extents[-1]
    if problem.across == RANK - 1:
        wide = width(problem.extents[-1], problem.dtype)
        yield Rows(owners_of_boxes(problem.extents, wide, machine))
    elif machine.is_processor:
        lanes = max(4, machine.lanes)
        yield Squares(lanes, _squares(height, lanes), _squares(broad, lanes))
    else:
        yield from _runs(problem)
        side = gcd(width(height, problem.dtype), width(broad, problem.dtype), GPU.square_side)
        yield _tiles(problem, machine, side, *((16, 1) if side >= 4 else (8, 4)))


def _squares(extent: Any, lanes: int) -> int:
    most = PROCESSOR.transposed_squares
    return max(1, min(most, ceil(extent / lanes))) if isinstance(extent, int) else most


def _tiles(problem: Problem, machine: Machine, side: int, most: int, repeats: int) -> Tiles:
    """`most` workers go down, unless the rows are short, and each has so many squares."""
    rows, columns = (
        power(ceil(extent / side)) if isinstance(extent, int) else GPU.block_workers
        for extent in (problem.extents[problem.across], problem.extents[-1])
    )
    down = min(rows, max(most, GPU.block_workers // columns))
    across = min(columns, GPU.block_workers // down)
    down = max(down, machine.lanes // across)
    if rows >= down * repeats:
        return Tiles(side, (repeats, 1), (down, across))
    return Tiles(side, (1, max(1, min(repeats, columns // across))), (down, across))


def _runs(problem: Problem) -> Iterator[Runs]:
    """Plans that exchange the last two of four axes, where one side has short rows and the other whole accesses."""
    *_, height, broad = problem.given.shape
    is_known = isinstance(height, int) and isinstance(broad, int)
    if problem.order != (0, 1, 3, 2) or not is_known:
        return
    for short, other in ((broad, height), (height, broad)):
        if _are_short(short, problem.dtype) and _are_whole(other, problem.dtype):
            yield Runs(GPU.run_rows, is_read=short is broad)


def _are_short(extent: int, dtype: DType) -> bool:
    return width(extent, dtype) * dtype.nbytes < GPU.access_bytes // 2 and (
        0 < GPU.run_rows * extent * dtype.nbytes <= GPU.longest_run_bytes
    )


def _are_whole(extent: int, dtype: DType) -> bool:
    return extent > 0 and extent * dtype.nbytes % GPU.access_bytes == 0


def _seconds(problem: Problem, machine: Machine) -> float:
    """As long as memory takes for each element twice."""
    elements = prod(known(n) for n in problem.extents)
    return seconds_of_bytes(2 * elements * problem.dtype.nbytes, machine)


# --- Transposes whose last axis stays last: rows are copied -------------------------------------


def rows(problem: Problem, plan: Rows) -> KernelDefinition:
    given, made, seen, own = problem.given, problem.made, problem.extents, plan.own
    source, target = problem.source, problem.target

    @tc.kernel(workers=own.workers)
    def transpose(x: tc.typed[given], y: tc.out[made]) -> None:
        for i, j, k, col in tc.tiles(seen, by=own.shape):
            for p, q, r, s in own:
                if i + p < seen[0] and j + q < seen[1] and k + r < seen[2] and col + s < seen[3]:
                    place = i + p, j + q, k + r, col + s
                    y[target(place)] = x[source(place)]

    return transpose


# --- Transposes on processors: the last axis of the input and that of the output span squares of as many rows as there
# are lanes, each of which is turned in registers. The squares of a block share their cache lines on both sides.


def squares(problem: Problem, plan: Squares) -> KernelDefinition:
    given, made, seen, across = problem.given, problem.made, problem.extents, problem.across
    source, target, replaced = problem.source, problem.target, problem.replaced
    lanes, (height, width) = plan.lanes, (seen[across], seen[-1])
    by = [1] * RANK
    by[across], by[-1] = plan.tall * lanes, plan.wide * lanes

    @tc.kernel(workers=lanes)
    def transpose(x: tc.typed[given], y: tc.out[made]) -> None:
        for a, b, c, d in tc.tiles(seen, by=by):
            for p in range(plan.tall):
                for q in range(plan.wide):
                    square = tc.shared(problem.dtype[lanes, lanes])
                    row, col = (a, b, c)[across] + p * lanes, d + q * lanes
                    if row + lanes > height or col + lanes > width:
                        for i, j in lines(lanes):
                            square[i, j] = problem.outside
                    for i, j in lines(lanes):
                        if row + i < height and col + j < width:
                            square[i, j] = x[source(replaced(a, b, c, row + i, col + j))]
                    part = quarters(square)
                    for c1, c0, r1, r0 in columns(lanes):
                        if row + 4 * r1 + r0 < height and col + 4 * c1 + c0 < width:
                            place = replaced(a, b, c, row + 4 * r1 + r0, col + 4 * c1 + c0)
                            y[target(place)] = part[c0, r1, c1, r0]

    return transpose


# --- Transposes on GPUs by squares --------------------------------------------------------------
# Each worker turns small squares in its registers, as wide as an access, and exchanges their rows with the others
# through shared memory.


def tiles(problem: Problem, plan: Tiles, machine: Machine) -> KernelDefinition:
    given, made, seen, across = problem.given, problem.made, problem.extents, problem.across
    source, target, replaced = problem.source, problem.target, problem.replaced
    dtype, side, (height, broad) = problem.dtype, plan.side, (seen[across], seen[-1])
    read = repeat(*plan.repeats) * spatial(*plan.workers) * repeat(side, side)
    # The same workers, with rows for columns.
    transposed = (
        repeat(*plan.repeats[::-1])
        * spatial(*plan.workers[::-1], order=(1, 0))
        * repeat(side, side)
    )
    (tall, wide), count = read.shape, read.workers
    lanes = min(count, tall // side)
    written = repeat(wide * lanes // count, tall // (side * lanes)) * (
        spatial(count // lanes, lanes) * repeat(1, side)
    )
    by = [1] * RANK
    by[across], by[-1] = tall, wide
    # Neighbours among the columns lie in different groups of rows. Where several are read at one time, some room
    # behind each group has them lie in different banks.
    groups = wide // side
    at_once = min(machine.lanes, GPU.bank_bytes // (side * dtype.nbytes)) // lanes
    if at_once > 1 and groups > at_once // side:
        groups += max(1, at_once // side)

    @tc.kernel(workers=count)
    def transpose(x: tc.typed[given], y: tc.out[made]) -> None:
        for a, b, c, d in tc.tiles(seen, by=by):
            row = (a, b, c)[across]
            squares = tc.tile(dtype, read, problem.outside)
            for i, j in read:
                if row + i < height and d + j < broad:
                    squares[i, j] = x[source(replaced(a, b, c, row + i, d + j))]
            # Neighbouring workers are `side` columns apart, which spreads them over all banks.
            columns = tc.shared(dtype[side, groups, tall])
            for j, i in transposed:
                columns[j % side, j // side, i] = squares[i, j]
            for j, i in written:
                if row + i < height and d + j < broad:
                    place = replaced(a, b, c, row + i, d + j)
                    y[target(place)] = columns[j % side, j // side, i]

    return transpose


# --- Matrices turned on GPUs that have short rows on one side, which end within an access: an image's 49 pixels
# Rows beside each other are one run of memory, which whole accesses take as it lies. A run goes through shared
# memory, where each element is found by its row; the other side is read or written by rows of its own.


def runs(problem: Problem, plan: Runs) -> KernelDefinition:
    return (_read_as_runs if plan.is_read else _written_as_runs)(problem, plan.rows)


def _in_runs(type: TensorType) -> TensorType:
    first, second, height, broad = type.shape
    return type.reshape(first, second, height * broad)


def _pieces(count: int, broad: int, dtype: DType) -> tuple[Mapping, Mapping]:
    """Who has which part of a run of so many rows, and of the same rows turned."""
    vector = GPU.access_bytes // dtype.nbytes
    run = auto_map((count * broad,), workers=GPU.block_workers, vector=vector)
    across = count // vector
    down = GPU.block_workers // across
    return run, repeat(ceil(broad / down), 1) * spatial(down, across) * repeat(1, vector)


def _read_as_runs(problem: Problem, count: int) -> KernelDefinition:
    dtype, made = problem.dtype, problem.made
    height, broad = problem.given.shape[2:]
    run, transposed = _pieces(count, broad, dtype)
    given = _in_runs(problem.given)

    @tc.kernel(workers=GPU.block_workers)
    def transpose(x: tc.typed[given], y: tc.out[made]) -> None:
        for a, b, p, row in tc.tiles(made.shape, by=(1, 1, broad, count)):
            rows = tc.shared(dtype[count * broad])
            for e in run:
                if row * broad + e < height * broad:
                    rows[e] = x[a, b, row * broad + e]
            part = tc.tile(dtype, transposed, problem.outside)
            for j, i in transposed:
                if row + i < height and j < broad:
                    part[j, i] = rows[i * broad + j]
            for j, i in transposed:
                if row + i < height and j < broad:
                    y[a, b, p + j, row + i] = part[j, i]

    return transpose


def _written_as_runs(problem: Problem, count: int) -> KernelDefinition:
    dtype, given = problem.dtype, problem.given
    height, broad = given.shape[2:]
    run, transposed = _pieces(count, height, dtype)
    made = _in_runs(problem.made)

    @tc.kernel(workers=GPU.block_workers)
    def transpose(x: tc.typed[given], y: tc.out[made]) -> None:
        for a, b, first in tc.tiles(made.shape, by=(1, 1, count * height)):
            rows = tc.shared(dtype[count * height])
            part = tc.tile(dtype, transposed, problem.outside)
            for i, j in transposed:
                if i < height and first // height + j < broad:
                    part[i, j] = x[a, b, i, first // height + j]
            for i, j in transposed:
                if i < height:
                    rows[j * height + i] = part[i, j]
            for e in run:
                if first + e < height * broad:
                    y[a, b, first + e] = rows[e]

    return transpose


TRANSPOSE: KernelOperator[Problem, Rows | Runs | Squares | Tiles, KernelDefinition] = operator(
    "transpose", problem_of, candidates, {Rows: rows, Runs: runs, Squares: squares, Tiles: tiles}
)
build = TRANSPOSE.build
