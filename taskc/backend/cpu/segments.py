"""Indices by quotients and remainders of consecutive numbers: a vector lies in few segments, each of one quotient.

    b[(first + lane) // 62]      lanes below 62 - first % 62:    b[first // 62]
                                 the others:                     b[first // 62 + 1]

    c[(first + lane) % 62]       lanes below 62 - first % 62:    c[first % 62 + lane]
                                 the others:                     c[first % 62 - 62 + lane]

Within a segment an index is lane 0's value plus a constant for each lane. So a read along a reshaped axis takes a
load or two for a vector, where a gather takes one for each lane.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from taskc.backend.cpu.builder import Value, constant, constants
from taskc.backend.cpu.elementwise import Elementwise
from taskc.backend.cpu.groups import is_pure
from taskc.backend.lanes import LaneForm, LaneForms
from taskc.ir import nodes as ir
from taskc.ir.affine import constant_difference
from taskc.ir.build import add, floor_divide, modulo, multiply
from taskc.ir.nodes import Expression, Variable
from taskc.ir.rewrite import map_children, walk
from taskc.ir.types import i64

_MOST_SEGMENTS = 4  # of a vector: with more, a gather is as good


class Values(Protocol):
    """The values of a kernel's expressions, and the names that they have."""

    lanes: int
    forms: LaneForms
    elementwise: Elementwise
    definitions: dict[Variable, Expression]

    def bind(self, variable: Variable, value: Value) -> None: ...

    def scalar(self, expression: Expression) -> Value: ...


@dataclass(frozen=True, slots=True)
class Segment:
    """The mask of lanes with one quotient, and their index, of a known form."""

    lanes: Value
    index: Expression


def segments_of(index: Expression, values: Values) -> list[Segment] | None:
    """The segments of an index; None if there are too many, or its form is unknown even within a segment."""
    if not values.lanes or index.dtype is not i64 or not is_pure(index):
        return None
    index = _without_names(index, values)
    digits = list(_digits(index, values))
    if not digits:
        return None
    number, length = digits[0].left, min(map(_divisor, digits))
    count = (values.lanes + length - 2) // length + 1
    if count > _MOST_SEGMENTS or any(_divisor(digit) % length for digit in digits):
        return None
    if any(constant_difference(digit.left, number) != 0 for digit in digits[1:]):
        return None
    quotient, remainder = Variable("quotient", i64), Variable("remainder", i64)
    known = {id(digit): _digit(digit, length, quotient, remainder) for digit in digits}
    values.forms.learn(quotient, values.forms.uniform())
    values.forms.learn(remainder, LaneForm(tuple(range(values.lanes))))
    if not values.forms.form(_replaced(index, known)).is_known:
        return None
    return [_segment(values, index, digits, length, place) for place in range(count)]


def _segment(
    values: Values, index: Expression, digits: list[ir.Binary], length: int, place: int
) -> Segment:
    """Segment number `place` of a vector, with new variables for its quotient and for lane 0's remainder."""
    elementwise, lanes = values.elementwise, values.lanes
    first = values.scalar(digits[0].left)
    quotient_of_first, modulo_length = (
        elementwise.binary(sign, first, constant(length, i64)) for sign in ("//", "%")
    )
    quotient, remainder = Variable("quotient", i64), Variable("remainder", i64)
    values.forms.learn(quotient, values.forms.uniform())
    values.forms.learn(remainder, LaneForm(tuple(range(lanes))))
    values.bind(quotient, elementwise.binary("+", quotient_of_first, constant(place, i64)))
    begin = elementwise.binary("-", modulo_length, constant(place * length, i64))
    values.bind(remainder, begin)
    lane = constants(range(lanes), i64)
    low = elementwise.splat(elementwise.unary("-", begin), lanes)
    high = elementwise.binary("+", low, constant(length, i64, lanes))
    inside = elementwise.binary("<", lane, high)
    if place:
        inside = elementwise.binary("and", elementwise.binary(">=", lane, low), inside)
    known = {id(digit): _digit(digit, length, quotient, remainder) for digit in digits}
    return Segment(inside, _replaced(index, known))


def _digit(digit: ir.Binary, length: int, quotient: Variable, remainder: Variable) -> Expression:
    """A quotient or remainder of quotient * length + remainder by a multiple of the length."""
    times = _divisor(digit) // length
    if digit.operator == "//":
        return floor_divide(quotient, times)
    return add(multiply(modulo(quotient, times), length), remainder) if times > 1 else remainder


def _divisor(digit: ir.Binary) -> int:
    assert isinstance(digit.right, ir.Constant)
    return int(digit.right.value)


def _digits(index: Expression, values: Values) -> Iterator[ir.Binary]:
    """The outermost quotients and remainders of numbers that are consecutive across lanes."""
    for node in walk(index):
        if (
            isinstance(node, ir.Binary)
            and node.operator in ("//", "%")
            and isinstance(node.right, ir.Constant)
            and int(node.right.value) > 0
            and values.forms.form(node.left).is_contiguous
            and not values.forms.form(node).is_known
        ):
            yield node


def _replaced(index: Expression, known: dict[int, Expression]) -> Expression:
    def visit(node: Expression) -> Expression:
        return known[id(node)] if id(node) in known else map_children(node, visit)

    return visit(index)


def _without_names(index: Expression, values: Values) -> Expression:
    """The index with variables of unknown form replaced by their definitions."""

    def visit(node: Expression) -> Expression:
        if isinstance(node, Variable):
            value = values.definitions.get(node)
            unknown = value is not None and not values.forms.form(node).is_known
            return visit(value) if value is not None and unknown and is_pure(value) else node
        return map_children(node, visit)

    return visit(index)
