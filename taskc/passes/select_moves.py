"""Instructions for moves: of whole matrices, of rows that become columns, and of results by bulk copies.

Between shared memory and fragments there are instructions for whole matrices:

    move left[i, q] = sa[i, kk + q] for (i, q) in (32, 16) by spatial(2, 1) * left fragment
    move right[q, j] = sb[kk + q, j] for (q, j) in (16, 32) by ... * right fragment
->
    move left[i, q] = sa[i, kk + q] for (i, q) in (32, 16) by ... how=ldmatrix.x4
    move right[q, j] = sb[kk + q, j] for (q, j) in (16, 32) by ... how=ldmatrix.x4.trans

    move s[i, j] = t[i, 16 * n + j] for (i, j) in (16, 16) by fragment
->
    tile s_lines: f16[16, 16] by fragment
    move s_lines[i, j] = t[i, 16 * n + j] for (i, j) in (16, 16) by fragment
    move s[i, j] = s_lines[i, j] for (i, j) in (16, 16) by fragment how=stmatrix.x4

The owners of the elements decide, by enumeration, and every line of 16 bytes has to be aligned. If no
instruction fits, each worker moves its own elements. A stored part of a tile is first copied to registers of its
own: the assembler sees that they are the same registers.

A copy between tiles of a vector of workers, from rows along its lanes to columns along them, is made of shuffles:

    move turned[p, o] = made[p, o] for (p, o) in (14, 16)
            made by repeat(14, 1).spatial(1, 16), turned by repeat(1, 16).spatial(16, 1).within(14, 16)
->
    square[p] = made[p, o]                                 by the owners of made
    turn(&square[0], 16)
    turned[p, o] = square[o]                               by the owners of turned

So 16 registers take 64 shuffles of two vectors; larger tiles are such squares. Through memory it would be an access
for each number.

A warpgroup's results are stored by bulk copies, through shared memory, panel by panel:

    move c[row + i, col + j] = acc[i, j] for (i, j) in (128, 256) by spatial(2, 1) * fragment of 256 columns
->
    shared acc_out: bf16[2, 128, 64].swizzled(3, 3, 6)
    for n in unroll(4):
        do tma.wait(1)
        move acc_out[n % 2, i, j] = acc[i, n * 64 + j] for (i, j) in (128, 64) by spatial(2, 1) * fragment of 64
        move c[row + i, col + n * 64 + j] = acc_out[n % 2, i, j] for (i, j) in (128, 64)
            by spatial(2, 1).repeat(64, 64) how=tma

A fragment has pieces of 4 or 8 bytes of each row: stored directly, they would waste most of a memory
request. A bulk copy takes whole lines, and drops elements outside the tensor. One worker issues it. Before a slot
is reused, that worker waits for the copy that reads it, while copies from other slots go on; a barrier
after the wait lets the others write (taskc/passes/synchronize.py places that barrier, and the one before the copy;
taskc/passes/await_products.py the fence before it). If all panels have slots, and tiles follow one
another, it waits for all of them once, before the first is written.
If the rows of each warpgroup are contiguous, one of its workers sends them: warpgroups don't wait for each
other, and while one stores, the other one multiplies.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from taskc.analysis.coalescing import facts_of_names, in_panels, line_of, move_width, slots_of
from taskc.analysis.facts import Facts
from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.build import ZERO, add, index, modulo, multiply
from taskc.ir.fragments import LINE_BYTES, axis_along, line_namers, memory_side, quotient_of
from taskc.ir.mapping import Mapping, repeat, spatial
from taskc.ir.nodes import GLOBAL, LOCAL, SHARED, TILE, Statement, Tensor, Variable
from taskc.ir.operations import TURN
from taskc.ir.rewrite import copy, map_statements, statements, substitute, walk
from taskc.ir.target import Target, WarpgroupInstruction
from taskc.passes.persist import has_turns
from taskc.passes.transports import box_refusal


def with_matrix_moves(body: Statement, target: Target) -> Statement:
    """The body, with matrix-move instructions where they fit."""
    if not target.moves:
        return body
    known = facts_of_names(body)

    def visit(statement: Statement) -> Statement:
        if isinstance(statement, ir.Move):
            chosen = _chosen(statement, target, known)
            return _through_registers(statement, target, known) if chosen is statement else chosen
        return map_statements(statement, visit)

    return visit(body)


def _through_registers(move: ir.Move, target: Target, known: Facts) -> Statement:
    """A store of a part of a tile, or of values computed from one, as a store of a whole tile, if that has lines."""
    tiles = (n for n in walk(move.value) if isinstance(n, ir.Read) and n.tensor.scope == TILE)
    if move.tensor.scope != SHARED or move.by is None or next(tiles, None) is None:
        return move
    loc = move.loc
    name, dtype = f"{move.tensor.name}_lines", move.tensor.dtype
    lines = Tensor(name, dtype, move.shape, TILE, owners=move.by, loc=loc)
    stored = replace(move, value=ir.Read(lines, move.variables, loc=loc))
    chosen = _chosen(stored, target, known)
    if chosen is stored:
        return move
    fill = replace(move, tensor=lines, indices=move.variables)
    return ir.Sequence((ir.Allocate(lines, loc=loc), fill, copy(chosen)), loc=loc)


def _chosen(move: ir.Move, target: Target, known: Facts) -> ir.Move:
    side = memory_side(move) if move.how is None else None
    if side is None:
        return move
    tensor, indices = side
    axis = axis_along(indices, move.variables)
    if axis is None or _width_along(move, axis, target, known) * tensor.dtype.nbytes < LINE_BYTES:
        return move
    assert move.by is not None
    for row in target.moves:
        is_load = move.tensor.scope != SHARED
        if row.is_load == is_load and line_namers(move.by, axis, row, tensor) is not None:
            return replace(move, how=row.name)
    return move


def _width_along(move: ir.Move, axis: int, target: Target, known: Facts) -> int:
    """The number of elements from a line's beginning on that are aligned together."""
    variables, shape = move.variables, move.shape
    if axis == 0:  # `move_width` looks at the last variable
        variables, shape = variables[::-1], shape[::-1]
    return move_width(replace(move, variables=variables, shape=shape), target, known)


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


Notes = list[tuple[str, Location]]


class BulkStores:
    """Selects bulk stores; `free_bytes` is the unused part of a block's shared memory."""

    def __init__(self, kernel: ir.Kernel, target: Target) -> None:
        self.rows = (
            [row for row in target.matrix if isinstance(row, WarpgroupInstruction)]
            if "tma" in target.transports
            else []
        )
        self.repeated = {
            id(inner)
            for node in (walk(kernel.body) if self.rows else ())
            if isinstance(node, ir.For | ir.While | ir.Pipeline)
            or (isinstance(node, ir.Grid) and has_turns(node, target))
            for inner in walk(node)
            if isinstance(inner, ir.Move)
        }
        self.free_bytes = target.shared_bytes - _shared_bytes(kernel.body, 1) if self.rows else 0

    def store(self, move: ir.Move, owners: Mapping, known: Facts, notes: Notes) -> Statement | None:
        """The store of these owners' results by bulk copies; None, with a note, if that isn't possible."""
        if move.tensor.scope != GLOBAL or len(move.shape) != 2 or move.shape != owners.iterated:
            return None
        fitting = self.fragment(owners)
        if fitting is None:
            return None
        row, quotient = fitting
        panel_stores = self.panels(move, row, quotient, known)
        if isinstance(panel_stores, str):
            notes.append((f"this store does not travel by tma: {panel_stores}", move.loc))
            return None
        return panel_stores

    def fragment(self, owners: Mapping) -> tuple[WarpgroupInstruction, Mapping] | None:
        """The widest fragment that divides a mapping, and the quotient."""
        for row in self.rows:
            quotient = quotient_of(owners, row)
            if quotient is not None:
                return row, quotient
        return None

    def panels(
        self, move: ir.Move, row: WarpgroupInstruction, quotient: Mapping, known: Facts
    ) -> Statement | str:
        tensor, loc = move.tensor, move.loc
        rows, columns = move.shape
        if quotient.shape[1] != 1:
            return "its columns are of several warpgroups or fragments"
        whole = in_panels(Tensor("out", tensor.dtype, move.shape, SHARED))
        line = None if whole is None else line_of(whole)
        by = next(
            (
                quotient * other.accumulator_fragment
                for other in self.rows
                if other.types == row.types and other.shape[1] == line
            ),
            None,
        )
        if line is None or by is None:
            return "no fragment has as many columns as a panel"
        assert whole is not None
        refusal = box_refusal(
            replace(whole, shape=(rows, line), layout=None),
            move,
            ir.Read(tensor, move.indices),
            move.guard,
            known,
        )
        if refusal is not None:
            return f"it {refusal}"
        count = columns // line
        name = next(
            (n.tensor.name for n in walk(move.value) if isinstance(n, ir.Read) and n.tensor.owners),
            tensor.name,
        )
        one = replace(whole, name=f"{name}_out", shape=(rows, line), layout=None, loc=loc)
        slots = slots_of(one, min(count, 2))
        needed = prod(n for n in slots.shape if isinstance(n, int)) * tensor.dtype.nbytes
        if needed > self.free_bytes:
            return f"the {needed} bytes of shared memory that it takes are not left"
        self.free_bytes -= needed
        groups = quotient.workers
        together = spatial(groups, 1) * repeat(quotient.shape[0] // groups, 1)
        senders = spatial(groups if quotient == together else 1, 1)
        return self.through(move, slots, by, senders, count, line)

    def through(
        self, move: ir.Move, slots: Tensor, by: Mapping, senders: Mapping, count: int, line: int
    ) -> Statement:
        loc = move.loc
        n, (i, j) = Variable("n", loc=loc), move.variables
        panel = n if count > 1 else ZERO
        slot = modulo(panel, 2) if count > 1 else ZERO
        column = {j: add(multiply(panel, line), j)}
        shape = (move.shape[0], line)
        write = replace(
            move, tensor=slots, indices=(slot, i, j), shape=shape, by=by, guard=None,
            value=substitute(move.value, column),
        )  # fmt: skip
        send = replace(
            move, indices=tuple(substitute(x, column) for x in move.indices), shape=shape,
            by=senders * repeat(shape[0] // senders.workers, line),
            guard=None if move.guard is None else substitute(move.guard, column),
            value=ir.Read(slots, (slot, i, j), loc=loc), how="tma",
        )  # fmt: skip
        used = slots.shape[0] if count > 1 else 1
        assert isinstance(used, int)
        again = count > used  # within a tile
        wait = [ir.Do("tma.wait", (index(used - 1 if again else 0),), loc=loc)]
        body: Statement = ir.Sequence((*(wait if again else []), write, copy(send)), loc=loc)
        if count > 1:
            body = ir.For(n, ZERO, index(count), 1, body, "unroll", loc=loc)
        before: list[Statement] = []
        if id(move) in self.repeated and (not again or count % used):
            before = [ir.Do("tma.wait", (ZERO,), loc=loc)]
        return ir.Sequence((ir.Allocate(slots, loc=loc), *before, body), loc=loc)


def _shared_bytes(statement: Statement, stages: int) -> int:
    """Total bytes of a program's shared tensors, those in rings once for each slot."""
    total = 0
    pending = [(statement, stages)]
    while pending:
        node, times = pending.pop()
        if isinstance(node, ir.Allocate) and node.tensor.scope == SHARED:
            count = prod(n for n in node.tensor.shape if isinstance(n, int))
            total += times * count * node.tensor.dtype.nbytes
        if isinstance(node, ir.Pipeline):
            times *= node.stages
        pending += [(inner, times) for inner in statements(node)]
    return total
