"""Reentrancy: a call may come at any moment, from another thread, or within a signal handler, a finalizer, a callback
or a trace function, which interrupts a call of its own thread at any line.

One discipline prevents deadlocks:

- State shared by calls is built privately, and published by one atomic step: `setdefault` of a dict, `append` of
  a list, an assignment. Two calls may build the same thing; the first one published is used by all.
- State that shouldn't be built twice, or can't be changed atomically, has a `Turn`. One call at a time holds it, and
  others wait. Turns are taken in the order models, programs, kernels, never the other way.
- A call that interrupts another one never waits, neither for a turn nor for threads. If a turn isn't free, or its
  own thread holds it, `taken` yields False, and the call uses private state.

The only locks are those in this file, and those listed in tests/ir/test_reentry.py.

`cached_property` has no lock. functools' has one before Python 3.12, which a child of a fork may find held by a thread
that it doesn't have.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload
from weakref import WeakSet

P = ParamSpec("P")
T = TypeVar("T")


class _Thread(threading.local):
    """doors        depth of nested calls in this thread
    turns        the turns it holds
    interrupting whether the innermost call interrupts another one
    """

    def __init__(self) -> None:
        self.doors = 0
        self.turns: tuple[Turn, ...] = ()
        self.interrupting = False


_here = _Thread()


@contextmanager
def door() -> Iterator[None]:
    """Mark a call's extent: a call that begins while the thread is inside, or holds a turn, interrupts it."""
    before = _here.doors, _here.interrupting
    try:
        _here.interrupting = before[0] > 0 or bool(_here.turns)
        _here.doors = before[0] + 1
        yield
    finally:
        _here.doors, _here.interrupting = before


def may_wait() -> bool:
    """Whether this call may wait for threads, including its own: it interrupts none."""
    return not _here.interrupting


def for_another_thread(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a part of this call for a thread that the call waits for."""

    @wraps(function)
    def part(*args: P.args, **keywords: P.kwargs) -> T:
        with door():
            return function(*args, **keywords)

    return part


class Turn:
    """A mutual exclusion that one call at a time holds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _all.add(self)

    @contextmanager
    def taken(self) -> Iterator[bool]:
        """Wait for the turn and yield True; yield False if it isn't free and the call may not wait."""
        before = _here.turns
        if _here.interrupting or self in before:
            yield False
            return
        try:
            _here.turns = (
                *before,
                self,
            )  # first, so that an interrupting call never waits for its own thread
            with self._lock:
                yield True
        finally:
            _here.turns = before

    def forget(self) -> None:
        """Reset in a fork's child, where the parent's holder doesn't exist."""
        self._lock = threading.Lock()


class _Nobodys(Turn):
    """The turn of private state, which is always free."""

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


if TYPE_CHECKING:  # pyright requires a protocol's property to be one
    cached_property = property
else:

    def cached_property(compute: Callable[[Any], T]) -> Cached[T]:
        return Cached(compute)


class Cached(Generic[T]):
    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Cached[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Cached[T] | T:
        if instance is None:
            return self
        made = instance.__dict__[self.name] = self.compute(instance)
        return made
