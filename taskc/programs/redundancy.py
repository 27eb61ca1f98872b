"""drop_dead: remove calls whose results are never read, and tensors that no call names.

    temporary t: f32[64]
    temporary u: f32[64]
    scaled(x, out=t)
    moved(x, out=u)
    copied(u, out=y)
->
    temporary u: f32[64]
    moved(x, out=u)
    copied(u, out=y)

A loop, a while or a branch is removed if nothing that it writes is read. A kernel that prints, stops or asserts is kept
whether or not its results are read, and so is a call marked `apart`.

share_computations: merge computations that are equal except for names.

    scaled(x, out=t)            scaled: out[i, j] = x[i, j] * 2.0
    scaled_1(t, out=y)          scaled_1: out[a, b] = h[a, b] * 2.0
->
    scaled(x, out=t)
    scaled(t, out=y)

A function that is called for each layer of a network leaves a computation for each layer. Once merged, they are fused
and proved once.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from taskc.ir import nodes as ir
from taskc.ir.compare import structure
from taskc.ir.nodes import Kernel, Tensor
from taskc.ir.rewrite import walk
from taskc.ir.spans import span
from taskc.programs.calls import Calls
from taskc.programs.ir import (
    Call,
    Callee,
    Computation,
    Program,
    Step,
    callees_of,
    calls_of,
    map_callees,
    tensors_named,
)


def drop_dead(program: Program) -> Program:
    calls = Calls(program)
    alive = {item for item in program.parameters if isinstance(item, Tensor)}
    live_steps: list[Step] = []
    for step in reversed(program.calls):
        if not alive.isdisjoint(calls.writes(step)) or any(map(_is_seen, calls_of((step,)))):
            alive |= calls.reads(step)
            live_steps.append(step)
    named = {*tensors_named(live_steps)}
    views = tuple([view for view in program.views if view.tensor in named])
    named |= {view.of for view in views}
    temporaries = tuple([tensor for tensor in program.temporaries if tensor in named])
    constants = tuple([pair for pair in program.constants if pair[0] in named])
    if (len(live_steps), len(views), len(temporaries), len(constants)) == tuple(
        map(len, (program.calls, program.views, program.temporaries, program.constants))
    ):
        return program
    return replace(
        program,
        calls=tuple(live_steps[::-1]),
        views=views,
        temporaries=temporaries,
        constants=constants,
    )


def _is_seen(call: Call) -> bool:
    """Whether a call has effects other than writing its outputs."""
    if not isinstance(call.callee, Kernel):
        return call.apart
    return call.apart or any(
        isinstance(node, ir.Print | ir.Assert | ir.Breakpoint) for node in walk(call.callee.body)
    )


@span("program passes/share_computations")
def share_computations(program: Program) -> Program:
    shared: dict[int, Computation] = {}
    known: dict[Hashable, Computation] = {}
    for callee in callees_of(program).values():
        if isinstance(callee, Computation):
            equal = known.setdefault(structure_of(callee), callee)
            if equal is not callee:
                shared[id(callee)] = equal

    def change(callee: Callee) -> Callee:
        return shared.get(id(callee), callee)

    return map_callees(program, change) if shared else program


def structure_of(computation: Computation) -> Hashable:
    """A key that computations share if they are equal except for names; dimensions are the program's, and the same."""
    parameters, dimensions = computation.parameters, computation.dimensions
    value = structure(parameters, dimensions, computation.variables, computation.value)
    return dimensions, value, computation.unrounded
