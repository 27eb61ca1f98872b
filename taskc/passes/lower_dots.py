"""Matrix products by each worker's own instruction: of a pack of a row and one of a column.

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

The sums are there where the instruction adds an offset to the left operand: they are one more row of the
accumulator, whatever the number of its rows.
"""

from __future__ import annotations

from collections.abc import Callable

from taskc.ir import nodes as ir
from taskc.ir.build import ZERO, index
from taskc.ir.fragments import quotient_of, without_dimension
from taskc.ir.mapping import Mapping
from taskc.ir.nodes import TILE, Statement, Tensor, Variable
from taskc.ir.operations import SUMS
from taskc.ir.target import MatrixInstruction
from taskc.passes.lower_products import operand_place


def dot_products(mma: ir.Mma, row: MatrixInstruction) -> Statement:
    """The product as mapping loops, which are still to be lowered."""
    accumulator, loc = mma.accumulator, mma.loc
    owners = accumulator.owners
    assert owners is not None
    kk = Variable("kk", multiple=row.pack, loc=loc)
    flags = index(int(mma.left.transposed)), index(int(mma.right.transposed))

    def each(mapping: Mapping, work: Callable[[Variable, Variable], Statement]) -> Statement:
        i, j = Variable("i", loc=loc), Variable("j", loc=loc)
        return ir.Each((i, j), mapping, None, work(i, j), loc=loc)

    def dot(i: Variable, j: Variable) -> Statement:
        place = ir.Address(accumulator, (i, j), loc=loc)
        left, right = operand_place(mma.left, i, kk, mma), operand_place(mma.right, kk, j, mma)
        return ir.Do(row.name, (place, left, right, *flags), loc=loc)

    if not row.offset:
        return _steps(mma, kk, row, each(owners, dot))
    quotient = quotient_of(owners, row)
    assert quotient is not None
    shared = without_dimension(quotient, 0)
    sums = Tensor("sums", row.accumulator, (1, owners.shape[1]), TILE, owners=shared, loc=loc)

    def add_up(i: Variable, j: Variable) -> Statement:
        place = ir.Address(sums, (i, j), loc=loc)
        return ir.Do(
            row.name + SUMS, (place, operand_place(mma.right, kk, j, mma), flags[1]), loc=loc
        )

    def subtract_sums(i: Variable, j: Variable) -> Statement:
        total, more = ir.Read(accumulator, (i, j), loc=loc), ir.Read(sums, (ZERO, j), loc=loc)
        return ir.Store(accumulator, (i, j), ir.Binary("-", total, more, loc=loc), loc=loc)

    return ir.Sequence(
        (
            ir.Allocate(sums, ir.Constant(0, row.accumulator), loc=loc),
            _steps(mma, kk, row, each(shared, add_up), each(owners, dot)),
            each(owners, subtract_sums),
        ),
        loc=loc,
    )


def _steps(mma: ir.Mma, kk: Variable, row: MatrixInstruction, *parts: Statement) -> Statement:
    body = ir.Sequence(parts, loc=mma.loc)
    return ir.For(kk, ZERO, index(mma.left.shape[1]), row.pack, body, loc=mma.loc)
