"""Random programs on parts of one tensor: those accepted read nothing that isn't written, for any sizes and flags."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import taskc as tc
from taskc import f32
from taskc.errors import CompileError
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.programs.ir import Branch, Loop, Program, Step, While
from taskc.programs.tracing import TensorHandle, current_trace
from taskc.programs.verify import verify_program

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
    """Makes up what a program does with `t`; a call that is refused is left out.

    has_flags  and it has branches and whiles, and all sizes are known: then much is known to be written
    """

    def __init__(self, seed: int, t: Any, has_flags: bool) -> None:
        self.random = random.Random(seed)
        self.t = t
        self.has_flags = has_flags
        self.flag = tc.compute((), lambda: True)
        self.is_careful = has_flags and self.random.random() < 0.6  # nothing is written twice
        self.numbers: list[Any] = []  # of the loops around

    def part(self) -> Any:
        """A part of one or a few elements, of a size, or of another one in each step; none that may be empty."""
        part = self.slice()
        if not isinstance(part, TensorHandle):
            raise CompileError("this part may end before it begins")
        return part

    def slice(self) -> Any:
        pick = self.random.choice
        if self.has_flags:
            low = pick([0, 0, 0, 1, 2, 3, 4, 5])
            if self.numbers and self.random.random() < 0.75:
                low = pick([self.numbers[-1], 5 - self.numbers[-1]])
                return self.t[low : low + 1]
            return self.t[low : pick([low + 1, 6, 6])]
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
            if self.has_flags and depth < 3 and self.random.random() < 0.3:
                self.flagged(depth + 1)
            elif depth < 2 and self.random.random() < 0.3:
                counts = [6, 6, 3, 1] if self.has_flags else [n, n, n, m, 2, 1]
                for number in tc.steps(self.random.choice(counts)):
                    self.numbers.append(number)
                    self.steps(depth + 1)
                    self.numbers.pop()
            else:
                with contextlib.suppress(CompileError):
                    self.call(self.random.choice([written, written, read, read, updated]))

    def flagged(self, depth: int) -> None:
        kind = self.random.random()
        if kind < 0.3:
            for _ in tc.steps_while(self.flag):
                self.steps(depth)
                tc.compute((), lambda: True, out=self.flag)
            return
        with tc.branch(self.flag):
            part = self.part()
            self.steps(depth)
            self.write(part)
        if kind < 0.8:
            with tc.otherwise():
                self.steps(depth)
                if self.random.random() < 0.8:
                    self.write(part)

    def write(self, part: Any) -> None:
        trace = current_trace()
        assert trace is not None
        span = trace.span(part.tensor, part.tensor.loc)
        if not self.is_careful or trace.written.overlapping(self.t.tensor, span) is None:
            written(out=part)

    def call(self, kernel: Any) -> None:
        part = self.part()
        if kernel is written:
            self.write(part)
        else:
            kernel(part)


@dataclass
class Made:
    """once   an element of `t` is written by one call, as far as is known
    whole  all of it is
    """

    program: Program
    size: int | Expression
    once: bool
    whole: bool


def random_program(seed: int, has_flags: bool) -> Made | None:
    known: list[Any] = []

    def body(x: Any, z: Any) -> Any:
        t = tc.empty(f32[6 if has_flags else 2 * n + m + 2])
        Writer(seed, t, has_flags).steps(0)
        trace = current_trace()
        assert trace is not None
        whole = trace.span(t.tensor, t.tensor.loc)
        known.append(t.tensor.shape[0])
        known.extend([t.tensor not in trace.written.repeated, trace.written.has(t.tensor, whole)])
        return x

    try:
        return Made(tc.trace("p", {"x": f32[n], "z": f32[m]}, body).ir, *known)
    except CompileError:  # what a loop reads is known to be there only at its end
        return None


def parts(
    program: Program,
    steps: tuple[Step, ...],
    sizes: dict[Variable, int],
    flags: random.Random,
    depth: int = 0,
) -> Iterator[tuple[str, Tensor, int, int, int]]:
    """What each call gets, in every step: its role, its memory and its elements; and in how many loops the call is."""
    views = {view.tensor: view for view in program.views}
    for step in steps:
        if isinstance(step, Loop):
            for number in range(extent_value(step.count, sizes)):
                inside = sizes | {step.variable: number}
                yield from parts(program, step.body, inside, flags, depth + 1)
            continue
        if isinstance(step, Branch):
            taken = step.then if flags.random() < 0.5 else step.otherwise
            yield from parts(program, taken, sizes, flags, depth)
            continue
        if isinstance(step, While):
            while flags.random() < 0.5:
                yield from parts(program, step.body, sizes, flags, depth)
            continue
        for parameter, argument in zip(step.callee.parameters, step.arguments, strict=True):
            if isinstance(parameter, Tensor) and argument in views:
                assert isinstance(argument, Tensor)
                low = extent_value(views[argument].offset, sizes)
                (extent,) = argument.shape
                high = low + extent_value(extent, sizes)
                yield parameter.role, views[argument].of, low, high, depth


def check(made: Made) -> int:
    """Goes through it for some sizes and flags; how many reads of a loop's body it saw."""
    reads, program, flags = 0, made.program, random.Random(0)
    for sizes in [(0, 0), (0, 3), (1, 0), (1, 1), (2, 1), (3, 5), (4, 2), (3, 5), (4, 2)]:
        known = dict(zip(program.dimensions, sizes, strict=True))
        done: set[int] = set()
        for role, memory, low, high, depth in parts(program, program.calls, known, flags):
            assert 0 <= low <= high <= extent_value(memory.shape[0], known)
            if role != "out":
                reads += depth > 0 and low < high
                assert done.issuperset(range(low, high)), (role, low, high, sizes)
            elif made.once:
                assert done.isdisjoint(range(low, high)), (role, low, high, sizes)
            done.update(range(low, high))
        assert not made.whole or len(done) == extent_value(made.size, known)
    return reads


def run(seeds: range, has_flags: bool) -> tuple[int, int]:
    """How many programs were accepted, and how many of them read what loops say, or know that all is written."""
    accepted = loops = 0
    for seed in seeds:
        made = random_program(seed, has_flags)
        if made is not None:
            accepted += 1
            verify_program(made.program)
            loops += check(made) > 0 or made.whole
    return accepted, loops


@pytest.mark.parametrize(("has_flags", "least"), [(False, 40), (True, 15)])
def test_what_is_accepted_reads_nothing_uninitialized(has_flags: bool, least: int) -> None:
    accepted, loops = run(range(150), has_flags)
    assert accepted >= least
    assert loops >= 3


@pytest.mark.sweep
@pytest.mark.parametrize("has_flags", [False, True])
def test_many_programs(has_flags: bool) -> None:
    accepted, loops = run(range(1000, 11000), has_flags)
    assert accepted >= (1000 if has_flags else 3000)
    assert loops >= 150
