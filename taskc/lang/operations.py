"""The operations of the target (`taskc.ir.operations`) as a `tc.cuda` kernel writes them: `tc.cuda.cp_async`.

Two have a meaning beyond a row of that table: `tc.cuda.ptx`, a value computed by PTX text, with its meaning, and
`tc.cuda.wgmma`, asynchronous matrix products, with the requirements on their operands.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from taskc.ir import nodes as ir
from taskc.ir.fragments import left_owners, placement, quotient_of, runs_along
from taskc.ir.mapping import Mapping
from taskc.ir.operations import OFFERED, Operation, fault_in_snippet, has_register
from taskc.ir.rewrite import walk
from taskc.ir.target import (
    LEAST_REGISTERS,
    MATRIX_MOVES,
    MOST_COUNTED,
    MOST_REGISTERS,
    WARP,
    WARPGROUP_INSTRUCTIONS,
    WarpgroupInstruction,
)
from taskc.ir.types import DType, boolean
from taskc.lang.blocks import product
from taskc.lang.calls import HANDLERS, Handler, handles
from taskc.lang.combines import callback
from taskc.lang.context import Context, Located
from taskc.lang.conversions import condition, constant_integer, scalar, typed
from taskc.lang.expressions import element_type
from taskc.lang.memory import element_place
from taskc.lang.values import NOTHING, Nothing, Value, counted


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


_PTX = "tc.cuda.ptx"
_USAGE = 'tc.cuda.ptx(f32, "ex2.approx.f32 %0, %1;", x, meaning=lambda x: tc.exp2(x))'


def _ptx(context: Context, node: ast.Call) -> Value:
    """`tc.cuda.ptx(f32, "fma.rn.f32 %0, %1, %2, %3;", a, b, c, meaning=lambda a, b, c: ...)`"""
    for keyword in node.keywords:
        if keyword.arg != "meaning":
            raise context.error(f"{_PTX} has no argument '{keyword.arg}'", keyword)
    if len(node.args) < 2:
        raise context.error(f"{_PTX} needs a type and a text", node, _USAGE)
    if not node.keywords:
        raise context.error(
            f"{_PTX} needs 'meaning': what the text computes, in the language",
            node,
            "the simulator evaluates it, and checks the kernel with it; so would any other target",
        )
    dtype_node, text_node, *written = node.args
    dtype = element_type(context, dtype_node, "the type of the result is an element type")
    _require_register(context, dtype, dtype_node)
    text = context.expect(str, context.evaluate(text_node), text_node, "the text is a string")
    operands = tuple([scalar(context, context.evaluate(part), part) for part in written])
    for operand, part in zip(operands, written, strict=True):
        _require_register(context, operand.dtype, part)
    meaning_node = node.keywords[0].value
    parameters, meaning = _meaning(context, meaning_node, operands, dtype)
    snippet = ir.Snippet("ptx", text, parameters, meaning)
    _require_closed(context, snippet, meaning_node)
    fault = fault_in_snippet(snippet)
    if fault is not None:
        place = meaning_node if fault.startswith("the meaning") else text_node
        raise context.error(f"in {_PTX}, {fault}", place)
    return ir.Inline(snippet, operands, loc=context.locate(node))


def _require_register(context: Context, dtype: DType, node: Located) -> None:
    if not has_register(dtype):
        wider = "i32" if dtype.kind in ("bool", "int") else "u32" if dtype.is_integer else "f16"
        raise context.error(
            f"PTX has registers of 16, 32 and 64 bits, and none for {dtype}",
            node,
            f"convert it: .to({wider})",
        )


def _meaning(
    context: Context, node: ast.expr, operands: tuple[ir.Expression, ...], dtype: DType
) -> tuple[tuple[ir.Variable, ...], ir.Expression]:
    """The parameters of a lambda or a helper, typed as the operands, and its value."""
    written = callback(context, node, "the meaning")
    if not written.takes(len(operands)):
        given = counted(len(operands), "operand")
        raise context.error(f"the text has {given}, and the meaning {written.parameters}", node)
    loc = context.locate(node)
    pairs = zip(written.named(len(operands)), operands, strict=True)
    named = tuple([ir.Variable(name, operand.dtype, loc=loc) for name, operand in pairs])
    value = written.value(context, named, "the meaning of a text")
    return named, typed(context, value, dtype, node, f"the result is {dtype}")


def _require_closed(context: Context, snippet: ir.Snippet, node: ast.expr) -> None:
    for part in walk(snippet.meaning):
        name = part.tensor if isinstance(part, (ir.Read, ir.Address)) else part
        if isinstance(name, (ir.Variable, ir.Tensor)) and name not in snippet.parameters:
            raise context.error(
                f"a meaning is about its parameters alone, and this uses '{name}'",
                node,
                f"make '{name}' an operand" if isinstance(part, ir.Variable) else None,
            )


_FRAGMENT = "spatial(4, 1).repeat(1, n // 8).repeat(2, 1).spatial(8, 4).repeat(1, 2)"


@handles("cuda.wgmma", in_cuda=True)
def _wgmma(
    context: Context,
    node: ast.Call,
    acc: ast.expr,
    a: ast.expr,
    b: ast.expr,
    accumulate: ast.expr | None = None,
) -> Nothing:
    """`tc.cuda.wgmma(acc, a, b, accumulate=True)`"""
    mma = product(context, acc, (a, b), "tc.cuda.wgmma", node)
    row, quotient = _instruction(context, mma, acc, node)
    if context.first % row.group:
        raise context.error(
            f"a warpgroup is {row.group} workers from a multiple of {row.group} on, and this role"
            f" begins at worker {context.first}",
            node,
            "let the roles before it have a multiple of 4 warps",
        )
    for is_left, operand, written in ((True, mma.left, a), (False, mma.right, b)):
        if operand.tensor.scope == ir.TILE:
            _check_registers(context, mma, row, quotient, is_left, written)
        else:
            _check_memory(context, operand, row, is_left, written)
    decided: bool | ir.Expression = True
    if accumulate is not None:
        decided = condition(context, context.evaluate(accumulate), accumulate)
    if decided is False:
        mma = replace(mma, accumulate=ir.Constant(False, boolean, loc=mma.loc))
    elif decided is not True:
        mma = replace(mma, accumulate=decided)
    context.emit(replace(mma, how=row.name))
    return NOTHING


def _instruction(
    context: Context, mma: ir.Mma, acc: ast.expr, node: ast.Call
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
        acc,
        f"end it with {_FRAGMENT}, n up to 256: 64 rows and n columns of a warpgroup",
    )


def _check_registers(
    context: Context,
    mma: ir.Mma,
    row: WarpgroupInstruction,
    quotient: Mapping,
    is_left: bool,
    node: ast.expr,
) -> None:
    if not is_left:
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
    context: Context, operand: ir.Operand, row: WarpgroupInstruction, is_left: bool, node: ast.expr
) -> None:
    tensor = operand.tensor
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


for _row in OFFERED:
    _name = _row.name.replace(".", "_")
    HANDLERS[f"cuda.{_name}"] = _operation(_name, _row)
HANDLERS["cuda.ptx"] = _ptx
