"""Limits of threads and memory for the programs that are made inside of a `with`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from taskc.dataclass import dataclass
from taskc.errors import CompileError


class LimitError(CompileError):
    """A call needs more than it may have."""


@dataclass(frozen=True, slots=True)
class Limits:
    """threads  that a call runs on
    memory   bytes of a program's constants, and of the temporaries of all its calls that run at one time
    """

    threads: int | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("threads", 1), ("memory", 0)):
            given = getattr(self, name)
            if given is not None and (not isinstance(given, int) or given < least):
                raise CompileError(f"{name} is a number of at least {least}, not {given!r}")


NO_LIMITS = Limits()

_current: ContextVar[Limits] = ContextVar("limits", default=NO_LIMITS)


def current_limits() -> Limits:
    return _current.get()


@contextmanager
def limited(limits: Limits) -> Iterator[None]:
    token = _current.set(limits)
    try:
        yield
    finally:
        _current.reset(token)
