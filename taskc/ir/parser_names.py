"""The names in scope, and the words and locations of a text: used by every part of the parser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from lark import Token, Tree

from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression
from taskc.ir.types import DTYPES, DType, i64

Named = Expression | ir.Tensor | ir.Ring | ir.Table | ir.Snippet | ir.Combine
Node = Any  # a Token, or a Tree of tokens
N = TypeVar("N", bound=Named)

_KINDS = {
    ir.Variable: "a variable",
    ir.Tensor: "a tensor",
    ir.Ring: "a ring",
    ir.Table: "a table",
    ir.Snippet: "a snippet",
    ir.Combine: "a combine function",
}


class Names:
    """The names in scope at the parser's position, and its location in the text."""

    def __init__(self, text: str, file: str) -> None:
        self.lines = text.splitlines()
        self.file = file
        self.bound: dict[str, Named] = {}

    # --- places in the text ---

    def location(self, first: Node, last: Node = None) -> Location:
        start: Any = first.meta if type(first) is Tree else first
        end: Any = start if last is None else last.meta if type(last) is Tree else last
        return Location(
            self.file, start.line, start.column, end.end_line, end.end_column,
            self.lines[start.line - 1],
        )  # fmt: skip

    def error(self, message: str, where: Node, hint: str | None = None) -> CompileError:
        return CompileError(message, self.location(where), hint)

    # --- names ---

    def define(self, name: Token, value: N) -> N:
        if str(name) in self.bound:
            raise self.error(f"{name} is bound already", name)
        self.bound[str(name)] = value
        return value

    def find(self, name: Token, kind: type[N]) -> N:
        found = self.bound.get(name)
        if found is None:
            raise self.error(f"nothing is called {name} here", name)
        if type(found) is not kind:
            of = _KINDS.get(type(found), "an expression")
            raise self.error(f"{name} is {of}, not {_KINDS[kind]}", name)
        return found

    def dtype(self, token: Token) -> DType:
        if token not in DTYPES:
            raise self.error(f"there is no type {token}", token, f"there are: {', '.join(DTYPES)}")
        return DTYPES[token]

    @contextmanager
    def nested(self) -> Iterator[None]:
        """A scope: names bound inside end with it."""
        outer = self.bound
        self.bound = dict(outer)
        yield
        self.bound = outer

    def bind(self, tree: Node, dtype: DType) -> ir.Variable:
        """Bind a new variable, of type `dtype` unless the binder has a type."""
        name = tree.children[0]
        multiple = 1
        for part in tree.children[1:]:
            if part.data == "dtype":
                dtype = self.dtype(part.children[0])
            else:
                multiple = int(part.children[0])
        variable = ir.Variable(str(name), dtype, multiple, loc=self.location(name))
        return self.define(name, variable)

    def declared(self, binder: Node) -> DType | None:
        """The type in a binder, if it has one."""
        parts = binder.children[1:]
        return self.dtype(parts[0].children[0]) if parts and parts[0].data == "dtype" else None

    def bind_all(self, tree: Node, shape: tuple[Any, ...]) -> tuple[ir.Variable, ...]:
        if len(tree.children) != len(shape):
            raise self.error(
                f"the names are {len(tree.children)}, the dimensions {len(shape)}", tree
            )
        return tuple([self.bind(binder, i64) for binder in tree.children])

    # --- words ---

    def sizes(self, tree: Node) -> tuple[int, ...]:
        return tuple(map(int, tree.children))

    def word(self, tree: Node) -> str:
        first = tree.children[0]
        return self.string(first) if first.type == "STRING" else ".".join(tree.children)

    def title(self, token: Token) -> str:
        """The name of a kernel or a role, in quotes or not."""
        return str(token) if token.type == "NAME" else self.string(token)

    def string(self, token: Token) -> str:
        try:
            return str(json.loads(token))
        except ValueError as error:
            raise self.error(f"this text is not well-formed: {error}", token) from None
