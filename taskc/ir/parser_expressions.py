"""The parser of expressions, and its base: names in scope, locations, syntax trees by lark, and lark's errors in our
words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence as List
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.resources import files
from typing import Any, TypeVar

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken
from lark.indenter import DedentError, Indenter

from taskc.dataclass import dataclass
from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.forms import with_forms
from taskc.ir.mapping_text import LONG_NUMBER, MOST_DIGITS
from taskc.ir.nodes import Expression
from taskc.ir.rewrite import EXPRESSION_FIELDS
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


class ParsedNames:
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


@dataclass(slots=True)
class _Operation:
    """Infix and prefix operators, once precedence has been applied."""

    operator: str
    operands: tuple[Node, ...]
    first: Any  # tokens or trees with the locations of its beginning and end
    last: Any


class ExpressionParser:
    """Turns trees into nodes, each with the type that its surroundings expect."""

    def __init__(self, names: ParsedNames) -> None:
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


_EXPRESSIONS: dict[str, Callable[[ExpressionParser, Any, DType | None], Expression]] = {
    name: getattr(ExpressionParser, name)
    for name in "element address group cast bitcast call".split()
}


_READABLE = {
    "NAME": "a name",
    "STRING": "a string",
    "INT": "an integer",
    "INTEGERS": "a list of integers",
    "MAPPING": "a mapping",
    "INFIX": "an operator",
    "ATOMIC": "an operator such as +=",
    "FOLD": "an operator",
    "RANGE": "range, unroll or vector",
    "BARRIER_SCOPE": "warp, warpgroup, role or block",
    "ROLE": "out or inout",
    "TRANSPOSED": "', transposed'",
    "_NEWLINE": "the end of the line",
    "_INDENT": "an indented block",
    "_DEDENT": "the end of the block",
    "$END": "the end of the text",
}

# One phrase for each group of terminals that may all come next.
_GROUPS = (
    ("a statement", frozenset({"LET", "SCOPE", "RING_STEP", "IF", "FOR"})),
    ("an expression", frozenset({"PREFIX", "NUMBER", "TRUTH", "NAME"})),
)


class _Indentation(Indenter):
    NL_type = "_NEWLINE"
    OPEN_PAREN_types = ["LPAR", "LSQB"]  # noqa: RUF012 (lark's interface)
    CLOSE_PAREN_types = ["RPAR", "RSQB"]  # noqa: RUF012
    INDENT_type = "_INDENT"
    DEDENT_type = "_DEDENT"
    tab_len = 8

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        """The parser is shared by threads, and lark keeps the depth of a text here: so each text has its own."""
        process: Callable[..., Iterator[Token]] = Indenter.process
        return process(_Indentation(), stream)


@cache
def _parser() -> Lark:
    rules = (files("taskc.ir") / "ir.lark").read_text(encoding="utf-8")
    return Lark(
        with_forms(rules),
        start=["kernel_text", "program_text"],
        parser="lalr",
        postlex=_Indentation(),
        propagate_positions=True,
        maybe_placeholders=True,
    )


def syntax_tree(text: str, file: str, start: str) -> Tree[Token]:
    """The tree of a whole text; raises a CompileError with the expected terminals."""
    try:
        tree = _parser().parse(text if text.endswith("\n") else text + "\n", start)
    except UnexpectedInput as error:
        raise _compile_error(error, text, file, start) from None
    except DedentError:
        line = _bad_dedent(text)
        raise CompileError(
            "this line is indented like none above it", location(text.splitlines(), file, line, 1)
        ) from None
    if LONG_NUMBER.search(text):
        _refuse_long_numbers(tree, text, file)
    return tree


def _refuse_long_numbers(tree: Tree[Token], text: str, file: str) -> None:
    for token in tree.scan_values(lambda value: isinstance(value, Token)):
        if token.type not in ("STRING", "MAPPING") and LONG_NUMBER.search(token):
            place = location(text.splitlines(), file, token.line or 1, token.column or 1)
            raise CompileError(f"a number has {MOST_DIGITS} digits at most", place)


def location(
    lines: list[str], file: str, line: int, column: int, end_line: int = 0, end_column: int = 0
) -> Location:
    shown = lines[line - 1] if 0 < line <= len(lines) else ""
    return Location(file, line, column, end_line or line, end_column or column + 1, shown)


def _compile_error(error: UnexpectedInput, text: str, file: str, start: str) -> CompileError:
    lines = text.splitlines()
    end_line = end_column = 0
    expected: Iterable[str]
    token: Any = getattr(error, "token", None)
    if isinstance(error, UnexpectedCharacters):
        line, column = error.line, error.column
        match = re.match(r"\w+|.", text[error.pos_in_stream :])
        unexpected = repr(match[0]) if match else "the end of the text"
        end_column = column + len(match[0]) if match else 0
        expected = _allowed_before_characters(text, start)
    elif token is None or token.type == "$END":
        line, column = max(len(lines), 1), len(lines[-1]) + 1 if lines else 1
        unexpected, expected = "the end of the text", _allowed(error)
    else:
        line, column, expected = error.line, error.column, _allowed(error)
        match token.type:
            case "_NEWLINE":
                unexpected = "the end of the line"
            case "_INDENT":
                line, column = token.end_line, token.end_column
                unexpected = "a deeper indentation"
            case "_DEDENT":
                unexpected = "the end of the block"
            case _:
                unexpected = repr(str(token))
                end_line, end_column = token.end_line, token.end_column
    place = location(lines, file, line, column, end_line, end_column)
    return CompileError(f"expected {_either(expected)}, not {unexpected}", place)


def _allowed(error: UnexpectedInput) -> Iterable[str]:
    """The terminals that could come next; `accepts` is exact, `expected` includes some that a later check refuses."""
    return (error.accepts or error.expected) if isinstance(error, UnexpectedToken) else ()


def _allowed_before_characters(text: str, start: str) -> Iterable[str]:
    """The terminals that could come next, where the text continues with something that is no token."""
    parser = _parser().parse_interactive(text, start)
    with suppress(UnexpectedInput):
        parser.exhaust_lexer()
    accepted: set[str] = parser.accepts()  # type: ignore[no-untyped-call]
    return accepted


def _either(terminals: Iterable[str]) -> str:
    left = set(terminals)
    phrases = []
    for phrase, members in _GROUPS:
        if members <= left:
            phrases.append(phrase)
            left = {name for name in left if not _begins(phrase, name)}
    phrases += sorted({_readable(name) for name in left})
    return (
        " or ".join(phrases) if len(phrases) < 3 else f"{', '.join(phrases[:-1])} or {phrases[-1]}"
    )


def _begins(phrase: str, name: str) -> bool:
    """Whether a terminal can begin the construct that the phrase names."""
    if phrase == "an expression":
        return name in ("PREFIX", "NUMBER", "TRUTH", "NAME", "LPAR", "AMPERSAND", "__ANON_0")
    return name not in ("_DEDENT", "$END", "_NEWLINE", "ELIF", "ELSE")


def _readable(name: str) -> str:
    if name in _READABLE:
        return _READABLE[name]
    pattern = next((t.pattern.value for t in _parser().terminals if t.name == name), name)
    return repr(pattern) if re.fullmatch(r"\w+|\W+", pattern) else name.lower()


def _bad_dedent(text: str) -> int:
    """The first line whose indentation matches no open block."""
    blocks = [0]
    for place, line in enumerate(text.splitlines(), 1):
        code = line.partition("#")[0].expandtabs()
        if not code.strip():
            continue
        indentation = len(code) - len(code.lstrip())
        if indentation > blocks[-1]:
            blocks.append(indentation)
        while indentation < blocks[-1]:
            blocks.pop()
        if indentation != blocks[-1]:
            return place
    raise AssertionError("each line is indented like one above it")
