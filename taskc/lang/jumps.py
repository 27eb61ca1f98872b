"""`break` and `continue`, as branches: what stands behind a branch that jumps belongs to the other one.

    for q in range(n):             for q in range(n):
        if x[q] < 0:                   if goes_on:
            break           ->             if x[q] < 0:
        total += x[q]                          goes_on = False
                                           else:
                                               total += x[q]

So a program has no jumps, its proofs know of conditions alone, and what a loop that may end does isn't proved to be
done. That the rest of a loop does nothing, backends see: taskc/analysis/early_exit.py.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from taskc.ir import nodes as ir

Loop: TypeAlias = "ast.For | ast.While"


class Skippable(ast.stmt):
    """A branch in which some ways jump, and the `rest`, which is for the others."""

    _fields = ("statement", "rest")

    def __init__(self, statement: ast.If, rest: list[ast.stmt]) -> None:
        super().__init__()
        self.statement, self.rest = statement, rest
        ast.copy_location(self, statement)


def arranged(statements: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of a body with nothing behind what jumps; of a loop in it too."""
    made: list[ast.stmt] = []
    for position, statement in enumerate(statements):
        rest = statements[position + 1 :]
        if isinstance(statement, (ast.Break, ast.Continue)):
            return [*made, statement]
        if isinstance(statement, ast.If) and _jumps([statement]) and rest:
            then, otherwise = statement.body, statement.orelse
            if _ends(then):
                otherwise = [*otherwise, *rest]
            elif _ends(otherwise):
                then = [*then, *rest]
            else:
                return [*made, Skippable(_with_bodies(statement, then, otherwise), arranged(rest))]
            return [*made, _with_bodies(statement, then, otherwise)]
        if isinstance(statement, (ast.If, ast.For, ast.While)):
            statement = _with_bodies(statement, statement.body, statement.orelse)
        elif isinstance(statement, ast.With):
            statement = copy.copy(statement)
            statement.body = arranged(statement.body)
        made.append(statement)
    return made


def _with_bodies(statement: ast.If | Loop, body: list[ast.stmt], orelse: list[ast.stmt]) -> Any:
    made = copy.copy(statement)
    made.body, made.orelse = arranged(body), arranged(orelse)
    return made


def _ends(statements: Iterable[ast.stmt]) -> bool:
    """Whether each way through the statements jumps."""
    return any(
        isinstance(one, (ast.Break, ast.Continue))
        or (isinstance(one, ast.If) and _ends(one.body) and _ends(one.orelse))
        for one in statements
    )


def _jumps(statements: Iterable[ast.stmt]) -> bool:
    return any(True for _ in _jumps_in(statements))


def _jumps_in(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Those that end an iteration of the loop around the statements, or the loop."""
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

    what     it is, where it can't be ended
    in_role  whether it stands in a role itself
    goes_on  the cell that `break` clears, where there is one
    runs     those that tell whether what is behind a branch is skipped
    """

    what: str | None
    in_role: bool
    goes_on: ir.Tensor | None = None
    runs: list[ir.Tensor] = field(default_factory=list)
