"""A copy between tiles of a vector of workers, from rows along its lanes to columns along them, by shuffles.

    move turned[p, o] = made[p, o] for (p, o) in (14, 16)
            made by repeat(14, 1).spatial(1, 16), turned by repeat(1, 16).spatial(16, 1).within(14, 16)
->
    square[p] = made[p, o]                                 by the owners of made
    turn(&square[0], 16)
    turned[p, o] = square[o]                               by the owners of turned

So 16 registers take 64 shuffles of two vectors; larger tiles are such squares. By way of memory it would be an access
for each number.
"""

from __future__ import annotations

from taskc.ir import nodes as ir
from taskc.ir.build import ZERO, add, index
from taskc.ir.mapping import Mapping, repeat, spatial
from taskc.ir.nodes import LOCAL, Statement, Tensor, Variable
from taskc.ir.operations import TURN
from taskc.ir.target import Target


def turns(source: Mapping, made: Mapping, target: Target, workers: int) -> bool:
    """Whether a copy between tiles with these mappings can be done so."""
    lanes = target.warp
    if not (target.is_processor and target.shuffles and workers == lanes and source.rank == 2):
        return False
    rows, columns = source.iterated
    return (
        columns % lanes == 0
        and source == repeat(rows, columns // lanes) * spatial(1, lanes)
        and made == _limited(repeat(-(-rows // lanes), columns) * spatial(lanes, 1), rows, columns)
    )


def turned(move: ir.Move, lanes: int) -> Statement:
    read = move.value
    assert isinstance(read, ir.Read)
    rows, columns = (int(extent) for extent in move.shape)
    squares: list[Statement] = []
    for row in range(0, rows, lanes):
        for column in range(0, columns, lanes):
            squares += _square(move.tensor, read.tensor, row, column, min(lanes, rows - row), lanes)
    return ir.Sequence(tuple(squares), loc=move.loc)


def _square(
    made: Tensor, source: Tensor, row: int, column: int, rows: int, lanes: int
) -> list[Statement]:
    """A square of so many rows, the last of which may be missing."""
    square = Tensor(f"{source.name}_square", source.dtype, (lanes,), LOCAL)
    p, o = Variable("p"), Variable("o")
    fill_square = ir.Store(square, (p,), ir.Read(source, (add(p, row), add(o, column))))
    before = repeat(rows, 1) * spatial(1, lanes)
    after = _limited(repeat(1, lanes) * spatial(lanes, 1), rows, lanes)
    first, second = Variable("p"), Variable("o")
    store_turned = ir.Store(
        made, (add(first, row), add(second, column)), ir.Read(square, (second,))
    )
    lane = Variable("lane")
    turn = ir.Do(TURN, (ir.Address(square, (ZERO,)), index(lanes)))
    return [
        ir.Allocate(square, ir.Constant(0, source.dtype)),
        ir.Each((p, o), before, None, fill_square),
        ir.Each((lane,), spatial(lanes), None, turn),
        ir.Each((first, second), after, None, store_turned),
    ]


def _limited(owners: Mapping, rows: int, columns: int) -> Mapping:
    return owners if owners.shape == (rows, columns) else owners.within((rows, columns))
