"""Asynchronous copies by each worker, and matrix instructions: one target operation each.

    move sa[slot, i, q] = select(ok, a[row + i, p + q], 0.0) for (i, q) in (64, 32) by ... how=cp.async
->
    each (i, q) in by, every 4th slot:
        cp.async(&sa[slot, i, q], &a[row + i, p + q], 4, ok)
"""

from __future__ import annotations

from dataclasses import replace

from taskc.analysis.facts import Facts
from taskc.ir import nodes as ir
from taskc.ir.build import TRUE, ZERO, add, floor_divide, index, multiply
from taskc.ir.fragments import pack_step
from taskc.ir.mapping import Mapping, Mode, auto_map, repeat
from taskc.ir.nodes import SHARED, Expression, Statement, Tensor, Variable
from taskc.ir.operations import PACK
from taskc.ir.rewrite import substitute, walk
from taskc.ir.target import Target, WarpInstruction
from taskc.passes.transports import copy_elements, plain_read


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
