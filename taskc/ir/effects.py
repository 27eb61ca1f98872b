"""Effects of a node on tensors, by the marks of its fields; those of a `Do` by the table of its operation.

An Address reads nothing, and what an expression reads is no effect of the statement it is in: `walk` comes to both.
"""

from __future__ import annotations

from collections.abc import Iterator

from taskc.ir import nodes as ir
from taskc.ir.fields import EFFECT_FIELDS
from taskc.ir.nodes import Effect, Tensor
from taskc.ir.operations import OPERATIONS
from taskc.ir.rewrite import Node, held_by


def written(node: Node) -> Iterator[Tensor]:
    """The tensors whose elements `node` itself writes."""
    return _touched(node, Effect.WRITES)


def read(node: Node) -> Iterator[Tensor]:
    """The tensors whose elements `node` itself reads."""
    return _touched(node, Effect.READS)


def _touched(node: Node, effect: Effect) -> Iterator[Tensor]:
    yield from held_by(node, EFFECT_FIELDS[effect])
    if isinstance(node, ir.Do):
        row = OPERATIONS[node.operation]
        for number in row.writes if effect is Effect.WRITES else row.reads:
            place = node.operands[number]
            if isinstance(place, ir.Address):
                yield place.tensor
