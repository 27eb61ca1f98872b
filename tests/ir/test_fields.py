"""What traversal and rewriting know of a node comes from the types of its fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from taskc.ir import nodes as ir
from taskc.ir.nodes import Effect
from taskc.ir.rewrite import (
    EFFECT_FIELDS,
    EXPRESSION_TYPES,
    PART_TYPES,
    STATEMENT_TYPES,
    bound_by,
    copy,
    expressions,
    statements,
    tensors_of,
    walk,
)
from tests.ir.stage_programs import PROGRAMS

NODES = EXPRESSION_TYPES | STATEMENT_TYPES
# What else is made of frozen fields: names and what describes them, and the whole.
OTHERS = {ir.Swizzle, ir.Tensor, ir.Ring, ir.Table, ir.Snippet, ir.Combine, ir.Kernel}


def test_every_class_of_nodes_is_of_a_union() -> None:
    classes = {
        kind
        for kind in vars(ir).values()
        if isinstance(kind, type) and kind.__module__ == ir.__name__ and kind is not Effect
    }
    left_out = sorted(kind.__name__ for kind in classes - NODES - PART_TYPES - OTHERS)
    assert not left_out, f"taskc/ir/nodes.py: {left_out} stand in neither Expression nor Statement"


def test_the_programs_have_every_node() -> None:
    found = {type(node) for program in PROGRAMS for node in walk(program().body)}
    missing = sorted(kind.__name__ for kind in NODES - found)
    assert not missing, f"tests/ir/stage_programs.py: no program has {missing}"


def _held(value: Any) -> Iterator[Any]:
    """Nodes and names, however they are held: by no table, but by what is there."""
    if type(value) in NODES or isinstance(value, ir.Tensor):
        yield value
    elif type(value) in PART_TYPES:
        for field in dataclasses.fields(value):
            yield from _held(getattr(value, field.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from _held(item)


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_node_holds_is_found(program: Any) -> None:
    for node in walk(program().body):
        if isinstance(node, ir.Variable):
            continue
        bound = [*bound_by(node)]
        found = [*expressions(node), *statements(node), *tensors_of(node), *bound]
        fields = [f.name for f in dataclasses.fields(node) if f.name != "fill"]  # not evaluated
        held = [item for name in fields for item in _held(getattr(node, name))]
        assert sorted(map(id, held)) == sorted(map(id, found)), node


def _bound(body: ir.Statement) -> list[Any]:
    made = [name for node in walk(body) for name in bound_by(node)]
    return made + [node.tensor for node in walk(body) if isinstance(node, (ir.Allocate, ir.Peer))]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_copy_has_names_of_its_own(program: Any) -> None:
    body = program().body
    first, second = _bound(body), _bound(copy(body))
    assert len(first) == len(second)
    assert not {*first} & {*second}


def test_what_a_node_does_to_a_name_is_marked() -> None:
    """Every tensor of a statement is bound, read or written; those of operations and Peers their users say."""
    marked = {
        (kind, name)
        for table in EFFECT_FIELDS.values()
        for kind, names in table.items()
        for name in names
    }
    unmarked = {
        f"{kind.__name__}.{field.name}"
        for kind in (*NODES, ir.Operand)
        for field in dataclasses.fields(kind)
        if field.type in ("Tensor", "Variable", "Variable | None")
        and (kind, field.name) not in marked
    }
    assert unmarked == {"Address.tensor", "Peer.of"}, "taskc/ir/nodes.py"
