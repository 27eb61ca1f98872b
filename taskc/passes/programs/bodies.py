"""The body of a loop, a while or a branch as a program of its own, whose parameters are what lasts longer than it.

    temporary h: f32[64]                program body[t](x, y: ..., h: f32[64]):
    temporary p: f32[64]                    temporary p: f32[64]
    for t in steps(n):            ->        product(h, out=p)
        product(h, out=p)                   moved(p, x_1, out=h)
        moved(p, x_1, out=h)

A temporary is the body's own if nothing elsewhere names it, and the first call in the body that does writes all of it:
then nobody reads what a step before has left there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from taskc.ir.nodes import Tensor
from taskc.ir.program import (
    Call,
    Loop,
    Program,
    Step,
    bodies_of,
    tensors_named,
    with_bodies,
)
from taskc.passes.programs.calls import Calls

Body: TypeAlias = "tuple[Step, ...]"


def map_bodies(program: Program, change: Callable[[Program], Program]) -> Program:
    """The program with the bodies of its steps, but not of those in them, as `change` makes them."""
    steps: list[Step] = []
    calls = Calls(program)
    naming = _naming(calls, program.calls)
    for step in program.calls:
        bodies = [change(_as_program(calls, naming, step, body)).calls for body in bodies_of(step)]
        steps.append(with_bodies(step, bodies))
    if all(made is before for made, before in zip(steps, program.calls, strict=True)):
        return program
    return replace(program, calls=tuple(steps))


def _as_program(calls: Calls, naming: Counter[Tensor], step: Step, body: Body) -> Program:
    program = calls.program
    own = _own(calls, naming, step, body)
    kept = [tensor for tensor in program.temporaries if tensor not in own]
    named = tensors_named(body)
    number = (step.variable,) if isinstance(step, Loop) else ()
    return replace(
        program,
        parameters=(*program.parameters, *kept),
        dimensions=(*program.dimensions, *number),
        temporaries=tuple([tensor for tensor in program.temporaries if tensor in own]),
        calls=body,
        views=tuple([view for view in program.views if view.tensor in named]),
    )


def _naming(calls: Calls, steps: Sequence[Step]) -> Counter[Tensor]:
    """How many of these steps name each memory."""
    return Counter(tensor for step in steps for tensor in calls.reads(step) | calls.writes(step))


def _own(calls: Calls, naming: Counter[Tensor], step: Step, body: Body) -> set[Tensor]:
    """The temporaries of a body of a step; `naming` is of the steps that it is one of."""
    found: set[Tensor] = set()
    touched: set[Tensor] = set()
    inside = _naming(calls, body) if any(map(bodies_of, body)) else Counter()
    for inner in body:
        if isinstance(inner, Call):
            found |= _written_whole(calls, inner) - touched
        for deeper in bodies_of(inner):
            found |= _own(calls, inside, inner, deeper)
        touched |= calls.reads(inner) | calls.writes(inner)
    # What a condition says was written before the step, and so is none of these.
    named = calls.reads(step) | calls.writes(step)
    return {tensor for tensor in found if naming[tensor] == (tensor in named)}


def _written_whole(calls: Calls, call: Call) -> set[Tensor]:
    outputs = {
        given
        for item, given in zip(call.callee.parameters, call.arguments, strict=True)
        if isinstance(item, Tensor) and isinstance(given, Tensor) and item.role == "out"
    }
    return (outputs & calls.temporaries) - calls.reads(call)
