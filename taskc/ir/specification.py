"""The rules of each stage, as data; `taskc.ir.verify` checks them, and `table()` prints them.

`worker`, `block` and `processors` are the kernel's variables of these names; the worker of an Each may use
`worker` at every stage. `ATTRIBUTES` lists the stages at which an attribute has certain values. Beyond
that, until pipelined the code around phases is uniform, and at lean an access to GLOBAL,
SHARED or REGISTER memory has one linear index, of type i32 or i64 (before, all indices are i64 and
as many as the tensor has dimensions).
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any, get_args

from taskc.dataclass import dataclass
from taskc.ir import nodes as ir

STAGES = ir.STAGES
PARSED, SELECTED, PIPELINED, SYNCHRONIZED, SCALAR, LEAN = range(len(STAGES))

# Items that not every stage permits: node types, scopes and the kernel's variables, with their first and last stage.
_LIMITED: dict[tuple[type | str, ...], tuple[int, int]] = {
    (ir.Grid, ir.Each, ir.Move, ir.Mma, ir.TILE): (PARSED, SYNCHRONIZED),
    (ir.Reduce, ir.Scan): (PARSED, PARSED),
    (ir.Pipeline,): (PARSED, SELECTED),
    (ir.RingStep,): (SELECTED, PIPELINED),
    (ir.Do, ir.Roles, "processors"): (SELECTED, LEAN),
    (ir.Barrier, ir.Address, ir.BARRIER): (PIPELINED, LEAN),
    (ir.Peer, "worker", "block"): (SYNCHRONIZED, LEAN),
    (ir.Lookup, ir.REGISTER): (SCALAR, LEAN),
}


@dataclass(frozen=True, slots=True)
class Attribute:
    """A rule: from stage `first` to `last`, nodes of a type (or tensors, or the kernel) satisfy `holds`."""

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
    """The first and the last stage that permit a node type, a scope or a variable of the kernel."""
    return _STAGES_OF[what]


def permitted(stage: int) -> frozenset[type | str]:
    """The node types, scopes and kernel variables of a stage."""
    return _PERMITTED[stage]


def attributes(stage: int) -> dict[type, tuple[Attribute, ...]]:
    """The rules about attributes at a stage, by node type."""
    return _ATTRIBUTES[stage]


_NUMBERS = ("worker", "block", "processors")
_KINDS = (get_args(ir.Statement), get_args(ir.Expression), ir.SCOPES, _NUMBERS)
_STAGES_OF: dict[type | str, tuple[int, int]] = {
    **{item: (PARSED, LEAN) for kinds in _KINDS for item in kinds},
    **{item: stages for items, stages in _LIMITED.items() for item in items},
}
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
    """The stages that permit each node type, scope and variable of the kernel."""
    lines = [" " * 30 + " ".join(STAGES)]
    for kinds in _KINDS:
        for first, last in dict.fromkeys(_STAGES_OF[item] for item in kinds):
            marks = ["x" if first <= stage <= last else "." for stage in range(len(STAGES))]
            cells = [mark.center(len(name)) for mark, name in zip(marks, STAGES, strict=True)]
            items = [item for item in kinds if _STAGES_OF[item] == (first, last)]
            names = " ".join(item if isinstance(item, str) else item.__name__ for item in items)
            for line in textwrap.wrap(names, 29):
                lines.append(f"{line:30}{' '.join(cells)}".rstrip())
    return "\n".join(lines)
