"""The body of a loop, a while or a branch as a program of its own; all memory that outlives it is a parameter.

    temporary h: f32[64]                program body[t](x, y: ..., h: f32[64]):
    temporary p: f32[64]                    temporary p: f32[64]
    for t in steps(n):            ->        product(h, out=p)
        product(h, out=p)                   moved(p, x_1, out=h)
        moved(p, x_1, out=h)

A temporary belongs to the body if nothing else names it, and the first call in the body that names it writes all of it:
then no step reads values left by an earlier one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from taskc.ir.nodes import Tensor
from taskc.programs.calls import Calls
from taskc.programs.ir import (
    Call,
    Loop,
    Program,
    Step,
    bodies_of,
    tensors_named,
    with_bodies,
)

Body: TypeAlias = "tuple[Step, ...]"


def map_bodies(program: Program, change: Callable[[Program], Program]) -> Program:
    """The program with each body of its steps replaced by `change`, innermost first."""
    if all(isinstance(step, Call) for step in program.calls):
        return program
    temporaries_of: dict[int, set[Tensor]] = {}
    _own(Calls(program), program.calls, temporaries_of)
    return _mapped(program, change, temporaries_of)


def _mapped(
    program: Program, change: Callable[[Program], Program], own: dict[int, set[Tensor]]
) -> Program:
    def changed(body: Body, step: Step) -> Body:
        return change(_mapped(_as_program(program, own[id(body)], step, body), change, own)).calls

    steps = [
        with_bodies(step, [changed(body, step) for body in bodies_of(step)])
        for step in program.calls
    ]
    if all(made is before for made, before in zip(steps, program.calls, strict=True)):
        return program
    return replace(program, calls=tuple(steps))


def _as_program(program: Program, own: set[Tensor], step: Step, body: Body) -> Program:
    """The body of a step of a program as a program of its own."""
    outer = [tensor for tensor in program.temporaries if tensor not in own]
    named = tensors_named(body)
    number = (step.variable,) if isinstance(step, Loop) else ()
    return replace(
        program,
        parameters=(*program.parameters, *outer),
        dimensions=(*program.dimensions, *number),
        temporaries=tuple([tensor for tensor in program.temporaries if tensor in own]),
        calls=body,
        views=tuple([view for view in program.views if view.tensor in named]),
    )


def _own(calls: Calls, steps: Sequence[Step], own: dict[int, set[Tensor]]) -> set[Tensor]:
    """The temporaries of the bodies of steps; each body's are recorded in `own` by its identity."""
    naming: Counter[Tensor] = Counter()  # number of steps that name each memory
    for step in steps:
        naming.update(calls.reads(step) | calls.writes(step))
    every: set[Tensor] = set()
    for step in steps:
        for body in bodies_of(step):
            candidates = _own(calls, body, own)
            touched: set[Tensor] = set()
            for inner in body:
                if isinstance(inner, Call):
                    candidates |= _written_whole(calls, inner) - touched
                touched |= calls.reads(inner) | calls.writes(inner)
            # A condition is written before the body, so it isn't among these.
            own[id(body)] = {tensor for tensor in candidates if naming[tensor] == 1}
            every |= own[id(body)]
    return every


def _written_whole(calls: Calls, call: Call) -> set[Tensor]:
    outputs = {
        given
        for item, given in zip(call.callee.parameters, call.arguments, strict=True)
        if isinstance(item, Tensor) and isinstance(given, Tensor) and item.role == "out"
    }
    return (outputs & calls.temporaries) - calls.reads(call)
