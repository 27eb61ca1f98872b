"""The parser of kernels in text form, printed by `taskc.ir.printer` or written by hand.

    parse(text) -> Kernel

The grammar is ir.lark. lark makes a tree; a builder turns it into nodes from the top down, since a
number's type comes from its surroundings. A name means what was bound to it last in a scope that is
still open; a name in use can't be bound again. Every node gets its place in the text.

Each kind of tree has a method of its grammar rule's name: statements here, expressions in
`taskc.ir.parser_expressions`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence, Sequence as List
from contextlib import nullcontext
from dataclasses import MISSING, fields, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from lark import Token

from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.bits import bytes_of, words_of
from taskc.ir.code_size import deep, too_deep
from taskc.ir.forms import BLOCKS, FORMS, READING, SCOPES, name_of
from taskc.ir.mapping import Mapping
from taskc.ir.mapping_forms import MappingError
from taskc.ir.nodes import Expression, Statement
from taskc.ir.operations import OPERATIONS
from taskc.ir.parser_expressions import ExpressionParser, Node, ParsedNames, location, syntax_tree
from taskc.ir.text_rules import FUNCTIONS, result_type
from taskc.ir.types import boolean, i32, i64


@lru_cache(maxsize=1024)
def _mapping(text: str) -> Mapping:
    return Mapping.parse(text)


_SCOPES = {"mbarrier": ir.BARRIER}


class Statements:
    """Turns trees into statements, and into the tensors that they declare."""

    def __init__(self, text: str, file: str) -> None:
        self.names = ParsedNames(text, file)
        self.expression = ExpressionParser(self.names)

    # --- blocks ---

    def body(self, tree: Node) -> Statement:
        statements = self.statements(tree)
        return statements[0] if len(statements) == 1 else ir.Sequence(statements)

    def statements(self, tree: Node) -> tuple[Statement, ...]:
        """The statements of a scope; declarations of rings, tables and snippets produce none."""
        with self.names.nested():
            parsed = [self.statement(child) for child in tree.children]
        return tuple([statement for statement in parsed if statement is not None])

    def statement(self, tree: Node) -> Statement | None:
        loc = self.names.location(tree)
        try:
            kind = _FORMED.get(tree.data)
            if kind is not None:
                return self.formed(kind, tree, loc)
            return _STATEMENTS[tree.data](self, tree, loc)
        except RecursionError:
            raise too_deep(loc) from None

    def formed(self, kind: type[Statement], tree: Node, loc: Location) -> Statement:
        """A statement that has a form: fields in the order of the text, but names before what they are bound for."""
        values: dict[str, Any] = dict.fromkeys(_REQUIRED[kind])
        with self.names.nested() if kind in SCOPES else nullcontext():
            for place, field in READING[kind]:
                child = tree.children[place]
                if child is not None:
                    found = _KINDS[field.kind](self, child, values)
                    several = found if len(field.names) > 1 else (found,)
                    values |= zip(field.names, several, strict=True)
            if kind in BLOCKS:
                values["body"] = self.body(tree.children[-1])
        return kind(**values, loc=loc)

    def pass_(self, tree: Node, loc: Location) -> Statement:
        return ir.Sequence((), loc=loc)

    def scope(self, tree: Node, loc: Location) -> Statement:
        return ir.Sequence(self.statements(tree.children[0]), loc=loc)

    def if_(self, tree: Node, loc: Location) -> Statement:
        condition, then, *alternatives = tree.children
        otherwise: Statement | None = None
        if alternatives and alternatives[-1].data == "else_":
            otherwise = self.body(alternatives.pop().children[0])
        for part in reversed(alternatives):
            test, block = part.children
            otherwise = ir.If(
                self.expression(test, None),
                self.body(block),
                otherwise,
                loc=self.names.location(part),
            )
        return ir.If(self.expression(condition, None), self.body(then), otherwise, loc=loc)

    def for_(self, tree: Node, loc: Location) -> Statement:
        binder, word, arguments, block = tree.children
        declared = self.names.declared(binder)
        trees = arguments.children
        if len(trees) > 3:
            raise self.names.error(f"{word} takes one to three arguments", arguments)
        bounds = self.expression.operands(trees[:2], declared or i64)
        step = 1
        if len(trees) == 3:
            value = self.expression(trees[2], i64)
            if not isinstance(value, ir.Constant) or value.dtype is not i64:
                raise self.names.error("a step is an integer constant", trees[2])
            step = int(value.value)
        dtype = declared or self.expression.type_among(trees[:2], bounds) or i64
        if len(bounds) == 1:
            bounds = (ir.Constant(0, dtype, loc=loc), *bounds)
        with self.names.nested():
            variable = self.names.bind(binder, dtype)
            body = self.body(block)
        kind = "serial" if word == "range" else str(word)
        return ir.For(variable, bounds[0], bounds[1], step, body, kind, loc=loc)

    def roles(self, tree: Node, loc: Location) -> Statement:
        found = []
        for part in tree.children:
            name, first, workers, block = part.children
            body = self.body(block)
            found.append(ir.Role(self.names.title(name), int(first), int(workers), body))
        return ir.Roles(tuple(found), loc=loc)

    # --- simple statements ---

    def let(self, tree: Node, loc: Location) -> Statement:
        binder, value_tree = tree.children
        value = self.expression(value_tree, self.names.declared(binder))
        return ir.Let(self.names.bind(binder, value.dtype), value, loc=loc)

    def allocate(self, tree: Node, loc: Location) -> Statement:
        parts = list(tree.children)
        attributes: dict[str, Any] = {}
        if parts[0].type == "CONSTANT":
            attributes["constant"] = True
            del parts[0]
        word, name, type_tree, *modifiers = parts
        fill_tree: Node | None = None
        for part in modifiers:
            if part.data == "by":
                attributes["owners"] = self.mapping(part.children[0])
            else:
                fill_tree = part.children[0]
        tensor = self.tensor(name, type_tree, _SCOPES.get(str(word), str(word)), **attributes)
        fill = None if fill_tree is None else self.expression(fill_tree, tensor.dtype)
        if fill is not None and not isinstance(fill, ir.Constant):
            raise self.names.error("a tensor is filled with a constant", fill_tree)
        return ir.Allocate(self.names.define(name, tensor), fill, loc=loc)

    # --- tensors ---

    def tensors(self, tree: Node) -> tuple[ir.Tensor, ...]:
        return tuple([self.names.find(name, ir.Tensor) for name in tree.children])

    def operator(self, token: Token) -> str | ir.Combine:
        return self.names.find(token, ir.Combine) if token.type == "NAME" else str(token)

    def tensor(self, name: Token, tree: Node, scope: str, **more: Any) -> ir.Tensor:
        dtype = self.names.dtype(tree.children[0])
        shape: tuple[int | Expression, ...] = ()
        held_in: Callable[[ir.Tensor], ir.Tensor] | None = None
        if tree.data == "type":
            shape = self.extents(tree.children[1].children)
            for modifier in tree.children[2:]:
                values = modifier.children
                match modifier.data:
                    case "reshaped":
                        more["given"] = shape
                        shape = self.extents([v for v in values if v is not None])
                    case "laid":
                        more["layout"] = self.mapping(values[0])
                    case "swizzled":
                        more["swizzle"] = ir.Swizzle(*map(int, values))
                    case "as_bytes":
                        held_in = bytes_of
                    case "as_words":
                        held_in = words_of
                    case _:
                        more["offset"] = int(values[0])
        tensor = ir.Tensor(str(name), dtype, shape, scope, **more, loc=self.names.location(name))
        return tensor if held_in is None else held_in(tensor)

    def extents(self, trees: List[Node]) -> tuple[int | Expression, ...]:
        found = []
        for tree in trees:
            extent = self.expression(tree, i64)
            plain = isinstance(extent, ir.Constant) and extent.dtype is i64
            found.append(int(extent.value) if plain else extent)  # type: ignore[union-attr]
        return tuple(found)

    def mapping(self, token: Node) -> Mapping:
        try:
            return _mapping(str(token))
        except MappingError as error:
            raise self.names.error(f"in the mapping: {error}", token) from None

    # --- declarations, which leave no statement ---

    def ring(self, tree: Node, loc: Location) -> None:
        name, *members, stages, transport = tree.children
        tensors = tuple([self.names.find(member, ir.Tensor) for member in members])
        ring = ir.Ring(str(name), tensors, int(stages), self.names.word(transport))
        self.names.define(name, ring)

    def table(self, tree: Node, loc: Location) -> None:
        name, text = tree.children
        try:
            values = np.array(json.loads(str(text)), np.int64)
        except (ValueError, OverflowError):
            raise self.names.error("a table is a list of integers", text) from None
        self.names.define(name, ir.Table(str(name), values))

    def snippet(self, tree: Node, loc: Location) -> None:
        name, *binders, meaning, text = tree.children
        with self.names.nested():
            parameters = tuple([self.names.bind(binder, i64) for binder in binders])
            value = self.expression(meaning, None)
        if name in FUNCTIONS:
            raise self.names.error(f"{name} is a function already", name)
        self.names.define(name, ir.Snippet(str(name), self.names.string(text), parameters, value))

    def combine(self, tree: Node, loc: Location) -> None:
        name, pairs, *written, results = tree.children
        with self.names.nested():
            parameters = tuple([self.names.bind(binder, i64) for binder in pairs.children])
            lets = tuple([self._combine_let(part) for part in written])
            values = tuple([self.expression(value, None) for value in results.children])
        half = len(parameters) // 2
        made = ir.Combine(str(name), parameters[:half], parameters[half:], lets, values)
        self.names.define(name, made)

    def _combine_let(self, tree: Node) -> ir.Let:
        let = self.let(tree, self.names.location(tree))
        assert isinstance(let, ir.Let)
        return let


def _peer(self: Statements, name: Token, values: Any) -> ir.Tensor:
    of: ir.Tensor = values["of"]
    tensor = replace(of, name=str(name), offset=None, loc=self.names.location(name))
    return self.names.define(name, tensor)


def _operation(self: Statements, tree: Node, values: Any) -> str:
    operation = self.names.word(tree)
    if operation not in OPERATIONS:
        raise self.names.error(f"there is no operation {operation!r}", tree)
    return operation


def _result(self: Statements, binder: Node, values: Any) -> ir.Variable:
    dtype = self.names.declared(binder) or result_type(values["operation"], values["operands"])
    if dtype is None:
        raise self.names.error(f"{values['operation']} has no result", binder)
    return self.names.bind(binder, dtype)


def _tiles(self: Statements, tree: Node, values: Any) -> tuple[int, ...]:
    by, rank = self.names.sizes(tree), len(values["shape"])
    if len(by) != rank:
        raise self.names.error(f"the tile sizes are {len(by)}, the dimensions {rank}", tree)
    return by


def _binders(self: Statements, tree: Node, values: Any) -> tuple[ir.Variable, ...]:
    shape = values["shape"] if "shape" in values else values["mapping"].shape
    return self.names.bind_all(tree, shape)


def _operand(self: Statements, tree: Node, values: Any) -> ir.Operand:
    place, rows, columns, transposed = tree.children
    tensor, origin = self.expression.place(place)
    return ir.Operand(tensor, origin, (int(rows), int(columns)), transposed is not None)


def _order_of_dimensions(self: Statements, tree: Node, values: Any) -> tuple[int | str, ...]:
    return tuple(
        [int(one) if one.type == "INT" else self.names.string(one) for one in tree.children]
    )


# A field's value from its tree, by its kind in a form; `values` are those of fields before it.
_KINDS: dict[str, Callable[[Statements, Node, Any], Any]] = {
    **dict.fromkeys(("NAME", "RING_STEP", "BARRIER_SCOPE"), lambda self, token, values: str(token)),
    "INT": lambda self, token, values: int(token),
    "STRING": lambda self, token, values: self.names.string(token),
    "MAPPING": lambda self, token, values: self.mapping(token),
    **dict.fromkeys(("PERSISTENT", "SPECIALIZE", "EXCLUSIVE"), lambda self, token, values: True),
    "word": lambda self, tree, values: self.names.word(tree),
    "dtype": lambda self, tree, values: self.names.dtype(tree.children[0]),
    "place": lambda self, tree, values: self.expression.place(tree),
    "element": lambda self, tree, values: self.expression(tree, values["tensor"].dtype),
    "index": lambda self, tree, values: self.expression(tree, i64),
    "condition": lambda self, tree, values: self.expression(tree, boolean),
    **dict.fromkeys(
        ("operands", "more"),
        lambda self, tree, values: tuple([self.expression(one, None) for one in tree.children]),
    ),
    "ATOMIC": lambda self, token, values: str(token)[:-1],
    "old": lambda self, tree, values: self.names.bind(tree, values["tensor"].dtype),
    "peer": _peer,
    "operation": _operation,
    "result": _result,
    "operand": _operand,
    "binder": lambda self, tree, values: self.names.bind(tree, i64),
    "binders": _binders,
    "tensor": lambda self, token, values: self.names.find(token, ir.Tensor),
    "ring": lambda self, token, values: self.names.find(token, ir.Ring),
    "names": lambda self, tree, values: self.tensors(tree),
    "fold": lambda self, token, values: self.operator(token),
    "extents": lambda self, tree, values: self.extents(tree.children),
    "sizes": lambda self, tree, values: self.names.sizes(tree),
    "tiles": _tiles,
    "order": _order_of_dimensions,
}

_FORMED = {name_of(kind): kind for kind in FORMS}
_REQUIRED = {
    kind: [field.name for field in fields(kind) if field.default is MISSING] for kind in FORMS
}

_Statement = Callable[[Statements, Node, Location], Statement | None]

_STATEMENTS: dict[str, _Statement] = {
    name: getattr(Statements, name)
    for name in ("pass_ scope if_ for_ roles let allocate ring table snippet combine").split()
}


T = TypeVar("T")

_PARAMETERS = ("scalar", "array")


def parse(text: str, file: str = "<ir>") -> ir.Kernel:
    """Parse the text of a kernel; raises a CompileError with the location of an error."""
    with deep(location(text.splitlines(), file, 1, 1)):
        (tree,) = syntax_tree(text, file, "kernel_text").children
        return kernel_of(Statements(text, file), tree)


def kernel_of(statements: Statements, tree: Node) -> ir.Kernel:
    """The kernel of a tree; the names of `statements` belong to it."""
    names = statements.names
    name, *parts = tree.children
    attributes = {part.data: part for part in parts if part.data not in _PARAMETERS}
    for part in parts:
        if part.data not in _PARAMETERS and attributes[part.data] is not part:
            raise names.error("this is said twice", part)
    if "workers" not in attributes:
        raise names.error("a kernel says its number of workers: workers=…", name)
    stage = _option(attributes, "stage", str, "parsed")
    if stage not in ir.STAGES:
        hint = f"there are: {', '.join(ir.STAGES)}"
        raise names.error(f"there is no stage {stage!r}", attributes["stage"], hint)
    statements.expression.is_flat = stage == "lean"
    numbers = {}
    for option, word in (("worker", "worker"), ("block_number", "block")):
        dtype = names.dtype(attributes[option].children[0]) if option in attributes else i64
        numbers[word] = names.bound[word] = ir.Variable(word, dtype, loc=names.location(name))
    processors = names.bound["processors"] = ir.Variable("processors", i32)
    dimensions, parameters = signature(statements, parts)
    blocks = attributes.get("blocks")
    return ir.Kernel(
        name=names.title(name),
        parameters=parameters,
        dimensions=dimensions,
        workers=_option(attributes, "workers", int, 1),
        blocks=None if blocks is None else statements.expression(blocks.children[0], None),
        body=statements.body(attributes["block"]),
        stage=stage,
        target=names.word(attributes["target"].children[0])
        if "target" in attributes
        else "generic",
        helpers=_option(attributes, "helpers", int, 0),
        cluster=_option(attributes, "clustered", int, 1),
        worker=numbers["worker"],
        block=numbers["block"],
        processors=processors,
        loc=names.location(name),
    )


def signature(
    statements: Statements, parts: Sequence[Node]
) -> tuple[tuple[ir.Variable, ...], tuple[ir.Tensor | ir.Variable, ...]]:
    """The dimensions and parameters among the parts of a header."""
    binders = [part for one in parts if one.data == "dimensions" for part in one.children]
    dimensions = [statements.names.bind(binder, i64) for binder in binders]
    parameters = [_parameter(statements, part) for part in parts if part.data in _PARAMETERS]
    return tuple(dimensions), tuple(parameters)


def _option(found: dict[str, Node], name: str, kind: Callable[[Any], T], default: T) -> T:
    return kind(found[name].children[0]) if name in found else default


def _parameter(statements: Statements, tree: Node) -> ir.Tensor | ir.Variable:
    names, name = statements.names, tree.children[0]
    if tree.data == "scalar":
        multiple = int(tree.children[2].children[0]) if len(tree.children) > 2 else 1
        dtype = names.dtype(tree.children[1])
        return names.define(name, ir.Variable(str(name), dtype, multiple, loc=names.location(name)))
    role = str(tree.children[1]) if len(tree.children) > 2 else "in"
    tensor = statements.tensor(name, tree.children[-1], ir.GLOBAL, role=role)
    return names.define(name, tensor)
