"""A copy between tiles of a vector of workers, from rows along its lanes to columns along them: by exchanges.

    move turned[p, o] = made[p, o] for (p, o) in (14, 16)
            made by repeat(14, 1).spatial(1, 16), turned by repeat(1, 16).spatial(16, 1).within(14, 16)
->
    exchanged[p] = made[p, o]                              by the owners of made
    for each bit b of a lane's number, and registers p and p + b whose numbers differ in it:
        given = exchanged[p] where the lane has the bit, else exchanged[p + b]
        taken = shuffle.xor(given, b)
        exchanged[p + b if the lane lacks the bit, else p] = taken
    turned[p, o] = exchanged[o]                            by the owners of turned

So 16 registers take 64 exchanges, which are instructions of two vectors; larger tiles are such squares. By way of
memory it would be an access for each number.
"""

from __future__ import annotations

from taskc.ir import nodes as ir
from taskc.ir.build import ZERO, add, floor_divide, index, modulo
from taskc.ir.mapping import Mapping, repeat, spatial
from taskc.ir.nodes import LOCAL, Statement, Tensor, Variable
from taskc.ir.target import Target


def turns(source: Mapping, made: Mapping, target: Target, workers: int) -> bool:
    """Whether a copy from a tile to another is such a one."""
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
    """Of so many rows, the last of which may be missing."""
    exchanged = Tensor(f"{source.name}_exchanged", source.dtype, (lanes,), LOCAL)
    p, o = Variable("p"), Variable("o")
    taken = ir.Store(exchanged, (p,), ir.Read(source, (add(p, row), add(o, column))))
    steps: list[Statement] = [
        ir.Allocate(exchanged, ir.Constant(0, source.dtype)),
        ir.Each((p, o), repeat(rows, 1) * spatial(1, lanes), None, taken),
    ]
    bit = lanes // 2
    while bit:
        for low in range(lanes):
            if not low & bit:
                steps.append(_exchange(exchanged, low, low + bit, bit, lanes))
        bit //= 2
    after = _limited(repeat(1, lanes) * spatial(lanes, 1), rows, lanes)
    p, o = Variable("p"), Variable("o")
    given = ir.Store(made, (add(p, row), add(o, column)), ir.Read(exchanged, (o,)))
    return [*steps, ir.Each((p, o), after, None, given)]


def _limited(owners: Mapping, rows: int, columns: int) -> Mapping:
    return owners if owners.shape == (rows, columns) else owners.within((rows, columns))


def _exchange(registers: Tensor, low: int, high: int, bit: int, lanes: int) -> Statement:
    lane, loc = Variable("lane"), registers.loc
    lacks = ir.Binary("==", modulo(floor_divide(lane, bit), 2), ZERO)
    lower, upper = (ir.Read(registers, (index(number),)) for number in (low, high))
    own, other = Variable("given", registers.dtype), Variable("taken", registers.dtype)
    body: tuple[Statement, ...] = (
        ir.Let(own, ir.Select(lacks, upper, lower), loc=loc),
        ir.Do("shuffle.xor", (own, index(bit)), other, loc=loc),
        ir.Store(registers, (index(high),), ir.Select(lacks, other, upper), loc=loc),
        ir.Store(registers, (index(low),), ir.Select(lacks, lower, other), loc=loc),
    )
    return ir.Each((lane,), spatial(lanes), None, ir.Sequence(body), loc=loc)
