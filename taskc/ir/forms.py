"""The text of statements, each declared once: from a form follow its rule of the grammar, its printer and its parser.

A form is a statement's text with its fields in braces, as `{name: kind}`. Text between < and > is left out where its
field is None, false or empty. A form that ends with a colon is followed by the block of `body`. Kinds are printed by
ir/printer.py and read by ir/parser.py.

Let, Allocate, Sequence, If, For and Roles have no form: ir.lark has their rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from taskc.dataclass import dataclass
from taskc.ir import nodes as ir

FORMS: dict[type, str] = {
    ir.Peer: "peer {tensor: peer} = {of: tensor} at {rank: index}",
    ir.Store: "{tensor indices: place} = {value: element}",
    ir.Atomic: "<let {result: old} = >atomic {tensor indices: place} {operator: ATOMIC} {value: element}",
    ir.Do: "<let {result: result} = >do {operation: operation}({operands: operands})",
    ir.While: "while {condition: condition}:",
    ir.Grid: "grid {variables: binders} in {shape: extents} by {by: tiles}"
    "< order={order: order}>< {persistent: PERSISTENT}>< cluster={cluster: sizes}>:",
    ir.Pipeline: "pipeline {variable: binder} in {extent: index} by {by: INT} stages={stages: INT}"
    "< transport={transport: word}>< {specialize: SPECIALIZE}>< turns={turns: NAME}>:",
    ir.Each: "each {variables: binders} in {mapping: MAPPING}< on {worker: index}>:",
    ir.Move: "move {tensor indices: place} = {value: element} for {variables: binders} in {shape: sizes}"
    "< if {guard: condition}>< by {by: MAPPING}>< how={how: word}>",
    ir.Mma: "mma {accumulator: tensor} += {left: operand} @ {right: operand}"
    "< by {by: dtype}>< onto {accumulate: condition}>< how={how: word}>",
    ir.Reduce: "reduce {targets: names} = {operator: fold} over {sources: names} axis={axis: INT}",
    ir.Scan: "scan {targets: names} = {operator: fold} over {sources: names} axis={axis: INT}< {exclusive: EXCLUSIVE}>",
    ir.Print: "print {text: STRING}{values: more}",
    ir.Assert: "assert {condition: condition}, {text: STRING}",
    ir.Breakpoint: "breakpoint< block={block: INT}>< worker={worker: INT}>",
    ir.RingStep: "{operation: RING_STEP} {ring: ring}[{step: index}]",
    ir.Barrier: "barrier {scope: BARRIER_SCOPE}< orders {orders: STRING}>",
}

BINDERS = frozenset({"binder", "binders"})  # of names for the rest of the statement
# The kinds that aren't read first: those that need what others bind, or what is known of others.
LATER = {
    **dict.fromkeys(BINDERS, 1),
    **dict.fromkeys(("place", "element", "condition"), 2),
    **dict.fromkeys(("peer", "old", "result"), 3),
}

# The grammar's symbols of kinds that aren't named by theirs.
_SYMBOLS = {
    **dict.fromkeys(("element", "index", "condition"), "expression"),
    **dict.fromkeys(("tensor", "peer", "ring"), "NAME"),
    **dict.fromkeys(("old", "result"), "binder"),
    "operation": "word",
    "fold": "(FOLD | NAME)",
    "tiles": "sizes",
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field, or several that are written as one, such as an element's tensor and indices.

    before, after  what is left out with an optional field
    """

    names: tuple[str, ...]
    kind: str
    is_optional: bool = False
    before: str = ""
    after: str = ""


def _parts(form: str) -> Iterator[str | Field]:
    for piece in re.findall(r"<[^>]*>|\{[^}]*\}|[^<{]+", form):
        if piece[0] not in "<{":
            yield piece
            continue
        is_optional = piece[0] == "<"
        before, field, after = re.split(r"[{}]", piece[1:-1] if is_optional else piece)
        names, kind = field.split(": ")
        yield Field(tuple(names.split()), kind, is_optional, before, after)


PARTS = {kind: tuple(_parts(form)) for kind, form in FORMS.items()}
FIELDS = {
    kind: tuple([part for part in parts if isinstance(part, Field)])
    for kind, parts in PARTS.items()
}
# Each field's place in the text, in the order in which they are read.
READING = {
    kind: sorted(enumerate(fields), key=lambda pair: LATER.get(pair[1].kind, 0))
    for kind, fields in FIELDS.items()
}
SCOPES = frozenset(
    kind for kind, fields in FIELDS.items() if any(field.kind in BINDERS for field in fields)
)
BLOCKS = frozenset(kind for kind, form in FORMS.items() if form.endswith(":"))


def with_forms(grammar: str) -> str:
    """The grammar with the rules of forms in place of `simple_form`, and of `block_form` for those with a block."""
    rules = {kind: " ".join(map(_symbols, parts)) for kind, parts in PARTS.items()}
    simple = [f"{rules[kind]} -> {name_of(kind)}" for kind in FORMS if kind not in BLOCKS]
    blocks = [f"{rules[kind]} block -> {name_of(kind)}" for kind in FORMS if kind in BLOCKS]
    grammar = grammar.replace("simple_form", " | ".join(simple))
    return grammar.replace("block_form", " | ".join(blocks))


def name_of(kind: type) -> str:
    """The name of a form's trees."""
    return kind.__name__.lower()


def _symbols(part: str | Field) -> str:
    if isinstance(part, str):
        return " ".join([f'"{word}"' for word in re.findall(r"\w+|[^\w\s]+", part)])
    symbol = _SYMBOLS.get(part.kind, part.kind)
    return (
        f"[{_symbols(part.before)} {symbol} {_symbols(part.after)}]" if part.is_optional else symbol
    )
