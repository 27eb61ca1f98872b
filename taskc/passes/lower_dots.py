"""Matrix products by a worker's own instruction, which multiplies a pack of a row and one of a column.

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
"""

from __future__ import annotations

from collections.abc import Callable, Container

from taskc.analysis.facts import Facts
from taskc.ir import nodes as ir
from taskc.ir.build import ZERO, index
from taskc.ir.fragments import quotient_of, without_dimension
from taskc.ir.mapping import Mapping
from taskc.ir.nodes import GLOBAL, TILE, Statement, Tensor, Variable
from taskc.ir.operations import SUMS
from taskc.ir.rewrite import walk
from taskc.ir.target import DotInstruction
from taskc.passes.lower_products import operand_place


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
    nodes = list(walk(loop.body))
    inside = {node.tensor for node in nodes if isinstance(node, ir.Allocate)}
    bound = {node.variable for node in (loop, *nodes) if isinstance(node, ir.Let | ir.For)}
    invariant = []
    for mma in nodes:
        if not isinstance(mma, ir.Mma) or mma.how not in offsets:
            continue
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
