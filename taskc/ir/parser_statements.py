"""The statements of a text: each kind of tree has a method of its grammar rule's name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from lark import Token, Tree

from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.depth import too_deep
from taskc.ir.fields import STATEMENT_TYPES
from taskc.ir.nodes import Statement
from taskc.ir.operations import OPERATIONS
from taskc.ir.parser_declarations import DeclarationBuilder
from taskc.ir.parser_expressions import Node
from taskc.ir.text_rules import FUNCTIONS, result_type
from taskc.ir.types import boolean, i64

_SCOPES = {"mbarrier": ir.BARRIER}


class StatementBuilder(DeclarationBuilder):
    # --- blocks ---

    def body(self, tree: Node) -> Statement:
        statements = self.statements(tree)
        return statements[0] if len(statements) == 1 else ir.Sequence(statements)

    def statements(self, tree: Node) -> tuple[Statement, ...]:
        """What stands in one scope; declarations of rings, tables and snippets leave nothing."""
        with self.nested():
            found = [self.statement(child) for child in tree.children]
        return tuple([statement for statement in found if statement is not None])

    def statement(self, tree: Node) -> Statement | None:
        loc = self.location(tree)
        try:
            build = _STATEMENTS.get(tree.data)
            return self.by_fields(tree, loc) if build is None else build(self, tree, loc)
        except RecursionError:
            raise too_deep(loc) from None

    def by_fields(self, tree: Node, loc: Location) -> Statement:
        """A statement of the rule's name, whose tree holds expressions, texts and blocks field by field."""
        held: list[Any] = []
        for child in tree.children:
            if isinstance(child, Tree) and child.data == "block":
                held.append(self.body(child))
            elif isinstance(child, Token) and child.type == "STRING":
                held.append(self.string(child))
            else:
                held.append(self.expression(child, None))
        return _BY_NAME[tree.data.rstrip("_")](*held, loc=loc)

    def pass_(self, tree: Node, loc: Location) -> Statement:
        return ir.Sequence((), loc=loc)

    def scope(self, tree: Node, loc: Location) -> Statement:
        return ir.Sequence(self.statements(tree.children[0]), loc=loc)

    def if_(self, tree: Node, loc: Location) -> Statement:
        condition, then, *rest = tree.children
        otherwise: Statement | None = None
        if rest and rest[-1].data == "else_":
            otherwise = self.body(rest.pop().children[0])
        for part in reversed(rest):
            test, block = part.children
            otherwise = ir.If(
                self.expression(test, None), self.body(block), otherwise, loc=self.location(part)
            )
        return ir.If(self.expression(condition, None), self.body(then), otherwise, loc=loc)

    def for_(self, tree: Node, loc: Location) -> Statement:
        binder, word, arguments, block = tree.children
        declared = self.declared(binder)
        trees = arguments.children
        if len(trees) > 3:
            raise self.error(f"{word} takes one to three arguments", arguments)
        bounds = self.operands(trees[:2], declared or i64)
        step = 1
        if len(trees) == 3:
            value = self.expression(trees[2], i64)
            if not isinstance(value, ir.Constant) or value.dtype is not i64:
                raise self.error("a step is an integer constant", trees[2])
            step = int(value.value)
        dtype = declared or self.type_among(trees[:2], bounds) or i64
        if len(bounds) == 1:
            bounds = (ir.Constant(0, dtype, loc=loc), *bounds)
        with self.nested():
            variable = self.bind(binder, dtype)
            body = self.body(block)
        kind = "serial" if word == "range" else str(word)
        return ir.For(variable, bounds[0], bounds[1], step, body, kind, loc=loc)

    def grid(self, tree: Node, loc: Location) -> Statement:
        binders, extents, sizes, *options, block = tree.children
        shape = self.extents(extents.children)
        by = self.sizes(sizes)
        more: dict[str, Any] = {}
        for option in options:
            match option.data:
                case "order":
                    more["order"] = tuple(
                        [
                            self.string(entry) if entry.type == "STRING" else int(entry)
                            for entry in option.children
                        ]
                    )
                case "cluster":
                    more["cluster"] = self.sizes(option.children[0])
                case _:
                    more["persistent"] = True
        if len(by) != len(shape):
            raise self.error(f"the tile sizes are {len(by)}, the dimensions {len(shape)}", sizes)
        with self.nested():
            variables = self.bind_all(binders, shape)
            body = self.body(block)
        return ir.Grid(variables, shape, by, body, **more, loc=loc)

    def pipeline(self, tree: Node, loc: Location) -> Statement:
        binder, extent, by, stages, *options, block = tree.children
        total = self.expression(extent, i64)
        transport = None
        for option in options:
            if isinstance(option, Tree):
                transport = self.word(option.children[0])
        specialize = any(isinstance(option, Token) for option in options)
        with self.nested():
            variable = self.bind(binder, i64)
            body = self.body(block)
        return ir.Pipeline(
            variable, total, int(by), int(stages), body, transport, specialize, loc=loc
        )

    def each(self, tree: Node, loc: Location) -> Statement:
        binders, token, *on, block = tree.children
        mapping = self.mapping(token)
        worker = self.expression(on[0].children[0], i64) if on else None
        with self.nested():
            variables = self.bind_all(binders, mapping.shape)
            body = self.body(block)
        return ir.Each(variables, mapping, worker, body, loc=loc)

    def roles(self, tree: Node, loc: Location) -> Statement:
        found = []
        for part in tree.children:
            name, first, workers, block = part.children
            text = str(name) if name.type == "NAME" else self.string(name)
            found.append(ir.Role(text, int(first), int(workers), self.body(block)))
        return ir.Roles(tuple(found), loc=loc)

    # --- simple statements ---

    def let(self, tree: Node, loc: Location) -> Statement:
        binder, value_tree = tree.children
        value = self.expression(value_tree, self.declared(binder))
        return ir.Let(self.bind(binder, value.dtype), value, loc=loc)

    def allocate(self, tree: Node, loc: Location) -> Statement:
        parts = list(tree.children)
        more: dict[str, Any] = {}
        if parts[0].type == "CONSTANT":
            more["constant"] = True
            del parts[0]
        word, name, type_tree, *rest = parts
        fill_tree: Node | None = None
        for part in rest:
            if part.data == "by":
                more["owners"] = self.mapping(part.children[0])
            else:
                fill_tree = part.children[0]
        tensor = self.tensor(name, type_tree, _SCOPES.get(str(word), str(word)), **more)
        fill = None if fill_tree is None else self.expression(fill_tree, tensor.dtype)
        if fill is not None and not isinstance(fill, ir.Constant):
            raise self.error("a tensor is filled with a constant", fill_tree)
        return ir.Allocate(self.define(name, tensor), fill, loc=loc)

    def peer(self, tree: Node, loc: Location) -> Statement:
        name, other, rank = tree.children
        of = self.find(other, ir.Tensor)
        number = self.expression(rank, i64)
        tensor = replace(of, name=str(name), offset=None, loc=self.location(name))
        return ir.Peer(self.define(name, tensor), of, number, loc=loc)

    def store(self, tree: Node, loc: Location) -> Statement:
        tensor, indices = self.place(tree.children[0])
        return ir.Store(tensor, indices, self.expression(tree.children[1], tensor.dtype), loc=loc)

    def atomic(self, tree: Node, loc: Location) -> Statement:
        *result, place, operator, value_tree = tree.children
        tensor, indices = self.place(place)
        value = self.expression(value_tree, tensor.dtype)
        variable = self.bind(result[1], tensor.dtype) if result else None
        return ir.Atomic(str(operator)[:-1], tensor, indices, value, variable, loc=loc)

    def do(self, tree: Node, loc: Location) -> Statement:
        parts = list(tree.children)
        binder = None
        if isinstance(parts[0], Token):
            binder = parts[1]
            del parts[:2]
        operation = self.word(parts[0])
        if operation not in OPERATIONS:
            raise self.error(f"there is no operation {operation!r}", parts[0])
        trees = parts[1].children if len(parts) > 1 else []
        operands = tuple([self.expression(tree, None) for tree in trees])
        if binder is None:
            return ir.Do(operation, operands, loc=loc)
        dtype = self.declared(binder) or result_type(operation, operands)
        if dtype is None:
            raise self.error(f"{operation} has no result", binder)
        return ir.Do(operation, operands, self.bind(binder, dtype), loc=loc)

    def move(self, tree: Node, loc: Location) -> Statement:
        place, value_tree, binders, sizes, *options = tree.children
        shape = self.sizes(sizes)
        more: dict[str, Any] = {}
        with self.nested():
            variables = self.bind_all(binders, shape)
            tensor, indices = self.place(place)
            value = self.expression(value_tree, tensor.dtype)
            for option in options:
                child = option.children[0]
                match option.data:
                    case "guard":
                        more["guard"] = self.expression(child, boolean)
                    case "by":
                        more["by"] = self.mapping(child)
                    case _:
                        more["how"] = self.word(child)
        return ir.Move(tensor, indices, variables, shape, value, **more, loc=loc)

    def mma(self, tree: Node, loc: Location) -> Statement:
        accumulator, left, right, *options = tree.children
        chosen = {option.data: option.children[0] for option in options}
        return ir.Mma(
            self.find(accumulator, ir.Tensor),
            self.operand(left),
            self.operand(right),
            self.word(chosen["how"]) if "how" in chosen else None,
            self.expression(chosen["onto"], boolean) if "onto" in chosen else None,
            self.dtype(chosen["rounded"].children[0]) if "rounded" in chosen else None,
            loc=loc,
        )

    def operand(self, tree: Node) -> ir.Operand:
        place, rows, columns, *transposed = tree.children
        tensor, origin = self.place(place)
        return ir.Operand(tensor, origin, (int(rows), int(columns)), bool(transposed))

    def reduce(self, tree: Node, loc: Location) -> Statement:
        target, operator, source, axis = tree.children
        tensors = self.find(target, ir.Tensor), self.find(source, ir.Tensor)
        return ir.Reduce(*tensors, int(axis), str(operator), loc=loc)

    def scan(self, tree: Node, loc: Location) -> Statement:
        target, operator, source, axis, *exclusive = tree.children
        tensors = self.find(target, ir.Tensor), self.find(source, ir.Tensor)
        return ir.Scan(*tensors, int(axis), str(operator), bool(exclusive), loc=loc)

    def print(self, tree: Node, loc: Location) -> Statement:
        text, *values = tree.children
        found = tuple([self.expression(value, None) for value in values])
        return ir.Print(self.string(text), found, loc=loc)

    def ring_step(self, tree: Node, loc: Location) -> Statement:
        operation, name, step = tree.children
        ring = self.find(name, ir.Ring)
        return ir.RingStep(str(operation), ring, self.expression(step, i64), loc=loc)

    def barrier(self, tree: Node, loc: Location) -> Statement:
        scope, *orders = tree.children
        text = self.string(orders[0].children[0]) if orders else ""
        return ir.Barrier(str(scope), text, loc=loc)

    # --- declarations, which leave no statement ---

    def ring(self, tree: Node, loc: Location) -> None:
        name, *members, stages, transport = tree.children
        tensors = tuple([self.find(member, ir.Tensor) for member in members])
        ring = ir.Ring(str(name), tensors, int(stages), self.word(transport.children[0]))
        self.define(name, ring)

    def table(self, tree: Node, loc: Location) -> None:
        name, text = tree.children
        try:
            values = np.array(json.loads(str(text)), np.int64)
        except (ValueError, OverflowError):
            raise self.error("a table is a list of integers", text) from None
        self.define(name, ir.Table(str(name), values))

    def snippet(self, tree: Node, loc: Location) -> None:
        name, *binders, meaning, text = tree.children
        with self.nested():
            parameters = tuple([self.bind(binder, i64) for binder in binders])
            value = self.expression(meaning, None)
        if name in FUNCTIONS:
            raise self.error(f"{name} is a function already", name)
        self.define(name, ir.Snippet(str(name), self.string(text), parameters, value))


_BY_NAME: dict[str, Callable[..., Statement]] = {
    kind.__name__.lower(): kind for kind in STATEMENT_TYPES
}

_Statement = Callable[[StatementBuilder, Node, Location], Statement | None]

_STATEMENTS: dict[str, _Statement] = {
    name: getattr(StatementBuilder, name)
    for name in (
        "pass_ scope if_ for_ grid pipeline each roles let allocate peer store atomic do move mma"
        " reduce scan print ring_step barrier ring table snippet"
    ).split()
}
