"""The table of contents of the passes over programs: which run, in which order, and why."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from taskc.errors import blaming_taskc
from taskc.ir.depth import deeply
from taskc.ir.program import Program
from taskc.programs.blocks import Machine
from taskc.programs.bodies import map_bodies
from taskc.programs.drop_dead import drop_dead
from taskc.programs.fuse_computations import fuse_computations
from taskc.programs.fuse_into_loads import fuse_into_loads
from taskc.programs.fuse_into_stores import fuse_into_stores
from taskc.programs.schedule import schedule
from taskc.programs.share_computations import share_computations

Pass = Callable[[Program], Program]
Between = Callable[[Any, Program], Program]


def passes(lanes: int) -> tuple[Pass, ...]:
    return (
        # A reader that nobody reads would keep a value in memory, or have it computed twice.
        drop_dead,
        # A kernel takes a chain of computations as one: it is proved once, and not for each of them.
        fuse_computations,
        # An element is stored once and may be read often: what stands between two kernels is better the first one's.
        partial(fuse_into_stores, lanes=lanes),
        partial(fuse_into_loads, lanes=lanes),
        # Nobody names the temporaries that values went through.
        drop_dead,
    )


def fused(program: Program, lanes: int = 16) -> Program:
    """The program with calls that became one; computations that are left over have no schedule yet.

    lanes  of a processor's vectors, by which what a fusion costs is weighed; 0 elsewhere
    """

    def run(program: Program) -> Program:
        for change in passes(lanes):
            with blaming_taskc(_name(change), partial(str, program)):
                program = change(program)
        return program

    # Equal callees become one object, in all bodies, so that each pair of them is fused once.
    program = share_computations(program)
    # Bodies first, so that what only they read is gone where they are seen as a whole.
    program = run(map_bodies(program, run))
    # Different bodies have made equal results of equal callees.
    return share_computations(program)


def _name(change: Pass) -> str:
    function = change.func if isinstance(change, partial) else change
    return str(getattr(function, "__name__", function))


def _nothing(point: Any, program: Program) -> Program:
    return program


@deeply
def fused_program(program: Program, machine: Machine, others: Between = _nothing) -> Program:
    """The program as it is fused for a machine; `others` are as in `lower_program`."""
    lanes = machine.lanes if machine.is_processor else 0
    return others("fused", fused(others("traced", program), lanes))


@deeply
def lower_program(program: Program, machine: Machine, others: Between = _nothing) -> Program:
    """A program of kernels alone, for a machine.

    others  makes of the program what users' passes at a point do: "traced", "fused", "kernel"
    """
    # An expression is easier to put into another one than a kernel is: those that are left over come last.
    program = fused_program(program, machine, others)
    with blaming_taskc("schedule", partial(str, program)):
        program = schedule(program, machine)
    return others("kernel", program)
