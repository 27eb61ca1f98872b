"""`tc.cuda.wgmma`: asynchronous matrix products, and the requirements on their operands."""

from __future__ import annotations

import ast
from dataclasses import replace

from taskc.ir import nodes as ir
from taskc.ir.fragments import left_owners, placement, quotient_of, runs_along
from taskc.ir.mapping import Mapping
from taskc.ir.target import WARPGROUP_INSTRUCTIONS, WarpgroupInstruction
from taskc.ir.types import boolean
from taskc.lang.calls import Handler, bind
from taskc.lang.context import Context
from taskc.lang.conversions import condition
from taskc.lang.folds import product
from taskc.lang.values import NOTHING, Nothing

_WHAT = "tc.cuda.wgmma"
_FRAGMENT = "spatial(4, 1).repeat(1, n // 8).repeat(2, 1).spatial(8, 4).repeat(1, 2)"


def _wgmma(context: Context, node: ast.Call) -> Nothing:
    """`tc.cuda.wgmma(acc, a, b, accumulate=True)`"""
    bound = bind(context, node, _WHAT)
    context.require_cuda_kernel(_WHAT, node)
    mma = product(context, bound, _WHAT, node)
    row, quotient = _instruction(context, mma, bound, node)
    if context.first % row.group:
        raise context.error(
            f"a warpgroup is {row.group} workers from a multiple of {row.group} on, and this role"
            f" begins at worker {context.first}",
            node,
            "let the roles before it have a multiple of 4 warps",
        )
    for side, operand in (("a", mma.left), ("b", mma.right)):
        if operand.tensor.scope == ir.TILE:
            _check_registers(context, mma, row, quotient, side, bound[side])
        else:
            _check_memory(context, operand, row, side, bound[side])
    accumulate: bool | ir.Expression = True
    if "accumulate" in bound:
        accumulate = condition(context, context.evaluate(bound["accumulate"]), bound["accumulate"])
    if accumulate is False:
        mma = replace(mma, accumulate=ir.Constant(False, boolean, loc=mma.loc))
    elif accumulate is not True:
        mma = replace(mma, accumulate=accumulate)
    context.emit(replace(mma, how=row.name))
    return NOTHING


def _instruction(
    context: Context, mma: ir.Mma, bound: dict[str, ast.expr], node: ast.Call
) -> tuple[WarpgroupInstruction, Mapping]:
    """The widest instruction whose fragment divides the accumulator's mapping, and the quotient."""
    dtype, into = mma.left.tensor.dtype, mma.accumulator.dtype
    rows = [*WARPGROUP_INSTRUCTIONS.values()]
    fitting = [row for row in rows if (row.operand, row.accumulator) == (dtype, into)]
    if not fitting:
        pairs = dict.fromkeys(f"{row.operand} into {row.accumulator}" for row in rows)
        raise context.error(
            f"there is no wgmma of {dtype} into {into}", node, f"there is {', '.join(pairs)}"
        )
    k = fitting[0].shape[2]
    if mma.left.shape[1] % k:
        raise context.error(
            f"wgmma goes through k in steps of {k} elements of {dtype}, and this product has"
            f" {mma.left.shape[1]}",
            node,
        )
    owners = mma.accumulator.owners
    assert owners is not None
    for row in fitting:
        quotient = quotient_of(owners, row)
        if quotient is not None:
            return row, quotient
    raise context.error(
        f"no fragment of wgmma divides the accumulator's mapping {owners}",
        bound["acc"],
        f"end it with {_FRAGMENT}, n up to 256: 64 rows and n columns of a warpgroup",
    )


def _check_registers(
    context: Context,
    mma: ir.Mma,
    row: WarpgroupInstruction,
    quotient: Mapping,
    side: str,
    node: ast.expr,
) -> None:
    if side == "b":
        raise context.error("the right operand of wgmma is in shared memory", node)
    if mma.left.transposed:
        raise context.error("an operand in registers can't be transposed", node)
    expected = left_owners(quotient, row, mma.left.shape[1])
    owners = mma.left.tensor.owners
    if owners != expected or mma.left.shape != mma.left.tensor.shape:
        raise context.error(
            f"wgmma takes its left operand from the owners {expected}, and this is laid out by"
            f" {owners}",
            node,
        )


def _check_memory(
    context: Context, operand: ir.Operand, row: WarpgroupInstruction, side: str, node: ast.expr
) -> None:
    tensor, is_left = operand.tensor, side == "a"
    along = runs_along(operand, is_left=is_left)
    size = tensor.dtype.nbytes
    if all(form.along != along for form in row.memory):
        raise context.error(
            f"wgmma takes {tensor.dtype} only with neighbours along k in shared memory",
            node,
            "keep it as [m, k]" if is_left else "keep it as [n, k], and take its .T",
        )
    if placement(tensor, along, row, is_left=is_left) is None:
        lines = row.shape[0 if is_left else 1] if along == "k" else row.shape[2]
        raise context.error(
            f"'{tensor.name}' does not lie in shared memory as {row.name} takes it",
            node,
            "its rows have the bytes of its swizzle, for example"
            f" tc.shared({tensor.dtype}[{lines}, {128 // size}], swizzle=128)",
        )


HANDLERS: dict[str, Handler] = {"cuda.wgmma": _wgmma}
