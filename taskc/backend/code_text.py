"""The text that determines a kernel's code: equal texts give equal code."""

from __future__ import annotations

from taskc.ir import nodes as ir
from taskc.ir.printer import to_text
from taskc.ir.rewrite import walk


def code_text(kernel: ir.Kernel) -> str:
    """The kernel's text and the locations of its assertions, which are part of their messages."""
    places = [node.loc for node in walk(kernel.body) if isinstance(node, ir.Assert)]
    return f"{to_text(kernel)}{places!r}"
