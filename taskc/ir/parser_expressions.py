"""The parser of expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence as List
from dataclasses import dataclass
from functools import partial
from typing import Any

from lark import Token, Tree

from taskc.ir import nodes as ir
from taskc.ir.fields import EXPRESSION_FIELDS
from taskc.ir.nodes import Expression
from taskc.ir.parser_names import Names, Node
from taskc.ir.text_rules import (
    BINARY_FUNCTIONS,
    CALLS,
    COMPARISON,
    NOT,
    PRECEDENCE,
    PREFIXES,
    UNARY_FUNCTIONS,
    default_type,
    number,
    surroundings,
)
from taskc.ir.types import DTYPES, DType, boolean, i64


@dataclass(slots=True)
class _Operation:
    """Infix and prefix operators, once precedence has been applied."""

    operator: str
    operands: tuple[Node, ...]
    first: Any  # tokens or trees with the locations of its beginning and end
    last: Any


class Expressions:
    """Turns trees into nodes, each with the type that its surroundings expect."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.is_flat = False  # at stage lean: one linear index, whatever the rank

    def place(self, tree: Node) -> tuple[ir.Tensor, tuple[Expression, ...]]:
        name, *arguments = tree.children
        tensor = self.names.find(name, ir.Tensor)
        return tensor, self.indices(tree, tensor, arguments[0].children if arguments else [])

    def indices(self, tree: Node, tensor: ir.Tensor, trees: List[Node]) -> tuple[Expression, ...]:
        rank = len(tensor.shape)
        if len(trees) != rank and not (self.is_flat and len(trees) == 1):
            count = f"{len(trees)} {'index' if len(trees) == 1 else 'indices'}"
            raise self.names.error(f"{tree.children[0]} has rank {rank}, but {count} here", tree)
        return tuple([self(index, i64) for index in trees])

    # --- expressions ---

    def __call__(self, tree: Node, expected: DType | None) -> Expression:
        kind = type(tree)
        if kind is Token:
            if tree.type == "NAME":
                return self.variable(tree)
            if tree.type == "NUMBER":
                return self.number(tree, tree, expected)
            return ir.Constant(tree == "True", boolean, loc=self.names.location(tree))
        if kind is not _Operation and tree.data == "expression":
            tree = self.grouped(tree.children)
            kind = type(tree)
        if kind is _Operation:
            return self.operation(tree, expected)
        build = _EXPRESSIONS.get(tree.data)
        return self(tree, expected) if build is None else build(self, tree, expected)

    def variable(self, token: Token) -> Expression:
        found = self.names.bound.get(token)
        if isinstance(found, Expression):
            return found
        if type(found) is ir.Tensor and (not found.shape):
            return ir.Read(found, (), loc=self.names.location(token))
        if type(found) is ir.Tensor:
            raise self.names.error(f"{token} has rank {len(found.shape)}, but no index here", token)
        return self.names.find(token, ir.Variable)

    def number(
        self, token: Token, place: Node, expected: DType | None, sign: str = ""
    ) -> Expression:
        dtype = default_type(expected)
        try:
            value = number(sign + token, dtype)
        except ValueError as error:
            raise self.names.error(str(error), token, f"say the type: f32({token})") from None
        return ir.Constant(value, dtype, loc=self.names.location(place, token))

    def grouped(self, parts: List[Node]) -> Node:
        """A row of tokens and primaries as a tree by precedence. Long sums don't recurse."""
        position = 0

        def operand(level: int) -> Node:
            nonlocal position
            first = parts[position]
            position += 1
            if type(first) is not Token or first.type != "PREFIX":
                return first
            precedence = PREFIXES[first]
            if precedence < level:
                raise self.names.error("parenthesize this 'not'", first)
            inner = operand(precedence)
            if precedence == NOT:
                inner = climb(inner, NOT + 1)
            return _Operation(str(first), (inner,), first, _last(inner))

        def climb(left: Node, level: int) -> Node:
            nonlocal position
            while position < len(parts):
                operator = parts[position]
                precedence = PRECEDENCE[operator]
                if precedence < level:
                    break
                position += 1
                right = climb(operand(precedence + 1), precedence + 1)
                left = _Operation(str(operator), (left, right), _first(left), _last(right))
                following = parts[position] if position < len(parts) else None
                if precedence == COMPARISON == PRECEDENCE.get(str(following)):
                    raise self.names.error("comparisons don't chain", following)
            return left

        return climb(operand(0), 0)

    def operation(self, tree: _Operation, expected: DType | None) -> Expression:
        if len(tree.operands) == 1:
            operand = tree.operands[0]
            if tree.operator == "-" and type(operand) is Token and operand.type == "NUMBER":
                return self.number(operand, tree.first, expected, "-")
            inner = self(operand, surroundings(tree.operator, expected))
            return ir.Unary(tree.operator, inner, loc=self.names.location(tree.first, tree.last))
        # The left operands, from the outside in: a long chain must not recurse.
        chain: list[tuple[_Operation, DType | None]] = []
        left: Node = tree
        while type(left) is _Operation and len(left.operands) == 2:
            expected = surroundings(left.operator, expected)
            chain.append((left, expected))
            left = left.operands[0]
        value: Expression | None = None
        for outer, around in reversed(chain):
            if value is None:
                value, right = self.operands(outer.operands, around)
            else:
                right = self(outer.operands[1], value.dtype)
            loc = self.names.location(outer.first, outer.last)
            value = ir.Binary(outer.operator, value, right, loc=loc)
        assert value is not None
        return value

    def operands(self, trees: List[Node], expected: DType | None) -> tuple[Expression, ...]:
        """The operands of one operator: the first one that isn't constant determines the type of the others."""
        parsed: list[Expression | None] = [None] * len(trees)
        for i, tree in enumerate(trees):
            if not _is_constant(tree):
                parsed[i] = giver = self(tree, expected)
                expected = giver.dtype
                break
        return tuple(
            [
                self(tree, expected) if done is None else done
                for tree, done in zip(trees, parsed, strict=True)
            ]
        )

    def type_among(self, trees: List[Node], operands: tuple[Expression, ...]) -> DType | None:
        """The type that the first operand which isn't constant gives to the others."""
        pairs = zip(trees, operands, strict=True)
        return next((e.dtype for tree, e in pairs if not _is_constant(tree)), None)

    def element(self, tree: Node, expected: DType | None) -> Expression:
        name, *arguments = tree.children
        trees = arguments[0].children if arguments else []
        loc = self.names.location(tree)
        named = self.names.bound.get(name)
        if type(named) is ir.Table:
            if len(trees) != 1:
                raise self.names.error(f"the table {name} takes one index", tree)
            return ir.Lookup(named, self(trees[0], i64), loc=loc)
        tensor = self.names.find(name, ir.Tensor)
        return ir.Read(tensor, self.indices(tree, tensor, trees), loc=loc)

    def address(self, tree: Node, expected: DType | None) -> Expression:
        return ir.Address(*self.place(tree.children[0]), loc=self.names.location(tree))

    def group(self, tree: Node, expected: DType | None) -> Expression:
        return self(tree.children[0], expected)

    def cast(self, tree: Node, expected: DType | None) -> Expression:
        operand, name = tree.children
        return ir.Cast(self(operand, None), self.names.dtype(name), loc=self.names.location(tree))

    def bitcast(self, tree: Node, expected: DType | None) -> Expression:
        operand, name = tree.children
        dtype, loc = self.names.dtype(name), self.names.location(tree)
        return ir.Bitcast(self(operand, None), dtype, loc=loc)

    def call(self, tree: Node, expected: DType | None) -> Expression:
        name = tree.children[0]
        trees = tree.children[1].children if len(tree.children) > 1 else []
        loc = self.names.location(tree)
        if name in DTYPES:
            if len(trees) != 1 or not _is_number(trees[0]):
                raise self.names.error(
                    f"{name}(…) takes a number", tree, "a conversion is x.to(f32)"
                )
            return self(trees[0], DTYPES[name])
        named = self.names.bound.get(name)
        if type(named) is ir.Snippet:
            return ir.Inline(named, self.arguments(tree, named, trees), loc=loc)
        kind: Any  # a class of nodes, or a class and its operator
        if name in CALLS:
            kind, conditions = CALLS[name]
            count = len(EXPRESSION_FIELDS[kind])
        elif name in UNARY_FUNCTIONS:
            kind, conditions, count = partial(ir.Unary, str(name)), 0, 1
        elif name in BINARY_FUNCTIONS:
            kind, conditions, count = partial(ir.Binary, str(name)), 0, 2
        else:
            raise self.names.error(f"there is no function {name}", name)
        if len(trees) != count:
            raise self.names.error(f"{name} takes {count} operands, not {len(trees)}", tree)
        first = [self(part, None) for part in trees[:conditions]]
        operands = self.operands(trees[conditions:], surroundings(name, expected))
        value: Expression = kind(*first, *operands, loc=loc)
        return value

    def arguments(
        self, tree: Node, snippet: ir.Snippet, trees: List[Node]
    ) -> tuple[Expression, ...]:
        count = len(snippet.parameters)
        if len(trees) != count:
            raise self.names.error(f"{snippet} takes {count} operands, not {len(trees)}", tree)
        pairs = zip(trees, snippet.parameters, strict=True)
        return tuple([self(part, parameter.dtype) for part, parameter in pairs])


def _first(node: Node) -> Node:
    return node.first if type(node) is _Operation else node


def _last(node: Node) -> Node:
    return node.last if type(node) is _Operation else node


def _is_number(tree: Node) -> bool:
    """Whether a tree is a number without a type, perhaps with a sign."""
    if type(tree) is _Operation:
        return tree.operator == "-" and len(tree.operands) == 1 and _is_plain(tree.operands[0])
    if type(tree) is Tree and tree.data == "expression":
        return len(tree.children) == 2 and tree.children[0] == "-" and _is_plain(tree.children[1])
    return _is_plain(tree)


def _is_plain(tree: Node) -> bool:
    return type(tree) is Token and tree.type == "NUMBER"


def _is_constant(tree: Node) -> bool:
    """Whether a tree becomes a Constant: a number, with or without a type, or a bool."""
    if type(tree) is Token:
        return tree.type != "NAME"
    if type(tree) is Tree and tree.data == "call":
        return tree.children[0] in DTYPES
    if type(tree) is Tree and tree.data == "group":
        return _is_constant(tree.children[0])
    return _is_number(tree)


_EXPRESSIONS: dict[str, Callable[[Expressions, Any, DType | None], Expression]] = {
    "element": Expressions.element,
    "address": Expressions.address,
    "group": Expressions.group,
    "cast": Expressions.cast,
    "bitcast": Expressions.bitcast,
    "call": Expressions.call,
}
