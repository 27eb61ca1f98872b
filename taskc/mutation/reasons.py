"""Reasons why moving an ordering statement across others is harmless, as far as the text alone shows it."""

from __future__ import annotations

from collections.abc import Sequence

from taskc.ir import nodes as ir
from taskc.ir.nodes import Statement
from taskc.ir.rewrite import walk
from taskc.ir.target import is_asynchronous

_COPIES = {"cp.async", "cp.async.commit", "cp.async.wait"}
_GROUPS = {"wgmma.commit", "wgmma.wait"}


def harmless(statements: Sequence[Statement], place: int, other: int) -> str:
    """The reason why moving a statement past another one is harmless; empty if it may not be."""
    node = statements[place]
    if not isinstance(node, ir.Do):
        return ""
    crossed = statements[other:place] if other < place else statements[place + 1 : other + 1]
    names = {n.operation for s in crossed for n in walk(s) if isinstance(n, ir.Do)}
    names |= {str(n.how) for s in crossed for n in walk(s) if isinstance(n, ir.Mma)}
    multiplies = bool(names & _GROUPS) or any(map(is_asynchronous, names))
    if node.operation == "cp.async.commit" and not names & _COPIES:
        return "no copy starts, and none is waited for, between the two places"
    if node.operation == "wgmma.commit" and not multiplies:
        return "no product starts, and none is waited for, between the two places"
    if node.operation == "wgmma.commit" and other > place and not names & _GROUPS:
        return (
            "what starts between the two places joins the group, so that waits only wait for more"
        )
    if node.operation == "wgmma.wait" and other < place and not multiplies:
        return "no product starts between the two places, and it only waits earlier"
    return ""
