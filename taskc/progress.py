"""A line on the terminal with the current activity of work that takes long.

    with line():                                    a call that may take long
        report("tracing model")                     what it does
        for item in counted("kernel", kernels, results):
            ...                                     kernel 12 of 89: relu, and a bar

Nothing is shown in the first second, where the standard error is no terminal, or where a program silences the warnings
of the logger `taskc`. The line is removed at the end. Commands have lines of their own, which show activities at once.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, TypeVar

from taskc.ir.reentry import may_wait
from taskc.markup import visible

T = TypeVar("T")

_PATIENCE, _REFRESH = 1.0, 0.1  # seconds: until a bar is shown, and between its updates


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class Progress:
    """A line with the current activity, on a terminal only; it is removed at the end.

    If the completed share is given, a bar is shown after the first second.

    at_once  texts are shown in the first second, too
    """

    def __init__(self, *, at_once: bool = True) -> None:
        self.thread = threading.get_ident()
        self._is_shown = is_terminal(sys.stderr)
        self._at_once = at_once
        self._begin = time.monotonic()
        self._bar: Any = None
        self._has_text = False
        self._latest = 0.0

    def __call__(self, text: str, share: float | None = None) -> None:
        if not self._is_shown:
            return
        now = time.monotonic()
        if now - self._begin < _PATIENCE and not self._at_once:
            return
        if share is None or now - self._begin < _PATIENCE:
            self.clear()
            sys.stderr.write(f"{visible(text)} …")
            sys.stderr.flush()
            self._has_text = True
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
        """Show nothing until the next call."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        elif self._has_text:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._has_text = False

    def __enter__(self) -> Progress:
        _lines.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _lines.remove(self)
        self.clear()


_lines: list[Progress] = []  # the first one is shown


@contextmanager
def line() -> Iterator[None]:
    """Show what is reported inside, unless another call does so already."""
    is_wanted = not _lines and may_wait() and _logger.isEnabledFor(logging.WARNING)
    if not is_wanted or not is_terminal(sys.stderr):
        yield
        return
    with Progress(at_once=False):
        yield


_logger = logging.getLogger("taskc")


def report(text: str, share: float | None = None) -> None:
    """Show an activity of this thread, if it has the line."""
    for progress in _lines[:1]:
        if progress.thread == threading.get_ident():
            progress(text, share)


def counted(what: str, names: Sequence[str], results: Iterable[T]) -> Iterator[T]:
    """Results as they come, each reported by its number and name."""
    iterator = iter(results)
    for number, name in enumerate(names):
        report(f"{what} {number + 1} of {len(names)}: {name}", number / len(names))
        yield next(iterator)
