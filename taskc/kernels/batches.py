"""Products of many matrices: which ones belong together, as NumPy broadcasts shapes.

A kernel counts the products, and its operands' batch axes are made of that number: where an operand has an
extent of 1, or no such axis, it is the same one for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import taskc as tc
from taskc import CompileError

Extents = Sequence[Any]  # each an int, or a tc.dim
MOST = 3


def broadcast(a: Extents, b: Extents) -> tuple[Any, ...]:
    """The batch axes of the result."""
    rank = max(len(a), len(b))
    if rank > MOST:
        raise CompileError(
            f"products have at most {MOST} batch axes, and these {rank}",
            hint="neighbours that both operands have, or that one has, are one axis as well",
        )
    whole = []
    for one, other in zip(_padded(a, rank), _padded(b, rank), strict=True):
        if not (is_one(one) or is_one(other) or one is other or one == other):
            raise CompileError(
                f"the batch axes {tuple(a)} and {tuple(b)} can't be broadcast",
                hint=f"an axis has the extents {one}, {other}",
            )
        whole.append(other if is_one(one) else one)
    return tuple(whole)


def is_one(extent: Any) -> bool:
    return isinstance(extent, int) and extent == 1


def element_of(own: Extents, whole: Extents) -> Callable[..., Any]:
    """All indices of a matrix's element: a function of the product's number, and of two indices."""
    once = [is_one(extent) for extent in _padded(own, MOST)]
    _, middle, last = _padded(whole, MOST)
    inner = prod((middle, last))
    leading = [all(map(is_one, _padded(whole, MOST)[:axis])) for axis in range(MOST)]
    rank = len(own) + 2

    @tc.function
    def element(number, i, j):
        return (
            0 if once[0] else number // inner,
            0 if once[1] else number // last if leading[1] else number // last % middle,
            0 if once[2] else number if leading[2] else number % last,
            i,
            j,
        )[-rank:]

    return element


def _padded(extents: Extents, rank: int) -> tuple[Any, ...]:
    return (1,) * (rank - len(extents)) + tuple(extents)
