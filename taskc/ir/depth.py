"""Limits of nesting in programs.

Whatever goes over a program calls itself for each level of it, several functions a level: a sum of 400 terms
is a tree of 400 levels, and each `elif` is nested in the one before. Python stops at 1000 calls; the doors of
the compiler make room for more, and tell what is nested deeper yet.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from taskc.errors import NOWHERE, CompileError, Location
from taskc.ir.reentry import Turn

# The recursion limit. Before Python 3.11 each call takes up to 800 bytes of the thread's C stack of 8 MiB, so twice as
# many would still fit.
CALLS = 5_000

P = ParamSpec("P")
K = TypeVar("K")
T = TypeVar("T")

_turn = Turn()
_inside: list[
    None
] = []  # an entry for each time it is entered, by any thread: Python has one limit for all of them
_before = 0  # the limit outside, once it was raised


@contextmanager
def deep(location: Location = NOWHERE) -> Iterator[None]:
    """Raise the recursion limit for deep nesting; raises an error at the location if it isn't enough."""
    _enter()
    try:
        yield
    except RecursionError:
        raise too_deep(location) from None
    finally:
        _leave()


def too_deep(location: Location) -> CompileError:
    hint = "give parts of an expression names, and write a long chain of elifs as several"
    return CompileError("this is nested too deeply", location, hint)


def deeply(function: Callable[Concatenate[K, P], T]) -> Callable[Concatenate[K, P], T]:
    """Decorator: run a function of a kernel, or of another node with a location, inside `deep`."""

    @wraps(function)
    def nested(subject: K, /, *args: P.args, **keywords: P.kwargs) -> T:
        with deep(getattr(subject, "loc", NOWHERE)):
            return function(subject, *args, **keywords)

    return nested


def _enter() -> None:
    global _before
    with _turn.taken():
        _inside.append(None)
        limit = sys.getrecursionlimit()
        if limit < CALLS:
            _before = limit
            sys.setrecursionlimit(CALLS)


def _leave() -> None:
    global _before
    with _turn.taken():
        _inside.pop()
        limit = _before
        if limit and not _inside:
            _before = 0
            sys.setrecursionlimit(limit)
            if _inside:  # a call that doesn't wait for its turn
                _before = limit
                sys.setrecursionlimit(CALLS)
