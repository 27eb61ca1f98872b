"""The CPU time of the parts of a compile.

    with span("LLVM/generate code"):
        ...

A span's time is the CPU time of its own thread, without the spans inside it, so that times of different names add up.
It is a debug record of the logger `taskc.spans`, and `recorded` collects these records:

    with recorded() as spans:
        model.run(None, feeds)
    spans["LLVM/generate code"].seconds

A name is the part's, after its group's and a slash where it has one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from taskc.dataclass import dataclass

logger = logging.getLogger("taskc.spans")


class _Thread(threading.local):
    """The CPU seconds of completed spans inside the span that is open in this thread."""

    inner = 0.0


_here = _Thread()


@contextmanager
def span(name: str) -> Iterator[None]:
    """Log the CPU time of the body, or of a function as its decorator."""
    if not logger.isEnabledFor(logging.DEBUG):
        yield
        return
    outer, _here.inner = _here.inner, 0.0
    start = time.thread_time()
    try:
        yield
    finally:
        seconds = time.thread_time() - start
        logger.debug("%s: %.6f s", name, seconds - _here.inner)
        _here.inner = outer + seconds


@dataclass(slots=True)
class Total:
    """The CPU seconds of all spans of a name, and their number.

    elsewhere  the part of the seconds that other processes spent
    """

    seconds: float = 0.0
    count: int = 0
    elsewhere: float = 0.0


class _Totals(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.spans: dict[str, Total] = {}

    def emit(self, record: logging.LogRecord) -> None:
        assert isinstance(record.args, tuple)
        name, seconds = record.args
        assert isinstance(name, str)
        assert isinstance(seconds, float)
        total = self.spans.setdefault(name, Total())
        total.seconds += seconds
        total.count += getattr(record, "count", 1)
        total.elsewhere += getattr(record, "elsewhere", 0.0)


@contextmanager
def recorded() -> Iterator[dict[str, Total]]:
    """The totals of all spans that end while the body runs, in all threads, by name."""
    totals, level = _Totals(), logger.level
    logger.addHandler(totals)
    logger.setLevel(logging.DEBUG)
    try:
        yield totals.spans
    finally:
        logger.setLevel(level)
        logger.removeHandler(totals)


def add(totals: Mapping[str, Total]) -> None:
    """Log spans that another process has recorded."""
    for name, total in totals.items():
        more = {"count": total.count, "elsewhere": total.seconds}
        logger.debug("%s: %.6f s", name, total.seconds, extra=more)


def grouped(spans: Mapping[str, Total], seconds: float) -> list[tuple[str, Total]]:
    """The totals in a table's order: longest groups first, each followed by its parts, and what no span covers.

    seconds  the CPU time of this process
    """
    groups: dict[str, list[tuple[str, Total]]] = {}
    for name, total in sorted(spans.items(), key=lambda item: -item[1].seconds):
        group, _, part = name.partition("/")
        groups.setdefault(group, []).append((part, total))
    sums = {group: sum(total.seconds for _, total in parts) for group, parts in groups.items()}
    rows = []
    for group in sorted(sums, key=lambda group: -sums[group]):
        most = max(total.count for _, total in groups[group])
        rows.append((group, Total(sums[group], most)))
        rows += [(f"  {part}", total) for part, total in groups[group] if part]
    here = sum(total.seconds - total.elsewhere for total in spans.values())
    rows.append(("other", Total(seconds - here, 1)))
    return rows
