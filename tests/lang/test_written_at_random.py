"""Random programs on parts of one tensor: those that are accepted read nothing that isn't written, for any sizes."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import pytest

import taskc as tc
from taskc import f32
from taskc.errors import CompileError
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Tensor, Variable
from taskc.ir.program import Loop, Program, Step
from taskc.ir.verify_programs import verify_program

m, n, q = tc.dim("m"), tc.dim("n"), tc.dim("q")


@tc.kernel(workers=4)
def written(y: tc.out[f32[q]]):
    pass


@tc.kernel(workers=4)
def read(x: f32[q]):
    pass


@tc.kernel(workers=4)
def updated(x: tc.inout[f32[q]]):
    pass


class Writer:
    """Makes up what a program does with `t`; a call that is refused is left out."""

    def __init__(self, seed: int, t: Any) -> None:
        self.random = random.Random(seed)
        self.t = t
        self.numbers: list[Any] = []  # of the loops around

    def part(self) -> Any:
        """A part of one or a few elements, of a size, or of another one in each step."""
        pick = self.random.choice
        if self.numbers and self.random.random() < 0.75:
            number = pick(self.numbers)
            width = pick([1, 1, 1, 2, m])
            low = pick([number, number, n - 1 - number]) * width
            low = low + pick([0, 0, width, 1])
            return self.t[low : low + width]
        low = pick([0, 0, 0, 1, 2, n, m, n + m])
        return self.t[low : pick([low + 1, low + 2, low + n, low + m, n, n + m, 2 * n + m])]

    def steps(self, depth: int) -> None:
        for _ in range(self.random.randint(2, 5)):
            if depth < 2 and self.random.random() < 0.3:
                for number in tc.steps(self.random.choice([n, n, n, m, 2, 1])):
                    self.numbers.append(number)
                    self.steps(depth + 1)
                    self.numbers.pop()
            else:
                with contextlib.suppress(CompileError):
                    self.call(self.random.choice([written, written, read, read, updated]))

    def call(self, kernel: Any) -> None:
        part = self.part()
        if kernel is written:
            kernel(out=part)
        else:
            kernel(part)


def random_program(seed: int) -> tc.ProgramDefinition | None:
    def body(x: Any, z: Any) -> Any:
        Writer(seed, tc.empty(f32[2 * n + m + 2])).steps(0)
        return x

    try:
        return tc.trace("p", {"x": f32[n], "z": f32[m]}, body)
    except CompileError:  # what a loop reads is known to be there only at its end
        return None


def parts(
    program: Program, steps: tuple[Step, ...], sizes: dict[Variable, int]
) -> Iterator[tuple[str, Tensor, int, int, int]]:
    """What each call gets, in every step: its role, its memory and its elements; and in how many loops the call is."""
    views = {view.tensor: view for view in program.views}
    for step in steps:
        if isinstance(step, Loop):
            for number in range(extent_value(step.count, sizes)):
                for role, of, low, high, depth in parts(
                    program, step.body, sizes | {step.variable: number}
                ):
                    yield role, of, low, high, depth + 1
            continue
        for parameter, argument in zip(step.callee.parameters, step.arguments, strict=True):
            if isinstance(parameter, Tensor) and argument in views:
                assert isinstance(argument, Tensor)
                low = extent_value(views[argument].offset, sizes)
                (extent,) = argument.shape
                high = low + extent_value(extent, sizes)
                yield parameter.role, views[argument].of, low, high, 0


def check(program: Program) -> int:
    """Goes through it for some sizes; how many reads of a loop's body it saw."""
    reads = 0
    for sizes in [(0, 0), (0, 3), (1, 0), (1, 1), (2, 1), (3, 5), (4, 2)]:
        known = dict(zip(program.dimensions, sizes, strict=True))
        done: set[int] = set()
        for role, memory, low, high, depth in parts(program, program.calls, known):
            assert 0 <= low <= high <= extent_value(memory.shape[0], known)
            if role != "out":
                reads += depth > 0 and low < high
                assert done.issuperset(range(low, high)), (role, low, high, sizes)
            done.update(range(low, high))
    return reads


def run(seeds: range) -> tuple[int, int]:
    """How many programs were accepted, and how many of them read what loops say."""
    accepted = loops = 0
    for seed in seeds:
        program = random_program(seed)
        if program is not None:
            accepted += 1
            verify_program(program.ir)
            loops += check(program.ir) > 0
    return accepted, loops


def test_what_is_accepted_reads_nothing_uninitialized() -> None:
    accepted, loops = run(range(150))
    assert accepted >= 40
    assert loops >= 3


@pytest.mark.sweep
def test_many_programs() -> None:
    accepted, loops = run(range(1000, 11000))
    assert accepted >= 3000
    assert loops >= 150
