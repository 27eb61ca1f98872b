"""A program's calls timed one by one in a normal run: the frame's @step is replaced by one that reads the clock.

The cost of reading the clock, some 30 ns, is subtracted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np

from taskc.backend.cpu.compile import words_of
from taskc.backend.cpu.entry import GIVEN_UP
from taskc.backend.cpu.pool import pool
from taskc.backend.cpu.program import Arena, LoadedPlan, LoadedProgram, ProgramMemory
from taskc.backend.packing import packed
from taskc.errors import InternalError
from taskc.ir.nodes import Tensor, Variable
from taskc.ir.reentry import Turn

_WARM = 3  # rounds that don't count
_EMPTY_STEPS = 1000  # steps that measure the cost of reading the clock

_turn = Turn()  # simultaneous measurements would disturb each other


def timed(
    program: LoadedProgram, values: Sequence[Any], dimensions: dict[Variable, int], rounds: int
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of each call of the single-threaded plan, a row for each round; and seconds of the whole program.

    The whole program runs without stamps. A call that takes less than the clock's jitter may come out negative.
    The arguments have been run before, so that no assertion fails. Arguments written in place are restored before
    each round.
    """
    pool().prepare(max((loaded.compiled.scratch for loaded in program.kernels), default=0))
    with packed(program.program.parameters, values) as passed, _turn.taken():
        words = words_of(program.program, passed, dimensions)
        whole_plan, one_by_one = program.planned_for(words), program.planned_for(words, threads=1)
        arena = Arena(max(whole_plan.arena, one_by_one.arena))
        stamps = _Stamps(len(one_by_one.calls))
        plain = _Frame(program.in_memory(whole_plan, words), arena, pool().step)
        stamping = _Frame(program.in_memory(one_by_one, words), arena, stamps.step)
        in_place = [
            (value, np.array(value))
            for item, value in zip(program.program.parameters, passed, strict=True)
            if isinstance(item, Tensor) and item.role == "inout"
        ]
        calls, whole = [], []
        for _ in range(_WARM + rounds):
            _put_back(in_place)
            before = perf_counter_ns()
            plain.run(words)
            whole.append(perf_counter_ns() - before)
            _put_back(in_place)
            calls.append(stamps.of(lambda: stamping.run(words), len(one_by_one.calls)))
        _put_back(in_place)
    return np.array(calls[_WARM:]) * 1e-9, np.array(whole[_WARM:]) * 1e-9


def _put_back(in_place: Sequence[tuple[Any, np.ndarray]]) -> None:
    for value, before in in_place:
        np.copyto(np.asarray(value), before)


class _Stamps:
    """Clock readings between steps; `step` is the address of the function that replaces the pool's."""

    def __init__(self, most: int) -> None:
        self._library = pool().library
        self._table = np.zeros(max(most, _EMPTY_STEPS) + 1, np.int64)
        self._set("stamps", self._table.ctypes.data)
        self.step = self._library["stamped"]
        nothing = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self._library["stamp_nothing"])
        self._own = 0.0
        self._own = float(np.median(self.of(lambda: nothing(_EMPTY_STEPS), _EMPTY_STEPS)))

    def _set(self, name: str, value: int) -> None:
        ctypes.c_int64.from_address(self._library[name]).value = value

    def of(self, run: Callable[[], object], steps: int) -> np.ndarray:
        """The nanoseconds of each step that `run` executes."""
        self._set("taken", 0)
        run()
        return np.diff(self._table[: steps + 1]) - self._own


class _Frame:
    """A plan that runs with the given step function."""

    def __init__(self, plan: LoadedPlan, arena: Arena, step: int) -> None:
        plan.add_frame(step)
        self._kept = plan, arena  # kept alive, since they are read by address
        self._node = ProgramMemory(plans=plan.node.address, arenas=arena.node.address)
        begin = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
        self._begin, self._run = begin(pool().library["begin"]), run(pool().library["run_program"])

    def run(self, words: np.ndarray) -> None:
        frame = self._begin(self._node.address, words.ctypes.data)
        if not frame:
            raise InternalError("a plan has no frame or no arena")
        code = self._run(frame)
        if code == GIVEN_UP:
            pool().raise_again()
        if code:
            raise InternalError(f"a program that ran before ended with {code}")
