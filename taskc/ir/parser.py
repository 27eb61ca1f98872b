"""Reading the text form of a kernel: what `taskc.ir.printer` writes, and what people write by hand.

    parse(text) -> Kernel

The grammar is ir.lark. lark makes a tree; `_Builder` turns it into nodes from the top down, since a
number's type comes from its surroundings. A name means what was bound to it last in a scope that is
still open; a name in use can't be bound again. Every node gets its place in the text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence as List
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from lark import Token, Tree

from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping, MappingError
from taskc.ir.nodes import Expression, Statement
from taskc.ir.operations import OPERATIONS
from taskc.ir.parser_expressions import ExpressionBuilder, Node
from taskc.ir.parser_text import syntax_tree
from taskc.ir.text_rules import FUNCTIONS, result_type
from taskc.ir.types import DType, boolean, i64

T = TypeVar("T")

_SCOPES = {"mbarrier": ir.BARRIER}


def parse(text: str, file: str = "<ir>") -> ir.Kernel:
    """The kernel that a text describes; a CompileError tells where it can't be one."""
    return _Builder(text, file).kernel(syntax_tree(text, file))


@lru_cache(maxsize=1024)
def _mapping(text: str) -> Mapping:
    return Mapping.parse(text)


class _Builder(ExpressionBuilder):
    # --- kernels ---

    def kernel(self, tree: Node) -> ir.Kernel:
        name, *parts = tree.children
        found = {part.data: part for part in parts if part.data not in ("scalar", "array")}
        for part in parts:
            if part.data not in ("scalar", "array") and found[part.data] is not part:
                raise self.error("this is said twice", part)
        if "workers" not in found:
            raise self.error("a kernel says its number of workers: workers=…", name)
        stage = self.option(found, "stage", str, "parsed")
        if stage not in ir.STAGES:
            hint = f"there are: {', '.join(ir.STAGES)}"
            raise self.error(f"there is no stage {stage!r}", found["stage"], hint)
        self.is_flat = stage == "lean"
        numbers = {}
        for option, word in (("worker", "worker"), ("block_number", "block")):
            dtype = self.dtype(found[option].children[0]) if option in found else i64
            numbers[word] = self.names[word] = ir.Variable(word, dtype, loc=self.location(name))
        dimensions = found["dimensions"].children if "dimensions" in found else []
        variables = tuple([self.bind(binder, i64) for binder in dimensions])
        parameters = tuple(
            [self.parameter(part) for part in parts if part.data in ("scalar", "array")]
        )
        blocks = found.get("blocks")
        return ir.Kernel(
            name=str(name) if name.type == "NAME" else self.string(name),
            parameters=parameters,
            dimensions=variables,
            workers=self.option(found, "workers", int, 1),
            blocks=None if blocks is None else self.expression(blocks.children[0], None),
            body=self.body(found["block"]),
            stage=stage,
            target=self.word(found["target"].children[0]) if "target" in found else "generic",
            helpers=self.option(found, "helpers", int, 0),
            cluster=self.option(found, "clustered", int, 1),
            worker=numbers["worker"],
            block=numbers["block"],
            loc=self.location(name),
        )

    def option(self, found: dict[str, Node], name: str, kind: Callable[[Any], T], default: T) -> T:
        return kind(found[name].children[0]) if name in found else default

    def parameter(self, tree: Node) -> ir.Tensor | ir.Variable:
        name = tree.children[0]
        if tree.data == "scalar":
            multiple = int(tree.children[2].children[0]) if len(tree.children) > 2 else 1
            dtype = self.dtype(tree.children[1])
            return self.define(
                name, ir.Variable(str(name), dtype, multiple, loc=self.location(name))
            )
        role = str(tree.children[1]) if len(tree.children) > 2 else "in"
        tensor = self.tensor(name, tree.children[-1], ir.GLOBAL, role=role)
        return self.define(name, tensor)

    def tensor(self, name: Token, tree: Node, scope: str, **more: Any) -> ir.Tensor:
        dtype = self.dtype(tree.children[0])
        shape: tuple[int | Expression, ...] = ()
        if tree.data == "type":
            shape = self.extents(tree.children[1].children)
            for modifier in tree.children[2:]:
                values = modifier.children
                match modifier.data:
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

    def mapping(self, token: Node) -> Mapping:
        try:
            return _mapping(str(token))
        except MappingError as error:
            raise self.error(f"in the mapping: {error}", token) from None

    # --- names ---

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

    # --- blocks ---

    def body(self, tree: Node) -> Statement:
        statements = self.statements(tree)
        return statements[0] if len(statements) == 1 else ir.Sequence(statements)

    def statements(self, tree: Node) -> tuple[Statement, ...]:
        """What stands in one scope; declarations of rings, tables and snippets leave nothing."""
        outer = self.names
        self.names = dict(outer)
        found = [self.statement(child) for child in tree.children]
        self.names = outer
        return tuple([statement for statement in found if statement is not None])

    def statement(self, tree: Node) -> Statement | None:
        return _STATEMENTS[tree.data](self, tree, self.location(tree))

    def inner(self, tree: Node, header: Callable[[], T]) -> tuple[T, Statement]:
        """What a header binds is known in its block alone."""
        outer = self.names
        self.names = dict(outer)
        bound = header()
        body = self.body(tree.children[-1])
        self.names = outer
        return bound, body

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

    def while_(self, tree: Node, loc: Location) -> Statement:
        return ir.While(
            self.expression(tree.children[0], None), self.body(tree.children[1]), loc=loc
        )

    def for_(self, tree: Node, loc: Location) -> Statement:
        binder, word, arguments, _ = tree.children
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
        variable, body = self.inner(tree, lambda: self.bind(binder, dtype))
        kind = "serial" if word == "range" else str(word)
        return ir.For(variable, bounds[0], bounds[1], step, body, kind, loc=loc)

    def grid(self, tree: Node, loc: Location) -> Statement:
        binders, extents, sizes, *options, _ = tree.children
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
        variables, body = self.inner(tree, lambda: self.bind_all(binders, shape))
        return ir.Grid(variables, shape, by, body, **more, loc=loc)

    def pipeline(self, tree: Node, loc: Location) -> Statement:
        binder, extent, by, stages, *options, _ = tree.children
        total = self.expression(extent, i64)
        transport = None
        for option in options:
            if isinstance(option, Tree):
                transport = self.word(option.children[0])
        specialize = any(isinstance(option, Token) for option in options)
        variable, body = self.inner(tree, lambda: self.bind(binder, i64))
        return ir.Pipeline(
            variable, total, int(by), int(stages), body, transport, specialize, loc=loc
        )

    def each(self, tree: Node, loc: Location) -> Statement:
        binders, token, *on, _ = tree.children
        mapping = self.mapping(token)
        worker = self.expression(on[0].children[0], i64) if on else None
        variables, body = self.inner(tree, lambda: self.bind_all(binders, mapping.shape))
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
        outer = self.names
        self.names = dict(outer)
        variables = self.bind_all(binders, shape)
        tensor, indices = self.place(place)
        value = self.expression(value_tree, tensor.dtype)
        more: dict[str, Any] = {}
        for option in options:
            child = option.children[0]
            match option.data:
                case "guard":
                    more["guard"] = self.expression(child, boolean)
                case "by":
                    more["by"] = self.mapping(child)
                case _:
                    more["how"] = self.word(child)
        self.names = outer
        return ir.Move(tensor, indices, variables, shape, value, **more, loc=loc)

    def mma(self, tree: Node, loc: Location) -> Statement:
        accumulator, left, right, *options = tree.children
        onto = [option.children[0] for option in options if option.data == "onto"]
        return ir.Mma(
            self.find(accumulator, ir.Tensor),
            self.operand(left),
            self.operand(right),
            self.how([option for option in options if option.data == "how"]),
            self.expression(onto[0], boolean) if onto else None,
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

    def assert_(self, tree: Node, loc: Location) -> Statement:
        condition, text = tree.children
        return ir.Assert(self.expression(condition, None), self.string(text), loc=loc)

    def breakpoint(self, tree: Node, loc: Location) -> Statement:
        return ir.Breakpoint(loc=loc)

    def ring_step(self, tree: Node, loc: Location) -> Statement:
        operation, name, step = tree.children
        ring = self.find(name, ir.Ring)
        return ir.RingStep(str(operation), ring, self.expression(step, i64), loc=loc)

    def barrier(self, tree: Node, loc: Location) -> Statement:
        scope, *orders = tree.children
        text = self.string(orders[0].children[0]) if orders else ""
        return ir.Barrier(str(scope), text, loc=loc)

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
        outer = self.names
        self.names = dict(outer)
        parameters = tuple([self.bind(binder, i64) for binder in binders])
        value = self.expression(meaning, None)
        self.names = outer
        if name in FUNCTIONS:
            raise self.error(f"{name} is a function already", name)
        self.define(name, ir.Snippet(str(name), self.string(text), parameters, value))

    # --- words ---

    def sizes(self, tree: Node) -> tuple[int, ...]:
        return tuple(map(int, tree.children))

    def how(self, trees: List[Node]) -> str | None:
        return self.word(trees[0].children[0]) if trees else None

    def word(self, tree: Node) -> str:
        first = tree.children[0]
        return self.string(first) if first.type == "STRING" else ".".join(tree.children)

    def string(self, token: Token) -> str:
        try:
            return str(json.loads(token))
        except ValueError as error:
            raise self.error(f"this text is not well-formed: {error}", token) from None


_Statement = Callable[[_Builder, Node, Location], Statement | None]

_STATEMENTS: dict[str, _Statement] = {
    name: getattr(_Builder, name)
    for name in (
        "pass_ scope if_ while_ for_ grid pipeline each roles let allocate peer store atomic do move mma"
        " reduce scan print assert_ breakpoint ring_step barrier ring table snippet"
    ).split()
}
