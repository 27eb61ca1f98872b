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
from taskc.programs.calls import Calls

Body: TypeAlias = "tuple[Step, ...]"


def map_bodies(program: Program, change: Callable[[Program], Program]) -> Program:
    """The program with the bodies of its steps as `change` makes them, those in bodies first."""
    if all(isinstance(step, Call) for step in program.calls):
        return program
    own: dict[int, set[Tensor]] = {}
    _own(Calls(program), program.calls, own)
    return _mapped(program, change, own)


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
    """The body of a step that stands in the steps of a program."""
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


def _own(calls: Calls, steps: Sequence[Step], own: dict[int, set[Tensor]]) -> set[Tensor]:
    """The temporaries of the bodies of steps; those of each body are noted by its identity."""
    naming: Counter[Tensor] = Counter()  # how many of the steps name each memory
    for step in steps:
        naming.update(calls.reads(step) | calls.writes(step))
    every: set[Tensor] = set()
    for step in steps:
        for body in bodies_of(step):
            found = _own(calls, body, own)
            touched: set[Tensor] = set()
            for inner in body:
                if isinstance(inner, Call):
                    found |= _written_whole(calls, inner) - touched
                touched |= calls.reads(inner) | calls.writes(inner)
            # A step before has written the condition, which so is none of these.
            own[id(body)] = {tensor for tensor in found if naming[tensor] == 1}
            every |= own[id(body)]
    return every


def _written_whole(calls: Calls, call: Call) -> set[Tensor]:
    outputs = {
        given
        for item, given in zip(call.callee.parameters, call.arguments, strict=True)
        if isinstance(item, Tensor) and isinstance(given, Tensor) and item.role == "out"
    }
    return (outputs & calls.temporaries) - calls.reads(call)
