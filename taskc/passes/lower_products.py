"""Asynchronous matrix products: one instruction for each fragment and step of k.

    mma acc += sa[slot, 0, 0].as(128, 64) @ sb[slot, 0, 0].as(64, 128) onto p > 0
        how=wgmma.m64n128k16.bf16
->
    for kk in range(0, 64, 16) unroll:
        do wgmma.m64n128k16.bf16(
            &acc[0], &sa[slot, worker // 128 * 64, kk], &sb[slot, kk, 0], p > 0 or kk > 0, 0, 1)

An operand in shared memory is given by the first element of its fragment, the same for the whole
warpgroup, and by whether its tensor stores it transposed. Registers are given as for other matrices.
"""

from __future__ import annotations

from taskc.ir import nodes as ir
from taskc.ir.build import TRUE, ZERO, add, floor_divide, index, multiply
from taskc.ir.fragments import quotient_of
from taskc.ir.nodes import Expression, Statement, Tensor, Variable
from taskc.ir.target import WarpgroupInstruction
from taskc.passes.lower_copies import digits_number
from taskc.passes.tasks import composed_tasks


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
