"""Between which numbers an integer variable stays, over the whole run of a kernel.

    s = 128
    while s > 0:              s is in [0, 128], and in [1, 128] here
        s //= 2

A cell holds what it was filled with, or what some Store put there. So bounds hold if every stored
value is within them, as long as the cells that it is computed from are within theirs. Bounds that
grow are widened to where they can't grow; once they hold, what is stored under them is as good a
bound, and often a tighter one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from taskc.analysis.facts import Facts
from taskc.analysis.reads import seen_through
from taskc.ir import nodes as ir
from taskc.ir.effects import written
from taskc.ir.interval import Interval, range_of
from taskc.ir.nodes import LOCAL, Expression, Tensor, Variable
from taskc.ir.rewrite import walk
from taskc.passes.proofs.flow import states

_STEPS = 3  # that bounds may take before they are widened


def cell_ranges(kernel: ir.Kernel) -> dict[Tensor, Interval]:
    """Finds the ranges of the integer variables (LOCAL tensors) that nothing but Stores write to."""
    cells = _cells(kernel)
    if not cells:
        return {}
    lets = {node.variable: node.value for node in walk(kernel.body) if isinstance(node, ir.Let)}

    def stored(known: dict[Tensor, Interval]) -> dict[Tensor, Interval]:
        return _stored(kernel, cells, lets, known)

    known = _ascended({}, tuple(cells), stored)
    for cell in known:
        # Each one alone: it may have grown only for as long as the others did.
        others = {other: interval for other, interval in known.items() if other is not cell}
        known[cell] = _ascended(others, (cell,), stored)[cell]
    return known


def _ascended(
    known: dict[Tensor, Interval],
    cells: tuple[Tensor, ...],
    stored: Callable[[dict[Tensor, Interval]], dict[Tensor, Interval]],
) -> dict[Tensor, Interval]:
    """Bounds of these cells, from nothing up, where those of others are known."""
    for step in count():
        found = stored(known)
        around = _joined if step < _STEPS else _widened
        wider = known | {c: around(known.get(c), found[c], c) for c in cells if c in found}
        if wider == known:
            break
        known = wider
    return known | {cell: found[cell] for cell in cells if cell in found}


def _cells(kernel: ir.Kernel) -> dict[Tensor, Interval | None]:
    """The cells, and what their Allocates fill them with."""
    cells: dict[Tensor, Interval | None] = {}
    others: set[Tensor] = set()
    for node in walk(kernel.body):
        match node:
            case ir.Allocate(tensor=tensor, fill=fill):
                if tensor.scope == LOCAL and tensor.dtype.is_integer:
                    start = None if fill is None else int(fill.value)
                    cells[tensor] = None if start is None else Interval(start, start)
            case ir.Atomic() | ir.Move() | ir.Mma() | ir.Reduce() | ir.Scan() | ir.Do():
                others.update(written(node))
            case _:
                pass  # stores are followed one by one, and others write nothing
    return {cell: start for cell, start in cells.items() if cell not in others}


def _stored(
    kernel: ir.Kernel,
    cells: dict[Tensor, Interval | None],
    lets: dict[Variable, Expression],
    known: dict[Tensor, Interval],
) -> dict[Tensor, Interval]:
    """All that is ever in the cells, if what is read from them is as known."""
    result = {cell: start for cell, start in cells.items() if start is not None}
    for touch, _ in states(kernel, Facts.empty(kernel, known)):
        store = touch.node
        if not isinstance(store, ir.Store) or store.tensor not in cells:
            continue
        if not (tensors_read(store.value, lets) & cells.keys()) <= known.keys():
            continue  # what it is computed from has not been stored, so far
        allowed = range_of(store.tensor.dtype)
        value = touch.known.now.interval(store.value).meet(allowed)
        result[store.tensor] = value.join(result.get(store.tensor, value))
    return result


def tensors_read(node: Expression, lets: dict[Variable, Expression]) -> set[Tensor]:
    """The tensors that an expression reads, in the values of its names too."""
    return {below.tensor for below in seen_through([node], lets) if isinstance(below, ir.Read)}


def _joined(known: Interval | None, stored: Interval, cell: Tensor) -> Interval:
    return stored if known is None else known.join(stored)


def _widened(known: Interval | None, stored: Interval, cell: Tensor) -> Interval:
    """An interval around both; an end that moved is where it can't move again."""
    if known is None:
        return stored
    low, high = _joined(known, stored, cell)
    if low != known.low:
        low = 0 if low is not None and low >= 0 else int(cell.dtype.minimum)
    if high != known.high:
        high = int(cell.dtype.maximum)
    return Interval(low, high)
