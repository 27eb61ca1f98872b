"""The operations of the target, `taskc.ir.operations`, as a `tc.cuda` kernel writes them: `tc.cuda.cp_async`."""

from __future__ import annotations

import ast

from taskc.ir import nodes as ir
from taskc.ir.operations import OFFERED, Operation
from taskc.ir.target import LEAST_REGISTERS, MATRIX_MOVES, MOST_COUNTED, MOST_REGISTERS, WARP
from taskc.ir.types import DType, boolean
from taskc.lang.calls import Handler
from taskc.lang.context import Context
from taskc.lang.conversions import constant_integer, scalar
from taskc.lang.memory import element_place
from taskc.lang.values import NOTHING, Value, counted


def _operation(name: str, row: Operation) -> Handler:
    what = f"tc.cuda.{name}"
    repeats = bool(row.operands) and row.operands[-1].endswith("*")

    def handler(context: Context, node: ast.Call) -> Value:
        context.require_cuda_kernel(what, node)
        context.require_statement(what, node)
        if row.participants == "cluster":
            context.require_cluster(what, node)
        if node.keywords:
            raise context.error(f"{what} takes no keywords", node.keywords[0])
        least = len(row.operands)
        if len(node.args) < least or (len(node.args) > least and not repeats):
            few = counted(least, "argument") + (" or more" if repeats else "")
            kinds = ", ".join(operand.rstrip("*") for operand in row.operands)
            hint = f"they are: {kinds}" if kinds else None
            raise context.error(f"{what} takes {few}", node, hint)
        operands = tuple(
            [
                _operand(context, what, kind, part)
                for kind, part in zip(row.kinds(len(node.args)), node.args, strict=True)
            ]
        )
        _check_copy(context, what, row.name, operands, node)
        _check_counts(context, what, row.name, operands, node)
        loc = context.locate(node)
        dtype = operands[0].dtype if row.result == "operand" else row.result
        if dtype is None:
            context.emit(ir.Do(row.name, operands, loc=loc))
            return NOTHING
        assert isinstance(dtype, DType)
        result = ir.Variable(context.name_for(node, name), dtype, loc=loc)
        context.results.add(result)
        context.emit(ir.Do(row.name, operands, result, loc=loc))
        return result

    return handler


def _check_copy(
    context: Context,
    what: str,
    operation: str,
    operands: tuple[ir.Expression, ...],
    node: ast.Call,
) -> None:
    """Check that a copy is of one type, and of a size that the hardware copies."""
    match operation, operands:
        case "cp.async", (
            ir.Address() as target,
            ir.Address() as source,
            ir.Constant() as count,
            _,
        ):
            if target.dtype != source.dtype:
                raise context.error(
                    f"{what} copies {source.dtype} into {target.dtype}, and converts nothing", node
                )
            size = int(count.value) * target.dtype.nbytes
            if size not in (4, 8, 16):
                raise context.error(
                    f"{what} copies 4, 8 or 16 bytes at once, and this is {size}", node.args[2]
                )
        case str(name), (ir.Address() as target, ir.Address() as source) if name in MATRIX_MOVES:
            if target.dtype != source.dtype or not MATRIX_MOVES[name].fits(target.dtype):
                kinds = (
                    "16-bit types" if MATRIX_MOVES[name].transposed else "types of 8, 16 or 32 bits"
                )
                raise context.error(
                    f"{what} moves {kinds}, and this is {source.dtype} into {target.dtype}", node
                )
        case _:
            pass  # it copies nothing, or what it copies has no such limits


def _check_counts(
    context: Context,
    what: str,
    operation: str,
    operands: tuple[ir.Expression, ...],
    node: ast.Call,
) -> None:
    """The hardware's limits of numbers that are constant."""
    match operation, operands:
        case "barrier.named" | "barrier.arrive", (value, ir.Constant(value=workers)):
            number = constant_integer(context, value, node.args[0], "the number of a barrier")
            if not 1 <= number <= 15:
                raise context.error(
                    f"the numbers of named barriers are 1 to 15, and this is {number}",
                    node.args[0],
                    "tc.sync() is the barrier of all" if number == 0 else None,
                )
            if workers < 1 or workers % WARP:
                raise context.error(
                    f"whole warps of {WARP} workers meet at {what}, and this counts {workers}",
                    node.args[1],
                )
        case "mbarrier.init", (_, ir.Constant(value=arrivals)):
            if arrivals < 1:
                raise context.error(
                    f"an mbarrier counts at least 1 arrival, and this {arrivals}", node.args[1]
                )
            if arrivals > MOST_COUNTED:
                raise context.error(
                    f"an mbarrier counts at most {MOST_COUNTED} arrivals, and this {arrivals}",
                    node.args[1],
                )
        case "mbarrier.expect", (_, ir.Constant(value=count)):
            if not 0 <= count <= MOST_COUNTED:
                raise context.error(
                    f"an mbarrier counts 0 to {MOST_COUNTED} bytes, and this {count}", node.args[1]
                )
        case "setmaxnreg", (ir.Constant(value=count),):
            if not LEAST_REGISTERS <= count <= MOST_REGISTERS or count % 8:
                raise context.error(
                    f"a worker has {LEAST_REGISTERS} to {MOST_REGISTERS} registers, a multiple of 8,"
                    f" and this is {count}",
                    node.args[0],
                )
        case _:
            pass  # its constants have no limits


def _operand(context: Context, what: str, kind: str, node: ast.expr) -> ir.Expression:
    if kind in ("place", "remote"):
        tensor, indices = element_place(context, node, what)
        if kind == "place" and tensor in context.peers:
            raise context.error(
                f"{what} takes memory of its own block, and '{tensor.name}' is a peer's", node
            )
        return ir.Address(tensor, indices, loc=context.locate(node))
    value = context.evaluate(node)
    if kind == "constant":
        number = constant_integer(context, value, node, f"this argument of {what}")
        return ir.Constant(number, loc=context.locate(node))
    if isinstance(value, bool):
        return ir.Constant(value, boolean, loc=context.locate(node))
    return scalar(context, value, node)


HANDLERS: dict[str, Handler] = {
    f"cuda.{row.name.replace('.', '_')}": _operation(row.name.replace(".", "_"), row)
    for row in OFFERED
}
