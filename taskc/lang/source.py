"""The source of a function: its syntax tree, and where each part of it stands in the real file."""

from __future__ import annotations

import ast
import copy
import inspect
import linecache
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import TypeAlias, cast

from taskc.dataclass import dataclass
from taskc.errors import NOWHERE, CompileError, Location
from taskc.ir.code_size import deep
from taskc.ir.reentry import cached_property
from taskc.lang.jumps import Skippable, arranged

Node: TypeAlias = ast.expr | ast.stmt | ast.arg | ast.keyword

_PACKAGE = str(Path(__file__).parents[1]) + os.sep

_COMPOUND = (ast.For, ast.While, ast.If, ast.With, ast.FunctionDef, Skippable)


class Source:
    """The parsed text of one function.

    tree      its definition, with lines and columns as `ast` gives them
    assigned  for each statement (by id) the names that it, or what is inside it, assigns
    written   all of these names
    rest      the parameter that takes all further arguments, `*rest`
    locals    the names that are written, and the parameters
    uses      how often each name is read
    """

    def __init__(self, file: str, lines: list[str], first_line: int, tree: ast.FunctionDef) -> None:
        self.file = file
        tree = copy.copy(tree)
        tree.body = arranged(tree.body)
        self.tree = tree
        self.assigned: dict[int, frozenset[str]] = {}
        self.written = self._collect(tree.body)
        self.rest = tree.args.vararg.arg if tree.args.vararg is not None else None
        self.locals = self.written | {argument.arg for argument in tree.args.args}
        if self.rest is not None:
            self.locals.add(self.rest)
        self.uses: dict[str, int] = {}
        for node in ast.walk(tree):
            if type(node) is ast.Name and type(node.ctx) is ast.Load:
                self.uses[node.id] = self.uses.get(node.id, 0) + 1
        self._lines = lines
        self._first_line = first_line  # the line in the file of the tree's line 1

    @cached_property
    def body(self) -> list[ast.stmt]:
        """The statements after the docstring."""
        has_docstring = ast.get_docstring(self.tree, clean=False) is not None
        return self.tree.body[has_docstring:]

    def locate(self, node: Node) -> Location:
        """The span of a node; of a statement with a body, its head. A node keeps its location: loops are unrolled."""
        location: Location | None = vars(node).get("location")
        if location is None:
            location = self.span(node, _head(node) if isinstance(node, _COMPOUND) else node)
            vars(node)["location"] = location
        return location

    def span(self, start: Node, end: Node) -> Location:
        """The location from where one node starts to where another ends."""
        line, column = self._place(start.lineno, start.col_offset)
        end_line, end_column = self._place(end.end_lineno, end.end_col_offset)
        return Location(self.file, line, column, end_line, end_column, self._line(start.lineno))

    def head(self) -> Location:
        """The location of `def name`."""
        whole = self.locate(self.tree)
        end = whole.column + len("def ") + len(self.tree.name)
        return Location(whole.file, whole.line, whole.column, whole.line, end, whole.text)

    def text(self, node: ast.expr) -> str:
        """The source of an expression, on one line."""
        if node.lineno == node.end_lineno:
            line = self._line(node.lineno).encode()
            return line[node.col_offset : node.end_col_offset].decode()
        return ast.unparse(node)

    def _line(self, number: int) -> str:
        index = number - 1
        return self._lines[index].rstrip("\r\n") if index < len(self._lines) else ""

    def _place(self, line: int | None, offset: int | None) -> tuple[int, int]:
        """A line and a UTF-8 offset in the tree as a line and a column of the file."""
        assert line is not None  # of what has been parsed
        assert offset is not None
        text = self._line(line)
        if not text.isascii():
            offset = len(text.encode()[:offset].decode(errors="replace"))
        return line + self._first_line - 1, offset + 1

    def _collect(self, statements: list[ast.stmt]) -> set[str]:
        names: set[str] = set()
        for statement in statements:
            inside = set(_targets(statement))
            for body in _bodies(statement):
                inside |= self._collect(body)
            self.assigned[id(statement)] = frozenset(inside)
            names |= inside
        return names


def _head(
    node: ast.For | ast.While | ast.If | ast.With | ast.FunctionDef | Skippable,
) -> Node:
    match node:
        case ast.For():
            return node.iter
        case ast.While() | ast.If():
            return node.test
        case Skippable():
            return node.statement.test
        case ast.With():
            return node.items[-1].context_expr
    return node


def _bodies(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    if isinstance(statement, (ast.For, ast.While, ast.If, ast.With)):
        yield statement.body
        if not isinstance(statement, ast.With):
            yield statement.orelse
    if isinstance(statement, Skippable):
        yield [statement.statement]
        yield statement.rest


def _targets(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement itself assigns."""
    match statement:
        case ast.Assign():
            targets = statement.targets
        case ast.AugAssign() | ast.AnnAssign() | ast.For():
            targets = [statement.target]
        case _:
            return
    for target in targets:
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


# The same template called again makes a new function of the same code: its tree is parsed once.
_parsed: dict[int, tuple[CodeType, Source]] = {}
_LIMIT = 1000


def source_of(function: FunctionType, what: str) -> Source:
    """The source of a function; `what` names it in an error, as in "kernel 'matmul'"."""
    return _once(function.__code__, lambda: _read(function, function.__code__, what))


def _once(code: CodeType, read: Callable[[], Source]) -> Source:
    """The source of a function's code, which is read where it isn't known."""
    known = _parsed.get(id(code))
    if known is not None and known[0] is code:
        return known[1]
    with deep(Location(code.co_filename, code.co_firstlineno, 0, code.co_firstlineno, 0)):
        source = read()
    if len(_parsed) >= _LIMIT:
        _parsed.clear()
    _parsed[id(code)] = code, source
    return source


def _read(function: FunctionType, code: CodeType, what: str) -> Source:
    name, file, first_line = code.co_name, code.co_filename, code.co_firstlineno
    place = os.path.abspath(file) if os.path.exists(file) else file
    here = Location(place, first_line, 0, first_line, 0)
    if name == "<lambda>":
        raise CompileError(f"{what} is a lambda; write it with 'def'", here)
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise CompileError(f"{what} is asynchronous; write it with 'def'", here)
    linecache.checkcache(file)
    lines = linecache.getlines(file, function.__globals__)
    if not lines:
        raise CompileError(
            f"the source of {what} can't be read: Python gives no text for {file!r}",
            here,
            hint="define it in a file or a notebook cell; 'python -c' works from Python 3.13 on",
        )
    block = lines[first_line - 1 :]
    try:
        block = inspect.getblock(block)
    except (SyntaxError, IndexError):
        block = []
    tree = _definition(block, name)
    arguments = code.co_varnames[: code.co_argcount]
    if tree is None or tuple(arg.arg for arg in tree.args.args) != arguments:
        raise CompileError(
            f"the source of {what} can't be read: it isn't at line {first_line} of {file!r}",
            here,
            hint="what 'exec' runs has no text of its own: define it in a file or a notebook cell"
            if file.startswith("<")
            else "the file has changed since it was imported; run it again",
        )
    return Source(place, block, first_line, tree)


def _definition(block: list[str], name: str) -> ast.FunctionDef | None:
    """The definition that a block of lines consists of."""
    indented = bool(block) and block[0][:1].isspace()
    try:
        body = ast.parse(("if True:\n" if indented else "") + "".join(block)).body
    except SyntaxError:
        return None
    if indented and isinstance(body[0], ast.If):
        body = body[0].body
        ast.increment_lineno(body[0], -1)
    definition = body[0] if body else None
    if not isinstance(definition, ast.FunctionDef) or definition.name != name:
        return None
    return (
        definition
        if 1 in (definition.lineno, *(part.lineno for part in definition.decorator_list))
        else None
    )


# --- lambdas ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Module:
    """The statements of a file, and the nodes of those that were asked for: walking takes longer than parsing."""

    text: int
    statements: list[ast.stmt]
    nodes: dict[int, list[ast.AST]]

    def around(self, line: int) -> Iterator[ast.AST]:
        """All nodes of the statements that the line belongs to, outer ones before inner ones."""
        for number, statement in enumerate(self.statements):
            first = [statement, *getattr(statement, "decorator_list", ())]
            if min(node.lineno for node in first) <= line <= (statement.end_lineno or line):
                if number not in self.nodes:
                    self.nodes[number] = [*ast.walk(statement)]
                yield from self.nodes[number]


_modules: dict[str, _Module] = {}


def lambda_source(function: FunctionType) -> Source:
    """The source of a lambda: its body is what a function of one `return` would have.

    A lambda is found by its line, its parameters and, from Python 3.11 on, its column.
    """
    return _once(function.__code__, lambda: _read_lambda(function, function.__code__))


def _read_lambda(function: FunctionType, code: CodeType) -> Source:
    file, line = code.co_filename, code.co_firstlineno
    place = os.path.abspath(file) if os.path.exists(file) else file
    linecache.checkcache(file)
    lines = linecache.getlines(file, function.__globals__)
    names = code.co_varnames[: code.co_argcount]
    found = [
        node
        for node in _module(file, lines).around(line)
        if isinstance(node, ast.Lambda)
        and node.lineno == line
        and tuple(arg.arg for arg in node.args.args) == names
    ]
    if len(found) > 1 and sys.version_info >= (3, 11):
        # Instructions that no text stands for lie where the line begins, and have no extent.
        places = [at for at in code.co_positions() if None not in at and at[2:] != (0, 0)]
        inside = [node for node in found if all(_holds(node, at[0], at[2]) for at in places)]
        found = inside[-1:]  # the innermost: an outer one holds it, too
    if len(found) != 1:
        problem = "isn't there" if not found else "has others like it beside it"
        raise CompileError(
            f"the source of a lambda can't be read: it {problem} at line {line} of {file!r}",
            Location(place, line, 0, line, 0),
            "write it with 'def', as a @tc.function",
        )
    (node,) = found
    body = ast.copy_location(ast.Return(node.body), node.body)
    tree = ast.FunctionDef(name="lambda", args=node.args, body=[body], decorator_list=[])
    return Source(place, lines, 1, ast.copy_location(tree, node))


def _module(file: str, lines: list[str]) -> _Module:
    text = "".join(lines)
    known = _modules.get(file)
    if known is None or known.text != hash(text):
        try:
            statements = ast.parse(text).body
        except SyntaxError:
            statements = []
        known = _modules[file] = _Module(hash(text), statements, {})
    return known


def _holds(node: ast.Lambda, line: int | None, column: int | None) -> bool:
    assert line is not None
    assert column is not None
    start = (node.lineno, node.col_offset)
    return start <= (line, column) < (node.end_lineno or 0, node.end_col_offset or 0)


# --- where running Python is -----------------------------------------------------------------


_stated: ContextVar[Location | None] = ContextVar("stated", default=None)


@contextmanager
def called_from(place: Location | None) -> Iterator[None]:
    """Attribute what is traced meanwhile to a place that isn't a line of Python, such as a node of a model.

    None: from lines again.
    """
    token = _stated.set(place)
    try:
        yield
    finally:
        _stated.reset(token)


def call_site() -> Location:
    """The expression outside taskc that the current call comes from."""
    stated = _stated.get()
    if stated is not None:
        return stated
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return NOWHERE if frame is None else running(frame, frame.f_lineno, frame.f_lasti)


def running(frame: FrameType, line: int, instruction: int) -> Location:
    """The expression of a frame that an instruction belongs to.

    Before Python 3.11 only its line is known: then it is the statement, less what is assigned.
    """
    file, end_line = frame.f_code.co_filename, line
    text = linecache.getline(file, line, frame.f_globals).rstrip("\r\n")
    assigned = re.match(r"\s*(?:[\w\s,]+=(?!=)\s*)?", text)
    start, end = len(assigned[0].encode()) if assigned else 0, len(text.encode())
    if sys.version_info >= (3, 11):
        found = next(islice(frame.f_code.co_positions(), instruction // 2, None))
        if None not in found:
            line, end_line, start, end = cast("tuple[int, int, int, int]", found)
    text = linecache.getline(file, line, frame.f_globals).rstrip("\r\n")
    last = linecache.getline(file, end_line, frame.f_globals)
    place = os.path.abspath(file) if os.path.exists(file) else file
    return Location(place, line, _column(text, start), end_line, _column(last, end), text)


def _column(text: str, offset: int) -> int:
    return len(text.encode()[:offset].decode(errors="replace")) + 1


def way_out(site: Location) -> Location | None:
    """A `return`, `break` or `continue` that leaves the body of the `with` whose head is at a place."""
    if _stated.get() is not None:
        return None
    lines = linecache.getlines(site.file)
    for node in _module(site.file, lines).around(site.line):
        if isinstance(node, ast.With) and any(
            _is_at(item.context_expr, site) for item in node.items
        ):
            leaving = next(_leaving(node.body), None)
            if leaving is not None:
                text = lines[leaving.lineno - 1].rstrip("\r\n")
                start, end = leaving.col_offset, leaving.end_col_offset or 0
                return Location(
                    site.file, leaving.lineno, _column(text, start), leaving.lineno,
                    _column(text, end), text,
                )  # fmt: skip
    return None


def _is_at(node: ast.expr, site: Location) -> bool:
    column = _column(site.text, node.col_offset)
    return node.lineno == site.line and (sys.version_info < (3, 11) or column == site.column)


def _leaving(statements: list[ast.stmt], in_loop: bool = False) -> Iterator[ast.stmt]:
    """The statements that leave this body by a jump or a return."""
    for statement in statements:
        match statement:
            case ast.Return():
                yield statement
            case ast.Break() | ast.Continue() if not in_loop:
                yield statement
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                pass
            case _:
                is_loop = in_loop or isinstance(statement, ast.For | ast.While)
                for body in ("body", "orelse", "finalbody"):
                    yield from _leaving(getattr(statement, body, []), is_loop)


def assigned_names(site: Location, default: tuple[str, ...]) -> tuple[str, ...]:
    """The names that a statement gives to the results of the call at a place."""
    before = site.text[: max(site.column - 1, 0)]
    found = re.fullmatch(r"\s*([^\W\d]\w*(?:\s*,\s*[^\W\d]\w*)*)\s*=\s*", before)
    names = tuple(re.findall(r"\w+", found[1])) if found else ()
    return names if len(names) == len(default) else default
