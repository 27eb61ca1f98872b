"""Tables of the fields of nodes by type, from which traversal, rewriting and effects are derived.

A field is listed where it holds what the table is about: one or several, or nothing, or an Operand or a
Role that does. Those parts have rows of their own. An extent that is an int is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

from taskc.ir import nodes as ir
from taskc.ir.nodes import Effect

Fields: TypeAlias = "dict[type, tuple[str, ...]]"

EXPRESSION_TYPES: frozenset[type] = frozenset(get_args(ir.Expression))
STATEMENT_TYPES: frozenset[type] = frozenset(get_args(ir.Statement))
PART_TYPES: frozenset[type] = frozenset({ir.Operand, ir.Role})

# In the order of the unions, so that nothing depends on hashes.
_KINDS = (*get_args(ir.Expression), *get_args(ir.Statement), ir.Operand, ir.Role)
_HINTS = {kind: get_type_hints(kind, include_extras=True) for kind in _KINDS}


def _within(hint: Any) -> set[Any]:
    """The types that a type consists of, and the effects that mark it."""
    if get_origin(hint) is Annotated:
        kind, *effects = get_args(hint)
        return {*effects, *_within(kind)}
    if parts := get_args(hint):
        return set().union(*map(_within, parts))
    if hint in PART_TYPES:
        return {hint}.union(*map(_within, _HINTS[hint].values()))
    return {hint}


_WITHIN = {
    kind: {name: _within(hint) for name, hint in hints.items()} for kind, hints in _HINTS.items()
}


def _holding(wanted: Iterable[Any]) -> Fields:
    """The fields that contain all of these types, for nodes and parts that have any."""
    needed = frozenset(wanted)
    matching = {
        kind: tuple([name for name, within in fields.items() if needed <= within])
        for kind, fields in _WITHIN.items()
    }
    return {kind: names for kind, names in matching.items() if names}


EXPRESSION_FIELDS = _holding(EXPRESSION_TYPES)
STATEMENT_FIELDS = _holding(STATEMENT_TYPES)
TENSOR_FIELDS = _holding({ir.Tensor})
EFFECT_FIELDS: dict[Effect, Fields] = {effect: _holding({effect}) for effect in Effect}


def is_one_node(kind: type, name: str) -> bool:
    """Whether the field always contains one expression or statement."""
    return _HINTS[kind][name] in (ir.Expression, ir.Statement)


def is_tuple_of_nodes(kind: type, name: str) -> bool:
    """Whether the field is a tuple of expressions or of statements."""
    return _HINTS[kind][name] in (tuple[ir.Expression, ...], tuple[ir.Statement, ...])
