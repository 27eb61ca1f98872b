"""Computations of taskc's operators skip a rounding that fusion makes needless; users' never do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import taskc as tc
from taskc import f16, f32, op
from taskc.ir.printer import to_text
from taskc.programs.fuse_computations import fuse_computations
from taskc.programs.ir import Program
from taskc.programs.parser import parse_program

TYPES = {"x": f16[8], "b": f16[8]}


def fused_text(program: Program) -> str:
    (call,) = fuse_computations(program).calls
    return to_text(call.callee)


def of_operators() -> Program:
    return tc.trace("program", TYPES, lambda x, b: {"y": op.Mul(op.Add(x, b), b)}).ir


def test_operators_round_once() -> None:
    text = fused_text(of_operators())
    assert text.startswith("unrounded computation add_mul")
    assert text.count(".to(f16)") == 1


def test_of_a_user_s_computation_nothing_is_skipped() -> None:
    @tc.program
    def program(x: f16[8], y: tc.out[f16[8]]):
        t = tc.compute((8,), lambda i: (x[i].to(f32) * 3).to(f16))
        tc.compute((8,), lambda i: (t[i].to(f32) + 1).to(f16), out=y)

    text = fused_text(program.ir)
    assert text.startswith("computation")
    assert text.count(".to(f16)") == 2


def test_one_of_a_user_s_makes_the_whole_exact() -> None:
    """What is read for it must have been rounded."""

    def body(x: Any, b: Any) -> dict[str, Any]:
        t = tc.compute((8,), lambda i: (x[i].to(f32) * 3).to(f16))
        return {"y": op.Add(t, b)}

    assert fused_text(tc.trace("program", TYPES, body).ir).startswith("computation")


def test_the_text_of_a_program_tells() -> None:
    program = of_operators()
    text = to_text(program)
    assert text.count("unrounded computation") == 2
    assert to_text(parse_program(text)) == text
    calls = [replace(call, callee=replace(call.callee, unrounded=False)) for call in program.calls]
    exact = replace(program, calls=tuple(calls))
    assert fused_text(exact).count(".to(f16)") == 2
