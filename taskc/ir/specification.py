"""What each stage permits, as data; `taskc.ir.verify` executes it.

                                  parsed selected pipelined synchronized scalar lean
    Sequence Let Allocate Store      x       x        x           x         x     x
    Atomic If While For              x       x        x           x         x     x
    Print Assert Breakpoint          x       x        x           x         x     x
    Grid Each Move Mma               x       x        x           x         .     .
    Reduce Scan                      x       .        .           .         .     .
    Pipeline                         x       x        .           .         .     .
    RingStep                         .       x        x           .         .     .
    Do Roles                         .       x        x           x         x     x
    Barrier                          .       .        x           x         x     x
    Peer                             .       .        .           x         x     x
    Constant Variable Unary Binary   x       x        x           x         x     x
    Fused Select Cast Read Inline    x       x        x           x         x     x
    Address                          .       .        x           x         x     x
    Lookup                           .       .        .           .         x     x
    global shared local              x       x        x           x         x     x
    tile                             x       x        x           x         .     .
    barrier                          .       .        x           x         x     x
    register                         .       .        .           .         x     x
    worker                           .       .        .           x         x     x
    block                            .       .        .           x         x     x

`worker` and `block` are the kernel's variables of these names; the worker of an Each may use
`worker` at every stage. `ATTRIBUTES` says at which stages an attribute has which values. Beyond
that, until pipelined what stands around the phases is uniform, and at lean an access to GLOBAL,
SHARED or REGISTER memory has one linear index, of type i32 or i64 (before, all indices are i64 and
as many as the tensor has dimensions).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from taskc.ir import nodes as ir

STAGES = ir.STAGES
PARSED, SELECTED, PIPELINED, SYNCHRONIZED, SCALAR, LEAN = range(len(STAGES))

# For each row of the table: what it is about, and its first and last stage.
_ROWS: tuple[tuple[tuple[type | str, ...], int, int], ...] = (
    ((ir.Sequence, ir.Let, ir.Allocate, ir.Store), PARSED, LEAN),
    ((ir.Atomic, ir.If, ir.While, ir.For), PARSED, LEAN),
    ((ir.Print, ir.Assert, ir.Breakpoint), PARSED, LEAN),
    ((ir.Grid, ir.Each, ir.Move, ir.Mma), PARSED, SYNCHRONIZED),
    ((ir.Reduce, ir.Scan), PARSED, PARSED),
    ((ir.Pipeline,), PARSED, SELECTED),
    ((ir.RingStep,), SELECTED, PIPELINED),
    ((ir.Do, ir.Roles), SELECTED, LEAN),
    ((ir.Barrier,), PIPELINED, LEAN),
    ((ir.Peer,), SYNCHRONIZED, LEAN),
    ((ir.Constant, ir.Variable, ir.Unary, ir.Binary), PARSED, LEAN),
    ((ir.Fused, ir.Select, ir.Cast, ir.Read, ir.Inline), PARSED, LEAN),
    ((ir.Address,), PIPELINED, LEAN),
    ((ir.Lookup,), SCALAR, LEAN),
    ((ir.GLOBAL, ir.SHARED, ir.LOCAL), PARSED, LEAN),
    ((ir.TILE,), PARSED, SYNCHRONIZED),
    ((ir.BARRIER,), PIPELINED, LEAN),
    ((ir.REGISTER,), SCALAR, LEAN),
    (("worker",), SYNCHRONIZED, LEAN),
    (("block",), SYNCHRONIZED, LEAN),
)


@dataclass(frozen=True, slots=True)
class Attribute:
    """From stage `first` to `last`, nodes of a type (or tensors, or the kernel) satisfy `holds`."""

    node: type
    says: str
    first: int
    last: int
    holds: Callable[[Any], bool]


ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute(ir.Kernel, "has no helpers", PARSED, PARSED, lambda k: k.helpers == 0),
    Attribute(ir.Kernel, "has no blocks", PARSED, PIPELINED, lambda k: k.blocks is None),
    Attribute(ir.Kernel, "has no cluster", PARSED, PIPELINED, lambda k: k.cluster == 1),
    Attribute(ir.Move, "has no how", PARSED, PARSED, lambda s: s.how is None),
    Attribute(ir.Move, "has a by", SELECTED, SYNCHRONIZED, lambda s: s.by is not None),
    Attribute(ir.Mma, "has no how", PARSED, PARSED, lambda s: s.how is None),
    Attribute(ir.Mma, "rounds nothing", SELECTED, SYNCHRONIZED, lambda s: s.by is None),
    Attribute(ir.Mma, "has a how", SELECTED, SYNCHRONIZED, lambda s: s.how is not None),
    Attribute(ir.Barrier, "is of no grid", PIPELINED, PIPELINED, lambda s: s.scope != "grid"),
    Attribute(ir.For, "is no vector loop", PARSED, SCALAR, lambda s: s.kind != "vector"),
    Attribute(ir.Tensor, "has no offset", PARSED, SELECTED, lambda t: t.offset is None),
)


def stages_of(what: type | str) -> tuple[int, int]:
    """The first and the last stage that permit a node type, a scope, `worker` or `block`."""
    return _STAGES_OF[what]


def permitted(stage: int) -> frozenset[type | str]:
    """The node types, scopes and kernel variables of a stage."""
    return _PERMITTED[stage]


def attributes(stage: int) -> dict[type, tuple[Attribute, ...]]:
    """The rules about attributes that a stage has, by node type."""
    return _ATTRIBUTES[stage]


_STAGES_OF = {item: (first, last) for items, first, last in _ROWS for item in items}
_PERMITTED = [
    frozenset(item for item, (first, last) in _STAGES_OF.items() if first <= stage <= last)
    for stage in range(len(STAGES))
]
_ATTRIBUTES = [
    {
        node: tuple(
            rule for rule in ATTRIBUTES if rule.node is node and rule.first <= stage <= rule.last
        )
        for node in {rule.node for rule in ATTRIBUTES}
    }
    for stage in range(len(STAGES))
]


def table() -> str:
    """The table at the head of this file."""
    lines = [" " * 30 + " ".join(STAGES)]
    for items, first, last in _ROWS:
        line = " ".join(item if isinstance(item, str) else item.__name__ for item in items)
        column = 30
        for stage, name in enumerate(STAGES):
            line = line.ljust(column + len(name) // 2) + ("x" if first <= stage <= last else ".")
            column += len(name) + 1
        lines.append(line)
    return "\n".join(lines)
