"""Tensors whose rank is data: branches of an If gave one of them leading axes of one element, and the other none.

    then:  bool[]        else:  bool[1]        which one, a program can't tell

Few readers tell the two apart. Those that only broadcast such a tensor to another one of that rank make the same of
both; those that only want its one element do, too; what works element by element passes the question on. So readers
get the tensor without these axes, and any other reader raises the error that the If would have raised.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from taskc.operators.call import Builder, Held, Loose
from taskc.operators.graph import Node

_ELEMENTWISE = "taskc.operators.elementwise"  # where each operator broadcasts all of its inputs
_OF_FIRST = ("Cast", "Clip", "Identity", "PRelu")  # whose result has the shape of the first input
_ELEMENTS = {("If", 0), ("Loop", 0), ("Loop", 1), ("Size", 0)}  # no shape is looked at


def settled(
    node: Node, builder: Builder, inputs: Sequence[Held | None]
) -> tuple[tuple[Held | None, ...], Loose | None]:
    """A node's inputs, each with one rank; and the loosest of them where its outputs are as loose."""
    loose = {place: held for place, held in enumerate(inputs) if isinstance(held, Loose)}
    if not loose:
        return tuple(inputs), None
    given = tuple([held.handle if isinstance(held, Loose) else held for held in inputs])
    loosest = max(loose.values(), key=lambda held: held.rank)
    others = [len(held.shape) for held in inputs if not isinstance(held, Loose | None)]
    is_seen = max(others, default=-1) < loosest.rank
    if node.operator in _OF_FIRST:
        if [*loose] == [0]:
            return given, loosest
    elif builder.__module__ == _ELEMENTWISE:
        return given, loosest if is_seen else None
    elif _is_blind(node, loose, given, loosest.rank):
        return given, None
    raise loosest.error


def _is_blind(node: Node, loose: dict[int, Loose], given: Sequence[Held | None], rank: int) -> bool:
    """Whether a node makes the same of a tensor with the axes and without them."""
    if all((node.operator, place) in _ELEMENTS for place in loose):
        return True
    if [*loose] != [0]:
        return False
    shape = given[1] if len(given) > 1 else None
    if node.operator == "Reshape":
        return isinstance(shape, np.ndarray) and all(extent != 0 for extent in shape.reshape(-1))
    return node.operator == "Expand" and shape is not None and shape.shape[0] >= rank
