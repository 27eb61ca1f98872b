"""What the statements of a text are put together from: bound names, tensors with their types, mappings, sizes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence as List
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from lark import Token

from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping, MappingError
from taskc.ir.nodes import Expression
from taskc.ir.parser_expressions import ExpressionBuilder, Node
from taskc.ir.types import DType, i64


@lru_cache(maxsize=1024)
def _mapping(text: str) -> Mapping:
    return Mapping.parse(text)


class DeclarationBuilder(ExpressionBuilder):
    # --- names ---

    @contextmanager
    def nested(self) -> Iterator[None]:
        """What is bound inside is known there alone."""
        outer = self.names
        self.names = dict(outer)
        yield
        self.names = outer

    def bind(self, tree: Node, dtype: DType) -> ir.Variable:
        """A new variable; `dtype` is its type where it says none."""
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
        """The type that a binder says."""
        parts = binder.children[1:]
        return self.dtype(parts[0].children[0]) if parts and parts[0].data == "dtype" else None

    def bind_all(self, tree: Node, shape: tuple[Any, ...]) -> tuple[ir.Variable, ...]:
        if len(tree.children) != len(shape):
            raise self.error(
                f"the names are {len(tree.children)}, the dimensions {len(shape)}", tree
            )
        return tuple([self.bind(binder, i64) for binder in tree.children])

    # --- tensors ---

    def tensor(self, name: Token, tree: Node, scope: str, **more: Any) -> ir.Tensor:
        dtype = self.dtype(tree.children[0])
        shape: tuple[int | Expression, ...] = ()
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
                    case _:
                        more["offset"] = int(values[0])
        return ir.Tensor(str(name), dtype, shape, scope, **more, loc=self.location(name))

    def extents(self, trees: List[Node]) -> tuple[int | Expression, ...]:
        found = []
        for tree in trees:
            extent = self.expression(tree, i64)
            plain = isinstance(extent, ir.Constant) and extent.dtype is i64
            found.append(int(extent.value) if plain else extent)  # type: ignore[union-attr]
        return tuple(found)

    # --- words ---

    def mapping(self, token: Node) -> Mapping:
        try:
            return _mapping(str(token))
        except MappingError as error:
            raise self.error(f"in the mapping: {error}", token) from None

    def sizes(self, tree: Node) -> tuple[int, ...]:
        return tuple(map(int, tree.children))

    def word(self, tree: Node) -> str:
        first = tree.children[0]
        return self.string(first) if first.type == "STRING" else ".".join(tree.children)

    def string(self, token: Token) -> str:
        try:
            return str(json.loads(token))
        except ValueError as error:
            raise self.error(f"this text is not well-formed: {error}", token) from None
