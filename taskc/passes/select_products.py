"""Asynchronous matrix products: the `tc.mma` that they implement, and the layouts of their operands.

    constant shared sa: bf16[128, 64]
    constant shared sb: bf16[64, 256]
    tile acc: f32[128, 256] by spatial(2, 1) * fragment = 0.0
    pipeline p in 512 by 64:
        mma acc += sa[0, 0].as(128, 64) @ sb[0, 0].as(64, 256)
->
    constant shared sa: bf16[128, 64].swizzled(3, 3, 6)
    constant shared sb: bf16[64, 256].laid(repeat(1, 4).repeat(64, 64)).swizzled(3, 3, 6)
    tile acc: f32[128, 256] by spatial(2, 1) * fragment
    pipeline p in 512 by 64:
        mma acc += sa[0, 0].as(128, 64) @ sb[0, 0].as(64, 256) onto p > 0 how=wgmma.m64n256k16.bf16

Operands in shared memory that has no layout yet get one: panels of columns, as wide as the widest swizzle
that divides a row. A left operand in registers has to be held as the instruction takes it. An accumulator
that is zero where its first product stands isn't filled: that product starts from zero.

When such products begin and end is the business of taskc/passes/await_products.py.
"""

from __future__ import annotations

from dataclasses import replace

from taskc.analysis.coalescing import ATOM, divisor, facts_of_names, in_panels
from taskc.analysis.facts import Facts
from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.build import ZERO
from taskc.ir.fragments import misfit, types_of
from taskc.ir.nodes import TILE, Expression, Statement, Tensor
from taskc.ir.rewrite import map_statements, tensors_of, walk
from taskc.ir.target import Target, WarpgroupInstruction, is_asynchronous
from taskc.ir.types import boolean
from taskc.passes.overlay import place

Notes = list[tuple[str, Location]]


def with_asynchronous_products(kernel: ir.Kernel, target: Target, notes: Notes) -> ir.Kernel:
    """Make products asynchronous where possible, with shared memory in the layouts they take."""
    rows = [row for row in target.matrix if isinstance(row, WarpgroupInstruction)]
    if not rows or kernel.stage != "parsed":
        return kernel
    known = facts_of_names(kernel)
    chosen: dict[Tensor, Tensor] = {}

    def visit(statement: Statement) -> Statement:
        if not isinstance(statement, ir.Mma):
            return map_statements(statement, visit)
        fitting = [row for row in rows if row.types == types_of(statement)]
        row_or_reason = _row_for(statement, fitting, known) if fitting else None
        if statement.by is not None and any(row.types[0] is statement.by for row in rows):
            row_or_reason = "operands that come from memory can't be rounded"
        if isinstance(row_or_reason, str):
            notes.append((f"tc.mma is not asynchronous: {row_or_reason}", statement.loc))
        if not isinstance(row_or_reason, WarpgroupInstruction):
            return statement
        for operand in (statement.left, statement.right):
            formed = in_panels(operand.tensor)
            if formed is not None and formed is not operand.tensor:
                chosen.setdefault(operand.tensor, formed)
        return replace(statement, how=row_or_reason.name)

    body = visit(kernel.body)
    if body is kernel.body:
        return kernel
    return place(replace(kernel, body=_from_zero(body)), chosen)


def _row_for(
    mma: ir.Mma, rows: list[WarpgroupInstruction], known: Facts
) -> WarpgroupInstruction | str:
    """The widest of the instructions that can do a product, or the reason why none can."""
    changes: dict[str, ir.Operand] = {}
    for side in ("left", "right"):
        operand: ir.Operand = getattr(mma, side)
        formed = in_panels(operand.tensor)
        if formed is None:
            return f"no swizzle divides the rows of `{operand.tensor.name}`"
        if operand.tensor.scope != TILE and any(
            divisor(n, known) % ATOM for n in operand.origin[-2:]
        ):
            return f"its operand in `{operand.tensor.name}` may begin within an atom of eight lines"
        changes[side] = replace(operand, tensor=formed)
    laid = replace(mma, **changes)  # type: ignore[arg-type]
    reasons: list[str] = []
    for row in rows:
        reason = misfit(laid, row)
        if reason is None:
            return row
        reasons.append(reason)
    # A reason specific to an operand says more than that a width doesn't divide the mapping.
    return next((r for r in reasons if "does not divide" not in r), _no_fragment(mma))


def _no_fragment(mma: ir.Mma) -> str:
    return f"no fragment of wgmma divides {mma.accumulator.owners}"


# --- accumulators that start from zero ------------------------------------------------------


def _from_zero(body: Statement) -> Statement:
    """Make the first product after a zero-filled allocation overwrite instead of accumulate."""

    def visit(statement: Statement) -> Statement:
        statement = map_statements(statement, visit)
        if not isinstance(statement, ir.Sequence):
            return statement
        parts = list(statement.statements)
        for at, part in enumerate(parts):
            if not (isinstance(part, ir.Allocate) and part.tensor.scope == TILE and _is_zero(part)):
                continue
            user = next(
                (n for n in range(at + 1, len(parts)) if _uses(parts[n], part.tensor)), None
            )
            started = None if user is None else _started(parts[user], part.tensor)
            if user is not None and started is not None:
                parts[at], parts[user] = replace(part, fill=None), started
        return replace(statement, statements=tuple(parts))

    return visit(body)


def _is_zero(allocate: ir.Allocate) -> bool:
    return allocate.fill is not None and str(allocate.fill.value) in ("0", "0.0")


def _uses(statement: Statement, tensor: Tensor) -> bool:
    return any(used is tensor for node in walk(statement) for used in tensors_of(node))


def _started(user: Statement, accumulator: Tensor) -> Statement | None:
    """The statement with its first product starting from zero, if it surely has one."""
    match user:
        case ir.Mma():
            return _first(user, accumulator, ir.Constant(False, boolean, loc=user.loc))
        case ir.Pipeline(extent=ir.Constant(value=stop), body=ir.Sequence() as body) if stop > 0:
            start: Expression = ZERO
        case ir.For(
            start=ir.Constant() as start, stop=ir.Constant(value=stop), body=ir.Sequence() as body
        ) if user.step > 0 and start.value < stop:
            pass
        case _:
            return None
    at = next(k for k, s in enumerate(body.statements) if _uses(s, accumulator))
    mma = body.statements[at]
    later = ir.Binary(">", user.variable, start, loc=user.loc)
    overwriting = _first(mma, accumulator, later) if isinstance(mma, ir.Mma) else None
    if overwriting is None:
        return None
    statements = (*body.statements[:at], overwriting, *body.statements[at + 1 :])
    return replace(user, body=replace(body, statements=statements))


def _first(mma: ir.Mma, accumulator: Tensor, accumulate: Expression) -> ir.Mma | None:
    is_own = mma.accumulator is accumulator and mma.left.tensor is not accumulator
    if not (is_own and is_asynchronous(mma.how) and mma.accumulate is None):
        return None
    return replace(mma, accumulate=accumulate)
