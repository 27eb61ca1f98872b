"""Loops that end before their range does, the form of a lowered `break`.

for q in range(n):
    if goes_on:                 if this doesn't hold, nothing happens, now and later:
        ...                     the rest of the range may be skipped
"""

from __future__ import annotations

from taskc.ir import nodes as ir
from taskc.ir.rewrite import walk
from taskc.ir.text_rules import single_statement


def exit_condition(loop: ir.For) -> ir.Expression | None:
    """The condition without which no further iteration of the loop has an effect, or None.

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
    """Whether a branch depends only on the worker's own scalar cells."""
    reads = [part.tensor for part in walk(branch.condition) if isinstance(part, ir.Read)]
    are_cells = all(tensor.scope == ir.LOCAL and not tensor.shape for tensor in reads)
    return bool(reads) and are_cells and branch.otherwise is None
