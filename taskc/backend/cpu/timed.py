"""A program's calls timed one by one: each is a plan of its own, and all of them have one arena.

Between two calls there is what Python takes to look at the clock, a microsecond or two: caches are as in a call of the
whole program, and threads don't fall asleep. What a plan without any call takes is taken off.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter_ns
from typing import Any

import numpy as np

from taskc.backend.cpu.compile import words_of
from taskc.backend.cpu.pool import pool
from taskc.backend.cpu.program import Arena, LoadedPlan, LoadedProgram, ProgramMemory
from taskc.backend.packing import packed
from taskc.errors import InternalError
from taskc.ir.nodes import Tensor, Variable
from taskc.ir.plan import Plan

_WARM = 3  # rounds that don't count


class _Part:
    """A plan that runs on an arena that others have, too."""

    def __init__(self, plan: LoadedPlan, arena: Arena) -> None:
        plan.add_frame(pool().step)
        self.plan = plan  # which is read by its address
        self.node = ProgramMemory(plans=plan.node.address, arenas=arena.node.address)


def timed(
    program: LoadedProgram, values: Sequence[Any], dimensions: dict[Variable, int], rounds: int
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of each call of the plan for one thread, a row for each round, and those of the whole program in each.

    Of a call that takes no longer than looking at the clock varies, some are less than 0.
    The arguments have been run on before: no assertion fails. What is written in place is put back for each round.
    """
    pool().prepare(max((loaded.compiled.scratch for loaded in program.kernels), default=0))
    with packed(program.program.parameters, values) as passed:
        words = words_of(program.program, passed, dimensions)
        whole, one_by_one = program.planned_for(words), program.planned_for(words, threads=1)
        arena = Arena(max(whole.arena, one_by_one.arena))
        parts = [Plan((), whole.arena, whole.alive), whole]
        parts += [replace(one_by_one, steps=(call,)) for call in one_by_one.calls]
        made = [_Part(program.in_memory(plan, words), arena) for plan in parts]
        in_place = [
            (value, np.array(value))
            for item, value in zip(program.program.parameters, passed, strict=True)
            if isinstance(item, Tensor) and item.role == "inout"
        ]
        clock, found = _Clock(words), []
        for _ in range(_WARM + rounds):
            _put_back(in_place)
            both = [clock(part) for part in made[:2]]
            _put_back(in_place)
            found.append([*both, *[clock(part) for part in made[2:]]])
        _put_back(in_place)
    samples = np.array(found[_WARM:], np.float64)
    samples = (samples[:, 1:] - np.median(samples[:, 0])) * 1e-9
    return samples[:, 1:], samples[:, 0]


def _put_back(in_place: Sequence[tuple[Any, np.ndarray]]) -> None:
    for value, before in in_place:
        np.copyto(np.asarray(value), before)


class _Clock:
    """What a part takes for a call with these words, in nanoseconds."""

    def __init__(self, words: np.ndarray) -> None:
        begin = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
        self._begin, self._run = begin(pool().library["begin"]), run(pool().library["run_program"])
        self._words = words

    def __call__(self, part: _Part) -> int:
        frame = self._begin(part.node.address, self._words.ctypes.data)
        if not frame:
            raise InternalError("a part of a program has no frame or no arena")
        start = perf_counter_ns()
        code = self._run(frame)
        stop = perf_counter_ns()
        if code:
            raise InternalError(f"a part of a program that ran whole ended with {code}")
        return stop - start
