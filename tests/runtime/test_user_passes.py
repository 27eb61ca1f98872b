"""Passes of users: they run at their points, what they return is checked, and what is compiled follows them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, spatial
from taskc.ir import nodes as ir
from taskc.ir.nodes import Kernel
from taskc.ir.rewrite import map_children, walk
from taskc.programs.ir import Computation, Program, calls_of, map_callees
from taskc.programs.plan import Plan
from taskc.runtime.driver import scheduled
from taskc.runtime.user_passes import registered
from tests.programs.random_programs import program as random_program

n = tc.dim("n")


@pytest.fixture(autouse=True)
def none_is_left() -> Iterator[None]:
    yield
    assert registered() == ()


def doubled() -> Any:
    @tc.program
    def program(x: f32[n], y: tc.out[f32[n]]):
        tc.compute((x.shape[0],), lambda i: x[i] * 2.0, name="doubled", out=y)

    return program


@tc.kernel(workers=4)
def turned(x: f32[4], y: tc.out[f32[4]]):
    s = tc.shared(f32[4])
    for i in spatial(4):
        s[i] = x[i]
    for i in spatial(4):
        y[i] = s[3 - i]


def with_value(change: Callable[[Any], Any]) -> Callable[[Program], Program]:
    """A pass that changes the values of computations."""

    def changed(program: Program) -> Program:
        def one(callee: Any) -> Any:
            if not isinstance(callee, Computation):
                return callee
            value = change(callee.value)
            return callee if value is callee.value else replace(callee, value=value)

        return map_callees(program, one)

    return changed


def added(node: Any) -> Any:
    """x * 2 -> x + x"""
    node = map_children(node, added) if not isinstance(node, ir.Variable | ir.Constant) else node
    is_double = isinstance(node, ir.Binary) and node.operator == "*"
    if is_double and isinstance(node.right, ir.Constant) and node.right.value == 2:
        return ir.Binary("+", node.left, node.left)
    return node


def operators(program: Any) -> set[str]:
    made, _ = scheduled(program)
    return {
        node.operator
        for call in calls_of(made.calls)
        for node in walk(call.callee.body)
        if isinstance(node, ir.Binary) and node.dtype is f32
    }


X = np.arange(6, dtype=np.float32)


@pytest.mark.parametrize("at", ["traced", "fused"])
def test_a_computation_is_replaced(at: Any) -> None:
    program = doubled()
    with tc.register_pass(with_value(added), at=at):
        np.testing.assert_array_equal(program(X), 2 * X)
        assert operators(program) == {"+"}
    assert operators(program) == {"*"}


def test_calls_follow_what_is_registered() -> None:
    """Also where calls have become short: each is compiled for the passes that there are then."""
    program = doubled()
    tripled = with_value(lambda value: ir.Binary("*", value, ir.Constant(1.5, f32)))

    def call() -> float:
        first, second = program(X), program(X)
        assert first[1] == second[1]
        return float(first[1])

    assert call() == 2.0
    one = tc.register_pass(tripled, at="traced")
    assert call() == 3.0
    two = tc.register_pass(tripled, at="fused")
    assert call() == 4.5
    one.remove()
    assert call() == 3.0
    two.remove()
    two.remove()  # nothing is left to do
    assert call() == 2.0


def test_points_see_what_is_there_then() -> None:
    seen: list[tuple[str, Any]] = []

    def noted(at: str) -> Any:
        def run(given: Any, plan: Any = None) -> Any:
            seen.append((at, given if plan is None else (given, plan)))
            return given if plan is None else None

        return run

    @tc.program
    def program(x: f32[4], y: tc.out[f32[4]]):
        a = turned(x)
        b = turned(tc.compute((4,), lambda i: tc.exp(a[i])))
        tc.compute((4,), lambda i: b[i] + 1, out=y)

    with (
        tc.register_pass(noted("traced"), at="traced"),
        tc.register_pass(noted("fused"), at="fused"),
        tc.register_pass(noted("kernel"), at="kernel"),
        tc.register_pass(noted("planned"), at="planned"),
    ):
        program(np.ones(4, np.float32))
        program(np.ones(4, np.float32))
    assert [at for at, _ in seen] == ["traced", "fused", "kernel", "kernel", "planned"]
    given = dict(seen)
    assert len(given["traced"].calls) == 4
    assert len(given["fused"].calls) == 2
    made, plan = given["planned"]
    assert isinstance(plan, Plan)
    assert len(plan.calls) == len(made.calls) == 2
    assert isinstance(given["kernel"], Kernel)


def test_kernels_are_exchanged() -> None:
    def renamed(kernel: Kernel) -> Kernel:
        return replace(kernel, name=f"my_{kernel.name}")

    @tc.program
    def program(x: f32[4], y: tc.out[f32[4]]):
        turned(turned(x), out=y)

    with tc.register_pass(renamed, at="kernel"):
        np.testing.assert_array_equal(program(X[:4]), X[:4])
        made, _ = scheduled(program)
        assert {call.callee.name for call in calls_of(made.calls)} == {"my_turned"}
    assert {kernel.name for kernel in scheduled(program)[1].values()} == {"turned"}


def refused(function: Any, at: Any, program: Any = None) -> str:
    program = program or doubled()
    with (
        tc.register_pass(function, at=at),
        pytest.raises(tc.CompileError) as caught,
    ):
        program(X)
    np.testing.assert_array_equal(program(X), 2 * X)  # without the pass it is as it was
    return caught.value.message


def wrong_index(value: Any) -> Any:
    (read,) = [node for node in walk(value) if isinstance(node, ir.Read)]
    beyond = ir.Binary("+", read.indices[0], ir.Constant(1))
    return ir.Read(read.tensor, (beyond,))


def wrong_type(value: Any) -> Any:
    return ir.Binary("+", value, ir.Constant(1))


def without_calls(program: Program) -> Program:
    return replace(program, calls=())


def two_calls(program: Program) -> Program:
    return replace(program, calls=program.calls * 2)


def other_parameters(program: Program) -> Program:
    return replace(program, parameters=program.parameters[:1])


def unfinished(kernel: Kernel) -> Kernel:
    return replace(kernel, body=ir.Sequence(()))


@pytest.mark.parametrize(
    ("function", "at", "said"),
    [
        (without_calls, "traced", "the pass 'without_calls' made a program that is wrong: .*'y'.*"),
        (two_calls, "fused", "the pass 'two_calls' made a program that is wrong: .*'y'.*"),
        (other_parameters, "traced", "the pass 'other_parameters' changes what 'program' takes.*"),
        (with_value(wrong_type), "fused", "the pass 'changed' made what is no program: .*"),
        (unfinished, "kernel", "the pass 'unfinished' made 'doubled', which is wrong: .*"),
        (lambda program: None, "traced", "the pass '<lambda>' returns no program, but a NoneType"),
        (lambda kernel: 1, "kernel", "the pass '<lambda>' returns no kernel, but a int"),
        (lambda program, plan: plan, "planned", "the pass '<lambda>' returns something, and .*"),
    ],
)
def test_what_is_wrong_names_the_pass(function: Any, at: Any, said: str) -> None:
    assert re.fullmatch(said, refused(function, at), re.DOTALL)


def test_what_cannot_be_registered() -> None:
    with pytest.raises(tc.CompileError, match="there are no passes at 'parsed'") as caught:
        tc.register_pass(without_calls, at="parsed")  # type: ignore[arg-type]
    assert caught.value.hint == "there is 'traced', 'fused', 'kernel', 'planned'"
    with pytest.raises(tc.CompileError, match="a pass is a function, and this is str"):
        tc.register_pass("no", at="traced")  # type: ignore[arg-type]


def test_the_users_own_error_is_theirs() -> None:
    def failing(program: Program) -> Program:
        raise ZeroDivisionError("mine")

    program = doubled()
    with tc.register_pass(failing, at="traced"), pytest.raises(ZeroDivisionError, match="mine"):
        program(X)
    np.testing.assert_array_equal(program(X), 2 * X)


def test_an_index_that_is_not_proved_is_held_to_its_extent() -> None:
    program = doubled()
    with (
        tc.register_pass(with_value(wrong_index), at="traced"),
        pytest.raises(tc.CheckError, match="an index of 'x' is within its extent"),
    ):
        program(X)
    np.testing.assert_array_equal(program(X), 2 * X)


@pytest.mark.parametrize("at", ["traced", "fused", "kernel"])
def test_what_is_made_of_any_program_is_one(at: Any) -> None:
    """Programs that passes of taskc make aren't refused where a user's leaves them as they are, or copies kernels."""

    def copied(given: Any) -> Any:
        if isinstance(given, Kernel):
            return replace(given, notes=given.notes)
        return map_callees(replace(given), replace)

    with tc.register_pass(copied, at=at):
        for seed in range(30):
            made, _ = scheduled(random_program(seed))
            assert all(isinstance(call.callee, Kernel) for call in calls_of(made.calls))
