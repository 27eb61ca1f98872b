"""Output of commands: plain text, coloured on a terminal that supports it."""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from taskc.ir.target import TARGETS
from taskc.markup import visible
from taskc.progress import is_terminal

# --- Problems and plans for people: JSON as words -----------------------------------------------
# {"dtype":{"is":"type","name":"f32"},"is":"Problem","k":64,"m":16,"n":32}   m=16 n=32 k=64 f32


_FIRST = ("m", "n", "k")
_TYPE = "dtype"  # other types are shown only if they differ from it


def words(text: str) -> list[str]:
    """Extents, then types, then the rest; a text without fields is a single word."""
    try:
        said = json.loads(text)
        return _fields(said) if isinstance(said, dict) else [printable(text)]
    except (ValueError, RecursionError):
        return [printable(text)]


def _fields(said: dict[str, Any]) -> list[str]:
    said = dict(said)
    kind = said.pop("is", "Problem")
    said = {name: _value(value) for name, value in sorted(said.items(), key=_place)}
    dtype = said.get(_TYPE)
    parts = [] if kind == "Problem" else [str(kind)]
    for name, value in said.items():
        if name == _TYPE:
            parts.append(str(value))
        elif value is True:
            parts.append(name)
        elif value != dtype:
            parts.append(f"{name}={value}")
    return [printable(word) for word in parts]


def _place(item: tuple[str, Any]) -> tuple[int, int]:
    """The sort key of a field; fields with equal keys keep their order."""
    name, value = item
    kind = value.get("is") if isinstance(value, dict) else None
    is_number = isinstance(value, int | list) and not isinstance(value, bool)
    among = _FIRST.index(name) if name in _FIRST else len(_FIRST)
    if is_number or kind == "dim":
        return 0, among
    return (1 if kind == "type" else 2), (0 if name == _TYPE else 1)


def _value(value: Any) -> Any:
    """A field's value as a word, or True."""
    match value:
        case True:
            return True
        case False | None:
            return "no"
        case {"is": "function", "name": str(name)}:
            return name.rpartition(".")[2]
        case {"is": "dim", "multiple": multiple}:
            return "dim" if multiple == 1 else f"dim({multiple})"
        case {"is": "type", "name": str(name)}:
            return name
        case {"is": "mapping", "text": str(said)}:
            return said.replace(" ", "")
        case {}:
            return f"({' '.join(_fields(value))})"
        case [int(), *_] if all(type(item) is int for item in value):
            return "x".join(map(str, value))
        case [*items]:
            return f"[{','.join(str(_value(item)) for item in items)}]"
    return value if isinstance(value, str) else json.dumps(value)


def printable(text: str) -> str:
    """A text with unprintable characters escaped, so that none moves the cursor."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


Part: TypeAlias = "str | tuple[str, str]"  # a text, or a text and its style

_RULES = (
    (r"(?m)^error:|(?<=\d: )(?!note)[a-z-]+:(?= )", "bold red"),  # after the line and column
    (r"(?m)^\s*\^+$", "bold red"),
    (r"(?m)^note:|(?<=\d: )note:(?= )", "bold cyan"),
)
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


class OutputError(Exception):
    """The standard output can't be written; the cause is an OSError."""


class UsageError(Exception):
    """The command line is wrong."""


def write(*parts: Part, end: str = "\n") -> None:
    """Write a line to the standard output."""
    _emit(sys.stdout, parts, end)


def write_text(text: str) -> None:
    """Write text that may be long, unchanged."""
    put(text if text.endswith("\n") else f"{text}\n")


def write_json(answer: object) -> None:
    write_text(json.dumps(answer, indent=2))


def put(text: str) -> None:
    """Write to the standard output; all commands' output goes through here or `_emit`."""
    try:
        sys.stdout.write(visible(text))
    except OSError as error:
        raise OutputError from error


def write_diff(lines: Iterable[str]) -> None:
    for line in lines:
        style = _DIFF_STYLES.get(line[:1])
        write((line, style) if style else line)


def write_finding(text: str) -> None:
    """Write a finding, or an error that the command expects."""
    _emit(sys.stdout, _highlighted(text), "\n")


def write_error(text: str) -> None:
    """Write the error that ended the command to the standard error."""
    with suppress(OSError, ValueError, AttributeError):  # closed or full, which is reported later
        sys.stdout.flush()
    try:
        _emit(sys.stderr, _highlighted(text), "\n")
        sys.stderr.flush()
    except OSError:  # nobody is left to report to, and Python would try again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def columns(rows: Sequence[Sequence[str]], *, margin: str = "", right: Iterable[int] = ()) -> str:
    """Rows of cells in aligned columns; those listed in `right` are right-aligned."""
    to_right = set(right)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def cell(index: int, text: str) -> str:
        width = widths[index]
        return text.rjust(width) if index in to_right else text.ljust(width)

    lines = ["  ".join(cell(i, text) for i, text in enumerate(row)).rstrip() for row in rows]
    return "\n".join(margin + line for line in lines)


class LogLines(logging.Handler):
    """Prints the library's warnings, if no other handler is configured."""

    def emit(self, record: logging.LogRecord) -> None:
        write_error(f"warning: {record.getMessage()}")


def _highlighted(text: str) -> list[Part]:
    spans = sorted(
        (match.start(), match.end(), style)
        for pattern, style in _RULES
        for match in re.finditer(pattern, text)
    )
    parts: list[Part] = []
    done = 0
    for start, end, style in spans:
        if start >= done:
            parts += [text[done:start], (text[start:end], style)]
            done = end
    return [*parts, text[done:]]


def _emit(stream: TextIO, parts: Iterable[Part], end: str) -> None:
    if not is_terminal(stream) or os.environ.get("NO_COLOR"):
        text = "".join(part if isinstance(part, str) else part[0] for part in parts)
        if stream is sys.stdout:
            put(text + end)
        else:
            stream.write(visible(text) + end)
        return
    # Loading rich takes a while, so only for a terminal.
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)
    shown = [
        visible(part) if isinstance(part, str) else (visible(part[0]), part[1]) for part in parts
    ]
    console.print(Text.assemble(*shown), end=end)


# --- Options that several commands have, each declared once -------------------------------------


_KERNEL_HELP = """\
FILE:KERNEL names a kernel or a program of a file of Python: one at its top level, or what a
function returns:

  taskc show examples/01_vector_add.py:vector_add
  taskc show 'matmul.py:matmul(256, 256, 64, stages=3)'

Without KERNEL it is the only one of the file; where there are several, they are listed.
"""


def add_kernel(parser: argparse.ArgumentParser, *, or_model: bool = False) -> None:
    parser.epilog = _KERNEL_HELP
    named, what = (
        ("FILE:KERNEL|FILE.onnx|FILE.taskc", "kernel, model or bundle")
        if or_model
        else ("FILE:KERNEL", "kernel")
    )
    parser.add_argument("kernel", metavar=named, help=f"the {what}, see below")


def add_target(parser: argparse.ArgumentParser, *more: str) -> None:
    known = *more, *TARGETS
    parser.add_argument(
        "--target", choices=known, metavar="T", help=f"lower it for this target: {', '.join(known)}"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="write JSON")


def add_seeds(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument(
        "--seeds",
        metavar="N",
        type=positive,
        default=default,
        help=f"how many schedules of the workers are tried (default {default})",
    )


def page_at(named: str) -> Path:
    """The path of a page to write, checked before long work begins."""
    path = Path(named)
    if path.is_dir():
        raise UsageError(f"the report can't be written to {path}: it is a folder")
    if not path.parent.is_dir():
        raise UsageError(f"the report can't be written to {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"the report can't be written to {path}: permission denied")
    return path


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def seconds_of(text: str) -> float:
    """The seconds of 30s, 5m, 1.5h, or 30."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?)([smh]?)", text)
    if match is None or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: say 30s, or 5m")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
