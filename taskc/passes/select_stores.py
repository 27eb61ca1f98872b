"""Stores of a warpgroup's results by bulk copies: through shared memory, panel by panel.

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

from taskc.analysis.coalescing import in_panels, line_of, slots_of
from taskc.analysis.facts import Facts
from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.build import ZERO, add, index, modulo, multiply
from taskc.ir.fragments import quotient_of
from taskc.ir.mapping import Mapping, repeat, spatial
from taskc.ir.nodes import GLOBAL, SHARED, Statement, Tensor, Variable
from taskc.ir.rewrite import copy, statements, substitute, walk
from taskc.ir.target import Target, WarpgroupInstruction
from taskc.passes.transports import box_refusal

Notes = list[tuple[str, Location]]


class BulkStores:
    """Selects bulk stores; `free_bytes` is the unused part of a block's shared memory."""

    def __init__(self, kernel: ir.Kernel, target: Target) -> None:
        self.rows = (
            [row for row in target.matrix if isinstance(row, WarpgroupInstruction)]
            if "tma" in target.transports
            else []
        )
        loops = (ir.For, ir.While, ir.Pipeline, ir.Grid)
        self.repeated = {
            id(inner)
            for node in (walk(kernel.body) if self.rows else ())
            if isinstance(node, loops) and not (isinstance(node, ir.Grid) and not node.persistent)
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
