"""How deep a program is nested, and how long its code gets.

A traversal calls itself for each level of a program, several functions a level: a sum of 400 terms is a tree of 400
levels, and each `elif` is nested in the one before. Python stops at 1000 calls; the doors of the compiler make room
for more, and reject programs that are nested deeper still.

The size of code counts statements, once their loops are unrolled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from taskc.errors import NOWHERE, CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.nodes import Constant, Statement
from taskc.ir.reentry import Turn
from taskc.ir.rewrite import statements

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


def length(values: range) -> int:
    """The length of a range; len() ends at 2**63."""
    return (values[-1] - values[0]) // values.step + 1 if values else 0


def trip_count(loop: ir.For) -> int | None:
    """The number of iterations, if the bounds are constant."""
    if type(loop.start) is not Constant or type(loop.stop) is not Constant:
        return None
    return length(range(int(loop.start.value), int(loop.stop.value), loop.step))


class CodeSizes:
    """Counts statements, each node once, for nodes that outlive it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Statement, int | None]] = {}

    def of(self, node: Statement) -> int | None:
        """The number of statements with all loops unrolled; None if a loop can't be unrolled."""
        known = self._known.get(id(node))
        if known is not None:
            return known[1]
        size: int | None = 0
        match node:
            case ir.While() | ir.Pipeline() | ir.Grid() | ir.Each():
                size = None
            case ir.Do(operation="mbarrier.wait"):
                size = None
            case ir.For():
                trips = None if node.kind == "serial" else trip_count(node)
                inner = self.of(node.body)
                size = None if trips is None or inner is None else trips * inner
            case _:
                below = [self.of(statement) for statement in statements(node)]
                size = 1 + sum(part or 0 for part in below)
                if None in below:
                    size = None
        self._known[id(node)] = node, size
        return size
