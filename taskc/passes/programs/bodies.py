"""The body of a loop as a program of its own, whose parameters are what lasts from one of its steps to the next.

    temporary h: f32[64]                program body[t](x, y: ..., h: f32[64]):
    temporary p: f32[64]                    temporary p: f32[64]
    for t in steps(n):            ->        product(h, out=p)
        product(h, out=p)                   moved(p, x_1, out=h)
        moved(p, x_1, out=h)

A temporary is the body's own if no call elsewhere names it, and the first one in the body that does writes all of it:
then nobody reads what a step before has left there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from taskc.ir.nodes import Tensor
from taskc.ir.program import Call, Loop, Program, Step, calls_of
from taskc.passes.programs.calls import Calls


def map_bodies(program: Program, change: Callable[[Program], Program]) -> Program:
    """The program with the bodies of its loops, but not of those in them, as `change` makes them."""
    steps: list[Step] = []
    for step in program.calls:
        made: Step = step
        if isinstance(step, Loop):
            body = change(_as_program(program, step)).calls
            made = step if body == step.body else replace(step, body=body)
        steps.append(made)
    if all(made is before for made, before in zip(steps, program.calls, strict=True)):
        return program
    return replace(program, calls=tuple(steps))


def _as_program(program: Program, loop: Loop) -> Program:
    own = _own(Calls(program), program.calls, loop)
    kept = [tensor for tensor in program.temporaries if tensor not in own]
    named = {given for call in calls_of(loop.body) for given in call.arguments}
    return replace(
        program,
        parameters=(*program.parameters, *kept),
        dimensions=(*program.dimensions, loop.variable),
        temporaries=tuple([tensor for tensor in program.temporaries if tensor in own]),
        calls=loop.body,
        views=tuple([view for view in program.views if view.tensor in named]),
    )


def _own(calls: Calls, steps: Sequence[Step], loop: Loop) -> set[Tensor]:
    """The temporaries of the body of a loop, which is one of these steps."""
    found: set[Tensor] = set()
    touched: set[Tensor] = set()
    for step in loop.body:
        if isinstance(step, Loop):
            found |= _own(calls, loop.body, step)
        else:
            found |= _written_whole(calls, step) - touched
        touched |= calls.reads(step) | calls.writes(step)
    others = [step for step in steps if step is not loop]
    return found.difference(*map(calls.reads, others), *map(calls.writes, others))


def _written_whole(calls: Calls, call: Call) -> set[Tensor]:
    outputs = {
        given
        for item, given in zip(call.callee.parameters, call.arguments, strict=True)
        if isinstance(item, Tensor) and isinstance(given, Tensor) and item.role == "out"
    }
    return (outputs & calls.temporaries) - calls.reads(call)
