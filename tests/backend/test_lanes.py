"""Forms of values across lanes, against what each lane's value is."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.backend.lanes import LaneForm, LaneForms
from taskc.ir import arithmetic, nodes as ir
from taskc.ir.nodes import Expression, Variable
from taskc.ir.rewrite import walk
from taskc.ir.types import i8, i16, i32, i64, u8, u32, u64
from taskc.passes.pipeline import lower

worker = Variable("worker")
dim = Variable("n", i64, 12)
small = Variable("p", i32)


def evaluate(expression: Expression, values: dict[Variable, Any]) -> np.ndarray:
    """Each worker's value, by the functions that the simulator computes with."""

    def value(node: Expression) -> Any:
        match node:
            case ir.Constant(value=number, dtype=dtype):
                return np.asarray(number, dtype.numpy)
            case Variable():
                return values[node]
            case ir.Binary(operator=operator, left=left, right=right):
                return arithmetic.binary(operator, value(left), value(right), left.dtype)
            case ir.Cast(operand=operand, dtype=dtype):
                return arithmetic.convert(np.asarray(value(operand)), operand.dtype, dtype)
            case ir.Select(condition=condition, then=then, otherwise=otherwise):
                return np.where(value(condition), value(then), value(otherwise))
        raise AssertionError(node)

    return np.broadcast_to(value(expression), values[worker].shape)


def kernel_of(workers: int) -> ir.Kernel:
    return ir.Kernel("k", (), (), workers, ir.Sequence(()), worker=worker)


def expressions(seed: int, count: int) -> list[Expression]:
    """Random integer expressions of the worker's number, a dimension and a parameter of 32 bits."""
    random_ = random.Random(seed)
    types = (i64, i64, i64, i64, i32, u64, u32, i16, u8, i8)

    def constant(dtype: Any) -> Expression:
        number = random_.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 100, 127))
        signed = dtype.kind == "int" and random_.random() < 0.2
        return ir.Constant(-number if signed else number, dtype)

    def made(depth: int, dtype: Any) -> Expression:
        choice = random_.random()
        if depth == 0 or choice < 0.1:
            leaf = random_.choice((worker, worker, dim, small, None))
            if leaf is None:
                return constant(dtype)
            return leaf if leaf.dtype is dtype else ir.Cast(leaf, dtype)
        if choice < 0.25:
            other = random_.choice(types)
            inner = made(depth - 1, other)
            return inner if other is dtype else ir.Cast(inner, dtype)
        if choice < 0.3:
            condition = ir.Binary("<", made(depth - 1, dtype), made(depth - 1, dtype))
            return ir.Select(condition, made(depth - 1, dtype), made(depth - 1, dtype))
        operator = random_.choice(("+", "-", "*", "//", "%", "//", "%", "+", "*"))
        left = made(depth - 1, dtype)
        if operator in ("//", "%"):
            right = constant(dtype)
            return ir.Binary(operator, left, right if right.value else ir.Constant(3, dtype))  # type: ignore[attr-defined]
        return ir.Binary(
            operator, left, made(depth - 1, dtype) if choice < 0.7 else constant(dtype)
        )

    return [made(random_.randrange(1, 5), random_.choice(types)) for _ in range(count)]


def check(form: LaneForm, values: np.ndarray, dtype: Any, width: int) -> None:
    """What a form claims, of each vector."""
    numbers = [int(number) for number in values]
    for start in range(0, len(numbers), width):
        lanes = numbers[start : start + width]
        assert (
            (lanes[0] - form.remainder) % form.divisor == 0
            if form.divisor
            else lanes[0] == form.remainder
        )
        if form.offsets is None:
            continue
        for lane, offset in zip(lanes, form.offsets, strict=True):
            assert (lane - lanes[0] - offset) % (1 << dtype.bits) == 0
        if form.is_uniform:
            assert len(set(lanes)) == 1


@pytest.mark.each_value
@pytest.mark.parametrize("width", [2, 4, 8, 16])
@pytest.mark.parametrize("workers", [16, 48, 240])
def test_forms_say_what_lanes_have(width: int, workers: int) -> None:
    known = 0
    forms = LaneForms(kernel_of(workers), width)
    for expression in expressions(workers + width, 600):
        form = forms.form(expression)
        known += form.is_known
        for size, parameter in ((0, 0), (12, 5), (36, -7), (120, 2**31 // 48 + 1)):
            values = {
                worker: np.arange(workers),
                dim: np.asarray(size, np.int64),
                small: np.asarray(parameter, np.int32),
            }
            check(form, evaluate(expression, values), expression.dtype, width)
    assert known > 200


W = worker


def binary(operator: str, left: Expression, right: int | Expression) -> Expression:
    return ir.Binary(
        operator, left, right if isinstance(right, Expression) else ir.Constant(right, i64)
    )  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("expression", "offsets"),
    [
        (W, range(8)),
        (binary("%", W, 4), [0, 1, 2, 3] * 2),
        (binary("//", W, 4), [0] * 4 + [1] * 4),
        (binary("//", W, 8), [0] * 8),
        (binary("%", W, 8), range(8)),
        (binary("%", W, 16), None),  # the second vector goes on at 8
        (binary("//", W, 3), None),
        (binary("%", W, 6), None),
        (binary("*", W, 3), range(0, 24, 3)),
        (binary("-", binary("*", W, 2), W), range(8)),
        (binary("+", binary("*", binary("//", W, 4), 100), binary("%", W, 4)), [0, 1, 2, 3, 100, 101, 102, 103]),
        (binary("//", binary("+", dim, W), 4), [0] * 4 + [1] * 4),
        (binary("//", binary("+", dim, W), 8), None),  # 12 is no multiple of 8
        (binary("*", W, W), None),
        (ir.Cast(W, u64), None),
    ],
)  # fmt: skip
def test_forms_that_mappings_have(expression: Expression, offsets: Any) -> None:
    form = LaneForms(kernel_of(32), 8).form(expression)
    assert form.offsets == (None if offsets is None else tuple(offsets))


def test_strides() -> None:
    assert LaneForm((0, 1, 2, 3)).is_contiguous
    assert LaneForm((0, 4, 8, 12)).stride == 4
    assert LaneForm((0, 0, 0, 0)).stride == 0
    assert LaneForm((0, 0, 0, 0)).is_uniform
    assert LaneForm((0, -2, -4, -6)).stride == -2
    assert LaneForm((0, 1, 2, 4)).stride is None
    assert LaneForm((0,)).stride is None
    assert LaneForm(None).stride is None


def accesses(kernel: Any) -> dict[str, set[int | None]]:
    """The strides of the accesses to each parameter: 1 is coalesced."""
    lean = lower(replace(kernel.ir, target="avx512"))
    forms = LaneForms(lean, 32)
    found: dict[str, set[int | None]] = {}
    for node in walk(lean.body):
        if isinstance(node, ir.Read | ir.Store) and node.tensor.scope == ir.GLOBAL:
            found.setdefault(node.tensor.name, set()).add(forms.form(node.indices[0]).stride)
    return found


def test_whether_an_access_is_coalesced() -> None:
    @tc.kernel(workers=32)
    def transpose(x: tc.f32[32, 32], y: tc.out[tc.f32[32, 32]]):
        for i, j in tc.repeat(32, 1).spatial(1, 32):
            y[j, i] = x[i, j]

    assert accesses(transpose) == {"x": {1}, "y": {32}}


def test_numbers_that_wrap() -> None:
    """Through compiled code: quotients of unsigned numbers, and what is wider than its parts."""

    @tc.kernel(workers=16)
    def wrapping(p: tc.i32, a: tc.out[tc.u64[16]], b: tc.out[tc.u64[16]], c: tc.out[tc.i64[16]]):
        for i in tc.spatial(16):
            a[i] = (i - 4).to(tc.u64) // 4
            b[i] = (i - 3).to(tc.u64) % 3
            c[i] = ((p * 48).to(tc.i64) + i) // 3

    p = 2**31 // 48 + 1
    a, b, c = wrapping(p)
    numbers = range(16)
    assert a.tolist() == [(i - 4) % 2**64 // 4 for i in numbers]
    assert b.tolist() == [(i - 3) % 2**64 % 3 for i in numbers]
    assert c.tolist() == [(p * 48 - 2**32 + i) // 3 for i in numbers]


@pytest.mark.parametrize("operator", ["<", "<=", ">", ">="])
@pytest.mark.parametrize("left", [W, binary("+", binary("*", dim, 2), W), binary("*", W, -3)])
def test_comparisons_that_no_vector_straddles_are_uniform(operator: str, left: Expression) -> None:
    forms = LaneForms(kernel_of(48), 8)
    uniform = 0
    for number in range(-150, 60):
        comparison = binary(operator, left, number)
        is_uniform = forms.is_uniform(comparison)
        uniform += is_uniform
        for size in (0, 12, 24):
            values = evaluate(comparison, {worker: np.arange(48), dim: np.asarray(size)})
            same = all(len(set(lanes)) == 1 for lanes in values.reshape(6, 8).tolist())
            assert same or not is_uniform
    assert uniform > 20
