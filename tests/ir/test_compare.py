"""Differences of programs: every attribute counts, and names correspond one to one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from taskc.ir import (
    nodes as ir,
    parse,
    program_difference,
    same_program,
)
from taskc.ir.compare import structure
from taskc.ir.nodes import Binary, Variable
from taskc.ir.rewrite import map_children, walk
from taskc.ir.types import DType, f32, f64
from tests.ir.stage_programs import PROGRAMS
from tests.ir.test_text import HEAD, kernel


def test_comparing_shared_operands_takes_no_exponential_time() -> None:
    def chain() -> ir.Kernel:
        n = Variable("n")
        value: ir.Expression = n
        for _ in range(3000):
            value = Binary("+", value, value)
        return kernel(ir.Let(Variable("x"), value), parameters=(n,))

    assert same_program(chain(), chain())


# --- differences ---


def _variants(node: Any) -> list[Any]:
    """The node with one of its attributes changed, for each that has an obvious other value."""
    changed = []
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if not field.init or field.name == "loc":
            continue
        other: Any = None
        match value:
            case bool():
                other = not value
            case int():
                other = value + 1
            case float():
                other = value + 1 if math.isfinite(value) else 0.0
            case str():
                other = value + "x"
            case tuple() if value and all(isinstance(n, int) for n in value):
                other = (*value[:-1], value[-1] + 1)
        if other is not None:
            changed.append(replace(node, **{field.name: other}))
    return changed


@pytest.mark.parametrize("build", PROGRAMS, ids=lambda build: build.__name__)
def test_any_changed_attribute_is_a_difference(build: Callable[[], ir.Kernel]) -> None:
    program = build()
    planted = 0
    for target in list(walk(program.body)):
        if isinstance(target, Variable):
            continue
        for variant in _variants(target):

            def swap(node: Any, old: Any = target, new: Any = variant) -> Any:
                return new if node is old else map_children(node, swap)

            mutant = replace(program, body=swap(program.body))
            assert program_difference(program, mutant) is not None
            planted += 1
    assert planted > 5


def test_differences_are_told() -> None:
    def told(first: str, second: str) -> str | None:
        return program_difference(parse(HEAD + first), parse(HEAD + second))

    assert told("    let y = n + 1\n", "    let z = n + 1\n") is None
    assert told("    let y = n + 1\n", "    let y = n + 2\n") == (
        "Binary.right: `1` against `2`, in `let y = n + 1` against `let y = n + 2`"
    )
    assert told("    let y = n + 1\n", "    let y = n - 1\n") == (
        "Binary.operator: '+' against '-', in `let y = n + 1` against `let y = n - 1`"
    )
    assert told("    let y = n\n    let z = n\n", "    let y = n\n    let z = y\n") == (
        "Let.value: `n` against `y`, in `let z = n` against `let z = y`"
    )
    assert told("    shared y: f32[4]\n", "    shared y: f32[5]\n") is not None
    assert told("    x[0, 0] = 0.0\n", "    x[0, 0] = -0.0\n") is not None
    assert told("    x[0, 0] = nan\n", "    x[0, 0] = nan\n") is None


def test_names_correspond_one_to_one() -> None:
    a, b = Variable("a"), Variable("b")

    def sums(*pair: Variable) -> ir.Kernel:
        return kernel(ir.Let(Variable("x"), Binary("+", *pair)), parameters=(a, b))

    assert program_difference(sums(a, b), sums(a, b)) is None
    assert program_difference(sums(a, b), sums(a, a)) is not None
    assert program_difference(sums(a, a), sums(a, b)) is not None
    assert program_difference(sums(a, b), sums(b, a)) is not None


def test_a_structure_is_without_names() -> None:
    def element(name: str, dtype: DType = f32, shape: tuple[int, ...] = (8, 8)) -> ir.Read:
        tensor = ir.Tensor(name, dtype, shape, ir.GLOBAL)
        return ir.Read(tensor, (ir.Variable(f"{name}_row"), ir.Variable(f"{name}_column")))

    def doubled(read: ir.Read, again: ir.Read | None = None, by: float = 2.0) -> ir.Expression:
        return ir.Binary("+", read, ir.Binary("*", again or read, ir.Constant(by, f32)))

    one = structure(doubled(element("x")))
    read = element("y")
    assert structure(doubled(read)) == one
    assert structure(doubled(read, replace(read))) == one  # equal parts are one part
    assert structure(doubled(read, replace(read, indices=read.indices[::-1]))) != one
    assert structure(doubled(read, element("z"))) != one
    assert structure(doubled(read, by=3.0)) != one
    assert structure(doubled(element("x", shape=(8, 9)))) != one
    assert structure(doubled(element("x", dtype=f64))) != one
    zero, minus = (structure(doubled(read, by=by)) for by in (0.0, -0.0))
    assert zero != minus
