"""Moves and products for which an instruction was selected become operations of the target.

An asynchronous product is one instruction for each fragment and step of k:

    mma acc += sa[slot, 0, 0].as(128, 64) @ sb[slot, 0, 0].as(64, 128) onto p > 0
        how=wgmma.m64n128k16.bf16
->
    for kk in range(0, 64, 16) unroll:
        do wgmma.m64n128k16.bf16(
            &acc[0], &sa[slot, worker // 128 * 64, kk], &sb[slot, kk, 0], p > 0 or kk > 0, 0, 1)

An operand in shared memory is given by the first element of its fragment, the same for the whole
warpgroup, and by whether its tensor stores it transposed. Registers are given as for other matrices.

Products on tile registers load and store their fragments:

    mma acc += a[row, 0].as(32, 512) @ sb[0, 0].as(512, 32) how=tdpbssd
->
    do tdpbssd.load(0, &acc[0])                      four fragments of 16 by 16
    do tdpbssd.load(1, &acc[16])
    ...
    for kk in range(0, 512, 64):
        do tdpbssd.left(4, &a[row, kk], 512, 0)
        do tdpbssd.left(5, &a[row + 16, kk], 512, 0)
        do tdpbssd.right(6, &sb[kk, 0], 128, 0)
        do tdpbssd.right(7, &sb[kk, 16], 128, 0)
        do tdpbssd(0, 4, 6)
        do tdpbssd(1, 4, 7)
        ...
    do tdpbssd.store(0, &acc[0])
    ...

Between products the accumulator is in its owners' registers, like any tile. Its fragments go through k in groups,
as large as leave a tile for each of their rows and columns.

A worker's own instruction multiplies a pack of a row and one of a column:

    mma acc += a[row, 0].as(8, 64) @ sb[0, 0].as(64, 48) how=vpdpbusd.i8
->
    tile sums: i32[1, 48] by (own without its rows) = 0
    for kk in range(0, 64, 4):
        each (i, j) in (own without its rows):
            do vpdpbusd.i8.sums(&sums[i, j], &sb[kk, j], 0)
        each (i, j) in own:
            do vpdpbusd.i8(&acc[i, j], &a[row + i, kk], &sb[kk, j], 0, 0)
    each (i, j) in own:
        acc[i, j] = acc[i, j] - sums[0, j]

The sums are needed if the instruction adds an offset to the left operand: they are one more row of the
accumulator, whatever the number of its rows. If a loop multiplies one right operand by many left ones,
the sums are computed before it.

In a move of a whole matrix, each lane names a line of shared memory, and holds registers from a slot on:

    move left[i, q] = sa[i, kk + q] for (i, q) in (32, 16) by spatial(2, 1) * left fragment how=ldmatrix.x4
->
    do ldmatrix.x4(&left[0], &sa[worker // 32 * 16 + worker // 8 % 2 * 8 + worker % 8, kk + worker // 16 % 2 * 8])

An asynchronous copy is one operation of each worker:

    move sa[slot, i, q] = select(ok, a[row + i, p + q], 0.0) for (i, q) in (64, 32) by ... how=cp.async
->
    each (i, q) in by, every 4th slot:
        cp.async(&sa[slot, i, q], &a[row + i, p + q], 4, ok)
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from itertools import product

from taskc.analysis.facts import Facts
from taskc.dataclass import dataclass
from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.ir.build import TRUE, ZERO, add, floor_divide, index, multiply
from taskc.ir.fragments import (
    LINE_BYTES,
    axis_along,
    line_namers,
    memory_side,
    pack_step,
    quotient_of,
    tile_pitch,
    without_dimension,
)
from taskc.ir.mapping import Mapping, auto_map, repeat
from taskc.ir.mapping_forms import Mode
from taskc.ir.nodes import GLOBAL, SHARED, TILE, Expression, Statement, Tensor, Variable
from taskc.ir.operations import PACK, SUMS, TILE_LEFT, TILE_LOAD, TILE_RIGHT, TILE_STORE
from taskc.ir.rewrite import all_below, substitute, walk
from taskc.ir.target import (
    DotInstruction,
    MatrixMove,
    Target,
    TileInstruction,
    WarpgroupInstruction,
    WarpInstruction,
)
from taskc.passes.register_slots import composed_tasks, trip_number
from taskc.passes.transports import copy_elements, plain_read


def matrix_move(move: ir.Move, row: MatrixMove, number: Expression, registers: Tensor) -> Statement:
    """The instruction of a move; `number` is the worker's, `registers` are those of the tile."""
    side = memory_side(move)
    assert side is not None
    assert move.by is not None
    tensor, indices = side
    axis = axis_along(indices, move.variables)
    assert axis is not None
    namers = line_namers(move.by, axis, row, tensor)
    assert namers is not None
    line = tuple(
        LINE_BYTES // tensor.dtype.nbytes if dimension == axis else 1 for dimension in (0, 1)
    )
    trips, tasks, _ = composed_tasks(namers / repeat(*line), number)
    at = {
        variable: multiply(task, extent)
        for variable, task, extent in zip(move.variables, tasks, line, strict=True)
    }
    slot = multiply(trip_number(trips), row.count * row.fragment(tensor.dtype).slots)
    memory = ir.Address(tensor, tuple(substitute(i, at) for i in indices), loc=move.loc)
    places = ir.Address(registers, (slot,), loc=move.loc), memory
    statement: Statement = ir.Do(row.name, places if row.is_load else places[::-1], loc=move.loc)
    for variable, trip in reversed(trips):
        statement = ir.For(variable, ZERO, index(len(trip)), 1, statement, "unroll", loc=move.loc)
    return statement


def asynchronous_copy(move: ir.Move, target: Target, known: Facts) -> tuple[ir.Each, int]:
    """The mapping loop of a move by cp.async, and the number of consecutive slots that one copy takes."""
    read = plain_read(move)
    assert read is not None
    assert move.by is not None
    source, condition = read
    count = copy_elements(move, target, known)
    copy = ir.Do(
        "cp.async",
        (
            ir.Address(move.tensor, move.indices),
            ir.Address(source.tensor, source.indices),
            index(count),
            TRUE if condition is None else condition,
        ),
        loc=move.loc,
    )
    return ir.Each(move.variables, move.by, None, copy, loc=move.loc), count


def in_packs(move: ir.Move, workers: int) -> ir.Move | None:
    """A move into shared memory in packs of 4 bytes, by whole packs; None for other layouts."""
    tensor, pack = move.tensor, 4 // move.tensor.dtype.nbytes
    if tensor.scope != SHARED or tensor.layout is None or pack < 2 or move.guard is not None:
        return None
    for dimension in (-2, -1):
        along = move.indices[dimension]
        if pack_step(tensor, dimension, pack) != pack or along not in move.variables:
            continue
        number = move.variables.index(along)
        packs = [n // pack if k == number else n for k, n in enumerate(move.shape)]
        if move.shape[number] % pack or any(
            index is not along and any(node is along for node in walk(index))
            for index in move.indices
        ):
            continue
        whole = repeat(*(pack if k == number else 1 for k in range(len(packs))))
        cover = auto_map(packs, workers=workers)
        assert cover.worker_modes is not None
        assert cover.slot_modes is not None
        by = Mapping.from_modes(cover.shape, cover.worker_modes, cover.slot_modes) * whole
        by = by if by.shape == move.shape else by.within(*move.shape)
        return replace(move, by=by, how=PACK)
    return None


def packed_store(move: ir.Move) -> tuple[ir.Each, int]:
    """The mapping loop of such a move, and the number of consecutive slots that one store takes."""
    pack = 4 // move.tensor.dtype.nbytes
    dimension = -2 if pack_step(move.tensor, -2, pack) == pack else -1
    along = move.indices[dimension]
    assert isinstance(along, Variable)
    values = [substitute(move.value, {along: add(along, q)}) for q in range(pack)]
    store = ir.Do(
        PACK,
        (ir.Address(move.tensor, move.indices), index(dimension + 2), *values),
        loc=move.loc,
    )
    assert move.by is not None
    return ir.Each(move.variables, move.by, None, store, loc=move.loc), pack


def matrix_instruction(
    mma: ir.Mma, row: WarpInstruction, accumulator: Tensor, left: Tensor, right: Tensor
) -> Statement:
    """One instruction for each fragment of the accumulator that a worker shares.

    Fragments are the innermost factors of all three mappings: each one's registers are consecutive.
    A tile of more steps of k has those of one line, or column, of fragments one after the other.
    """
    assert mma.accumulator.owners is not None
    quotient = mma.accumulator.owners / row.accumulator_fragment
    assert quotient.slot_modes is not None
    trips = [Variable(f"f{k}", loc=mma.loc) for k in range(len(quotient.slot_modes))]

    def first_slot(tensor: Tensor, dimension: int | None, fragment: Mapping) -> ir.Address:
        number = digits_number(quotient.slot_modes or (), trips, dimension)
        if dimension is not None:
            operand = (mma.left, mma.right)[dimension]
            extent, start = operand.tensor.shape[1 - dimension], operand.origin[1 - dimension]
            assert isinstance(extent, int)
            steps = extent // row.shape[2]
            number = add(multiply(number, steps), floor_divide(start, row.shape[2]))
        return ir.Address(tensor, (multiply(number, fragment.slots),), loc=mma.loc)

    statement: Statement = ir.Do(
        row.name,
        (
            first_slot(accumulator, None, row.accumulator_fragment),
            first_slot(left, 0, row.left_fragment),
            first_slot(right, 1, row.right_fragment),
        ),
        loc=mma.loc,
    )
    for mode, variable in reversed(list(zip(quotient.slot_modes, trips, strict=True))):
        statement = ir.For(
            variable, index(0), index(mode.size), 1, statement, "unroll", loc=mma.loc
        )
    return statement


def digits_number(
    modes: tuple[Mode, ...], trips: list[Variable], dimension: int | None
) -> Expression:
    """The number with the digits of one dimension: of a fragment, for None, or of its row or column."""
    number: Expression = ZERO
    for mode, variable in zip(modes, trips, strict=True):
        if dimension is None or mode.dimension == dimension:
            number = add(multiply(number, mode.size), variable)
    return number


def asynchronous_product(
    mma: ir.Mma,
    row: WarpgroupInstruction,
    number: Expression,
    accumulator: Tensor,
    left: Tensor | None,
) -> Statement:
    """The instructions of a product; `number` is the worker's, `accumulator` and `left` are its registers (None:
    memory).
    """
    assert mma.accumulator.owners is not None
    quotient = quotient_of(mma.accumulator.owners, row)
    assert quotient is not None
    assert quotient.slot_modes is not None
    m, n, k = row.shape
    steps = mma.left.shape[1] // k
    kk = Variable("kk", multiple=k, loc=mma.loc)
    depth: Expression = kk if steps > 1 else ZERO
    trips, tasks, _ = composed_tasks(quotient, floor_divide(number, row.group))
    variables = [variable for variable, _ in trips]
    fragment = digits_number(quotient.slot_modes, variables, None)
    if left is None:
        left_place = operand_place(mma.left, multiply(tasks[0], m), depth, mma)
    else:
        line = digits_number(quotient.slot_modes, variables, 0)
        step = add(multiply(line, steps), floor_divide(depth, k))
        left_place = ir.Address(left, (multiply(step, row.left_fragment.slots),), loc=mma.loc)
    accumulate = TRUE if mma.accumulate is None else mma.accumulate
    if steps > 1 and accumulate != TRUE:
        accumulate = ir.Binary("or", accumulate, ir.Binary(">", kk, ZERO), loc=mma.loc)
    statement: Statement = ir.Do(
        row.name,
        (
            ir.Address(
                accumulator, (multiply(fragment, row.accumulator_fragment.slots),), loc=mma.loc
            ),
            left_place,
            operand_place(mma.right, depth, multiply(tasks[1], n), mma),
            accumulate,
            index(int(mma.left.transposed)),
            index(int(mma.right.transposed)),
        ),
        loc=mma.loc,
    )
    for variable, trip in reversed(trips):
        statement = ir.For(variable, ZERO, index(len(trip)), 1, statement, "unroll", loc=mma.loc)
    if steps > 1:
        statement = ir.For(kk, ZERO, index(steps * k), k, statement, "unroll", loc=mma.loc)
    return statement


def operand_place(
    operand: ir.Operand, row: Expression, column: Expression, mma: ir.Mma
) -> ir.Address:
    """The address of the product's element (row, column)."""
    if operand.transposed:
        row, column = column, row
    *outer, first, second = operand.origin
    return ir.Address(operand.tensor, (*outer, add(first, row), add(second, column)), loc=mma.loc)


@dataclass(frozen=True, slots=True)
class _Fragment:
    """`slot` is its first register; row and column count fragments from the worker's first one."""

    slot: int
    row: int
    column: int


def tile_products(
    mma: ir.Mma, row: TileInstruction, number: Expression, accumulator: Tensor
) -> Statement:
    """The operations of a product; `number` is the worker's, `accumulator` are its registers."""
    assert mma.accumulator.owners is not None
    quotient = quotient_of(mma.accumulator.owners, row)
    assert quotient is not None
    assert quotient.slot_modes is not None
    trips, tasks, _ = composed_tasks(quotient, floor_divide(number, row.group))
    first = [substitute(task, {variable: ZERO for variable, _ in trips}) for task in tasks]
    # The distance from fragment to fragment: the contribution of a worker's slots to its tasks.
    places = [
        tuple(
            sum(
                digit * mode.stride
                for digit, mode in zip(digits, quotient.slot_modes, strict=True)
                if mode.dimension == dimension
            )
            for dimension in (0, 1)
        )
        for digits in product(*(range(len(trip)) for _, trip in trips))
    ]
    slots = row.accumulator_fragment.slots
    fragments = [_Fragment(n * slots, i, j) for n, (i, j) in enumerate(places)]
    statements: list[Statement] = []
    for rows, columns in _groups(fragments, row.tiles):
        part = [f for f in fragments if f.row in rows and f.column in columns]
        statements += _group(mma, row, accumulator, part, rows, columns, first)
    return ir.Sequence(tuple(statements), loc=mma.loc)


def _groups(fragments: Sequence[_Fragment], tiles: int) -> Iterator[tuple[list[int], list[int]]]:
    """The rows and columns of fragments that go through k together."""
    rows = sorted({fragment.row for fragment in fragments})
    columns = sorted({fragment.column for fragment in fragments})
    sizes = (
        (m, n)
        for m, n in product(range(1, len(rows) + 1), range(1, len(columns) + 1))
        if m * n + m + n <= tiles
    )
    tall, wide = max(sizes, key=lambda size: (size[0] * size[1] / sum(size), size))
    for i, j in product(range(0, len(rows), tall), range(0, len(columns), wide)):
        yield rows[i : i + tall], columns[j : j + wide]


def _group(
    mma: ir.Mma,
    row: TileInstruction,
    accumulator: Tensor,
    fragments: Sequence[_Fragment],
    rows: list[int],
    columns: list[int],
    first: Sequence[Expression],
) -> list[Statement]:
    m, n, k = row.shape
    loc = mma.loc
    kk = Variable("kk", multiple=k, loc=loc)
    lefts = {r: len(fragments) + i for i, r in enumerate(rows)}
    rights = {c: len(fragments) + len(rows) + i for i, c in enumerate(columns)}

    def do(operation: str, *operands: Expression) -> Statement:
        return ir.Do(row.name + operation, operands, loc=loc)

    def registers(fragment: _Fragment) -> Expression:
        return ir.Address(accumulator, (index(fragment.slot),), loc=loc)

    def pitch(operand: ir.Operand) -> Expression:
        found = tile_pitch(operand, row, (0, 0), is_left=operand is mma.left)
        if found is None:
            raise InternalError(f"{operand.tensor} does not lie as {row.name} takes it")
        return index(found)

    steps: list[Statement] = []
    for r, tile in lefts.items():
        line = add(multiply(first[0], m), r * m)
        place = operand_place(mma.left, line, kk, mma)
        flag = index(int(mma.left.transposed))
        steps.append(do(TILE_LEFT, index(tile), place, pitch(mma.left), flag))
    for c, tile in rights.items():
        line = add(multiply(first[1], n), c * n)
        place = operand_place(mma.right, kk, line, mma)
        flag = index(int(mma.right.transposed))
        steps.append(do(TILE_RIGHT, index(tile), place, pitch(mma.right), flag))
    for tile, f in enumerate(fragments):
        steps.append(do("", index(tile), index(lefts[f.row]), index(rights[f.column])))
    body = ir.Sequence(tuple(steps), loc=loc)
    return [
        *(do(TILE_LOAD, index(t), registers(f)) for t, f in enumerate(fragments)),
        ir.For(kk, ZERO, index(mma.left.shape[1]), k, body, loc=loc),
        *(do(TILE_STORE, index(t), registers(f)) for t, f in enumerate(fragments)),
    ]


def dot_products(mma: ir.Mma, row: DotInstruction, sums: Tensor | None) -> Statement:
    """The product as mapping loops, which are still to be lowered; `sums` if they are computed before it."""
    accumulator, loc = mma.accumulator, mma.loc
    assert accumulator.owners is not None
    flags = index(int(mma.left.transposed)), index(int(mma.right.transposed))
    kk = _depth(mma, row)

    def dot(i: Variable, j: Variable) -> Statement:
        place = ir.Address(accumulator, (i, j), loc=loc)
        left, right = operand_place(mma.left, i, kk, mma), operand_place(mma.right, kk, j, mma)
        return ir.Do(row.name, (place, left, right, *flags), loc=loc)

    dots = _each(accumulator.owners, dot, mma)
    if not row.offset:
        return _steps(mma, kk, row, dots)
    before: list[Statement] = []
    inside = [dots]
    if sums is None:
        allocate, add_up = _sums(mma, row, kk)
        sums = allocate.tensor
        before.append(allocate)
        inside.insert(0, add_up)
    made = sums

    def subtract_sums(i: Variable, j: Variable) -> Statement:
        total, more = ir.Read(accumulator, (i, j), loc=loc), ir.Read(made, (ZERO, j), loc=loc)
        return ir.Store(accumulator, (i, j), ir.Binary("-", total, more, loc=loc), loc=loc)

    after = _each(accumulator.owners, subtract_sums, mma)
    return ir.Sequence((*before, _steps(mma, kk, row, *inside), after), loc=loc)


def column_sums(mma: ir.Mma, row: DotInstruction) -> tuple[Tensor, tuple[Statement, ...]]:
    """The sums alone, for the products of several left operands by one right operand."""
    kk = _depth(mma, row)
    allocate, add_up = _sums(mma, row, kk)
    return allocate.tensor, (allocate, _steps(mma, kk, row, add_up))


def invariant_products(loop: ir.For, offsets: Container[str], facts: Facts) -> list[ir.Mma]:
    """The products in a loop by instructions with an offset whose right operand is loop-invariant.

    It lies inside its tensor whatever holds around the product. `facts` know the ranges of all names,
    and no conditions.
    """
    products = [mma for mma in all_below(loop.body, ir.Mma) if mma.how in offsets]
    inside = {node.tensor for node in all_below(loop.body, ir.Allocate)}
    bound = {node.variable for node in (loop, *all_below(loop.body, ir.For))}
    bound |= {node.variable for node in all_below(loop.body, ir.Let)}
    invariant = []
    for mma in products:
        tensor, origin = mma.right.tensor, mma.right.origin
        is_input = tensor.scope == GLOBAL and tensor.role == "in"
        stays = is_input or (tensor.constant and tensor not in inside)
        parts = [part for index in origin for part in walk(index)]
        if stays and not any(isinstance(part, ir.Read) or part in bound for part in parts):
            shape = reversed(mma.right.shape) if mma.right.transposed else mma.right.shape
            extents = (*(1 for _ in origin[:-2]), *shape)
            ranges = [facts.scope.interval_of(facts.scope.form(index)) for index in origin]
            if all(
                isinstance(size, int) and low is not None and low >= 0
                and high is not None and high + extent <= size
                for (low, high), extent, size in zip(ranges, extents, tensor.shape, strict=True)
            ):  # fmt: skip
                invariant.append(mma)
    return invariant


def _sums(mma: ir.Mma, row: DotInstruction, kk: Variable) -> tuple[ir.Allocate, Statement]:
    """The allocation of the sums, and a step of their computation."""
    owners, loc = mma.accumulator.owners, mma.loc
    assert owners is not None
    quotient = quotient_of(owners, row)
    assert quotient is not None
    shared = without_dimension(quotient, 0)
    sums = Tensor("sums", row.accumulator, (1, owners.shape[1]), TILE, owners=shared, loc=loc)

    def add_up(i: Variable, j: Variable) -> Statement:
        place = ir.Address(sums, (i, j), loc=loc)
        flag = index(int(mma.right.transposed))
        return ir.Do(row.name + SUMS, (place, operand_place(mma.right, kk, j, mma), flag), loc=loc)

    allocate = ir.Allocate(sums, ir.Constant(0, row.accumulator), loc=loc)
    return allocate, _each(shared, add_up, mma)


def _depth(mma: ir.Mma, row: DotInstruction) -> Variable:
    return Variable("kk", multiple=row.pack, loc=mma.loc)


def _each(
    mapping: Mapping, work: Callable[[Variable, Variable], Statement], mma: ir.Mma
) -> Statement:
    i, j = Variable("i", loc=mma.loc), Variable("j", loc=mma.loc)
    return ir.Each((i, j), mapping, None, work(i, j), loc=mma.loc)


def _steps(mma: ir.Mma, kk: Variable, row: DotInstruction, *parts: Statement) -> Statement:
    body = ir.Sequence(parts, loc=mma.loc)
    return ir.For(kk, ZERO, index(mma.left.shape[1]), row.pack, body, loc=mma.loc)
