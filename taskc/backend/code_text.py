"""What a kernel's code is made from, as text: where it is equal, so is the code."""

from __future__ import annotations

from taskc.ir import nodes as ir
from taskc.ir.printer import to_text
from taskc.ir.rewrite import walk


def code_text(kernel: ir.Kernel) -> str:
    """The kernel's own text, and where its assertions stand, which they say when they fail."""
    places = [node.loc for node in walk(kernel.body) if isinstance(node, ir.Assert)]
    return f"{to_text(kernel)}{places!r}"
