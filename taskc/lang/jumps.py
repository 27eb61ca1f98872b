"""`break` and `continue` as branches: the statements after an `if` that jumps move into its other branch.

    for q in range(n):             for q in range(n):
        if x[q] < 0:                   if goes_on:
            break           ->             if x[q] < 0:
        total += x[q]                          goes_on = False
                                           else:
                                               total += x[q]

So the IR has no jumps, proofs need conditions only, and the work of a loop that may end early isn't proved to be
done. Backends detect that the rest of a loop does nothing: taskc/analysis/touches.py.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any, TypeAlias

from taskc.dataclass import dataclass
from taskc.ir import nodes as ir

Loop: TypeAlias = "ast.For | ast.While"


class Skippable(ast.stmt):
    """An `if` with some paths that jump, and `rest`, the statements that the other paths run next."""

    _fields = ("statement", "rest")

    def __init__(self, statement: ast.If, rest: list[ast.stmt]) -> None:
        super().__init__()
        self.statement, self.rest = statement, rest
        ast.copy_location(self, statement)


def arranged(statements: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of a body without any after a jump, also in the loops in it."""
    flat: list[ast.stmt] = []
    for position, statement in enumerate(statements):
        rest = statements[position + 1 :]
        if isinstance(statement, (ast.Break, ast.Continue)):
            return [*flat, statement]
        if isinstance(statement, ast.If) and _jumps([statement]) and rest:
            then, otherwise = statement.body, statement.orelse
            if _ends(then):
                otherwise = [*otherwise, *rest]
            elif _ends(otherwise):
                then = [*then, *rest]
            else:
                return [*flat, Skippable(_with_bodies(statement, then, otherwise), arranged(rest))]
            return [*flat, _with_bodies(statement, then, otherwise)]
        if isinstance(statement, (ast.If, ast.For, ast.While)):
            statement = _with_bodies(statement, statement.body, statement.orelse)
        elif isinstance(statement, ast.With):
            statement = copy.copy(statement)
            statement.body = arranged(statement.body)
        flat.append(statement)
    return flat


def _with_bodies(statement: ast.If | Loop, body: list[ast.stmt], orelse: list[ast.stmt]) -> Any:
    copied = copy.copy(statement)
    copied.body, copied.orelse = arranged(body), arranged(orelse)
    return copied


def _ends(statements: Iterable[ast.stmt]) -> bool:
    """Whether every path through the statements jumps."""
    return any(
        isinstance(one, (ast.Break, ast.Continue))
        or (isinstance(one, ast.If) and _ends(one.body) and _ends(one.orelse))
        for one in statements
    )


def _jumps(statements: Iterable[ast.stmt]) -> bool:
    return any(True for _ in _jumps_in(statements))


def _jumps_in(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The jumps that end the loop around the statements, or an iteration of it."""
    for statement in statements:
        match statement:
            case ast.Break() | ast.Continue():
                yield statement
            case ast.If():
                yield from _jumps_in((*statement.body, *statement.orelse))
            case Skippable():
                yield from _jumps_in((statement.statement, *statement.rest))


def may_end(loop: Loop) -> bool:
    """Whether a `break` in its body ends a loop."""
    return any(isinstance(jump, ast.Break) for jump in _jumps_in(loop.body))


@dataclass(slots=True)
class Leaving:
    """A loop that is being parsed.

    what     a description of the loop, where it can't be ended
    in_role  whether it stands in a role itself
    goes_on  the cell that `break` clears, where there is one
    runs     the cells that tell whether the statements after a branch are skipped
    """

    what: str | None
    in_role: bool
    goes_on: ir.Tensor | None = None
    runs: list[ir.Tensor] = field(default_factory=list)
