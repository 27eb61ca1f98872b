"""Syntax trees by lark, and lark's errors in our words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import Any

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken
from lark.indenter import DedentError, Indenter

from taskc.errors import CompileError, Location
from taskc.ir.mapping_text import LONG_NUMBER, MOST_DIGITS

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


@cache
def _parser() -> Lark:
    return Lark.open(
        "ir.lark",
        rel_to=__file__,
        start=["kernel_text", "program_text"],
        parser="lalr",
        postlex=_Indentation(),
        propagate_positions=True,
        maybe_placeholders=False,
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
    for number, line in enumerate(text.splitlines(), 1):
        code = line.partition("#")[0].expandtabs()
        if not code.strip():
            continue
        indentation = len(code) - len(code.lstrip())
        if indentation > blocks[-1]:
            blocks.append(indentation)
        while indentation < blocks[-1]:
            blocks.pop()
        if indentation != blocks[-1]:
            return number
    raise AssertionError("each line is indented like one above it")
