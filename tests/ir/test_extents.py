"""Extents: their numbers, what follows from them, and the memory that they amount to."""

from __future__ import annotations

import pytest

from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.ir.extents import (
    are_as_many,
    extent_value,
    one_unknown,
    size_in_bytes,
    size_in_elements,
)
from taskc.ir.mapping import repeat
from taskc.ir.nodes import Expression, Variable, constant
from taskc.ir.types import f16, f32, i32, i64
from tests.analysis.test_facts import b
from tests.evaluator import Machine

N, M = Variable("n"), Variable("m")


@pytest.mark.parametrize(
    "extent",
    [
        constant(7),
        N,
        b("+", N, 2),
        b("-", b("*", N, M), 3),
        b("//", b("-", 0, N), 4),
        b("%", b("-", 0, N), 4),
        ir.Cast(ir.Cast(M, i32), i64),
    ],
    ids=str,
)
def test_an_extents_number_is_what_it_evaluates_to(extent: Expression) -> None:
    for n in range(9):
        sizes = {N: n, M: 3}
        assert extent_value(extent, sizes) == Machine().value(extent, sizes)


def test_an_extent_that_cannot_be_told() -> None:
    assert extent_value(5, {}) == 5
    assert extent_value(b("//", N, M), {N: 4, M: 0}) == 0
    with pytest.raises(KeyError):
        extent_value(b("+", N, M), {N: 4})
    with pytest.raises(InternalError, match="an extent can't be Select"):
        extent_value(ir.Select(b("<", N, M), N, M), {N: 4, M: 3})


def test_a_dimension_that_follows_from_an_extent() -> None:
    for extent, sizes, factor, rest in (
        (N, {}, 1, 0),
        (b("+", b("+", N, 3), -1), {}, 1, 2),
        (b("+", b("*", N, 12), 2), {}, 12, 2),
        (b("-", 4, N), {}, -1, 4),
        (b("+", N, M), {M: 5}, 1, 5),
        (b("*", N, M), {M: 5}, 5, 0),
        (b("-", b("*", M, N), b("*", M, 2)), {M: 5}, 5, -10),
    ):
        found = one_unknown(extent, sizes)
        assert found is not None
        assert found[:2] == (N, factor)
        assert extent_value(found.rest, {}) == rest
    for extent in (constant(4), b("*", N, M), b("+", N, M), b("//", N, 2), b("*", N, N)):
        assert one_unknown(extent, {}) is None
    assert one_unknown(b("*", N, M), {M: 0}) is None


def test_shapes_of_equally_many_elements() -> None:
    assert are_as_many((N, 4, M), (b("*", M, 2), b("*", N, 2)))
    assert are_as_many((b("+", N, 1), 2), (b("+", b("*", N, 2), 2),))
    assert not are_as_many((N, M), (N, N))
    assert not are_as_many((4, 6), (5, 5))


def test_memory_has_room_for_a_layouts_padding() -> None:
    plain = ir.Tensor("x", f32, (3, 5), ir.SHARED)
    padded = ir.Tensor("x", f16, (3, 5), ir.SHARED, layout=repeat(4, 8))
    assert (size_in_elements(plain), size_in_bytes(plain)) == (15, 60)
    assert (size_in_elements(padded), size_in_bytes(padded)) == (32, 64)
