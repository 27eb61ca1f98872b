"""What commands write: plain text, coloured where a person looks at a terminal that can."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, TextIO, TypeAlias

from taskc.markup import visible

Part: TypeAlias = "str | tuple[str, str]"  # a text, or a text and its style

_PATIENCE, _REFRESH = 1.0, 0.1  # seconds: until a bar is shown, and between two of its states

_RULES = (
    (r"(?m)^error:|(?<=\d: )(?!note)[a-z-]+:(?= )", "bold red"),  # after the line and column
    (r"(?m)^\s*\^+$", "bold red"),
    (r"(?m)^note:|(?<=\d: )note:(?= )", "bold cyan"),
)
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


class OutputError(Exception):
    """The standard output takes no more: from an OSError."""


class UsageError(Exception):
    """The command line asks for something that isn't there."""


def write(*parts: Part, end: str = "\n") -> None:
    """A line on the standard output."""
    _emit(sys.stdout, parts, end)


def write_text(text: str) -> None:
    """Text that may be long, as it is."""
    put(text if text.endswith("\n") else f"{text}\n")


def put(text: str) -> None:
    """All that commands write on the standard output ends here, or in `_emit`."""
    try:
        sys.stdout.write(visible(text))
    except OSError as error:
        raise OutputError from error


def write_diff(lines: Iterable[str]) -> None:
    for line in lines:
        style = _DIFF_STYLES.get(line[:1])
        write((line, style) if style else line)


def write_finding(text: str) -> None:
    """A finding, or an error that a command expects to show."""
    _emit(sys.stdout, _highlighted(text), "\n")


def write_error(text: str) -> None:
    """What ended the command, on the standard error."""
    with suppress(OSError, ValueError, AttributeError):  # closed or full, which is told later
        sys.stdout.flush()
    try:
        _emit(sys.stderr, _highlighted(text), "\n")
        sys.stderr.flush()
    except OSError:  # there is nobody left to tell, but Python would try again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def columns(rows: Sequence[Sequence[str]], *, margin: str = "", right: Iterable[int] = ()) -> str:
    """Rows of cells, aligned; the columns named by `right` to the right."""
    to_right = set(right)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def cell(index: int, text: str) -> str:
        width = widths[index]
        return text.rjust(width) if index in to_right else text.ljust(width)

    lines = ["  ".join(cell(i, text) for i, text in enumerate(row)).rstrip() for row in rows]
    return "\n".join(margin + line for line in lines)


def many(count: int, noun: str) -> str:
    """`1 block`, `2 blocks`"""
    return f"{count} {noun}{'' if count == 1 else 's'}"


class LogLines(logging.Handler):
    """Warnings of the library, where nobody has said what becomes of them."""

    def emit(self, record: logging.LogRecord) -> None:
        write_error(f"warning: {record.getMessage()}")


class Progress:
    """A line that says what is being done, on a terminal only; it is gone when the work is.

    Where it is told how much of it is done, there is a bar as well, from the second second on.
    """

    def __init__(self) -> None:
        self._is_shown = _is_terminal(sys.stderr)
        self._begin = time.monotonic()
        self._bar: Any = None
        self._latest = 0.0

    def __call__(self, text: str, share: float | None = None) -> None:
        if not self._is_shown:
            return
        now = time.monotonic()
        if share is None or now - self._begin < _PATIENCE:
            self.clear()
            sys.stderr.write(f"{visible(text)} …")
            sys.stderr.flush()
        elif self._bar is None or now - self._latest > _REFRESH:
            self._latest = now
            self._show(text, share)

    def _show(self, text: str, share: float) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress as Bar, TaskProgressColumn, TextColumn

        if self._bar is None:
            self.clear()
            shown = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TaskProgressColumn(),
            )
            console = Console(file=sys.stderr, highlight=False, emoji=False)
            self._bar = Bar(*shown, console=console, transient=True, auto_refresh=False)
            self._bar.add_task(visible(text), total=1.0)
            self._bar.start()
        self._bar.update(0, description=visible(text), completed=share, refresh=True)

    def clear(self) -> None:
        """Nothing is shown until the next call."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


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
    if not _is_terminal(stream) or os.environ.get("NO_COLOR"):
        text = "".join(part if isinstance(part, str) else part[0] for part in parts)
        if stream is sys.stdout:
            put(text + end)
        else:
            stream.write(visible(text) + end)
        return
    # Only a terminal is worth the time that loading it takes.
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)
    shown = [
        visible(part) if isinstance(part, str) else (visible(part[0]), part[1]) for part in parts
    ]
    console.print(Text.assemble(*shown), end=end)
