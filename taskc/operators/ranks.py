"""Tensors whose rank is data: one branch of an If adds leading axes of one element, and the other doesn't.

    then:  bool[]        else:  bool[1]        a program can't tell which

Few readers tell the two apart. A reader that broadcasts the tensor to another one of at least that rank gives the same
result for both, and so does one that reads its only element; an elementwise operator passes the question on. These
readers get the tensor without the axes. Any other reader raises the error that the If would have raised.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from taskc.operators.call import Builder, Held, Loose
from taskc.operators.graph import Node

_ELEMENTWISE = "taskc.operators.elementwise"  # each of its operators broadcasts all inputs
_OF_FIRST = ("Cast", "Clip", "Identity", "PRelu")  # the result has the first input's shape
_ELEMENTS = {("If", 0), ("Loop", 0), ("Loop", 1), ("Size", 0)}  # inputs whose shape isn't read


def settled(
    node: Node, builder: Builder, inputs: Sequence[Held | None]
) -> tuple[tuple[Held | None, ...], Loose | None]:
    """A node's inputs, each with one rank, and the loosest of them where its outputs are equally loose."""
    loose = {place: held for place, held in enumerate(inputs) if isinstance(held, Loose)}
    if not loose:
        return tuple(inputs), None
    bare = tuple([held.handle if isinstance(held, Loose) else held for held in inputs])
    loosest = max(loose.values(), key=lambda held: held.rank)
    others = [len(held.shape) for held in inputs if not isinstance(held, Loose | None)]
    is_seen = max(others, default=-1) < loosest.rank
    if node.operator in _OF_FIRST:
        if [*loose] == [0]:
            return bare, loosest
    elif builder.__module__ == _ELEMENTWISE:
        return bare, loosest if is_seen else None
    elif _is_blind(node, loose, bare, loosest.rank):
        return bare, None
    raise loosest.error


def _is_blind(node: Node, loose: dict[int, Loose], given: Sequence[Held | None], rank: int) -> bool:
    """Whether a node gives the same result for a tensor with the axes and without them."""
    if all((node.operator, place) in _ELEMENTS for place in loose):
        return True
    if [*loose] != [0]:
        return False
    shape = given[1] if len(given) > 1 else None
    if node.operator == "Reshape":
        return isinstance(shape, np.ndarray) and all(extent != 0 for extent in shape.reshape(-1))
    return node.operator == "Expand" and shape is not None and shape.shape[0] >= rank
