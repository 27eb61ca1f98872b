"""Selection for `tc.mma`: a matrix instruction (tensor cores) if its fragments fit, else fused multiply-adds.

Asynchronous products come first (`with_asynchronous_products`), with the layouts of their operands.

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

taskc/passes/await_products.py determines when such products begin and end.

Other instructions take both operands from the registers of workers:

    mma acc += sa @ sb                                       acc: f32[64, 64] by warps * fragment
->
    for kk in range(0, 32, 16):
        tile left: f16[64, 16] by (warps without n) * left fragment
        move left[i, q] = sa[i, kk + q] for ...
        tile right: f16[16, 64] by (warps without m) * right fragment
        move right[q, j] = sb[kk + q, j] for ...
        mma acc += left @ right how=mma.sync.m16n8k16.f16

An operand that is in the registers of those owners, for all of k, stays there: `mma acc += t[0, kk].as(...)`.
Where operands are to be rounded first, that is done between two fragments:

    mma acc += sa @ sb by tf32                               sa, sb: f32
->
        move left_given[i, q] = sa[i, kk + q] for ...
        move left[i, q] = left_given[i, q].to(tf32) for ...

A processor's instructions take operands from memory, in packs of k. Shared operands are laid out so:

    constant shared sb: i8[64, 48]
    mma acc += a[row, 0].as(8, 66) @ sb[0, 0].as(66, 48)     acc: i32[8, 48], any mapping
->
    constant shared sb: i8[66, 48].laid(repeat(17, 48).repeat(4, 1))
    mma acc += a[row, 0].as(8, 64) @ sb[0, 0].as(64, 48) how=vpdpbusd.i8
    (rows 64 and 65 by fused multiply-adds)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from taskc.analysis.coalescing import ATOM, divisor, facts_of_names, in_panels
from taskc.analysis.facts import Facts
from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.build import ZERO, add, index
from taskc.ir.fragments import (
    depth_of,
    left_owners,
    lies_well,
    misfit,
    pack_step,
    packed_layout,
    quotient_of,
    right_owners,
    types_of,
)
from taskc.ir.mapping import Mapping
from taskc.ir.nodes import SHARED, TILE, Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import all_below, map_statements, tensors_of, walk
from taskc.ir.target import (
    MatrixInstruction,
    PackedInstruction,
    Target,
    WarpgroupInstruction,
    WarpInstruction,
    is_asynchronous,
)
from taskc.ir.types import DType, boolean
from taskc.passes.overlay import place


def with_packs(kernel: ir.Kernel, target: Target) -> ir.Kernel:
    """Give shared memory that an instruction reads in packs a layout in packs."""
    rows = [row for row in target.products if isinstance(row, PackedInstruction)]
    chosen: dict[Tensor, Tensor] = {}
    for mma in all_below(kernel.body, ir.Mma) if rows else ():
        row = next((row for row in rows if row.types == types_of(mma)), None)
        if row is not None:
            for is_left, operand in ((True, mma.left), (False, mma.right)):
                if operand.tensor.scope == SHARED:
                    laid = _in_packs(operand, operand.tensor, row, is_left=is_left)
                    if laid is not operand.tensor:
                        chosen.setdefault(operand.tensor, laid)
    return place(kernel, chosen) if chosen else kernel


def _in_packs(
    operand: ir.Operand, tensor: Tensor, row: PackedInstruction, *, is_left: bool
) -> Tensor:
    """The tensor in the best layout for the instruction: neighbours of the right operand are its columns."""
    dimension = depth_of(operand, is_left=is_left)
    is_good = is_left and pack_step(tensor, dimension, row.pack)
    if is_good or tensor.layout is not None or tensor.swizzle is not None:
        return tensor
    return replace(tensor, layout=packed_layout(tensor, dimension, row.pack))


def matrix_product(
    mma: ir.Mma, target: Target, known: Facts, notes: list[tuple[str, Location]]
) -> Statement:
    """The product by the target's instructions; a fallback to fused multiply-adds adds a note.

    known  what is known of the variables in the operands' places
    """
    owners = mma.accumulator.owners
    assert owners is not None
    if mma.how is not None:
        if all(row.name != mma.how for row in target.matrix):
            raise CompileError(
                f"{target.name} has no {mma.how}",
                mma.loc,
                hint="wgmma is an instruction of sm_90a; tc.mma takes what the target has",
            )
        return mma
    left, right, total = types_of(mma)
    types = mma.by or left, mma.by or right, total
    rows = [row for row in target.products if row.types == types]
    for row in rows:
        if mma.by is not None or not isinstance(row, PackedInstruction):
            continue
        instruction_code = _from_packs(mma, row, target, known, notes)
        if instruction_code is not None:
            return instruction_code
    for row in rows:
        quotient = _quotient(mma, row)
        if isinstance(row, WarpInstruction) and quotient is not None:
            held = _held(mma, quotient, row)
            mma, before = _without_foreign_tiles(mma, held=held)
            return _sequence(before, _instructions(mma, quotient, row, held))
    mma, before = _without_foreign_tiles(mma)
    # Without matrix units, products are slow everywhere but on processors.
    missed = rows if target.is_processor else target.products
    if missed:
        names = ", ".join(row.name for row in missed)
        notes.append(
            (
                f"tc.mma of {types[0]} into {total} by {owners} fits none of {names}:"
                " it becomes fused multiply-adds",
                mma.loc,
            )
        )
    return _sequence(before, _fused(mma, owners))


def _sequence(before: list[Statement], statement: Statement) -> Statement:
    return ir.Sequence((*before, statement), loc=statement.loc) if before else statement


def operand_element(
    operand: ir.Operand, row: Expression, column: Expression, loc: Location
) -> ir.Read:
    """The product's element at (row, column)."""
    if operand.transposed:
        row, column = column, row
    place = (add(operand.origin[-2], row), add(operand.origin[-1], column))
    return ir.Read(operand.tensor, (*operand.origin[:-2], *place), loc=loc)


def _held(mma: ir.Mma, quotient: Mapping, row: WarpInstruction) -> frozenset[str]:
    """The operands that are already in the registers from which the instruction takes them."""
    k = mma.left.shape[1]
    expected = {"left": left_owners(quotient, row, k), "right": right_owners(quotient, row, k)}

    def is_held(side: str) -> bool:
        operand: ir.Operand = getattr(mma, side)
        is_whole = operand.shape == operand.tensor.shape and not operand.transposed
        return mma.by is None and is_whole and operand.tensor.owners == expected[side]

    return frozenset(side for side in expected if is_held(side))


def _without_foreign_tiles(
    mma: ir.Mma, row: PackedInstruction | None = None, held: frozenset[str] = frozenset()
) -> tuple[ir.Mma, list[Statement]]:
    """Move operands in registers through shared memory, except those with the product's own owners.

    There they lie as an instruction takes them in packs, if one is given.
    """
    before: list[Statement] = []
    changes: dict[str, ir.Operand] = {}
    for side in ("left", "right"):
        operand: ir.Operand = getattr(mma, side)
        tensor = operand.tensor
        if tensor.scope != TILE or side in held:
            continue
        assert tensor.owners is not None
        scratch = Tensor(f"{tensor.name}_scratch", tensor.dtype, tensor.shape, SHARED, loc=mma.loc)
        if row is not None:
            scratch = _in_packs(operand, scratch, row, is_left=side == "left")
        variables = (Variable("i"), Variable("j"))
        move = ir.Move(
            scratch, variables, variables, tuple(int(n) for n in tensor.shape),  # type: ignore[arg-type]
            ir.Read(tensor, variables), by=tensor.owners, loc=mma.loc,
        )  # fmt: skip
        before += [ir.Allocate(scratch, loc=mma.loc), move]
        changes[side] = replace(operand, tensor=scratch)
    return (replace(mma, **changes) if changes else mma), before  # type: ignore[arg-type]


def _fused(mma: ir.Mma, owners: Mapping) -> Statement:
    """Ascending k, one fused multiply-add a step in the accumulator's type."""
    accumulator = mma.accumulator
    q = Variable("q", loc=mma.loc)
    i, j = Variable("i", loc=mma.loc), Variable("j", loc=mma.loc)
    given = operand_element(mma.left, i, q, mma.loc), operand_element(mma.right, q, j, mma.loc)
    a, b = (_converted(_converted(x, mma.by or x.dtype), accumulator.dtype) for x in given)
    total = ir.Read(accumulator, (i, j), loc=mma.loc)
    value: Expression
    if accumulator.dtype.is_float:
        value = ir.Fused(a, b, total, loc=mma.loc)
    else:
        value = ir.Binary("+", total, ir.Binary("*", a, b, loc=mma.loc), loc=mma.loc)
    step = ir.Each(
        (i, j), owners, None, ir.Store(accumulator, (i, j), value, loc=mma.loc), loc=mma.loc
    )
    return ir.For(q, ZERO, index(mma.left.shape[1]), 1, step, loc=mma.loc)


def _converted(value: Expression, dtype: DType) -> Expression:
    return value if value.dtype == dtype else ir.Cast(value, dtype)


def _from_packs(
    mma: ir.Mma,
    row: PackedInstruction,
    target: Target,
    known: Facts,
    notes: list[tuple[str, Location]],
) -> Statement | None:
    """A product by an instruction on packs from memory, and the rest of k by other means; None if it doesn't fit."""
    assert mma.accumulator.owners is not None
    whole_steps = mma.left.shape[1] // row.shape[2] * row.shape[2]
    if not whole_steps or quotient_of(mma.accumulator.owners, row) is None:
        return None
    mma, before = _without_foreign_tiles(mma, row)
    for is_left, operand in ((True, mma.left), (False, mma.right)):
        dimension = depth_of(operand, is_left=is_left)
        steps = [divisor(operand.origin[d], known) for d in (dimension, -3 - dimension)]
        if not lies_well(operand, row, (steps[0], steps[1]), is_left=is_left):
            return None
    parts: list[Statement] = [replace(_steps(mma, 0, whole_steps), how=row.name)]
    if whole_steps < mma.left.shape[1]:
        remaining_product = _steps(mma, whole_steps, mma.left.shape[1])
        parts.append(matrix_product(remaining_product, target, known, []))
    if not before and len(parts) == 1:
        return parts[0]
    return ir.Sequence((*before, *parts), loc=mma.loc)


def _steps(mma: ir.Mma, start: int, stop: int) -> ir.Mma:
    """A part of the product's k."""

    def part(operand: ir.Operand, *, is_left: bool) -> ir.Operand:
        dimension = depth_of(operand, is_left=is_left)
        origin = list(operand.origin)
        origin[dimension] = add(origin[dimension], start)
        rows, columns = operand.shape
        shape = (rows, stop - start) if is_left else (stop - start, columns)
        return replace(operand, origin=tuple(origin), shape=shape)

    if (start, stop) == (0, mma.left.shape[1]):
        return mma
    left, right = part(mma.left, is_left=True), part(mma.right, is_left=False)
    return replace(mma, left=left, right=right)


def _quotient(mma: ir.Mma, row: MatrixInstruction) -> Mapping | None:
    """The mapping of fragments, if this instruction fits."""
    assert mma.accumulator.owners is not None
    return None if mma.left.shape[1] % row.shape[2] else quotient_of(mma.accumulator.owners, row)


def _instructions(
    mma: ir.Mma, quotient: Mapping, row: WarpInstruction, held: frozenset[str]
) -> Statement:
    k = row.shape[2]
    (rows, depth), columns = mma.left.shape, mma.right.shape[1]
    step = Variable("kk", multiple=k, loc=mma.loc)
    i, j, q = (Variable(name, loc=mma.loc) for name in "ijq")
    body: list[Statement] = []
    if "left" in held:
        left = ir.Operand(mma.left.tensor, (ZERO, step), (rows, k))
    else:
        value = operand_element(mma.left, i, add(step, q), mma.loc)
        owners = left_owners(quotient, row, k)
        fragment, moves = _fragment("left", value, (i, q), (rows, k), owners, row.types[0])
        body += moves
        left = ir.Operand(fragment, (ZERO, ZERO), (rows, k))
    if "right" in held:
        right = ir.Operand(mma.right.tensor, (step, ZERO), (k, columns))
    else:
        q = Variable("q", loc=mma.loc)
        value = operand_element(mma.right, add(step, q), j, mma.loc)
        owners = right_owners(quotient, row, k)
        fragment, moves = _fragment("right", value, (q, j), (k, columns), owners, row.types[1])
        body += moves
        right = ir.Operand(fragment, (ZERO, ZERO), (k, columns))
    body.append(ir.Mma(mma.accumulator, left, right, how=row.name, loc=mma.loc))
    return ir.For(step, ZERO, index(depth), k, ir.Sequence(tuple(body), loc=mma.loc), loc=mma.loc)


def _fragment(
    name: str,
    value: Expression,
    variables: tuple[Variable, Variable],
    shape: tuple[int, int],
    owners: Mapping,
    dtype: DType,
) -> tuple[Tensor, list[Statement]]:
    """An operand in registers, in the multiplied type, and the statements that load it."""
    loc = value.loc
    body: list[Statement] = []
    if value.dtype is not dtype:
        given = Tensor(f"{name}_given", value.dtype, shape, TILE, owners=owners, loc=loc)
        move = ir.Move(given, variables, variables, shape, value, by=owners, loc=loc)
        body += [ir.Allocate(given), move]
        first, second = (Variable(v.name, loc=loc) for v in variables)
        variables = first, second
        value = ir.Cast(ir.Read(given, variables, loc=loc), dtype, loc=loc)
    fragment = Tensor(name, dtype, shape, TILE, owners=owners, loc=loc)
    move = ir.Move(fragment, variables, variables, shape, value, by=owners, loc=loc)
    return fragment, [*body, ir.Allocate(fragment), move]


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
    for operand in _read_for_products(body):
        formed = in_panels(operand)
        if formed is not None and formed is not operand:
            chosen.setdefault(operand, formed)
    return place(replace(kernel, body=_from_zero(body)), chosen)


def _read_for_products(body: Statement) -> Iterator[Tensor]:
    """Shared memory from which workers read an operand that they hold: lines of it are in different banks."""
    held = {
        node.left.tensor
        for node in walk(body)
        if isinstance(node, ir.Mma) and node.how and node.left.tensor.scope == TILE
    }
    for node in walk(body):
        if isinstance(node, ir.Store | ir.Move) and node.tensor in held:
            value = node.value
            if isinstance(value, ir.Read):
                yield value.tensor


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
