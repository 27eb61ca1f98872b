"""Random programs with branches, whiles and loops: as a tree, traced into a program, and run by Python.

    Set(target, operation, operands)    target[i] = operation of operands' elements, of a variable or a name of the body
    Flag(target, of, bound)             flag = what is at the beginning of a variable, modulo 5, is less than a bound
    Either(flag, then, otherwise)
    Turns(count, body)                  as often as is at the beginning of a variable, modulo 4
    Steps(count, body)

Variables are there from the beginning to the end. A body has names of its own beside them, which it writes first.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

import taskc as tc
from taskc import i64

SIZE = 6
_VARIABLES = ("a", "b", "c", "d")
_FLAGS = ("f", "g")


@dataclass(frozen=True)
class Set:
    target: str
    operation: str
    operands: tuple[str, str]


@dataclass(frozen=True)
class Flag:
    target: str
    of: str
    bound: int


@dataclass(frozen=True)
class Either:
    flag: str
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]


@dataclass(frozen=True)
class Turns:
    count: str
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Steps:
    count: int
    body: tuple[Statement, ...]


Statement: TypeAlias = Set | Flag | Either | Turns | Steps

OPERATIONS: dict[str, Any] = {
    "add": lambda x, y, i: (x[i] + y[i]) % 97,
    "turn": lambda x, y, i: (x[5 - i] * 3 + y[i]) % 97,
    "mix": lambda x, y, i: (x[i] * y[5 - i] + 1) % 97,
}


# --- made by chance ---


def statements(seed: int) -> tuple[Statement, ...]:
    return _Writer(random.Random(seed)).body(_VARIABLES, 0)


class _Writer:
    def __init__(self, pick: random.Random) -> None:
        self.pick = pick
        self.count = 0

    def body(self, names: Sequence[str], depth: int) -> tuple[Statement, ...]:
        """Statements that may read these names, and others that they make."""
        known = [*names]
        made: list[Statement] = []
        for _ in range(self.pick.randint(2, 6 - depth)):
            made.append(self.statement(known, depth))
        return tuple(made)

    def statement(self, known: list[str], depth: int) -> Statement:
        pick = self.pick
        kind = pick.random()
        if depth < 3 and kind < 0.2:
            otherwise = self.body(known, depth + 1) if pick.random() < 0.7 else ()
            return Either(pick.choice(_FLAGS), self.body(known, depth + 1), otherwise)
        if depth < 3 and kind < 0.32:
            return Turns(pick.choice(known), self.body(known, depth + 1))
        if depth < 3 and kind < 0.4:
            return Steps(pick.randint(0, 3), self.body(known, depth + 1))
        if kind < 0.5:
            return Flag(pick.choice(_FLAGS), pick.choice(known), pick.randint(1, 4))
        operands = pick.choice(known[-3:]), pick.choice(known)
        target = pick.choice(_VARIABLES)
        if pick.random() < 0.6:
            self.count += 1
            target = f"t{self.count}"
            known.append(target)
        return Set(target, pick.choice([*OPERATIONS]), operands)


# --- run by Python ---


def expected(body: Sequence[Statement], given: Any) -> list[Any]:
    known: dict[str, Any] = {name: given[n].copy() for n, name in enumerate(_VARIABLES)}
    known |= {name: given[0, n] % 5 < 2 for n, name in enumerate(_FLAGS)}
    _run(body, known)
    return [known[name] for name in _VARIABLES]


def _run(body: Sequence[Statement], known: dict[str, Any]) -> None:
    for one in body:
        match one:
            case Set():
                x, y = (known[name] for name in one.operands)
                operation = OPERATIONS[one.operation]
                known[one.target] = np.array([operation(x, y, i) for i in range(SIZE)])
            case Flag():
                known[one.target] = known[one.of][0] % 5 < one.bound
            case Either():
                _run(one.then if known[one.flag] else one.otherwise, known)
            case Turns():
                for _ in range(known[one.count][0] % 4):
                    _run(one.body, known)
            case Steps():
                for _ in range(one.count):
                    _run(one.body, known)


# --- as a program ---


def program(seed: int) -> tc.ProgramDefinition:
    made = statements(seed)

    def body(given: Any) -> dict[str, Any]:
        known = {name: _copied(given[n]) for n, name in enumerate(_VARIABLES)}
        first = given[0]
        for n, name in enumerate(_FLAGS):
            known[name] = _flag(first[n : n + 1], 2)
        _trace(made, known)
        return {name: known[name] for name in _VARIABLES}

    return tc.trace(f"flow_{seed}", {"given": i64[4, SIZE]}, body)


def _copied(x: Any, out: Any = None) -> Any:
    return tc.compute(x.shape, lambda *at: x[at], name="copy", out=out)


def _flag(of: Any, bound: int, out: Any = None) -> Any:
    return tc.compute((), lambda: of[0] % 5 < bound, name="flag", out=out)


def _trace(body: Sequence[Statement], outer: dict[str, Any]) -> None:
    known = dict(outer)
    for one in body:
        match one:
            case Set():
                _trace_set(one, known)
            case Flag():
                _flag(known[one.of], one.bound, known[one.target])
            case Either():
                with tc.branch(known[one.flag]):
                    _trace(one.then, known)
                if one.otherwise:
                    with tc.otherwise():
                        _trace(one.otherwise, known)
            case Turns():
                _trace_turns(one, known)
            case Steps():
                for _ in tc.steps(one.count):
                    _trace(one.body, known)


def _trace_turns(one: Turns, known: dict[str, Any]) -> None:
    of = known[one.count]
    left = tc.compute((), lambda: of[0] % 4, name="left")
    more = tc.compute((), lambda: left[()] > 0, name="more")
    for _ in tc.steps_while(more):
        _trace(one.body, known)
        less = tc.compute((), lambda: left[()] - 1, name="less")
        _copied(less, left)
        tc.compute((), lambda: left[()] > 0, name="more", out=more)


def _trace_set(one: Set, known: dict[str, Any]) -> None:
    x, y = (known[name] for name in one.operands)
    operation = tc.function(OPERATIONS[one.operation])
    out = known[one.target] if one.target in _VARIABLES else None
    if out is x or out is y:
        made = tc.compute((SIZE,), lambda i: operation(x, y, i), name=one.operation)
        _copied(made, out)
    else:
        made = tc.compute((SIZE,), lambda i: operation(x, y, i), name=one.operation, out=out)
        known[one.target] = made


def given(seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 97, (4, SIZE))
