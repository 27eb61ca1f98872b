"""Integers over all workers, and conditions that may be partly unknown.

    row + i * 2     the atom `row`, plus an array of 2 * i over everything enumerated

An atom is an expression with one value for all workers: a symbolic size, the origin of a tile, the
variable of a block-wide loop. The caller decides what is enumerated, and along which axes: arrays broadcast,
and nothing is expanded before it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping as Dictionary
from fractions import Fraction
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from taskc.dataclass import dataclass
from taskc.ir import nodes as ir
from taskc.ir.arithmetic import BINARY_OPERATORS, COMPARISONS, binary, unary
from taskc.ir.build import multiply, total
from taskc.ir.nodes import Expression, Variable
from taskc.ir.rewrite import expressions, substitute
from taskc.ir.types import DType, boolean

Array: TypeAlias = npt.NDArray[Any]
Factor: TypeAlias = int | Fraction


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """sum(coefficient * atom) + base.

    A coefficient may be a fraction if the atom is a multiple of its denominator: each term is an integer.
    """

    terms: Dictionary[Expression, Factor]
    base: Any  # int or array

    @property
    def is_uniform(self) -> bool:
        return isinstance(self.base, int)

    @property
    def origin(self) -> Expression:
        """The terms, as one expression; no coefficient may be a fraction."""
        return total([multiply(atom, int(factor)) for atom, factor in self.terms.items()])

    @property
    def key(self) -> Hashable:
        """A key that is equal only for surely equal indices; it is valid as long as its atoms live."""
        terms = frozenset(
            (atom if isinstance(atom, Variable) else id(atom), factor)
            for atom, factor in self.terms.items()
        )
        return terms, self.base if self.is_uniform else content(self.base)

    def scaled(self, factor: int) -> Index:
        terms = {atom: _plain(value * factor) for atom, value in self.terms.items()}
        terms = terms if factor else {}
        return Index(terms, self.base * factor)

    def plus(self, other: Index, sign: int = 1) -> Index:
        base = self.base + other.base if sign > 0 else self.base - other.base
        if not other.terms:
            return Index(self.terms, base)
        terms = dict(self.terms)
        for atom, value in other.terms.items():
            coefficient = _plain(terms.pop(atom, 0) + sign * value)
            if coefficient:
                terms[atom] = coefficient
        return Index(terms, base)

    def substituted(self, values: Dictionary[Variable, Expression]) -> Index:
        """The index with some variables replaced; the same object if it has none of them."""
        if not self.terms:
            return self
        changed = [(substitute(atom, values), factor) for atom, factor in self.terms.items()]
        if all(new is old for (new, _), old in zip(changed, self.terms, strict=True)):
            return self
        terms: dict[Expression, Factor] = {}
        for atom, factor in changed:
            terms[atom] = terms.get(atom, 0) + factor
        return Index(terms, self.base)


def content(array: Array) -> Hashable:
    return array.shape, array.tobytes()


@dataclass(frozen=True, slots=True)
class Truth:
    """The places where a condition surely holds, and where it may: booleans or arrays of them."""

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


class LeafValues(Protocol):
    """The values of an expression's leaves."""

    def variable(self, variable: Variable) -> Index | None:
        """The value; None if unknown, an atom if it is only known to be uniform."""

    def read(self, read: ir.Read) -> Index | None: ...

    def named(self, condition: Variable) -> Expression | None:
        """The definition of a condition's name."""

    def divisor(self, atom: Expression) -> int:
        """A number that divides an atom."""


class Evaluator:
    """Evaluates expressions over all arrays that variables have."""

    def __init__(self, names: LeafValues) -> None:
        self.names = names
        # By identity, with the node itself, so that its id isn't reused.
        self.indices: dict[int, tuple[Expression, Index | None]] = {}
        self.truths: dict[int, tuple[Expression, Truth]] = {}
        self.uniforms: dict[int, tuple[Expression, bool]] = {}

    # Integers.

    def index(self, node: Expression) -> Index | None:
        """The value of an integer expression; None if unknown."""
        if isinstance(node, ir.Constant):
            return Index({}, int(node.value))
        if isinstance(node, Variable):
            return self.names.variable(node)
        if id(node) not in self.indices:
            self.indices[id(node)] = node, self._index(node)
        return self.indices[id(node)][1]

    def _index(self, node: Expression) -> Index | None:
        match node:
            case ir.Binary(operator="+" | "-" | "*" | "//" | "%" | "min" | "max"):
                left, right = self.index(node.left), self.index(node.right)
                if left is None or right is None:
                    return None
                result = _arithmetic(node.operator, left, right, self.names.divisor)
                return self._stored(node, result, (left, right))
            case ir.Binary(operator="&" | "|" | "^" | "<<" | ">>") if node.dtype.is_integer:
                left, right = self.index(node.left), self.index(node.right)
                if left is None or right is None:
                    return None
                return self._exactly(
                    node, (left, right), lambda a, b: binary(node.operator, a, b, node.dtype)
                )
            case ir.Unary(operator="-"):
                operand = self.index(node.operand)
                return operand and self._stored(node, operand.scaled(-1), (operand,))
            case ir.Unary(operator="abs" | "~") if node.dtype.is_integer:
                operand = self.index(node.operand)
                if operand is None:
                    return None
                return self._exactly(
                    node, (operand,), lambda a: unary(node.operator, a, node.dtype)
                )
            case ir.Cast() if node.operand.dtype.is_integer and node.dtype.is_integer:
                operand = self.index(node.operand)
                return operand and self._stored(node, operand, (operand,))
            case ir.Cast() if node.operand.dtype is boolean and node.dtype.is_integer:
                truth = self.truth(node.operand)
                if truth.must is truth.may:
                    return _number(np.asarray(truth.must), isinstance(truth.must, bool))
                return self._atom(node, ()) if self.is_uniform(node.operand) else None
            case ir.Select():
                return self._select(node)
            case ir.Lookup():
                return self._lookup(node)
            case ir.Read():
                return self.names.read(node)
        return Index({node: 1}, 0) if self.is_uniform(node) else None

    def _stored(
        self, node: Expression, found: Index | None, operands: tuple[Index, ...]
    ) -> Index | None:
        """The result as the node's type stores it, as numbers may wrap; an atom if that is unknown."""
        if found is not None and _fits(found, node.dtype):
            return found
        if found is not None and not found.terms:
            return _wrapped(found, node.dtype)
        return self._atom(node, operands)

    def _exactly(
        self, node: Expression, operands: tuple[Index, ...], operation: Callable[..., Array]
    ) -> Index | None:
        """The result of an operation on known numbers of the node's type."""
        if any(operand.terms for operand in operands):
            return self._atom(node, operands)
        result = operation(*[_stored(operand.base, node.dtype) for operand in operands])
        return _number(result, all(operand.is_uniform for operand in operands))

    def _atom(self, node: Expression, operands: Iterable[Index | None]) -> Index | None:
        """The expression as an atom, if it is uniform."""
        if all(operand is not None and operand.is_uniform for operand in operands):
            return Index({node: 1}, 0)
        return None

    def _lookup(self, node: ir.Lookup) -> Index | None:
        index = self.index(node.index)
        if index is None:
            return None
        values = node.table.values
        if index.terms or np.any((index.base < 0) | (index.base >= values.size)):
            return self._atom(node, (index,))
        return _number(values.reshape(-1)[index.base], index.is_uniform)

    def _select(self, node: ir.Select) -> Index | None:
        condition = self.truth(node.condition)
        then, otherwise = self.index(node.then), self.index(node.otherwise)
        if np.all(condition.must):
            return then
        if not np.any(condition.may):
            return otherwise
        if then is None or otherwise is None:
            return None
        if condition.must is condition.may and then.terms == otherwise.terms:
            return Index(then.terms, np.where(condition.must, then.base, otherwise.base))
        if self.is_uniform(node.condition):
            return self._atom(node, (then, otherwise))
        return None

    def is_uniform(self, node: Expression) -> bool:
        """Whether an expression of any type has one value for all workers."""
        match node:
            case ir.Constant():
                return True
            case Variable() | ir.Read():
                index = self.index(node)
                return index is not None and index.is_uniform
        if (
            id(node) not in self.uniforms
        ):  # otherwise a tree of n selects would be traversed for each of them
            self.uniforms[id(node)] = node, all(map(self.is_uniform, expressions(node)))
        return self.uniforms[id(node)][1]

    # Conditions.

    def truth(self, node: Expression) -> Truth:
        if id(node) not in self.truths:
            self.truths[id(node)] = node, self._truth(node)
        return self.truths[id(node)][1]

    def _truth(self, node: Expression) -> Truth:
        match node:
            case ir.Constant():
                return TRUE if node.value else FALSE
            case Variable():
                named = self.names.named(node)
                return UNKNOWN if named is None else self.truth(named)
            case ir.Unary(operator="not"):
                return negated(self.truth(node.operand))
            case ir.Binary(operator="and" | "&"):
                return conjunction(self.truth(node.left), self.truth(node.right))
            case ir.Binary(operator="or" | "|"):
                left, right = self.truth(node.left), self.truth(node.right)
                return negated(conjunction(negated(left), negated(right)))
            case ir.Binary() if node.operator in COMPARISONS and node.left.dtype.is_integer:
                left_index, right_index = self.index(node.left), self.index(node.right)
                if left_index is None or right_index is None:
                    return UNKNOWN
                if (
                    left_index.terms != right_index.terms
                ):  # hashes no atom again, as a difference would
                    return UNKNOWN
                difference = left_index.base - right_index.base
                result = BINARY_OPERATORS[node.operator].evaluate(difference, 0)
                return Truth(result, result)
        return UNKNOWN


def _arithmetic(
    operator: str, left: Index, right: Index, divisor_of: Callable[[Expression], int]
) -> Index | None:
    """The result of an operator, if it has such a form; `divisor_of` gives divisors of atoms."""
    if operator == "+":
        return left.plus(right)
    if operator == "-":
        return left.plus(right, -1)
    if operator == "*":
        if not left.terms and left.is_uniform:
            return right.scaled(left.base)
        if not right.terms and right.is_uniform:
            return left.scaled(right.base)
        return None if left.terms or right.terms else Index({}, left.base * right.base)
    if operator in ("min", "max"):
        if left.terms or right.terms:
            return None
        both = left.is_uniform and right.is_uniform
        value = (np.minimum if operator == "min" else np.maximum)(left.base, right.base)
        return Index({}, int(value) if both else value)
    if right.terms or np.any(right.base == 0):
        return None
    if not left.terms:
        divided = left.base // right.base if operator == "//" else left.base % right.base
        return Index({}, divided)
    if not right.is_uniform:
        return None
    divisor = right.base
    if any(value * divisor_of(atom) % divisor for atom, value in left.terms.items()):
        return None
    if operator == "%":
        return Index({}, left.base % divisor)
    terms = {atom: _plain(Fraction(value) / divisor) for atom, value in left.terms.items()}
    return Index(terms, left.base // divisor)


def _plain(factor: Factor) -> Factor:
    """The factor as an int if it is one."""
    return int(factor) if factor.denominator == 1 else factor


def _fits(index: Index, dtype: DType) -> bool:
    """Whether the numbers surely don't wrap in their type; sums of 64 bits are assumed not to."""
    if dtype.bits == 64:
        return True
    if index.terms:
        return False
    if not np.size(index.base):
        return True
    return bool(dtype.minimum <= np.min(index.base) and np.max(index.base) <= dtype.maximum)


def _wrapped(index: Index, dtype: DType) -> Index:
    """Numbers as their type stores them."""
    return _number(_stored(index.base, dtype), index.is_uniform)


def _stored(base: Any, dtype: DType) -> Array:
    if isinstance(base, int):
        base = np.asarray(base & ((1 << 64) - 1), np.uint64)
    return np.asarray(base).astype(dtype.numpy)


def _number(values: Any, is_uniform: bool) -> Index:
    return Index({}, int(values) if is_uniform else values.astype(np.int64))
