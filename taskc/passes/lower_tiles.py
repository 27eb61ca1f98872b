"""Matrix products on tile registers.

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
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.ir.build import ZERO, add, floor_divide, index, multiply
from taskc.ir.fragments import quotient_of, tile_pitch
from taskc.ir.nodes import Expression, Statement, Tensor, Variable
from taskc.ir.operations import TILE_LEFT, TILE_LOAD, TILE_RIGHT, TILE_STORE
from taskc.ir.rewrite import substitute
from taskc.ir.target import TileInstruction
from taskc.passes.lower_products import operand_place
from taskc.passes.tasks import composed_tasks


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
