"""Calls may come at any moment: from other threads, and within the handler of a signal, a finalizer, a callback or a
trace function, which interrupt another call in their own thread at any of its lines.

There is one discipline, so that none waits for itself or for one that waits for it:

- What calls share is made aside, and published by one step that nothing interrupts: `setdefault` of a dict, `append` of
  a list, an assignment. Two may make the same thing; the first one that is published is everyone's.
- What shouldn't be made twice, or can't be changed by such a step, has a `Turn`. It is taken by one call at a time, and
  others wait. Turns are taken from models to programs to kernels, never the other way.
- A call that interrupts another one waits for nobody, and has no threads that it waits for. Where it can't have a turn
  at once, and where its own thread has that turn, it is told so, and makes for itself what it needs.

The only locks are those in this file, and those in the list of tests/ir/test_reentry.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar
from weakref import WeakSet

P = ParamSpec("P")
T = TypeVar("T")


class _Thread(threading.local):
    """doors        how many calls this thread is in, one of them within another
    turns        what it has taken
    interrupting whether the innermost call interrupts another one
    """

    def __init__(self) -> None:
        self.doors = 0
        self.turns: tuple[Turn, ...] = ()
        self.interrupting = False


_here = _Thread()


@contextmanager
def door() -> Iterator[None]:
    """Whoever comes in while the thread is in here, or has a turn, interrupts it."""
    before = _here.doors, _here.interrupting
    try:
        _here.interrupting = before[0] > 0 or bool(_here.turns)
        _here.doors = before[0] + 1
        yield
    finally:
        _here.doors, _here.interrupting = before


def may_wait() -> bool:
    """Whether this call may wait for threads, of its own too: it interrupts none."""
    return not _here.interrupting


def for_another_thread(function: Callable[P, T]) -> Callable[P, T]:
    """A part of this call, for a thread that the call waits for."""

    @wraps(function)
    def part(*args: P.args, **keywords: P.kwargs) -> T:
        with door():
            return function(*args, **keywords)

    return part


class Turn:
    """A right that one call at a time holds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _all.add(self)

    @contextmanager
    def taken(self) -> Iterator[bool]:
        """Waits for it, and is true; false where it can't be had, for a call that may not wait."""
        before = _here.turns
        if _here.interrupting or self in before:
            yield False
            return
        try:
            _here.turns = (*before, self)  # first, so that nobody waits for this thread in it
            with self._lock:
                yield True
        finally:
            _here.turns = before

    def forget(self) -> None:
        """In a fork's child: whoever has it in the parent isn't here."""
        self._lock = threading.Lock()


class _Nobodys(Turn):
    """Of what one call has for itself."""

    @contextmanager
    def taken(self) -> Iterator[bool]:
        yield True


_all: WeakSet[Turn] = WeakSet()
NOBODYS = _Nobodys()


def _forget() -> None:
    for turn in [*_all]:
        turn.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
