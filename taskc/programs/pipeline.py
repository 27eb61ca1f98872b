"""The table of contents of the passes over programs: which run, in which order, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from taskc.errors import blaming_taskc
from taskc.ir.code_size import deeply
from taskc.ir.spans import span
from taskc.programs.blocks import BlockLimits
from taskc.programs.calls import map_bodies
from taskc.programs.fuse_computations import fuse_computations
from taskc.programs.fuse_into_kernels import fuse_into_loads, fuse_into_stores
from taskc.programs.ir import Call, Program, map_calls
from taskc.programs.redundancy import drop_dead, share_computations
from taskc.programs.schedule import schedule
from taskc.programs.write_in_place import write_in_place

Pass = Callable[[Program], Program]
Between = Callable[[Any, Program], Program]


def passes(lanes: int) -> tuple[Pass, ...]:
    return (
        # A dead reader would keep a value in memory, or have it computed twice.
        drop_dead,
        # A chain of computations is fused into a kernel at once, so that the kernel is proved once. A computation that
        # makes bytes of a kernel's result ends such a chain: readers that can't be fused into the kernel read bytes.
        partial(fuse_computations, leaves_bytes=True),
        # An element is stored once and may be read often: a computation between two kernels is better in the first one.
        partial(fuse_into_stores, lanes=lanes),
        # Chains that went into no kernel, whole.
        fuse_computations,
        partial(fuse_into_loads, lanes=lanes),
        # Temporaries of fused values are no longer named.
        drop_dead,
    )


def fused(program: Program, lanes: int = 16) -> Program:
    """The program after fusion; the remaining computations have no schedule yet.

    lanes  of a processor's vectors, for the cost of fusions; 0 on GPUs
    """

    def run(program: Program) -> Program:
        for change in passes(lanes):
            name = _name(change)
            with span(f"program passes/{name}"), blaming_taskc(name, partial(str, program)):
                program = change(program)
        return program

    program = replace(program, calls=map_calls(program.calls, _without_invocation))
    # Equal callees become one object in all bodies, so that each pair of them is fused once.
    program = share_computations(program)
    # Bodies first, so that their own temporaries are gone when they are part of the whole.
    program = run(map_bodies(program, run))
    # Different bodies have fused equal callees to equal results.
    return share_computations(program)


def _without_invocation(call: Call) -> Call:
    """Gradients are of programs as they were traced, so nobody asks after fusion."""
    return replace(call, invocation=None)


def _name(change: Pass) -> str:
    function = change.func if isinstance(change, partial) else change
    return str(getattr(function, "__name__", function))


def _nothing(point: Any, program: Program) -> Program:
    return program


@deeply
def fused_program(program: Program, machine: BlockLimits, others: Between = _nothing) -> Program:
    """The program fused for a machine; `others` as in `lower_program`."""
    lanes = machine.lanes if machine.is_processor else 0
    return others("fused", fused(others("traced", program), lanes))


@deeply
def lower_program(program: Program, machine: BlockLimits, others: Between = _nothing) -> Program:
    """A program of kernels alone, for a machine.

    others  applies the user passes of a point: "traced", "fused" or "kernel"
    """
    # Expressions are easier to fuse than kernels, so the remaining computations become kernels last.
    program = fused_program(program, machine, others)
    for name, change in (("write_in_place", write_in_place), ("schedule", schedule)):
        with span(f"program passes/{name}"), blaming_taskc(name, partial(str, program)):
            program = change(program, machine)
    return others("kernel", program)
