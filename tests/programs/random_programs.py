"""Random programs of kernels and computations: chains, trees, views, parts, updates in place, several readers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import taskc as tc
from taskc import TensorType, f16, f32, i64
from tests.programs.lookalikes import add_to, both, doubled, halves, many, tiled

Handle = Any
TABLE = np.arange(40, dtype=np.int32)[::-1] % 12


@tc.kernel(workers=4)
def turned(x: f32[8, 12], y: tc.out[f32[12, 8]]):
    for col, row in tc.tiles((12, 8), by=(4, 2)):
        for j, i in tc.spatial(4, 1) * tc.repeat(1, 2):
            y[col + j, row + i] = x[row + i, col + j] + 0.5


@tc.kernel(workers=4)
def flat(x: f32[8, 12].reshape(96), y: tc.out[f32[8, 12].reshape(96)]):
    for first in tc.tiles(96, by=8):
        for i in tc.repeat(2) * tc.spatial(4):
            y[first + i] = x[first + i] - 0.25


@tc.kernel(workers=4)
def rows(x: f32[8, 12], y: tc.out[f32[8]]):
    for row in tc.tiles(8, by=1):
        own = tc.repeat(1, 3) * tc.spatial(1, 4)
        held = tc.tile(f32, own)
        for i, j in own:
            held[i, j] = x[row + i, j]
        total = tc.reduce(held, 1, "+")
        for i in total.mapping:
            y[row + i] = total[i]


KERNELS = {
    (8, 12): [doubled, both, halves, turned, flat, rows, many],
    (7, 10): [tiled],
}


def program(seed: int) -> tc.ProgramDefinition:
    """The program of this number."""
    return tc.trace(
        f"random_{seed}", INPUTS, lambda *given: _Body(random.Random(seed), given).run()
    )


INPUTS = {
    "x": TensorType(f32, (8, 12)),
    "z": TensorType(f32, (8, 12)),
    "b": TensorType(f32, (12,)),
    "c": TensorType(f32, (8,)),
    "s": TensorType(f32, (7, 10)),
}


class _Body:
    """What a program's function does, by chance."""

    def __init__(self, pick: random.Random, given: tuple[Handle, ...]) -> None:
        self.pick = pick
        self.known: list[Handle] = list(given)
        self.made: list[Handle] = []

    def run(self) -> dict[str, Handle]:
        pick = self.pick
        for _ in range(pick.randint(3, 9)):
            self.step()
        if not self.made:
            self.note(self.scaled())
        last = len(self.made) - 1
        wanted = {last, *pick.sample(range(last + 1), min(last + 1, pick.choice([0, 0, 1, 2])))}
        return {f"out{number}": self.made[number] for number in wanted}

    def any_of(self, shape: tuple[int, ...]) -> Handle | None:
        """A tensor of this shape, most often the newest: so programs are chains rather than heaps."""
        fitting = [it for it in self.known if it.shape == shape and it.dtype is f32]
        if not fitting:
            return None
        return fitting[-1] if self.pick.random() < 0.7 else self.pick.choice(fitting[-4:])

    @property
    def newest(self) -> tuple[int, ...]:
        """A shape to go on with."""
        shape: tuple[int, ...] = self.known[-1].shape
        return shape if self.made and self.pick.random() < 0.85 else (8, 12)

    def step(self) -> None:
        pick, shape = self.pick, self.newest
        kind = pick.random()
        if shape in KERNELS and kind < 0.35:
            kernel = pick.choice(KERNELS[shape])
            found = kernel(self.any_of(shape))
            self.note(*(found if isinstance(found, tuple) else (found,)))
        elif shape == (8, 12) and kind < 0.45:
            target = [it for it in self.made if it.shape == (8, 12)]
            source = self.any_of((8, 12))
            for one in pick.sample(target, min(1, len(target))):
                if one is not source:
                    add_to(source, one)
        elif shape == (8, 12) and kind < 0.55:
            self.see()
        else:
            self.compute(shape)

    def note(self, *handles: Handle) -> None:
        self.known += handles
        self.made += handles

    def see(self) -> None:
        """A view, which is known and not made."""
        pick = self.pick
        whole = self.any_of((8, 12))
        assert whole is not None
        start = pick.randrange(5)
        self.known.append(
            pick.choice(
                [
                    lambda: whole.reshape(96),
                    lambda: whole.reshape(4, 24),
                    lambda: whole.reshape(12, 8),
                    lambda: whole[start : start + 4],
                    lambda: whole[start],
                ]
            )()
        )

    def compute(self, shape: tuple[int, ...]) -> None:
        makers: list[Callable[[], Handle | None]] = [
            self.scaled, self.added, self.squared, self.rounded,
            *{
                (8, 12): [self.biased, self.turned, self.backwards, self.shifted, self.cut],
                (12,): [self.gathered, self.gathered, self.repeated, self.biased],
                (8,): [self.repeated, self.biased],
                (4, 12): [self.joined, self.joined],
            }.get(shape, []),
        ]  # fmt: skip
        made = self.pick.choice(makers)()
        if made is not None:
            self.note(made)

    def some(self) -> Handle:
        found = self.any_of(self.newest)
        assert found is not None
        return found

    def scaled(self) -> Handle:
        t, factor = self.some(), self.pick.choice([0.5, 1.1, -0.3])
        return tc.compute(t.shape, lambda *at: t[at] * factor)

    def squared(self) -> Handle:
        t = self.some()
        return tc.compute(t.shape, lambda *at: t[at] * t[at] - max(t[at], 0.125))

    def added(self) -> Handle:
        t = self.some()
        u = self.any_of(t.shape)
        return tc.compute(t.shape, lambda *at: t[at] + u[at])

    def rounded(self) -> Handle:
        t = self.some()
        half = tc.compute(t.shape, lambda *at: (t[at] * 3).to(f16))
        return tc.compute(t.shape, lambda *at: half[at].to(f32) + t[at])

    def biased(self) -> Handle | None:
        t, b, c = self.any_of((8, 12)), self.any_of((12,)), self.any_of((8,))
        return tc.compute((8, 12), lambda i, j: t[i, j] * c[i] + b[j])

    def turned(self) -> Handle:
        t = self.any_of((8, 12))
        return tc.compute((12, 8), lambda i, j: t[j, i] + 1)

    def backwards(self) -> Handle:
        t = self.any_of((8, 12))
        return tc.compute((8, 12), lambda i, j: t[7 - i, j] - t[i, 11 - j])

    def shifted(self) -> Handle:
        t = self.any_of((8, 12))
        return tc.compute((8, 12), lambda i, j: t[i, j - 1] if j > 0 else 0.5)

    def gathered(self) -> Handle:
        t, places = self.any_of((12,)), tc.constant(TABLE)
        at = tc.compute((12,), lambda i: min(max(places[i + 3], 0), 11))
        return tc.compute((12,), lambda i: t[min(max(at[i], 0), 11).to(i64)])

    def repeated(self) -> Handle:
        t, u = self.any_of((8,)), self.any_of((12,))
        return tc.compute((8, 12), lambda i, j: t[i] - u[j])

    def joined(self) -> Handle | None:
        t, u = self.any_of((4, 12)), self.any_of((8, 12))
        if t is None:
            return None
        return tc.compute((8, 12), lambda i, j: t[i, j] if i < 4 else u[i - 4, j])

    def cut(self) -> Handle:
        t = self.any_of((8, 12))
        return tc.compute((7, 10), lambda i, j: t[i + 1, j + 2])
