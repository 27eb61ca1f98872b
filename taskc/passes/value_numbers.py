"""Value numbering: one number for each value, so that equal expressions are found without comparing trees."""

from __future__ import annotations

from collections.abc import Hashable

from taskc.ir.affine import is_stable
from taskc.ir.nodes import Address, Constant, Expression, Inline, Lookup, Read, Variable
from taskc.ir.rewrite import expressions


class Numbers:
    """Equal expressions have equal numbers; constants are equal if their bits are."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[Expression, int]] = {}
        self._keys: dict[Hashable, int] = {}

    def of(self, node: Expression) -> int:
        found = self._of.get(id(node))
        if found is not None:
            return found[1]
        key: Hashable
        if type(node) is Variable:
            key = node
        elif type(node) is Constant:
            key = Constant, repr(node.value), node.dtype
        else:
            parts = tuple([self.of(part) for part in expressions(node)])
            if isinstance(node, Read):
                # Memory that may change is equal only to itself.
                key = Read, node.tensor if is_stable(node.tensor) else id(node), parts
            else:
                what: Hashable = getattr(node, "operator", None)
                if isinstance(node, (Lookup, Inline)):
                    what = node.table if isinstance(node, Lookup) else node.snippet
                key = type(node), what, node.dtype, parts
                if isinstance(node, Address):
                    key = (*key, node.tensor)
        number = self._keys.setdefault(key, len(self._keys))
        self._of[id(node)] = node, number
        return number
