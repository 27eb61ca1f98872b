"""Errors, their locations, and their form in text.

There are three kinds: the user's mistakes (`CompileError`), bugs of taskc (`InternalError`), and observations of
the checker (`Finding`). Locations in the source are always shown in this form:

    matmul.py:22:20: error: '@' needs 2-D tensors
          s = a; c = a @ b
                     ^^^^^
      hint: b is float32[64]; reshape it to float32[64, 1]
"""

from __future__ import annotations

import traceback
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NoReturn, TypeAlias

from taskc.dataclass import dataclass

Severity: TypeAlias = Literal["error", "warning", "note"]
Notes: TypeAlias = "tuple[tuple[str, Location], ...]"

_TAB = 8
_MARGIN = 6


@dataclass(frozen=True, slots=True)
class Location:
    """A span of source text.

    Lines and columns count from 1, columns in characters; `end_column` is the one after the last.
    0 means unknown: a file may be known without the line, a line without the column.
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str = ""  # the line that the span starts on

    def __str__(self) -> str:
        parts = (_shown_file(self.file), self.line, self.column)
        return ":".join(str(part) for part in parts if part)

    def to_json(self) -> dict[str, str | int]:
        return {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "end_line": self.end_line,
            "end_column": self.end_column,
        }


NOWHERE = Location("", 0, 0, 0, 0)


class CompileError(Exception):
    """The program is wrong, and its author can fix it."""

    def __init__(
        self,
        message: str,
        location: Location = NOWHERE,
        hint: str | None = None,
        notes: Notes = (),
    ) -> None:
        super().__init__(message, location, hint, notes)  # all of them, so that it can be pickled
        self.message = message
        self.location = location
        self.hint = hint
        self.notes = notes

    def __str__(self) -> str:
        lines = [*_paragraph("error", self.message, self.location)]
        if self.hint is not None:
            lines.append(f"  hint: {self.hint}")
        return "\n".join([*lines, *_note_lines(self.notes)])

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython shows in place of a traceback."""
        lines, calls = str(self).splitlines(), user_calls(self)
        return [*lines, *calls] if len(calls) > 3 or self.location == NOWHERE else lines


def user_calls(error: BaseException) -> list[str]:
    """The user's part of a traceback: a heading, and two lines for each call."""
    frames = (
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").partition(".")[0] not in ("IPython", "taskc")
    )
    calls = "".join(traceback.StackSummary.extract(frames).format())
    return ["called from:", *calls.splitlines()]


class InternalError(Exception):
    """A bug in taskc. `ir` is the text of the program at the point where it showed."""

    def __init__(self, message: str, ir: str = "") -> None:
        super().__init__(message, ir)
        self.message = message
        self.ir = ir

    def __str__(self) -> str:
        plea = "please report it with the text below" if self.ir else "please report it"
        first = f"internal error: {self.message} (this is a bug in taskc; {plea})"
        return f"{first}\n{self.ir}" if self.ir else first


class RetryError(Exception):
    """A request to the caller to build the same in another way; users never see it."""


@contextmanager
def blaming_taskc(what: str, text: Callable[[], str] = str) -> Iterator[None]:
    """Report unexpected exceptions, such as a KeyError of a pass, as bugs of the compiler.

    what  the part of the compiler that is at work
    text  prints the program that it works on
    """
    try:
        yield
    except (CompileError, InternalError, MemoryError, RecursionError, RetryError):
        raise
    except Exception as error:
        raise InternalError(f"{what}: {type(error).__name__}: {error}", text()) from error


def assert_never(value: NoReturn) -> NoReturn:
    """The last case of a `match` over a union: the type checker reports it if a type has no case."""
    raise InternalError(f"there is no case for {type(value).__name__} here")


def rendered(subject: object, form: str, *options: object) -> str:
    """A mapping or findings as "svg" or "html"."""
    return _renderer[0](subject, form, *options)


_renderer: list[Callable[..., str]] = []


def set_renderer(render: Callable[..., str]) -> None:
    """Set the function that draws objects in notebooks: it belongs to a layer above this one."""
    _renderer[:] = [render]


@dataclass(frozen=True, slots=True)
class Finding:
    """One observation of the checker, such as a race."""

    kind: str
    severity: Severity
    message: str
    location: Location = NOWHERE
    details: tuple[tuple[str, str | int], ...] = ()
    notes: Notes = ()

    def __str__(self) -> str:
        lines = [*_paragraph(self.kind, self.message, self.location)]
        lines += [f"  {name}: {value}" for name, value in self.details]
        return "\n".join([*lines, *_note_lines(self.notes)])

    def to_json(self) -> dict[str, object]:
        """Data for `json.dumps`; `file` is as given, not relative to the working directory."""
        return {
            "kind": self.kind,
            "severity": self.severity,
            "message": self.message,
            "location": self.location.to_json(),
            "details": dict(self.details),
            "notes": [{"message": text, "location": loc.to_json()} for text, loc in self.notes],
        }

    def _repr_html_(self) -> str:
        return rendered(self, "html")


class Findings(tuple[Finding, ...]):
    """All observations of the checker; a notebook shows them as a terminal does."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return rendered(self, "html")


class CheckError(Exception):
    """A kernel did something wrong while it ran. `findings` have the details."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        super().__init__(findings)
        self.findings = findings

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings))


def _paragraph(label: str, message: str, location: Location) -> Iterator[str]:
    place = str(location)
    yield f"{place}: {label}: {message}" if place else f"{label}: {message}"
    if location.text.strip() and location.column:
        yield from _excerpt(location)


def _note_lines(notes: Notes) -> Iterator[str]:
    for message, location in notes:
        yield from _paragraph("note", message, location)


def _excerpt(location: Location) -> tuple[str, str]:
    """The source line, and carets under the span, or to the end of the line if it continues below."""
    text = location.text.rstrip()
    cells = _cells(text)
    first = len(text) - len(text.lstrip())
    start = max(location.column - 1, first)
    end = location.end_column - 1 if location.end_line <= location.line else len(text)
    margin = " " * _MARGIN
    before = sum(width for _, width in cells[first:start])
    under = sum(width for _, width in cells[start:end])
    line = "".join(shown for shown, _ in cells[first:])
    return margin + line, margin + " " * before + "^" * max(under, 1)


def _cells(text: str) -> list[tuple[str, int]]:
    """For each character, the text printed in its place, and the number of terminal cells that it takes."""
    cells = []
    column = 0
    for char in text:
        category = unicodedata.category(char)
        if char == "\t":
            width = _TAB - column % _TAB
            cells.append((" " * width, width))
        elif category == "Cc":  # it would move the cursor
            width = 1
            cells.append((" ", width))
        elif category in ("Mn", "Me", "Cf"):  # combining marks, joiners
            width = 0
            cells.append((char, width))
        else:
            width = 2 if unicodedata.east_asian_width(char) in "WF" else 1
            cells.append((char, width))
        column += width
    return cells


def _shown_file(file: str) -> str:
    """A file's name, relative to the working directory if it is below that."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (OSError, ValueError):
        return file
