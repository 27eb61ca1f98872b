"""Random programs by one call and call by call, bit for bit, in memory that was full of NaN; and in the simulator."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32
from taskc.arrays.arguments import Bound
from taskc.backend.cpu import program as programs
from taskc.runtime import driver

n, q = tc.dim("n"), tc.dim("q")


@tc.kernel(workers=4)
def scaled(x: f32[q], by: f32, y: tc.out[f32[q]]):
    for start in tc.tiles(q, by=16):
        for i in tc.spatial(4).repeat(4):
            if start + i < q:
                y[start + i] = x[start + i] * 0.5 + by


@tc.kernel(workers=4)
def turned(x: f32[q], y: tc.out[f32[q]]):
    for start in tc.tiles(q, by=16):
        for i in tc.spatial(4).repeat(4):
            if start + i < q:
                y[start + i] = x[q - 1 - start - i]


@tc.kernel(workers=4)
def mixed(x: f32[q], z: f32[q], y: tc.out[f32[q]], w: tc.out[f32[q]]):
    for start in tc.tiles(q, by=16):
        for i in tc.spatial(4).repeat(4):
            if start + i < q:
                y[start + i] = x[start + i] - z[start + i]
                w[start + i] = z[q - 1 - start - i]


@tc.kernel(workers=4)
def raised(x: tc.inout[f32[q]], by: tc.i64):
    for start in tc.tiles(q, by=16):
        for i in tc.spatial(4).repeat(4):
            if start + i < q:
                x[start + i] = x[start + i] + by.to(f32)


class Composer:
    """Calls of random kernels and computations on what is there; `size` is a number or a dimension."""

    def __init__(self, choose: random.Random, size: Any, given: list[Any], own: list[Any]) -> None:
        self.choose = choose
        self.size = size
        self.read = given + own
        self.own = own  # what may be written

    def any(self) -> Any:
        return self.choose.choice(self.read[-6:] if self.choose.random() < 0.7 else self.read)

    def add(self, *made: Any) -> None:
        self.read += made
        self.own += made

    def computation(self) -> Any:
        a, b, size = self.any(), self.any(), self.size
        return self.choose.choice(
            [
                lambda: tc.compute((size,), lambda i: a[i] * 0.5 + b[i]),
                lambda: tc.compute((size,), lambda i: a[size - 1 - i] - b[i]),
                lambda: tc.compute((size,), lambda i: a[i] if i % 2 == 0 else b[0]),
            ]
        )()

    def parts(self) -> None:
        """Both halves of something twice as large, and one of them written again."""
        a, b, size = self.any(), self.any(), self.size
        both = tc.compute((2, size), lambda k, i: a[i] if k == 0 else b[i])
        scaled(self.any(), 0.25, out=both[self.choose.randrange(2)])
        self.read += [both[0], both.reshape(2 * size)[size : 2 * size]]

    def constant(self) -> None:
        values = [float(self.choose.randrange(8)) for _ in range(24)]
        if isinstance(self.size, int):
            self.read.append(tc.constant(np.array(values, np.float32))[: self.size])

    def step(self, by: Any) -> None:
        match self.choose.randrange(8):
            case 0 | 1:
                self.add(scaled(self.any(), by if self.choose.random() < 0.5 else 1.5))
            case 2:
                self.add(turned(self.any()))
            case 3:
                self.add(*mixed(self.any(), self.any()))
            case 4 if self.own:
                raised(self.choose.choice(self.own), self.size * 2 - 3)
            case 5:
                self.parts()
            case 6:
                self.constant()
            case _:
                self.add(self.computation())


def composed(seed: int) -> tc.ProgramDefinition:
    choose = random.Random(seed)
    size: Any = choose.choice([1, 5, 24, n, n])

    @tc.program
    def program(
        x: f32[size], by: f32, w: tc.inout[f32[size]], y: tc.out[f32[size]], z: tc.out[f32[size]]
    ):
        made = Composer(choose, x.shape[0], [x], [w])
        for _ in range(choose.randrange(2, 12)):
            made.step(by)
        scaled(made.any(), by, out=y)
        a, b = made.any(), made.any()
        tc.compute(x.shape, lambda i: a[i] + b[x.shape[0] - 1 - i], out=z)

    return program


def arguments(program: tc.ProgramDefinition, size: int, seed: int) -> tuple[Any, ...]:
    extent = program.ir.parameters[0].shape[0]  # type: ignore[union-attr]
    size = extent if isinstance(extent, int) else size
    x, w = np.random.default_rng(seed).integers(-8, 8, (2, size)).astype(np.float32)
    return x, np.float32(0.5), w


def results(program: tc.ProgramDefinition, call: Any, given: tuple[Any, ...]) -> tuple[bytes, ...]:
    x, by, w = given[0], given[1], given[2].copy()
    y, z = call(x, by, w)
    return y.tobytes(), z.tobytes(), w.tobytes()


def call_by_call(program: tc.ProgramDefinition) -> Any:
    def call(*args: Any) -> Any:
        bound: Bound = driver.signature(program).bind(args, {})
        driver._run_launches(program, bound, "cpu")
        return bound.returned

    return call


def agrees(seed: int, sizes: tuple[int, ...]) -> None:
    program = composed(seed)
    for size in sizes:
        given = arguments(program, size, seed)
        expected = results(program, call_by_call(program), given)
        for _ in range(2):  # made there and then, and by compiled code that finds all of it
            assert results(program, program, given) == expected, seed


@pytest.fixture(autouse=True)
def arenas_of_nan(monkeypatch: pytest.MonkeyPatch) -> list[programs.ProgramArena]:
    """What is read of an arena, and wasn't written, shows."""
    made: list[programs.ProgramArena] = []

    class Filled(programs.ProgramArena):
        def __init__(self, size: int) -> None:
            super().__init__(size)
            self.memory[...] = 0xFF
            made.append(self)

    monkeypatch.setattr(programs, "ProgramArena", Filled)
    return made


def test_random_programs(arenas_of_nan: list[programs.ProgramArena]) -> None:
    for seed in range(12):
        agrees(seed, (24, 3, 100, 24))
    assert len(arenas_of_nan) > 12


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(20))
def test_many_random_programs(part: int) -> None:
    for seed in range(1000 + 100 * part, 1100 + 100 * part):
        agrees(seed, (24, 3, 100))


@pytest.mark.parametrize("seed", range(3))
def test_random_programs_in_the_simulator(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program = composed(seed)
    given = arguments(program, 5, seed)
    found = results(program, program, given)
    monkeypatch.setenv("TASKC_TARGET", "sim")
    assert results(program, program.call, given) == found


def test_what_is_read_before_it_is_written_would_show() -> None:
    @tc.program
    def program(x: f32[24], y: tc.out[f32[24]]):
        t = tc.empty(f32[24])
        scaled(x, 0.0, out=t)
        scaled(t, 0.0, out=y)

    made, _ = driver.scheduled(program)
    entry = driver._entry(program)
    entry.scheduled[None, ()] = (
        type(made)(made.name, made.parameters, (), made.temporaries, made.calls[1:]),
        driver.scheduled(program)[1],
    )
    assert np.isnan(program(np.zeros(24, np.float32))).all()
