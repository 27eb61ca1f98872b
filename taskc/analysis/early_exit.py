"""Loops that end before their range does, which is what a `break` has become.

for q in range(n):
    if goes_on:                 where this doesn't hold, nothing happens, and nothing will:
        ...                     the rest of the range may be left out
"""

from __future__ import annotations

from taskc.ir import nodes as ir
from taskc.ir.rewrite import walk
from taskc.ir.text_rules import single_statement


def exit_condition(loop: ir.For) -> ir.Expression | None:
    """The condition without which no further iteration of the loop does anything, or None.

    It is that of all of the body, and depends on nothing but cells of the worker's own, which only the body could
    change.
    """
    body = single_statement(loop.body)
    if (
        isinstance(body, ir.If)
        and decides_by_cells(body)
        and loop.variable not in walk(body.condition)
    ):
        return body.condition
    return None


def decides_by_cells(branch: ir.If) -> bool:
    """Whether a branch is left out by what the worker itself has noted."""
    reads = [part.tensor for part in walk(branch.condition) if isinstance(part, ir.Read)]
    are_cells = all(tensor.scope == ir.LOCAL and not tensor.shape for tensor in reads)
    return bool(reads) and are_cells and branch.otherwise is None
