"""Programs keep their rules, and each broken one is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from taskc.errors import InternalError
from taskc.ir import nodes as ir, parse_program
from taskc.ir.types import boolean, f16, f32, i32
from taskc.programs.ir import (
    Branch,
    Call,
    Computation,
    Loop,
    Program,
    Step,
    View,
    While,
    calls_of,
    map_callees,
    map_calls,
)
from taskc.programs.verify import verify_program

TEXT = """\
program p[n](x: f32[n, 8], a: i32, y: out f32[n, 8]):
    temporary h: f32[8]
    view rows: f32[n * 8] of x
    fill(a, out=h)
    for t in steps(n):
        view x_t: f32[8] of x at t * 8
        view y_t: f32[8] of y at t * 8
        add(x_t, h, out=y_t)

computation fill(a: i32, out: out f32[8]):
    out[i] = a.to(f32)

computation add[t](x: f32[8], h: f32[8], out: out f32[8]):
    out[i] = x[i] + h[i] + t.to(f32)
"""

Change = Callable[[Program], Program]


def in_computation(change: Callable[[Computation], Computation]) -> Change:
    """Changes `add`."""

    def changed(program: Program) -> Program:
        return map_callees(
            program,
            lambda it: change(it) if isinstance(it, Computation) and it.name == "add" else it,
        )

    return changed


def in_calls(change: Callable[[Call], Call]) -> Change:
    return lambda program: replace(program, calls=map_calls(program.calls, change))


def with_argument(number: int, argument: ir.Tensor | ir.Expression) -> Change:
    """Gives the call of `add` another argument."""

    def change(call: Call) -> Call:
        given = list(call.arguments)
        given[number] = argument
        return replace(call, arguments=tuple(given)) if call.callee.name == "add" else call

    return in_calls(change)


def loop_of(program: Program) -> Loop:
    (loop,) = [step for step in program.calls if isinstance(step, Loop)]
    return loop


def updated(computation: Computation) -> ir.Tensor:
    """Its first input as one that it may write."""
    first = computation.parameters[0]
    assert isinstance(first, ir.Tensor)
    return replace(first, role="inout")


def steps(change: Callable[[Program], tuple[Step, ...]]) -> Change:
    return lambda program: replace(program, calls=change(program))


def outside(program: Program) -> tuple[Step, ...]:
    """The loop's call behind the loop, on what is known there."""
    (call,) = calls_of(loop_of(program).body)
    h = program.temporaries[0]
    return (*program.calls, replace(call, arguments=(h, h, h)))


def chosen_by(condition: ir.Tensor) -> Change:
    """The loop as one body of a branch."""
    return steps(lambda program: (Branch(condition, (), program.calls[1:]),))


def test_what_keeps_the_rules() -> None:
    verify_program(parse_program(TEXT))


OTHER = ir.Tensor("other", f32, (8,), ir.GLOBAL)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (chosen_by(ir.Tensor("flag", boolean, (1,), ir.GLOBAL)), "the condition flag is known"),
        (steps(lambda p: (While(p.temporaries[0], p.calls),)), "h is one bool"),
        (in_computation(lambda c: replace(c, variables=())), "there is an index for each axis of out"),
        (in_computation(lambda c: replace(c, value=ir.Constant(1, i32))), "have one type, not f32 and i32"),
        (in_computation(lambda c: replace(c, value=ir.Read(OTHER, c.variables))), "other is used without being bound"),
        (in_computation(lambda c: replace(c, value=ir.Read(c.output, c.variables))), "out is written, and not read"),
        (in_computation(lambda c: replace(c, value=ir.Read(c.parameters[0], ()))), "x has 1 dimensions, but 0 indices"),  # type: ignore[arg-type]
        (in_computation(lambda c: replace(c, dimensions=())), "t is used without being bound"),
        (in_computation(lambda c: replace(c, parameters=c.parameters[:-1])), "last parameter is its output"),
        (
            in_computation(lambda c: replace(c, parameters=(updated(c), *c.parameters[1:]))),
            "x is an input of a computation, and only read",
        ),
        (in_computation(lambda c: replace(c, value=ir.Binary("+", c.value, ir.Constant(1.0, f16)))), "not f32 and f16"),
        (in_calls(lambda call: replace(call, arguments=call.arguments[:-1])), "fill has 2 parameters"),
        (with_argument(1, OTHER), "add's h gets a tensor that is known"),
        (with_argument(1, ir.Tensor("h", f16, (8,), ir.GLOBAL)), "add's h gets what is of its type"),
        (with_argument(1, ir.Constant(1.0, f32)), "add's h gets a tensor that is known"),
        (lambda p: with_argument(1, p.views[0].of)(p), "add's h gets a tensor of its rank"),
        (steps(lambda p: (*p.calls, *loop_of(p).body)), "add's x gets a tensor that is known"),
        (steps(outside), "add has sizes that are known where it is called"),
        (steps(lambda p: (*p.calls, replace(loop_of(p), body=()))), "t is bound once"),
        (
            steps(lambda p: (replace(loop_of(p), count=ir.Variable("k")), *p.calls)),
            "the size k is known where it is used",
        ),
        (lambda p: replace(p, temporaries=()), "fill's out gets a tensor that is known"),
        (lambda p: replace(p, temporaries=p.temporaries * 2), "h is declared once"),
        (
            lambda p: replace(p, temporaries=(*p.temporaries, ir.Tensor("u", f32, (loop_of(p).variable,), ir.GLOBAL))),
            "the size t is known where it is used",
        ),
        (lambda p: replace(p, views=(*p.views, View(OTHER, p.views[0].tensor))), "other is memory of a parameter"),
        (
            lambda p: replace(p, views=(*p.views, View(ir.Tensor("v", f16, (8,), ir.GLOBAL), p.temporaries[0]))),
            "v has its memory's type",
        ),
        (
            lambda p: replace(p, calls=p.calls[:1]), "the size t is known where it is used",
        ),
    ],
)  # fmt: skip
def test_what_is_broken_is_named(change: Change, rule: str) -> None:
    with pytest.raises(InternalError) as caught:
        verify_program(change(parse_program(TEXT)))
    assert rule in str(caught.value)
