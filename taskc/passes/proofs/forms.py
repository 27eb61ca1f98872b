"""Integers with a symbolic and an enumerated part, and conditions that may be unknown in places.

    row + i * 2     the atom `row`, plus an array of 2 * i over all workers and slots

An atom is an expression that has one value for all workers: a symbolic size, the origin of a tile,
the variable of a block-wide loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping as Dictionary
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from taskc.ir.nodes import Expression

Factor: TypeAlias = int | Fraction


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """sum(coefficient * atom) + base.

    A coefficient may be a fraction where the atom is a multiple of its denominator: each term is whole.
    """

    terms: Dictionary[Expression, Factor]
    base: Any  # int or array

    @property
    def is_uniform(self) -> bool:
        return isinstance(self.base, int)

    def scaled(self, factor: int) -> Form:
        terms = {atom: _plain(value * factor) for atom, value in self.terms.items()}
        terms = terms if factor else {}
        return Form(terms, self.base * factor)

    def plus(self, other: Form, sign: int = 1) -> Form:
        base = self.base + other.base if sign > 0 else self.base - other.base
        if not other.terms:
            return Form(self.terms, base)
        terms = dict(self.terms)
        for atom, value in other.terms.items():
            total = _plain(terms.pop(atom, 0) + sign * value)
            if total:
                terms[atom] = total
        return Form(terms, base)


@dataclass(frozen=True, slots=True)
class Truth:
    """Where a condition surely holds, and where it may: booleans or arrays of them."""

    must: Any
    may: Any


TRUE, FALSE, UNKNOWN = Truth(True, True), Truth(False, False), Truth(False, True)


def conjunction(left: Truth, right: Truth) -> Truth:
    if left is TRUE:
        return right
    if right is TRUE:
        return left
    must = left.must & right.must
    if left.must is left.may and right.must is right.may:
        return Truth(must, must)
    return Truth(must, left.may & right.may)


def negated(truth: Truth) -> Truth:
    must = np.logical_not(truth.may)
    if truth.must is truth.may:
        return Truth(must, must)
    return Truth(must, np.logical_not(truth.must))


def arithmetic(
    operator: str, left: Form, right: Form, divisor_of: Callable[[Expression], int]
) -> Form | None:
    """The result of an operator, where it has such a form; `divisor_of` knows of atoms."""
    if operator == "+":
        return left.plus(right)
    if operator == "-":
        return left.plus(right, -1)
    if operator == "*":
        if not left.terms and left.is_uniform:
            return right.scaled(left.base)
        if not right.terms and right.is_uniform:
            return left.scaled(right.base)
        return None if left.terms or right.terms else Form({}, left.base * right.base)
    if operator in ("min", "max"):
        if left.terms or right.terms:
            return None
        both = left.is_uniform and right.is_uniform
        value = (np.minimum if operator == "min" else np.maximum)(left.base, right.base)
        return Form({}, int(value) if both else value)
    if right.terms or np.any(right.base == 0):
        return None
    if not left.terms:
        divided = left.base // right.base if operator == "//" else left.base % right.base
        return Form({}, divided)
    if not right.is_uniform:
        return None
    divisor = right.base
    if operator == "%":
        if all(value * divisor_of(atom) % divisor == 0 for atom, value in left.terms.items()):
            return Form({}, left.base % divisor)
    elif all(value * divisor_of(atom) % divisor == 0 for atom, value in left.terms.items()):
        terms = {atom: _plain(Fraction(value) / divisor) for atom, value in left.terms.items()}
        return Form(terms, left.base // divisor)
    return None


def _plain(factor: Factor) -> Factor:
    """An int where it is one."""
    return int(factor) if factor.denominator == 1 else factor


COMPARE: dict[str, Any] = {
    "==": np.equal, "!=": np.not_equal, "<": np.less,
    "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
}  # fmt: skip

BITWISE: dict[str, Any] = {
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
}
